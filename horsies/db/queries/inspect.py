"""Read tasks, attempts, queues, workers and workflows, for people and programs that look at a running system.

The CLI, `horsies top`, the dashboard with its API, the metrics, the Django backend and `TaskHandle.info()` all read here. The
statements are plain SELECTs that take no locks. Lists walk an index and read a bounded number of rows, so that their cost does
not depend on the number of tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from psycopg.rows import class_row, dict_row

from horsies.codec.results import STORED_SHOWN, error_of
from horsies.db.connection import Connection
from horsies.db.ids import LONG_AGO, not_before
from horsies.db.queries import steps
from horsies.db.queries.steps import Called, Caller, SignalRow, StepRow
from horsies.db.queries.tasks import TaskLogLine, TaskProgress, log_lines, progress
from horsies.db.queries.why import MOST_AHEAD, WaitingFacts, reasons_of
from horsies.db.sql import statements
from horsies.redaction import Redactor

SQL = statements("inspect")
T = TypeVar("T")

# The number of tasks of a queue that are counted. For a deeper queue, the count of the last minute is shown.
MOST_COUNTED = 10_000
# The number of rows that one page reads to find those that match its filter.
MOST_READ = 20_000
# The number of nodes of a workflow that are listed.
MOST_NODES = 2_000
# As a number of characters: the whole text.
WHOLE = 2**31 - 1
# The planner has no statistics of the queues and takes each for a small one. It would read a deep queue as a whole and sort it,
# 700 ms for 300,000 tasks, where the index for claims has the first rows in order.
IN_INDEX_ORDER = b"SET LOCAL enable_bitmapscan = off"
FIRST_ID, LAST_ID = UUID(int=0), UUID(int=(1 << 128) - 1)
_LIVE_STATUSES = ("PENDING", "CLAIMED", "RUNNING")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """A task in a list. `attempts` counts all attempts, the running one included; `arguments` is the beginning of `kwargs`.

    `failed_reason` and `message`, the message of the stored error, are read on request only.
    """

    task_id: str
    task_name: str
    status: str
    queue_name: str
    priority: int
    retry_count: int
    max_retries: int
    attempts: int
    next_retry_at: datetime | None
    sent_at: datetime
    enqueued_at: datetime
    claimed_at: datetime | None
    started_at: datetime | None
    completed_at: datetime | None
    failed_at: datetime | None
    terminal_at: datetime | None
    worker_hostname: str | None
    worker_pid: int | None
    worker_process_name: str | None
    error_code: str | None
    workflow_id: str | None
    arguments: str | None
    failed_reason: str | None
    message: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDetail(TaskRow):
    """One task with everything that is stored of it. Texts may be cut; the lengths are those of the whole texts."""

    good_until: datetime | None
    timeout_ms: int | None
    tags: list[str] | None
    is_async: bool
    crash_count: int
    unique_key: str | None
    worker_id: str | None
    claim_seq: int
    cancel_asked_at: datetime | None
    args: str | None
    args_length: int | None
    kwargs: str | None
    kwargs_length: int | None
    result: str | None
    result_length: int | None


class Attempt(NamedTuple):
    """One run of a task. The outcome of the last attempt is the status of the task, which may still be RUNNING."""

    attempt: int
    outcome: str
    will_retry: bool
    started_at: datetime | None
    finished_at: datetime | None
    error_code: str | None
    error_message: str | None
    failed_reason: str | None
    worker_id: str | None
    worker_hostname: str | None
    worker_pid: int | None
    worker_process_name: str | None
    requeued_at: datetime | None
    traceback: str | None


class FullTask(NamedTuple):
    """A task with its attempts, the reasons why it is not running, its progress, its log and its steps.

    `caller` is the task that has called it, and `called` has the tasks that its steps have called.
    """

    task: TaskDetail
    attempts: list[Attempt]
    reasons: list[str]
    progress: TaskProgress | None
    logs: list[TaskLogLine]
    steps: Sequence[StepRow] = ()
    signals: Sequence[SignalRow] = ()
    caller: Caller | None = None
    called: Sequence[Called] = ()


class TaskFilter(NamedTuple):
    """The tasks to list: those that match every field that is not None.

    `q` is a text in names, arguments or error codes, `kind` the digest of a kind of error message.
    """

    status: str | None = None
    queue: str | None = None
    name: str | None = None
    code: str | None = None
    q: str | None = None
    key: str | None = None
    kind: str | None = None


class PageStart(NamedTuple):
    """The start of a page of a list: after this task and, in a list of failures, after this time."""

    before: UUID = LAST_ID
    ended: str = "infinity"


class Since(NamedTuple):
    """The oldest task that a list goes back to: the lowest id and the earliest failure."""

    after: UUID = FIRST_ID
    since: datetime = LONG_AGO


FIRST_PAGE, ALL_TIME = PageStart(), Since()


class TaskPage(NamedTuple):
    """Matching tasks and the start of the next page, None at the end of the list.

    `looked_back_to` is set if the page is not full because it has read as many rows as one page may. A page that starts at
    `pin` has the same first task, whatever is sent meanwhile.
    """

    tasks: list[TaskRow]
    next: PageStart | None
    looked_back_to: datetime | None
    pin: PageStart | None = None


class TaskOrder(NamedTuple):
    """The order of a list of tasks that no index has: a key of `SORTS`, ascending unless `descending`."""

    sort: str
    descending: bool


SORTS = ("run", "wait", "ended", "sent", "attempts", "priority", "task", "queue", "status", "error")


class FailureGroup(NamedTuple):
    """Failures with the same error code, task and kind of message, in one of the parts of a time span."""

    error_code: str | None
    task_name: str
    kind: str
    digest: str
    part: int
    tasks: int
    retryable: int
    keys: list[str] | None
    first_at: datetime
    last_at: datetime
    last_id: str


class Queue(NamedTuple):
    """A queue with its counts. Pending tasks are due and wait; scheduled ones are not due yet; parked ones wait in a step.

    A deep queue has more tasks than are counted. Its `sounded` values are those that a worker stored within the last minutes.
    """

    name: str
    pending: int = 0
    scheduled: int = 0
    claimed: int = 0
    running: int = 0
    parked: int = 0
    oldest_pending_seconds: float | None = None
    is_deep: bool = False
    sounded: int | None = None
    sounded_oldest_seconds: float | None = None
    max_concurrency: int | None = None
    suspended_by: str | None = None
    workers: int = 0

    @property
    def waiting(self) -> int:
        """Return the number of pending tasks, as far as it is known."""
        return self.sounded or self.pending

    @property
    def oldest_seconds(self) -> float | None:
        """Return the age of the oldest pending task, None if there is none."""
        return self.sounded_oldest_seconds or self.oldest_pending_seconds


class Worker(NamedTuple):
    """A worker with the figures of its latest snapshot."""

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
    children: list[dict[str, Any]]  # `pid`, `memory_mb` and `started_at` of each child process


class WorkerSnapshot(NamedTuple):
    """The state of a worker at one moment."""

    snapshot_at: datetime
    state: str
    hostname: str
    pid: int
    processes: int
    queues: list[str]
    tasks_running: int
    tasks_claimed: int
    memory_usage_mb: float
    memory_percent: float
    children_memory_mb: float
    cpu_percent: float


class RunningTask(NamedTuple):
    """A running task and the process that runs it."""

    task_id: str
    task_name: str
    queue_name: str
    worker_id: str
    pid: int | None
    started_at: datetime | None
    memory_mb: float | None


class WorkflowRow(NamedTuple):
    """A workflow in a list, with the number of its nodes by state."""

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
    skipped: int
    running: int


class WorkflowDetail(NamedTuple):
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


class WorkflowNode(NamedTuple):
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


class WaitingSignal(NamedTuple):
    """A node that waits for a signal. `takers` are the tasks that take its value, each with the parameter."""

    workflow_id: str
    workflow_name: str
    workflow_status: str
    task_index: int
    node_id: str
    signal: str
    started_at: datetime | None
    due_at: datetime | None
    takers: list[list[str]]


class Action(NamedTuple):
    """An entry in the record of what operators did."""

    acted_at: datetime
    actor: str
    action: str
    subject: str
    tasks: int


async def fetch(
    connection: Connection, kind: type[T], statement: bytes, values: Mapping[str, Any]
) -> list[T]:
    """Run a statement and make one object of each row; its columns are the fields of `kind`."""
    cursor = connection.cursor(row_factory=class_row(kind))
    await cursor.execute(statement, values)
    return await cursor.fetchall()


async def _fetch_in_index_order(
    connection: Connection, kind: type[T], verb: str, values: Mapping[str, Any]
) -> list[T]:
    """Run a statement that reads the first tasks of each queue through the index for claims."""
    async with connection.transaction():
        await connection.execute(IN_INDEX_ORDER)
        return await fetch(connection, kind, SQL[verb], values)


async def _fetch_dicts(connection: Connection, verb: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    cursor = connection.cursor(row_factory=dict_row)
    await cursor.execute(SQL[verb], values)
    return await cursor.fetchall()


# Tasks


async def tasks(
    connection: Connection,
    wanted: TaskFilter,
    start: PageStart = FIRST_PAGE,
    since: Since = ALL_TIME,
    *,
    limit: int,
    failed: bool = False,
    in_arguments: bool = True,
    with_messages: bool = False,
) -> TaskPage:
    """Return a page of tasks, the ones sent last first; with `failed`, of failed tasks, the ones that failed last first.

    With `in_arguments`, `q` is searched for in arguments, too.
    """
    verb = "failed_tasks" if failed else "tasks"
    values = {
        **wanted._asdict(),
        **start._asdict(),
        **since._asdict(),
        "live_only": wanted.status in _LIVE_STATUSES,
        "in_arguments": in_arguments,
        "most": MOST_READ,
        "limit": limit + 1,
        "with_messages": with_messages,
        "shown": STORED_SHOWN,
    }
    rows = await _fetch_dicts(connection, verb, values)
    ends = [row.pop("ended", FIRST_PAGE.ended) for row in rows]
    found = _task_rows(rows[:limit])
    pin = PageStart(UUID(int=min(UUID(found[0].task_id).int + 1, LAST_ID.int)), ends[0]) if found else None
    if len(rows) > limit:
        return TaskPage(found, PageStart(UUID(found[-1].task_id), ends[limit - 1]), None, pin)
    for row in await _fetch_dicts(connection, f"{verb}_end", values):
        following = PageStart(row["id"], row.get("ended", FIRST_PAGE.ended))
        return TaskPage(found, following, row["at"], pin)
    return TaskPage(found, None, None, pin)


def _task_rows(rows: Iterable[dict[str, Any]]) -> list[TaskRow]:
    return [TaskRow(message=error_of(row.pop("stored_error"))[0], **row) for row in rows]


async def sorted_tasks(
    connection: Connection,
    wanted: TaskFilter,
    order: TaskOrder,
    since: Since = ALL_TIME,
    until: datetime | None = None,
    *,
    limit: int,
    skipped: int = 0,
    in_arguments: bool = True,
) -> list[TaskRow]:
    """Return tasks in an order that no index has: of the `MOST_READ` newest tasks, or of the latest failures.

    With `until`, only tasks that ended between `since` and then; at most `MOST_READ` of them are read.
    """
    failed = wanted.status == "FAILED"
    values = {
        **wanted._asdict(),
        **since._asdict(),
        "until": until,
        "live_only": wanted.status in _LIVE_STATUSES,
        "in_arguments": in_arguments,
        "sort": order.sort,
        "sign": -1 if order.descending else 1,
        "most": MOST_READ,
        "limit": limit,
        "skipped": skipped,
        "with_messages": True,
        "shown": STORED_SHOWN,
    }
    verb = "sorted_ended" if until is not None else "sorted_failures" if failed else "sorted_tasks"
    return _task_rows(await _fetch_dicts(connection, verb, values))


async def failure_groups(
    connection: Connection, wanted: TaskFilter, since: datetime, step: float, parts: int
) -> list[FailureGroup]:
    """Group the `MOST_COUNTED` latest failures since a time, each group in parts of `step` seconds."""
    values = {
        "name": wanted.name,
        "queue": wanted.queue,
        "code": wanted.code,
        "since": since,
        "step": step,
        "part_count": parts,
        "most": MOST_COUNTED,
    }
    return await fetch(connection, FailureGroup, SQL["failure_groups"], values)


async def search(
    connection: Connection, wanted: TaskFilter, limit: int, *, failed: bool = False
) -> list[TaskRow]:
    """Return the first matching tasks of a list, with their messages, however many pages that takes."""
    found: list[TaskRow] = []
    start: PageStart | None = FIRST_PAGE
    while start is not None and len(found) < limit:
        page = await tasks(
            connection, wanted, start, limit=limit - len(found), failed=failed, with_messages=True
        )
        found += page.tasks
        start = page.next
    return found


async def task(
    connection: Connection,
    task_id: UUID,
    *,
    shown: int = WHOLE,
    since: datetime | str = "-infinity",
) -> TaskDetail | None:
    """Return one task, None if there is none. History before `since` is left out, which makes the look-up cheaper."""
    values = {"id": task_id, "shown": shown, "since": since}
    for row in await _fetch_dicts(connection, "task", values):
        result: str | None = row["result"]
        stored_error = None if row["error_code"] is None or result is None else result[:STORED_SHOWN]
        return TaskDetail(message=error_of(stored_error)[0], **row)
    return None


async def stale_tasks(connection: Connection, seconds: float) -> list[TaskRow]:
    """Return the claimed and running tasks of workers that are dead, unknown, or silent for so many seconds."""
    rows = await _fetch_dicts(connection, "stale_tasks", {"seconds": seconds})
    return [TaskRow(message=None, **row) for row in rows]


async def overdue_tasks(connection: Connection) -> list[TaskRow]:
    """Return the pending tasks whose `good_until` has passed."""
    return [TaskRow(message=None, **row) for row in await _fetch_dicts(connection, "overdue_tasks", {})]


async def attempts(
    connection: Connection, found: TaskDetail, *, shown: int = WHOLE, limit: int | None = None
) -> list[Attempt]:
    """Return the attempts of a task, the last one first. The last attempt is stored in the task's own row."""
    values = {"id": UUID(found.task_id), "shown": shown, "limit": limit}
    earlier = await fetch(connection, Attempt, SQL["attempts"], values)
    return earlier if found.started_at is None else [_last_attempt(found), *earlier]


