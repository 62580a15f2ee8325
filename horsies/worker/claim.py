"""Decide how many tasks to claim, from which queues, and where in the index to start.

A claim starts behind the last claimed key, because the rows before it are gone but stay in the index until vacuum. Now and
then a claim starts from the beginning of the index, to find tasks that were released or are more urgent.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple
from uuid import UUID

from horsies.config import CustomQueueConfig
from horsies.db.queries.operations import ALL_QUEUES
from horsies.db.queries.tasks import (
    NO_LIMIT,
    Claimed,
    ClaimRequest,
    ConcurrencyCap,
    KeyLane,
    Lane,
    PoolRoom,
    WalkedKey,
    as_json,
)
from horsies.executor.pool import ChildPool
from horsies.executor.tokens import MAX_TOKENS
from horsies.keys import is_keyed
from horsies.worker.run_times import AHEAD_SECONDS, RunTimes

# Claims from the beginning of the index may take this share of all time; the pause between two is within these bounds.
REWIND_SHARE = 0.05
REWIND_MIN_SECONDS, REWIND_MAX_SECONDS = 0.05, 1.0

# Looking for keys in vain may take this share of all time; the pause between two such looks is within these bounds.
LOOK_SHARE = 0.05
LOOK_MIN_SECONDS, LOOK_MAX_SECONDS = 0.005, 1.0
# A look that has not come around, while there is other work, is followed by a pause of so many times its duration.
LOOK_ON_PAUSE = 9
# A worker without tasks that may have keys looks for some at most this often, until it sees one.
UNEXPECTED_SECONDS = 1.0
# After a task with a key was seen, the worker expects more for so long.
EXPECT_SECONDS = 600.0

Key = tuple[int, str, str]
START: Key = (0, "2000-01-01T00:00:00Z", str(UUID(int=0)))


def budget(*, slots: int, prefetch: int, max_claim_per_worker: int, running: int, claimed: int) -> int:
    """Return how many more tasks a worker may claim, given how many it runs and how many it has prefetched."""
    ceiling = max_claim_per_worker or slots + prefetch
    return max(0, min(slots + prefetch - running - claimed, ceiling - claimed))


@dataclass(frozen=True, slots=True)
class Owner:
    """The identity of a worker, as it is written into the rows that it claims."""

    worker_id: UUID
    hostname: str
    process_name: str
    lease_seconds: float

    @property
    def columns(self) -> dict[str, UUID | str]:
        """The columns of a claimed row that name its owner."""
        return {
            "worker_id": self.worker_id,
            "hostname": self.hostname,
            "process_name": self.process_name,
        }


class LaneKey(NamedTuple):
    """A lane of tasks in the database, and the pool of children that runs them."""

    pool: int
    queue_name: str
    is_async: bool
    rate_key: str | None  # None: all keys


class Caps:
    """The concurrency limits of the cluster, and this worker's usage of each as last written to the database."""

    def __init__(self, cluster_wide_cap: int | None, queues: Iterable[CustomQueueConfig]) -> None:
        self._limits = {queue.name: queue.max_concurrency for queue in queues if queue.max_concurrency}
        if cluster_wide_cap is not None:
            self._limits[""] = cluster_wide_cap
        self._recorded: dict[str, int] = {}
        self._is_forgotten = False

    def __bool__(self) -> bool:
        return bool(self._limits)

    def request(self, in_flight: Iterable[Claimed]) -> list[ConcurrencyCap]:
        """Return the limits to claim within, given the tasks that are in flight here."""
        in_use = self._count(in_flight)
        self._is_forgotten = False
        return [
            ConcurrencyCap(name, limit, in_use[name], self._recorded.get(name, 0))
            for name, limit in self._limits.items()
        ]

    def claimed(self, caps: Iterable[ConcurrencyCap], started: Iterable[Claimed]) -> None:
        """Note the usage that a claim has written: the tasks in flight before, and those it started.

        Do nothing if `forget` was called since the request: what the database holds is unknown then.
        """
        if self._is_forgotten:
            return
        more = self._count(started)
        self._recorded = {cap.queue_name: cap.in_use + more[cap.queue_name] for cap in caps}

    def forget(self) -> None:
        """Forget the recorded usage, because it is uncertain; the next claim writes all of it."""
        self._recorded = dict.fromkeys(self._limits, -1)
        self._is_forgotten = True

    def are_outdated(self, in_flight: Iterable[Claimed]) -> bool:
        """Return True if the usage in the database is not the current one."""
        in_use = self._count(in_flight)
        return any(in_use[name] != self._recorded.get(name, 0) for name in self._limits)

    def _count(self, tasks: Iterable[Claimed]) -> Counter[str]:
        counts = Counter(task.queue_name for task in tasks)
        counts[""] = counts.total()
        return counts


