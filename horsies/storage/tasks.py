"""The life of a task in the database: sent, claimed, started, ended.

Each function is one statement, named as in `sql/tasks.sql`. Whatever ends or starts a task carries its `claim_seq`:
a row that changed hands in the meantime is simply not in the answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from psycopg import AsyncClientCursor, errors

from horsies.storage.database import Connection
from horsies.storage.ids import not_before
from horsies.storage.statements import statements

SQL = statements("tasks")
# As a number of tasks: as many as there are.
NO_LIMIT = 2**31 - 1
# Each is compared with every other one there: few enough for that not to matter.
FAILURES_PER_STATEMENT = 100

_encode = msgspec.json.Encoder().encode

# The result of a task that was asked to stop, whatever it gave or raised.
CANCELLED_CODE = "TASK_CANCELLED"
CANCELLED = (
    '{"err":{"error_code":{"__builtin_task_code__":"TASK_CANCELLED"},'
    '"message":"the task was cancelled","data":null,"exception":null}}'
)


# The parameters of `exchange`, for when it is prepared by name.
EXCHANGE_TYPES = {
    "completed": "text",
    "lines": "text",
    "pools": "text",
    "caps": "text",
    "rates": "text[]",
    "limit": "integer",
    "batch": "integer",
    "lease_seconds": "double precision",
    "worker_id": "uuid",
    "hostname": "text",
    "process_name": "text",
}
_PREPARE = b"PREPARE horsies_exchange (%s) AS %s" % (
    ", ".join(EXCHANGE_TYPES.values()).encode(),
    SQL["exchange_within"] % {name.encode(): b"$%d" % n for n, name in enumerate(EXCHANGE_TYPES, 1)},
)
_EXECUTE = f"EXECUTE horsies_exchange ({', '.join(f'%({name})s' for name in EXCHANGE_TYPES)})".encode()


class NewTask(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """A task that is about to be sent; the fields are the columns that `send` knows."""

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
    tags: tuple[str, ...] | None = None
    rate_key: str = ""
    idempotency_key: str | None = None
    enqueue_sha: str | None = None


class Taken(NamedTuple):
    """Why a row was left out of a send: what holds its key or its id."""

    id: str
    key_task_id: str | None
    key_sha: str | None
    unique_task_id: str | None
    same_id: str | None
    is_same: bool


class Claimed(NamedTuple):
    """A task that this worker holds; `pid` is the child it is started for, None while it waits here.

    Ids and times are passed through as text: nobody here computes with them.
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
    earlier_attempts: int = 0  # before it was sent through once more
    inputs: str | None = None  # what comes to it from other nodes of its workflow

    @property
    def node(self) -> tuple[str, int] | None:
        """The node of a workflow that this is the task of, if it is."""
        return None if self.workflow_id is None else (self.workflow_id, self.workflow_index or 0)


class Line(msgspec.Struct, frozen=True):
    """Where tasks stand in order: those of one kind in a queue, or one rate limit's. How many are asked for, after which
    key, and for which pool of children."""

    pool: int
    queue_name: str
    is_async: bool
    rate_key: str
    quota: int
    priority: int
    enqueued_at: str
    id: str


class Room(msgspec.Struct, frozen=True):
    """What a pool of children can take: so many tasks, the first of them for these children, the idle ones first."""

    pool: int
    room: int
    idle: int
    pids: list[int]


class Cap(msgspec.Struct, frozen=True):
    """A limit of the cluster for one queue, or for all as '': what we hold of it, and what we last said that we hold."""

    queue_name: str
    most: int
    mine: int
    recorded: int


class Ask(NamedTuple):
    """A claim: by whom, of what, for which children, within which limits."""

    lines: list[Line]
    pools: list[Room]
    caps: list[Cap]
    rates: list[str]
    limit: int
    batch: int
    lease_seconds: float
    worker_id: UUID
    hostname: str
    process_name: str


class Completed(msgspec.Struct, frozen=True, omit_defaults=True):
    """A task that returned; `node` if it belongs to a workflow."""

    id: str
    claim_seq: int
    result: str
    node: tuple[str, int] | None = None


class Start(msgspec.Struct, frozen=True):
    """A prefetched task that is to leave for a child."""

    id: str
    claim_seq: int
    pid: int


class Expired(NamedTuple):
    """A task that was not started in time."""

    id: str
    task_name: str
    queue_name: str
    workflow_id: str | None


