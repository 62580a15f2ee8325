"""The app that is measured, with somebody who listens to everything that happens to its tasks."""

import logging
import os
from collections import Counter

from bench.app import LEASE_MS
from horsies import AppConfig, Event, Horsies, TaskError, TaskResult
from horsies.logs import TextFormatter

app = Horsies(AppConfig(claim_lease_ms=LEASE_MS, events="log"))
seen: Counter[str] = Counter()

# The lines are made, and go nowhere.
_nowhere = logging.FileHandler(os.devnull)
_nowhere.setFormatter(TextFormatter())
_logger = logging.getLogger("horsies.events")
_logger.addHandler(_nowhere)
_logger.setLevel(logging.INFO)
_logger.propagate = False


@app.task("noop")
def noop(x: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=x)


@app.on("*")
def count(event: Event) -> None:
    seen[event.kind] += 1
