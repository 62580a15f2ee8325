"""What workers say of themselves, over time: snapshots of a worker, and signs of life of tasks that run for long.

All of it is for people. Nothing is decided by these rows, and none of them is kept for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

import msgspec

from horsies.config import RetentionConfig
from horsies.storage.database import Connection
from horsies.storage.statements import statements
from horsies.storage.tasks import as_json

SQL = statements("states")


class Snapshot(NamedTuple):
    """A worker at one moment, beside what it said when it registered; settings and children are JSON."""

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


class Pulse(msgspec.Struct, frozen=True):
    """A task that still runs, and the child that runs it."""

    task_id: str
    claim_seq: int
    pid: int
    memory_mb: float


async def snapshot(connection: Connection, snapshot: Snapshot) -> None:
    await connection.execute(SQL["snapshot"], snapshot._asdict())


async def pulse(connection: Connection, worker_id: UUID, pulses: Sequence[Pulse]) -> None:
    await connection.execute(SQL["pulse"], {"worker_id": worker_id, "rows": as_json(pulses)})


async def prune(connection: Connection, retention: RetentionConfig) -> bool:
    """Delete one batch of what is too old; whether there may be more."""
    values = {
        "state_hours": retention.worker_state_retention_hours,
        "heartbeat_hours": retention.heartbeat_retention_hours,
        "batch": retention.retention_delete_batch_size,
    }
    row = await (await connection.execute(SQL["prune"], values)).fetchone()
    return row is not None and row[0] >= retention.retention_delete_batch_size