def _last_attempt(found: TaskDetail) -> Attempt:
    message, traceback = error_of(found.result)
    return Attempt(
        attempt=found.attempts,
        outcome=found.status,
        will_retry=False,
        started_at=found.started_at,
        finished_at=found.terminal_at,
        error_code=found.error_code,
        error_message=message,
        failed_reason=found.failed_reason,
        worker_id=found.worker_id,
        worker_hostname=found.worker_hostname,
        worker_pid=found.worker_pid,
        worker_process_name=found.worker_process_name,
        requeued_at=None,
        traceback=traceback,
    )


def ended_attempts(found: Iterable[Attempt]) -> list[Attempt]:
    """Return the attempts that have ended, each COMPLETED or FAILED: one that was cancelled has failed."""
    return [
        attempt if attempt.outcome == "COMPLETED" else attempt._replace(outcome="FAILED")
        for attempt in found
        if attempt.finished_at is not None and attempt.outcome in ("COMPLETED", "FAILED", "CANCELLED")
    ]


async def full_task(
    connection: Connection,
    task_id: UUID,
    *,
    shown: int = WHOLE,
    attempts_shown: int | None = None,
    with_reasons: bool = True,
) -> FullTask | None:
    """Return a task with all that belongs to it, None if there is none."""
    found = await task(connection, task_id, shown=shown)
    if found is None:
        return None
    return FullTask(
        task=found,
        attempts=await attempts(connection, found, shown=shown, limit=attempts_shown),
        reasons=await why(connection, task_id) or [] if with_reasons else [],
        progress=await progress(connection, task_id),
        logs=await log_lines(connection, task_id),
        steps=await steps.steps(connection, task_id, shown),
        signals=await steps.signals(connection, task_id),
        caller=await steps.parent(connection, task_id),
        called=await steps.children(connection, task_id),
    )