class Seen(NamedTuple):
    """What has become of a task; `watched` when its end will be notified."""

    id: UUID
    status: str
    result: str | None
    watched: bool


class Failure(msgspec.Struct, frozen=True):
    """The end of an attempt that failed; with a delay the task is due again.

    A `snoozed` one was no attempt. What is `asked` is an end only for a task that was asked to stop. When it has failed for
    good, the task named `on_failure` is sent.
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


def stopped(task: Claimed | Completed) -> Failure:
    """The end of a task that does not run any more, if it was asked to stop."""
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


def encode_rows(rows: Sequence[NewTask]) -> str:
    return as_json(rows)


def as_texts(row: NewTask) -> dict[str, str | None]:
    """The columns of a new task, each as the text that PostgreSQL reads it from."""
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
    }


def _array(texts: Iterable[str]) -> str:
    quoted = (text.replace("\\", r"\\").replace('"', r"\"") for text in texts)
    return "{" + ",".join(f'"{text}"' for text in quoted) + "}"


def outcomes(completed: Iterable[Completed]) -> str:
    """What tasks returned, as the statements that end them want it."""
    return as_json({f"{task.id}/{task.claim_seq}": task.result for task in completed})


def as_calls(calls: Iterable[tuple[str, int]]) -> str:
    """Calls by their id and `claim_seq`, as the statements that give them back want them."""
    return as_json({f"{task_id}/{claim_seq}": True for task_id, claim_seq in calls})


async def finished(connection: Connection, ids: Sequence[UUID]) -> set[UUID]:
    cursor = await connection.execute(SQL["finished"], {"ids": list(ids), "since": not_before(ids)})
    return {row[0] for row in await cursor.fetchall()}


async def exchange(
    connection: Connection, completed: Sequence[Completed], ask: Ask
) -> tuple[int, list[Claimed]]:
    """End tasks and claim others in one round trip; tells how many were ended, and which are claimed, in order."""
    values = exchange_values(completed, ask)
    if ask.caps:
        cursor = await _in_turn(connection, values, [cap.queue_name for cap in ask.caps])
    else:
        statement = SQL["exchange" if is_plain(ask) else "exchange_within"]
        cursor = await connection.execute(statement, values, prepare=True)
    return read_exchange(await cursor.fetchall())


def is_plain(ask: Ask) -> bool:
    """Whether a claim goes by no limits, so that the plain exchange will do."""
    room = sum(room.room for room in ask.pools)
    return not ask.caps and not ask.rates and ask.batch == NO_LIMIT and ask.limit >= room


def exchange_values(completed: Sequence[Completed], ask: Ask) -> dict[str, Any]:
    return ask._asdict() | {
        "completed": outcomes(completed),
        "lines": as_json(ask.lines),
        "pools": as_json(ask.pools),
        "caps": as_json(ask.caps),
    }


def read_exchange(rows: Sequence[tuple[Any, ...]]) -> tuple[int, list[Claimed]]:
    """What an exchange has answered: how many were ended, and which are claimed."""
    summary, *claimed = rows
    return summary[2], [Claimed(*row) for row in claimed]


async def _in_turn(
    connection: Connection, values: dict[str, Any], capped: list[str]
) -> AsyncClientCursor[tuple[Any, ...]]:
    """Wait for our turn at what is capped, everything when that is, else the queues; then exchange.

    Both go out as one message without parameters: one round trip, one transaction, and the second statement sees what
    was committed while the first one waited. A pipeline does the same, and takes 1.4 ms more of our time.
    """
    cursor = AsyncClientCursor(connection)
    message = b"%s; %s" % (SQL["lock_all" if "" in capped else "lock_queues"], _EXECUTE)
    try:
        await cursor.execute(message, values | {"queues": capped})
    except errors.InvalidSqlStatementName:  # the first time on this connection
        await connection.execute(_PREPARE)
        await cursor.execute(message, values | {"queues": capped})
    cursor.nextset()
    return cursor


async def refresh(connection: Connection) -> bool:
    """Have plans made anew if what is known of the live table is out of date, and nobody else is at it."""
    try:
        row = await (await connection.execute(SQL["refresh"])).fetchone()
    except errors.LockNotAvailable:
        return False
    return row is not None and bool(row[0])


async def start(connection: Connection, starts: Sequence[Start]) -> set[str]:
    """Start prefetched tasks; the answer has the ids of those that may leave."""
    cursor = await connection.execute(
        SQL["start"], {"starts": as_json({f"{task.id}/{task.claim_seq}": task.pid for task in starts})}
    )
    return {row[0] for row in await cursor.fetchall()}


async def fail(connection: Connection, failures: Sequence[Failure]) -> dict[str, bool]:
    """End attempts that failed; for each that was ours, whether it is retried."""
    ours: dict[str, bool] = {}
    for first in range(0, len(failures), FAILURES_PER_STATEMENT):
        some = failures[first : first + FAILURES_PER_STATEMENT]
        cursor = await connection.execute(SQL["fail"], {"failures": as_json(some), "cancelled": CANCELLED})
        ours |= {row[0]: row[1] for row in await cursor.fetchall()}
    return ours


async def release(connection: Connection, worker_id: UUID, keep: Iterable[tuple[str, int]]) -> int:
    """Give back everything this worker holds but the tasks named, each by its id and `claim_seq`."""
    held = [{"id": task_id, "claim_seq": claim_seq} for task_id, claim_seq in keep]
    cursor = await connection.execute(SQL["release"], {"worker_id": worker_id, "keep": as_json(held)})
    return cursor.rowcount


async def give_back(connection: Connection, calls: Iterable[tuple[str, int]]) -> int:
    """Give back tasks that count as started and were not, each named by its id and `claim_seq`."""
    held = list(calls)
    if not held:
        return 0
    return (await connection.execute(SQL["give_back"], {"calls": as_calls(held)})).rowcount


async def put_off(connection: Connection, calls: Iterable[tuple[str, int]], grace_seconds: float) -> set[str]:
    """Give back tasks that are not known here, unless they have waited for so long; which were."""
    values = {"calls": as_calls(calls), "grace_seconds": grace_seconds}
    return {row[0] for row in await (await connection.execute(SQL["put_off"], values)).fetchall()}


async def expire(connection: Connection, worker_id: UUID, result: str) -> list[Expired]:
    """End tasks that were not started in time."""
    cursor = await connection.execute(SQL["expire"], {"worker_id": worker_id, "result": result})
    return [Expired(*row[1:]) for row in await cursor.fetchall()]


async def next_due(connection: Connection, queues: Sequence[str], rates: Sequence[str]) -> float | None:
    """Seconds until a task of these queues is due, may start again, or any expires; None when none will."""
    cursor = await connection.execute(SQL["next_due"], {"queues": list(queues), "rates": list(rates)})
    row = await cursor.fetchone()
    return None if row is None else row[0]


async def watch(connection: Connection, ids: Sequence[UUID]) -> list[Seen]:
    """Look, and ask that the end of what is not done be notified."""
    cursor = await connection.execute(SQL["watch"], {"ids": list(ids), "since": not_before(ids)})
    return [Seen._make(row) for row in await cursor.fetchall()]


async def look(connection: Connection, ids: Sequence[UUID]) -> list[Seen]:
    cursor = await connection.execute(SQL["look"], {"ids": list(ids), "since": not_before(ids)})
    return [Seen(*row, watched=False) for row in await cursor.fetchall()]


async def info(connection: Connection, task_id: UUID) -> tuple[Any, ...] | None:
    cursor = await connection.execute(SQL["info"], {"id": task_id, "since": not_before([task_id])})
    return await cursor.fetchone()


async def attempts(connection: Connection, task_id: UUID) -> list[tuple[Any, ...]]:
    cursor = await connection.execute(SQL["attempts"], {"id": task_id})
    return await cursor.fetchall()


async def mine(connection: Connection, worker_id: UUID, ids: Iterable[str]) -> int:
    """How many of these tasks this worker has ended."""
    wanted = list(ids)
    values = {"worker_id": worker_id, "ids": wanted, "since": not_before(map(UUID, wanted))}
    row = await (await connection.execute(SQL["mine"], values)).fetchone()
    return 0 if row is None else int(row[0])


def queue_channel(queue_name: str) -> str:
    """The channel that wakes the workers of a queue, as `horsies_queue_channel` names it."""
    fits = len(queue_name.encode()) <= 52
    return f"task_queue_{queue_name if fits else hashlib.md5(queue_name.encode(), usedforsecurity=False).hexdigest()}"
