"""Read and write tasks: send, claim, start, settle, release; their progress and log lines.

Each function runs one statement of `tasks.sql`. Every statement that starts, settles or releases a task is fenced by the
task's `claim_seq`: a row that another worker has taken over is not changed and is missing from the answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from psycopg import AsyncClientCursor, errors
from psycopg.pq import TransactionStatus
from psycopg.rows import class_row

from horsies.db.connection import Connection
from horsies.db.ids import not_before
from horsies.db.sql import prepared_form, statements
from horsies.keys import is_keyed

SQL = statements("tasks")
# Stands for "no limit" where a number of tasks is expected.
NO_LIMIT = 2**31 - 1
# The statement compares each failure with every other, so a batch is small.
FAILURES_PER_STATEMENT = 100
# The last lines of each run are kept, up to this number.
LINES_KEPT = 200

_encode = msgspec.json.Encoder().encode

# The result of a cancelled task, whatever it returned or raised.
CANCELLED_CODE = "TASK_CANCELLED"
CANCELLED = (
    '{"err":{"error_code":{"__builtin_task_code__":"TASK_CANCELLED"},'
    '"message":"the task was cancelled","data":null,"exception":null}}'
)


# The parameters of `settle_and_claim` and their types, to prepare it by name.
SETTLE_AND_CLAIM_TYPES = {
    "completed": "text",
    "lanes": "text",
    "pools": "text",
    "caps": "text",
    "rates": "text[]",
    "limit": "integer",
    "batch": "integer",
    "worker_id": "uuid",
    "hostname": "text",
    "process_name": "text",
    "left_out": "text",
    "run_times": "text",
    "key_lanes": "text",
    "steps": "integer",
    "may_stay_unflushed": "text",
}
# The statements of a claim that come after others in one message: the SQL that prepares each, and that executes it.
PREPARED = {
    "settle_and_claim_within": prepared_form(
        "settle_and_claim", SQL["settle_and_claim_within"], SETTLE_AND_CLAIM_TYPES
    ),
    "lock_keys": prepared_form("lock_keys", SQL["lock_keys"], SETTLE_AND_CLAIM_TYPES),
    "settle_and_claim_keyed": prepared_form(
        "settle_and_claim_keyed", SQL["settle_and_claim_keyed"], SETTLE_AND_CLAIM_TYPES
    ),
}
# The claim_seq of a claim that the database has lost. No row has it, so an outcome with it is not stored.
UNDONE = -1
# A walk over keys takes so many steps at most. A step takes 4 to 10 µs.
KEY_STEPS = 1_000


class NewTask(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """A task to send; the fields are the columns that `send` reads."""

    id: UUID
    task_name: str
    queue_name: str
    priority: int
    kwargs: str | None
    is_async: bool
    max_retries: int
    eta: datetime | None = None
    delay_seconds: float | None = None
    good_until: datetime | None = None
    timeout_ms: int | None = None
    task_options: str | None = None
    unique_key: str | None = None
    on_conflict: str | None = None
    tags: tuple[str, ...] | None = None
    rate_key: str = ""
    cost: float | None = None
    idempotency_key: str | None = None
    enqueue_sha: str | None = None


class Taken(NamedTuple):
    """The reason why `send` left a row out: the tasks that hold its idempotency key, its unique key or its id."""

    id: str
    key_task_id: str | None
    key_sha: str | None
    unique_task_id: str | None
    same_id: str | None
    is_same: bool


class Claimed(NamedTuple):
    """A task that this worker holds; `pid` is the child it is started for, None while it is prefetched.

    Ids and times are passed on as text, because nothing here computes with them.
    """

    turn: int
    id: str
    claim_seq: int
    task_name: str
    args: str | None
    kwargs: str | None
    queue_name: str
    is_async: bool
    priority: int
    enqueued_at: str
    pid: int | None
    timeout_ms: int | None
    retry_count: int
    max_retries: int
    crash_count: int
    has_expiry: bool
    task_options: str | None
    workflow_id: str | None = None
    workflow_index: int | None = None
    earlier_attempts: int = 0  # before an operator retried the task
    rate_key: str = ""
    inputs: str | None = None  # the results of other nodes of its workflow
    members: tuple[Claimed, ...] = ()  # of a batch that runs as one call: all of them, this one included

    @property
    def node(self) -> tuple[str, int] | None:
        """The workflow id and index of the task's node, None if it belongs to no workflow."""
        return None if self.workflow_id is None else (self.workflow_id, self.workflow_index or 0)


