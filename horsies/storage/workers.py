"""Workers in the database: a lease for each, and what becomes of the tasks of one that died."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

import msgspec

from horsies.storage import operations
from horsies.storage.database import Connection
from horsies.storage.statements import statements
from horsies.storage.tasks import Claimed, as_calls, as_json

SQL = statements("workers")


class Registration(NamedTuple):
    """What a worker says of itself when it starts."""

    worker_id: UUID
    hostname: str
    pid: int
    processes: int
    queues: list[str]
    lease_seconds: float


class Definition(msgspec.Struct, frozen=True):
    """A task as a worker knows it."""

    task_name: str
    queue_name: str
    priority: int
    is_async: bool
    max_retries: int
    timeout_ms: int | None
    task_options: str | None
    rate_key: str = ""
    rate_seconds: float | None = None
    rate_burst: int | None = None


class Orphan(NamedTuple):
    """A task whose worker is gone."""

    task: Claimed
    was_started: bool


class Standing(NamedTuple):
    """What holds in the cluster when a worker registers: its rate limits, and the queues that are suspended."""

    rates: list[str]
    suspended: list[str]


class Beat(NamedTuple):
    """What a worker learns when it renews its lease."""

    is_alive: bool
    others_are_late: bool = False
    leads: bool = False
    suspended: Sequence[str] = ()
    cancelled: Sequence[str] = ()  # of the tasks that it runs, those that are asked to stop


class Rules(NamedTuple):
    """When work of a silent worker counts as lost, in seconds of silence beyond its lease, and what may be done about it.

    `quarantine_seconds` is how long nobody is declared dead after the server came up.
    """

    quarantine_seconds: float
    claimed_seconds: float = 0.0
    running_seconds: float = 0.0
    requeue: bool = True
    fail: bool = True


async def register(
    connection: Connection, worker: Registration, definitions: Sequence[Definition]
) -> Standing:
    """Make a worker known, with the tasks that it knows."""
    rows = as_json(definitions)
    async with connection.transaction():
        await connection.execute(SQL["register"], worker._asdict())
        await connection.execute(SQL["define"], {"rows": rows})
        await connection.execute(SQL["limit_rates"], {"rows": rows})
        await connection.execute(SQL["welcome"], {"rows": rows})
        rates = await (await connection.execute(SQL["rates"])).fetchall()
        suspended = await operations.suspensions(connection)
    await prepare_history(connection)
    return Standing([row[0] for row in rates], suspended)


async def prepare_history(connection: Connection) -> None:
    """Make sure of the history partitions of the coming days."""
    await connection.execute(SQL["prepare_history"])


async def beat(
    connection: Connection, worker_id: UUID, state: str, lease_seconds: float, running: Sequence[str] = ()
) -> Beat:
    values = {
        "worker_id": worker_id,
        "state": state,
        "lease_seconds": lease_seconds,
        "running": list(running),
    }
    row = await (await connection.execute(SQL["beat"], values)).fetchone()
    return Beat(is_alive=False) if row is None else Beat(True, *row)


async def wait(
    connection: Connection, worker_id: UUID, waiting: bool, waiting_async: bool, state: str
) -> None:
    values = {"worker_id": worker_id, "waiting": waiting, "waiting_async": waiting_async, "state": state}
    await connection.execute(SQL["wait"], values)


async def living(connection: Connection, sessions: Iterable[int]) -> set[int]:
    """Which of these sessions, given as their servers' pids, have not ended."""
    cursor = await connection.execute(SQL["living"], {"sessions": list(sessions)})
    return {row[0] for row in await cursor.fetchall()}


async def resign(connection: Connection, worker_id: UUID) -> None:
    await connection.execute(SQL["resign"], {"worker_id": worker_id})


async def lead(connection: Connection) -> bool:
    """Whether this transaction is the only one that cleans up now."""
    row = await (await connection.execute(SQL["lead"])).fetchone()
    return row is not None and bool(row[0])


async def bury(connection: Connection, rules: Rules) -> list[tuple[UUID, str, int]]:
    """Declare workers dead whose lease ran out."""
    cursor = await connection.execute(SQL["bury"], rules._asdict())
    return [(row[0], row[1], row[2]) for row in await cursor.fetchall()]


async def orphans(connection: Connection, rules: Rules) -> list[Orphan]:
    cursor = await connection.execute(SQL["orphans"], rules._asdict())
    return [Orphan(Claimed(*row[1:]), row[0] == "RUNNING") for row in await cursor.fetchall()]


async def unclaim(connection: Connection, tasks: Sequence[Claimed]) -> None:
    """Give back claims of others that were never started."""
    lost = as_calls((task.id, task.claim_seq) for task in tasks)
    await connection.execute(SQL["unclaim"], {"lost": lost})


async def forget(connection: Connection) -> None:
    """What dead workers held counts no longer; those who waited for it are woken."""
    await connection.execute(SQL["forget"])
