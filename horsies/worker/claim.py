"""Ask for as many tasks as there is room for, fairly and without walking the dead.

Queues are asked in the order of their priority; queues of equal priority take turns at being first. In each queue a
claim starts after the last key that was claimed: rows before it are gone or taken, yet the index still holds them
until vacuum comes by. Every so often a claim starts from the very beginning, to find what was given back or is more
urgent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from uuid import UUID

from horsies.config import CustomQueueConfig
from horsies.storage.database import Connection
from horsies.storage.ids import LONG_AGO
from horsies.storage.tasks import SQL, Claimed, Cursor

# A claim from the beginning may cost this share of the time between two of them, within these bounds.
REWIND_SHARE = 0.05
REWIND_MIN_SECONDS, REWIND_MAX_SECONDS = 0.05, 1.0

Key = tuple[int, datetime, UUID]
START: Key = (0, LONG_AGO, UUID(int=0))


def budget(*, slots: int, prefetch: int, max_claim_per_worker: int, running: int, claimed: int) -> int:
    """How many tasks a worker may take on top of those that it runs and those that it holds unstarted."""
    ceiling = max_claim_per_worker or slots + prefetch
    return max(0, min(slots + prefetch - running - claimed, ceiling - claimed))


@dataclass(frozen=True, slots=True)
class Owner:
    """Who claims, as it is written into the rows."""

    worker_id: UUID
    hostname: str
    process_name: str
    lease_seconds: float


class Claimer:
    """Remembers where each queue was read to, and whose turn it is."""

    def __init__(self, queues: Iterable[CustomQueueConfig], max_claim_batch: int, is_async: bool) -> None:
        self._levels = [
            [queue.name for queue in level]
            for _, level in groupby(sorted(queues, key=_priority), key=_priority)
        ]
        self._max_claim_batch = max_claim_batch
        self._is_async = is_async
        self._after: dict[str, Key] = {}
        self._rewind_at = 0.0
        self._passes = 0
        self._rewound = True

    async def claim(
        self, connection: Connection, owner: Owner, limit: int, pids: Sequence[int], now: float
    ) -> Cursor:
        """Send the claim; its rows are read with `rows` when the answer is there."""
        self._rewound = now >= self._rewind_at or not self._after
        if self._rewound:
            self._after.clear()
        queues = self._in_turn()
        after = [self._after.get(queue, START) for queue in queues]
        quota = min(limit, self._max_claim_batch or limit)
        values = {
            "queues": queues,
            "quotas": [quota] * len(queues),
            "after_priority": [key[0] for key in after],
            "after_time": [key[1] for key in after],
            "after_id": [key[2] for key in after],
            "is_async": self._is_async,
            "limit": limit,
            "pids": list(pids[:limit]),
            "lease_seconds": owner.lease_seconds,
            "worker_id": owner.worker_id,
            "hostname": owner.hostname,
            "process_name": owner.process_name,
        }
        return await connection.execute(SQL["claim"], values, prepare=True, binary=True)

    async def rows(self, cursor: Cursor, seconds: float, now: float) -> list[Claimed]:
        """The tasks that were claimed, most urgent first."""
        claimed = [Claimed._make(row) for row in await cursor.fetchall()]
        for task in claimed:
            key = (task.priority, task.enqueued_at, task.id)
            if key > self._after.get(task.queue_name, START):
                self._after[task.queue_name] = key
        if self._rewound:
            pause = min(REWIND_MAX_SECONDS, max(REWIND_MIN_SECONDS, seconds / REWIND_SHARE))
            self._rewind_at = now + pause
        return claimed

    def rewind(self) -> bool:
        """Start the next claim from the beginning; False when the last one did."""
        self._after.clear()
        return not self._rewound

    def _in_turn(self) -> list[str]:
        """All queues, most urgent level first, each level turned by one at every pass."""
        self._passes += 1
        queues: list[str] = []
        for level in self._levels:
            turn = self._passes % len(level)
            queues += level[turn:] + level[:turn]
        return queues


def _priority(queue: CustomQueueConfig) -> int:
    return queue.priority
