"""Keep house, in the background: let go of what is old, and count what has ended.

Finished tasks and workflows with all that is kept of them, keys, snapshots and heartbeats go when their time is over. Only the
leading worker does it, in small batches with a pause as long as each batch took, so that claims hardly notice.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable

import psycopg

from horsies.config import PostgresConfig, RetentionConfig
from horsies.storage import retention, rollups, states
from horsies.storage.database import TRANSIENT, Connection, connect

logger = logging.getLogger("horsies.janitor")

COUNT_SECONDS = 60


class Janitor:
    """Sweeps at its interval, and counts once a minute, while `leads` says that it is ours to do."""

    def __init__(
        self,
        postgres: PostgresConfig,
        config: RetentionConfig,
        leads: Callable[[], bool],
        count_seconds: float = COUNT_SECONDS,
    ) -> None:
        self._postgres = postgres
        self._config = config
        self._leads = leads
        self._count_seconds = count_seconds

    async def run(self) -> None:
        await asyncio.gather(self._sweep(), self._count())

    async def _count(self) -> None:
        while True:
            await asyncio.sleep(self._count_seconds)
            if not self._leads():
                continue
            try:
                async with await connect(self._postgres, session=True, name="horsies-janitor") as connection:
                    await rollups.roll(connection)
            # The numbers are for people: that a role may not write them must not end a worker.
            except (psycopg.Error, *TRANSIENT) as error:
                logger.warning("could not count what has ended (%s)", type(error).__name__)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._config.retention_sweep_interval_s)
            if not self._leads():
                continue
            try:
                async with await connect(self._postgres, session=True, name="horsies-janitor") as connection:
                    await sweep(connection, self._config)
            except TRANSIENT as error:
                logger.warning("could not finish sweeping (%s)", type(error).__name__)


async def sweep(connection: Connection, config: RetentionConfig) -> int:
    """Let go of everything whose time is over; gives back how many tasks were deleted one by one."""
    row = await (await connection.execute("SELECT now()")).fetchone()
    assert row is not None
    plan, batch = retention.plan(config, row[0]), config.retention_delete_batch_size
    if plan.days_before is not None and (days := await retention.drop_days(connection, plan.days_before)):
        logger.info("dropped %d days of history", days)
    deleted = 0
    for which in plan.tasks:
        deleted += await _gently(retention.delete(connection, which, batch))
    if deleted:
        logger.info("deleted %d old tasks", deleted)
    if plan.results_before is not None:
        await _gently(retention.forget(connection, "results", plan.results_before, batch))
    if plan.records_before is not None:
        for what in ("attempts", "progress", "logs", "keys", "actions", "workflows"):
            await _gently(retention.forget(connection, what, plan.records_before, batch))
    while await states.prune(connection, config):
        pass
    return deleted


async def _gently(batches: AsyncGenerator[int]) -> int:
    """Carry out batches, each followed by a pause as long as it took; gives back how many rows they had."""
    total, began = 0, time.monotonic()
    async for count in batches:
        total += count
        await asyncio.sleep(time.monotonic() - began)
        began = time.monotonic()
    return total
