"""Isolate and park rows whose content makes a statement fail, so that no row stops a worker.

A batch that fails because of the content of a row is repeated row by row: `isolate`. A row that fails again ends as FAILED with
the code POISONED_ROW. A row that cannot be moved to history, for instance because its id is taken there, stays in the live table
as FAILED: nobody claims, rescues or expires it. A workflow that cannot be advanced fails with its whole tree. Each parked row is
logged once; `horsies doctor` and `horsies failed` list them.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from psycopg import Rollback

from horsies.codec.failures import render
from horsies.db.connection import Connection, is_row_fault
from horsies.db.queries import tasks, workflows
from horsies.db.queries.tasks import Claimed, Completed, Expired, Failure, Lane, as_json
from horsies.db.sql import statements
from horsies.errors import mask_passwords
from horsies.status import OperationalErrorCode
from horsies.workflow.advance import FAILED, NodeEnded
from horsies.workflow.settle import NOT_STARTED, Settled, advance_workflows, needs_transaction
from horsies.workflow.settle import settle as settle_tasks

logger = logging.getLogger("horsies.quarantine")

SQL = statements("quarantine")

REASON_CHARACTERS = 500
# Stands for the worker where a row has an owner already, which it keeps.
NOBODY = UUID(int=0)

R = TypeVar("R")
T = TypeVar("T")


class RowFault:
    """A context manager that catches an error which the content of a row has caused. Other errors pass through.

    >>> with RowFault() as fault:
    ...     return await settle_all()
    ... logger.error("a row is at fault: %s", fault.reason)
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __enter__(self) -> RowFault:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception) or not is_row_fault(error):
            return False
        self.error = error
        return True

    def __bool__(self) -> bool:
        return self.error is not None

    @property
    def reason(self) -> str:
        """Return what went wrong with the row: the kind of the error and the first line of its message."""
        if self.error is None:
            return ""
        message = mask_passwords(render(self.error)).strip().partition("\n")[0]
        return f"{type(self.error).__name__}: {message}"[:REASON_CHARACTERS]


async def isolate(
    rows: Sequence[R],
    act: Callable[[Sequence[R]], Awaitable[T]],
    park: Callable[[R, str], Awaitable[T]],
) -> list[T]:
    """Act on all rows at once. If a row makes that fail, act on each row alone, and park those that fail again.

    `act` must leave no trace when it fails, so it is one statement or one transaction. `park` gets the row and the reason.
    """
    with RowFault():
        return [await act(rows)]
    return await one_by_one(rows, act, park)


async def one_by_one(
    rows: Sequence[R],
    act: Callable[[Sequence[R]], Awaitable[T]],
    park: Callable[[R, str], Awaitable[T]],
) -> list[T]:
    """Act on each row alone, and park the rows for which that fails."""
    results: list[T] = []
    for row in rows:
        with RowFault() as fault:
            results.append(await act([row]))
        if fault:
            results.append(await park(row, fault.reason))
    return results


# Settling


async def settle(
    connection: Connection, completed: Sequence[Completed], failures: Sequence[Failure], worker_id: UUID
) -> Settled:
    """Settle outcomes in one transaction, or, if a row makes that fail, each in a transaction of its own."""
    with RowFault():
        if not completed and not any(map(needs_transaction, failures)):
            return Settled(set(), await tasks.fail(connection, failures, _owner(worker_id)), None)
        async with connection.transaction():
            return await settle_tasks(connection, completed, failures, _owner(worker_id))
    return await settle_apart(connection, completed, failures, worker_id)


async def settle_apart(
    connection: Connection, completed: Sequence[Completed], failures: Sequence[Failure], worker_id: UUID
) -> Settled:
    """Settle each outcome in a transaction of its own, and park the rows for which that fails."""

    async def settle_one(outcomes: Sequence[Completed | Failure]) -> Settled:
        return await _settle_one(connection, outcomes[0], worker_id)

    async def park(outcome: Completed | Failure, reason: str) -> Settled:
        await _park_outcome(connection, outcome, worker_id, reason)
        if isinstance(outcome, Completed):
            return Settled({outcome.id}, {}, None)
        return Settled(set(), {outcome.id: False}, None)

    outcomes: list[Completed | Failure] = [*completed, *failures]
    settled = await one_by_one(outcomes, settle_one, park)
    return Settled(
        {task_id for each in settled for task_id in each.completed},
        {task_id: again for each in settled for task_id, again in each.failed.items()},
        min((each.timer for each in settled if each.timer is not None), default=None),
    )


