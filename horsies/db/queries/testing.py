"""Statements that only tests need: move time forward, and list waiting tasks."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from psycopg.rows import class_row, scalar_row

from horsies.db.connection import Connection
from horsies.db.sql import statements

SQL = statements("testing")


class Waiting(NamedTuple):
    """A task that was sent and not started."""

    id: str
    task_name: str
    queue_name: str
    priority: int
    args: str | None
    kwargs: str | None
    due_at: datetime
    retry_count: int
    tags: list[str]


async def travel(connection: Connection, seconds: float) -> None:
    """Make everything that waits for its time due that many seconds earlier."""
    await connection.execute(SQL["travel"], {"seconds": seconds})


async def retry_now(connection: Connection) -> int:
    """Make all retries due now; return how many there were."""
    return (await connection.execute(SQL["retry_now"])).rowcount


async def seconds_until_due(connection: Connection) -> float | None:
    """Return the seconds until the first waiting task is due, None if none waits for a time."""
    cursor = connection.cursor(row_factory=scalar_row)
    return await (await cursor.execute(SQL["seconds_until_due"])).fetchone()


async def waiting(connection: Connection, name: str | None, queue: str | None) -> list[Waiting]:
    """Return the tasks that wait, all or those of one name or queue."""
    cursor = connection.cursor(row_factory=class_row(Waiting))
    return await (await cursor.execute(SQL["waiting"], {"name": name, "queue": queue})).fetchall()