class Lane(msgspec.Struct, frozen=True):
    """An ordered range of tasks to claim from: the plain or the async tasks of a queue, without or with one rate limit.

    A `rate_key` of None stands for all keys of the queue, of which `KeyLane` has the next. At most `quota` tasks are claimed for the pool, behind the key (priority, enqueued_at, id).
    """

    pool: int
    queue_name: str
    is_async: bool
    rate_key: str | None
    quota: int
    priority: int
    enqueued_at: str
    id: str


class BatchLane(msgspec.Struct, frozen=True):
    """The tasks of a queue and kind that run in batches of up to `size`; those of a lower level come first."""

    queue_name: str
    is_async: bool
    rate_key: str
    level: int
    size: int
    linger: float


class KeyLane(msgspec.Struct, frozen=True):
    """The keys of a queue and kind, to be walked from the lane of the key that was served last; `room` is for how many tasks."""

    queue_name: str
    is_async: bool
    room: int
    after: str


class WalkedKey(NamedTuple):
    """A key that a walk has locked because a task of it may start, or the last one that it came to within its steps."""

    queue_name: str
    is_async: bool
    rate_key: str
    is_ready: bool


class PoolRoom(msgspec.Struct, frozen=True):
    """The room of a pool: for so many tasks, the first of them for the children with these pids, idle children first.

    `seconds` is how long the tasks may run that are claimed ahead by their run times.
    """

    pool: int
    room: int
    idle: int
    pids: list[int]
    seconds: float = 0.0


class ConcurrencyCap(msgspec.Struct, frozen=True):
    """A concurrency limit for a queue, or for all queues as ''.

    `in_use` is how many tasks of it this worker has in flight; `recorded` is the number last written to the database.
    """

    queue_name: str
    max_tasks: int
    in_use: int
    recorded: int


class ClaimRequest(NamedTuple):
    """A claim: the lanes to read, the children to start tasks for, the limits to keep, and the worker that claims."""

    lanes: list[Lane]
    pools: list[PoolRoom]
    caps: list[ConcurrencyCap]
    rates: list[str]
    limit: int
    batch: int
    worker_id: UUID
    hostname: str
    process_name: str
    left_out: str = ""  # JSON: the names of tasks not to claim, by queue
    # JSON: the expected seconds of tasks that may be claimed ahead, by name; empty: the room decides.
    run_times: str = ""
    key_lanes: Sequence[KeyLane] = ()
    steps: int = KEY_STEPS


class SettledAndClaimed(NamedTuple):
    """The number of settled tasks, the claimed tasks in order, and how many due tasks must wait for an idle child.

    `timer` is the seconds until the first new timer of a workflow is due.
    """

    settled: int
    claimed: list[Claimed]
    left: int
    timer: float | None = None
    walked: Sequence[WalkedKey] = ()


class Completed(msgspec.Struct, frozen=True, omit_defaults=True):
    """A task that returned a value; with its `node` if it belongs to a workflow."""

    id: str
    claim_seq: int
    result: str
    node: tuple[str, int] | None = None
    rate_key: str = ""


class Expired(NamedTuple):
    """A task that was not started before its `good_until`."""

    id: str
    task_name: str
    queue_name: str
    workflow_id: str | None
    rate_key: str = ""


class TaskState(NamedTuple):
    """The state of a task; `watched` if its end will be notified."""

    id: UUID
    status: str
    result: str | None
    watched: bool


class Failure(msgspec.Struct, frozen=True):
    """A failed attempt. With a delay the task is retried.

    A `snoozed` task is run again later, and so is a parked one; the run does not count as an attempt. If it `holds_lane`, no task
    of its key or rate limit starts before that. An `asked` failure applies only if the task
    was cancelled. When the task has finally failed, the task named `on_failure` is sent.
    """

    id: str
    claim_seq: int
    result: str
    error_code: str | None
    error_message: str | None
    failed_reason: str | None = None
    delay_seconds: float | None = None
    crashed: bool = False
    node: tuple[str, int] | None = None
    snoozed: bool = False
    asked: bool = False
    on_failure: str | None = None
    holds_lane: bool = False
    # JSON: the step in which the task is to be parked. Such a run is no failure, and not an attempt.
    park: str | None = None
    attempt: int = 0
    # The task crashed and may run again if it has stored steps.
    resumable: bool = False


