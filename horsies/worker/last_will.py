"""What a child does when its worker has died: it stores how its last calls ended, and gives back what it has not begun.

Without this, whatever had ended since the worker's last round trip would count as lost in a crash, and so would calls that
no code had touched. Nothing here can do harm: each row is fenced by its `claim_seq`, and what the worker had stored already is
not found again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from horsies.config import PostgresConfig
from horsies.registry import TaskRegistry
from horsies.storage import tasks, workflows
from horsies.storage.database import TRANSIENT, Connection, connect_worker
from horsies.storage.tasks import Claimed
from horsies.worker.settle import Settler
from horsies.worker.wire import Call, Outcome

logger = logging.getLogger("horsies.child")


def carry_out(
    postgres: PostgresConfig,
    app: TaskRegistry,
    endings: Sequence[tuple[Call, Outcome]],
    unbegun: Sequence[Call],
    seconds: float,
) -> None:
    """Store and give back, within so many seconds; what is not done by then is rescued like any task of a dead worker."""
    if not endings and not unbegun:
        return
    settler = Settler(app)
    for call, outcome in endings:
        settler.ended(_claimed(call), outcome)
    try:
        stored, returned = asyncio.run(_store(postgres, settler, unbegun, seconds))
    except TRANSIENT as error:
        logger.warning(
            "the worker has died, and its last results cannot be stored (%s)", type(error).__name__
        )
        return
    if stored or returned:
        logger.warning("the worker has died: stored %d results, gave back %d tasks", stored, returned)


async def _store(
    postgres: PostgresConfig, settler: Settler, unbegun: Sequence[Call], seconds: float
) -> tuple[int, int]:
    async with asyncio.timeout(seconds), await connect_worker(postgres, "horsies-last-will") as connection:
        returned = await tasks.give_back(connection, [(call.task_id, call.claim_seq) for call in unbegun])
        if returned < len(unbegun):
            settler.failed += [tasks.stopped(_claimed(call)) for call in unbegun]
        return await _settle(connection, settler), returned


async def _settle(connection: Connection, settler: Settler) -> int:
    stored = 0
    while settler.failed:
        async with connection.transaction():
            stored += len((await workflows.settle(connection, [], settler.take_failed())).failed)
    while settler.completed:
        async with connection.transaction():
            stored += len((await workflows.settle(connection, settler.take_completed(), [])).completed)
    return stored


def _claimed(call: Call) -> Claimed:
    """The task of a call, as far as its end depends on it."""
    return Claimed(
        turn=0,
        id=call.task_id,
        claim_seq=call.claim_seq,
        task_name=call.task_name,
        args=None,
        kwargs=None,
        queue_name=call.queue_name,
        is_async=False,
        priority=0,
        enqueued_at="",
        pid=None,
        timeout_ms=call.timeout_ms,
        retry_count=call.attempt - 1,
        max_retries=call.max_retries,
        crash_count=0,
        has_expiry=False,
        task_options=call.task_options,
        workflow_id=None if call.node is None else call.node[0],
        workflow_index=None if call.node is None else call.node[1],
    )
