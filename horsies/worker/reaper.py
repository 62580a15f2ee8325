"""Rescue the tasks of dead workers.

A task that was claimed and not started is released. A task that was running may have had its effects: it is retried if its policy
says so, else it fails. One worker does this for the whole cluster. Every change checks the row's `claim_seq`, so that a worker
which was only slow neither overwrites the change nor is overwritten.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from horsies import quarantine
from horsies.config import AppConfig
from horsies.db.connection import Connection, hangup_after
from horsies.db.queries import workers
from horsies.db.queries.tasks import Claimed
from horsies.db.queries.workers import Orphan, Rules
from horsies.quarantine import RowFault
from horsies.worker.settle import Settler
from horsies.workflow.settle import settle

logger = logging.getLogger("horsies.reaper")

BATCH = 500
# If a batch cannot be rescued at once, its tasks are rescued in groups of this size.
GROUP = 25
DIED = "the task was lost: its worker died"


def rules_of(config: AppConfig) -> Rules:
    """Return the rules for lost tasks from an app's configuration."""
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
    """Declare workers dead whose lease has expired, and rescue their tasks; return how many tasks were rescued."""
    rescued, batch = 0, BATCH
    while batch == BATCH:
        with RowFault() as fault, hangup_after(connection):
            batch = await _reap_batch(connection, settler, rules)
        if fault:
            batch = await _reap_in_groups(connection, settler, rules)
        rescued += batch
    return rescued


async def _reap_batch(connection: Connection, settler: Settler, rules: Rules) -> int:
    """Rescue a batch in one transaction; return how many tasks it had, 0 if another worker reaps."""
    async with connection.transaction():
        orphans = await _find_orphans(connection, rules)
        if orphans is None:
            return 0
        unstarted = [orphan.task for orphan in orphans if not orphan.was_started]
        lost = [orphan.task for orphan in orphans if orphan.was_started]
        if unstarted:
            await workers.unclaim(connection, unstarted)
        crashes = [settler.crash(task, DIED) for task in lost]
        ours = (await settle(connection, [], crashes, None)).failed if crashes else {}
        if len(orphans) < BATCH:
            await workers.delete_usage_of_dead(connection)
    settler.event_hooks.rescued(lost, crashes, ours)
    settler.failure_log.settled(crashes, ours, lost)
    return len(orphans)


async def _find_orphans(connection: Connection, rules: Rules) -> list[Orphan] | None:
    """Declare silent workers dead and return their tasks; None if another worker reaps right now."""
    if not await workers.try_reaper_lock(connection):
        return None
    for worker_id, hostname, pid in await workers.mark_dead(connection, rules):
        logger.error("worker %s (pid %d on %s) is dead: its lease expired", worker_id, pid, hostname)
    return await workers.orphans(connection, rules)


async def _reap_in_groups(connection: Connection, settler: Settler, rules: Rules) -> int:
    """Rescue a batch in small groups, and park the rows for which that fails; return how many tasks were ended."""
    async with connection.transaction():
        orphans = await _find_orphans(connection, rules)
    if orphans is None:
        return 0
    rescued = 0
    for first in range(0, len(orphans), GROUP):
        with hangup_after(connection):
            rescued += await _reap_group(connection, settler, orphans[first : first + GROUP])
    if len(orphans) < BATCH:
        await workers.delete_usage_of_dead(connection)
    return rescued


async def _reap_group(connection: Connection, settler: Settler, orphans: Sequence[Orphan]) -> int:
    """Rescue a few tasks; return how many were rescued."""

    async def unclaim(tasks: Sequence[Claimed]) -> int:
        await workers.unclaim(connection, tasks)
        return len(tasks)

    async def park(task: Claimed, reason: str) -> int:
        return await quarantine.fail_task(
            connection, task.id, task.claim_seq, quarantine.NOBODY, reason, task.node
        )

    unstarted = [orphan.task for orphan in orphans if not orphan.was_started]
    rescued = sum(await quarantine.one_by_one(unstarted, unclaim, park))
    lost = [orphan.task for orphan in orphans if orphan.was_started]
    crashes = [settler.crash(task, DIED) for task in lost]
    ours = (await quarantine.settle(connection, [], crashes, quarantine.NOBODY)).failed if crashes else {}
    settler.event_hooks.rescued(lost, crashes, ours)
    settler.failure_log.settled(crashes, ours, lost)
    return rescued + len(ours)