def stopped(task: Claimed | Completed) -> Failure:
    """Return the failure that ends a task as cancelled; it applies only if the task was cancelled."""
    return Failure(
        task.id,
        task.claim_seq,
        CANCELLED,
        CANCELLED_CODE,
        "the task was cancelled",
        node=task.node,
        asked=True,
    )


def as_json(value: object) -> str:
    return _encode(value).decode()


def as_texts(row: NewTask) -> dict[str, str | None]:
    """Return the columns of a new task, each as text that PostgreSQL can read."""
    return {
        "id": str(row.id),
        "task_name": row.task_name,
        "queue_name": row.queue_name,
        "is_async": "t" if row.is_async else "f",
        "priority": str(row.priority),
        "kwargs": row.kwargs,
        "eta": None if row.eta is None else row.eta.isoformat(),
        "delay_seconds": None if row.delay_seconds is None else str(row.delay_seconds),
        "good_until": None if row.good_until is None else row.good_until.isoformat(),
        "timeout_ms": None if row.timeout_ms is None else str(row.timeout_ms),
        "max_retries": str(row.max_retries),
        "task_options": row.task_options,
        "unique_key": row.unique_key,
        "tags": None if row.tags is None else _array(row.tags),
        "rate_key": row.rate_key,
        "cost": None if row.cost is None else str(row.cost),
    }


def _array(texts: Iterable[str]) -> str:
    quoted = (text.replace("\\", r"\\").replace('"', r"\"") for text in texts)
    return "{" + ",".join(f'"{text}"' for text in quoted) + "}"


def outcomes(completed: Iterable[Completed]) -> str:
    """Encode completed tasks for the statements that settle them: results by id and `claim_seq`."""
    return as_json({f"{task.id}/{task.claim_seq}": task.result for task in completed})


def as_calls(calls: Iterable[tuple[str, int]]) -> str:
    """Encode the ids and `claim_seq`s of tasks for the statements that release them."""
    return as_json({f"{task_id}/{claim_seq}": True for task_id, claim_seq in calls})


async def finished(connection: Connection, ids: Sequence[UUID]) -> set[UUID]:
    """Return which of these tasks have ended."""
    cursor = await connection.execute(SQL["finished"], {"ids": list(ids), "since": not_before(ids)})
    return {row[0] for row in await cursor.fetchall()}


async def settle_and_claim(
    connection: Connection,
    completed: Sequence[Completed],
    request: ClaimRequest,
    *,
    settles_more: bool = False,
) -> SettledAndClaimed:
    """Settle completed tasks and claim others in one round trip.

    `settles_more` is True if the caller's transaction settles other tasks as well.
    """
    values = settle_and_claim_values(completed, request, settles_more=settles_more)
    if request.caps or uses_keys(completed, request):
        return await _lock_and_claim(connection, values, completed, request)
    cursor = await connection.execute(SQL[_variant(request)], values, prepare=True)
    return read_settle_and_claim(await cursor.fetchall())


def _variant(request: ClaimRequest) -> str:
    """Return the name of the shortest statement that can carry out a request without concurrency limits and keys."""
    if not is_plain(request):
        return "settle_and_claim_within"
    is_for_idle = all(pool.room <= min(pool.idle, len(pool.pids)) for pool in request.pools)
    return "settle_and_claim_for_idle" if is_for_idle else "settle_and_claim"


def is_plain(request: ClaimRequest) -> bool:
    """Return True if a claim has no limits but the room, so that the faster statement without limits will do."""
    room = sum(pool.room for pool in request.pools)
    is_limited = request.caps or request.rates or request.left_out or request.key_lanes
    return not is_limited and request.batch == NO_LIMIT and request.limit >= room


