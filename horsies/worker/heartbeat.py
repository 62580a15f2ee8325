"""Say that this worker is alive, and notice when another one is not.

The lease is renewed on a connection of its own, so that no long claim holds it up. It says that the parent is alive,
not that a task makes progress: a child that holds the interpreter for an hour is not taken for dead.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext, suppress
from random import random

from horsies.config import AppConfig, PostgresConfig
from horsies.retry import backoff
from horsies.storage import steering, workers
from horsies.storage.database import TRANSIENT, Connection, answering, connect_worker
from horsies.worker.claim import Owner
from horsies.worker.reaper import reap, rules_of
from horsies.worker.settle import Settler
from horsies.worker.snapshot import Snapshots

logger = logging.getLogger("horsies.worker")


class Heartbeat:
    """Renews the lease of whoever owns now; tells until when it holds at least, on our own clock.

    `suspended` is told which queues are, `cancelled` which of the tasks `running` are to stop, and `disowned` is awaited
    when that owner has been declared dead. What `snapshots` keep is written along with a beat.
    """

    def __init__(
        self,
        postgres: PostgresConfig,
        config: AppConfig,
        settler: Settler,
        owner: Callable[[], Owner],
        state: Callable[[], str],
        renewed: Callable[[float], None],
        suspended: Callable[[Sequence[str]], None],
        running: Callable[[], Sequence[str]],
        cancelled: Callable[[Sequence[str]], None],
        disowned: Callable[[Connection], Awaitable[None]],
        snapshots: Snapshots,
    ) -> None:
        self._postgres = postgres
        self._interval = config.claim_renew_interval_ms / 1000
        self._check_interval = config.recovery.check_interval_ms / 1000
        self._rules = rules_of(config)
        self._checked_at = self.turned_at = time.monotonic()
        self._answered_at = self._present_since = float("-inf")
        self._settler = settler
        self._owner = owner
        self._state = state
        self._renewed = renewed
        self._suspended = suspended
        self._running = running
        self._cancelled = cancelled
        self._hurry = asyncio.Event()
        self.leads = False  # whether we clean up for all
        self._disowned = disowned
        self._snapshots = snapshots

    async def run(self) -> None:
        attempt = 0
        while True:
            self.turned_at = time.monotonic()
            try:
                async with await connect_worker(self._postgres, "horsies-heartbeat") as connection:
                    while True:
                        await self._beat(connection)
                        attempt = 0
                        await self._pause()
            except TRANSIENT as error:
                logger.warning("cannot renew the lease (%s), trying again", type(error).__name__)
            # Never so long that the lease runs out only because we waited.
            cap_ms = int(self._owner().lease_seconds * 1000 / 4)
            await asyncio.sleep(backoff(attempt, 100, cap_ms, random()))
            attempt += 1

    def beat_now(self) -> None:
        """Something may have changed that a beat tells."""
        self._hurry.set()

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(min(self._interval, self._snapshots.pause())):
                await self._hurry.wait()
        self._hurry.clear()

    async def _beat(self, connection: Connection) -> None:
        owner = self._owner()
        record = await self._snapshots.take()
        asked_at = self.turned_at = time.monotonic()
        try:
            with answering(connection, owner.lease_seconds / 2):  # so that another try still comes in time
                async with nullcontext() if record is None else connection.transaction():
                    answer = await self._renew(connection, owner)
                    if record is not None:
                        await self._snapshots.write(connection, record)
        except BaseException:
            if record is not None:
                self._snapshots.missed()
            raise
        if not answer.is_alive:
            self._snapshots.missed()
            await self._disowned(connection)
            return
        self._renewed(asked_at + owner.lease_seconds)
        self._suspended(answer.suspended)
        self._cancelled(answer.cancelled)
        self.leads = answer.leads
        if not self._was_present(owner.lease_seconds) or not answer.leads:
            return
        if answer.others_are_late or time.monotonic() - self._checked_at > self._check_interval:
            self._checked_at = time.monotonic()
            with answering(connection):
                await workers.prepare_history(connection)
                # Whoever knew when something of a workflow is due may be gone, and the others busy.
                await steering.fire(connection)
            rescued = await reap(connection, self._settler, self._rules)
            if rescued:
                logger.warning("rescued %d tasks of dead workers", rescued)

    async def _renew(self, connection: Connection, owner: Owner) -> workers.Beat:
        return await workers.beat(
            connection, owner.worker_id, self._state(), owner.lease_seconds, self._running()
        )

    def _was_present(self, lease_seconds: float) -> bool:
        """Whether we have been answered for so long without a gap that whoever is alive has been, too.

        Whoever was away cannot tell whether another worker was, too: after an outage, a long recovery of the server or
        a pause of the machine all leases have run out, and nobody is dead.
        """
        now = time.monotonic()
        if now - self._answered_at > 2 * self._interval:
            self._present_since = now
        self._answered_at = now
        return now - self._present_since >= lease_seconds - self._interval
