"""What the dashboard reads: each answer costs the same however many tasks there are.

Lists walk an index from a key and look at so many rows at most; what is counted was counted minute by minute before. Plain
SELECTs, over connections that cannot write and give up after a while: nobody waits for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit
from uuid import UUID

from horsies.config import PostgresConfig
from horsies.storage.database import Connection, Database
from horsies.storage.retention import SQL as RETENTION
from horsies.storage.statements import statements

SQL = statements("dashboard")
T = TypeVar("T", bound=tuple[Any, ...])

CONNECTIONS = 4
READ_SECONDS = 5
# So many tasks of a queue are counted; of more, the last sounding tells.
MOST_COUNTED = 10_000
# So many tasks a page looks at to find those that fit.
MOST_LOOKED_AT = 20_000
# So many characters of an argument or a result a page shows unasked.
SHOWN = 20_000
MOST_NODES = 2_000

ABOVE_ALL = UUID(int=(1 << 128) - 1)
BELOW_ALL = UUID(int=0)


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


def viewing(config: PostgresConfig) -> Database:
    """A few connections that can only read, and give up by themselves."""
    settings = f"-c statement_timeout={READ_SECONDS}s -c default_transaction_read_only=on -c jit=off"
    return _few(config, "horsies-web", settings)


def acting(config: PostgresConfig) -> Database:
    """A few connections for what viewers do."""
    return _few(config, "horsies-web-actions", f"-c statement_timeout={2 * READ_SECONDS}s")


def _few(config: PostgresConfig, name: str, settings: str) -> Database:
    """Direct ones: a pooler would not take settings. What the URL sets itself, such as a search path, stays."""
    url = urlsplit(config.session_conninfo)
    query = dict(parse_qsl(url.query))
    query["options"] = f"{query.get('options', '')} {settings}".strip()
    few = PostgresConfig(
        database_url=url._replace(query=urlencode(query, quote_via=quote)).geturl(),
        pool_size=CONNECTIONS,
        max_overflow=0,
        pool_timeout=READ_SECONDS,
    )
    return Database(few, name)


async def pulse(connection: Connection) -> str:
    """A text that stays the same while nothing changes."""
    row = await (await connection.execute(SQL["pulse"])).fetchone()
    return "" if row is None else str(row[0])


async def recent(connection: Connection, since: datetime, until: datetime) -> list[Slot]:
    return await _all(connection, Slot, "recent", {"since": since, "until": until})


async def minutes(connection: Connection, since: datetime) -> list[Slot]:
    return await _all(connection, Slot, "minutes", {"since": since})


async def depths(connection: Connection, since: datetime) -> list[Depth]:
    return await _all(connection, Depth, "depths", {"since": since})


async def busiest(connection: Connection, since: datetime, limit: int) -> list[Busy]:
    return await _all(connection, Busy, "busiest", {"since": since, "limit": limit})


async def queues(connection: Connection) -> list[Queue]:
    return await _all(connection, Queue, "queues", {"most": MOST_COUNTED})


async def workers(connection: Connection) -> list[Worker]:
    return await _all(connection, Worker, "workers", {})


async def children(connection: Connection) -> list[Child]:
    return await _all(connection, Child, "children", {})


async def codes(connection: Connection) -> list[tuple[str, int]]:
    return [(row[0], row[1]) for row in await _rows(connection, "codes", {})]


async def tasks(
    connection: Connection, wanted: Wanted, place: Place, since: tuple[UUID, datetime], limit: int
) -> TaskPage:
    """A page of tasks from a place on, none sent (or failed) before `since`, given as an id and as a moment."""
    listing = _listing(wanted.status)
    after, moment = since
    values = {**wanted._asdict(), **place._asdict(), "after": after, "since": moment, "most": MOST_LOOKED_AT}
    found = await _all(connection, TaskLine, listing, values | {"limit": limit + 1})
    if len(found) > limit:
        return TaskPage(found[:limit], _after(found[limit - 1]), None)
    for end in await _rows(connection, f"{listing}_end", values):
        return TaskPage(found, Place(end[0], end[1].isoformat()), end[1])
    return TaskPage(found, None, None)


def _listing(status: str | None) -> str:
    if status == "FAILED":
        return "failed_tasks"
    return "live_tasks" if status in ("PENDING", "CLAIMED", "RUNNING") else "tasks"


def _after(task: TaskLine) -> Place:
    return Place(UUID(task.task_id), "infinity" if task.terminal_at is None else task.terminal_at.isoformat())


async def task(connection: Connection, task_id: UUID) -> tuple[TaskLine, TaskDetail] | None:
    width = len(TaskLine._fields)
    for row in await _rows(connection, "task", {"id": task_id, "shown": SHOWN}):
        return TaskLine._make(row[:width]), TaskDetail._make(row[width:])
    return None


async def attempts(connection: Connection, task_id: UUID) -> list[Attempt]:
    """The attempts that were followed by another; the last is the task itself."""
    return await _all(connection, Attempt, "attempts", {"id": task_id})


async def payload(connection: Connection, task_id: UUID, part: str) -> str | None:
    """The `args`, `kwargs` or `result` of a task, whole."""
    for row in await _rows(connection, "payload", {"id": task_id, "part": part}):
        return row[0]
    return None


async def workflows(
    connection: Connection, values: Mapping[str, Any], before: UUID, limit: int
) -> list[Flow]:
    bounds = {"before": before, "most": MOST_LOOKED_AT, "limit": limit}
    return await _all(connection, Flow, "workflows", {**values, **bounds})


async def workflow(connection: Connection, workflow_id: UUID) -> tuple[FlowDetail, list[Node]] | None:
    for row in await _rows(connection, "workflow", {"id": workflow_id}):
        nodes = await _all(connection, Node, "nodes", {"id": workflow_id, "limit": MOST_NODES})
        return FlowDetail._make(row), nodes
    return None


async def actions(connection: Connection, limit: int) -> list[Act]:
    return await _all(connection, Act, "actions", {"limit": limit})


async def totals(connection: Connection) -> list[Total]:
    return await _all(connection, Total, "totals", {})


async def count_finished(connection: Connection, ids: Sequence[UUID] | None, wanted: Wanted) -> int:
    """How many finished tasks a deletion would find."""
    rows = await _rows(connection, "count_finished", {"ids": ids, **wanted._asdict()})
    return int(rows[0][0])


async def count_live(connection: Connection, ids: Sequence[UUID] | None, wanted: Wanted) -> int:
    """How many tasks a cancel would find."""
    rows = await _rows(connection, "count_live", {"ids": ids, **wanted._asdict()})
    return int(rows[0][0])


async def delete_finished(
    connection: Connection, ids: Sequence[UUID] | None, wanted: Wanted, batch: int
) -> int:
    """Delete one batch of finished tasks with all that is kept with them; how many."""
    keys = await _rows(connection, "finished", {"ids": ids, **wanted._asdict(), "batch": batch})
    if not keys:
        return 0
    found, ended = zip(*keys, strict=True)
    cursor = await connection.execute(RETENTION["delete"], {"ids": list(found), "ended": list(ended)})
    return cursor.rowcount


async def resend(connection: Connection, task_id: UUID, new_id: UUID, kwargs: str) -> str | None:
    """Send a task like another one with these arguments; its id, None when there is no such task."""
    rows = await _rows(connection, "resend", {"id": task_id, "new_id": new_id, "kwargs": kwargs})
    return rows[0][0] if rows else None


async def _all(connection: Connection, kind: type[T], verb: str, values: Mapping[str, Any]) -> list[T]:
    make: Any = kind
    return [make._make(row) for row in await _rows(connection, verb, values)]


async def _rows(connection: Connection, verb: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    return await (await connection.execute(SQL[verb], values)).fetchall()
