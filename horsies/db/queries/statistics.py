"""Read counts over time, which workers store once a minute: for the dashboard's charts and for metrics."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple, cast

from psycopg.rows import kwargs_row

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
    """The tasks that ended within a short time. The histograms count them by how long they waited and ran."""

    at: datetime
    completed: int
    failed: int
    other: int
    waits: list[int] | None
    runs: list[int] | None


class Depth(NamedTuple):
    """The number of waiting and running tasks at one minute."""

    at: datetime
    pending: int
    running: int


class TaskCounts(NamedTuple):
    """The runs of one task in one queue that ended within a time."""

    queue_name: str
    task_name: str
    completed: int
    failed: int
    other: int
    run_ms: int


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
    """Count the tasks that ended between two times, in steps of five seconds."""
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


def _slot(*, waits: Any, runs: Any, **counts: Any) -> TimeSlot:
    return TimeSlot(waits=_histogram(waits), runs=_histogram(runs), **counts)


def _histogram(stored: Any) -> list[int] | None:
    """Return the counts of a stored histogram, None if the value is not one."""
    if not isinstance(stored, list) or len(cast("list[Any]", stored)) != BUCKETS:
        return None
    counts = cast("list[Any]", stored)
    return counts if all(isinstance(count, int) and count >= 0 for count in counts) else None


async def depths(connection: Connection, since: datetime) -> list[Depth]:
    """Return the stored depth of all queues together at each minute since a time."""
    return await fetch(connection, Depth, SQL["depths"], {"since": since})


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