def redact(found: FullTask, redactor: Redactor, parameters: Sequence[str]) -> FullTask:
    """Return a task without the values to hide, neither in its arguments nor in messages that quote them."""
    if not redactor:
        return found
    before = found.task

    def scrub(text: str | None) -> str | None:
        return redactor.scrub(text, before.kwargs, before.args, parameters=parameters)

    shown = replace(
        before,
        args=redactor.json(before.args, parameters),
        kwargs=redactor.json(before.kwargs),
        arguments=redactor.json(before.arguments),
        result=redactor.result(before.result, before.kwargs, before.args, parameters=parameters),
        unique_key=scrub(before.unique_key),
        message=scrub(before.message),
        failed_reason=scrub(before.failed_reason),
    )
    attempts = [
        attempt._replace(
            error_message=scrub(attempt.error_message),
            failed_reason=scrub(attempt.failed_reason),
            traceback=scrub(attempt.traceback),
        )
        for attempt in found.attempts
    ]
    reported = found.progress and found.progress._replace(message=scrub(found.progress.message) or "")
    logs = [line._replace(message=scrub(line.message) or "") for line in found.logs]
    return found._replace(task=shown, attempts=attempts, progress=reported, logs=logs)


async def payload(connection: Connection, task_id: UUID, part: str) -> str | None:
    """Return the whole `args`, `kwargs` or `result` of a task."""
    row = await (await connection.execute(SQL["payload"], {"id": task_id, "part": part})).fetchone()
    return None if row is None else row[0]


