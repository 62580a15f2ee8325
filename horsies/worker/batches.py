"""Decide from which lanes to claim batches, and for which children.

Tasks that run in batches wait in lanes of their own, which no other claim reads. A batch fills one slot of a child, and is claimed
for idle children only. While there are batches and other tasks, the two take turns: see `RoundTrips`. A worker whose children are busy
looks now and then if a batch is ready, and if so claims nothing ahead of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from horsies.db.queries.tasks import BatchLane, Claimed, Lane
from horsies.executor.pool import batch_of
from horsies.registry import AnyTask
from horsies.worker.claim import LOOK_MAX_SECONDS, LOOK_MIN_SECONDS, LOOK_SHARE, START, Claimer


class BatchClaims:
    """The batches of the tasks that a worker knows."""

    def __init__(self, tasks: Mapping[str, AnyTask], claimer: Claimer, pool_of: Mapping[bool, int]) -> None:
        self._definitions = [task.definition for task in tasks.values() if task.definition.batch is not None]
        self._claimer = claimer
        self._pool_of = pool_of
        # The seconds for which the first member of a batch waits for others, by lane.
        self.lingers = {task.rate_key: task.linger_seconds for task in self._definitions}
        # The pools whose children run batches.
        self.pools = sorted({pool_of[task.is_async] for task in self._definitions})
        # By pool: True if a batch waits for a child, as far as known.
        self.is_ready = dict.fromkeys(self.pools, False)
        self.come_first = False  # before other tasks, in the next round trip
        self.look_at = 0.0  # no look before this while no child is free

    def __bool__(self) -> bool:
        return bool(self._definitions)

    def lanes(self, pool: int) -> list[BatchLane]:
        """Return the lanes that the children of a pool serve, those of urgent queues first."""
        return [
            BatchLane(
                queue,
                task.is_async,
                task.rate_key,
                level,
                min(task.batch or 1, self._claimer.batch),
                task.linger_seconds,
            )
            for level, queues in enumerate(self._claimer.open_queues)
            for queue in queues
            for task in self._definitions
            if self._pool_of[task.is_async] == pool and (queue, task.name) not in self._claimer.left_out
        ]

    def looked(self, seconds: float, now: float) -> None:
        """Note how long a look took while no child was free. Such looks take a small share of the time."""
        self.look_at = now + min(LOOK_MAX_SECONDS, max(LOOK_MIN_SECONDS, seconds / LOOK_SHARE))


def as_calls(claimed: Sequence[Claimed]) -> list[Claimed]:
    """Return the claimed members as one call for each child."""
    return [batch_of(list(members)) for _, members in groupby(claimed, key=lambda task: task.pid)]


def as_lanes(lanes: Sequence[BatchLane], pool: int) -> list[Lane]:
    """Return the lanes as those of other claims, read from the beginning."""
    return [Lane(pool, lane.queue_name, lane.is_async, lane.rate_key, lane.size, *START) for lane in lanes]
