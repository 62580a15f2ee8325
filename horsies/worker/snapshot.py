"""Write down what a worker does, for people who watch it: how it is, what it uses, which tasks have run for long.

It goes along with a beat, in the same transaction, so that an idle worker asks the server for nothing more. The lease does
not depend on it: what cannot be written within a moment is not written, and tried again a little later.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

import psycopg

from horsies.config import AppConfig, CustomQueueConfig, RecoveryConfig
from horsies.status import WorkerState
from horsies.storage import states
from horsies.storage.database import Connection
from horsies.storage.states import Pulse, Snapshot
from horsies.storage.tasks import Claimed, as_json
from horsies.worker.capacity import Limits

logger = logging.getLogger("horsies.worker")

MAX_TASK_IDS = 100
MAX_CHILDREN = 200
# How long a beat waits for the record, and how soon what could not be written is tried again.
MEASURE_SECONDS = 0.5
WRITE_MS = 500
AGAIN_SECONDS = 2.0
_MB = 1_048_576
_SOON = f"SET LOCAL statement_timeout = {WRITE_MS}".encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a worker was started with; rows repeat it, for it may differ at the next start."""

    max_claim_batch: int
    max_claim_per_worker: int
    cluster_wide_cap: int | None
    queue_priorities: str
    queue_max_concurrency: str
    recovery_config: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What a worker does at one moment."""

    worker_id: UUID
    state: WorkerState
    running: int
    claimed: int
    at_work: Sequence[Claimed]  # those whose code runs, each with the pid of its child
    children: Sequence[int] = ()  # the pids of all children


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a worker's processes use; of its descendants, by pid, the memory and since when they are there."""

    memory_mb: float
    memory_percent: float
    cpu_percent: float
    children_mb: Mapping[int, float]
    children_since: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Due:
    """What is to be done now."""

    snapshot: bool
    lasting: Sequence[Claimed]  # the tasks that have been running since the last beat

    def __bool__(self) -> bool:
        return self.snapshot or bool(self.lasting)


def setup_of(config: AppConfig, limits: Limits, queues: Sequence[CustomQueueConfig], slots: int) -> Setup:
    return Setup(
        max_claim_batch=limits.max_claim_batch,
        max_claim_per_worker=limits.max_claim_per_worker or slots + limits.prefetch,
        cluster_wide_cap=config.cluster_wide_cap,
        queue_priorities=as_json({queue.name: queue.priority for queue in queues}),
        queue_max_concurrency=as_json({queue.name: queue.max_concurrency for queue in queues}),
        recovery_config=as_json(config.recovery),
    )


