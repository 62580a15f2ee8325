"""Move tasks between the database and the worker: settle, start, claim, release and expire them.

No outcome is lost with a connection: outcomes that could not be written are kept and written over the next connection.

The database may count tasks as this worker's that the worker does not hold: the reply to a claim was lost with its
connection, or prefetched tasks were dropped. These are released, so that any worker can claim them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from horsies import cancellation, quarantine
from horsies.codec import encode_result
from horsies.config import CustomQueueConfig
from horsies.db.connection import TRANSIENT, Connection, hang_up, hangup_after, server_of
from horsies.db.queries import tasks, workers, workflows
from horsies.db.queries.tasks import (
    BatchLane,
    Claimed,
    ClaimRequest,
    Completed,
    Expired,
    PoolRoom,
    SettledAndClaimed,
    stopped,
)
from horsies.durations import LONGEST_SECONDS
from horsies.executor.pool import ChildPool
from horsies.keys import is_keyed
from horsies.quarantine import RowFault
from horsies.registry import TaskRegistry
from horsies.result import TaskError, TaskResult
from horsies.status import OutcomeCode
from horsies.units import counted
from horsies.worker.batches import BatchClaims, as_calls, as_lanes
from horsies.worker.claim import Capacity, Caps, Claimer, Limits, Owner
from horsies.worker.pacing import LOST_SESSION_SECONDS, Sleeper
from horsies.worker.settle import Settler
from horsies.workflow import control, settle
from horsies.workflow.spec import INTERNAL_TASKS

logger = logging.getLogger("horsies.settle")

# A round trip that takes this long may use a plan made for another table size. Statistics are refreshed at most this often.
SLOW_SECONDS, REFRESH_SECONDS = 0.03, 5.0
# So many names of unknown tasks are remembered.
MAX_REPORTED = 1_000
EXPIRED = encode_result(
    TaskResult(
        err=TaskError(error_code=OutcomeCode.TASK_EXPIRED, message="the task was not started in time")
    ),
    Any,
    None,
).decode()


class Holdings:
    """The tasks that the children run, those prefetched, and those whose outcome is not written yet."""

    def __init__(self, capacity: Capacity, settler: Settler, limits: Limits) -> None:
        # True if the database may count tasks as ours that are not held here.
        self.is_uncertain = False
        # Tasks that have left their child and whose outcome is not written; kept only within concurrency limits.
        self.unsettled: dict[str, Claimed] = {}
        # Sessions of lost connections. Until a session has ended, its last statement may still claim tasks.
        self.lost_sessions: set[int] = set()
        self._check_sessions_at = 0.0
        self._capacity = capacity
        self._prefetched = capacity.prefetched
        self._settler = settler
        self._limits = limits
        self._started_at = 0.0  # when a prefetched task was last started, or the first of them claimed
        self._drops = 0

    def in_flight(self) -> list[Claimed]:
        """Return the tasks that count against the concurrency limits; with prefetch, only those that were started."""
        held = [*self.unsettled.values(), *self._capacity.running]
        return held if self._limits.prefetch else [*held, *self._prefetched]

    def drop_prefetched(self) -> None:
        """Forget the prefetched tasks; the caller sees to it that they are released, unless they are lost already."""
        self._prefetched.clear()
        self._drops += 1

    def will_prefetch(self, now: float) -> None:
        """Start the time that prefetched tasks may wait, if there are none yet."""
        if not self._prefetched:
            self._started_at = now

    def session_lost(self, session: int) -> None:
        """Note that the connection with this session was lost. What is held is compared with the database before the next claim."""
        self.lost_sessions.add(session)
        self._check_sessions_at = float("-inf")

    # Release

    def release_at(self) -> float | None:
        """Return when tasks must be released, None if never."""
        if self.is_uncertain:
            return float("-inf")
        times: list[float] = []
        if self.lost_sessions:
            times.append(self._check_sessions_at)
        if self._prefetched:
            times.append(self._started_at + self._limits.hold_seconds)
        return min(times, default=None)

    def drop_stuck(self, now: float) -> bool:
        """Drop prefetched tasks if none could be started for so long that other workers should have them."""
        is_stuck = bool(self._prefetched) and now >= self._started_at + self._limits.hold_seconds
        if is_stuck:
            self.drop_prefetched()
        return is_stuck

    async def release(self, connection: Connection, worker_id: UUID) -> None:
        """Release all tasks that the database counts as ours and that are not held here.

        The statement of a lost session may still claim tasks, so the next release is due until all these sessions have ended.
        """
        # Before the await: both may be set again while the statements run.
        self.is_uncertain, self._check_sessions_at = False, time.monotonic() + LOST_SESSION_SECONDS
        try:
            if self.lost_sessions:
                await self._disown_undone(connection, worker_id)
                await self._write_undone_again(connection, worker_id)
            held = [(task.id, task.claim_seq) for task in (*self._capacity.running, *self._prefetched)]
            held += self._settler.claims
            with hangup_after(connection):
                if asked := frozenset(self.lost_sessions):
                    ended = asked - await workers.open_sessions(connection, asked)
                    self.lost_sessions -= ended
                with RowFault() as fault:
                    await tasks.release(connection, worker_id, held)
                if fault:
                    await quarantine.release_apart(connection, worker_id, held)
                await cancellation.end_unheld(connection, worker_id, held)
        except BaseException:
            self.is_uncertain = True
            raise

    async def _disown_undone(self, connection: Connection, worker_id: UUID) -> None:
        """Stop the tasks whose claims the database has lost: in a crash of the server, or in a failover to another one.

        This worker may claim such a task again, under the same `claim_seq`. So no outcome of the lost claim may be left to be
        stored, either.
        """
        tasks_here = [*self._capacity.running, *self._prefetched]
        claims = {(task.id, task.claim_seq) for task in tasks_here} | self._settler.claims
        if not claims:
            return
        with hangup_after(connection):
            held = await tasks.held(connection, worker_id, [task_id for task_id, _ in claims])
        undone = claims - held
        if stopped_here := [task for task in tasks_here if (task.id, task.claim_seq) in undone]:
            count = counted(len(stopped_here), "task")
            logger.warning("The database has lost the claims of %s; they may run again", count)
        for pool in self._capacity.pools:
            pool.disown(undone)
        for task in [task for task in self._prefetched if (task.id, task.claim_seq) in undone]:
            self._prefetched.remove(task)
        self._settler.disown(undone)

    async def _write_undone_again(self, connection: Connection, worker_id: UUID) -> None:
        """Write the outcomes again that the database has lost, so that finished tasks do not run a second time.

        That takes a failover to an asynchronous standby, or a server that acknowledges commits before they are on disk.
        """
        recent = self._settler.take_recent()
        if not recent:
            return
        try:
            with hangup_after(connection):
                held = await tasks.held(connection, worker_id, [outcome.id for outcome in recent])
        except BaseException:
            self._settler.written(recent, time.monotonic())
            raise
        undone = [outcome for outcome in recent if (outcome.id, outcome.claim_seq) in held]
        if undone:
            logger.warning(
                "The database has lost the outcomes of %s; writing them again", counted(len(undone), "task")
            )
            self._settler.write_again(undone)

    # Prefetched tasks

    async def start_prefetched(self, connection: Connection, worker_id: UUID) -> bool:
        """Start prefetched tasks; return False if some could not be: they are not ours any more, or have expired."""
        plain = self._capacity.plain
        chosen = self._startable()
        if not chosen:
            return True
        pids = [task.pid or 0 for task in chosen]
        drops = self._drops
        plain.reserve(pids)
        try:
            ours = await tasks.start(connection, chosen, worker_id)
        except TRANSIENT:
            self.drop_prefetched()  # some may count as started, and could not be started again: release all
            raise
        finally:
            plain.unreserve(pids)
        if self._drops != drops:
            return True  # the worker stops, or was declared dead: they are released, or lost already
        for _ in chosen:
            self._prefetched.popleft()
        self._started_at = time.monotonic()
        started = [task for task in chosen if task.id in ours]
        plain.submit(started)
        self._settler.event_hooks.started(started)
        if len(started) < len(chosen):
            self.is_uncertain = True  # a start whose reply was lost has left the task running in our name
            return False
        return True

    def _startable(self) -> list[Claimed]:
        """Return the prefetched tasks that may go to a child now, each with the child's pid."""
        plain = self._capacity.plain
        idle = plain.idle()
        pids = plain.free(len(self._prefetched))
        chosen: list[Claimed] = []
        for place, (task, pid) in enumerate(zip(self._prefetched, pids, strict=False)):
            if task.has_expiry and place >= idle:
                break  # it would wait in the child, and may expire there
            chosen.append(task._replace(pid=pid))
        return chosen