class KeyWalk:
    """Remembers which key of each queue and kind was served last, and decides when to look for keys again.

    A look costs more than a claim without keys. So a worker whose tasks have no keys looks once a second, or when the database
    has told it that there are some; and a look that found nothing is repeated after a pause, or when there is a reason.
    """

    def __init__(self) -> None:
        self.is_unfinished = False  # the last walk found nothing, and there are more keys
        self.has_tasks_with_keys = False  # of those that the worker knows
        self._expected_until = 0.0
        self._look_at: float | None = None
        self._served: dict[tuple[str, bool], str] = {}

    def is_due(self, now: float) -> bool:
        """Return True if the next claim should look for keys. Without a reason to expect some, not the first claim."""
        if self._look_at is None and not self.is_expected(now):
            self._look_at = now + UNEXPECTED_SECONDS
        return self._look_at is None or now >= self._look_at

    def is_expected(self, now: float) -> bool:
        """Return True if there may be tasks with keys: the worker knows such tasks, or has seen one lately."""
        return self.has_tasks_with_keys or now < self._expected_until

    def expect(self, now: float) -> None:
        """Note that there are tasks with keys."""
        self._expected_until = now + EXPECT_SECONDS

    def look_soon(self, now: float) -> None:
        """Look at the next claim, because a task may have been sent or a slot freed; unless no keys are expected."""
        if self.is_expected(now):
            self._look_at = None

    def lane(self, queue_name: str, is_async: bool, room: int) -> KeyLane:
        """Return where to look for keys of a queue."""
        return KeyLane(queue_name, is_async, room, self._served.get((queue_name, is_async), ""))

    def walked(
        self, walked: Sequence[WalkedKey], claimed: Sequence[Claimed], seconds: float, now: float
    ) -> None:
        """Note which keys a walk came to, and what was claimed after it, in so many seconds.

        The next walk goes on behind the last key that was served. A key that was ready and not served is not passed over.
        """
        served = {(task.queue_name, task.is_async, task.rate_key) for task in claimed}
        has_served, self.is_unfinished = False, False
        for key in walked:
            lane = key.queue_name, key.is_async
            if (*lane, key.rate_key) in served:
                self._served[lane] = key.rate_key
                has_served = True
            elif not key.is_ready and not any(each.is_ready and each[:2] == lane for each in walked):
                self._served[lane] = key.rate_key
                self.is_unfinished = True
        if any(key.is_ready for key in walked):
            self.expect(now)
        pause = min(LOOK_MAX_SECONDS, max(LOOK_MIN_SECONDS, seconds / LOOK_SHARE))
        if has_served or any(key.is_ready for key in walked):
            pause = 0.0
        elif self.is_unfinished:
            pause = seconds * LOOK_ON_PAUSE if claimed else 0.0
        elif not self.is_expected(now):
            pause = UNEXPECTED_SECONDS
        self._look_at = now + pause


