"""Decide what the claim loop does next, and let it sleep.

Everything but `Sleeper` is pure: times are arguments, in seconds of the monotonic clock.

A notification makes its sender wait in line with all other senders, so a worker asks for notifications only when it sleeps.
While work keeps coming, the worker polls after short pauses. After several claims that found nothing it announces that it
waits, and claims a few times more, because a task may have been sent just before the announcement became visible. It does
the same when it was notified and found nothing: the task may be locked for a moment by a client that asks for its result.

A sender reads the worker's row before it commits, and a commit can take seconds (synchronous replication, a slow disk). So
the worker goes on claiming, after growing pauses, until every transaction that was open when it announced has ended. A
worker that is notified again and again goes back to polling. A task that is found by a poll after all that should have been
notified: such finds are counted, and make the listener check its connection.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from enum import Enum
from itertools import repeat
from random import uniform
from uuid import UUID

from horsies.db.connection import Connection, hangup_after
from horsies.db.queries import tasks, workers
from horsies.event_loop import wait_until_set
from horsies.status import WorkerState
from horsies.worker.claim import FULL_SECONDS, Capacity

# The pauses after the first, second and third claim that found nothing.
POLL_PAUSES = (0.001, 0.002, 0.004)
# The pauses between the claims right after the worker announced that it waits.
CONFIRM_PAUSES = (0.001, 0.005, 0.02, 0.08)
# The pauses between claims while transactions from before the announcement are still open.
COMMIT_PAUSES = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
# A waiting worker that finds so many tasks within so many seconds goes back to polling.
BUSY_FINDS = 10
BUSY_SECONDS = 0.03
# A worker that has polled for this long tells senders that they need not notify it.
AWAKE_SECONDS = 0.02

# If the worker claims ahead, results gather between two round trips while the children have enough to do: for as long as the last round
# trip took, which is longer the more the server has to do, and within these bounds.
GATHER_MIN_SECONDS, GATHER_MAX_SECONDS = 0.005, 0.05
# Otherwise, short tasks that were started together may end together, in one round trip instead of two that wait for
# each other at the disk. The loop waits this long for them. Tasks that run for less time are short.
TOGETHER_SECONDS = 0.001
# If the worker claims ahead, the second connection settles beside the first once so many results have gathered.
HELP_BATCH = 128

# A poll may come later than configured by this factor, so that workers that were started together do not poll together.
POLL_SPREAD = 1.3
# The interval between two checks whether the last statement of a lost connection has ended.
LOST_SESSION_SECONDS = 1.0
# While a task runs, the next due time is not read at once: the task's outcome may come at any moment and is more urgent.
CALM_SECONDS = 0.01


class LoopState(Enum):
    """The states of the claim loop. The table is in the docstring of `ClaimLoop`."""

    STARTING = "starting"
    DISOWNED = "disowned"
    FIRING_TIMERS = "firing timers"
    RELEASING = "releasing"
    ANNOUNCING = "announcing"
    GATHERING = "gathering"
    CLAIMING = "claiming"
    BACKING_OFF = "backing off"
    POLLING = "polling"
    CONFIRMING_SLEEP = "confirming sleep"
    FALLING_ASLEEP = "falling asleep"
    WAITING_FOR_COMMITS = "waiting for commits"
    ASLEEP = "asleep"
    FULL = "full"
    DRAINING = "draining"
    STOPPED = "stopped"


def next_work(
    *,
    now: float,
    is_stopping: bool,
    is_registered: bool,
    is_busy: bool,
    timer_at: float | None,
    release_at: float | None,
    is_notified_in_vain: bool,
    should_gather: bool,
    gather_until: float,
    has_outcomes: bool,
    can_claim: bool,
    is_usage_outdated: bool,
) -> LoopState | None:
    """Return the most urgent state for which there is work, STOPPED when all is done, or None when the loop may rest.

    `is_busy` is True while tasks run, or a release or a round trip of the second connection is under way.
    `is_usage_outdated` is True if the database's count of this worker's tasks within a concurrency limit is wrong.
    """
    must_settle = has_outcomes or is_usage_outdated
    if is_stopping and not is_busy and not must_settle:
        return LoopState.STOPPED
    if not is_registered:
        return LoopState.DISOWNED
    if timer_at is not None and now >= timer_at:
        return LoopState.FIRING_TIMERS
    if release_at is not None and now >= release_at:
        return LoopState.RELEASING
    if is_notified_in_vain:
        return LoopState.ANNOUNCING
    if should_gather and now < gather_until:
        return LoopState.GATHERING
    return LoopState.CLAIMING if must_settle or can_claim else None


def next_rest(
    poll_state: LoopState,
    *,
    is_stopping: bool,
    has_room: bool,
    is_announcement_outdated: bool,
    is_due_time_known: bool,
) -> LoopState:
    """Return the state of a loop without work."""
    if is_announcement_outdated:
        return LoopState.ANNOUNCING
    if is_stopping:
        return LoopState.DRAINING
    if not has_room:
        return LoopState.FULL
    if poll_state is LoopState.ASLEEP and not is_due_time_known:
        return LoopState.FALLING_ASLEEP
    return poll_state


def sleep_seconds(
    pause: float,
    *,
    is_full_and_announced: bool,
    has_lost_sessions: bool,
    wake_times: tuple[float | None, ...],
    now: float,
) -> float:
    """Return how long to sleep: for `pause` seconds, or less if something must be done before."""
    seconds = FULL_SECONDS if is_full_and_announced else pause
    if has_lost_sessions:
        seconds = min(seconds, LOST_SESSION_SECONDS)
    return min([seconds, *(max(0.0, at - now) for at in wake_times if at is not None)])


def is_short(run_time: float) -> bool:
    """Return True if tasks that run for so many seconds end as soon as they have begun."""
    return run_time < TOGETHER_SECONDS


def should_gather(*, is_ahead: bool, load: int, capacity: int, completed: int, run_time: float) -> bool:
    """Return True if results should gather before the next round trip.

    If the worker does not claim ahead: if running tasks are about to end. Otherwise: if the children have plenty to do, and
    there are few results. `capacity` is how many calls the children can hold.
    """
    if not is_ahead:
        return load > 0 and is_short(run_time)
    return load > capacity // 2 and completed < capacity // 4


def gather_seconds(is_ahead: bool, round_trip_seconds: float) -> float:
    """Return how long results may gather after a round trip that took so long."""
    if not is_ahead:
        return TOGETHER_SECONDS
    return min(GATHER_MAX_SECONDS, max(GATHER_MIN_SECONDS, round_trip_seconds))


def needs_help(*, is_ahead: bool, completed: int, gathers: bool, run_time: float, can_claim: bool) -> bool:
    """Return True if the second connection should make a round trip while one is under way on the first.

    If the worker claims ahead: when a batch of results has gathered. Otherwise: when a child waits for its next task, unless
    tasks are short.
    """
    if is_ahead:
        return completed >= HELP_BATCH and not gathers
    return not is_short(run_time) and (completed > 0 or can_claim)


class PollPolicy:
    """Decides when a worker with room for tasks polls, and when it sleeps until it is notified.

    | state | meaning | leaves for … when … |
    |---|---|---|
    | POLLING | Work keeps coming. Claims follow each other after short pauses. | CONFIRMING_SLEEP when several claims in a row found nothing. |
    | CONFIRMING_SLEEP | Senders notify. A few more claims find what was sent before they knew. | ASLEEP when these found nothing. |
    | ASLEEP | A notification, a due time or the next poll wakes the worker. | WAITING_FOR_COMMITS when older transactions are open; CONFIRMING_SLEEP when a notified claim found nothing. |
    | WAITING_FOR_COMMITS | Transactions that do not notify may still commit a task. | ASLEEP when the pause is over, to ask again; CONFIRMING_SLEEP as above. |

    All leave for POLLING when many tasks are found in a short time, or when `poll` is called.
    """

    def __init__(self) -> None:
        self.state = LoopState.POLLING
        # Transactions that may commit a task without a notification; None when that is not known.
        self.open_transactions: list[str] | None = None
        self.missed_notifications = 0
        self._misses = 0
        self._commit_checks = 0
        self._was_notified = self._was_due = False
        self._finds: deque[float] = deque(maxlen=BUSY_FINDS)
        self._polling_since = 0.0

    def _enter(self, state: LoopState) -> None:
        self.state = state
        self._misses = 0

    @property
    def waits(self) -> bool:
        """True if the worker should be notified of new tasks."""
        return self.state is not LoopState.POLLING

    def pause(self) -> float | None:
        """Return the seconds until the next claim; None if the worker should sleep until it is notified."""
        match self.state:
            case LoopState.POLLING:
                return POLL_PAUSES[self._misses]
            case LoopState.CONFIRMING_SLEEP:
                return CONFIRM_PAUSES[self._misses]
            case LoopState.WAITING_FOR_COMMITS:
                return COMMIT_PAUSES[min(self._commit_checks, len(COMMIT_PAUSES)) - 1]
            case _:
                return None

    def claimed(self, found: int, now: float) -> None:
        """Note how many tasks a claim with room for more has found."""
        if self.state is LoopState.POLLING:
            self._misses = 0 if found else self._misses + 1
            if self._misses >= len(POLL_PAUSES):
                self._enter(LoopState.CONFIRMING_SLEEP)
        elif found:
            self._finds.extend(repeat(now, min(found, BUSY_FINDS)))
            if len(self._finds) == BUSY_FINDS and now - self._finds[0] < BUSY_SECONDS:
                self.poll()
        elif self._was_notified:
            self._enter(LoopState.CONFIRMING_SLEEP)
        elif self.state is LoopState.CONFIRMING_SLEEP:
            self._misses += 1
            if self._misses >= len(CONFIRM_PAUSES):
                self._enter(LoopState.ASLEEP)
        self._was_notified = self._was_due = False

    def found(self) -> None:
        """Note that a claim found a task, and count it if a notification should have announced it."""
        if self.state is LoopState.ASLEEP and not self._was_notified and not self._was_due:
            self.missed_notifications += 1

    def notified(self) -> None:
        """Note a notification: the next claim should find something."""
        self._was_notified = True

    def became_due(self) -> None:
        """Note that a known due time has come: what the next claim finds needs no notification."""
        self._was_due = True

    def poll(self) -> None:
        """Start polling: there is work, or no room for any."""
        self._enter(LoopState.POLLING)
        self._finds.clear()

    def announced(self) -> None:
        """Forget which transactions were open: those that are open now did not see this announcement."""
        self.open_transactions, self._commit_checks = None, 0
        if self.state is LoopState.WAITING_FOR_COMMITS:
            self._enter(LoopState.ASLEEP)

    def checked_commits(self, open_transactions: list[str]) -> None:
        """Note which of the transactions that were open at the announcement still are."""
        self.open_transactions = open_transactions
        if open_transactions:
            self._commit_checks += 1
            if self.state is LoopState.ASLEEP:
                self._enter(LoopState.WAITING_FOR_COMMITS)

    def paused(self) -> None:
        """Note that the pause before a claim is over: it is time to ask again which transactions are open."""
        if self.state is LoopState.WAITING_FOR_COMMITS:
            self._enter(LoopState.ASLEEP)

    def is_notified_in_vain(self, is_announced: bool, now: float) -> bool:
        """Return True if the worker has polled for some time while senders believe that it waits."""
        if self.waits or not is_announced:
            self._polling_since = now
        return now - self._polling_since > AWAKE_SECONDS


class Sleeper:
    """Lets the claim loop sleep, and tells senders whether the worker waits to be notified.

    A notification, an outcome, a due time, a timer or the poll interval ends a sleep.
    """

    def __init__(self, capacity: Capacity, poll_seconds: float) -> None:
        self.poll_policy = PollPolicy()
        self.timer_at: float | None = None  # when a timer of a workflow is due, as far as known
        self._capacity = capacity
        self._poll_seconds = poll_seconds
        self._wake_up = asyncio.Event()
        # Whether senders were told to notify this worker of plain tasks, and of async ones.
        self._announced = (False, False)
        self._due_at: float | None = None
        self._is_due_time_known = False
        self.has_keys = False  # there were tasks with keys when the due time was read

    # What wakes the loop up

    def wake_up(self) -> None:
        self._wake_up.set()

    def notified(self) -> None:
        """Wake up because there may be new tasks."""
        self.poll_policy.notified()
        self.forget_due_time()
        self.wake_up()

    def forget_due_time(self) -> None:
        """Read the next due time again before sleeping: it may have changed."""
        self._is_due_time_known = False

    def add_timer(self, seconds: float | None) -> None:
        """Note that a timer of a workflow is due in so many seconds; None if there is no timer."""
        if seconds is not None:
            at = time.monotonic() + max(0.0, seconds)
            self.timer_at = at if self.timer_at is None else min(at, self.timer_at)

    # Decisions

    def is_notified_in_vain(self, now: float) -> bool:
        """Return True if senders still notify although the worker has polled for some time."""
        return self.poll_policy.is_notified_in_vain(any(self._announced), now)

    def next_rest(self, is_stopping: bool, now: float) -> LoopState:
        """Return the state of the loop when there is nothing to do."""
        return next_rest(
            self.poll_policy.state,
            is_stopping=is_stopping,
            has_room=self._capacity.has_room(),
            is_announcement_outdated=self._waiting(now) != self._announced,
            is_due_time_known=self._is_due_time_known,
        )

    def _waiting(self, now: float) -> tuple[bool, bool]:
        """Return whether to be notified of plain tasks, and of async ones."""
        plain, of_async = self._capacity.wants_notifications(now)
        waits = self.poll_policy.waits
        return waits and plain, waits and of_async

    # Effects

    def forget_announcement(self) -> None:
        """Announce again when the worker waits: the connection or the worker's id is new."""
        self._announced = (False, False)

    async def announce(self, connection: Connection, worker_id: UUID, state: WorkerState) -> None:
        """Tell senders whether to notify this worker."""
        waiting = self._waiting(time.monotonic())
        if any(waiting):
            self.forget_due_time()  # nobody has notified us of the tasks that were sent before
        self.poll_policy.announced()
        self._announced = waiting  # before the await: it may be reset while the statement runs
        with hangup_after(connection):
            await workers.set_waiting(connection, worker_id, *waiting, state)

    async def read_due_time(
        self,
        connection: Connection,
        queues: Sequence[str],
        rates: Sequence[str],
        batches: Mapping[str, float],
    ) -> bool:
        """Read which older transactions are open, and the next due time; return False if an outcome came first."""
        if self._capacity.load and await self.wait(CALM_SECONDS):
            return False
        self._is_due_time_known = True  # before the await: it may change while the statements run
        with hangup_after(connection):
            open_sends = await workers.open_sends(connection, self.poll_policy.open_transactions)
        self.poll_policy.checked_commits(open_sends)
        if open_sends:
            self.forget_due_time()  # to ask again after a pause
        with hangup_after(connection):
            await tasks.follow(connection)
            seconds, self.has_keys = await tasks.next_due(connection, queues, rates, batches)
        self._due_at = None if seconds is None else time.monotonic() + max(seconds, 0.001)
        return True

    async def sleep(self, state: LoopState, *, has_lost_sessions: bool) -> bool:
        """Sleep until something wakes the loop up or it is time to claim; return True if something did."""
        has_room = state not in (LoopState.FULL, LoopState.DRAINING)
        pause = self.poll_policy.pause() if has_room else None
        seconds = sleep_seconds(
            self._poll_seconds * uniform(1, POLL_SPREAD) if pause is None else pause,
            is_full_and_announced=not has_room and any(self._announced),
            has_lost_sessions=has_lost_sessions,
            wake_times=(self._due_at if has_room else None, self.timer_at),
            now=time.monotonic(),
        )
        return await self.wait(seconds)

    async def wait(self, seconds: float) -> bool:
        """Wait until something wakes the loop up; return False if nothing did for so many seconds."""
        try:
            return await wait_until_set(self._wake_up, seconds)
        finally:
            self._wake_up.clear()

    def slept(self, now: float) -> bool:
        """Note that a sleep ended without an event; return True if a task is due or expires, as was known before."""
        self.poll_policy.paused()
        if self._due_at is None or now < self._due_at:
            return False
        self.forget_due_time()
        return True
