"""What there is to see on the dashboard, as facts."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

ABOVE_ALL = UUID(int=(1 << 128) - 1)


class Slot(NamedTuple):
    """What ended within a short time. The histograms count tasks by how long they waited and ran."""

    at: datetime
    completed: int
    failed: int
    other: int
    waits: list[int] | None
    runs: list[int] | None


class Depth(NamedTuple):
    at: datetime
    pending: int
    running: int


class Busy(NamedTuple):
    """What ended of one task in one queue."""

    queue_name: str
    task_name: str
    completed: int
    failed: int
    other: int
    run_ms: int


class Queue(NamedTuple):
    """How a queue stands. When it `is_deep`, not all was looked at, and `sounded` is what was counted last, if anything."""

    name: str
    pending: int
    scheduled: int
    claimed: int
    running: int
    oldest_pending_seconds: float | None
    is_deep: bool
    sounded: int | None
    sounded_oldest_seconds: float | None
    max_concurrency: int | None
    suspended_by: str | None
    workers: int

    @property
    def waiting(self) -> int:
        """How many tasks are due and wait, as far as that is known."""
        return self.sounded or self.pending

    @property
    def oldest_seconds(self) -> float:
        """How long the oldest of them has been due."""
        return self.sounded_oldest_seconds or self.oldest_pending_seconds or 0.0


class Worker(NamedTuple):
    """A worker, and what it was like when it last said so."""

    worker_id: str
    hostname: str
    pid: int
    state: str
    queues: list[str]
    processes: int
    started_at: datetime
    last_beat_at: datetime
    memory_usage_mb: float | None
    children_memory_mb: float | None
    cpu_percent: float | None
    tasks_running: int | None
    children: list[dict[str, Any]]  # `pid`, `memory_mb` and `started_at` of each, as they were then


class Child(NamedTuple):
    """A task that runs, and the process it runs in."""

    task_id: str
    task_name: str
    queue_name: str
    worker_id: str
    pid: int | None
    started_at: datetime | None
    memory_mb: float | None


class TaskLine(NamedTuple):
    """A task as lists show it."""

    task_id: str
    task_name: str
    status: str
    queue_name: str
    priority: int
    attempts: int
    max_retries: int
    sent_at: datetime
    enqueued_at: datetime
    started_at: datetime | None
    terminal_at: datetime | None
    error_code: str | None
    arguments: str | None
    workflow_id: str | None


class TaskDetail(NamedTuple):
    """The rest of a task. Of arguments and result there is what a page shows, and how long the whole is."""

    retry_count: int
    next_retry_at: datetime | None
    claimed_at: datetime | None
    good_until: datetime | None
    timeout_ms: int | None
    tags: list[str] | None
    is_async: bool
    crash_count: int
    unique_key: str | None
    failed_reason: str | None
    worker_id: str | None
    worker_hostname: str | None
    worker_pid: int | None
    worker_process_name: str | None
    claim_seq: int
    cancel_asked_at: datetime | None
    args: str | None
    args_length: int | None
    kwargs: str | None
    kwargs_length: int | None
    result: str | None
    result_length: int | None


class Attempt(NamedTuple):
    attempt: int
    outcome: str
    started_at: datetime | None
    finished_at: datetime | None
    error_code: str | None
    error_message: str | None
    failed_reason: str | None
    worker_hostname: str | None
    worker_pid: int | None
    requeued_at: datetime | None
    traceback: str | None


class Wanted(NamedTuple):
    """Which tasks are meant; None means any. `q` is looked for in names, arguments and codes."""

    status: str | None = None
    queue: str | None = None
    name: str | None = None
    code: str | None = None
    q: str | None = None


class Place(NamedTuple):
    """Where in the list a page begins: after this task, and, among failures, after this moment."""

    before: UUID = ABOVE_ALL
    ended: str = "infinity"


class TaskPage(NamedTuple):
    """Tasks that fit, and where to go on: None at the end. `looked_back_to` is set when it gave up before the page was full."""

    tasks: list[TaskLine]
    next: Place | None
    looked_back_to: datetime | None


class Flow(NamedTuple):
    """A workflow as lists show it."""

    workflow_id: str
    name: str
    status: str
    sent_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    definition_key: str
    parent_workflow_id: str | None
    error: str | None
    total: int
    completed: int
    failed: int
    running: int


class FlowDetail(NamedTuple):
    workflow_id: str
    name: str
    status: str
    sent_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    definition_key: str
    parent_workflow_id: str | None
    error: str | None
    deadline_at: datetime | None
    on_error: str


class Node(NamedTuple):
    """A node of a workflow."""

    task_index: int
    node_id: str
    kind: str
    name: str
    status: str
    task_id: str | None
    sub_workflow_id: str | None
    dependencies: list[int]
    started_at: datetime | None
    completed_at: datetime | None
    due_at: datetime | None


class Act(NamedTuple):
    acted_at: datetime
    actor: str
    action: str
    subject: str
    tasks: int


# The ways in which tasks end, as `Total` counts them.
ENDS = ("completed", "failed", "cancelled", "expired")


class Total(NamedTuple):
    """What ended of one task in one queue since counting began."""

    queue_name: str
    task_name: str
    completed: int
    failed: int
    cancelled: int
    expired: int
    wait_ms: int
    run_ms: int
    waits: list[int]
    runs: list[int]
