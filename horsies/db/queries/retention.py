"""Delete old rows, and count finished tasks minute by minute.

History is dropped in whole days where every task of the day is old, and deleted in small batches elsewhere. The counts let
the dashboard and the metrics show totals without counting tasks: each minute is counted once, by the worker that holds the
lock, and added to totals that only grow.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from psycopg.rows import scalar_row

from horsies.config import RetentionConfig
from horsies.db.connection import Connection
from horsies.db.sql import statements

SQL = statements("retention")

# The number of keys that are read at a time. The tasks are then deleted in batches, each in a transaction of its own.
KEYS = 20_000

# Workers delete nothing younger, whatever the settings say: the database does not know the settings.
MIN_AGE = timedelta(hours=1)

# The number of minutes that one statement counts.
MAX_MINUTES = 60


class Old(NamedTuple):
    """A filter for finished tasks: those that ended before a time, in one queue or in all except `others`."""

    before: datetime
    queue: str | None = None
    others: Sequence[str] = ()
    status: str | None = None
    name: str | None = None
    code: str | None = None


class Plan(NamedTuple):
    """The rows to delete now, by the time before which they are old. None means that no such row is deleted."""

    days_before: datetime | None
    tasks: list[Old]
    records_before: datetime | None
    results_before: datetime | None


def plan(retention: RetentionConfig, now: datetime) -> Plan:
    """Return what the settings allow to delete now. A day is dropped when it is old by the settings of every queue."""
    hours, by_queue = retention.terminal_record_retention_hours, retention.queue_retention
    default = None if hours is None else timedelta(hours=hours)
    by_queue = {queue: None if age is None else max(age, MIN_AGE) for queue, age in by_queue.items()}
    ages = [default, *by_queue.values()]
    limited = [age for age in ages if age is not None]
    tasks = [Old(now - age, queue=queue) for queue, age in by_queue.items() if age is not None]
    if default is not None:
        tasks.append(Old(now - default, others=list(by_queue)))
    results = retention.result_retention_hours
    return Plan(
        days_before=now - max(limited) if len(limited) == len(ages) else None,
        tasks=tasks,
        records_before=None if default is None else now - max(limited),
        results_before=None if results is None else now - timedelta(hours=results),
    )


async def drop_days(connection: Connection, before: datetime) -> int:
    """Drop whole days of history and return how many. Stop early if somebody reads the table."""
    return await _number(connection, "drop_days", {"before": before})


async def count(connection: Connection, which: Old) -> int:
    """Return the number of finished tasks that match the filter."""
    return await _number(connection, "count_old", _values(which))


async def delete(
    connection: Connection, which: Old, batch: int, *, as_worker: bool = False
) -> AsyncGenerator[int]:
    """Delete finished tasks with all that belongs to them; yield the number of tasks after each batch.

    A worker may only delete tasks that are older than `MIN_AGE`. Deleting younger ones takes the operator role.
    """
    keys = [(None, None)]
    while keys:
        cursor = await connection.execute(SQL["find_old"], _values(which) | {"most": KEYS})
        keys = await cursor.fetchall()
        deleted = 0
        for start in range(0, len(keys), batch):
            ids, ended = zip(*keys[start : start + batch], strict=True)
            values = {"ids": list(ids), "ended": list(ended)}
            if as_worker:
                count = await _number(connection, "delete_as_worker", values)
            else:
                count = (await connection.execute(SQL["delete"], values)).rowcount
            deleted += count
            yield count
        if deleted < len(keys):
            return  # another session deletes the same tasks


async def delete_records(
    connection: Connection, what: str, before: datetime, batch: int
) -> AsyncGenerator[int]:
    """Delete old `attempts`, `progress`, `logs`, `steps`, `signals`, `keys`, `actions` or `workflows`, or clear old `results`.

    Yield the number of rows after each batch.
    """
    count = batch
    while count >= batch:
        count = await _number(connection, "delete_records", {"what": what, "before": before, "batch": batch})
        yield count


async def delete_worker_records(connection: Connection, retention: RetentionConfig) -> bool:
    """Delete one batch of old worker snapshots and task heartbeats; return True if there may be more."""
    values = {
        "state_hours": retention.worker_state_retention_hours,
        "heartbeat_hours": retention.heartbeat_retention_hours,
        "batch": retention.retention_delete_batch_size,
    }
    deleted = await _number(connection, "delete_worker_records", values)
    return deleted >= retention.retention_delete_batch_size


async def roll_up(connection: Connection) -> int:
    """Count the minutes that have passed and record the queue depths; return how many minutes were counted."""
    total, counted = 0, MAX_MINUTES
    await connection.execute(SQL["summarize_history"])
    while counted == MAX_MINUTES:
        counted = await _count_minutes(connection)
        total += counted
    await connection.execute(SQL["record_depths"])
    await connection.execute(SQL["delete_counts"])
    return total


async def _count_minutes(connection: Connection) -> int:
    async with connection.transaction():
        cursor = await connection.cursor(row_factory=scalar_row).execute(SQL["try_rollup_lock"])
        if not await cursor.fetchone():
            return 0
        return await _number(connection, "count_minutes", {})


async def _number(connection: Connection, name: str, values: Mapping[str, Any]) -> int:
    """Execute a statement that returns one number, and return it; NULL counts as 0."""
    cursor = await connection.cursor(row_factory=scalar_row).execute(SQL[name], values)
    return int(await cursor.fetchone() or 0)


def _values(which: Old) -> dict[str, Any]:
    return which._asdict() | {"others": list(which.others)}
