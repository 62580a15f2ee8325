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
from psycopg import AsyncCursor

from horsies.storage.database import Connection
from horsies.storage.ids import not_before
from horsies.storage.statements import statements

SQL = statements("tasks")

Cursor = AsyncCursor[tuple[Any, ...]]


class NewTask(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
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
    idempotency_key: str | None = None
    enqueue_sha: str | None = None


class Taken(NamedTuple):
    """Why a row was left out of a send: what holds its key or its id."""

    id: UUID
    key_task_id: UUID | None
    key_sha: str | None
    unique_task_id: UUID | None
    same_id: UUID | None
    is_same: bool


class Claimed(NamedTuple):
    """A task that this worker holds; `pid` is the child it is started for, None while it waits here."""

    id: UUID
    claim_seq: int
    task_name: str
    args: str | None
    kwargs: str | None
    queue_name: str
    priority: int
    enqueued_at: datetime
    pid: int | None
    timeout_ms: int | None
    retry_count: int
    max_retries: int
    crash_count: int
    task_options: str | None


class Seen(NamedTuple):
    """What has become of a task; `watched` when its end will be notified."""

    id: UUID
    status: str
    result: str | None
    watched: bool


class Failure(msgspec.Struct, frozen=True):
    """The end of an attempt that failed; with a delay the task is due again."""

    id: UUID
    claim_seq: int
    result: str
    error_code: str | None
    message: str | None
    reason: str | None = None
    delay_seconds: float | None = None
    crashed: bool = False


def encode_rows(rows: Sequence[NewTask]) -> str:
    return msgspec.json.encode(rows).decode()


async def finished(connection: Connection, ids: Sequence[UUID]) -> set[UUID]:
    cursor = await connection.execute(SQL["finished"], {"ids": list(ids), "since": not_before(ids)})
    return {row[0] for row in await cursor.fetchall()}


async def start(connection: Connection, tasks: Sequence[tuple[UUID, int, int]]) -> Cursor:
    """Start prefetched tasks, given as (id, claim_seq, pid of the child)."""
    ids, seqs, pids = zip(*tasks, strict=True)
    return await connection.execute(SQL["start"], {"ids": list(ids), "seqs": list(seqs), "pids": list(pids)})


async def complete(connection: Connection, ended: Sequence[tuple[UUID, int, str]]) -> Cursor:
    """End tasks that returned, given as (id, claim_seq, result)."""
    ids, seqs, results = zip(*ended, strict=True)
    values = {"ids": list(ids), "seqs": list(seqs), "results": list(results)}
    return await connection.execute(SQL["complete"], values)


async def fail(connection: Connection, failures: Sequence[Failure]) -> Cursor:
    """End attempts that failed; the answer has (id, whether it is retried)."""
    return await connection.execute(
        SQL["fail"],
        {
            "ids": [failure.id for failure in failures],
            "seqs": [failure.claim_seq for failure in failures],
            "results": [failure.result for failure in failures],
            "codes": [failure.error_code for failure in failures],
            "messages": [failure.message for failure in failures],
            "reasons": [failure.reason for failure in failures],
            "delays": [failure.delay_seconds for failure in failures],
            "crashes": [int(failure.crashed) for failure in failures],
        },
    )


async def release(connection: Connection, worker_id: UUID, keep: Iterable[UUID]) -> int:
    """Give back everything this worker holds but the tasks named."""
    cursor = await connection.execute(SQL["release"], {"worker_id": worker_id, "keep": list(keep)})
    return cursor.rowcount


async def expire(connection: Connection, worker_id: UUID, result: str) -> int:
    cursor = await connection.execute(SQL["expire"], {"worker_id": worker_id, "result": result})
    return cursor.rowcount


async def next_due(connection: Connection, queues: Sequence[str]) -> float | None:
    """Seconds until a delayed task of these queues is due or any task expires; None when none will."""
    cursor = await connection.execute(SQL["next_due"], {"queues": list(queues)})
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


async def count_mine(connection: Connection, worker_id: UUID, ids: Iterable[UUID]) -> int:
    """How many of these tasks this worker has ended."""
    wanted = list(ids)
    values = {"worker_id": worker_id, "ids": wanted, "since": not_before(wanted)}
    row = await (await connection.execute(SQL["count_mine"], values)).fetchone()
    return 0 if row is None else int(row[0])


def queue_channel(queue_name: str) -> str:
    """The channel that wakes the workers of a queue, as `horsies_queue_channel` names it."""
    fits = len(queue_name.encode()) <= 52
    return f"task_queue_{queue_name if fits else hashlib.md5(queue_name.encode(), usedforsecurity=False).hexdigest()}"
