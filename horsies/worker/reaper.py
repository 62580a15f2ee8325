"""Rescue what dead workers held.

A claim that was never started goes back. A task that was running may have had its effects: it is retried if its policy
says so, else it has failed. One worker does this for the whole cluster, and every change is fenced by the row's
`claim_seq`, so that a worker which was only slow cannot be overwritten nor overwrite.
"""

from __future__ import annotations

import logging

from horsies.config import AppConfig
from horsies.storage import workers, workflows
from horsies.storage.database import Connection, answering
from horsies.storage.workers import Rules
from horsies.worker.settle import Settler

logger = logging.getLogger("horsies.reaper")

BATCH = 500


def rules_of(config: AppConfig) -> Rules:
    """What an app says about lost work."""
    recovery = config.recovery
    grace_ms = max(config.effective_claim_lease_ms, recovery.crashed_worker_recovery_grace_ms)
    return Rules(
        quarantine_seconds=grace_ms / 1000,
        claimed_seconds=(recovery.claimed_stale_threshold_ms or 0) / 1000,
        running_seconds=(recovery.running_stale_threshold_ms or 0) / 1000,
        requeue=recovery.auto_requeue_stale_claimed,
        fail=recovery.auto_fail_stale_running,
    )


async def reap(connection: Connection, settler: Settler, rules: Rules) -> int:
    """Declare dead whose lease ran out and rescue what they held; gives back how many tasks that were."""
    rescued, batch = 0, BATCH
    while batch == BATCH:
        with answering(connection):
            batch = await _reap_batch(connection, settler, rules)
        rescued += batch
    return rescued


async def _reap_batch(connection: Connection, settler: Settler, rules: Rules) -> int:
    """In one transaction; gives back how many tasks it rescued, none when another worker is at it."""
    async with connection.transaction():
        if not await workers.lead(connection):
            return 0
        for worker_id, hostname, pid in await workers.bury(connection, rules):
            logger.error("worker %s (pid %d on %s) is dead: its lease ran out", worker_id, pid, hostname)
        orphans = await workers.orphans(connection, rules)
        unstarted = [orphan.task for orphan in orphans if not orphan.was_started]
        lost = [orphan.task for orphan in orphans if orphan.was_started]
        if unstarted:
            await workers.unclaim(connection, unstarted)
        crashes = [settler.crash(task, "the task was lost: its worker died") for task in lost]
        ours = (await workflows.settle(connection, [], crashes)).failed if crashes else {}
        if len(orphans) < BATCH:
            await workers.forget(connection)
    if settler.herald.heard:
        settler.herald.rescued(lost, crashes, ours)
    return len(orphans)