class Claimer:
    """Builds claim requests; remembers how far each lane was read, and which queue comes first next time."""

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
        self._levels: list[list[LaneKey]] = []  # by priority of the queue
        self.batch = max_claim_batch or NO_LIMIT  # no claim takes more tasks for a pool
        self._last_keys: dict[LaneKey, Key] = {}
        self._rewind_at = 0.0
        self._passes = self._looks = 0
        self._was_rewound = True
        self._suspended: frozenset[str] = frozenset()
        # Queues and names of tasks that this worker does not know and another live worker does.
        self.left_out: frozenset[tuple[str, str]] = frozenset()
        self._left_out_json = ""
        self.keys = KeyWalk()
        self.limit_rates([])

    def limit_rates(self, rates: Sequence[str]) -> None:
        """Give each of these rate limits a lane of its own in every queue, from now on."""
        self.rates = list(rates)
        self._build_levels()

    def suspend(self, queues: Iterable[str]) -> bool:
        """Claim nothing from these queues, and claim from all others; return True if that is a change."""
        suspended = frozenset(queues)
        if suspended == self._suspended:
            return False
        self._suspended = suspended
        self._build_levels()
        return True

    def leave_out(self, names: Iterable[tuple[str, str]]) -> bool:
        """Claim all tasks but these, given by queue and name, from now on; return True if more may be claimed than before."""
        before, self.left_out = self.left_out, frozenset(names)
        by_queue: dict[str, list[str]] = {}
        for queue, name in self.left_out:
            by_queue.setdefault(queue, []).append(name)
        self._left_out_json = as_json(by_queue) if by_queue else ""
        if before <= self.left_out:
            return False
        self._last_keys.clear()  # the tasks to claim again may be before the keys that were read last
        return True

    @property
    def open_queues(self) -> list[list[str]]:
        """The queues that are not suspended, by priority."""
        if ALL_QUEUES in self._suspended:
            return []
        return [[queue for queue in queues if queue not in self._suspended] for queues in self._queues]

    @property
    def is_suspended(self) -> bool:
        """True if all queues are suspended."""
        return bool(self._suspended) and not self._levels

    def _build_levels(self) -> None:
        levels = [
            [
                LaneKey(pool, queue, is_async, rate_key)
                for queue in queues
                if not self._suspended & {queue, ALL_QUEUES}
                for is_async, pool in self._pool_of.items()
                for rate_key in ("", *self.rates)
            ]
            for queues in self._queues
        ]
        self._levels = [level for level in levels if level]

    def request(
        self, owner: Owner, pools: list[PoolRoom], ceiling: int, caps: list[ConcurrencyCap], now: float
    ) -> ClaimRequest:
        """Return a request for at most `ceiling` tasks, as far as the pools have room for them."""
        self._was_rewound = now >= self._rewind_at or not self._last_keys
        if self._was_rewound:
            self._last_keys.clear()
        room_of = {pool.pool: min(pool.room, self.batch) for pool in pools if pool.room}
        idle_of = {pool.pool: min(pool.room, pool.idle) for pool in pools if pool.room}
        looks = self.keys.is_due(now)
        lanes = [
            Lane(*lane, room_of[lane.pool], *self._last_keys.get(lane, START))
            for lane in (self._rotate(looks) if ceiling else ())
            if lane.pool in room_of
        ]
        # Keys that wait for an idle child come first if there is none: then nothing is claimed ahead of them.
        lanes.sort(key=lambda lane: lane.rate_key is not None or idle_of[lane.pool] > 0)
        return ClaimRequest(
            lanes,
            pools,
            caps,
            self.rates if lanes else [],
            ceiling,
            self.batch,
            owner.worker_id,
            owner.hostname,
            owner.process_name,
            self._left_out_json,
            key_lanes=[
                self.keys.lane(lane.queue_name, lane.is_async, max(1, idle_of[lane.pool]))
                for lane in lanes
                if lane.rate_key is None
            ],
        )

    def claimed(self, tasks: Sequence[Claimed], seconds: float, now: float) -> bool:
        """Note how far each lane was read: up to the last task claimed from it. Lanes of rate limits are short.

        Return True if a rate limit was used, so that its next task is due at another time than was known.
        """
        used_rate = False
        for task in tasks:
            if task.task_name in self.rates or is_keyed(task.rate_key):
                used_rate = True
            else:
                lane = LaneKey(self._pool_of[task.is_async], task.queue_name, task.is_async, "")
                self._last_keys[lane] = (task.priority, task.enqueued_at, task.id)
        if self._was_rewound:
            pause = min(REWIND_MAX_SECONDS, max(REWIND_MIN_SECONDS, seconds / REWIND_SHARE))
            self._rewind_at = now + pause
        return used_rate

    def rewind(self) -> bool:
        """Start the next claim from the beginning; return False if the last one did so already."""
        self._last_keys.clear()
        return not self._was_rewound

    def _rotate(self, with_keys: bool) -> list[LaneKey]:
        """Return all lanes, those of the most urgent queues first; each level is rotated by one at every call.

        With keys, the lanes of keys come before the others of their level at every second call, and after them at the others.
        """
        self._passes += 1
        lanes: list[LaneKey] = []
        for level in self._levels:
            first = self._passes % len(level)
            others = level[first:] + level[:first]
            of_keys = (
                [lane._replace(rate_key=None) for lane in others if lane.rate_key == ""] if with_keys else []
            )
            lanes += others + of_keys if self._looks % 2 else of_keys + others
        self._looks += with_keys
        return lanes