class TaskArguments(NamedTuple):
    task_name: str
    args: str | None
    kwargs: str | None


async def arguments(connection: Connection, task_id: UUID) -> TaskArguments | None:
    """Return the whole arguments of a task, None if there is no such task."""
    found = await fetch(connection, TaskArguments, SQL["arguments"], {"id": task_id})
    return found[0] if found else None


async def arguments_of_many(
    connection: Connection, ids: Sequence[UUID]
) -> dict[str, tuple[str | None, str | None]]:
    """Return the beginning of `kwargs` and `args` of several tasks, by id."""
    values = {"ids": list(ids), "since": not_before(ids)}
    rows = await _fetch_dicts(connection, "arguments_of_many", values)
    return {row["task_id"]: (row["kwargs"], row["args"]) for row in rows}


async def why(connection: Connection, task_id: UUID) -> list[str] | None:
    """Return a sentence for each reason why a task is not running, None if there is no such task."""
    found = await fetch(connection, WaitingFacts, SQL["waiting"], {"id": task_id, "most": MOST_AHEAD})
    return reasons_of(found[0]) if found else None


# Queues and workers


async def queues(connection: Connection) -> list[Queue]:
    """Return the queues that have tasks, that workers serve, or that are suspended."""
    return await _fetch_in_index_order(connection, Queue, "queues", {"most": MOST_COUNTED})