def _owner(worker_id: UUID) -> UUID | None:
    """Return the worker that must hold the tasks to settle; None if any may."""
    return None if worker_id == NOBODY else worker_id


async def _settle_one(connection: Connection, outcome: Completed | Failure, worker_id: UUID) -> Settled:
    async with connection.transaction():
        if isinstance(outcome, Completed):
            return await settle_tasks(connection, [outcome], [], _owner(worker_id))
        return await settle_tasks(connection, [], [outcome], _owner(worker_id))


async def _park_outcome(
    connection: Connection, outcome: Completed | Failure, worker_id: UUID, reason: str
) -> None:
    """End a task whose outcome cannot be stored. If only its workflow is at fault, store the outcome and fail the workflow."""
    if outcome.node is not None and await workflows.owners(connection, [(outcome.id, outcome.node)]):
        alone = msgspec.structs.replace(outcome, node=None)
        if await _can_settle(connection, alone, worker_id):
            await fail_workflow(connection, outcome.node[0], reason)
            await _settle_one(connection, alone, worker_id)
            return
    await fail_task(connection, outcome.id, outcome.claim_seq, worker_id, reason, outcome.node)


async def _can_settle(connection: Connection, outcome: Completed | Failure, worker_id: UUID) -> bool:
    """Return True if an outcome could be stored; nothing is stored."""
    with RowFault() as fault:
        async with connection.transaction():
            await _settle_one(connection, outcome, worker_id)
            raise Rollback
    return not fault


# Parking


async def fail_task(
    connection: Connection,
    task_id: str,
    claim_seq: int,
    worker_id: UUID,
    reason: str,
    node: tuple[str | None, int | None] | None = None,
) -> bool:
    """End a task as FAILED with the code POISONED_ROW, and its node with it; return False if that is not possible."""
    values = {
        "id": task_id,
        "claim_seq": claim_seq,
        "worker_id": worker_id,
        "result": f'{{"err":{_error(reason)}}}',
        "reason": reason,
    }
    flow_id, index = node or (None, None)
    if flow_id is not None and await workflows.owners(connection, [(task_id, (flow_id, index or 0))]):
        state = await _fail_with_node(connection, values, flow_id, index or 0)
    else:
        state = await _fail_row(connection, values)
    if state:
        logger.error("task %s cannot be settled and is parked as %s: %s", task_id, state, reason)
    elif state is None:
        logger.error("task %s can neither be settled nor parked and is left as it is: %s", task_id, reason)
    return bool(state)


async def _fail_with_node(
    connection: Connection, values: Mapping[str, Any], flow_id: str, index: int
) -> str | None:
    """Fail a task and its node, or, if the workflow cannot be advanced, the task and the whole workflow."""
    with RowFault() as fault:
        async with connection.transaction():
            await workflows.lock(connection, [flow_id])
            state = await _fail_row(connection, values)
            if state:
                await advance_workflows(connection, [NodeEnded(flow_id, index, FAILED)])
        return state
    await fail_workflow(connection, flow_id, fault.reason)
    return await _fail_row(connection, values)


async def _fail_row(connection: Connection, values: Mapping[str, Any]) -> str | None:
    """Move a task to history as FAILED, or mark it in the live table.

    Return which of the two it was, '' if another worker has the task by now, None if neither is possible.
    """
    for statement, state in (("fail", "FAILED"), ("fail_in_place", "FAILED, in the live table")):
        with RowFault():
            async with connection.transaction():
                cursor = await connection.execute(SQL[statement], values)
            return state if cursor.rowcount else ""
    return None


async def fail_workflow(connection: Connection, workflow_id: str, reason: str) -> None:
    """End a workflow that cannot be advanced as FAILED, with its tree; cancel its tasks that were not started."""
    rows: list[tuple[Any, ...]] = []
    with RowFault() as fault:
        async with connection.transaction():
            await workflows.lock(connection, [workflow_id])
            values = {"id": workflow_id, "error": _error(reason)}
            rows = await (await connection.execute(SQL["fail_tree"], values)).fetchall()
            await connection.execute(SQL["skip_nodes"], {"ids": [row[0] for row in rows]})
    if fault:
        logger.error("workflow %s can neither be advanced nor parked: %s", workflow_id, fault.reason)
        return
    if any(row[1] for row in rows):
        logger.error("workflow %s cannot be advanced and is parked as FAILED: %s", workflow_id, reason)
    cursor = await connection.execute(SQL["waiting_tasks"], {"ids": [row[0] for row in rows]})
    for task_id, claim_seq in await cursor.fetchall():
        with RowFault() as fault:
            values = {"id": task_id, "claim_seq": claim_seq, "result": NOT_STARTED}
            await connection.execute(SQL["cancel"], values)
        if fault:
            logger.warning("task %s of a parked workflow cannot be cancelled: %s", task_id, fault.reason)