class RoundTrips:
    """Settles, starts and claims tasks, over the connection of the loop and a second one that helps."""

    def __init__(
        self,
        app: TaskRegistry,
        limits: Limits,
        owner: Owner,
        queues: Sequence[CustomQueueConfig],
        pools: Sequence[ChildPool],
    ) -> None:
        self.limits = limits
        self.queues = [queue.name for queue in queues]
        self.owner = owner
        self.registered = asyncio.Event()  # the database knows our worker id, and it is not declared dead
        self.registered.set()
        self.is_stopping = False
        self.is_claim_due = True  # a claim may find tasks
        self.settler = Settler(app)
        self.capacity = Capacity(pools, limits)
        self.claimer = Claimer(queues, self.capacity.pool_of, limits.max_claim_batch)
        self.claimer.keys.has_tasks_with_keys = any(task.definition.has_keys for task in app.tasks.values())
        self.batches = BatchClaims(app.tasks, self.claimer, self.capacity.pool_of)
        self.caps = Caps(limits.cluster_wide_cap, queues)
        self.holdings = Holdings(self.capacity, self.settler, limits)
        self.sleeper = Sleeper(self.capacity, limits.poll_seconds)
        self._event_hooks = self.settler.event_hooks
        self._tasks = app.tasks
        self._grace_seconds = min(app.config.unknown_task_grace_seconds, LONGEST_SECONDS)
        self.has_backlog = [True for _ in pools]  # by pool: the last claim filled its room
        # Keys of which a task has ended that no claim settles: it has failed, or belongs to a workflow.
        self.ended_keys: set[str] = set()
        self._unknown: list[Claimed] = []  # just claimed, and their task is not registered here
        self._reported: set[tuple[str, bool]] = set()  # the unknown names that were logged
        self._refresh_at = 0.0
        self._connections: set[Connection] = set()

    @contextmanager
    def working_on(self, connection: Connection) -> Generator[None]:
        """Note that round trips go over this connection within the block."""
        self._connections.add(connection)
        try:
            yield
        finally:
            self._connections.discard(connection)

    def leave_other_servers(self, server: tuple[str, int]) -> None:
        """Give up connections to servers other than this one, which takes writes: there has been a failover.

        The old primary may be cut off from its network, and would not answer for long.
        """
        for connection in self._connections:
            if not connection.closed and server_of(connection) != server:
                logger.warning("The primary is now %s port %d; leaving the server used before", *server)
                hang_up(connection)

    def limit_rates(self, rates: Sequence[str]) -> None:
        """Claim within these rate limits. The lanes of batches are among them, and are claimed from by other statements."""
        self.claimer.limit_rates([rate for rate in rates if rate not in self.batches.lingers])

    # Decisions

    def can_claim(self) -> bool:
        """Return True if a claim could return tasks and a child could take them, or a prefetched task can start."""
        return any(self._claimable()) or bool(self.capacity.prefetched and self.capacity.plain.room())

    def _claimable(self) -> list[int]:
        """Return how many tasks to claim now, for each pool."""
        counts = self.capacity.claimable(time.monotonic())
        return counts if self.is_claim_due and not self.is_stopping else [0 for _ in counts]

    def is_usage_outdated(self) -> bool:
        """Return True if the usage of the concurrency limits must be written, and no outcome will be written with it."""
        if not self.caps or self.settler:
            return False
        return self.caps.are_outdated(self.holdings.in_flight())

    # Effects

    async def settle_start_and_claim(self, connection: Connection) -> None:
        """Settle failures, start prefetched tasks, then settle completed tasks and claim."""
        ended, self.ended_keys = self.ended_keys, set()
        try:
            if self.settler.failed:
                await self._settle_failed(connection)
            if self.capacity.prefetched and not await self.holdings.start_prefetched(
                connection, self.owner.worker_id
            ):
                await self.expire(connection)
        except Exception:
            self.is_claim_due = self.holdings.is_uncertain = True
            self.ended_keys |= ended
            raise
        await self._claim_in_turn(connection)
        if ended:
            await tasks.wake_for_keys(connection, self.owner.worker_id, ended)

    async def _settle_failed(self, connection: Connection) -> None:
        """Write failures. The outcome of a task that another worker has taken over is dropped and counted."""
        failed = self.settler.take_failed()
        try:
            settled = await quarantine.settle(connection, [], failed, self.owner.worker_id)
            self.settler.written(failed, time.monotonic())
            self._event_hooks.failed(failed, settled.failed)
            self.sleeper.add_timer(settled.timer)
            self.is_claim_due |= any(failure.node for failure in failed)
            for failure in failed:
                self.holdings.unsettled.pop(failure.id, None)
            if any(settled.failed.values()):
                self.sleeper.forget_due_time()  # some are retried
            written = settled.failed
            if not_ours := [failure for failure in failed if failure.id not in settled.failed]:
                # A task is not stale if this worker has settled it already and the reply was lost.
                stale = len(not_ours) - await tasks.count_settled_by(
                    connection, self.owner.worker_id, [failure.id for failure in not_ours]
                )
                if stale > 0:
                    results = counted(stale, "stale result")
                    logger.warning("dropped %s: another worker has taken over", results)
                else:
                    written = written | {each.id: False for each in not_ours if not each.asked}
            self.settler.failure_log.settled(failed, written)
        except Exception:
            self.settler.failed[:0] = failed
            raise

    async def _claim_in_turn(self, connection: Connection) -> None:
        """Settle completed tasks and claim others, and look for batches: after the other tasks, or before them in turn."""
        batches = self.batches
        looks_for_batches = bool(batches) and self.is_claim_due and not self.is_stopping
        if not looks_for_batches or not batches.come_first:
            await self.settle_completed_and_claim(connection)
        if not looks_for_batches:
            return
        if batches.come_first:
            self.is_claim_due = False  # before the await: a notification from now on counts
        claimed = 0
        for pool in batches.pools:
            claimed += await self._claim_batches(connection, pool)
        if batches.come_first:
            was_notified, self.is_claim_due = self.is_claim_due, True
            await self.settle_completed_and_claim(connection)
            self.is_claim_due |= was_notified  # which may have been of a batch
        batches.come_first = any(batches.is_ready.values()) and not claimed
        self.capacity.serves_batches = batches.is_ready.get(0, False)

    async def _claim_batches(self, connection: Connection, number: int) -> int:
        """Claim a batch for each child of a pool that has room for one, and start it there; return how many."""
        pool, lanes = self.capacity.pools[number], self.batches.lanes(number)
        pids = list(dict.fromkeys(pool.free(pool.idle()))) if pool.is_valid() else []
        if not lanes:
            self.batches.is_ready[number] = False
            return 0
        if not pids:
            await self._look_for_batches(connection, number, lanes)
            return 0
        owner, rooms = self.owner, [PoolRoom(number, len(pids), len(pids), pids, 0.0)]
        self.capacity.reserve(rooms)
        try:
            claimed: list[Claimed] = []
            with RowFault() as fault:
                claimed = await tasks.claim_batches(connection, lanes, pids, owner.columns)
            if fault.error and not await quarantine.park_unclaimable(
                connection, as_lanes(lanes, number), owner.worker_id
            ):
                raise fault.error
            claimed = await self._load_inputs(connection, claimed)
        except Exception:
            self.is_claim_due = self.holdings.is_uncertain = True
            raise
        finally:
            self.capacity.unreserve(rooms)
        if owner.worker_id != self.owner.worker_id or not self.registered.is_set():
            return 0  # the worker was declared dead meanwhile: what it claimed under that id is not ours
        if self.is_stopping:
            self.holdings.is_uncertain = True  # too late: release them
            return 0
        calls = as_calls(claimed)
        self.batches.is_ready[number] = bool(fault) or len(calls) == len(pids)
        if calls:
            self.sleeper.poll_policy.found()
            pool.submit(calls)
            self._event_hooks.started(claimed)
        if self.batches.is_ready[number]:
            self.is_claim_due = True
            self.sleeper.poll_policy.poll()
        return len(calls)

    async def _look_for_batches(
        self, connection: Connection, number: int, lanes: Sequence[BatchLane]
    ) -> None:
        """Note if a batch waits for a child of a pool, none of which is free; now and then, because a look takes time."""
        began = time.monotonic()
        if began < self.batches.look_at:
            return
        self.batches.is_ready[number] = await tasks.batch_is_ready(connection, lanes, self.owner.worker_id)
        self.batches.looked(time.monotonic() - began, began)

    async def settle_completed_and_claim(self, connection: Connection) -> None:
        """Settle completed tasks and claim as many again, in one round trip and one transaction."""
        completed = self.settler.take_completed()
        rooms = self.capacity.pool_rooms(self._claimable())
        limit = sum(room.room for room in rooms)
        if not completed and not limit and not self.is_usage_outdated():
            return
        if limit:
            self.is_claim_due = False  # before the await: a notification from now on counts
        began = time.monotonic()
        unsettled = self.holdings.unsettled
        settling = {task.id: unsettled.pop(task.id) for task in completed if task.id in unsettled}
        caps = self.caps.request(self.holdings.in_flight()) if self.caps else []
        request = self.claimer.request(self.owner, rooms, self.capacity.ceiling(limit), caps, began)
        request = request._replace(run_times=self.capacity.run_times_json())
        self.capacity.reserve(rooms)
        try:
            answer = await self._settle_and_claim(connection, completed, request)
            claimed = await self._load_inputs(connection, answer.claimed)
        except Exception:
            self.settler.completed[:0] = completed
            self.holdings.unsettled |= settling
            self.is_claim_due = self.holdings.is_uncertain = True
            self.caps.forget()
            raise
        finally:
            self.capacity.unreserve(rooms)
        self.settler.written(completed, time.monotonic())
        self._event_hooks.completed(completed, answer.settled)
        if request.worker_id != self.owner.worker_id or not self.registered.is_set():
            return  # the worker was declared dead meanwhile: what it claimed under that id is not ours
        now = time.monotonic()  # no await until the claimed tasks are in hand: they are ours now
        if caps:
            self.caps.claimed(caps, [task for task in claimed if task.pid is not None])
        if limit:
            if self.claimer.claimed(claimed, now - began, now):
                self.sleeper.forget_due_time()
            if request.key_lanes:
                self.claimer.keys.walked(answer.walked, claimed, now - began, now)
            self._take(claimed, answer.left, rooms, now - began, now)
        if self._unknown:
            await self._defer_unknown(connection)
        if now - began > SLOW_SECONDS and now > self._refresh_at:
            self._refresh_at = now + REFRESH_SECONDS
            await tasks.refresh(connection)
        if answer.settled < len(completed):
            # Some were cancelled, or are not ours any more. The next round trip ends the former and counts the latter.
            self.settler.failed += [stopped(task) for task in completed]

    async def _settle_and_claim(
        self, connection: Connection, completed: list[Completed], request: ClaimRequest
    ) -> SettledAndClaimed:
        """Settle and claim in one transaction. Tasks that a workflow sends in it can be claimed in it."""
        of_workflows = [task for task in completed if task.node is not None]
        others = [task for task in completed if task.node is None]
        with RowFault():
            if not of_workflows:
                return await tasks.settle_and_claim(connection, completed, request)
            answer = await settle.settle_and_claim(connection, of_workflows, others, request)
            self.sleeper.add_timer(answer.timer)
            return answer
        return await self._settle_and_claim_apart(connection, completed, request)

    async def _settle_and_claim_apart(
        self, connection: Connection, completed: list[Completed], request: ClaimRequest
    ) -> SettledAndClaimed:
        """Settle tasks one by one, then claim; park the rows that make a statement fail."""
        settled = await quarantine.settle_apart(connection, completed, [], request.worker_id)
        self.sleeper.add_timer(settled.timer)
        with RowFault() as fault:
            answer = await tasks.settle_and_claim(connection, [], request)
            return answer._replace(settled=len(settled.completed))
        if fault.error and not await quarantine.park_unclaimable(
            connection, request.lanes, request.worker_id
        ):
            raise fault.error
        self.is_claim_due = True
        self.caps.forget()
        return SettledAndClaimed(len(settled.completed), [], 0)

    async def _load_inputs(self, connection: Connection, claimed: list[Claimed]) -> list[Claimed]:
        """Load the inputs of tasks of workflows; park those whose inputs cannot be read."""
        with RowFault():
            return await workflows.load_inputs(connection, claimed)
        self.caps.forget()  # the claim has counted tasks that are parked now
        return await quarantine.load_inputs_apart(connection, claimed, self.owner.worker_id)

    def _take(
        self, claimed: list[Claimed], left: int, rooms: Sequence[PoolRoom], seconds: float, now: float
    ) -> None:
        """Give the tasks of a claim that took so many seconds to the children, and decide whether to claim more.

        `left` is the number of plain tasks that were found and must wait for an idle child.
        """
        if self.is_stopping:
            self.holdings.is_uncertain = True  # too late: release them
            return
        if claimed:
            self.sleeper.poll_policy.found()
        self.holdings.will_prefetch(now)
        pools = self.capacity.pools
        found = [0 for _ in pools]
        found_keys = [False for _ in pools]
        started: list[list[Claimed]] = [[] for _ in pools]
        for task in claimed:
            number = self.capacity.pool_of[task.is_async]
            found[number] += 1
            found_keys[number] |= is_keyed(task.rate_key)
            if task.task_name not in self._tasks and task.task_name not in INTERNAL_TASKS:
                self._unknown.append(task)
                continue
            (self.capacity.prefetched if task.pid is None else started[number]).append(task)
        for pool, calls in zip(pools, started, strict=True):
            if calls:
                pool.submit(calls)
                self._event_hooks.started(calls)
        unfilled: list[int] = []
        for room in rooms:
            if room.room:
                # Tasks with keys fill idle children only.
                full = min(room.room, room.idle) if found_keys[room.pool] else room.room
                has_backlog = found[room.pool] >= full or (room.pool == 0 and left > 0)
                self.has_backlog[room.pool] = has_backlog
                if room.pool == 0:
                    # A fixed prefetch leaves only tasks with keys to idle children.
                    are_keyed = found_keys[0] or (left > 0 and not self.capacity.is_adaptive)
                    self.capacity.serves_keys = are_keyed and has_backlog
                    self.capacity.claims_ahead = has_backlog and left == 0
                    if not (room.idle or found[0] or left):
                        self.capacity.found_nothing_ahead(seconds, now)
                if not has_backlog:
                    unfilled.append(found[room.pool])
        self._claim_again(unfilled, now)

    def _claim_again(self, found: list[int], now: float) -> None:
        """Decide whether to claim again at once, given how many tasks each pool got that has room for more."""
        if not found:
            self.is_claim_due = True
            self.sleeper.poll_policy.poll()
            return
        was_rewound = self.claimer.rewind()
        self.is_claim_due |= was_rewound or self.claimer.keys.is_unfinished
        if any(found) or not was_rewound:
            self.sleeper.poll_policy.claimed(sum(found), now)

    async def _defer_unknown(self, connection: Connection) -> None:
        """Leave unknown tasks to other workers. One that has waited too long for them is run, and fails in its child."""
        unknown, self._unknown = self._unknown, []
        try:
            deferred = await quarantine.defer_unknown(
                connection, unknown, self._grace_seconds, self.owner.worker_id
            )
        except Exception:
            self.is_claim_due = self.holdings.is_uncertain = True  # release them
            raise
        self.sleeper.forget_due_time()
        known = {(task.queue_name, task.task_name) for task in unknown if deferred.get(task.id)}
        self.claimer.leave_out(self.claimer.left_out | known)
        self._report_unknown(unknown, known)
        late = [task for task in unknown if task.id not in deferred]
        self.capacity.prefetched.extend(task for task in late if task.pid is None)
        for number, pool in enumerate(self.capacity.pools):
            mine = [task for task in late if self.capacity.pool_of[task.is_async] == number]
            pool.submit([task for task in mine if task.pid is not None])

    def _report_unknown(self, unknown: Sequence[Claimed], known: set[tuple[str, str]]) -> None:
        """Log each name of a task that this worker does not know, once."""
        for queue, name in {(task.queue_name, task.task_name) for task in unknown}:
            is_known = (queue, name) in known
            if (name, is_known) in self._reported:
                continue
            if len(self._reported) >= MAX_REPORTED:
                self._reported.clear()
            self._reported.add((name, is_known))
            fate = (
                "It is left to a live worker that does"
                if is_known
                else "Nor does any other live worker of that queue, so it fails with WORKER_RESOLUTION_ERROR unless one"
                f" comes within {self._grace_seconds} s"
            )
            logger.error(
                "This worker does not know task %r of queue %r. %s. Does the worker import the module that defines it?",
                name,
                queue,
                fate,
            )

    async def expire(self, connection: Connection) -> None:
        """End tasks that were not started in time."""
        late: list[Expired] = []
        with RowFault() as fault:
            late += await tasks.expire(connection, self.owner.worker_id, EXPIRED)
        if fault:
            late += await quarantine.expire_apart(connection, self.owner.worker_id, EXPIRED)
        late += await control.expire(connection, self.owner.worker_id, EXPIRED)
        self._event_hooks.expired(late)
        self.settler.failure_log.expired(late)
