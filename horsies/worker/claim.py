"""Ask for as many tasks as there is room for, fairly and without walking the dead.

Queues are asked in the order of their priority; queues of equal priority take turns at being first. In each queue a
claim starts after the last key that was claimed: rows before it are gone or taken, yet the index still holds them
until vacuum comes by. Every so often a claim starts from the very beginning, to find what was given back or is more
urgent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple
from uuid import UUID

from horsies.config import CustomQueueConfig
from horsies.storage.operations import ALL_QUEUES
from horsies.storage.tasks import NO_LIMIT, Ask, Cap, Claimed, Line, Room

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


class Source(NamedTuple):
    """A line of tasks in the database, and the pool of children that runs them."""

    pool: int
    queue_name: str
    is_async: bool
    rate_key: str


class Caps:
    """The limits of the cluster, and how much of them the database believes that we take up."""

    def __init__(self, cluster_wide_cap: int | None, queues: Iterable[CustomQueueConfig]) -> None:
        self._most = {queue.name: queue.max_concurrency for queue in queues if queue.max_concurrency}
        if cluster_wide_cap is not None:
            self._most[""] = cluster_wide_cap
        self._recorded: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._most)

    def ask(self, held: Iterable[Claimed]) -> list[Cap]:
        """The limits to claim within, given the tasks that count as in flight here."""
        mine = self._count(held)
        return [Cap(name, most, mine[name], self._recorded.get(name, 0)) for name, most in self._most.items()]

    def claimed(self, caps: Iterable[Cap], started: Iterable[Claimed]) -> None:
        """Note what was written: what we held, and what was started on top."""
        more = self._count(started)
        self._recorded = {cap.queue_name: cap.mine + more[cap.queue_name] for cap in caps}

    def forget(self) -> None:
        """What the database believes is not known: the next claim says everything anew."""
        self._recorded = dict.fromkeys(self._most, -1)

    def are_off(self, held: Iterable[Claimed]) -> bool:
        """Whether the database believes something else than what is."""
        return any(cap.mine != cap.recorded for cap in self.ask(held)) if self._most else False

    def _count(self, tasks: Iterable[Claimed]) -> Counter[str]:
        counts = Counter(task.queue_name for task in tasks)
        counts[""] = counts.total()
        return counts


class Claimer:
    """Remembers where each line was read to, and whose turn it is."""

    def __init__(
        self, queues: Iterable[CustomQueueConfig], pool_of: Mapping[bool, int], max_claim_batch: int
    ) -> None:
        open_queues = [queue for queue in queues if queue.max_concurrency != 0]
        self._queues = [
            [queue.name for queue in level]
            for _, level in groupby(sorted(open_queues, key=_priority), key=_priority)
        ]
        self._pool_of = pool_of
        self.rates: list[str] = []
        self._levels: list[list[Source]] = []
        self._batch = max_claim_batch or NO_LIMIT
        self._after: dict[Source, Key] = {}
        self._rewind_at = 0.0
        self._passes = 0
        self._rewound = True
        self._suspended: frozenset[str] = frozenset()
        self.limit_rates([])

    def limit_rates(self, rates: Sequence[str]) -> None:
        """From now on, these rate limits have lines of their own in every queue."""
        self.rates = list(rates)
        self._line_up()

    def suspend(self, queues: Iterable[str]) -> bool:
        """From now on, these queues and no others are left alone; whether that is new."""
        suspended = frozenset(queues)
        if suspended == self._suspended:
            return False
        self._suspended = suspended
        self._line_up()
        return True

    @property
    def is_suspended(self) -> bool:
        """Whether there is nothing left to claim from."""
        return bool(self._suspended) and not self._levels

    def _line_up(self) -> None:
        levels = [
            [
                Source(pool, queue, is_async, rate_key)
                for queue in queues
                if not self._suspended & {queue, ALL_QUEUES}
                for is_async, pool in self._pool_of.items()
                for rate_key in ("", *self.rates)
            ]
            for queues in self._queues
        ]
        self._levels = [level for level in levels if level]

    def ask(self, owner: Owner, rooms: list[Room], ceiling: int, caps: list[Cap], now: float) -> Ask:
        """What to ask the database for: at most `ceiling` tasks, as far as the pools have room for them."""
        self._rewound = now >= self._rewind_at or not self._after
        if self._rewound:
            self._after.clear()
        room_of = {room.pool: min(room.room, self._batch) for room in rooms if room.room}
        lines = [
            Line(*source, room_of[source.pool], *self._after.get(source, START))
            for source in (self._in_turn() if ceiling else ())
            if source.pool in room_of
        ]
        return Ask(
            lines,
            rooms,
            caps,
            self.rates if lines else [],
            ceiling,
            self._batch,
            owner.lease_seconds,
            owner.worker_id,
            owner.hostname,
            owner.process_name,
        )

    def claimed(self, tasks: Sequence[Claimed], seconds: float, now: float) -> bool:
        """Note how far the lines were read; in each, the last task claimed is the furthest. A rate limit's is short.

        Whether some rate was spent, so that the next of its tasks is due at another time than was known.
        """
        spent = False
        for task in tasks:
            if task.task_name in self.rates:
                spent = True
            else:
                source = Source(self._pool_of[task.is_async], task.queue_name, task.is_async, "")
                self._after[source] = (task.priority, task.enqueued_at, task.id)
        if self._rewound:
            pause = min(REWIND_MAX_SECONDS, max(REWIND_MIN_SECONDS, seconds / REWIND_SHARE))
            self._rewind_at = now + pause
        return spent

    def rewind(self) -> bool:
        """Start the next claim from the beginning; False when the last one did."""
        self._after.clear()
        return not self._rewound

    def _in_turn(self) -> list[Source]:
        """All lines, those of the most urgent queues first, each level turned by one at every pass."""
        self._passes += 1
        sources: list[Source] = []
        for level in self._levels:
            turn = self._passes % len(level)
            sources += level[turn:] + level[:turn]
        return sources


def _priority(queue: CustomQueueConfig) -> int:
    return queue.priority
