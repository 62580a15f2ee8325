"""Store the last outcomes of a child whose worker has died, and release the calls that it has not started.

Without this, a crash of the worker would lose every result since its last round trip, and calls that were never started.
It cannot do harm: each row is fenced by its `claim_seq` and the worker, and rows that the worker has settled already do not match.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from uuid import UUID

from horsies import quarantine
from horsies.db.connection import TRANSIENT, Connection, connect_worker
from horsies.db.queries import tasks
from horsies.db.queries.tasks import Claimed
from horsies.executor.protocol import Call, Identity, Outcome
from horsies.registry import TaskRegistry
from horsies.units import counted
from horsies.worker.settle import Settler

logger = logging.getLogger("horsies.child")


def store_last_outcomes(
    identity: Identity,
    app: TaskRegistry,
    outcomes: Sequence[tuple[Call, Outcome]],
    not_started: Sequence[Call],
    seconds: float,
) -> None:
    """Settle and release tasks within so many seconds. The rest is rescued like any task of a dead worker."""
    if not outcomes and not not_started:
        return
    not_started = [member for call in not_started for member in call.members or [call]]
    settler = Settler(app)
    for call, outcome in outcomes:
        settler.ended(_claimed(call), outcome)
    try:
        stored, released = asyncio.run(_store(identity, settler, not_started, seconds))
    except TRANSIENT as error:
        logger.warning("The worker died, and its last results cannot be stored (%s)", type(error).__name__)
        return
    if stored or released:
        logger.warning(
            "The worker died: %s stored, %s released", counted(stored, "result"), counted(released, "task")
        )


async def _store(
    identity: Identity, settler: Settler, not_started: Sequence[Call], seconds: float
) -> tuple[int, int]:
    worker_id = UUID(identity.worker_id)
    async with (
        asyncio.timeout(seconds),
        await connect_worker(identity.postgres, "horsies-orphan-flush") as connection,
    ):
        stored = await _settle(connection, settler, worker_id)
        released = await quarantine.give_back(
            connection, [(call.task_id, call.claim_seq) for call in not_started], worker_id
        )
        if released < len(not_started):
            # Tasks whose cancellation was requested are not released: they end as cancelled.
            settler.failed += [tasks.stopped(_claimed(call)) for call in not_started]
        return stored + await _settle(connection, settler, worker_id), released


async def _settle(connection: Connection, settler: Settler, worker_id: UUID) -> int:
    stored = 0
    while settler.failed:
        settled = await quarantine.settle(connection, [], settler.take_failed(), worker_id)
        stored += len(settled.failed)
    while settler.completed:
        settled = await quarantine.settle(connection, settler.take_completed(), [], worker_id)
        stored += len(settled.completed)
    return stored


def _claimed(call: Call) -> Claimed:
    """Return the task of a call, with the fields that settling needs."""
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