def uses_keys(completed: Sequence[Completed], request: ClaimRequest) -> bool:
    """Return True if a round trip claims tasks with keys, or settles some."""
    return bool(request.key_lanes) or any(is_keyed(task.rate_key) for task in completed)


def settle_and_claim_values(
    completed: Sequence[Completed], request: ClaimRequest, *, settles_more: bool = False
) -> dict[str, Any]:
    """Return the parameters of the statements; `settles_more` is True if their transaction settles other tasks as well."""
    return request._asdict() | {
        "may_stay_unflushed": "f" if completed or settles_more or request.caps else "t",
        "completed": outcomes(completed),
        "lanes": as_json(request.lanes),
        "pools": as_json(request.pools),
        "caps": as_json(request.caps),
        "key_lanes": as_json(request.key_lanes),
    }


def read_settle_and_claim(rows: Sequence[tuple[Any, ...]]) -> SettledAndClaimed:
    """Read the answer of `settle_and_claim`."""
    summary, *claimed = (Claimed(*row) for row in rows)
    return SettledAndClaimed(summary.claim_seq, claimed, summary.pid or 0)


async def _lock_and_claim(
    connection: Connection, values: dict[str, Any], completed: Sequence[Completed], request: ClaimRequest
) -> SettledAndClaimed:
    """Lock the limited queues, or the whole cluster if it has a limit, and the next keys; then settle and claim.

    All statements go out as one message without parameters: one round trip, one transaction, and the last statement sees
    what was committed while the others waited. A pipeline does the same, and takes 1.4 ms more of the worker's time.
    """
    capped = [cap.queue_name for cap in request.caps]
    has_keys = uses_keys(completed, request)
    parts = [SQL["lock_all" if "" in capped else "lock_queues"]] if capped else []
    names = (["lock_keys"] if request.key_lanes else []) + [
        "settle_and_claim_keyed" if has_keys else "settle_and_claim_within"
    ]
    message = b"; ".join([*parts, *(PREPARED[name][1] for name in names)])
    cursor = AsyncClientCursor(connection)
    try:
        await cursor.execute(message, values | {"queues": capped})
    except (
        errors.InvalidSqlStatementName
    ):  # not prepared on this connection yet, or the driver has dropped it
        if connection.info.transaction_status != TransactionStatus.IDLE:
            raise  # the caller's transaction has failed and must be repeated
        for name in names:
            with suppress(errors.DuplicatePreparedStatement):
                await connection.execute(PREPARED[name][0])
        await cursor.execute(message, values | {"queues": capped})
    for _ in parts:
        cursor.nextset()
    walked: list[WalkedKey] = []
    if request.key_lanes:
        walked = [WalkedKey(*row) for row in await cursor.fetchall() if row[0] is not None]
        cursor.nextset()
    return read_settle_and_claim(await cursor.fetchall())._replace(walked=walked)


async def refresh(connection: Connection) -> bool:
    """Refresh the statistics of the live table if they are outdated; return False if not, or if another session does so."""
    try:
        row = await (await connection.execute(SQL["refresh"])).fetchone()
    except errors.LockNotAvailable:
        return False
    return row is not None and bool(row[0])


async def start(connection: Connection, prefetched: Iterable[Claimed], worker_id: UUID) -> set[str]:
    """Start prefetched tasks, each in the child with its pid; return the ids of those that may run."""
    starts = as_json({f"{task.id}/{task.claim_seq}": task.pid for task in prefetched})
    cursor = await connection.execute(SQL["start"], {"starts": starts, "worker_id": worker_id})
    return {row[0] for row in await cursor.fetchall()}


async def fail(
    connection: Connection, failures: Sequence[Failure], worker_id: UUID | None
) -> dict[str, bool]:
    """Settle failed attempts; return the tasks that this worker still held, with True for those that are retried.

    Without a worker, settle the attempts whoever holds the tasks.
    """
    ours: dict[str, bool] = {}
    for first in range(0, len(failures), FAILURES_PER_STATEMENT):
        some = failures[first : first + FAILURES_PER_STATEMENT]
        values = {"failures": as_json(some), "cancelled": CANCELLED, "worker_id": worker_id}
        cursor = await connection.execute(SQL["fail"], values)
        ours |= {row[0]: row[1] for row in await cursor.fetchall()}
    return ours


