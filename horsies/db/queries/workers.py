"""Store and query workers: registration, leases, dead workers and their tasks, snapshots, and the health of a host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

import msgspec
from psycopg.rows import class_row, dict_row, scalar_row

from horsies.db.connection import Connection
from horsies.db.queries import operations
from horsies.db.queries.tasks import Claimed, as_json, give_back
from horsies.db.sql import statements
from horsies.status import WorkerState
from horsies.units import span

SQL = statements("workers")


# Registration and leases


class Registration(NamedTuple):
    """The row that a worker inserts when it starts."""

    worker_id: UUID
    hostname: str
    pid: int
    processes: int
    queues: list[str]
    lease_seconds: float


class Definition(msgspec.Struct, frozen=True):
    """A task as the worker's code defines it."""

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
    key_source: str | None = None
    key_concurrency: int | None = None
    key_seconds: float | None = None
    key_burst: int | None = None
    on_conflict: str = "first"


class Registered(NamedTuple):
    """State of the cluster that a worker needs from the start: the keys of its rate limits and its suspended queues."""

    rates: list[str]
    suspended: list[str]


class LeaseReply(NamedTuple):
    """The answer to a heartbeat. `is_alive` is False if the worker was declared dead."""

    is_alive: bool
    others_are_late: bool = False  # the lease of another worker has expired
    leads: bool = False  # this worker does the maintenance of the cluster
    suspended: Sequence[str] = ()
    cancelled: Sequence[str] = ()  # the tasks in `running` for which cancellation was requested


async def register(
    connection: Connection, worker: Registration, definitions: Sequence[Definition]
) -> Registered:
    """Insert a worker, and insert or update the definitions and rate limits of its tasks."""
    rows = as_json(definitions)
    async with connection.transaction():
        names = [definition.task_name for definition in definitions]
        await connection.execute(SQL["register"], worker._asdict() | {"task_names": names})
        await connection.execute(SQL["upsert_definitions"], {"rows": rows})
        await connection.execute(SQL["upsert_rates"], {"rows": rows})
        await connection.execute(SQL["resume_deferred"], {"rows": rows})
        rates = await connection.cursor(row_factory=scalar_row).execute(SQL["rates"])
        registered = Registered(await rates.fetchall(), await operations.suspensions(connection))
    await prepare_history(connection)
    return registered


