"""The app that is measured."""

import os
import time

from horsies import AppConfig, Horsies, ScheduleConfig, TaskError, TaskResult

# A fixed prefetch needs a lease of a given length. Workers without one run with the default settings.
LEASE_MS = 30_000 if "BENCH_PREFETCH" in os.environ else None
app = Horsies(AppConfig(claim_lease_ms=LEASE_MS, schedule=ScheduleConfig()))


@app.task("noop")
def noop(x: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=x)


@app.task("moment")
def moment() -> TaskResult[float, TaskError]:
    """When user code started, on the clock that all processes of a machine share."""
    return TaskResult(ok=time.monotonic())


@app.task("span")
def span(seconds: float) -> TaskResult[list[float], TaskError]:
    """When user code started and ended, on the same clock."""
    started = time.monotonic()
    time.sleep(seconds)
    return TaskResult(ok=[started, time.monotonic()])
