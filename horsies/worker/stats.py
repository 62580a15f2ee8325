"""Record snapshots of a worker and heartbeats of its long-running tasks, for people who monitor it.

They are written together with the heartbeat of the worker, in the same transaction, so that an idle worker needs no further
round trips. The lease does not depend on them: if they cannot be written quickly, they are skipped and tried again later.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

import psycopg

from horsies.config import AppConfig, CustomQueueConfig, RecoveryConfig
from horsies.db.connection import Connection
from horsies.db.queries import workers
from horsies.db.queries.tasks import Claimed, as_json
from horsies.db.queries.workers import Snapshot, TaskHeartbeat
from horsies.status import WorkerState
from horsies.worker.claim import Limits
from horsies.worker.claim_loop import ClaimLoop

logger = logging.getLogger("horsies.worker")

MAX_TASK_IDS = 100
MAX_CHILDREN = 200
# The time that a heartbeat waits for the measurement and for the write, and the pause before a failed one is repeated.
MEASURE_SECONDS = 0.5
WRITE_MS = 500
RETRY_SECONDS = 2.0
_MB = 1_048_576
_LIMIT_WRITE = f"SET LOCAL statement_timeout = {WRITE_MS}".encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """The activity of a worker at one moment."""

    worker_id: UUID
    state: WorkerState
    running: int
    claimed: int
    at_work: Sequence[Claimed]  # the tasks whose code runs, with the pid of their child
    children: Sequence[int] = ()  # the pids of all children

    @classmethod
    def of(cls, claim_loop: ClaimLoop) -> Activity:
        """Return what a worker is doing now."""
        capacity = claim_loop.trips.capacity
        return cls(
            worker_id=claim_loop.trips.owner.worker_id,
            state=claim_loop.state,
            running=capacity.load,
            claimed=len(capacity.prefetched),
            at_work=[task for pool in capacity.pools for task in pool.at_work],
            children=[pid for pool in capacity.pools for pid in pool.pids],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """CPU and memory of a worker; memory and start time of its child processes by pid."""

    memory_mb: float
    memory_percent: float
    cpu_percent: float
    children_mb: Mapping[int, float]
    children_since: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class StatsRecord:
    """Rows that are to be written now."""

    worker_id: UUID
    snapshot: Snapshot | None
    heartbeats: Sequence[TaskHeartbeat]


class ResourceMeter:
    """Measures this process and its child processes."""

    def __init__(self) -> None:
        import psutil  # imported late: every process that imports an app imports this module, and only workers measure

        self._process = psutil.Process()
        self._process.cpu_percent()  # each call returns the usage since the last one

    def measure(self) -> Usage:
        """Return the current usage. With many processes this takes milliseconds, so call it in a thread."""
        import psutil

        parent = self._process
        children_mb: dict[int, float] = {}
        children_since: dict[int, float] = {}
        for child in parent.children(recursive=True):
            with suppress(
                psutil.NoSuchProcess, psutil.AccessDenied
            ):  # it has ended, or belongs to another user
                memory, since = child.memory_info().rss / _MB, child.create_time()
                children_mb[child.pid], children_since[child.pid] = memory, since
        return Usage(
            memory_mb=parent.memory_info().rss / _MB,
            memory_percent=parent.memory_percent(),
            cpu_percent=parent.cpu_percent(),
            children_mb=children_mb,
            children_since=children_since,
        )


class StatsTimer:
    """Decides when rows are due. The first snapshot is due at once, everything else after its interval."""

    def __init__(self, recovery: RecoveryConfig, now: float) -> None:
        self._snapshot_seconds = recovery.worker_state_snapshot_interval_ms / 1000
        self._heartbeat_seconds = recovery.runner_heartbeat_interval_ms / 1000
        self._snapshot_at = now
        self._heartbeat_at = now + self._heartbeat_seconds
        self._seen: set[tuple[str, int]] = set()  # the runs at the last heartbeat
        self._is_draining = False

    def pause(self, now: float) -> float:
        """Return the seconds until something may be due."""
        return max(0.0, min(self._snapshot_at, self._heartbeat_at) - now)

    def snapshot_failed(self, now: float) -> None:
        """Make the snapshot due again soon: the last one could not be written."""
        self._snapshot_at = min(self._snapshot_at, now + RETRY_SECONDS)

    def is_snapshot_due(self, state: WorkerState, now: float) -> bool:
        """Return True once per interval, and when the worker starts to drain."""
        is_draining = state is WorkerState.DRAINING
        starts_to_drain, self._is_draining = is_draining and not self._is_draining, is_draining
        if now < self._snapshot_at and not starts_to_drain:
            return False
        self._snapshot_at = _next_due(self._snapshot_at, self._snapshot_seconds, now)
        return True

    def long_running(self, at_work: Sequence[Claimed], now: float) -> list[Claimed]:
        """Return, once per interval, the tasks that were already running at the end of the last one."""
        if now < self._heartbeat_at:
            return []
        self._heartbeat_at = _next_due(self._heartbeat_at, self._heartbeat_seconds, now)
        seen, self._seen = self._seen, {(task.id, task.claim_seq) for task in at_work}
        return [task for task in at_work if (task.id, task.claim_seq) in seen]


def _next_due(due_at: float, seconds: float, now: float) -> float:
    """Return the next due time: one interval after the last one, or after now if that has passed.

    Counting from the last due time keeps rows with the same interval together.
    """
    return due_at + seconds if due_at <= now < due_at + seconds else now + seconds


class WorkerStats:
    """Measures a worker when a row is due, and writes the rows."""

    def __init__(
        self,
        config: AppConfig,
        limits: Limits,
        queues: Sequence[CustomQueueConfig],
        slots: int,
        meter: ResourceMeter,
    ) -> None:
        self._config = config
        self._limits = limits
        self._queues = queues
        self._slots = slots
        self._meter = meter
        self._timer = StatsTimer(config.recovery, time.monotonic())

    def pause(self) -> float:
        """Return the seconds until something may be due."""
        return self._timer.pause(time.monotonic())

    async def take(self, activity: Activity) -> StatsRecord | None:
        """Measure the worker and return the rows that are due now, None if there are none."""
        now = time.monotonic()
        is_snapshot_due = self._timer.is_snapshot_due(activity.state, now)
        long_running = self._timer.long_running(activity.at_work, now)
        if not is_snapshot_due and not long_running:
            return None
        try:
            async with asyncio.timeout(MEASURE_SECONDS):
                usage = await asyncio.to_thread(self._meter.measure)
        except TimeoutError:
            logger.warning("Could not measure this worker within %g s", MEASURE_SECONDS)
            self.not_written()
            return None
        return StatsRecord(
            activity.worker_id,
            self.snapshot(activity, usage) if is_snapshot_due else None,
            task_heartbeats(long_running, usage),
        )

    def not_written(self) -> None:
        """Note that the rows returned by `take` were not written."""
        self._timer.snapshot_failed(time.monotonic())

    async def write(self, connection: Connection, record: StatsRecord) -> None:
        """Write rows at the end of the caller's transaction, which is not affected if they cannot be written."""
        try:
            async with connection.transaction():
                await connection.execute(_LIMIT_WRITE)
                if record.snapshot is not None:
                    await workers.insert_snapshot(connection, record.snapshot)
                if record.heartbeats:
                    await workers.insert_task_heartbeats(connection, record.worker_id, record.heartbeats)
        except psycopg.Error as error:
            if connection.closed:
                raise  # otherwise the caller would take its transaction for committed
            logger.warning("Could not write a snapshot of this worker (%s)", type(error).__name__)
            self.not_written()

    def snapshot(self, activity: Activity, usage: Usage) -> Snapshot:
        """Return the row for `horsies_worker_states`. Settings are part of it: they may differ at the next start."""
        return Snapshot(
            worker_id=activity.worker_id,
            state=activity.state,
            max_claim_batch=self._limits.max_claim_batch,
            max_claim_per_worker=self._limits.max_claim_per_worker
            or self._slots + (self._limits.prefetch or 0),
            cluster_wide_cap=self._config.cluster_wide_cap,
            queue_priorities=as_json({queue.name: queue.priority for queue in self._queues}),
            queue_max_concurrency=as_json({queue.name: queue.max_concurrency for queue in self._queues}),
            recovery_config=as_json(self._config.recovery),
            tasks_running=activity.running,
            tasks_claimed=activity.claimed,
            memory_usage_mb=usage.memory_mb,
            memory_percent=usage.memory_percent,
            cpu_percent=usage.cpu_percent,
            children_memory_mb=sum(usage.children_mb.values()),
            current_task_ids=[task.id for task in activity.at_work[:MAX_TASK_IDS]],
            children=as_json(_children(activity, usage)),
        )


def _children(activity: Activity, usage: Usage) -> list[dict[str, object]]:
    """Return the children that still existed when they were measured."""
    return [
        {
            "pid": pid,
            "memory_mb": round(usage.children_mb[pid], 1),
            "started_at": datetime.fromtimestamp(usage.children_since[pid], UTC),
        }
        for pid in activity.children[:MAX_CHILDREN]
        if pid in usage.children_mb
    ]


def task_heartbeats(running: Sequence[Claimed], usage: Usage) -> list[TaskHeartbeat]:
    """Return a heartbeat for each task whose process still existed when it was measured."""
    return [
        TaskHeartbeat(task.id, task.claim_seq, task.pid, usage.children_mb[task.pid])
        for task in running
        if task.pid is not None and task.pid in usage.children_mb
    ]
