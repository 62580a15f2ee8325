"""What operators do: suspend and resume, send failed tasks through once more. Each act is on record with who did it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from psycopg import errors

from horsies.storage.database import Connection
from horsies.storage.statements import statements

SQL = statements("operations")

# How many tasks one transaction sends through again; so many rows are locked for some ten milliseconds.
BATCH = 1_000
# The whole cluster, where a queue could be named.
ALL_QUEUES = ""


class Failed(NamedTuple):
    """Which failed tasks are meant; None means any."""

    ids: Sequence[UUID] | None = None
    queue: str | None = None
    name: str | None = None
    code: str | None = None

    def __str__(self) -> str:
        if self.ids is not None:
            return ", ".join(map(str, self.ids[:5])) + (", …" if len(self.ids) > 5 else "")
        named = [f"{field} {value!r}" for field, value in self._asdict().items() if value is not None]
        return " and ".join(named) or "all"


async def suspend(connection: Connection, queue_name: str, actor: str) -> bool:
    """Nobody claims from this queue any more; whether that is new."""
    return await _tell(connection, "suspend", queue_name, actor)


async def resume(connection: Connection, queue_name: str, actor: str) -> bool:
    """Claiming goes on; whether it was suspended."""
    return await _tell(connection, "resume", queue_name, actor)


async def _tell(connection: Connection, act: str, queue_name: str, actor: str) -> bool:
    values = {"queue_name": queue_name, "actor": actor}
    row = await (await connection.execute(SQL[act], values)).fetchone()
    return row is not None and bool(row[0])


async def suspensions(connection: Connection) -> list[str]:
    """The queues that are suspended, `ALL_QUEUES` for all of them."""
    return [row[0] for row in await (await connection.execute(SQL["suspensions"])).fetchall()]


async def count_failed(connection: Connection, which: Failed) -> int:
    row = await (await connection.execute(SQL["failed"], which._asdict())).fetchone()
    return 0 if row is None else int(row[0])


async def requeue(connection: Connection, which: Failed) -> int:
    """Send one batch of failed tasks through once more; how many, none when there are no more that can be."""
    values = which._asdict() | {"batch": BATCH}
    while True:
        try:
            return (await connection.execute(SQL["requeue"], values)).rowcount
        except errors.UniqueViolation:
            continue  # a task with the same unique key was sent this very moment: the next look passes over it


async def note(connection: Connection, actor: str, action: str, subject: str, tasks: int) -> None:
    """Put an act on record."""
    values = {"actor": actor, "action": action, "subject": subject, "tasks": tasks}
    await connection.execute(SQL["note"], values)
