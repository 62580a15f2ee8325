"""Ask for as many tasks as there is room for, fairly and without walking the dead.

Queues are asked in the order of their priority; queues of equal priority take turns at being first. In each queue a
claim starts after the last key that was claimed: rows before it are gone or taken, yet the index still holds them
until vacuum comes by. Every so often a claim starts from the very beginning, to find what was given back or is more
urgent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from uuid import UUID

from horsies.config import CustomQueueConfig
from horsies.storage.tasks import Ask, Claimed, QueueAsk

# A claim from the beginning may cost this share of the time between two of them, within these bounds.
REWIND_SHARE = 0.05
REWIND_MIN_SECONDS, REWIND_MAX_SECONDS = 0.05, 1.0

Key = tuple[int, str, str]
START: Key = (0, "2000-01-01T00:00:00Z", str(UUID(int=0)))


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

    def __init__(self, queues: Iterable[CustomQueueConfig], max_claim_batch: int) -> None:
        self._levels = [
            [(queue.name, is_async) for queue in level for is_async in (False, True)]
            for _, level in groupby(sorted(queues, key=_priority), key=_priority)
        ]
        self._max_claim_batch = max_claim_batch
        self._after: dict[tuple[str, bool], Key] = {}
        self._rewind_at = 0.0
        self._passes = 0
        self._rewound = True

    def ask(self, owner: Owner, limit: int, pids: list[int], idle: int, now: float) -> Ask:
        """What to ask the database for: so many tasks, the first of them for these children, the idle ones first."""
        self._rewound = now >= self._rewind_at or not self._after
        if self._rewound:
            self._after.clear()
        quota = min(limit, self._max_claim_batch or limit)
        turns = self._in_turn() if limit else []
        queues = [QueueAsk(*source, quota, *self._after.get(source, START)) for source in turns]
        return Ask(
            queues,
            limit,
            pids[:limit],
            idle,
            owner.lease_seconds,
            owner.worker_id,
            owner.hostname,
            owner.process_name,
        )

    def claimed(self, tasks: Sequence[Claimed], seconds: float, now: float) -> None:
        """Note how far the queues were read; in each, the last task claimed is the furthest."""
        for task in tasks:
            self._after[task.queue_name, task.is_async] = (task.priority, task.enqueued_at, task.id)
        if self._rewound:
            pause = min(REWIND_MAX_SECONDS, max(REWIND_MIN_SECONDS, seconds / REWIND_SHARE))
            self._rewind_at = now + pause

    def rewind(self) -> bool:
        """Start the next claim from the beginning; False when the last one did."""
        self._after.clear()
        return not self._rewound

    def _in_turn(self) -> list[tuple[str, bool]]:
        """All queues and kinds of task, most urgent level first, each level turned by one at every pass."""
        self._passes += 1
        queues: list[tuple[str, bool]] = []
        for level in self._levels:
            turn = self._passes % len(level)
            queues += level[turn:] + level[:turn]
        return queues


def _priority(queue: CustomQueueConfig) -> int:
    return queue.priority
