"""Recover the tasks of silent workers by hand, with the statements of the workers' own recovery."""

from __future__ import annotations

from typing import Any

import msgspec

from horsies.codec import encode_result
from horsies.config import AppConfig
from horsies.db.connection import Connection
from horsies.db.queries import workers
from horsies.db.queries.tasks import Claimed, Failure
from horsies.db.queries.workers import Rules
from horsies.result import TaskError, TaskResult
from horsies.status import OperationalErrorCode
from horsies.workflow.settle import settle

MESSAGE = "the task was marked as failed: its worker has been silent"


class _Options(msgspec.Struct):
    on_failure: str | None = None


def _rules(config: AppConfig, seconds: float, *, requeue: bool) -> Rules:
    grace_ms = max(config.effective_claim_lease_ms, config.recovery.crashed_worker_recovery_grace_ms)
    return Rules(
        quarantine_seconds=grace_ms / 1000,
        claimed_seconds=seconds,
        running_seconds=seconds,
        requeue=requeue,
        fail=not requeue,
    )


async def requeue_claimed(connection: Connection, config: AppConfig, seconds: float) -> int:
    """Release tasks that a worker claimed and never started, if it is silent for so many seconds; return how many.

    Return 0 if a worker recovers tasks at this moment.
    """
    async with connection.transaction():
        if not await workers.try_reaper_lock(connection):
            return 0
        claimed = await workers.orphans(connection, _rules(config, seconds, requeue=True))
        if claimed:
            await workers.unclaim(connection, [orphan.task for orphan in claimed])
        return len(claimed)


async def fail_running(connection: Connection, config: AppConfig, seconds: float) -> int:
    """Fail running tasks of workers that are silent for so many seconds, without a retry; return how many.

    Return 0 if a worker recovers tasks at this moment.
    """
    async with connection.transaction():
        if not await workers.try_reaper_lock(connection):
            return 0
        rules = _rules(config, seconds, requeue=False)
        await workers.mark_dead(connection, rules)
        lost = await workers.orphans(connection, rules)
        failures = [_failure(orphan.task) for orphan in lost]
        settled = (await settle(connection, [], failures, None)).failed if failures else {}
        await workers.delete_usage_of_dead(connection)
        return len(settled)


def _failure(task: Claimed) -> Failure:
    code = OperationalErrorCode.WORKER_CRASHED
    result = encode_result(TaskResult(err=TaskError(error_code=code, message=MESSAGE)), Any, None)
    return Failure(
        task.id,
        task.claim_seq,
        result.decode(),
        code,
        MESSAGE,
        MESSAGE,
        crashed=True,
        node=task.node,
        on_failure=_handler_of(task),
    )


def _handler_of(task: Claimed) -> str | None:
    """Return the task to send after this one has failed, from the options in its row, which anyone may have written."""
    try:
        return msgspec.json.decode(task.task_options or "{}", type=_Options).on_failure
    except (msgspec.MsgspecError, RecursionError):
        return None
