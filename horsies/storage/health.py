"""Whether a worker of a host claims and beats in time, as the database knows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from horsies.spans import span
from horsies.status import WorkerState
from horsies.storage.database import Connection
from horsies.storage.statements import statements

SQL = statements("health")


class Sign(NamedTuple):
    """What a worker last said of itself."""

    worker_id: str
    pid: int
    state: str
    silent_seconds: float


class Verdict(NamedTuple):
    """Whether all is well, and why, in a sentence."""

    ok: bool
    reason: str


async def workers_of(connection: Connection, hostname: str) -> list[Sign]:
    cursor = await connection.execute(SQL["of_host"], {"hostname": hostname})
    return [Sign._make(row) for row in await cursor.fetchall()]


def judge(workers: Sequence[Sign], hostname: str) -> Verdict:
    """One worker that is well is enough. One that was suspended is: it waits for an operator, not for a restart."""
    if not workers:
        return Verdict(False, f"no worker has registered on {hostname}")
    idle = (WorkerState.DEAD, WorkerState.DRAINING)
    for worker in workers:
        if worker.state not in idle:
            return Verdict(
                True, f"worker {worker.pid} is {worker.state}; it beat {span(worker.silent_seconds)} ago"
            )
    last = workers[0]
    if last.state == WorkerState.DRAINING:
        return Verdict(False, f"worker {last.pid} is stopping: it claims nothing more")
    return Verdict(
        False, f"worker {last.pid} has not beaten for {span(last.silent_seconds)}: its lease has run out"
    )
