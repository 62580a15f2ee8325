"""Store and read the steps of tasks; park tasks, give them signals, and let them go on.

A statement that stores a step or parks a task is fenced by the task's `claim_seq`: an attempt that has lost its claim records
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from psycopg.rows import class_row, scalar_row

from horsies.db.connection import Connection
from horsies.db.queries.tasks import Failure, as_json
from horsies.db.sql import statements

SQL = statements("steps")

# The result of a wait whose signal was not given in time.
SIGNAL_TIMEOUT = (
    '{"err":{"error_code":{"__builtin_task_code__":"SIGNAL_TIMEOUT"},'
    '"message":"the signal was not given in time","data":null,"exception":null}}'
)
# Texts are cut to this length for people.
SHOWN = 20_000
MAX_CHILDREN = 1_000


class EndedStep(msgspec.Struct, frozen=True):
    """A step of a running task that has ended, to be stored."""

    task_id: str
    claim_seq: int
    name: str
    kind: str
    attempt: int
    seconds: float
    result: str


class LoadedStep(NamedTuple):
    """A step of a running task, or a row without a name if the task has none."""

    task_id: str
    claim_seq: int
    name: str | None
    kind: str
    has_ended: bool
    result: str | None
    calls: str | None


class StepRow(NamedTuple):
    """A step as people read it; one without `ended_at` is what the task waits for."""

    name: str
    kind: str
    attempt: int
    started_at: datetime
    ended_at: datetime | None
    due_at: datetime | None
    open_calls: int | None
    calls: list[str]
    result: str | None


class SignalRow(NamedTuple):
    """A signal that a task was given."""

    name: str
    value: str
    sent_at: datetime


class Wait(NamedTuple):
    """A step in which a parked task waits for a signal; `name` is that of the step and of the signal."""

    task_id: str
    task_name: str
    name: str
    started_at: datetime
    due_at: datetime | None


class Caller(NamedTuple):
    """The task that has called another one, and the step in which it did."""

    task_id: str
    step: str


class Called(NamedTuple):
    """A task that a step has called."""

    task_id: str
    step: str
    task_name: str
    status: str
    is_parked: bool


async def store(connection: Connection, steps: Sequence[EndedStep], worker_id: UUID) -> set[tuple[str, int]]:
    """Store steps in one commit; return the tasks, with their `claim_seq`s, that are still their worker's."""
    cursor = await connection.execute(SQL["store"], {"ended_steps": as_json(steps), "worker_id": worker_id})
    return {(row[0], row[1]) for row in await cursor.fetchall()}


async def load(connection: Connection, tasks: Sequence[tuple[str, int]], worker_id: UUID) -> list[LoadedStep]:
    """Return the steps of these tasks, given by id and `claim_seq`; a task that has lost its claim has no rows."""
    given = [{"task_id": task_id, "claim_seq": claim_seq} for task_id, claim_seq in tasks]
    cursor = connection.cursor(row_factory=class_row(LoadedStep))
    values = {"tasks": as_json(given), "worker_id": worker_id}
    return await (await cursor.execute(SQL["load"], values)).fetchall()


async def park(
    connection: Connection, parks: Sequence[Failure], worker_id: UUID | None
) -> dict[str, float | None]:
    """Park tasks; return those that were parked, with the seconds until they go on by themselves.

    The caller's transaction keeps the locks. A task that is missing from the answer was cancelled, or is no longer ours.
    """
    await connection.execute(SQL["lock_to_park"], {"ids": [each.id for each in parks]})
    rows = [
        {
            "id": each.id,
            "claim_seq": each.claim_seq,
            "attempt": each.attempt,
            "step": msgspec.Raw((each.park or "").encode()),
        }
        for each in parks
    ]
    cursor = await connection.execute(SQL["park"], {"parks": as_json(rows), "worker_id": worker_id})
    return {row[0]: row[1] for row in await cursor.fetchall()}


async def wake_due(connection: Connection) -> int:
    """Let parked tasks go on whose time has come; return how many."""
    cursor = connection.cursor(row_factory=scalar_row)
    return int(await (await cursor.execute(SQL["wake_due"], {"timeout": SIGNAL_TIMEOUT})).fetchone() or 0)


async def have_steps(connection: Connection, ids: Sequence[str]) -> set[str]:
    """Return which of these tasks have a stored step."""
    cursor = await connection.execute(SQL["have_steps"], {"ids": list(ids)})
    return {row[0] for row in await cursor.fetchall()}


async def signal(connection: Connection, task_id: UUID, name: str, value: str) -> bool | None:
    """Give a task a signal; return False if it does not take it, None if there is no such task."""
    cursor = connection.cursor(row_factory=scalar_row)
    values = {"id": task_id, "name": name, "value": value}
    return await (await cursor.execute(SQL["signal"], values)).fetchone()


async def steps(connection: Connection, task_id: UUID, shown: int | None = None) -> list[StepRow]:
    """Return the steps of a task in the order in which they began; results are cut to `shown` characters."""
    cursor = connection.cursor(row_factory=class_row(StepRow))
    values = {"id": task_id, "shown": shown if shown is not None else 2**30}
    return await (await cursor.execute(SQL["steps"], values)).fetchall()


async def waits(connection: Connection, most: int, limit: int) -> list[Wait]:
    """Return the waits for signals of parked tasks, the longest first."""
    cursor = connection.cursor(row_factory=class_row(Wait))
    return await (await cursor.execute(SQL["waits"], {"most": most, "limit": limit})).fetchall()


async def signals(connection: Connection, task_id: UUID, shown: int = SHOWN) -> list[SignalRow]:
    """Return the signals that a task was given, in order."""
    cursor = connection.cursor(row_factory=class_row(SignalRow))
    return await (await cursor.execute(SQL["signals"], {"id": task_id, "shown": shown})).fetchall()


async def parent(connection: Connection, task_id: UUID) -> Caller | None:
    """Return the task that has called this one, None if none has."""
    cursor = connection.cursor(row_factory=class_row(Caller))
    return await (await cursor.execute(SQL["parent"], {"id": task_id})).fetchone()


async def children(connection: Connection, task_id: UUID, limit: int = MAX_CHILDREN) -> list[Called]:
    """Return the first tasks that the steps of a task have called."""
    cursor = connection.cursor(row_factory=class_row(Called))
    return await (await cursor.execute(SQL["children"], {"id": task_id, "limit": limit})).fetchall()


async def forget(connection: Connection, task_id: UUID, name: str) -> list[str]:
    """Forget a step of a task that has ended, and all later ones; return their names."""
    cursor = connection.cursor(row_factory=scalar_row)
    values: dict[str, Any] = {"id": task_id, "name": name}
    return await (await cursor.execute(SQL["forget"], values)).fetchall()
