"""The actions of operators: suspend and resume queues, and requeue failed tasks. Each is recorded with its actor."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple
from uuid import UUID

from psycopg import errors
from psycopg.rows import dict_row, scalar_row

from horsies.db.connection import Connection
from horsies.db.ids import LONG_AGO
from horsies.db.queries.retention import KEYS
from horsies.db.queries.retention import SQL as RETENTION
from horsies.db.sql import statements

SQL = statements("operations")

# How many tasks one transaction requeues; these rows are locked for about ten milliseconds.
BATCH = 1_000
# How often a requeue that has lost a race for a unique key is repeated.
TRIES = 20
# Stands for the whole cluster in place of the name of a queue.
ALL_QUEUES = ""


class Selection(NamedTuple):
    """The tasks that a bulk action works on: those that match every field that is not None.

    Every bulk action passes all fields to its SQL with `_asdict`, so that no filter can be dropped on the way. `q` is a text in
    names, arguments or error codes; `sent_since` the lowest id; `kind` the digest of a kind of error message.
    """

    ids: Sequence[UUID] | None = None
    status: str | None = None
    queue: str | None = None
    name: str | None = None
    code: str | None = None
    q: str | None = None
    in_arguments: bool = True
    sent_since: UUID | None = None
    ended_since: datetime | None = None
    ended_until: datetime | None = None
    key: str | None = None
    kind: str | None = None

    @property
    def filters(self) -> dict[str, Any]:
        """Return the fields that narrow the selection down, besides the ids."""
        return {
            field: value
            for field, value in self._asdict().items()
            if field not in ("ids", "in_arguments") and value is not None
        }

    @property
    def is_empty(self) -> bool:
        """Return True if there are neither ids nor a filter."""
        return not self.ids and not self.filters

    def __str__(self) -> str:
        """Describe the selection for the record of actions."""
        named = [
            f"{field} {value.isoformat() if isinstance(value, datetime) else str(value)!r}"
            for field, value in self.filters.items()
        ]
        if self.ids is not None:
            named.insert(0, ", ".join(map(str, self.ids[:5])) + (", …" if len(self.ids) > 5 else ""))
        return " and ".join(named) or "all"


async def note(connection: Connection, actor: str, action: str, subject: str, tasks: int) -> None:
    """Record an action."""
    values = {"actor": actor, "action": action, "subject": subject, "tasks": tasks}
    await connection.execute(SQL["note"], values)


# Suspend and resume


async def suspend(connection: Connection, queue_name: str, actor: str) -> bool:
    """Stop all claims from a queue; return False if it was suspended already."""
    return await _execute(connection, "suspend", queue_name, actor)


async def resume(connection: Connection, queue_name: str, actor: str) -> bool:
    """Allow claims from a queue again; return False if it was not suspended."""
    return await _execute(connection, "resume", queue_name, actor)


async def pause_key(connection: Connection, key: str, actor: str) -> bool:
    """Let no task of a key start; return False if it was paused already."""
    row = await (await connection.execute(SQL["pause_key"], {"key": key, "actor": actor})).fetchone()
    return row is not None and bool(row[0])


async def resume_key(connection: Connection, key: str, actor: str) -> bool:
    """Let tasks of a key start again; return False if it was not paused."""
    row = await (await connection.execute(SQL["resume_key"], {"key": key, "actor": actor})).fetchone()
    return row is not None and bool(row[0])


async def _execute(connection: Connection, action: str, queue_name: str, actor: str) -> bool:
    values = {"queue_name": queue_name, "actor": actor}
    row = await (await connection.execute(SQL[action], values)).fetchone()
    return row is not None and bool(row[0])


async def suspensions(connection: Connection) -> list[str]:
    """Return the queues that are suspended, `ALL_QUEUES` for all of them."""
    cursor = connection.cursor(row_factory=scalar_row)
    return await (await cursor.execute(SQL["suspensions"])).fetchall()


# Requeue


async def requeue(connection: Connection, which: Selection) -> int:
    """Requeue one batch of failed tasks; return how many, 0 if none is left that can be requeued."""
    values = which._asdict() | {"batch": BATCH}
    for tries_left in range(TRIES - 1, -1, -1):
        try:
            return (await connection.execute(SQL["requeue"], values)).rowcount
        except errors.UniqueViolation:
            if not tries_left:
                raise
            continue  # a task with the same unique key was sent meanwhile: the next try skips it
    raise AssertionError("the last try returns or raises")


async def restore(connection: Connection, which: Selection) -> AsyncGenerator[int]:
    """Undo a cancel: send the cancelled tasks again that had not started, each once. Yield the number of each batch."""
    after: dict[str, Any] = {"after_time": LONG_AGO, "after": UUID(int=0)}
    while True:
        values = which._asdict() | {"batch": BATCH, **after}
        cursor = await connection.cursor(row_factory=dict_row).execute(SQL["restore"], values)
        row = await cursor.fetchone()
        if row is None:
            return
        after = {"after_time": row["terminal_at"], "after": row["id"]}
        yield row["sent"]


async def count(
    connection: Connection, what: Literal["failed", "twins", "finished", "live"], which: Selection
) -> int:
    """Count the tasks that an action would find: failed, finished or live ones, or failed ones with a live twin.

    A live task with the same id keeps its failed twin from being requeued.
    """
    cursor = await connection.cursor(row_factory=scalar_row).execute(SQL[f"count_{what}"], which._asdict())
    return int(await cursor.fetchone() or 0)


async def count_matching(connection: Connection, which: Selection) -> dict[str, int]:
    """Count all tasks that match as `total`, and those that a `retry`, `cancel` or `delete` could change."""
    cursor = await connection.cursor(row_factory=dict_row).execute(SQL["count_matching"], which._asdict())
    return await cursor.fetchone() or {}


async def clock(connection: Connection) -> datetime:
    """Return the database's time."""
    row = await (await connection.cursor(row_factory=scalar_row).execute(SQL["clock"])).fetchone()
    assert isinstance(row, datetime)
    return row


async def delete_finished(connection: Connection, which: Selection, batch: int) -> int:
    """Delete up to `KEYS` finished tasks with everything that belongs to them, in batches; return how many."""
    cursor = await connection.execute(SQL["finished"], {**which._asdict(), "most": KEYS})
    keys = await cursor.fetchall()
    deleted = 0
    for start in range(0, len(keys), batch):
        found, ended = zip(*keys[start : start + batch], strict=True)
        cursor = await connection.execute(RETENTION["delete"], {"ids": list(found), "ended": list(ended)})
        deleted += cursor.rowcount
    return deleted


async def edit(connection: Connection, task_id: UUID, kwargs: str, priority: int | None) -> bool:
    """Change the arguments, and the priority if one is given, of a task that waits; return False if it does not wait."""
    values = {"id": task_id, "kwargs": kwargs, "priority": priority}
    return bool((await connection.execute(SQL["edit"], values)).rowcount)


async def resend(connection: Connection, task_id: UUID, new_id: UUID, kwargs: str) -> str | None:
    """Send a copy of a task with other arguments; return its id, None if there is no such task."""
    values = {"id": task_id, "new_id": new_id, "kwargs": kwargs}
    row = await (await connection.execute(SQL["resend"], values)).fetchone()
    return None if row is None else row[0]