def snapshot_of(setup: Setup, activity: Activity, usage: Usage) -> Snapshot:
    return Snapshot(
        worker_id=activity.worker_id,
        state=activity.state,
        max_claim_batch=setup.max_claim_batch,
        max_claim_per_worker=setup.max_claim_per_worker,
        cluster_wide_cap=setup.cluster_wide_cap,
        queue_priorities=setup.queue_priorities,
        queue_max_concurrency=setup.queue_max_concurrency,
        recovery_config=setup.recovery_config,
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
    """Those that were still there when they were looked for."""
    return [
        {
            "pid": pid,
            "memory_mb": round(usage.children_mb[pid], 1),
            "started_at": datetime.fromtimestamp(usage.children_since[pid], UTC),
        }
        for pid in activity.children[:MAX_CHILDREN]
        if pid in usage.children_mb
    ]


def pulses_of(lasting: Sequence[Claimed], usage: Usage) -> list[Pulse]:
    """A sign of life for each task whose process was still there when it was looked for."""
    return [
        Pulse(task.id, task.claim_seq, task.pid, usage.children_mb[task.pid])
        for task in lasting
        if task.pid is not None and task.pid in usage.children_mb
    ]


class Agenda:
    """Decides only; the caller measures and writes. A snapshot is due at once, all else after its interval."""

    def __init__(self, recovery: RecoveryConfig, now: float) -> None:
        self._snapshot_seconds = recovery.worker_state_snapshot_interval_ms / 1000
        self._beat_seconds = recovery.runner_heartbeat_interval_ms / 1000
        self._snapshot_at = now
        self._beat_at = now + self._beat_seconds
        self._seen: set[tuple[str, int]] = set()
        self._drains = False

    def due(self, activity: Activity, now: float) -> Due:
        return Due(
            self._is_snapshot_due(activity.state, now),
            self._lasting(activity.at_work, now),
        )

    def pause(self, now: float) -> float:
        """Seconds until something may be due."""
        return max(0.0, min(self._snapshot_at, self._beat_at) - now)

    def missed(self, now: float) -> None:
        """The snapshot that was due could not be written."""
        self._snapshot_at = min(self._snapshot_at, now + AGAIN_SECONDS)

    def _is_snapshot_due(self, state: WorkerState, now: float) -> bool:
        """At its time, and when the worker begins to drain."""
        drains = state is WorkerState.DRAINING
        begins_to_drain, self._drains = drains and not self._drains, drains
        if now < self._snapshot_at and not begins_to_drain:
            return False
        self._snapshot_at = _next(self._snapshot_at, self._snapshot_seconds, now)
        return True

    def _lasting(self, at_work: Sequence[Claimed], now: float) -> list[Claimed]:
        """At a beat, the runs that were seen at the one before."""
        if now < self._beat_at:
            return []
        self._beat_at = _next(self._beat_at, self._beat_seconds, now)
        seen, self._seen = self._seen, {(task.id, task.claim_seq) for task in at_work}
        return [task for task in at_work if (task.id, task.claim_seq) in seen]


def _next(due_at: float, seconds: float, now: float) -> float:
    """When what was due is due again: so long after it was, and not after now, so that what has one interval stays together."""
    return due_at + seconds if due_at <= now < due_at + seconds else now + seconds


class Meter:
    """Asks the operating system what this process and its descendants use."""

    def __init__(self) -> None:
        self._measured_at = time.monotonic()
        self._cpu_seconds = time.process_time()

    def measure(self) -> Usage:
        """Takes milliseconds when there are many processes: not for an event loop."""
        import psutil  # this module is imported wherever an app is, and only the parent of a worker measures

        parent = psutil.Process()
        children_mb: dict[int, float] = {}
        children_since: dict[int, float] = {}
        for child in parent.children(recursive=True):
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):  # it has ended, or is another user's
                memory, since = child.memory_info().rss / _MB, child.create_time()
                children_mb[child.pid], children_since[child.pid] = memory, since
        return Usage(
            memory_mb=parent.memory_info().rss / _MB,
            memory_percent=parent.memory_percent(),
            cpu_percent=self._cpu_percent(),
            children_mb=children_mb,
            children_since=children_since,
        )

    def _cpu_percent(self) -> float:
        """Of one CPU, since the last time that this was asked for."""
        now, spent = time.monotonic(), time.process_time()
        elapsed, used = now - self._measured_at, spent - self._cpu_seconds
        self._measured_at, self._cpu_seconds = now, spent
        return 100 * used / elapsed if elapsed > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Record:
    """What is to be written down now."""

    due: Due
    activity: Activity
    usage: Usage


class Snapshots:
    """Keeps the record, for whoever has a connection and something else to say."""

    def __init__(
        self,
        config: AppConfig,
        setup: Setup,
        meter: Meter,
        activity: Callable[[], Activity],
    ) -> None:
        self._agenda = Agenda(config.recovery, time.monotonic())
        self._setup = setup
        self._meter = meter
        self._activity = activity

    def pause(self) -> float:
        """Seconds until something may be due."""
        return self._agenda.pause(time.monotonic())

    async def take(self) -> Record | None:
        """What is due now, if anything."""
        activity = self._activity()
        due = self._agenda.due(activity, time.monotonic())
        if not due:
            return None
        try:
            async with asyncio.timeout(MEASURE_SECONDS):
                return Record(due, activity, await asyncio.to_thread(self._meter.measure))
        except TimeoutError:
            logger.warning("could not measure this worker within %g s", MEASURE_SECONDS)
            self.missed()
            return None

    def missed(self) -> None:
        """What was taken has not been written."""
        self._agenda.missed(time.monotonic())

    async def write(self, connection: Connection, record: Record) -> None:
        """At the end of the caller's transaction, of which nothing is lost if this cannot be written."""
        try:
            async with connection.transaction():
                await connection.execute(_SOON)
                if record.due.snapshot:
                    await states.snapshot(connection, snapshot_of(self._setup, record.activity, record.usage))
                if pulses := pulses_of(record.due.lasting, record.usage):
                    await states.pulse(connection, record.activity.worker_id, pulses)
        except psycopg.Error as error:
            if connection.closed:
                raise  # else the transaction would be taken to have been committed
            logger.warning("could not write down this worker's state (%s)", type(error).__name__)
            self.missed()