async def release(
    connection: Connection,
    worker_id: UUID,
    keep: Iterable[tuple[str, int]],
    ids: Sequence[str] | None = None,
) -> int:
    """Release all tasks of this worker, or those of `ids`, except the ones to `keep`, given by id and `claim_seq`."""
    held = [{"id": task_id, "claim_seq": claim_seq} for task_id, claim_seq in keep]
    values = {"worker_id": worker_id, "keep": as_json(held), "ids": ids}
    return (await connection.execute(SQL["release"], values)).rowcount


async def held(connection: Connection, worker_id: UUID, ids: Sequence[str]) -> set[tuple[str, int]]:
    """Return those of these tasks that the database counts as this worker's, by id and `claim_seq`."""
    cursor = await connection.execute(SQL["held"], {"worker_id": worker_id, "ids": ids})
    return {(row[0], row[1]) for row in await cursor.fetchall()}


async def owned(connection: Connection, worker_id: UUID) -> list[tuple[Any, ...]]:
    """Return the id, `claim_seq`, workflow and index of each task that a worker has claimed."""
    return await (await connection.execute(SQL["owned"], {"worker_id": worker_id})).fetchall()


async def give_back(
    connection: Connection,
    calls: Iterable[tuple[str, int]],
    worker_id: UUID | None,
    status: str = "RUNNING",
) -> int:
    """Release tasks of this status that never began, given by id and `claim_seq`; return how many.

    Without a worker, release them whoever holds them.
    """
    unbegun = list(calls)
    if not unbegun:
        return 0
    values = {"calls": as_calls(unbegun), "status": status, "worker_id": worker_id}
    return (await connection.execute(SQL["give_back"], values)).rowcount


async def defer_unknown(
    connection: Connection, unknown: Sequence[Claimed], grace_seconds: float, worker_id: UUID
) -> dict[str, bool]:
    """Release tasks that are not registered here, unless they have waited for so long.

    Return the ids of those released, with True if a live worker knows the task.
    """
    values = {
        "calls": as_calls((task.id, task.claim_seq) for task in unknown),
        "names": list({task.task_name for task in unknown}),
        "grace_seconds": grace_seconds,
        "worker_id": worker_id,
    }
    return dict(await (await connection.execute(SQL["defer_unknown"], values)).fetchall())


async def late(connection: Connection, worker_id: UUID) -> list[tuple[str, int]]:
    """Return the id and `claim_seq` of each task that was not started in time."""
    cursor = await connection.execute(SQL["late"], {"worker_id": worker_id})
    return [(row[0], row[1]) for row in await cursor.fetchall()]


async def expire(
    connection: Connection, worker_id: UUID, result: str, ids: Sequence[str] | None = None
) -> list[Expired]:
    """Expire tasks that were not started in time: all of them, or those of `ids`."""
    cursor = await connection.execute(SQL["expire"], {"worker_id": worker_id, "result": result, "ids": ids})
    return [Expired(*row[1:]) for row in await cursor.fetchall()]


async def wake_for_keys(connection: Connection, worker_id: UUID, rate_keys: Iterable[str]) -> None:
    """Wake other workers that sleep and could run the next tasks of these keys."""
    await connection.execute(SQL["wake_for_keys"], {"worker_id": worker_id, "rate_keys": list(rate_keys)})


class NextDue(NamedTuple):
    """The seconds until something is due, None if nothing will be; and True if there are tasks with keys."""

    seconds: float | None
    has_keys: bool


async def follow(connection: Connection) -> None:
    """Let the tasks start that follow others which have ended, if that was missed."""
    await connection.execute(SQL["follow"])


async def claim_batches(
    connection: Connection, lanes: Sequence[BatchLane], pids: Sequence[int], owner: Mapping[str, Any]
) -> list[Claimed]:
    """Claim a batch for each of these children, as far as there are any; return the members in their order."""
    values = {**owner, "lanes": as_json(lanes), "pids": list(pids)}
    cursor = await connection.execute(SQL["claim_batches"], values, prepare=True)
    return [Claimed(*row) for row in await cursor.fetchall()]