async def queues_with_failures(connection: Connection) -> list[tuple[Queue, int]]:
    """Return each queue with its share of the latest `MOST_COUNTED` failures."""
    known = {queue.name: queue for queue in await queues(connection)}
    cursor = await connection.execute(SQL["failures_by_queue"], {"most": MOST_COUNTED})
    failed: dict[str, int] = dict(await cursor.fetchall())
    return [(known.get(name, Queue(name)), failed.get(name, 0)) for name in sorted({*known, *failed})]


async def workers(connection: Connection) -> list[Worker]:
    """Return the workers that are alive or died within a day, the living first."""
    return await fetch(connection, Worker, SQL["workers"], {})


async def worker_snapshots(connection: Connection, worker_id: UUID, limit: int) -> list[WorkerSnapshot]:
    """Return the snapshots of a worker, the newest first."""
    values = {"worker_id": worker_id, "limit": limit}
    return await fetch(connection, WorkerSnapshot, SQL["worker_snapshots"], values)


async def running_tasks(connection: Connection, limit: int = 1_000) -> list[RunningTask]:
    """Return the running tasks, those that started first at the head."""
    return await _fetch_in_index_order(connection, RunningTask, "running_tasks", {"limit": limit})


async def running_by_worker(connection: Connection) -> dict[str, list[str]]:
    """Return the ids of the running tasks of each worker, by the worker's id."""
    found: dict[str, list[str]] = {}
    for running in await running_tasks(connection, MOST_COUNTED):
        found.setdefault(running.worker_id, []).append(running.task_id)
    return found


