"""What only tests ask of the database: that time passes, and what waits.

Each function is one statement, named as in `sql/testing.sql`.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from horsies.storage.database import Connection
from horsies.storage.statements import statements

SQL = statements("testing")


class Waiting(NamedTuple):
    """A task that was sent and has not begun."""

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
    """Bring whatever waits for its time so many seconds nearer."""
    await connection.execute(SQL["travel"], {"seconds": seconds})


async def hasten(connection: Connection) -> int:
    """Make retries due at once; gives back how many."""
    return (await connection.execute(SQL["hasten"])).rowcount


async def waiting(connection: Connection, name: str | None, queue: str | None) -> list[Waiting]:
    """The tasks that wait, of one name or queue if so asked."""
    cursor = await connection.execute(SQL["waiting"], {"name": name, "queue": queue})
    return [Waiting._make(row) for row in await cursor.fetchall()]
