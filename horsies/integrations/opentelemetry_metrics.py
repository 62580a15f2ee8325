"""OpenTelemetry metrics: the figures of `/metrics`, for whoever collects by OpenTelemetry.

They come from totals that only grow and from what the dashboard reads; no task is counted for them. Provider and exporter are
yours.

>>> measure(app)
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

from horsies.broker import Broker
from horsies.portal import run_sync
from horsies.registry import TaskRegistry
from horsies.storage import dashboard
from horsies.storage.database import TRANSIENT
from horsies.storage.sights import ENDS, Queue, Total, Worker

logger = logging.getLogger("horsies.metrics")

# All instruments are asked one after another, and are to tell of the same moment.
KEPT_SECONDS = 1.0


def measure(app: TaskRegistry, meter_provider: metrics.MeterProvider | None = None) -> None:
    """Report how queues and workers stand, and how many tasks have ended.

    Everyone who does reports the same numbers, so do it in one place: beside the dashboard, or in a process of its own.

    >>> app = Horsies()
    >>> measure(app)
    """
    meter, look = metrics.get_meter("horsies", meter_provider=meter_provider), _Look(app.get_broker())
    meter.create_observable_counter(
        "horsies.tasks", [look.at(_tasks)], "{task}", "Tasks that have ended, counted once a minute"
    )
    for name, unit, about, value in _OF_QUEUES:
        meter.create_observable_gauge(f"horsies.queue.{name}", [look.at(_of_queues(value))], unit, about)
    meter.create_observable_gauge("horsies.workers", [look.at(_workers)], "{worker}", "Workers by state")


class Sight(NamedTuple):
    """What there was to see at one moment."""

    totals: list[Total]
    queues: list[Queue]
    workers: list[Worker]


class _Look:
    """Looks at the database for all instruments at once; what cannot be seen is not reported."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._seen: tuple[float, Sight | None] = (float("-inf"), None)

    def at(
        self, tell: Callable[[Sight], Iterable[Observation]]
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_options: CallbackOptions) -> Iterable[Observation]:
            sight = self._sight()
            return [] if sight is None else tell(sight)

        return observe

    def _sight(self) -> Sight | None:
        if time.monotonic() - self._seen[0] > KEPT_SECONDS:
            try:
                sight = run_sync(self._ask())
            except TRANSIENT as error:
                logger.warning("the database cannot be asked for metrics (%s)", type(error).__name__)
                sight = None
            self._seen = time.monotonic(), sight
        return self._seen[1]

    async def _ask(self) -> Sight:
        async with self._broker.connection() as connection:
            return Sight(
                await dashboard.totals(connection),
                await dashboard.queues(connection),
                await dashboard.workers(connection),
            )


def _tasks(sight: Sight) -> Iterable[Observation]:
    for total in sight.totals:
        for end in ENDS:
            labels = {"queue": total.queue_name, "task": total.task_name, "status": end}
            yield Observation(getattr(total, end), labels)


def _of_queues(value: Callable[[Queue], float]) -> Callable[[Sight], Iterable[Observation]]:
    return lambda sight: [Observation(value(queue), {"queue": queue.name}) for queue in sight.queues]


_OF_QUEUES: tuple[tuple[str, str, str, Callable[[Queue], float]], ...] = (
    ("pending", "{task}", "Tasks that are due and wait", lambda queue: queue.waiting),
    ("running", "{task}", "Tasks that workers hold", lambda queue: queue.claimed + queue.running),
    (
        "oldest",
        "s",
        "How long the oldest waiting task has been due",
        lambda queue: queue.oldest_seconds,
    ),
)


def _workers(sight: Sight) -> Iterable[Observation]:
    states = Counter(worker.state for worker in sight.workers)
    return [Observation(count, {"state": state}) for state, count in states.items()]
