"""The claim loop of a worker: each round trip settles tasks that have ended, starts prefetched ones and claims new ones."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from psycopg import errors

from horsies.db.connection import Connection, hangup_after, time_to_store
from horsies.db.queries.tasks import Claimed, stopped
from horsies.executor.protocol import Outcome
from horsies.keys import is_keyed
from horsies.quarantine import RowFault
from horsies.status import OutcomeCode, WorkerState
from horsies.worker.claim import Owner
from horsies.worker.pacing import (
    LoopState,
    gather_seconds,
    needs_help,
    next_work,
    should_gather,
)
from horsies.worker.round_trips import RoundTrips
from horsies.workflow import control

logger = logging.getLogger("horsies.worker")

# A timer that is due again at once is fired again after this long: a row that stays due must not block everything else.
FIRE_SECONDS = 0.02
# The pause after a row that could not be singled out made a statement fail.
FAULT_SECONDS = 1.0


class ClaimLoop:
    """Moves tasks between the database and the pools of children. Signals and reconnection are up to the caller.

    Every turn of the loop enters the first state of this table whose condition holds (`pacing.next_work`, then
    `pacing.next_rest`), does what the state says, and decides again: every state can follow every other. All transitions
    happen in `run`; `PollPolicy` moves between the four states in which the loop sleeps.

    | state | meaning | entered when |
    |---|---|---|
    | STARTING | There is no connection yet. | the loop was created, or its connection was lost |
    | STOPPED | `run` returns. | stopping, and nothing runs or is left to write |
    | DISOWNED | The worker was declared dead: wait for a new worker id. | `disown` was called; left by `resume_as` |
    | FIRING_TIMERS | Carry out what workflows have waited for. | a timer is due |
    | RELEASING | Release tasks that the database counts as ours and that are not held here. | a reply was lost, tasks were dropped, or prefetched tasks are stuck |
    | ANNOUNCING | Tell senders whether to notify this worker. | what they were told last is wrong |
    | GATHERING | Let results gather for one round trip. | the children have enough to do |
    | CLAIMING | Settle, start and claim, in one round trip. | there are outcomes, or there may be tasks and there is room |
    | DRAINING | Wait for running tasks to end. | stopping |
    | FULL | Wait for room. | no pool has room |
    | FALLING_ASLEEP | Read the open transactions and the next due time, and claim once more. | about to be ASLEEP with an unknown due time |
    | POLLING, CONFIRMING_SLEEP, WAITING_FOR_COMMITS, ASLEEP | Sleep, then claim. | nothing else: see `PollPolicy` |
    | BACKING_OFF | Wait a second. | a row that could not be singled out made a statement fail |
    """

    def __init__(self, trips: RoundTrips) -> None:
        self.loop_state = LoopState.STARTING
        self.turned_at = 0.0
        self._settler = trips.settler
        self.trips = trips
        self._capacity = trips.capacity
        self._holdings = trips.holdings
        self._sleeper = trips.sleeper
        self._gather_until = 0.0
        self._help_wanted = asyncio.Event()
        self._helper_idle = asyncio.Event()
        self._helper_idle.set()

    # Events, from the listener, the pools and the worker

    def claim_soon(self) -> None:
        """Claim soon: there may be new tasks."""
        self.trips.claimer.keys.look_soon(time.monotonic())
        self.trips.is_claim_due = True
        self._sleeper.notified()

    def ended(self, task: Claimed, outcome: Outcome) -> None:
        """Take the outcome that a child reported."""
        self._capacity.ran(task, outcome.seconds)
        self._settler.ended(task, outcome)
        self._left_child(task, completed=outcome.ok)

    def crashed(self, task: Claimed, how: str) -> None:
        """Note that a child died while it ran a task."""
        self._settler.failed.append(self._settler.crash(task, f"the task was lost: {how}"))
        self._left_child(task)

    def timed_out(self, task: Claimed, limit_ms: int) -> None:
        """Note that a task ran past its time limit, so that its child was killed."""
        message = f"the task ran longer than its limit of {limit_ms} ms"
        self._settler.failed.append(self._settler.failure(task, OutcomeCode.TASK_TIMEOUT, message))
        self._left_child(task)

    def cancelled(self, task: Claimed) -> None:
        """Note that a task was stopped because it was cancelled, or did not begin."""
        self._settler.failed.append(stopped(task))
        self._left_child(task)

    def _left_child(self, task: Claimed, *, completed: bool = False) -> None:
        """Note that a child is done with a task. It counts as in flight until its outcome is written."""
        self._settler.event_hooks.left_child(task)
        if not completed:
            self._settler.failure_log.left_child(task)
        if self.trips.caps:
            self._holdings.unsettled[task.id] = task
        if is_keyed(task.rate_key):
            self.trips.claimer.keys.look_soon(time.monotonic())
            self.trips.is_claim_due = True
            if task.node is not None or not completed:
                self.trips.ended_keys.add(task.rate_key)
        self.child_available()

    def child_available(self) -> None:
        """Note that a child can take a call."""
        # Claim for it if there was a backlog, or if a limit may have held tasks back.
        trips = self.trips
        trips.is_claim_due |= any(trips.has_backlog) or bool(trips.caps) or bool(trips.batches)
        self._sleeper.wake_up()
        self._help_wanted.set()

    def cancel(self, ids: Sequence[str]) -> None:
        """Stop these of the tasks that run here, and no others."""
        self._settler.event_hooks.cancel_requested(ids)
        self._settler.failure_log.cancel_requested(ids)
        for pool in self._capacity.pools:
            pool.cancel(ids)

    def stop(self) -> None:
        """Claim nothing more, and release the tasks that were not started."""
        self.trips.is_stopping = True
        self._holdings.drop_prefetched()
        self.calls_released()
        self._help_wanted.set()

    def suspend(self, queues: Sequence[str]) -> None:
        """Claim nothing from these queues; if they are others than before, release the tasks that were not started."""
        if self.trips.claimer.suspend(queues):
            self._holdings.drop_prefetched()
            self._holdings.is_uncertain = True
            self.claim_soon()

    def calls_released(self) -> None:
        """Release the tasks that were held without having begun and have been dropped."""
        self._holdings.is_uncertain = self.trips.is_claim_due = True
        self._sleeper.wake_up()

    def disown(self) -> None:
        """Forget all that is held: it has been given to others. Do nothing until there is another worker id."""
        self.trips.registered.clear()
        self.trips.caps.forget()
        self._holdings.drop_prefetched()
        self._holdings.unsettled.clear()
        self._sleeper.forget_announcement()

    def resume_as(self, owner: Owner) -> None:
        """Go on under another worker id, which is registered."""
        self.trips.owner = owner
        self.trips.registered.set()
        self.claim_soon()

    @property
    def state(self) -> WorkerState:
        """The state that operators see."""
        if self.trips.is_stopping:
            return WorkerState.DRAINING
        if self.trips.claimer.is_suspended:
            return WorkerState.SUSPENDED
        return WorkerState.BUSY if self._capacity.load else WorkerState.IDLE

    # The loop

    async def run(self, connection: Connection) -> None:
        """Work over one connection until stopped; the caller replaces a lost connection and calls again."""
        self.loop_state = LoopState.STARTING
        self._sleeper.poll_policy.poll()
        self._sleeper.forget_announcement()
        while self.loop_state is not LoopState.STOPPED:
            self.turned_at = time.monotonic()
            self.loop_state = self._next_state(self.turned_at)
            try:
                with RowFault() as fault:
                    await self._act(connection)
            except Exception:
                self.loop_state = LoopState.STARTING
                raise
            if fault:
                self.loop_state = LoopState.BACKING_OFF
                logger.error(
                    "A row that could not be singled out made a statement fail; trying again",
                    exc_info=fault.error,
                )
                await asyncio.sleep(FAULT_SECONDS)

    def _next_state(self, now: float) -> LoopState:
        work = next_work(
            now=now,
            is_stopping=self.trips.is_stopping,
            is_registered=self.trips.registered.is_set(),
            is_busy=bool(
                self._capacity.load or self._holdings.is_uncertain or not self._helper_idle.is_set()
            ),
            timer_at=self._sleeper.timer_at,
            release_at=self._holdings.release_at(),
            is_notified_in_vain=self._sleeper.is_notified_in_vain(now),
            should_gather=self._should_gather(),
            gather_until=self._gather_until,
            has_outcomes=bool(self._settler),
            can_claim=self.trips.can_claim(),
            is_usage_outdated=self.trips.is_usage_outdated(),
        )
        return work or self._sleeper.next_rest(self.trips.is_stopping, now)

    async def _act(self, connection: Connection) -> None:
        """Do what the state says."""
        match self.loop_state:
            case LoopState.DISOWNED:
                await self.trips.registered.wait()
            case LoopState.FIRING_TIMERS:
                await self._fire_timers(connection)
            case LoopState.RELEASING:
                await self._release(connection)
            case LoopState.ANNOUNCING:
                await self._sleeper.announce(connection, self.trips.owner.worker_id, self.state)
            case LoopState.GATHERING:
                await self._sleeper.wait(self._gather_until - time.monotonic())
            case LoopState.CLAIMING:
                await self._settle_and_claim(connection)
            case LoopState.FALLING_ASLEEP:
                trips = self.trips
                if await self._sleeper.read_due_time(
                    connection, trips.queues, trips.claimer.rates, trips.batches.lingers
                ):
                    # A task that fell due between the last claim and this answer is in neither, so claim once more.
                    if self._sleeper.has_keys:
                        self.trips.claimer.keys.expect(time.monotonic())
                    self.trips.claimer.keys.look_soon(time.monotonic())
                    self.trips.is_claim_due = True
            case LoopState.STOPPED | LoopState.STARTING | LoopState.BACKING_OFF:
                pass
            case _:
                await self._sleep(connection)

    async def _sleep(self, connection: Connection) -> None:
        state = self.loop_state
        if await self._sleeper.sleep(state, has_lost_sessions=bool(self._holdings.lost_sessions)):
            return
        if state in (LoopState.FULL, LoopState.DRAINING):
            self._sleeper.poll_policy.poll()
            return
        if state is LoopState.ASLEEP:
            self.trips.claimer.keys.look_soon(time.monotonic())
        self.trips.is_claim_due = True
        if self._sleeper.slept(time.monotonic()):
            with hangup_after(connection):
                await self.trips.expire(connection)
            await self._fire_timers(connection)

    async def _fire_timers(self, connection: Connection) -> None:
        """Carry out what workflows have waited for."""
        self._sleeper.poll_policy.became_due()
        with hangup_after(connection):
            seconds = await control.fire_timers(connection)
        self._sleeper.timer_at = None
        if seconds is not None:
            self._sleeper.add_timer(max(seconds, FIRE_SECONDS))
        self.trips.is_claim_due = True

    async def _release(self, connection: Connection) -> None:
        was_stuck = self._holdings.drop_stuck(time.monotonic())
        await self._helper_idle.wait()  # nobody holds the tasks that it settles and claims now
        await self._holdings.release(connection, self.trips.owner.worker_id)
        if was_stuck:
            self.trips.is_claim_due = False  # leave the tasks to other workers

    async def _settle_and_claim(self, connection: Connection) -> None:
        try:
            async with time_to_store(connection, self._settler.characters):
                await self.trips.settle_start_and_claim(connection)
        except (errors.SerializationFailure, errors.DeadlockDetected):
            logger.debug("lost a race for a row, trying again")
        finally:
            now = time.monotonic()
            self._gather_until = now + gather_seconds(self._capacity.is_ahead, now - self.turned_at)

    async def assist(self, connection: Connection) -> None:
        """Settle and claim over a second connection while a round trip of `run` is under way."""
        while not self.trips.is_stopping:
            await self._help_wanted.wait()
            self._help_wanted.clear()
            if self._needs_help():
                self._helper_idle.clear()
                try:
                    with RowFault() as fault:
                        async with time_to_store(connection, self._settler.characters):
                            await self.trips.settle_completed_and_claim(connection)
                    if fault:
                        logger.error(
                            "A row that could not be singled out made a statement fail", exc_info=fault.error
                        )
                except (errors.SerializationFailure, errors.DeadlockDetected):
                    logger.debug("lost a race for a row, trying again")
                finally:
                    self._helper_idle.set()
                    self._sleeper.wake_up()

    def _needs_help(self) -> bool:
        """Return True if the second connection should be used.

        Never within concurrency limits: two round trips at once could not both know this worker's usage.
        """
        if self.trips.is_stopping or self._holdings.is_uncertain or not self.trips.registered.is_set():
            return False
        if self.loop_state is not LoopState.CLAIMING or self.trips.caps:
            return False
        return needs_help(
            is_ahead=self._capacity.is_ahead,
            completed=len(self._settler.completed),
            gathers=self._should_gather() and time.monotonic() < self._gather_until,
            run_time=self._capacity.run_time,
            can_claim=self.trips.can_claim(),
        )

    def _should_gather(self) -> bool:
        if self.trips.is_stopping or self._settler.failed:
            return False
        plain = self._capacity.plain
        return should_gather(
            is_ahead=self._capacity.is_ahead,
            load=plain.load,
            capacity=plain.shape.slots * self._capacity.depth(),
            completed=len(self._settler.completed),
            run_time=self._capacity.run_time,
        )
