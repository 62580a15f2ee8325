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
from random import uniform
from typing import Any

from psycopg import errors

from horsies.codec import encode_result
from horsies.config import CustomQueueConfig
from horsies.registry import TaskRegistry
from horsies.results import TaskError, TaskResult
from horsies.status import OutcomeCode, WorkerState
from horsies.storage import cancelling, steering, steps, tasks, workers, workflows
from horsies.storage.database import TRANSIENT, Connection, answering
from horsies.storage.tasks import Ask, Claimed, Completed, Failure, Room, Start, stopped
from horsies.worker.attention import Attention
from horsies.worker.capacity import FULL_SECONDS, Capacity, Limits
from horsies.worker.claim import Caps, Claimer, Owner
from horsies.worker.pool import ChildPool
from horsies.worker.settle import Settler
from horsies.worker.wire import Outcome
from horsies.workflow.rows import BUILD

logger = logging.getLogger("horsies.worker")

# With prefetch, results may gather between two round trips while the children have enough to do: for as long as the last one
# took, which is longer the more there is to do for the server, and within these bounds.
GATHER_MIN_SECONDS, GATHER_MAX_SECONDS = 0.005, 0.05
# Without prefetch, short tasks that were started together may end together, in one round trip instead of two that wait for
# each other at the disk: so long.
TOGETHER_SECONDS = 0.001
# With prefetch, a second round trip is begun beside the first when so many results have gathered.
HELP_BATCH = 128
# A poll may come later than it should by this factor: workers that were started together do not look together.
POLL_SPREAD = 1.3
# While a task runs, the next due time is not asked for at once: its result may come any moment.
CALM_SECONDS = 0.01
# So often at most it is looked whether the last statement of a lost connection has come to its end.
DOUBT_SECONDS = 1.0
# A round trip that takes so long may go by a plan for another table size; it is not looked at all the time, though.
SLOW_SECONDS, REFRESH_SECONDS = 0.03, 5.0
EXPIRED = encode_result(
    TaskResult(
        err=TaskError(error_code=OutcomeCode.TASK_EXPIRED, message="the task was not started in time")
    ),
    Any,
    None,
).decode()


