"""Read the state of keys, for `horsies keys`, the dashboard and the metrics."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from psycopg.rows import class_row

from horsies.db.connection import Connection
from horsies.db.queries.inspect import IN_INDEX_ORDER
from horsies.db.sql import statements

SQL = statements("keys")

# The number of waiting tasks of a key that are counted, and of waiting tasks that are read to find the keys that wait longest.
MOST_COUNTED, MOST_READ = 1_000, 5_000


class Key(NamedTuple):
    """A key with its running and waiting tasks; `waiting` is counted up to `MOST_COUNTED`.

    `allowed_in` is the number of seconds until its rate, or a task that raised RateLimited, allows the next start.
    """

    key: str
    running: int
    waiting: int
    oldest_seconds: float | None
    paused_by: str | None
    paused_at: datetime | None
    allowed_in: float | None


class KeyTotals(NamedTuple):
    """All keys in four numbers."""

    keys_running: int
    tasks_running: int
    keys_paused: int
    oldest_seconds: float | None


async def totals(connection: Connection) -> KeyTotals:
    """Return how many keys and tasks of keys run, how many keys are paused, and how long the oldest task of a key has waited."""
    async with connection.transaction():
        await connection.execute(IN_INDEX_ORDER)
        cursor = connection.cursor(row_factory=class_row(KeyTotals))
        found = await (await cursor.execute(SQL["totals"])).fetchone()
    assert found is not None  # the statement has no FROM
    return found


async def keys(connection: Connection, limit: int, *, busiest: bool = False) -> list[Key]:
    """Return the keys that have waited longest, or run most tasks, and those that are paused."""
    return await _fetch(connection, "keys", {"limit": limit, "busiest": busiest, "read": MOST_READ})


async def key(connection: Connection, name: str) -> Key:
    """Return the state of one key, which may have no tasks."""
    (found,) = await _fetch(connection, "key", {"key": name})
    return found


async def _fetch(connection: Connection, verb: str, values: dict[str, Any]) -> list[Key]:
    async with connection.transaction():
        await connection.execute(IN_INDEX_ORDER)
        cursor = connection.cursor(row_factory=class_row(Key))
        return await (await cursor.execute(SQL[verb], values | {"most": MOST_COUNTED})).fetchall()
