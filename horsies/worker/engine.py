"""The loop of a worker: one round trip after another settles what has ended, starts what was prefetched and claims what
there is room for, while the children work.

Whatever becomes of the connection, nothing that a child has finished is thrown away: what could not be written is
kept, and what a lost reply leaves unclear is asked for on the next connection.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import errors

from horsies.codec import encode_result
from horsies.config import CustomQueueConfig
from horsies.registry import TaskRegistry
from horsies.results import TaskError, TaskResult
from horsies.status import OutcomeCode
from horsies.storage import tasks, workers
from horsies.storage.database import TRANSIENT, Connection
from horsies.storage.tasks import Claimed, Failure, Start
from horsies.worker.attention import Attention
from horsies.worker.claim import Claimer, Owner, budget
from horsies.worker.pool import ChildPool
from horsies.worker.settle import Settler
from horsies.worker.wire import Outcome

logger = logging.getLogger("horsies.worker")

# With prefetch, a child is sent as many calls ahead as it should be able to run in this time.
AHEAD_SECONDS = 0.008
MAX_AHEAD = 128
# How much the last run counts in the expected time of the next one. A long one is felt at once.
RUN_TIME_WEIGHT = 0.1
# With prefetch, results may gather so long between two round trips while the children have enough to do.
GATHER_SECONDS = 0.005
# With prefetch, a second round trip is begun beside the first when so many results have gathered.
HELP_BATCH = 32
# While a task runs, the next due time is not asked for at once: its result may come any moment.
CALM_SECONDS = 0.01
# A worker without room for this long does not want to be woken.
FULL_SECONDS = 0.1

EXPIRED = encode_result(
    TaskResult(
        err=TaskError(error_code=OutcomeCode.TASK_EXPIRED, message="the task was not started in time")
    ),
    Any,
    None,
).decode()


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a worker may hold, and how long it sleeps at most."""

    slots: int
    prefetch: int
    max_claim_per_worker: int
    max_claim_batch: int
    poll_seconds: float


