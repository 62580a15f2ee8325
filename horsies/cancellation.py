"""Cancel tasks. A task that was not started ends at once; a running task is asked to stop, and ends when it does.

The end of a task of a workflow fails its node and advances the workflow, as every failure does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from psycopg import errors
from psycopg.rows import class_row

from horsies import quarantine
from horsies.db.connection import Connection
from horsies.db.ids import not_before
from horsies.db.queries import operations, workflows
from horsies.db.queries.operations import Selection
from horsies.db.queries.tasks import CANCELLED, CANCELLED_CODE, Failure, as_json
from horsies.db.sql import statements
from horsies.workflow.advance import FAILED, NodeEnded
from horsies.workflow.settle import advance_workflows

SQL = statements("cancellation")

# How many tasks one transaction cancels.
BATCH = 500
# A task whose row is locked is tried again after LOCKED_SECONDS, for PATIENCE_SECONDS at most.
LOCKED_SECONDS, PATIENCE_SECONDS = 0.02, 5.0


class Cancellation(NamedTuple):
    """The result of a cancel: the status of the task, and True if it was cancelled or asked to stop."""

    task_id: str
    status: str
    cancelled: bool


async def cancel(
    connection: Connection, ids: Sequence[UUID], *, actor: str | None = None
) -> list[Cancellation]:
    """Cancel tasks; an id that is not in the answer is unknown. With an actor, the action is recorded."""
    found: list[Cancellation] = []
    for start in range(0, len(ids), BATCH):
        found += await _cancel_batch(connection, ids[start : start + BATCH])
    if actor is not None:
        await _record(connection, actor, found, str(Selection(ids)))
    return found


async def cancel_all(connection: Connection, which: Selection, *, actor: str) -> AsyncGenerator[int]:
    """Cancel every live task that matches, and yield the number of each batch. The action is recorded once."""
    done: list[Cancellation] = []
    after = str(UUID(int=0))
    try:
        while True:
            values = which._asdict() | {"after": after, "batch": BATCH}
            rows = await (await connection.execute(SQL["cancellable"], values)).fetchall()
            if not rows:
                return
            after = rows[-1][0]
            batch = await _cancel_batch(connection, [UUID(row[0]) for row in rows])
            done += batch
            yield sum(each.cancelled for each in batch)
    finally:
        await _record(connection, actor, done, str(which))


async def end_unheld(connection: Connection, worker_id: UUID, keep: Iterable[tuple[str, int]]) -> None:
    """End the tasks of this worker that were asked to stop, except those it holds: they run nowhere."""
    held = [{"id": task_id, "claim_seq": claim_seq} for task_id, claim_seq in keep]
    values = {"worker_id": worker_id, "keep": as_json(held)}
    rows = await (await connection.execute(SQL["unheld"], values)).fetchall()
    failures = [
        Failure(
            task_id,
            claim_seq,
            CANCELLED,
            CANCELLED_CODE,
            None,
            node=None if flow_id is None else (flow_id, index or 0),
            asked=True,
        )
        for task_id, claim_seq, flow_id, index in rows
    ]
    if failures:
        await quarantine.settle(connection, [], failures, worker_id)


async def _cancel_batch(connection: Connection, ids: Sequence[UUID]) -> list[Cancellation]:
    """Cancel tasks, and wait for those whose row is locked."""
    answers: dict[str, Cancellation] = {}
    left: dict[str, UUID] = {str(task_id): task_id for task_id in ids}
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while left:
        try:
            answers |= await _cancel_unlocked(connection, list(left.values()))
        except (errors.SerializationFailure, errors.DeadlockDetected):
            if time.monotonic() > give_up_at:
                raise
            continue  # one of them ended meanwhile
        except errors.UniqueViolation:
            answers |= await _cancel_one_by_one(connection, list(left.values()))
        missed = [task_id for key, task_id in left.items() if key not in answers]
        states = await _states(connection, missed) if missed else {}
        answers |= {
            key: Cancellation(key, state.status, False) for key, state in states.items() if not state.live
        }
        left = {key: left[key] for key, state in states.items() if state.live}
        if left:
            if time.monotonic() > give_up_at:
                raise TimeoutError(f"task {next(iter(left))} has been locked by somebody for too long")
            await asyncio.sleep(LOCKED_SECONDS)
    return list(answers.values())


async def _cancel_one_by_one(connection: Connection, ids: Sequence[UUID]) -> dict[str, Cancellation]:
    """Cancel each task alone. A task whose id is in history already cannot be ended, and stays as it is."""
    done: dict[str, Cancellation] = {}
    for task_id in ids:
        try:
            done |= await _cancel_unlocked(connection, [task_id])
        except errors.UniqueViolation:
            found = await _states(connection, [task_id])
            done |= {key: Cancellation(key, state.status, False) for key, state in found.items()}
    return done


async def _cancel_unlocked(connection: Connection, ids: Sequence[UUID]) -> dict[str, Cancellation]:
    """Cancel the tasks whose rows are not locked, and advance their workflows."""
    async with connection.transaction():
        members = await (await connection.execute(SQL["workflows"], {"ids": list(ids)})).fetchall()
        if members:
            await workflows.lock(connection, [row[0] for row in members])
        values = {"ids": list(ids), "result": CANCELLED}
        rows = await (await connection.execute(SQL["cancel"], values)).fetchall()
        ended = [row for row in rows if row[1] == "CANCELLED" and row[2] is not None]
        await advance_workflows(connection, [NodeEnded(row[2], row[3], FAILED) for row in ended])
    return {row[0]: Cancellation(row[0], row[1], True) for row in rows}


class _State(NamedTuple):
    id: str
    status: str
    live: bool


async def _states(connection: Connection, ids: Sequence[UUID]) -> dict[str, _State]:
    cursor = connection.cursor(row_factory=class_row(_State))
    values = {"ids": list(ids), "since": not_before(ids)}
    return {row.id: row for row in await (await cursor.execute(SQL["states"], values)).fetchall()}


async def _record(connection: Connection, actor: str, done: Sequence[Cancellation], subject: str) -> None:
    if count := sum(each.cancelled for each in done):
        await operations.note(connection, actor, "cancel", subject, count)