async def known_elsewhere(connection: Connection, names: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return those of these queues and task names that a live worker serves and knows."""
    rows = as_json([{"queue_name": queue, "task_name": name} for queue, name in names])
    return set(await (await connection.execute(SQL["known_elsewhere"], {"rows": rows})).fetchall())


async def deregister(connection: Connection, worker_id: UUID) -> None:
    """Delete a worker that has stopped."""
    await connection.execute(SQL["deregister"], {"worker_id": worker_id})


async def prepare_history(connection: Connection) -> None:
    """Create the history partitions of the coming days that do not exist yet."""
    await connection.execute(SQL["prepare_history"])


async def renew_lease(
    connection: Connection, worker_id: UUID, state: str, lease_seconds: float, running: Sequence[str] = ()
) -> LeaseReply:
    """Send the heartbeat of a worker: extend its lease and return what it has to know about the cluster."""
    values = {
        "worker_id": worker_id,
        "state": state,
        "lease_seconds": lease_seconds,
        "running": list(running),
    }
    cursor = await connection.cursor(row_factory=class_row(LeaseReply)).execute(SQL["renew_lease"], values)
    return await cursor.fetchone() or LeaseReply(is_alive=False)


async def set_waiting(
    connection: Connection, worker_id: UUID, waiting: bool, waiting_async: bool, state: str
) -> None:
    """Store whether the worker sleeps until it is notified of plain tasks and of async tasks."""
    values = {"worker_id": worker_id, "waiting": waiting, "waiting_async": waiting_async, "state": state}
    await connection.execute(SQL["set_waiting"], values)


async def open_sends(connection: Connection, named: Sequence[str] | None) -> list[str]:
    """Return the open transactions that may have sent tasks; with `named`, those of an earlier answer that are still open."""
    values = {"named": None if named is None else list(named)}
    cursor = await connection.cursor(row_factory=scalar_row).execute(SQL["open_sends"], values)
    return await cursor.fetchall()


async def server_identity(connection: Connection) -> str:
    """Return a text that tells this server, since its last start, from others."""
    row = await (await connection.execute(SQL["server_identity"])).fetchone()
    return "" if row is None else str(row[0])


async def open_sessions(connection: Connection, sessions: Iterable[int]) -> set[int]:
    """Return those of the sessions, given by their backend pids, that have not ended."""
    values = {"sessions": list(sessions)}
    cursor = await connection.cursor(row_factory=scalar_row).execute(SQL["open_sessions"], values)
    return set(await cursor.fetchall())


# Dead workers and their tasks


class Rules(NamedTuple):
    """The time a worker must be silent beyond its lease until its tasks count as lost, and whether they are recovered.

    No worker is declared dead within `quarantine_seconds` after the start of the server.
    """

    quarantine_seconds: float
    claimed_seconds: float = 0.0
    running_seconds: float = 0.0
    requeue: bool = True
    fail: bool = True


class DeadWorker(NamedTuple):
    """A worker that was declared dead."""

    worker_id: UUID
    hostname: str
    pid: int


class Orphan(NamedTuple):
    """A task whose worker is dead or unknown."""

    task: Claimed
    was_started: bool


async def try_reaper_lock(connection: Connection) -> bool:
    """Return True if this transaction is now the only one that reaps."""
    cursor = await connection.cursor(row_factory=scalar_row).execute(SQL["try_reaper_lock"])
    return bool(await cursor.fetchone())


async def mark_dead(connection: Connection, rules: Rules) -> list[DeadWorker]:
    """Declare the workers dead whose lease has expired, and return them."""
    cursor = connection.cursor(row_factory=class_row(DeadWorker))
    return await (await cursor.execute(SQL["mark_dead"], rules._asdict())).fetchall()


async def orphans(connection: Connection, rules: Rules) -> list[Orphan]:
    """Lock and return a batch of tasks whose worker is dead or unknown."""
    cursor = connection.cursor(row_factory=dict_row)
    rows = await (await cursor.execute(SQL["orphans"], rules._asdict())).fetchall()
    return [Orphan(was_started=row.pop("was_started"), task=Claimed(**row)) for row in rows]


async def unclaim(connection: Connection, tasks: Sequence[Claimed]) -> None:
    """Release claims of dead workers that were never started, and wake the workers of their queues."""
    await give_back(connection, ((task.id, task.claim_seq) for task in tasks), None, status="CLAIMED")


async def delete_usage_of_dead(connection: Connection) -> None:
    """Delete the usage of concurrency limits by dead workers, and wake the workers that wait for it."""
    await connection.execute(SQL["delete_usage_of_dead"])


async def sweep_keys(connection: Connection) -> None:
    """Delete slots and states of keys that are not needed any more."""
    await connection.execute(SQL["sweep_keys"])


# Snapshots of workers and heartbeats of long-running tasks. Both are for people: no code decides anything by them.


class Snapshot(NamedTuple):
    """The state of a worker at one moment, without the columns that are copied from its registration.

    `queue_priorities`, `queue_max_concurrency`, `recovery_config` and `children` are JSON.
    """

    worker_id: UUID
    state: str
    max_claim_batch: int
    max_claim_per_worker: int
    cluster_wide_cap: int | None
    queue_priorities: str
    queue_max_concurrency: str
    recovery_config: str
    tasks_running: int
    tasks_claimed: int
    memory_usage_mb: float
    memory_percent: float
    cpu_percent: float
    children_memory_mb: float
    current_task_ids: list[str]
    children: str


class TaskHeartbeat(msgspec.Struct, frozen=True):
    """A task that is still running, and the child that runs it."""

    task_id: str
    claim_seq: int
    pid: int
    memory_mb: float


async def insert_snapshot(connection: Connection, snapshot: Snapshot) -> None:
    """Store the snapshot of a worker, unless it was declared dead."""
    await connection.execute(SQL["insert_snapshot"], snapshot._asdict())


async def insert_task_heartbeats(
    connection: Connection, worker_id: UUID, heartbeats: Sequence[TaskHeartbeat]
) -> None:
    """Store the heartbeats of tasks that this worker still runs."""
    values = {"worker_id": worker_id, "rows": as_json(heartbeats)}
    await connection.execute(SQL["insert_task_heartbeats"], values)


# The health of a host, for `horsies health`


class WorkerOnHost(NamedTuple):
    """A worker of a host, with the seconds since its last heartbeat."""

    worker_id: str
    pid: int
    state: str
    silent_seconds: float


class HostHealth(NamedTuple):
    """The answer to a health check of a host, and the reason in one sentence."""

    ok: bool
    reason: str


async def on_host(connection: Connection, hostname: str) -> list[WorkerOnHost]:
    """Return the workers of a host, the one with the latest heartbeat first."""
    cursor = connection.cursor(row_factory=class_row(WorkerOnHost))
    return await (await cursor.execute(SQL["on_host"], {"hostname": hostname})).fetchall()


def host_health(workers: Sequence[WorkerOnHost], hostname: str) -> HostHealth:
    """Check the workers of a host. One healthy worker is enough.

    A suspended worker is healthy: it waits for an operator, and a restart would not help.
    """
    if not workers:
        return HostHealth(False, f"no worker has registered on {hostname}")
    for worker in workers:
        if worker.state not in (WorkerState.DEAD, WorkerState.DRAINING):
            silent = span(worker.silent_seconds)
            return HostHealth(True, f"worker {worker.pid} is {worker.state}; last heartbeat {silent} ago")
    last = workers[0]
    if last.state == WorkerState.DRAINING:
        return HostHealth(False, f"worker {last.pid} is stopping and claims no more tasks")
    silent = span(last.silent_seconds)
    return HostHealth(
        False, f"worker {last.pid} has sent no heartbeat for {silent}, and its lease has expired"
    )
