"""A worker, from start to stop.

The children are started before any connection is opened; then the schema is made sure of, the worker registers, and it
listens. The first call to `stop` lets running tasks end and gives everything else back; a second one ends them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from random import random
from typing import Any
from uuid import uuid4

from horsies.broker import resolve
from horsies.check import handler_problems
from horsies.config import AppConfig, CustomQueueConfig, PostgresConfig, WorkerConfig
from horsies.context import FAREWELL_SECONDS
from horsies.discovery import import_modules, locate, refuse_while_loading
from horsies.errors import ConfigurationError, ErrorCode, ValidationReport
from horsies.registry import TaskRegistry
from horsies.retry import backoff
from horsies.scheduler.loop import Scheduler
from horsies.storage import workers
from horsies.storage.database import TRANSIENT, Connection, connect_worker, explain, is_refused
from horsies.storage.listener import Listener
from horsies.storage.migrate import migrate
from horsies.storage.tasks import queue_channel
from horsies.storage.workers import Definition, Registration
from horsies.worker.capacity import Limits
from horsies.worker.claim import Owner
from horsies.worker.engine import POLL_SPREAD, Engine
from horsies.worker.health import Health, Signs, notify
from horsies.worker.heartbeat import Heartbeat
from horsies.worker.janitor import Janitor
from horsies.worker.launch import Launcher, SpawnLauncher, TemplateLauncher
from horsies.worker.notebook import Notebook
from horsies.worker.pool import ChildPool, Hooks, Shape
from horsies.worker.settings import ChildKind, ChildSettings
from horsies.worker.snapshot import Activity, Meter, Snapshots, setup_of

logger = logging.getLogger("horsies.worker")

# On this channel operators are heard.
CONTROL = "horsies_control"
LAST_SETTLE_SECONDS = 10.0
# A listener that has heard nothing is asked so often whether it could have; if it could not, polls find the tasks.
DEAF_SECONDS = 300.0
# No process outlives its worker for longer.
MAX_AFTERLIFE_SECONDS = 1.5
# A child that starts with so much of what it may take is worth a warning.
WARN_SHARE = 0.8


class Worker:
    """Runs an app's tasks until it is stopped.

    >>> await Worker(app, WorkerConfig(processes=4)).run()
    """

    def __init__(self, app: TaskRegistry, config: WorkerConfig) -> None:
        refuse_while_loading()
        import_modules(app, config.imports)
        report = ValidationReport("tasks for failures")
        for problem in handler_problems(app):
            report.add(problem)
        report.raise_if_any()
        self._app = app
        self._config = config
        self._queues = queues_to_serve(app.config, config)
        self._lease_seconds = app.config.effective_claim_lease_ms / 1000
        self._stop = asyncio.Event()
        self._force = asyncio.Event()
        self._meter = Meter()
        self._scheduler = Scheduler(app) if config.with_scheduler else None
        self._notebook = Notebook()
        hooks = Hooks(
            ended=lambda task, outcome: self._engine.ended(task, outcome),
            crashed=lambda task, how: self._engine.crashed(task, how),
            timed_out=lambda task, limit_ms: self._engine.timed_out(task, limit_ms),
            cancelled=lambda task: self._engine.cancelled(task),
            said=self._notebook.said,
            came_free=lambda: self._engine.came_free(),
            let_go=lambda: self._engine.recount(),
        )
        self._turned_at, self._lease_until = time.monotonic(), 0.0
        self._heartbeat: Heartbeat | None = None
        self._health = Health(self._signs)
        self._launcher = self._new_launcher()
        self._pools = [
            ChildPool(
                shape,
                self._launcher,
                hooks,
                app.config.default_task_timeout_ms,
                app.config.cancel_grace_ms / 1000,
                FAREWELL_SECONDS if app.watchers else 0,
            )
            for shape in self._shapes()
        ]
        self._engine = Engine(app, self._limits(), self._new_owner(), self._queues, self._pools)

    def stop(self) -> None:
        """Stop when running tasks have ended; called again, without waiting for them."""
        if self._stop.is_set():
            self._force.set()
        self._stop.set()

    async def run(self) -> None:
        """Work until stopped; raises what made it impossible to go on."""
        try:
            await asyncio.gather(*(pool.start() for pool in self._pools))
            check_baseline(
                max(pool.baseline_mb for pool in self._pools), self._config.max_memory_per_child_mb
            )
            self._turned_at = time.monotonic()
            self._health.start(self._config.health_host, self._config.health_port)
            self._engine.settler.herald.start(lambda: str(self._engine.owner.worker_id))
            postgres = await asyncio.to_thread(self._postgres)
            for pool in self._pools:
                pool.entrust(postgres, self._engine.owner.worker_id)
            if await self._until_stopped(self._get_ready(postgres)):
                await self._work(postgres)
        finally:
            await asyncio.to_thread(self._engine.settler.herald.close)
            await asyncio.to_thread(self._health.close)
            await asyncio.gather(*(pool.close() for pool in self._pools))
            await self._launcher.close()

    def _postgres(self) -> PostgresConfig:
        return (
            resolve(self._app.config)
            if self._config.dsn is None
            else PostgresConfig(database_url=self._config.dsn)
        )

    async def _until_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Carry something out unless we are stopped meanwhile; tells whether it was."""
        doing, stopping = asyncio.create_task(work), asyncio.create_task(self._stop.wait())
        await asyncio.wait([doing, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if doing.done():
            doing.result()
            return True
        doing.cancel()
        await asyncio.gather(doing, return_exceptions=True)
        return False

    async def _get_ready(self, postgres: PostgresConfig) -> None:
        """Make sure of the schema and register, however long the database takes to come up."""
        attempt = 0
        while True:
            try:
                applied = await migrate(postgres)
                if applied:
                    logger.info("Schema created or upgraded (%d migrations)", applied)
                async with await connect_worker(postgres, "horsies-worker") as connection:
                    await self._register(connection, self._engine.owner)
                return
            except TRANSIENT as error:
                await self._bear(error, attempt, postgres)
                attempt += 1

    async def _register(self, connection: Connection, owner: Owner) -> None:
        asked_at = time.monotonic()
        standing = await workers.register(connection, self._registration(owner), self._definitions())
        self._engine.limit_rates(standing.rates)
        self._engine.suspend(standing.suspended)
        self._renewed(asked_at + self._lease_seconds)

    def _renewed(self, valid_until: float) -> None:
        self._lease_until = valid_until
        had_lapsed = not self._pools[0].is_valid()
        for pool in self._pools:
            pool.renew(valid_until)
        if had_lapsed:
            self._engine.look_again()

    def _signs(self) -> Signs:
        """What probes go by. Between two tries to reach the database a loop waits as long as the app says."""
        resilience = self._app.config.resilience
        waits = (
            resilience.notify_poll_interval_ms * POLL_SPREAD,
            resilience.db_retry_max_ms,
            self._app.config.claim_renew_interval_ms,
        )
        return Signs(
            turned_at=max(self._turned_at, self._engine.turned_at),
            beaten_at=self._turned_at if self._heartbeat is None else self._heartbeat.turned_at,
            longest_wait=max(waits) / 1000,
            holds_lease=time.monotonic() < self._lease_until,
            is_stopping=self._stop.is_set(),
        )

    async def _bear(self, error: BaseException, attempt: int, postgres: PostgresConfig) -> None:
        """Wait before the next try to reach the database; raise when it will not help."""
        self._turned_at = time.monotonic()
        resilience = self._app.config.resilience
        explained = explain(error, postgres)
        if is_refused(error) or 0 < resilience.db_retry_max_attempts <= attempt:
            raise explained from error
        seconds = backoff(attempt, resilience.db_retry_initial_ms, resilience.db_retry_max_ms, random())
        logger.warning("%s; next try in %.1f s", explained.message, seconds)
        await asyncio.sleep(seconds)

    async def _work(self, postgres: PostgresConfig) -> None:
        """Work until stopped, then let what is running end."""
        heartbeat = self._heartbeat = Heartbeat(
            postgres,
            self._app.config,
            self._engine.settler,
            lambda: self._engine.owner,
            lambda: self._engine.state,
            self._renewed,
            self._engine.suspend,
            lambda: self._engine.running,
            self._engine.cancel,
            self._disowned,
            self._snapshots(),
        )
        listener = Listener(
            postgres,
            [CONTROL, *(queue_channel(queue.name) for queue in self._queues)],
            on_notify=lambda channel, payload: self._heard(channel, payload, heartbeat),
            on_connected=self._engine.look_again,
            untold=lambda: self._engine.untold,
            ask_seconds=DEAF_SECONDS,
        )
        listener.start()
        engine = asyncio.create_task(self._over_connection(postgres, self._engine.run), name="horsies-engine")
        helper = asyncio.create_task(
            self._over_connection(postgres, self._engine.assist), name="horsies-helper"
        )
        beating = asyncio.create_task(heartbeat.run(), name="horsies-heartbeat")
        janitor = Janitor(postgres, self._app.config.retention, lambda: heartbeat.leads)
        sweeping = asyncio.create_task(janitor.run(), name="horsies-janitor")
        writing = asyncio.create_task(self._notebook.run(postgres), name="horsies-notebook")
        services = [helper, beating, sweeping, writing]
        if self._scheduler is not None:
            services.append(asyncio.create_task(self._scheduler.run(postgres), name="horsies-scheduler"))
        self._log_start()
        notify("READY=1")
        try:
            stopped = asyncio.create_task(self._stop.wait())
            failed = [pool.failed for pool in self._pools]
            await asyncio.wait([engine, *services, stopped, *failed], return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            notify("STOPPING=1")
            await self._wind_up(engine)
        finally:
            for task in services:
                task.cancel()
            await asyncio.gather(*services, listener.close(), return_exceptions=True)
            await self._notebook.close(postgres)
            await self._resign(postgres)
        for pool in self._pools:
            if pool.failed.done():
                raise pool.failed.result()
        for task in services:
            if not task.cancelled():
                task.result()

    def _heard(self, channel: str, payload: str, heartbeat: Heartbeat) -> None:
        """There may be new work; or an operator has done something about all workers, or about one."""
        if channel != CONTROL:
            self._engine.look_again()
        elif payload in ("", str(self._engine.owner.worker_id)):
            heartbeat.beat_now()

    async def _over_connection(
        self, postgres: PostgresConfig, work: Callable[[Connection], Awaitable[None]]
    ) -> None:
        """Carry on with some work over one connection after another."""
        attempt = session = 0
        while True:
            try:
                async with await connect_worker(postgres, "horsies-worker") as connection:
                    attempt, session = 0, connection.info.backend_pid
                    await work(connection)
                    return
            except TRANSIENT as error:
                if session:
                    self._engine.lost(session)
                await self._bear(error, attempt, postgres)
                attempt += 1

    async def _wind_up(self, engine: asyncio.Task[None]) -> None:
        """Give back what is not started, wait for what runs; after the time for that, or when forced, end it."""
        if not engine.done():
            logger.info("Stopping: %d tasks are running", self._engine.load)
            self._engine.stop()
            if self._heartbeat is not None:
                self._heartbeat.beat_now()
            forced = asyncio.create_task(self._force.wait())
            await asyncio.wait(
                [engine, forced], timeout=self._config.drain_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            forced.cancel()
        if not engine.done():
            logger.warning("Ending %d running tasks", self._engine.load)
            self._kill_running()
            await asyncio.wait([engine], timeout=LAST_SETTLE_SECONDS)
        if engine.done():
            engine.result()
        else:
            engine.cancel()
            logger.error("The database cannot be reached; what was running is left to be rescued")

    async def _disowned(self, connection: Connection) -> None:
        """We were declared dead: our tasks have been given away, so what runs them here is ended."""
        logger.error("this worker was declared dead while it was away; going on under another id")
        self._kill_running()
        self._engine.disown()
        owner = self._new_owner()
        await self._register(connection, owner)
        for pool in self._pools:
            pool.work_for(owner.worker_id)
        self._engine.go_on_as(owner)

    def _kill_running(self) -> None:
        for pool in self._pools:
            pool.kill_running()

    async def _resign(self, postgres: PostgresConfig) -> None:
        try:
            async with asyncio.timeout(2):
                async with await connect_worker(postgres, "horsies-worker") as connection:
                    await workers.resign(connection, self._engine.owner.worker_id)
        except TRANSIENT as error:
            logger.warning("could not sign off (%s); the lease will run out by itself", type(error).__name__)

    def _snapshots(self) -> Snapshots:
        setup = setup_of(self._app.config, self._limits(), self._queues, self._pools[0].shape.slots)
        return Snapshots(self._app.config, setup, self._meter, self._activity)

    def _activity(self) -> Activity:
        return Activity(
            worker_id=self._engine.owner.worker_id,
            state=self._engine.state,
            running=self._engine.load,
            claimed=self._engine.claimed,
            at_work=[task for pool in self._pools for task in pool.at_work],
            children=[pid for pool in self._pools for pid in pool.pids],
        )

    def _new_launcher(self) -> Launcher:
        config = self._config
        settings = ChildSettings(
            locator=_locator(self._app, config),
            imports=list(config.imports),
            sys_path=list(sys.path),
            threads=config.threads,
            max_tasks=config.max_tasks_per_child,
            max_memory_mb=config.max_memory_per_child_mb,
            afterlife_seconds=min(MAX_AFTERLIFE_SECONDS, self._lease_seconds / 4),
            loglevel=config.loglevel,
        )
        match config.start_method or ("forkserver" if sys.platform == "linux" else "spawn"):
            case "spawn":
                return SpawnLauncher(settings)
            case "fork":
                return TemplateLauncher(settings, self._app)
            case _:
                return TemplateLauncher(settings)

    def _shapes(self) -> list[Shape]:
        """The pools to have: one for plain tasks, and one for async tasks if the app has any."""
        config = self._config
        kind = ChildKind.SERIAL if config.threads == 1 else ChildKind.THREADS
        shapes = [Shape(kind, config.processes, config.threads)]
        if any(task.definition.is_async for task in self._app.tasks.values()):
            # Where each task is promised a fresh process, it has one to itself.
            width = 1 if config.max_tasks_per_child == 1 else config.async_concurrency
            shapes.append(Shape(ChildKind.ASYNC, config.async_processes, width))
        return shapes

    def _limits(self) -> Limits:
        config = self._config
        return Limits(
            prefetch=prefetch_of(self._app.config, config),
            max_claim_per_worker=config.max_claim_per_worker,
            max_claim_batch=config.max_claim_batch,
            cluster_wide_cap=self._app.config.cluster_wide_cap,
            poll_seconds=self._app.config.resilience.notify_poll_interval_ms / 1000,
            hold_seconds=self._app.config.max_claim_renew_age_ms / 1000,
        )

    def _new_owner(self) -> Owner:
        """A name that was never used before, whatever the host and the process are called."""
        return Owner(uuid4(), socket.gethostname(), f"worker-{os.getpid()}", self._lease_seconds)

    def _registration(self, owner: Owner) -> Registration:
        queues = [queue.name for queue in self._queues]
        return Registration(
            owner.worker_id, owner.hostname, os.getpid(), self._config.processes, queues, owner.lease_seconds
        )

    def _definitions(self) -> list[Definition]:
        tasks = (task.definition for task in self._app.tasks.values())
        return [
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
            )
            for task in tasks
        ]

    def _log_start(self) -> None:
        limits, cap, slots = self._limits(), self._app.config.cluster_wide_cap, self._pools[0].shape.slots
        logger.info("Listening on queues: %s", ", ".join(queue.name for queue in self._queues))
        logger.info(
            "Concurrency config: processes=%d, cluster_wide_cap=%s, max_claim_per_worker=%d, max_claim_batch=%d",
            slots,
            "unlimited" if cap is None else cap,
            limits.max_claim_per_worker or slots + limits.prefetch,
            limits.max_claim_batch,
        )


def prefetch_of(app: AppConfig, config: WorkerConfig) -> int:
    """How many tasks to claim ahead; not within a limit of the cluster, which they would take up."""
    prefetch = app.prefetch_buffer if config.prefetch_buffer is None else config.prefetch_buffer
    if prefetch and app.cluster_wide_cap is not None:
        raise ConfigurationError(
            f"prefetch_buffer is {prefetch} and the app has cluster_wide_cap={app.cluster_wide_cap}",
            code=ErrorCode.CONFIG_INVALID_CLUSTER_CAP,
            help_text="leave prefetch_buffer at 0: prefetched tasks would count against the cap",
        )
    return prefetch


def check_baseline(baseline_mb: float, threshold_mb: int | None) -> None:
    """A child that is over its limit before it has run anything would be replaced after every task."""
    if threshold_mb is None:
        return
    if threshold_mb <= baseline_mb:
        raise ConfigurationError(
            f"max_memory_per_child_mb is {threshold_mb} MB, and a child that has run nothing yet takes {baseline_mb:.0f} MB",
            code=ErrorCode.CONFIG_INVALID_WORKER,
            help_text=f"use more than {baseline_mb / WARN_SHARE:.0f}, or import less",
        )
    if baseline_mb >= WARN_SHARE * threshold_mb:
        logger.warning(
            "a child that has run nothing yet takes %.0f MB, and is replaced at max_memory_per_child_mb=%d: little is left",
            baseline_mb,
            threshold_mb,
        )


def queues_to_serve(app: AppConfig, config: WorkerConfig) -> list[CustomQueueConfig]:
    """The queues that a worker reads, with the settings that it was given for them; it may leave some to others."""
    known = {queue.name: queue for queue in app.queues}
    for setting in ("queues", "queue_priorities", "queue_max_concurrency"):
        for name in getattr(config, setting) or ():
            if name not in known:
                raise ConfigurationError(
                    f"the queue {name!r} in {setting} is not configured",
                    code=ErrorCode.CONFIG_INVALID_WORKER,
                    help_text=f"use one of: {', '.join(known)}",
                )
    return [
        replace(
            known[name],
            priority=config.queue_priorities.get(name, known[name].priority),
            max_concurrency=config.queue_max_concurrency.get(name, known[name].max_concurrency),
        )
        for name in config.queues or known
    ]


def _locator(app: TaskRegistry, config: WorkerConfig) -> str:
    locator = config.app_locator or locate(app)
    if locator is None:
        raise ConfigurationError(
            "no module holds this app, so its child processes could not find it",
            code=ErrorCode.WORKER_INVALID_LOCATOR,
            help_text="assign the app to a name in a module, or pass WorkerConfig(app_locator='package.module:app')",
        )
    return locator
