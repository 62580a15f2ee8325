"""Delete old rows and count finished tasks, in the background.

Finished tasks and workflows, idempotency keys, snapshots and heartbeats are deleted when their retention is over. Only the
leader does this, in small batches with a pause as long as each batch took, so that claims are hardly delayed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable

import psycopg

from horsies.config import PostgresConfig, RetentionConfig
from horsies.db.connection import TRANSIENT, Connection, connect
from horsies.db.queries import retention
from horsies.units import counted

logger = logging.getLogger("horsies.retention")

COUNT_SECONDS = 60


async def run_retention(
    postgres: PostgresConfig,
    config: RetentionConfig,
    leads: Callable[[], bool],
    count_seconds: float = COUNT_SECONDS,
) -> None:
    """Delete old rows at an interval and count finished tasks once a minute, while `leads` returns True."""

    async def repeat(seconds: float, work: Callable[[Connection], Awaitable[int]], what: str) -> None:
        while True:
            await asyncio.sleep(seconds)
            if not leads():
                continue
            try:
                async with await connect(postgres, session=True, name="horsies-retention") as connection:
                    await work(connection)
            # A role that may not delete rows or write the counts must not stop the worker.
            except (psycopg.Error, *TRANSIENT) as error:
                logger.warning(
                    "Could not %s, trying again later: %s", what, str(error) or type(error).__name__
                )

    await asyncio.gather(
        repeat(count_seconds, retention.roll_up, "count finished tasks"),
        repeat(
            config.retention_sweep_interval_s,
            lambda connection: sweep(connection, config),
            "finish the retention sweep",
        ),
    )


async def sweep(connection: Connection, config: RetentionConfig) -> int:
    """Delete all rows whose retention is over; return how many tasks were deleted one by one."""
    row = await (await connection.execute("SELECT now()")).fetchone()
    assert row is not None
    plan, batch = retention.plan(config, row[0]), config.retention_delete_batch_size
    if plan.days_before is not None and (days := await retention.drop_days(connection, plan.days_before)):
        logger.info("Dropped %s of history", counted(days, "day"))
    deleted = 0
    for which in plan.tasks:
        deleted += await _with_pauses(retention.delete(connection, which, batch, as_worker=True))
    if deleted:
        logger.info("Deleted %s", counted(deleted, "old task"))
    if plan.results_before is not None:
        await _with_pauses(retention.delete_records(connection, "results", plan.results_before, batch))
    if plan.records_before is not None:
        for what in ("attempts", "progress", "logs", "steps", "signals", "keys", "actions", "workflows"):
            await _with_pauses(retention.delete_records(connection, what, plan.records_before, batch))
    while await retention.delete_worker_records(connection, config):
        pass
    return deleted


async def _with_pauses(batches: AsyncGenerator[int]) -> int:
    """Run batches, each followed by a pause as long as it took; return the number of rows."""
    total, began = 0, time.monotonic()
    async for count in batches:
        total += count
        await asyncio.sleep(time.monotonic() - began)
        began = time.monotonic()
    return total
