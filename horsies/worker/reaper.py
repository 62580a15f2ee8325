"""Rescue what dead workers held.

A claim that was never started goes back. A task that was running may have had its effects: it is retried if its policy
says so, else it has failed. Only one worker in the cluster does this at a time, and every change is fenced by the
row's `claim_seq`, so that a worker which was only slow cannot be overwritten nor overwrite.
"""

from __future__ import annotations

import logging

from horsies.storage import workers, workflows
from horsies.storage.database import Connection
from horsies.worker.settle import Settler

logger = logging.getLogger("horsies.reaper")

BATCH = 500


async def reap(connection: Connection, settler: Settler, lease_seconds: float) -> int:
    """Declare dead whose lease ran out and rescue what they held; gives back how many tasks that were."""
    rescued = 0
    while True:
        async with connection.transaction():
            if not await workers.lead(connection):
                return rescued
            for worker_id, hostname, pid in await workers.bury(connection, lease_seconds):
                logger.error("worker %s (pid %d on %s) is dead: its lease ran out", worker_id, pid, hostname)
            orphans = await workers.orphans(connection)
            unstarted = [orphan.task for orphan in orphans if not orphan.was_started]
            lost = [orphan.task for orphan in orphans if orphan.was_started]
            if unstarted:
                await workers.unclaim(connection, unstarted)
            if lost:
                failures = [settler.crash(task, "the task was lost: its worker died") for task in lost]
                await workflows.settle(connection, [], failures)
            if len(orphans) < BATCH:
                await workers.forget(connection)
        rescued += len(orphans)
        if len(orphans) < BATCH:
            return rescued
