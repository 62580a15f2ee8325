"""A worker, from start to stop.

The children are started before any connection is opened. Then the worker migrates the schema, registers and listens. The
first call to `stop` lets running tasks end and releases all others; a second one kills the running tasks.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from horsies.client import resolve
from horsies.config import AppConfig, CustomQueueConfig, PostgresConfig, WorkerConfig, schema_of
from horsies.db.connection import TRANSIENT, Connection, connect_worker, reconnect_delay
from horsies.db.listener import Listener
from horsies.db.migrations import migrate
from horsies.db.queries.tasks import queue_channel
from horsies.discovery import import_modules, locate, refuse_while_loading
from horsies.errors import ConfigurationError, ErrorCode, ValidationReport
from horsies.event_loop import cancel_and_wait
from horsies.executor.forkserver import ForkServer, Launcher, SpawnLauncher
from horsies.executor.pool import ChildPool, Shape
from horsies.executor.protocol import ChildKind, ChildSettings
from horsies.middleware import FLUSH_SECONDS
from horsies.registry import TaskRegistry
from horsies.schedule.scheduler import Scheduler
from horsies.units import counted
from horsies.validation import handler_problems
from horsies.worker.claim import Limits
from horsies.worker.claim_loop import ClaimLoop
from horsies.worker.greeting import NO_TASKS, describe_limits, describe_tasks
from horsies.worker.health import Health, WorkerStatus, notify_systemd
from horsies.worker.heartbeat import Heartbeat, new_owner
from horsies.worker.pacing import POLL_SPREAD
from horsies.worker.retention import run_retention
from horsies.worker.round_trips import RoundTrips
from horsies.worker.stats import ResourceMeter, WorkerStats
from horsies.worker.steps import StepWriter
from horsies.worker.task_output import TaskOutputWriter

logger = logging.getLogger("horsies.worker")

# Operators notify workers on this channel.
CONTROL = "horsies_control"
LAST_SETTLE_SECONDS = 10.0
# A listener that has received nothing for so long is checked; if it is deaf, polls find the tasks meanwhile.
LISTENER_CHECK_SECONDS = 300.0
# No child outlives its worker for longer.
MAX_ORPHAN_SECONDS = 1.5
# Warn if a new child already uses this share of the memory that it may use.
WARN_SHARE = 0.8
# By default a child is replaced after so many tasks, but not before this time: forking 100 children a second takes a core.
DEFAULT_TASKS_PER_CHILD, DEFAULT_CHILD_SECONDS = 100, 1.0


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
        self._limits = limits_of(app.config, config)
        self._stop = asyncio.Event()
        self._force = asyncio.Event()
        self._turned_at = time.monotonic()
        lease_seconds = app.config.effective_claim_lease_ms / 1000
        self._task_output = TaskOutputWriter()
        self._steps = StepWriter()
        self._launcher = launcher_of(app, config, lease_seconds)
        self._pools = [
            ChildPool(
                shape,
                self._launcher,
                self._task_output,
                self._steps,
                app.config.default_task_timeout_ms,
                app.config.cancel_grace_ms / 1000,
                FLUSH_SECONDS if app.middleware else 0,
            )
            for shape in shapes_of(app, config)
        ]
        self._trips = RoundTrips(app, self._limits, new_owner(lease_seconds), self._queues, self._pools)
        self._claim_loop = ClaimLoop(self._trips)
        self._event_hooks = self._trips.settler.event_hooks
        stats = WorkerStats(
            app.config, self._limits, self._queues, self._pools[0].shape.slots, ResourceMeter()
        )
        self._heartbeat = Heartbeat(app, config, self._queues, self._claim_loop, stats)
        self._scheduler = Scheduler(app) if config.with_scheduler else None
        self._health = Health(self._status)

    def stop(self) -> None:
        """Stop when running tasks have ended. Called again, kill the running tasks."""
        if self._stop.is_set():
            self._force.set()
        self._stop.set()

    async def run(self) -> None:
        """Work until stopped; raise the error that makes it impossible to go on."""
        try:
            await asyncio.gather(*(pool.start(self._claim_loop) for pool in self._pools))
            check_baseline(
                max(pool.baseline_mb for pool in self._pools), self._config.max_memory_per_child_mb
            )
            self._turned_at = time.monotonic()
            self._health.start(self._config.health_host, self._config.health_port)
            self._event_hooks.start(lambda: str(self._trips.owner.worker_id))
            if self._config.dsn is None:
                postgres = await asyncio.to_thread(resolve, self._app.config)
            else:
                postgres = PostgresConfig(database_url=self._config.dsn, schema=schema_of(self._app.config))
            for pool in self._pools:
                pool.set_identity(postgres, self._trips.owner.worker_id)
            joining = asyncio.create_task(self._join_cluster(postgres))
            await wait_for_first(self._stop, joining)
            if joining.done():
                joining.result()
                await self._work(postgres)
            else:
                await cancel_and_wait(joining)
        finally:
            await asyncio.to_thread(self._event_hooks.close)
            await asyncio.to_thread(self._health.close)
            await asyncio.gather(*(pool.close() for pool in self._pools))
            await self._launcher.close()

    def _status(self) -> WorkerStatus:
        """Return the facts for health checks. Between two tries to connect, a loop waits as long as the settings say."""
        resilience = self._app.config.resilience
        waits = (
            resilience.notify_poll_interval_ms * POLL_SPREAD,
            resilience.db_retry_max_ms,
            self._app.config.claim_renew_interval_ms,
        )
        return WorkerStatus(
            claim_loop_at=max(self._turned_at, self._claim_loop.turned_at),
            heartbeat_at=self._heartbeat.turned_at or self._turned_at,
            longest_wait=max(waits) / 1000,
            holds_lease=self._heartbeat.holds_lease,
            is_stopping=self._stop.is_set(),
        )

    # Start

    async def _join_cluster(self, postgres: PostgresConfig) -> None:
        """Migrate the schema and register, however long the database takes to come up."""
        attempt = 0
        while True:
            try:
                applied = await migrate(postgres)
                if applied:
                    logger.info("Schema created or upgraded (%s)", counted(applied, "migration"))
                async with await connect_worker(postgres, "horsies-worker") as connection:
                    await self._heartbeat.register(connection, self._trips.owner)
                return
            except TRANSIENT as error:
                await self._wait_or_raise(error, attempt, postgres)
                attempt += 1

    async def _wait_or_raise(self, error: BaseException, attempt: int, postgres: PostgresConfig) -> None:
        """Wait before the next try to connect; raise if another try would not help."""
        self._turned_at = time.monotonic()
        await asyncio.sleep(reconnect_delay(error, attempt, postgres, self._app.config.resilience, logger))

    def _log_start(self) -> None:
        limits, cap, slots = self._limits, self._app.config.cluster_wide_cap, self._pools[0].shape.slots
        logger.info("%s", describe_tasks(self._app))
        if not self._app.tasks:
            logger.warning("%s", NO_TASKS)
        logger.info("Limits:\n%s", "\n".join(describe_limits(self._app, self._config, limits, self._queues)))
        logger.info("Listening on queues: %s", ", ".join(queue.name for queue in self._queues))
        logger.info(
            "Concurrency config: processes=%d, cluster_wide_cap=%s, max_claim_per_worker=%d, max_claim_batch=%d",
            slots,
            "unlimited" if cap is None else cap,
            limits.max_claim_per_worker or slots + (limits.prefetch or 0),
            limits.max_claim_batch,
        )

    # Work

    async def _work(self, postgres: PostgresConfig) -> None:
        """Claim and run tasks until stopped, then let running tasks end."""
        listener = Listener(
            postgres,
            [CONTROL, *(queue_channel(queue.name) for queue in self._queues)],
            on_notify=self._notified,
            on_connected=self._claim_loop.claim_soon,
            missed=lambda: self._trips.sleeper.poll_policy.missed_notifications,
            check_seconds=LISTENER_CHECK_SECONDS,
        )
        listener.start()
        claim_loop = asyncio.create_task(
            self._keep_connected(postgres, self._claim_loop.run), name="horsies-claim-loop"
        )
        services = self._start_services(postgres)
        self._log_start()
        notify_systemd("READY=1")
        try:
            await wait_for_first(self._stop, claim_loop, *services, *(pool.failed for pool in self._pools))
            notify_systemd("STOPPING=1")
            await self._drain(claim_loop)
        finally:
            ended = [task for task in services if task.done()]
            await asyncio.gather(cancel_and_wait(*services), listener.close())
            await self._task_output.close(postgres)
            await self._heartbeat.deregister(postgres)
        for pool in self._pools:
            if pool.failed.done():
                raise pool.failed.result()
        for task in ended:  # not those that were cancelled: cancelling a statement may have made them fail
            task.result()

    def _start_services(self, postgres: PostgresConfig) -> list[asyncio.Task[None]]:
        """Start the tasks that run beside the claim loop."""
        services = {
            "horsies-helper": self._keep_connected(postgres, self._claim_loop.assist),
            "horsies-heartbeat": self._heartbeat.run(postgres),
            "horsies-retention": run_retention(
                postgres, self._app.config.retention, lambda: self._heartbeat.leads
            ),
            "horsies-task-output": self._task_output.run(postgres),
            "horsies-steps": self._steps.run(postgres),
        }
        if self._scheduler is not None:
            services["horsies-scheduler"] = self._scheduler.run(postgres)
        return [asyncio.create_task(service, name=name) for name, service in services.items()]

    def _notified(self, channel: str, payload: str) -> None:
        """Handle a notification: a queue may have new tasks, or an operator has acted on one worker or on all."""
        if channel != CONTROL:
            self._claim_loop.claim_soon()
        elif payload in ("", str(self._trips.owner.worker_id)):
            self._heartbeat.beat_now()

    async def _keep_connected(
        self, postgres: PostgresConfig, work: Callable[[Connection], Awaitable[None]]
    ) -> None:
        """Do some work over a connection; open a new one whenever it is lost."""
        attempt = session = 0
        while True:
            try:
                async with await connect_worker(postgres, "horsies-worker") as connection:
                    attempt, session = 0, connection.info.backend_pid
                    with self._trips.working_on(connection):
                        await work(connection)
                    return
            except TRANSIENT as error:
                if session:
                    self._trips.holdings.session_lost(session)
                await self._wait_or_raise(error, attempt, postgres)
                attempt += 1

    # Stop

    async def _drain(self, claim_loop: asyncio.Task[None]) -> None:
        """Release tasks that have not started and wait for running ones; kill those that take too long."""
        if not claim_loop.done():
            logger.info("Stopping: %s", describe_drain(self._trips.capacity.load, self._config.drain_seconds))
            self._claim_loop.stop()
            self._steps.stop()
            self._heartbeat.beat_now()
            await wait_for_first(self._force, claim_loop, seconds=self._config.drain_seconds)
        if not claim_loop.done():
            logger.warning("Killing %s", counted(self._trips.capacity.load, "running task"))
            why = describe_kill(self._force.is_set(), self._config.drain_seconds)
            for pool in self._pools:
                pool.kill_running(why)
            await asyncio.wait([claim_loop], timeout=LAST_SETTLE_SECONDS)
        if claim_loop.done():
            claim_loop.result()
        else:
            claim_loop.cancel()
            logger.error("The database cannot be reached; another worker will rescue the tasks of this one")
        logger.info("Stopped")


async def wait_for_first(
    event: asyncio.Event, *work: asyncio.Future[Any], seconds: float | None = None
) -> None:
    """Wait until the event is set, one of the futures is done, or the time is over."""
    is_set = asyncio.create_task(event.wait())
    await asyncio.wait([*work, is_set], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    is_set.cancel()


def describe_drain(running: int, seconds: float) -> str:
    """Return what a stopping worker waits for."""
    if not running:
        return "no task is running"
    them = "it" if running == 1 else "them"
    tasks = counted(running, "running task")
    return f"waiting up to {seconds:g} s for {tasks} (Ctrl-C again to kill {them})"


def describe_kill(is_forced: bool, drain_seconds: float) -> str:
    """Return why a stopping worker kills the tasks that still run, as their failures record it."""
    if is_forced:
        return "the worker was stopped and killed this task, because it was told to stop a second time"
    return f"the worker was stopped and killed this task, which did not end within {drain_seconds:g} s (drain_seconds)"


def launcher_of(app: TaskRegistry, config: WorkerConfig, lease_seconds: float) -> Launcher:
    """Return the launcher of child processes for the configured start method."""
    locator = config.app_locator or locate(app)
    if locator is None:
        raise ConfigurationError(
            "no module holds this app, so its child processes could not find it",
            code=ErrorCode.WORKER_INVALID_LOCATOR,
            help_text="assign the app to a name in a module, or pass WorkerConfig(app_locator='package.module:app')",
        )
    settings = ChildSettings(
        locator=locator,
        imports=list(config.imports),
        sys_path=list(sys.path),
        threads=config.threads,
        max_tasks=DEFAULT_TASKS_PER_CHILD
        if config.max_tasks_per_child is None
        else config.max_tasks_per_child,
        min_seconds=DEFAULT_CHILD_SECONDS if config.max_tasks_per_child is None else 0.0,
        max_memory_mb=config.max_memory_per_child_mb,
        orphan_seconds=min(MAX_ORPHAN_SECONDS, lease_seconds / 4),
        loglevel=config.loglevel,
    )
    match config.start_method or ("forkserver" if sys.platform == "linux" else "spawn"):
        case "spawn":
            return SpawnLauncher(settings)
        case "fork":
            return ForkServer(settings, app)
        case _:
            return ForkServer(settings)


def shapes_of(app: TaskRegistry, config: WorkerConfig) -> list[Shape]:
    """Return the pools of a worker: one for plain tasks, and one for async tasks if the app has any."""
    kind = ChildKind.SERIAL if config.threads == 1 else ChildKind.THREADS
    shapes = [Shape(kind, config.processes, config.threads)]
    if any(task.definition.is_async for task in app.tasks.values()):
        # With max_tasks_per_child=1 each task gets a fresh process of its own.
        width = 1 if config.max_tasks_per_child == 1 else config.async_concurrency
        shapes.append(Shape(ChildKind.ASYNC, config.async_processes, width))
    return shapes


def limits_of(app: AppConfig, config: WorkerConfig) -> Limits:
    """Return how much a worker may claim; raise if it would prefetch tasks that count against a cluster-wide cap."""
    prefetch = app.prefetch_buffer if config.prefetch_buffer is None else config.prefetch_buffer
    if prefetch and app.cluster_wide_cap is not None:
        raise ConfigurationError(
            f"prefetch_buffer is {prefetch} and the app has cluster_wide_cap={app.cluster_wide_cap}",
            code=ErrorCode.CONFIG_INVALID_CLUSTER_CAP,
            help_text="leave prefetch_buffer at 0: prefetched tasks would count against the cap",
        )
    return Limits(
        prefetch=prefetch,
        max_claim_per_worker=config.max_claim_per_worker,
        max_claim_batch=config.max_claim_batch,
        cluster_wide_cap=app.cluster_wide_cap,
        poll_seconds=app.resilience.notify_poll_interval_ms / 1000,
        hold_seconds=app.max_claim_renew_age_ms / 1000,
    )


def check_baseline(baseline_mb: float, threshold_mb: int | None) -> None:
    """Raise if a new child already exceeds its memory limit: it would be replaced after every task."""
    if threshold_mb is None:
        return
    if threshold_mb <= baseline_mb:
        raise ConfigurationError(
            f"max_memory_per_child_mb is {threshold_mb} MB, but a child uses {baseline_mb:.0f} MB before its first task",
            code=ErrorCode.CONFIG_INVALID_WORKER,
            help_text=f"use more than {baseline_mb / WARN_SHARE:.0f}, or import less",
        )
    if baseline_mb >= WARN_SHARE * threshold_mb:
        logger.warning(
            "A child uses %.0f MB before its first task and is replaced at max_memory_per_child_mb=%d: little is left",
            baseline_mb,
            threshold_mb,
        )


def queues_to_serve(app: AppConfig, config: WorkerConfig) -> list[CustomQueueConfig]:
    """Return the queues that a worker serves, with its own settings for them."""
    known = {queue.name: queue for queue in app.all_queues}
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