async def batch_is_ready(connection: Connection, lanes: Sequence[BatchLane], worker_id: UUID) -> bool:
    """Return True if a batch of these lanes is ready to be claimed."""
    values = {"lanes": as_json(lanes), "worker_id": worker_id}
    row = await (await connection.execute(SQL["batch_is_ready"], values, prepare=True)).fetchone()
    return row is not None and row[0]


async def next_due(
    connection: Connection, queues: Sequence[str], rates: Sequence[str], batches: Mapping[str, float]
) -> NextDue:
    """Return when a task of these queues is due, a rate limit or a key allows one, a batch is ready, or any task expires.

    `batches` has the seconds for which the first member of a batch waits, by lane.
    """
    cursor = connection.cursor(row_factory=class_row(NextDue))
    lingers = as_json([{"rate_key": lane, "linger": seconds} for lane, seconds in batches.items()])
    await cursor.execute(SQL["next_due"], {"queues": list(queues), "rates": list(rates), "batches": lingers})
    return await cursor.fetchone() or NextDue(None, False)


async def watch(connection: Connection, ids: Sequence[UUID]) -> list[TaskState]:
    """Return the state of tasks, and mark those that have not ended so that their end is notified."""
    cursor = await connection.execute(SQL["watch"], {"ids": list(ids), "since": not_before(ids)})
    return [TaskState._make(row) for row in await cursor.fetchall()]


async def look(connection: Connection, ids: Sequence[UUID]) -> list[TaskState]:
    """Return the state of tasks."""
    cursor = await connection.execute(SQL["look"], {"ids": list(ids), "since": not_before(ids)})
    return [TaskState(*row, watched=False) for row in await cursor.fetchall()]


async def count_settled_by(connection: Connection, worker_id: UUID, ids: Sequence[str]) -> int:
    """Return how many of these tasks this worker has settled."""
    values = {"worker_id": worker_id, "ids": list(ids), "since": not_before(map(UUID, ids))}
    row = await (await connection.execute(SQL["count_settled_by"], values)).fetchone()
    return 0 if row is None else int(row[0])


def queue_channel(queue_name: str) -> str:
    """Return the channel that wakes the workers of a queue, the same as `horsies_queue_channel` in SQL."""
    encoded = queue_name.encode()
    is_short = len(encoded) <= 52
    return f"task_queue_{queue_name if is_short else hashlib.md5(encoded, usedforsecurity=False).hexdigest()}"


# Progress and log lines of running tasks, for people to read


class TaskProgress(NamedTuple):
    """The last progress that a task has reported."""

    done: float
    total: float | None
    message: str
    at: datetime


class TaskLogLine(NamedTuple):
    """A line that a task has logged. Lines are numbered from 0 in each run: a gap shows how many were not kept."""

    attempt: int
    seq: int
    at: datetime
    level: str
    logger: str
    message: str


class ProgressReport(msgspec.Struct, frozen=True):
    """Progress of a task that is about to be stored."""

    task_id: str
    claim_seq: int
    done: float
    total: float | None
    message: str
    at: datetime


class OutputLine(msgspec.Struct, frozen=True):
    """A log line of a task that is about to be stored."""

    task_id: str
    claim_seq: int
    seq: int
    attempt: int
    at: datetime
    level: str
    logger: str
    message: str


async def write_output(
    connection: Connection, reports: Sequence[ProgressReport], lines: Sequence[OutputLine]
) -> None:
    """Store progress and log lines. `reports` has at most one entry per task."""
    if reports:
        await connection.execute(SQL["write_progress"], {"reports": as_json(reports)})
    if lines:
        await connection.execute(SQL["write_lines"], {"lines": as_json(lines), "keep": LINES_KEPT})


async def progress(connection: Connection, task_id: UUID) -> TaskProgress | None:
    """Return the last progress that a task has reported, or None."""
    cursor = connection.cursor(row_factory=class_row(TaskProgress))
    return await (await cursor.execute(SQL["progress"], {"id": task_id})).fetchone()


async def log_lines(connection: Connection, task_id: UUID) -> list[TaskLogLine]:
    """Return the log lines of all runs of a task, the first line first."""
    cursor = connection.cursor(row_factory=class_row(TaskLogLine))
    return await (await cursor.execute(SQL["log_lines"], {"id": task_id})).fetchall()