def _error(reason: str) -> str:
    return as_json(
        {
            "error_code": {"__builtin_task_code__": OperationalErrorCode.POISONED_ROW},
            "message": f"the row cannot be processed: {reason}",
            "data": None,
            "exception": None,
        }
    )


# Claiming, expiring and releasing


async def load_inputs_apart(
    connection: Connection, claimed: Sequence[Claimed], worker_id: UUID
) -> list[Claimed]:
    """Load the inputs of each claimed task alone; return the tasks that have them, and park the others."""

    async def load(some: Sequence[Claimed]) -> list[Claimed]:
        return await workflows.load_inputs(connection, list(some))

    async def park(task: Claimed, reason: str) -> list[Claimed]:
        await fail_task(connection, task.id, task.claim_seq, worker_id, reason, task.node)
        return []

    return [task for some in await one_by_one(claimed, load, park) for task in some]


async def park_unclaimable(connection: Connection, lines: Sequence[Lane], worker_id: UUID) -> int:
    """Park the tasks at the head of these lanes that no worker can claim; return how many there were."""
    rows = await (await connection.execute(SQL["claimable"], {"lines": as_json(lines)})).fetchall()

    async def try_claim(some: Sequence[tuple[Any, ...]]) -> int:
        task_id, claim_seq, *_ = some[0]
        async with connection.transaction():
            values = {"id": task_id, "claim_seq": claim_seq, "worker_id": worker_id}
            await connection.execute(SQL["try_claim"], values)
            raise Rollback
        return 0

    async def park(row: tuple[Any, ...], reason: str) -> int:
        task_id, claim_seq, flow_id, index = row
        return await fail_task(connection, task_id, claim_seq, worker_id, reason, (flow_id, index))

    return sum(await one_by_one(rows, try_claim, park))


async def expire_apart(connection: Connection, worker_id: UUID, result: str) -> list[Expired]:
    """Expire each task that was not started in time alone, and park those for which that fails."""

    async def expire(some: Sequence[tuple[str, int]]) -> list[Expired]:
        return await tasks.expire(connection, worker_id, result, [task_id for task_id, _ in some])

    async def park(task: tuple[str, int], reason: str) -> list[Expired]:
        await fail_task(connection, *task, worker_id, reason)
        return []

    late = await tasks.late(connection, worker_id)
    return [task for some in await one_by_one(late, expire, park) for task in some]


async def release_apart(connection: Connection, worker_id: UUID, keep: Sequence[tuple[str, int]]) -> None:
    """Release each task of this worker alone, except those to keep, and park those for which that fails."""

    async def release(some: Sequence[tuple[Any, ...]]) -> None:
        await tasks.release(connection, worker_id, keep, [row[0] for row in some])

    async def park(row: tuple[Any, ...], reason: str) -> None:
        task_id, claim_seq, flow_id, index = row
        await fail_task(connection, task_id, claim_seq, worker_id, reason, (flow_id, index))

    owned = await tasks.owned(connection, worker_id)
    await one_by_one([row for row in owned if (row[0], row[1]) not in keep], release, park)


async def defer_unknown(
    connection: Connection, unknown: Sequence[Claimed], grace_seconds: float, worker_id: UUID
) -> dict[str, bool]:
    """Leave unknown tasks to other workers; return the ids of those that this worker no longer holds.

    The value is True if a live worker knows the task.
    """

    async def defer(some: Sequence[Claimed]) -> dict[str, bool]:
        return await tasks.defer_unknown(connection, some, grace_seconds, worker_id)

    async def park(task: Claimed, reason: str) -> dict[str, bool]:
        await fail_task(connection, task.id, task.claim_seq, worker_id, reason, task.node)
        return {task.id: False}

    return {
        task_id: is_known
        for some in await isolate(unknown, defer, park)
        for task_id, is_known in some.items()
    }


async def give_back(connection: Connection, calls: Sequence[tuple[str, int]], worker_id: UUID) -> int:
    """Release calls of a worker that were not started; return how many there were."""

    async def release(some: Sequence[tuple[str, int]]) -> int:
        return await tasks.give_back(connection, some, _owner(worker_id))

    async def park(call: tuple[str, int], reason: str) -> int:
        await fail_task(connection, *call, worker_id, reason)
        return 1

    return sum(await isolate(calls, release, park))
