"""Read counts over time, which workers store once a minute: for the dashboard's charts and for metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple, cast
from uuid import UUID

from psycopg.rows import dict_row, kwargs_row, scalar_row

from horsies.db.connection import Connection
from horsies.db.queries.inspect import fetch
from horsies.db.sql import statements

SQL = statements("statistics")

# The upper bounds of the histograms in seconds, as in horsies_time_bounds(). Longer times go into one more bucket.
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
BUCKETS = len(BOUNDS) + 1

# The final states of tasks, which are fields of `TaskTotals`.
ENDS = ("completed", "failed", "cancelled", "expired")


class TimeSlot(NamedTuple):
    """The tasks that ended within a short time. The histograms count them by how long they waited and ran.

    `max_wait_seconds` and `max_run_seconds` are the longest times, None if they are not known.
    """

    at: datetime
    completed: int
    failed: int
    other: int
    waits: list[int] | None
    runs: list[int] | None
    max_wait_seconds: float | None = None
    max_run_seconds: float | None = None
    run_ms: int = 0
    queue_name: str = ""
    task_name: str = ""


class Scope(NamedTuple):
    """The tasks that a chart counts: of one queue, of one name, or all."""

    queue: str | None = None
    name: str | None = None

    def covers(self, slot: TimeSlot) -> bool:
        return self.queue in (None, slot.queue_name) and self.name in (None, slot.task_name)


EVERYTHING = Scope()


class Part(NamedTuple):
    """The tasks of one queue or one name that ended within a step; of all others together if the label is None."""

    at: datetime
    label: str | None
    completed: int
    failed: int
    other: int
    run_ms: int


class QueueDepth(NamedTuple):
    """The number of waiting and running tasks of a queue at one moment."""

    at: datetime
    queue_name: str
    pending: int
    running: int


class Latencies(NamedTuple):
    """The wait and run times of tasks in seconds: the median, and the values below which 95 % and 99 % lie."""

    tasks: int
    failed: int
    waits: list[float | None] | None
    runs: list[float | None] | None


class Depth(NamedTuple):
    """The number of waiting and running tasks at one minute."""

    at: datetime
    pending: int
    running: int


class TaskCounts(NamedTuple):
    """The runs of one task in one queue that ended within a time; of all others together if the names are empty."""

    queue_name: str
    task_name: str
    completed: int
    failed: int
    other: int
    run_ms: int
    cancelled: int = 0
    expired: int = 0


class TaskTotals(NamedTuple):
    """The runs of one task in one queue that have ended since counting began."""

    queue_name: str
    task_name: str
    completed: int
    failed: int
    cancelled: int
    expired: int
    wait_ms: int
    run_ms: int
    waits: list[int]
    runs: list[int]


async def recent(connection: Connection, since: datetime, until: datetime) -> list[TimeSlot]:
    """Count the tasks that ended between two times by queue and task, in steps of five seconds."""
    return await _slots(connection, "recent", {"since": since, "until": until})


class Throughput(NamedTuple):
    """The number of tasks of a queue that ended within some seconds."""

    queue_name: str
    ended: int
    failed: int


async def throughput(connection: Connection, seconds: float) -> dict[str, Throughput]:
    """Count the tasks that ended within the last seconds, by queue."""
    found = await fetch(connection, Throughput, SQL["throughput"], {"seconds": seconds})
    return {each.queue_name: each for each in found}


async def minutes(connection: Connection, since: datetime) -> list[TimeSlot]:
    """Return the stored counts of each minute since a time."""
    return await _slots(connection, "minutes", {"since": since})


async def _slots(connection: Connection, verb: str, values: Mapping[str, Any]) -> list[TimeSlot]:
    cursor = connection.cursor(row_factory=kwargs_row(_slot))
    await cursor.execute(SQL[verb], values)
    return await cursor.fetchall()


def _slot(
    *, waits: Any, runs: Any, max_wait_seconds: float | None, max_run_seconds: float | None, **counts: Any
) -> TimeSlot:
    return TimeSlot(
        waits=_histogram(waits),
        runs=_histogram(runs),
        max_wait_seconds=_longest(max_wait_seconds),
        max_run_seconds=_longest(max_run_seconds),
        **counts,
    )


def _longest(stored: float | None) -> float | None:
    """Return a stored longest time, None if the value is not a finite time."""
    return stored if stored is not None and 0 <= stored < math.inf else None


def _histogram(stored: Any) -> list[int] | None:
    """Return the counts of a stored histogram, None if the value is not one."""
    if not isinstance(stored, list) or len(cast("list[Any]", stored)) != BUCKETS:
        return None
    counts = [
        int(count or 0) for count in cast("list[Any]", stored) if isinstance(count, int | Decimal | None)
    ]
    return counts if len(counts) == BUCKETS and min(counts) >= 0 else None


async def depths(connection: Connection, since: datetime) -> list[Depth]:
    """Return the stored depth of all queues together at each minute since a time."""
    return await fetch(connection, Depth, SQL["depths"], {"since": since})


async def counted_until(connection: Connection) -> datetime | None:
    """Return the end of the last minute that a worker has counted."""
    row = await (await connection.execute(SQL["counted_until"])).fetchone()
    return None if row is None else row[0]


async def counted_at(connection: Connection, since: datetime, until: datetime, step: float) -> list[datetime]:
    """Return the steps of a time span in which a worker has counted."""
    cursor = connection.cursor(row_factory=scalar_row)
    values = {"since": since, "until": until, "step": step}
    return await (await cursor.execute(SQL["counted_at"], values)).fetchall()


async def steps(
    connection: Connection, scope: Scope, since: datetime, until: datetime, step: float
) -> list[TimeSlot]:
    """Return the stored counts of a time span in steps of so many seconds."""
    verb = "steps" if scope == EVERYTHING else "steps_in_scope"
    return await _slots(connection, verb, {**scope._asdict(), "since": since, "until": until, "step": step})


async def parts(
    connection: Connection, by: str, scope: Scope, since: datetime, until: datetime, step: float, most: int
) -> list[Part]:
    """Return the stored counts of a time span in steps, broken down by "queue" or "task": the `most` frequent and the others."""
    span = {"since": since, "until": until, "step": step, "by": by, "most": most}
    return await fetch(connection, Part, SQL["parts"], {**scope._asdict(), **span})


async def pairs(
    connection: Connection, scope: Scope, since: datetime, until: datetime, most: int
) -> list[TaskCounts]:
    """Return the stored counts of a time span by queue and task: the `most` frequent, and the others in one row."""
    values = {**scope._asdict(), "since": since, "until": until, "most": most}
    return await fetch(connection, TaskCounts, SQL["pairs"], values)


async def depths_by_queue(
    connection: Connection, queue: str | None, since: datetime, step: float
) -> list[QueueDepth]:
    """Return the depth of each queue, or of one, in steps of so many seconds since a time."""
    values = {"queue": queue, "since": since, "step": step}
    return await fetch(connection, QueueDepth, SQL["depths_by_queue"], values)


async def throughput_by_queue(
    connection: Connection, since: datetime, until: datetime, step: float
) -> list[TimeSlot]:
    """Return the stored counts of each queue in steps of so many seconds."""
    values = {**EVERYTHING._asdict(), "since": since, "until": until, "step": step}
    cursor = connection.cursor(row_factory=dict_row)
    await cursor.execute(SQL["throughput_by_queue"], values)
    return [TimeSlot(waits=None, runs=None, **row) for row in await cursor.fetchall()]


async def latencies(
    connection: Connection, most: int, *, worker_id: UUID | None = None, key: str | None = None
) -> Latencies:
    """Return the wait and run times of the tasks of a worker or a key, among the newest `most` tasks."""
    values = {"worker_id": worker_id, "key": key, "most": most}
    return (await fetch(connection, Latencies, SQL["latencies"], values))[0]


class RateLimit(NamedTuple):
    """The rate limit of a task: one start every `seconds`, `burst` at once, and the next one in `due_in` seconds."""

    name: str
    seconds: float
    burst: int
    due_in: float


class TableSize(NamedTuple):
    """A table with its indexes, as the statistics of the database know it."""

    name: str
    partitions: int
    bytes: int
    rows: int
    dead_rows: int
    vacuumed_at: datetime | None


async def rate_limits(connection: Connection) -> list[RateLimit]:
    """Return the rate limits of tasks, those that must wait longest first."""
    return await fetch(connection, RateLimit, SQL["rate_limits"], {})


async def tables(connection: Connection) -> list[TableSize]:
    """Return the largest tables."""
    return await fetch(connection, TableSize, SQL["tables"], {})


async def busiest(connection: Connection, since: datetime, limit: int) -> list[TaskCounts]:
    """Return the tasks that ran most often since a time."""
    return await fetch(connection, TaskCounts, SQL["busiest"], {"since": since, "limit": limit})


async def error_codes(connection: Connection) -> list[tuple[str, int]]:
    """Return the most frequent error codes of the latest failures, with their counts."""
    rows = await (await connection.execute(SQL["error_codes"])).fetchall()
    return [(code, count) for code, count in rows]


async def totals(connection: Connection) -> list[TaskTotals]:
    """Return the counts of each task since counting began."""
    cursor = connection.cursor(row_factory=kwargs_row(_totals))
    await cursor.execute(SQL["totals"])
    return await cursor.fetchall()


def _totals(*, waits: Any, runs: Any, **counts: Any) -> TaskTotals:
    empty = [0] * BUCKETS
    return TaskTotals(waits=_histogram(waits) or empty, runs=_histogram(runs) or empty, **counts)
