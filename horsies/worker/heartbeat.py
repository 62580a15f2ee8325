"""Membership of a worker in the cluster: its registration, its lease, and the cluster's maintenance if it is the leader.

The lease is renewed on a connection of its own, so that a long claim does not delay it. A valid lease says that the worker's
parent process is alive, not that a task makes progress: a child that holds the interpreter for an hour is not taken for dead.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Sequence
from contextlib import nullcontext
from random import random
from uuid import uuid4

from horsies.config import CustomQueueConfig, PostgresConfig, WorkerConfig
from horsies.db.connection import (
    TRANSIENT,
    Connection,
    connect_worker,
    hangup_after,
    retry_pause_ms,
    server_of,
)
from horsies.db.queries import workers
from horsies.db.queries.workers import Definition, Registration
from horsies.event_loop import wait_until_set
from horsies.quarantine import RowFault
from horsies.registry import TaskRegistry
from horsies.retry import backoff
from horsies.units import counted
from horsies.worker.claim import Owner
from horsies.worker.claim_loop import ClaimLoop
from horsies.worker.reaper import reap, rules_of
from horsies.worker.stats import Activity, WorkerStats
from horsies.workflow import control

logger = logging.getLogger("horsies.worker")

DEREGISTER_SECONDS = 2.0
# The search for lost tasks reads all live ones. It may take this share of all time.
REAP_SHARE = 0.02


def new_owner(lease_seconds: float) -> Owner:
    """Return an owner with an id that was never used before."""
    return Owner(uuid4(), socket.gethostname(), f"worker-{os.getpid()}", lease_seconds)


class Presence:
    """Measures how long one server has answered this worker without a gap.

    After an outage, a long recovery of the server or a pause of the machine, all leases have expired although no worker is
    dead. After a failover, they may expire while the others still look for the new primary, whose clock may be ahead. Only a
    worker that was answered all the time can tell that another one was silent by itself.
    """

    def __init__(self) -> None:
        self._server: str | None = None
        self._answered_at = self._answered_since = float("-inf")

    def connected(self, server: str) -> None:
        """Note the server of a new connection; with another one, the time begins anew."""
        if self._server not in (None, server):
            logger.warning("PostgreSQL was restarted, or another server has taken over")
            self._answered_at = float("-inf")
        self._server = server

    def answered(self, now: float, longest_gap: float) -> float:
        """Note an answer, and return for how many seconds there was no gap."""
        if now - self._answered_at > longest_gap:
            self._answered_since = now
        self._answered_at = now
        return now - self._answered_since


class Heartbeat:
    """Registers a worker and renews its lease at an interval; passes the answers on to the claim loop and the pools.

    `leads` is True while this worker does the maintenance of the cluster. `turned_at` is the time of the last heartbeat.
    """

    def __init__(
        self,
        app: TaskRegistry,
        config: WorkerConfig,
        queues: Sequence[CustomQueueConfig],
        claim_loop: ClaimLoop,
        stats: WorkerStats,
    ) -> None:
        self._app = app
        self._config = config
        self._queues = queues
        self._claim_loop = claim_loop
        self._trips = claim_loop.trips
        self._pools = claim_loop.trips.capacity.pools
        self._stats = stats
        self._interval = app.config.claim_renew_interval_ms / 1000
        self._wake = asyncio.Event()
        self._lease_until = self._maintained_at = self._reap_at = 0.0
        self._presence = Presence()
        self.turned_at = 0.0
        self.leads = False

    # Registration

    @property
    def holds_lease(self) -> bool:
        """True if the lease is certainly valid, by the clock of this machine."""
        return time.monotonic() < self._lease_until

    async def register(self, connection: Connection, owner: Owner) -> None:
        """Register the worker under an id that the database does not know yet."""
        sent_at = time.monotonic()
        registration = Registration(
            owner.worker_id,
            owner.hostname,
            os.getpid(),
            self._config.processes,
            [queue.name for queue in self._queues],
            owner.lease_seconds,
        )
        definitions = [
            Definition(
                task.name,
                task.queue.name,
                task.priority or task.queue.priority,
                task.is_async,
                task.max_retries,
                task.timeout_ms,
                task.options_json,
                task.rate_key,
                None if task.rate is None else task.rate.seconds,
                None if task.rate is None else task.rate.burst,
                task.key_source,
                task.key_concurrency,
                None if task.per_key is None else task.per_key.seconds,
                None if task.per_key is None else task.per_key.burst,
                task.on_conflict,
            )
            for task in (task.definition for task in self._app.tasks.values())
        ]
        registered = await workers.register(connection, registration, definitions)
        self._trips.limit_rates(registered.rates)
        self._claim_loop.suspend(registered.suspended)
        self._lease_renewed(sent_at + owner.lease_seconds)

    async def _register_again(self, connection: Connection) -> None:
        """Register under a new id after the worker was declared dead.

        Other workers have taken over its tasks, so the children that run them are killed.
        """
        logger.error("This worker was declared dead because its lease expired; it goes on under a new id")
        for pool in self._pools:
            pool.kill_running("the worker was declared dead and killed this task")
        self._claim_loop.disown()
        owner = new_owner(self._trips.owner.lease_seconds)
        await self.register(connection, owner)
        for pool in self._pools:
            pool.set_worker_id(owner.worker_id)
        self._claim_loop.resume_as(owner)

    def _lease_renewed(self, valid_until: float) -> None:
        """Note that the lease is valid until a time on the monotonic clock."""
        self._lease_until = valid_until
        had_expired = not self._pools[0].is_valid()
        for pool in self._pools:
            pool.renew(valid_until)
        if had_expired:
            self._claim_loop.claim_soon()

    async def deregister(self, postgres: PostgresConfig) -> None:
        """Delete the registration, unless the database does not answer quickly."""
        try:
            async with (
                asyncio.timeout(DEREGISTER_SECONDS),
                await connect_worker(postgres, "horsies-worker") as connection,
            ):
                await workers.deregister(connection, self._trips.owner.worker_id)
        except TRANSIENT as error:
            logger.warning("Could not deregister (%s); the lease will expire by itself", type(error).__name__)

    # Lease

    async def run(self, postgres: PostgresConfig) -> None:
        """Send heartbeats until cancelled."""
        attempt = 0
        self._maintained_at = time.monotonic()
        while True:
            self.turned_at = time.monotonic()
            try:
                async with await connect_worker(postgres, "horsies-heartbeat") as connection:
                    with hangup_after(connection, self._trips.owner.lease_seconds / 2):
                        self._presence.connected(await workers.server_identity(connection))
                    while True:
                        await self._beat(connection)
                        if attempt:
                            self._trips.leave_other_servers(server_of(connection))
                        attempt = 0
                        await wait_until_set(self._wake, min(self._interval, self._stats.pause()))
                        self._wake.clear()
            except TRANSIENT as error:
                logger.warning("Cannot renew the lease (%s), trying again", type(error).__name__)
            # Short enough that the lease does not expire only because of the pause.
            cap_ms = retry_pause_ms(postgres, int(self._trips.owner.lease_seconds * 1000 / 4))
            await asyncio.sleep(backoff(attempt, 100, cap_ms, random()))
            attempt += 1

    def beat_now(self) -> None:
        """Send the next heartbeat at once: it has something to store or to ask for."""
        self._wake.set()

    async def _beat(self, connection: Connection) -> None:
        owner = self._trips.owner
        record = await self._stats.take(Activity.of(self._claim_loop))
        sent_at = self.turned_at = time.monotonic()
        try:
            with hangup_after(connection, owner.lease_seconds / 2):  # early enough for another try
                async with nullcontext() if record is None else connection.transaction():
                    reply = await workers.renew_lease(
                        connection,
                        owner.worker_id,
                        self._claim_loop.state,
                        owner.lease_seconds,
                        [task.id for task in self._trips.capacity.running],
                    )
                    if record is not None:
                        await self._stats.write(connection, record)
        except BaseException:
            if record is not None:
                self._stats.not_written()
            raise
        if not reply.is_alive:
            self._stats.not_written()
            await self._register_again(connection)
            return
        self._lease_renewed(sent_at + owner.lease_seconds)
        self._claim_loop.suspend(reply.suspended)
        self._claim_loop.cancel(reply.cancelled)
        self.leads = reply.leads
        await self._refresh_left_out(connection)
        present = self._presence.answered(time.monotonic(), 2 * self._interval)
        if present >= owner.lease_seconds - self._interval and reply.leads:
            await self._maintain_if_due(connection, reply.others_are_late)

    async def _refresh_left_out(self, connection: Connection) -> None:
        """Claim tasks again that this worker does not know, if no other live worker knows them any more."""
        left_out = self._trips.claimer.left_out
        if left_out and self._trips.claimer.leave_out(await workers.known_elsewhere(connection, left_out)):
            self._claim_loop.claim_soon()

    # Maintenance

    async def _maintain_if_due(self, connection: Connection, others_are_late: bool) -> None:
        """Create history partitions, fire workflow timers and rescue tasks of dead workers, at an interval.

        Tasks are also rescued about once per lease: a worker whose row is gone has no lease that could end.
        """
        interval = self._app.config.recovery.check_interval_ms / 1000
        now = time.monotonic()
        work_to_do = [self._reap]
        if others_are_late or now - self._maintained_at > interval:
            self._maintained_at = now
            # Timers are fired here too: the worker that knew of a timer may be gone, and the others busy.
            work_to_do = [workers.prepare_history, control.fire_timers, self._reap]
        elif now < self._reap_at:
            return
        for work in work_to_do:
            with RowFault() as fault, hangup_after(connection):
                await work(connection)
            if fault:
                logger.error(
                    "Maintenance failed because of a row that could not be singled out; trying again later",
                    exc_info=fault.error,
                )

    async def _reap(self, connection: Connection) -> None:
        began = time.monotonic()
        rescued = await reap(connection, self._trips.settler, rules_of(self._app.config))
        await workers.sweep_keys(connection)
        now = time.monotonic()
        self._reap_at = now + max(
            self._trips.owner.lease_seconds - 2 * self._interval, (now - began) / REAP_SHARE
        )
        if rescued:
            logger.warning("Rescued %s of dead workers", counted(rescued, "task"))
