"""What there is to see: queues, workers and tasks, as they stand now. It only reads, and locks nothing."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from horsies.storage.database import Connection
from horsies.storage.statements import statements

SQL = statements("monitor")


class QueueState(NamedTuple):
    """How a queue stands. What is pending is due and waits; what is scheduled is not due yet."""

    name: str
    pending: int
    scheduled: int
    claimed: int
    running: int
    failed: int
    oldest_pending_seconds: float | None
    max_concurrency: int | None
    suspended: bool


class WorkerState(NamedTuple):
    """A worker, and what it was like when it last said so."""

    worker_id: str
    hostname: str
    pid: int
    state: str
    queues: list[str]
    processes: int
    tasks_running: int
    current_task_ids: list[str]
    started_at: datetime
    last_beat_at: datetime
    memory_usage_mb: float | None
    children_memory_mb: float | None


class TaskState(NamedTuple):
    """A task as it is recorded; `attempts` is how many there were, the one under way included."""

    task_id: str
    task_name: str
    status: str
    queue_name: str
    priority: int
    retry_count: int
    max_retries: int
    next_retry_at: datetime | None
    sent_at: datetime
    enqueued_at: datetime
    claimed_at: datetime | None
    started_at: datetime | None
    completed_at: datetime | None
    failed_at: datetime | None
    worker_hostname: str | None
    worker_pid: int | None
    worker_process_name: str | None
    error_code: str | None
    failed_reason: str | None
    attempts: int
    message: str | None


class Payload(NamedTuple):
    """What else there is to know of a task: its arguments and result as JSON text, and its limits."""

    args: str | None
    kwargs: str | None
    result: str | None
    good_until: datetime | None
    timeout_ms: int | None
    tags: list[str] | None
    crash_count: int
    worker_id: str | None


class Filter(NamedTuple):
    """Which tasks are meant; None means any."""

    status: str | None = None
    queue: str | None = None
    name: str | None = None
    code: str | None = None


async def queues(connection: Connection) -> list[QueueState]:
    return [QueueState._make(row) for row in await _rows(connection, "queues", {})]


async def workers(connection: Connection) -> list[WorkerState]:
    return [WorkerState._make(row) for row in await _rows(connection, "workers", {})]


async def tasks(
    connection: Connection, wanted: Filter, limit: int, before: UUID | None = None
) -> list[TaskState]:
    """The tasks sent last; with `before`, those sent before that one."""
    values = wanted._asdict() | {"limit": limit, "before": before}
    return [TaskState._make(row) for row in await _rows(connection, "tasks", values)]


async def failures(connection: Connection, wanted: Filter, limit: int) -> list[TaskState]:
    """The tasks that failed last."""
    values = wanted._asdict() | {"limit": limit}
    return [TaskState._make(row) for row in await _rows(connection, "failures", values)]


async def task(connection: Connection, task_id: UUID) -> tuple[TaskState, Payload] | None:
    """One task in full, or None if there is none."""
    for row in await _rows(connection, "task", {"id": task_id}):
        width = len(TaskState._fields)
        return TaskState._make(row[:width]), Payload._make(row[width:])
    return None


async def _rows(connection: Connection, statement: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
    return await (await connection.execute(SQL[statement], values)).fetchall()
