"""Cancel tasks. What has not begun is over at once; what runs is asked to stop, and is over when it does.

The end of a task of a workflow moves that on, as every end does: the node has failed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from psycopg import errors

from horsies.storage import operations, workflows
from horsies.storage.database import Connection
from horsies.storage.ids import not_before
from horsies.storage.monitor import Filter
from horsies.storage.statements import statements
from horsies.storage.tasks import CANCELLED, CANCELLED_CODE, Failure, as_json
from horsies.workflow.advance import FAILED, Ended

SQL = statements("cancelling")

# How many tasks one transaction cancels.
BATCH = 500
# A task that somebody has locked is asked for again after so long, and given up after so long.
LOCKED_SECONDS, PATIENCE_SECONDS = 0.02, 5.0


class Cancellation(NamedTuple):
    """What a cancel has come to: the task's state now, and whether it took effect or was asked for."""

    task_id: str
    status: str
    cancelled: bool


async def cancel(
    connection: Connection, ids: Sequence[UUID], *, actor: str | None = None
) -> list[Cancellation]:
    """Cancel tasks; an id that is not in the answer is unknown. With an actor, it goes on record."""
    found: list[Cancellation] = []
    for start in range(0, len(ids), BATCH):
        found += await _cancel_batch(connection, ids[start : start + BATCH])
    if actor is not None:
        await _note(connection, actor, found, _named(ids))
    return found


async def cancel_all(connection: Connection, wanted: Filter, *, actor: str) -> AsyncGenerator[int]:
    """Cancel every live task that fits; gives how many after each batch. It goes on record once."""
    done: list[Cancellation] = []
    after = str(UUID(int=0))
    try:
        while True:
            values = wanted._asdict() | {"after": after, "batch": BATCH}
            rows = await (await connection.execute(SQL["matching"], values)).fetchall()
            if not rows:
                return
            after = rows[-1][0]
            batch = await _cancel_batch(connection, [UUID(row[0]) for row in rows])
            done += batch
            yield sum(each.cancelled for each in batch)
    finally:
        await _note(connection, actor, done, _described(wanted))


async def end_unheld(connection: Connection, worker_id: UUID, keep: Iterable[tuple[str, int]]) -> None:
    """End what was asked to stop and is in this worker's name, but for the tasks that it has: it runs nowhere."""
    held = [{"id": task_id, "claim_seq": claim_seq} for task_id, claim_seq in keep]
    rows = await (
        await connection.execute(SQL["unheld"], {"worker_id": worker_id, "keep": as_json(held)})
    ).fetchall()
    if rows:
        async with connection.transaction():
            await workflows.settle(connection, [], [_end(*row) for row in rows])


def _end(task_id: str, claim_seq: int, workflow_id: str | None, index: int | None) -> Failure:
    node = None if workflow_id is None else (workflow_id, index or 0)
    return Failure(task_id, claim_seq, CANCELLED, CANCELLED_CODE, None, node=node, asked=True)


async def _cancel_batch(connection: Connection, ids: Sequence[UUID]) -> list[Cancellation]:
    answers: dict[str, Cancellation] = {}
    left: dict[str, UUID] = {str(task_id): task_id for task_id in ids}
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while left:
        try:
            done = await _cancel_free(connection, list(left.values()))
        except (errors.SerializationFailure, errors.DeadlockDetected):
            continue  # one of them ended while we asked
        answers |= done
        missed = [task_id for key, task_id in left.items() if key not in answers]
        states = await _states(connection, missed) if missed else {}
        answers |= {
            key: Cancellation(key, status, False) for key, (status, live) in states.items() if not live
        }
        left = {key: left[key] for key, (_, live) in states.items() if live}
        if left:
            if time.monotonic() > give_up_at:
                raise TimeoutError(f"somebody has had task {next(iter(left))} locked for too long")
            await asyncio.sleep(LOCKED_SECONDS)
    return list(answers.values())


async def _cancel_free(connection: Connection, ids: Sequence[UUID]) -> dict[str, Cancellation]:
    """Cancel those that nobody has locked, and move their workflows on."""
    async with connection.transaction():
        members = await (await connection.execute(SQL["workflows"], {"ids": list(ids)})).fetchall()
        if members:
            await connection.execute(workflows.SQL["lock"], {"ids": [row[0] for row in members]})
        values = {"ids": list(ids), "result": CANCELLED}
        rows = await (await connection.execute(SQL["cancel"], values)).fetchall()
        ended = [row for row in rows if row[1] == "CANCELLED" and row[2] is not None]
        await workflows.move(connection, [Ended(row[2], row[3], FAILED) for row in ended])
    return {row[0]: Cancellation(row[0], row[1], True) for row in rows}


async def _states(connection: Connection, ids: Sequence[UUID]) -> dict[str, tuple[str, bool]]:
    values = {"ids": list(ids), "since": not_before(ids)}
    rows = await (await connection.execute(SQL["states"], values)).fetchall()
    return {row[0]: (row[1], row[2]) for row in rows}


async def _note(connection: Connection, actor: str, done: Sequence[Cancellation], subject: str) -> None:
    if count := sum(each.cancelled for each in done):
        await operations.note(connection, actor, "cancel", subject, count)


def _named(ids: Sequence[UUID]) -> str:
    return ", ".join(map(str, ids[:5])) + (", …" if len(ids) > 5 else "")


def _described(wanted: Filter) -> str:
    named = [f"{field} {value!r}" for field, value in wanted._asdict().items() if value is not None]
    return " and ".join(named) or "all"