class Engine:
    """Moves tasks between the database and the pools; knows neither signals nor reconnection."""

    def __init__(
        self,
        app: TaskRegistry,
        limits: Limits,
        owner: Owner,
        queues: Sequence[CustomQueueConfig],
        pools: Sequence[ChildPool],
    ) -> None:
        self.owner = owner
        self.settler = Settler(app)
        self._herald = self.settler.herald
        self.stale_results = 0
        self.turned_at = 0.0
        self._limits = limits
        self._tasks = app.tasks
        self._grace_seconds = app.config.unknown_task_grace_seconds
        self._unknown: list[Claimed] = []  # claimed just now, and not known here
        self._queues = [queue.name for queue in queues]
        self._capacity = Capacity(pools, limits)
        self._claimer = Claimer(queues, self._capacity.pool_of, limits.max_claim_batch)
        self._caps = Caps(limits.cluster_wide_cap, queues)
        self._attention = Attention()
        self._prefetched: deque[Claimed] = deque()
        self._started_at = 0.0  # when a prefetched task was last started, or the first of them claimed
        self._news = asyncio.Event()
        self._look = True
        self._more = [True for _ in pools]  # whether there was more to take than room for it
        self._said_waiting: tuple[bool, bool] = (False, False)
        self._unsettled: dict[str, Claimed] = {}
        self._due_at: float | None = None
        self._due_unknown = True
        self._timer_at: float | None = None  # when something of a workflow is due, as far as we know
        self._unsure = False
        self._doubtful: set[int] = set()  # lost sessions that may still carry out what we asked for
        self._doubt_at = 0.0
        self._stopping = False
        self._named = asyncio.Event()
        self._named.set()
        self._gather_until = 0.0
        self._refresh_at = 0.0
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
        self._capacity.ran(task, outcome.seconds)
        self.settler.ended(task, outcome)
        self._over(task)

    def crashed(self, task: Claimed, how: str) -> None:
        logger.error("task %s (%s) was lost: %s", task.id, task.task_name, how)
        self.settler.crashed(task, how)
        self._over(task)

    def timed_out(self, task: Claimed, limit_ms: int) -> None:
        logger.warning("task %s (%s) ran past its limit of %d ms", task.id, task.task_name, limit_ms)
        self.settler.timed_out(task, limit_ms)
        self._over(task)

    def cancelled(self, task: Claimed) -> None:
        logger.info("task %s (%s) was cancelled", task.id, task.task_name)
        self.settler.cancelled(task)
        self._over(task)

    def cancel(self, ids: Sequence[str]) -> None:
        """Of the tasks that run here, these are to stop, and no others."""
        if self._herald.heard:
            self._herald.asked(ids)
        for pool in self._capacity.pools:
            pool.cancel(ids)

    @property
    def running(self) -> list[str]:
        """The tasks that run here, or are about to."""
        return [task.id for task in self._capacity.running]

    def _over(self, task: Claimed) -> None:
        """A task has left its child, yet counts as in flight until that is written."""
        if self._herald.heard:
            self._herald.over(task)
        if self._caps:
            self._unsettled[task.id] = task
        self.came_free()

    def came_free(self) -> None:
        """A child can take a call. That is a reason to look only if there was more to take than room or leave for it."""
        self._look |= any(self._more) or bool(self._caps)
        self._news.set()
        self._help.set()

    def stop(self) -> None:
        """Take nothing new; what is not started goes back at once."""
        self._stopping = self._unsure = True
        self._prefetched.clear()
        self._news.set()
        self._help.set()

    def limit_rates(self, rates: Sequence[str]) -> None:
        """These rate limits are known to the cluster."""
        self._claimer.limit_rates(rates)

    def suspend(self, queues: Sequence[str]) -> None:
        """From these queues nothing is claimed; what was claimed and not started goes back."""
        if not self._claimer.suspend(queues):
            return
        self._prefetched.clear()
        self._unsure = True
        self.look_again()

    def recount(self) -> None:
        """What was held without having begun has been let go of, and goes back."""
        self._unsure = True
        self._news.set()

    def lost(self, session: int) -> None:
        """A connection is gone; until its session is, too, what it was asked for last may still come true."""
        self._doubtful.add(session)

    def disown(self) -> None:
        """What was held under our name has been given away. Nothing is asked for until we have another one."""
        self._named.clear()
        self._caps.forget()
        self._prefetched.clear()
        self._unsettled.clear()
        self._said_waiting = (False, False)

    def go_on_as(self, owner: Owner) -> None:
        """Go on under another name, which the database knows by now."""
        self.owner = owner
        self._named.set()
        self.look_again()

    @property
    def load(self) -> int:
        """How many tasks the children have and have not ended."""
        return self._capacity.load

    @property
    def state(self) -> WorkerState:
        """What others see of it."""
        if self._stopping:
            return WorkerState.DRAINING
        if self._claimer.is_suspended:
            return WorkerState.SUSPENDED
        return WorkerState.BUSY if self.load else WorkerState.IDLE

    @property
    def untold(self) -> int:
        """How often something was found that nobody had told us of."""
        return self._attention.untold

    @property
    def claimed(self) -> int:
        """How many tasks are held here that were not started."""
        return len(self._prefetched)

    def _is_done(self) -> bool:
        busy = self.settler or self.load or self._unsure or not self._helper_idle.is_set()
        return self._stopping and not busy and not self._caps_are_off()

    # The loop

    async def run(self, connection: Connection) -> None:
        """Work over one connection until stopped and done; a lost connection is the caller's to replace."""
        self._attention.search()
        self._said_waiting = (False, False)  # whatever was said over the last connection, it is said again
        while not self._is_done():
            self.turned_at = time.monotonic()
            await self._named.wait()
            if self._timer_at is not None and time.monotonic() >= self._timer_at:
                await self._fire(connection)
            if self._unsure or self._has_doubts():
                with answering(connection):
                    await self._give_back(connection)
                continue  # that may have been the last thing to do
            if self._holds_too_long():
                self._prefetched.clear()
                with answering(connection):
                    await self._give_back(connection)
                self._look = False  # it is for others to take
            if self._attention.is_woken_in_vain(any(self._said_waiting), time.monotonic()):
                await self._say_waiting(connection, (False, False))
            if self._gathers():
                await self._news_within(self._gather_until - time.monotonic())
            elif self.settler or self._may_look() or self._caps_are_off():
                self._cycling = True
                try:
                    with answering(connection):
                        await self._cycle(connection)
                except (errors.SerializationFailure, errors.DeadlockDetected):
                    logger.debug("lost a race for a row, going round again")
                finally:
                    self._cycling = False
                    self._gather_until = self._gathers_until(time.monotonic())
            else:
                await self._rest(connection)

    def _has_doubts(self) -> bool:
        """Whether it is time to look for claims that came true behind our back."""
        return bool(self._doubtful) and time.monotonic() >= self._doubt_at

    def _holds_too_long(self) -> bool:
        """Whether none of the prefetched tasks could be started for so long that others should have them."""
        return bool(self._prefetched) and time.monotonic() - self._started_at > self._limits.hold_seconds

    async def assist(self, connection: Connection) -> None:
        """Over a second connection, end and claim while a round trip of `run` is under way."""
        while not self._stopping:
            await self._help.wait()
            self._help.clear()
            if self._needs_help():
                self._helper_idle.clear()
                try:
                    with answering(connection):
                        await self._cycle_completed(connection)
                except (errors.SerializationFailure, errors.DeadlockDetected):
                    logger.debug("lost a race for a row, going round again")
                finally:
                    self._helper_idle.set()
                    self._news.set()

    def _needs_help(self) -> bool:
        """Without prefetch for tasks that are not short, when a child waits for its next one; else when a batch has gathered.

        Not within limits of the cluster: what two round trips at once hold of them could not be told.
        """
        if self._stopping or self._unsure or not self._cycling or self._caps or not self._named.is_set():
            return False
        if self._limits.prefetch:
            return len(self.settler.completed) >= HELP_BATCH and not self._gathers()
        return not self._are_short() and (bool(self.settler.completed) or self._may_look())

    def _gathers(self) -> bool:
        """Whether results had better gather for a moment: the children have plenty to do, and there are only a few."""
        if self._stopping or self.settler.failed:
            return False
        plain = self._capacity.plain
        if self._limits.prefetch == 0:
            ends_soon = plain.load > 0 and self._are_short()
            return ends_soon and time.monotonic() < self._gather_until
        capacity = plain.shape.slots * self._capacity.depth()
        plenty, few = plain.load > capacity // 2, len(self.settler.completed) < capacity // 4
        return plenty and few and time.monotonic() < self._gather_until

    def _gathers_until(self, now: float) -> float:
        """When the next round trip begins at the latest, after one that has just come to its end."""
        if self._limits.prefetch == 0:
            return now + TOGETHER_SECONDS
        return now + min(GATHER_MAX_SECONDS, max(GATHER_MIN_SECONDS, now - self.turned_at))

    def _are_short(self) -> bool:
        """Whether the plain tasks that run here end as soon as they have begun."""
        return self._capacity.run_time < TOGETHER_SECONDS

    def _has_room(self) -> bool:
        return not self._stopping and self._capacity.has_room(len(self._prefetched))

    def _may_look(self) -> bool:
        """Whether there is something to ask for and somewhere to put it."""
        wanted = self._wanted()
        return any(wanted) or bool(self._prefetched and self._capacity.plain.room())

    def _wanted(self) -> list[int]:
        wanted = self._capacity.wanted(len(self._prefetched))
        return wanted if self._look and not self._stopping else [0 for _ in wanted]

    def _in_flight(self) -> list[Claimed]:
        """What counts against the limits of the cluster; with prefetch, only what was started."""
        if not self._caps:
            return []
        held = [*self._unsettled.values(), *self._capacity.running]
        return held if self._limits.prefetch else [*held, *self._prefetched]

    def _caps_are_off(self) -> bool:
        """Whether others must be told that we take up less of the cluster's limits than they believe."""
        return not self.settler and self._caps.are_off(self._in_flight())

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
        rooms = self._capacity.rooms(self._wanted())
        limit = sum(room.room for room in rooms)
        if not completed and not limit and not self._caps_are_off():
            return
        if limit:
            self._look = False  # before we look, so that news from now on counts
        began = time.monotonic()
        ending = {task.id: self._unsettled.pop(task.id) for task in completed if task.id in self._unsettled}
        caps = self._caps.ask(self._in_flight())
        ceiling = self._capacity.ceiling(limit, len(self._prefetched))
        ask = self._claimer.ask(self.owner, rooms, ceiling, caps, began)
        self._capacity.reserve(rooms)
        try:
            ended, claimed = await self._exchange(connection, completed, ask)
        except TRANSIENT:
            self.settler.completed[:0] = completed
            self._unsettled |= ending
            self._look = self._unsure = True
            self._caps.forget()
            raise
        finally:
            self._capacity.unreserve(rooms)
        if self._herald.heard:
            self._herald.completed(completed, ended)
        if ask.worker_id != self.owner.worker_id or not self._named.is_set():
            return  # we were declared dead meanwhile, and what was claimed in that name is not ours
        now = time.monotonic()  # and nothing is awaited until what was claimed is in hand: it is ours now
        if caps:
            self._caps.claimed(caps, [task for task in claimed if task.pid is not None])
        if limit:
            self._due_unknown |= self._claimer.claimed(claimed, now - began, now)
            self._take(claimed, rooms, now)
        if self._unknown:
            await self._put_off(connection)
        if now - began > SLOW_SECONDS and now > self._refresh_at:
            self._refresh_at = now + REFRESH_SECONDS
            await tasks.refresh(connection)
        if ended < len(completed):
            # Some were asked to stop, or are not ours any more: the next round ends the former and counts the latter.
            self.settler.failed += [stopped(task) for task in completed]

    async def _exchange(
        self, connection: Connection, completed: list[Completed], ask: Ask
    ) -> tuple[int, list[Claimed]]:
        """End and claim. Where a workflow is moved on, that is one transaction, and what it sends can be claimed in it."""
        of_workflows = [task for task in completed if task.node is not None]
        if not of_workflows:
            ended, claimed = await tasks.exchange(connection, completed, ask)
            return ended, await workflows.feed(connection, claimed)
        others = [task for task in completed if task.node is None]
        ended, claimed, timer = await steps.step(connection, of_workflows, others, ask)
        self._note_timer(timer)
        return ended, claimed

    async def _fire(self, connection: Connection) -> None:
        """Carry out what workflows have waited for."""
        self._attention.was_due()
        with answering(connection):
            seconds = await steering.fire(connection)
        self._timer_at = None
        self._note_timer(seconds)
        self._look = True

    def _note_timer(self, seconds: float | None) -> None:
        """Something of a workflow is due in so many seconds, if any."""
        if seconds is not None:
            at = time.monotonic() + max(0.0, seconds)
            self._timer_at = at if self._timer_at is None else min(at, self._timer_at)

    def _take(self, claimed: list[Claimed], rooms: Sequence[Room], now: float) -> None:
        """Hand out what was claimed, and decide whether to look for more."""
        if self._stopping:
            self._unsure = True  # they came too late, and go back untouched
            return
        if claimed:
            self._attention.found()
        if not self._prefetched:
            self._started_at = now
        pools = self._capacity.pools
        found = [0 for _ in pools]
        started: list[list[Claimed]] = [[] for _ in pools]
        for task in claimed:
            number = self._capacity.pool_of[task.is_async]
            found[number] += 1
            if self._grace_seconds and task.task_name not in self._tasks and task.task_name != BUILD:
                self._unknown.append(task)
                continue
            (self._prefetched if task.pid is None else started[number]).append(task)
        for pool, calls in zip(pools, started, strict=True):
            if calls:
                pool.submit(calls)
                if self._herald.heard:
                    self._herald.started(calls)
        hungry = [room.pool for room in rooms if found[room.pool] < room.room]
        for room in rooms:
            if room.room:
                self._more[room.pool] = room.pool not in hungry
        few = sum(found[number] for number in hungry)
        if not hungry:
            self._look = True
            self._attention.search()
        elif self._claimer.rewind():
            self._look = True
            if few:
                self._attention.looked(few, now)
        else:
            self._attention.looked(few, now)

    async def _put_off(self, connection: Connection) -> None:
        """Leave what is not known here to others, unless it has waited for them for too long: a child says so then."""
        unknown, self._unknown = self._unknown, []
        try:
            put_off = await tasks.put_off(
                connection, [(task.id, task.claim_seq) for task in unknown], self._grace_seconds
            )
        except TRANSIENT:
            self._look = self._unsure = True  # they go back as they are
            raise
        self._due_unknown = True
        late = [task for task in unknown if task.id not in put_off]
        self._prefetched.extend(task for task in late if task.pid is None)
        for number, pool in enumerate(self._capacity.pools):
            mine = [task for task in late if self._capacity.pool_of[task.is_async] == number]
            pool.submit([task for task in mine if task.pid is not None])

    async def _start(self, connection: Connection) -> None:
        """Send prefetched tasks to children; one that cannot be started is no longer ours or came too late."""
        plain = self._capacity.plain
        idle = plain.idle()
        pids = plain.free(len(self._prefetched))
        chosen: list[Claimed] = []
        for place, (task, pid) in enumerate(zip(self._prefetched, pids, strict=False)):
            if task.has_expiry and place >= idle:
                break  # it would have to queue, and may be too late by then
            chosen.append(task._replace(pid=pid))
        if not chosen:
            return
        pids = pids[: len(chosen)]
        owner = self.owner
        plain.reserve(pids)
        try:
            ours = await tasks.start(
                connection, [Start(task.id, task.claim_seq, task.pid or 0) for task in chosen]
            )
        except TRANSIENT:
            self._prefetched.clear()  # some may count as started now, and could not be started again: all go back
            raise
        finally:
            plain.unreserve(pids)
        if not self._prefetched or self.owner is not owner:
            return  # we stop, or were declared dead: all that was prefetched goes back or is gone
        for _ in chosen:
            self._prefetched.popleft()
        self._started_at = time.monotonic()
        started = [task for task in chosen if task.id in ours]
        plain.submit(started)
        if self._herald.heard:
            self._herald.started(started)
        if len(ours) < len(chosen):
            self._unsure = True  # a start whose reply was lost has left it running in our name
            await self._expire(connection)

    async def _expire(self, connection: Connection) -> None:
        """End what was not started in time."""
        late = await tasks.expire(connection, self.owner.worker_id, EXPIRED)
        late += await steering.expire(connection, self.owner.worker_id, EXPIRED)
        if self._herald.heard:
            self._herald.expired(late)

    async def _fail(self, connection: Connection, failed: list[Failure]) -> None:
        if any(failure.node for failure in failed):
            async with connection.transaction():
                settled = await workflows.settle(connection, [], failed)
            self._note_timer(settled.timer)
            ours, self._look = settled.failed, True
        else:
            ours = await tasks.fail(connection, failed)
        if self._herald.heard:
            self._herald.failed(failed, ours)
        for failure in failed:
            self._unsettled.pop(failure.id, None)
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
        await self._helper_idle.wait()  # what it ends and claims right now is in nobody's hands
        held = [(task.id, task.claim_seq) for task in (*self._capacity.running, *self._prefetched)]
        held += [(ended.id, ended.claim_seq) for ended in (*self.settler.completed, *self.settler.failed)]
        if self._doubtful:
            self._doubtful = await workers.living(connection, self._doubtful)
            self._doubt_at = time.monotonic() + DOUBT_SECONDS
        await tasks.release(connection, self.owner.worker_id, held)
        await cancelling.end_unheld(connection, self.owner.worker_id, held)
        self._unsure = False

    async def _rest(self, connection: Connection) -> None:
        """Sleep until there is news, or it is time to look."""
        has_room = self._has_room()
        pause = self._attention.pause() if has_room else None
        waiting = self._waiting()
        if waiting != self._said_waiting:
            self._due_unknown |= any(waiting)  # of what was sent while we did not wait, nobody has told us
            await self._say_waiting(connection, waiting)
        if self._due_unknown and has_room and pause is None:
            if self.load and await self._news_within(CALM_SECONDS):
                return  # a result has come: it is more urgent
            self._due_unknown = False
            with answering(connection):
                seconds = await tasks.next_due(connection, self._queues, self._claimer.rates)
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
            with answering(connection):
                await self._expire(connection)
            await self._fire(connection)

    def _waiting(self) -> tuple[bool, bool]:
        """Whether we sleep until we are told of plain tasks, and of async ones."""
        plain, of_async = self._capacity.wants(len(self._prefetched), time.monotonic())
        waiting = self._attention.waiting
        return waiting and plain, waiting and of_async

    async def _say_waiting(self, connection: Connection, waiting: tuple[bool, bool]) -> None:
        self._said_waiting = waiting  # what is said now; our mind may change while it is on its way
        with answering(connection):
            await workers.wait(connection, self.owner.worker_id, *waiting, self.state)

    async def _sleep(self, pause: float | None, has_room: bool) -> bool:
        """Whether there was news before the time was up."""
        seconds = self._limits.poll_seconds * uniform(1, POLL_SPREAD) if pause is None else pause
        if not has_room and any(self._said_waiting):
            seconds = FULL_SECONDS
        if self._doubtful:
            seconds = min(seconds, DOUBT_SECONDS)
        if self._due_at is not None and has_room:
            seconds = min(seconds, max(0.0, self._due_at - time.monotonic()))
        if self._timer_at is not None:
            seconds = min(seconds, max(0.0, self._timer_at - time.monotonic()))
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