def _priority(queue: CustomQueueConfig) -> int:
    return queue.priority


# The weight of the last run in the expected run time. A long run shows at once.
RUN_TIME_WEIGHT = 0.1
# A claim takes no more tasks than this at once.
MAX_CLAIM = 500
# Claims that are only ahead and find nothing may take this share of all time: a chain of short tasks looks like a backlog.
VAIN_SHARE = 0.05
# Senders are told not to notify a worker that has been full for this long.
FULL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a worker: the tasks it may hold, the time it holds them unstarted, and its longest sleep."""

    prefetch: int | None  # None: adaptive, see `RunTimes`
    max_claim_per_worker: int
    max_claim_batch: int
    cluster_wide_cap: int | None
    poll_seconds: float
    hold_seconds: float


class Capacity:
    """The room for tasks: in the pools of children, and in the prefetch buffer."""

    def __init__(self, pools: Sequence[ChildPool], limits: Limits) -> None:
        self.pools = pools
        self.plain = pools[0]
        self.pool_of = {False: 0, True: len(pools) - 1}
        self.run_time = AHEAD_SECONDS  # expected, of plain tasks
        self.run_times = RunTimes()
        # For adaptive claims: True if the last claim filled its room. False also if it found a task that must wait for an idle
        # child: the next claim ahead would find that task again.
        self.claims_ahead = False
        # True if tasks with keys filled the idle children, or wait for one: they start in idle children only.
        self.serves_keys = False
        self.serves_batches = False  # the same for batches of tasks
        self.prefetched: deque[Claimed] = deque()
        self._limits = limits
        self._vain_until = 0.0  # no claim that is only ahead before this
        self._requested = [0 for _ in pools]
        self._had_room_at = [0.0 for _ in pools]

    @property
    def load(self) -> int:
        """The number of tasks that were given to children and have not ended."""
        return sum(pool.load for pool in self.pools)

    @property
    def running(self) -> list[Claimed]:
        return [task for pool in self.pools for task in pool.running]

    def ran(self, task: Claimed, seconds: float) -> None:
        """Adjust the expected run time."""
        if self.pool_of[task.is_async] == 0:
            self.run_time += RUN_TIME_WEIGHT * (seconds - self.run_time)
            if self.is_adaptive:
                self.run_times.ran(task.task_name, seconds)

    @property
    def is_adaptive(self) -> bool:
        """True if the worker decides by run times what to claim ahead. Never under a cap of the cluster, nor for threads."""
        limits = self._limits
        return limits.prefetch is None and limits.cluster_wide_cap is None and self.plain.shape.width == 1

    def depth(self) -> int:
        """Return how many calls a child may hold: as many as it runs at once, or with prefetch as many as will be short."""
        width = self.plain.shape.width
        if width > 1 or not (self._limits.prefetch or self.is_adaptive):
            return width
        run_time = self.run_times.typical if self.is_adaptive else self.run_time
        return max(1, min(MAX_TOKENS, int(AHEAD_SECONDS / max(run_time, 1e-6))))

    @property
    def is_for_idle(self) -> bool:
        """True if tasks are claimed for idle children only, because others wait for these."""
        return self.serves_keys or self.serves_batches

    @property
    def is_ahead(self) -> bool:
        """True if children hold more calls than they run."""
        return bool(self._limits.prefetch) or (not self.is_for_idle and self.depth() > self.plain.shape.width)

    def run_times_json(self) -> str:
        """Return the expected run times of the tasks that may be claimed ahead; '' unless the worker is adaptive."""
        return as_json(self.run_times.short) if self.is_adaptive else ""

    def room(self, number: int) -> int:
        """Return how many tasks a pool may be given. Only plain tasks are prefetched, and nothing is claimed without a lease."""
        if not self.pools[number].is_valid():
            return 0
        return budget(
            slots=self.pools[number].shape.slots,
            prefetch=0 if number else self._limits.prefetch or 0,
            max_claim_per_worker=self._limits.max_claim_per_worker,
            running=self.pools[number].load + self._requested[number],
            claimed=0 if number else len(self.prefetched),
        )

    def has_room(self, number: int | None = None) -> bool:
        """Return True if a pool, or this one, may be given a task. The room for tasks that are claimed ahead does not count."""
        numbers = range(len(self.pools)) if number is None else (number,)
        return any(
            self.pools[each].idle() > 0 and self.pools[each].is_valid()
            if self.is_adaptive and each == 0
            else self.room(each) > 0
            for each in numbers
        )

    def found_nothing_ahead(self, seconds: float, now: float) -> None:
        """Note that a claim that was only ahead found nothing, and how long it took."""
        self._vain_until = now + seconds / VAIN_SHARE

    def claimable(self, now: float) -> list[int]:
        """Return how many tasks to claim now, for each pool."""
        plain = self.plain
        plain.depth = self.depth()
        plain.short_names = self.run_times.short.keys() if self.is_adaptive else None
        if self.is_adaptive:
            others = [min(self.room(n), pool.room(), MAX_CLAIM) for n, pool in enumerate(self.pools[1:], 1)]
            return [self._adaptive_room(now), *others]
        counts = [min(self.room(n), pool.room(), MAX_CLAIM) for n, pool in enumerate(self.pools)]
        if self._limits.prefetch:
            are_short = plain.depth > plain.shape.width
            if self.is_for_idle:
                counts[0] = min(self.room(0), plain.idle())
            elif not are_short:
                counts[0] = self.room(0)
            elif self.prefetched:
                counts[0] = 0  # prefetched tasks start first
            else:
                counts[0] = min(self.room(0), plain.room())
        return counts

    def _adaptive_room(self, now: float) -> int:
        """Return how many plain tasks to claim now: one for each idle child, and from a backlog as many as will be short."""
        idle = self.plain.idle()
        if not self.claims_ahead or self.is_for_idle or (not idle and now < self._vain_until):
            return idle if self.plain.is_valid() else 0
        ahead = self.plain.room() - idle
        if self._limits.max_claim_per_worker:
            waiting = max(0, self.plain.load + self._requested[0] - self.plain.shape.slots)
            ahead = min(ahead, max(0, self._limits.max_claim_per_worker - waiting))
        return min(idle + ahead, MAX_CLAIM) if self.plain.is_valid() else 0

    def pool_rooms(self, counts: Sequence[int]) -> list[PoolRoom]:
        """Return the room to claim for: so many tasks for each pool, and the children that take them."""
        seconds = self.run_times.typical
        return [
            PoolRoom(number, count, pool.idle() if count else 0, pool.free(count), count * seconds)
            for number, (pool, count) in enumerate(zip(self.pools, counts, strict=True))
        ]

    def ceiling(self, count: int) -> int:
        """Return how many tasks to claim at most, for all pools together."""
        limit = self._limits.max_claim_per_worker or NO_LIMIT
        return min(count, max(0, limit - len(self.prefetched)))

    def reserve(self, rooms: Sequence[PoolRoom]) -> None:
        """Reserve room for the tasks of a claim that is under way."""
        for room in rooms:
            self._requested[room.pool] += room.room
            self.pools[room.pool].reserve(room.pids)

    def unreserve(self, rooms: Sequence[PoolRoom]) -> None:
        for room in rooms:
            self._requested[room.pool] -= room.room
            self.pools[room.pool].unreserve(room.pids)

    def wants_notifications(self, now: float) -> tuple[bool, bool]:
        """Return whether to be notified of plain and of async tasks: not while their pool has been full for some time."""
        for number in range(len(self.pools)):
            if self.has_room(number):
                self._had_room_at[number] = now
        wants = [now - at < FULL_SECONDS for at in self._had_room_at]
        return wants[self.pool_of[False]], wants[self.pool_of[True]]
