"""How much the pools of a worker can take, going by what they have, what is on its way, and how long tasks run.

The first pool runs plain tasks, with prefetch if that is on; async tasks have a second pool, or share the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from horsies.storage.tasks import NO_LIMIT, Claimed, Room
from horsies.worker.claim import budget
from horsies.worker.pool import ChildPool

# With prefetch, a child is sent as many calls ahead as it should be able to run in this time.
AHEAD_SECONDS = 0.016
MAX_AHEAD = 512
# How much the last run counts in the expected time of the next one. A long one is felt at once.
RUN_TIME_WEIGHT = 0.1
# However much room there is, a claim takes no more than this at once.
MAX_CLAIM = 500
# A pool without room for this long does not want to be woken for.
FULL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a worker may hold, and how long it sleeps at most."""

    prefetch: int
    max_claim_per_worker: int
    max_claim_batch: int
    cluster_wide_cap: int | None
    poll_seconds: float
    hold_seconds: float


class Capacity:
    """Answers for all pools; `prefetched` is how many tasks wait in the worker itself."""

    def __init__(self, pools: Sequence[ChildPool], limits: Limits) -> None:
        self.pools = pools
        self.plain = pools[0]
        self.pool_of = {False: 0, True: len(pools) - 1}
        self.run_time = AHEAD_SECONDS  # of plain tasks, as expected
        self._limits = limits
        self._asking = [0 for _ in pools]
        self._had_room_at = [0.0 for _ in pools]

    @property
    def load(self) -> int:
        """How many tasks the children have and have not ended."""
        return sum(pool.load for pool in self.pools)

    @property
    def running(self) -> list[Claimed]:
        return [task for pool in self.pools for task in pool.running]

    def ran(self, task: Claimed, seconds: float) -> None:
        """Learn from a run."""
        if self.pool_of[task.is_async] == 0:
            self.run_time += RUN_TIME_WEIGHT * (seconds - self.run_time)

    def depth(self) -> int:
        """How many calls a child may be sent: as many as it runs, or with prefetch as many as are sure to be short."""
        width = self.plain.shape.width
        if self._limits.prefetch == 0 or width > 1:
            return width
        return max(1, min(MAX_AHEAD, int(AHEAD_SECONDS / max(self.run_time, 1e-6))))

    def room(self, number: int, prefetched: int) -> int:
        """How many tasks a pool may be given; only plain ones are claimed ahead, and none without a lease."""
        if not self.pools[number].is_valid():
            return 0
        return budget(
            slots=self.pools[number].shape.slots,
            prefetch=0 if number else self._limits.prefetch,
            max_claim_per_worker=self._limits.max_claim_per_worker,
            running=self.pools[number].load + self._asking[number],
            claimed=0 if number else prefetched,
        )

    def has_room(self, prefetched: int) -> bool:
        return any(self.room(number, prefetched) > 0 for number in range(len(self.pools)))

    def wanted(self, prefetched: int) -> list[int]:
        """How many tasks to ask for now, for each pool."""
        self.plain.depth = self.depth()
        plain, *others = (self.room(number, prefetched) for number in range(len(self.pools)))
        return [
            self._wanted_ahead(plain, prefetched)
            if self._limits.prefetch
            else min(plain, self.plain.room(), MAX_CLAIM),
            *(min(room, pool.room(), MAX_CLAIM) for room, pool in zip(others, self.pools[1:], strict=True)),
        ]

    def _wanted_ahead(self, room: int, prefetched: int) -> int:
        """Short tasks are taken as they can be started, without a wait in between."""
        is_short = self.plain.depth > self.plain.shape.width
        if prefetched and is_short:
            return 0  # those that wait here come first
        return min(room, self.plain.room()) if is_short else room

    def rooms(self, wanted: Sequence[int]) -> list[Room]:
        """What is asked for, and for which children."""
        return [
            Room(number, count, pool.idle() if count else 0, pool.free(count))
            for number, (pool, count) in enumerate(zip(self.pools, wanted, strict=True))
        ]

    def ceiling(self, wanted: int, prefetched: int) -> int:
        """How many to claim at most, for all pools together."""
        most = self._limits.max_claim_per_worker or NO_LIMIT
        return min(wanted, max(0, most - prefetched))

    def reserve(self, rooms: Sequence[Room]) -> None:
        """Keep room for what is on its way."""
        for room in rooms:
            self._asking[room.pool] += room.room
            self.pools[room.pool].reserve(room.pids)

    def unreserve(self, rooms: Sequence[Room]) -> None:
        for room in rooms:
            self._asking[room.pool] -= room.room
            self.pools[room.pool].unreserve(room.pids)

    def wants(self, prefetched: int, now: float) -> tuple[bool, bool]:
        """Whether plain and async tasks are worth being woken for: not while their pool has been full for some time."""
        for number in range(len(self.pools)):
            if self.room(number, prefetched) > 0:
                self._had_room_at[number] = now
        wants = [now - at < FULL_SECONDS for at in self._had_room_at]
        return wants[self.pool_of[False]], wants[self.pool_of[True]]