# Workflows and actions


async def workflows(
    connection: Connection, wanted: Mapping[str, Any], before: UUID, limit: int
) -> list[WorkflowRow]:
    """Return the newest workflows before an id that match `status`, `name` and `parts`."""
    values = {**wanted, "before": before, "most": MOST_READ, "limit": limit}
    return await fetch(connection, WorkflowRow, SQL["workflows"], values)


async def workflow(
    connection: Connection, workflow_id: UUID
) -> tuple[WorkflowDetail, list[WorkflowNode]] | None:
    """Return a workflow with its first `MOST_NODES` nodes, None if there is none."""
    found = await fetch(connection, WorkflowDetail, SQL["workflow"], {"id": workflow_id})
    if not found:
        return None
    values = {"id": workflow_id, "limit": MOST_NODES}
    return found[0], await fetch(connection, WorkflowNode, SQL["nodes"], values)


async def signals(connection: Connection, limit: int) -> list[WaitingSignal]:
    """Return the signals that workflows wait for, the longest wait first."""
    return await fetch(connection, WaitingSignal, SQL["signals"], {"most": MOST_READ, "limit": limit})


async def signal_takers(connection: Connection, workflow_id: UUID, name: str) -> list[list[str]]:
    """Return the tasks that take the value of a signal, each with its parameter."""
    cursor = await connection.execute(SQL["signal_takers"], {"id": workflow_id, "name": name})
    return [taker for (takers,) in await cursor.fetchall() for taker in takers]


async def actions(connection: Connection, limit: int) -> list[Action]:
    """Return the latest actions of operators."""
    return await fetch(connection, Action, SQL["actions"], {"limit": limit})


async def change_marker(connection: Connection) -> str:
    """Return a text that stays the same while nothing in the database changes."""
    row = await (await connection.execute(SQL["change_marker"])).fetchone()
    return "" if row is None else str(row[0])


async def replica_lag(connection: Connection, written_to: str | None) -> tuple[float, bool]:
    """Return by how many seconds a replica is behind, and True if it has not replayed everything up to a position."""
    row = await (await connection.execute(SQL["replica_lag"], {"written_to": written_to})).fetchone()
    return (0.0, False) if row is None else (float(row[0]), bool(row[1]))