class Engine:
    """Moves tasks between the database and the pool; knows neither signals nor reconnection."""

    def __init__(
        self,
        app: TaskRegistry,
        limits: Limits,
        owner: Owner,
        queues: Sequence[CustomQueueConfig],
        pool: ChildPool,
    ) -> None:
        self.owner = owner
        self.settler = Settler(app)
        self.stale_results = 0
        self._limits = limits
        self._queues = [queue.name for queue in queues]
        self._pool = pool
        self._claimer = Claimer(queues, limits.max_claim_batch)
        self._attention = Attention()
        self._prefetched: deque[Claimed] = deque()
        self._news = asyncio.Event()
        self._look = self._more = True
        self._said_waiting = False
        self._run_time = AHEAD_SECONDS
        self._due_at: float | None = None
        self._due_unknown = True
        self._unsure = False
        self._stopping = False
        self._asking = 0
        self._gather_until = 0.0
        self._cycling = False
        self._help = asyncio.Event()
        self._helper_idle = asyncio.Event()
        self._helper_idle.set()

    # News, from the listener, the pool and the worker

    def look_again(self) -> None:
        """There may be new work."""
        self._attention.notified()
        self._look = self._due_unknown = True
        self._news.set()

    def ended(self, task: Claimed, outcome: Outcome) -> None:
        self._run_time += RUN_TIME_WEIGHT * (outcome.seconds - self._run_time)
        self.settler.ended(task, outcome)
        self.came_free()

    def crashed(self, task: Claimed, how: str) -> None:
        logger.error("task %s (%s) was lost: %s", task.id, task.task_name, how)
        self.settler.crashed(task, how)
        self.came_free()

    def timed_out(self, task: Claimed, limit_ms: int) -> None:
        logger.warning("task %s (%s) ran past its limit of %d ms", task.id, task.task_name, limit_ms)
        self.settler.timed_out(task, limit_ms)
        self.came_free()

    def came_free(self) -> None:
        """A child can take a call. That is a reason to look only if there was more to take than room for it."""
        self._look |= self._more
        self._news.set()
        self._help.set()

    def stop(self) -> None:
        """Take nothing new; what is not started goes back at once."""
        self._stopping = self._unsure = True
        self._prefetched.clear()
        self._news.set()
        self._help.set()

    def disown(self, owner: Owner) -> None:
        """Go on under another name: what was held under the old one has been given away."""
        self.owner = owner
        self._prefetched.clear()
        self._said_waiting = False
        self.look_again()

    def _is_done(self) -> bool:
        busy = self.settler or self._pool.load or self._unsure or not self._helper_idle.is_set()
        return self._stopping and not busy

    # The loop

    async def run(self, connection: Connection) -> None:
        """Work over one connection until stopped and done; a lost connection is the caller's to replace."""
        self._attention.search()
        self._said_waiting = False  # whatever was said over the last connection, it is said again
        while not self._is_done():
            if self._unsure:
                await self._helper_idle.wait()
                await self._give_back(connection)
            if self._gathers():
                await self._news_within(self._gather_until - time.monotonic())
            elif self.settler or self._may_look():
                self._cycling = True
                try:
                    await self._cycle(connection)
                except (errors.SerializationFailure, errors.DeadlockDetected):
                    logger.debug("lost a race for a row, going round again")
                finally:
                    self._cycling = False
                    self._gather_until = time.monotonic() + GATHER_SECONDS
            else:
                await self._rest(connection)

    async def assist(self, connection: Connection) -> None:
        """Over a second connection, end and claim while a round trip of `run` is under way."""
        while not self._stopping:
            await self._help.wait()
            self._help.clear()
            if self._needs_help():
                self._helper_idle.clear()
                try:
                    await self._cycle_completed(connection)
                except (errors.SerializationFailure, errors.DeadlockDetected):
                    logger.debug("lost a race for a row, going round again")
                finally:
                    self._helper_idle.set()
                    self._news.set()

    def _needs_help(self) -> bool:
        """At once without prefetch, when every child waits for its next task; else when a batch has gathered."""
        if self._stopping or self._unsure or not self._cycling:
            return False
        if self._limits.prefetch:
            return len(self.settler.completed) >= HELP_BATCH and not self._gathers()
        return bool(self.settler.completed) or self._may_look()

    def _gathers(self) -> bool:
        """Whether results had better gather for a moment: the children have plenty to do, and there are only a few."""
        if self._limits.prefetch == 0 or self._stopping or self.settler.failed:
            return False
        capacity = self._limits.slots * self._depth()
        plenty, few = self._pool.load > capacity // 2, len(self.settler.completed) < capacity // 4
        return plenty and few and time.monotonic() < self._gather_until

    def _room(self) -> int:
        return budget(
            slots=self._limits.slots,
            prefetch=self._limits.prefetch,
            max_claim_per_worker=self._limits.max_claim_per_worker,
            running=self._pool.load + self._asking,
            claimed=len(self._prefetched),
        )

    def _depth(self) -> int:
        """How many calls a child may be sent: one, or with prefetch as many as are sure to be short."""
        if self._limits.prefetch == 0:
            return 1
        return max(1, min(MAX_AHEAD, int(AHEAD_SECONDS / max(self._run_time, 1e-6))))

    def _may_look(self) -> bool:
        """Whether there is something to ask for and somewhere to put it."""
        self._pool.depth = self._depth()
        return bool(self._prefetched and self._pool.free()) or self._limit(len(self._pool.free())) > 0

    async def _cycle(self, connection: Connection) -> None:
        """End, start, claim; then hand out what was started."""
        failed = self.settler.take_failed()
        try:
            if failed:
                await self._fail(connection, failed)
                failed = []
            if self._prefetched:
                await self._start(connection)
        except TRANSIENT:
            self.settler.failed[:0] = failed
            self._look = self._unsure = True
            raise
        await self._cycle_completed(connection)

    async def _cycle_completed(self, connection: Connection) -> None:
        """One round trip, one transaction: end what returned and claim as much again."""
        completed = self.settler.take_completed()
        self._pool.depth = self._depth()
        pids = self._pool.free()
        limit = self._limit(len(pids))
        if not completed and not limit:
            return
        if limit:
            self._look = False  # before we look, so that news from now on counts
        began = time.monotonic()
        ask = self._claimer.ask(self.owner, limit, pids, len(self._pool.idle()), began)
        self._asking += limit
        self._pool.reserve(ask.pids)
        try:
            ended, claimed = await tasks.exchange(connection, completed, ask)
        except TRANSIENT:
            self.settler.completed[:0] = completed
            self._look = self._unsure = True
            raise
        finally:
            self._pool.unreserve(ask.pids)
            self._asking -= limit
        now = time.monotonic()
        if limit:
            self._claimer.claimed(claimed, now - began, now)
            self._take(claimed, limit, now)
        if ended < len(completed):
            await self._count_stale(connection, [task.id for task in completed])

    def _limit(self, free: int) -> int:
        """How many tasks to ask for now. Short ones are taken as they can be started, without a wait in between."""
        if self._stopping or not self._look:
            return 0
        if self._prefetched and self._pool.depth > 1:
            return 0  # those that wait here come first
        room = self._room()
        return min(room, free) if self._pool.depth > 1 or self._limits.prefetch == 0 else room

    def _take(self, claimed: list[Claimed], limit: int, now: float) -> None:
        if self._stopping:
            self._unsure = True  # they came too late, and go back untouched
            return
        self._pool.submit([task for task in claimed if task.pid is not None])
        self._prefetched.extend(task for task in claimed if task.pid is None)
        self._more = len(claimed) == limit
        if self._more:
            self._look = True
            self._attention.search()
        elif self._claimer.rewind():
            self._look = True
        else:
            self._attention.looked(len(claimed), now)

    async def _start(self, connection: Connection) -> None:
        """Send prefetched tasks to children; one that cannot be started is no longer ours or came too late."""
        idle = len(self._pool.idle())
        chosen: list[Claimed] = []
        for place, (task, pid) in enumerate(zip(self._prefetched, self._pool.free(), strict=False)):
            if task.has_expiry and place >= idle:
                break  # it would have to queue, and may be too late by then
            chosen.append(task._replace(pid=pid))
        if not chosen:
            return
        pids = [task.pid or 0 for task in chosen]
        self._pool.reserve(pids)
        try:
            ours = await tasks.start(
                connection, [Start(task.id, task.claim_seq, task.pid or 0) for task in chosen]
            )
        finally:
            self._pool.unreserve(pids)
        if self._stopping:
            return  # all that is prefetched goes back
        for _ in chosen:
            self._prefetched.popleft()
        self._pool.submit([task for task in chosen if task.id in ours])
        if len(ours) < len(chosen):
            await tasks.expire(connection, self.owner.worker_id, EXPIRED)

    async def _fail(self, connection: Connection, failed: list[Failure]) -> None:
        ours = await tasks.fail(connection, failed)
        if any(ours.values()):
            self._due_unknown = True
        if len(ours) < len(failed):
            await self._count_stale(connection, [failure.id for failure in failed if failure.id not in ours])

    async def _count_stale(self, connection: Connection, ids: list[str]) -> None:
        """Results for rows that were not ours any more are dropped; what an unheard reply had stored is not stale."""
        stale = len(ids) - await tasks.mine(connection, self.owner.worker_id, ids)
        if stale > 0:
            self.stale_results += stale
            logger.warning("dropped %d stale results: the tasks have gone to another worker", stale)

    async def _give_back(self, connection: Connection) -> None:
        """Everything in our name that we do not hold: unstarted when we stop, or claimed by a reply that was lost."""
        held = [task.id for task in (*self._pool.running, *self._prefetched)]
        held += [ended.id for ended in (*self.settler.completed, *self.settler.failed)]
        await tasks.release(connection, self.owner.worker_id, held)
        self._unsure = False

    async def _rest(self, connection: Connection) -> None:
        """Sleep until there is news, or it is time to look."""
        has_room = self._room() > 0 and not self._stopping
        pause = self._attention.pause() if has_room else None
        waiting = self._attention.waiting
        if waiting != self._said_waiting:
            self._said_waiting = waiting  # what is said now; our mind may change while it is on its way
            self._due_unknown |= waiting  # of what was sent while we did not wait, nobody has told us
            await workers.wait(connection, self.owner.worker_id, waiting)
        if self._due_unknown and has_room and pause is None:
            if self._pool.load and await self._news_within(CALM_SECONDS):
                return  # a result has come: it is more urgent
            self._due_unknown = False
            seconds = await tasks.next_due(connection, self._queues)
            self._due_at = None if seconds is None else time.monotonic() + max(seconds, 0.001)
            self._look = True  # what fell due between the last look and this answer is in neither
            return
        if await self._sleep(pause, has_room):
            return
        if not has_room:
            self._attention.search()
            return
        self._look = True
        if self._due_at is not None and time.monotonic() >= self._due_at:
            self._due_unknown = True
            await tasks.expire(connection, self.owner.worker_id, EXPIRED)

    async def _sleep(self, pause: float | None, has_room: bool) -> bool:
        """Whether there was news before the time was up."""
        seconds = self._limits.poll_seconds if pause is None else pause
        if not has_room and self._said_waiting:
            seconds = FULL_SECONDS
        if self._due_at is not None and has_room:
            seconds = min(seconds, max(0.0, self._due_at - time.monotonic()))
        return await self._news_within(seconds)

    async def _news_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return False
        finally:
            self._news.clear()
        return True
