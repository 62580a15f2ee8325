"""Let go of what is old: whole days of history where everything in them is, single tasks in small batches where not."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from horsies.config import RetentionConfig
from horsies.storage.database import Connection
from horsies.storage.statements import statements

SQL = statements("retention")

# So many keys are read at a time; the tasks are then deleted in batches, each a transaction of its own.
KEYS = 20_000


class Old(NamedTuple):
    """Which finished tasks are meant: those that ended before a moment, in one queue or in all but `others`."""

    before: datetime
    queue: str | None = None
    others: Sequence[str] = ()
    status: str | None = None
    name: str | None = None


class Plan(NamedTuple):
    """What is to be let go of now; None means nothing."""

    days_before: datetime | None
    tasks: list[Old]
    records_before: datetime | None
    results_before: datetime | None


def plan(retention: RetentionConfig, now: datetime) -> Plan:
    """What an app wants to be let go of. A day can be dropped as a whole when every queue's time for it is over."""
    hours, by_queue = retention.terminal_record_retention_hours, retention.queue_retention
    default = None if hours is None else timedelta(hours=hours)
    spans = [default, *by_queue.values()]
    known = [span for span in spans if span is not None]
    tasks = [Old(now - span, queue=queue) for queue, span in by_queue.items() if span is not None]
    if default is not None:
        tasks.append(Old(now - default, others=list(by_queue)))
    results = retention.result_retention_hours
    return Plan(
        days_before=now - max(known) if len(known) == len(spans) else None,
        tasks=tasks,
        records_before=None if default is None else now - max(known),
        results_before=None if results is None else now - timedelta(hours=results),
    )


async def drop_days(connection: Connection, before: datetime) -> int:
    """Drop whole days of history; fewer than there are while somebody reads it."""
    row = await (await connection.execute(SQL["drop_days"], {"before": before})).fetchone()
    return 0 if row is None else int(row[0])


async def count(connection: Connection, which: Old) -> int:
    row = await (await connection.execute(SQL["count_old"], _values(which))).fetchone()
    return 0 if row is None else int(row[0])


async def delete(connection: Connection, which: Old, batch: int) -> AsyncGenerator[int]:
    """Delete finished tasks with all that is kept with them; gives how many after each batch."""
    keys = [(None, None)]
    while keys:
        cursor = await connection.execute(SQL["old"], _values(which) | {"most": KEYS})
        keys = await cursor.fetchall()
        deleted = 0
        for start in range(0, len(keys), batch):
            ids, ended = zip(*keys[start : start + batch], strict=True)
            cursor = await connection.execute(SQL["delete"], {"ids": list(ids), "ended": list(ended)})
            deleted += cursor.rowcount
            yield cursor.rowcount
        if deleted < len(keys):
            return  # somebody else is at it, too


async def forget(connection: Connection, what: str, before: datetime, batch: int) -> AsyncGenerator[int]:
    """Let go of `results`, `attempts`, `progress`, `logs`, `keys`, `actions` or `workflows`; gives how many after each batch."""
    while True:
        cursor = await connection.execute(SQL[f"forget_{what}"], {"before": before, "batch": batch})
        yield cursor.rowcount
        if cursor.rowcount < batch:
            return


def _values(which: Old) -> dict[str, Any]:
    return which._asdict() | {"others": list(which.others)}
