"""The children of a worker: processes that run one call at a time, or several, each with a pipe of its own.

A child that dies, hangs or is replaced never touches a sibling. When a serial one dies, the call it was running is
reported lost, with how the process ended; calls that were queued behind it were never touched and go to another child.
When one that runs several at once dies, they all are. A spare child stands ready, so that a replacement costs no
waiting. No call is begun after our lease has run out: by then it may be someone else's.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any
from uuid import UUID

from horsies.config import PostgresConfig
from horsies.errors import ErrorCode, HorsiesError
from horsies.storage.tasks import Claimed
from horsies.worker import wire
from horsies.worker.launch import EXIT_STATUS_SECONDS, Launcher
from horsies.worker.link import HELD_UP_SECONDS, Child, Pipe
from horsies.worker.settings import ChildKind
from horsies.worker.system import describe_exit, kill_group, recall

logger = logging.getLogger("horsies.pool")

# The limit counts from the start of user code, which is a little after the call was sent.
TIMEOUT_SLACK_SECONDS = 0.02
# An async task is cancelled at its limit by the child itself; one that does not let go by then is ended from here.
CANCEL_GRACE_SECONDS = 0.12
MAX_FAILED_STARTS = 5


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the pool's owner does about each call; none of them may block or raise."""

    ended: Callable[[Claimed, wire.Outcome], None]
    crashed: Callable[[Claimed, str], None]
    timed_out: Callable[[Claimed, int], None]
    cancelled: Callable[[Claimed], None]
    said: Callable[[Claimed, wire.Progress | wire.Logged], None]
    came_free: Callable[[], None]
    let_go: Callable[[], None]  # of calls that had not begun


@dataclass(frozen=True, slots=True)
class Shape:
    """How many children, of which kind, and how many calls each runs at once."""

    kind: ChildKind
    size: int
    width: int = 1

    @property
    def slots(self) -> int:
        return self.size * self.width


class ChildPool:
    """Runs calls in children. Give each call to a child that has room, named by its pid."""

    def __init__(
        self,
        shape: Shape,
        launcher: Launcher,
        hooks: Hooks,
        default_timeout_ms: int | None,
        cancel_grace_seconds: float = 10.0,
        farewell_seconds: float = 0,
    ) -> None:
        self.shape = shape
        self._launcher = launcher
        self._hooks = hooks
        self._default_timeout_ms = default_timeout_ms
        self._cancel_grace_seconds = cancel_grace_seconds
        self._asked: frozenset[str] = frozenset()  # tasks that are to stop
        self._farewell_seconds = farewell_seconds
        self._children: dict[int, Child] = {}
        self._spares: deque[Child] = deque()
        self._starting: set[Child] = set()
        self._leaving: set[Child] = set()
        self._dying: set[Child] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._homeless: deque[Claimed] = deque()
        self._reserved: Counter[int] = Counter()
        self._next_ticket = 0
        self._valid_until = float("inf")
        self._heritage: wire.Heritage | None = None
        self.load = 0  # calls that were handed in and have not ended
        self.depth = shape.width  # calls that a child may hold
        self._failed_starts = 0
        self._ready = asyncio.Event()
        self._stopping = False
        self._loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[HorsiesError] = self._loop.create_future()

    async def start(self) -> None:
        """Start all children and wait until they can take calls."""
        for _ in range(self.shape.size + 1):
            await self._launch()
        ready = asyncio.ensure_future(self._ready.wait())
        await asyncio.wait([ready, self.failed], return_when=asyncio.FIRST_COMPLETED)
        if self.failed.done():
            ready.cancel()
            raise self.failed.result()

    def _fail(self, message: str, code: ErrorCode, help_text: str) -> None:
        """The children cannot do their work, and trying again will not help."""
        if not self.failed.done():
            self.failed.set_result(HorsiesError(message, code=code, help_text=help_text))

    @property
    def baseline_mb(self) -> float:
        """What the largest child takes before it has run anything."""
        return max((child.memory_mb for child in self._children.values()), default=0.0)

    @property
    def running(self) -> list[Claimed]:
        """Every call that was handed in and has not ended."""
        held = [*self._children.values(), *self._leaving, *self._dying]
        return [*self._homeless, *(call for child in held for call in child.calls.values())]

    @property
    def pids(self) -> list[int]:
        """The children that can take calls, or still have some."""
        return [child.pid for child in (*self._children.values(), *self._leaving)]

    @property
    def at_work(self) -> list[Claimed]:
        """The calls that run now, each with its child's pid; those queued behind them in a serial child have not begun."""
        return [
            call._replace(pid=child.pid)
            for child in (*self._children.values(), *self._leaving)
            for call in islice(child.calls.values(), 1 if child.is_serial else None)
        ]

    # Room

    def idle(self) -> int:
        """How many calls would begin at once if they were submitted now."""
        if self._homeless:
            return 0
        if self.shape.kind is not ChildKind.SERIAL:
            return self.room()
        return sum(1 for child in self._children.values() if not self._held(child))

    def room(self) -> int:
        """How many calls may be submitted now; none to a child that is held up."""
        return 0 if self._homeless else sum(self.depth - self._held(child) for child in self._open())

    def free(self, limit: int) -> list[int]:
        """A pid for each call that may be submitted now, idle children first."""
        if self._homeless:
            return []
        held = [(child.pid, self._held(child)) for child in self._open()]
        taken = min((count for _, count in held), default=self.depth)
        pids: list[int] = []
        while taken < self.depth and len(pids) < limit:
            pids += [pid for pid, count in held if count <= taken]
            taken += 1
        return pids[:limit]

    def _open(self) -> list[Child]:
        now = self._loop.time()
        if now >= self._valid_until:
            return []
        return [
            child
            for child in self._children.values()
            if self._held(child) < self.depth and not child.is_held_up(now)
        ]

    def _held(self, child: Child) -> int:
        return len(child.calls) + self._reserved[child.pid]

    def reserve(self, pids: Sequence[int]) -> None:
        """Keep room in these children for calls that are on their way."""
        self._reserved.update(pids)

    def unreserve(self, pids: Sequence[int]) -> None:
        self._reserved.subtract(pids)
        self._reserved = +self._reserved

    # Calls

    def submit(self, calls: Sequence[Claimed]) -> None:
        """Send calls to the children that they were started for; if one is gone, to any other."""
        self.load += len(calls)
        by_child: dict[int, list[Claimed]] = {}
        for call in calls:
            if call.pid in self._children and not self._homeless and self.is_valid():
                by_child.setdefault(call.pid, []).append(call)
            else:
                self._homeless.append(call)  # behind those that have waited longer
        for pid, batch in by_child.items():
            self._send(self._children[pid], batch)
        self._house()

    def cancel(self, ids: Iterable[str]) -> None:
        """These tasks, and no others, are to stop: what has not begun does not, and what runs is told."""
        self._asked = frozenset(ids)
        if not self._asked:
            return
        waiting = list(self._homeless)
        self._homeless = deque(call for call in waiting if not self._is_over(call))
        self.load -= len(waiting) - len(self._homeless)
        for child in (*self._children.values(), *self._leaving):
            for ticket, call in child.calls.items():
                if call.id in self._asked and ticket not in child.stops:
                    self._stop(child, ticket)

    def _is_over(self, call: Claimed) -> bool:
        """Whether a call that has not begun is not to begin at all; that is told."""
        if call.id in self._asked:
            self._hooks.cancelled(call)
        return call.id in self._asked

    def _stop(self, child: Child, ticket: int) -> None:
        """Have a call stop. One that waits in a serial child comes back; one that runs on too long is ended."""
        child.transport.write(wire.frame([wire.Cancel(ticket)]))
        if child.is_serial:
            recall(child.pid)
            if ticket != next(iter(child.calls)):
                return
        child.stops[ticket] = self._loop.call_later(
            self._cancel_grace_seconds, self._end_stubborn, child, ticket
        )

    def _end_stubborn(self, child: Child, ticket: int) -> None:
        child.stubborn.add(ticket)
        kill_group(child.pid)

    def entrust(self, postgres: PostgresConfig, worker_id: UUID) -> None:
        """Tell the children whom they work for, and where to store what they have done, should we die."""
        self._heritage = wire.Heritage(postgres, str(worker_id))
        for child in (*self._children.values(), *self._spares, *self._leaving):
            child.transport.write(wire.frame([self._heritage]))

    def work_for(self, worker_id: UUID) -> None:
        """Tell the children that the worker goes on under another id."""
        assert self._heritage is not None
        self.entrust(self._heritage.postgres, worker_id)

    def renew(self, valid_until: float) -> None:
        """Our lease holds until then, on the loop's clock."""
        self._valid_until = valid_until
        self._house()

    def is_valid(self) -> bool:
        """Whether our lease holds: without one, no call is begun."""
        return self._loop.time() < self._valid_until

    def _send(self, child: Child, batch: Sequence[Claimed]) -> None:
        was_idle = not child.calls
        first = self._next_ticket + 1
        sent: list[wire.Call] = []
        for claimed in batch:
            self._next_ticket += 1
            child.calls[self._next_ticket] = claimed
            sent.append(call_of(self._next_ticket, claimed, self._limit_ms(claimed), self._valid_until))
        child.transport.write(wire.frame(sent))
        if child.is_serial:
            if was_idle:
                self._began(child, first)
            if len(child.calls) > 1 and child.recall_alarm is None:
                self._watch(child)

    def _limit_ms(self, claimed: Claimed) -> int | None:
        return claimed.timeout_ms or self._default_timeout_ms

    def _house(self) -> None:
        """Find children for calls whose own child went away before it touched them, the oldest first."""
        while self._homeless and self.is_valid():
            child = min(self._open(), key=self._held, default=None)
            if child is None:
                return
            self._send(child, [self._homeless.popleft()])

    def _began(self, child: Child, ticket: int) -> None:
        """User code runs from now on, and its time."""
        if ticket not in child.calls:
            raise wire.Garbled(f"it was not sent the call {ticket}")
        child.head_since = self._loop.time()
        limit_ms = self._limit_ms(child.calls[ticket])
        if limit_ms is not None:
            grace = CANCEL_GRACE_SECONDS if self.shape.kind is ChildKind.ASYNC else TIMEOUT_SLACK_SECONDS
            child.alarms[ticket] = self._loop.call_later(
                limit_ms / 1000 + grace, self._overrun, child, ticket
            )
        if child.calls[ticket].id in self._asked and ticket not in child.stops:
            self._stop(child, ticket)

    def _overrun(self, child: Child, ticket: int) -> None:
        child.overdue.add(ticket)
        kill_group(child.pid)

    def _watch(self, child: Child) -> None:
        """Look whether the child is held up when it might be."""
        child.recall_alarm = self._loop.call_at(child.head_since + HELD_UP_SECONDS, self._unburden, child)

    def _unburden(self, child: Child) -> None:
        """Ask a child that is held up for the calls behind the one that it runs."""
        child.recall_alarm = None
        if len(child.calls) < 2:
            return
        if child.is_held_up(self._loop.time()):
            recall(child.pid)
        else:
            self._watch(child)

    # What a child says

    def received(self, child: Child, message: wire.Message) -> None:
        match message:
            case wire.Outcome():
                self._ended(child, message)
            case wire.TimedOut():
                self._ended_late(child, message.ticket)
            case wire.Begun():
                self._began(child, message.ticket)
            case wire.Returned():
                self._take_back(child, message.tickets)
            case wire.Blocked():
                self._note_blocked(child, message)
            case wire.Hello():
                self._greet(child, message)
            case wire.Leaving():
                self._retire(child)
            case wire.Progress() | wire.Logged():
                # One that comes late is of a thread that has outlived its task.
                if (call := child.calls.get(message.ticket)) is not None:
                    self._hooks.said(call, message)

    def _ended(self, child: Child, outcome: wire.Outcome) -> None:
        self._hooks.ended(self._let_go(child, outcome.ticket), outcome)
        self._house()

    def _ended_late(self, child: Child, ticket: int) -> None:
        claimed = self._let_go(child, ticket)
        self._hooks.timed_out(claimed, self._limit_ms(claimed) or 0)
        self._house()

    def _let_go(self, child: Child, ticket: int) -> Claimed:
        """Take a call that has ended off its child."""
        claimed = child.pop(ticket)
        self.load -= 1
        child.blocked_by = None
        if child.is_serial and child.calls:
            self._began(child, next(iter(child.calls)))
        self._close_if_done(child)
        return claimed

    def _take_back(self, child: Child, tickets: Sequence[int]) -> None:
        """Calls that the child has not begun; when its first one is among them, it goes on with the next."""
        head = next(iter(child.calls), None)
        returned = [child.pop(ticket) for ticket in tickets]
        if child.is_serial and child.calls and head not in child.calls:
            self._began(child, next(iter(child.calls)))
        self._rehouse(child, returned)

    def _rehouse(self, child: Child, calls: Sequence[Claimed]) -> None:
        """Calls that a child has not begun go to another one, unless we have let go of all that it holds."""
        if child.is_condemned:
            self.load -= len(calls)
            self._hooks.let_go()
            return
        left = [call for call in calls if not self._is_over(call)]
        self.load -= len(calls) - len(left)
        self._homeless.extendleft(reversed(left))
        self._house()

    def _note_blocked(self, child: Child, blocked: wire.Blocked) -> None:
        child.blocked_by = blocked.ticket
        culprit = child.calls.get(blocked.ticket or 0)
        what = "a callback" if culprit is None else f"task {culprit.id} ({culprit.task_name})"
        where = f" at {blocked.where}" if blocked.where else ""
        logger.warning(
            "the event loop of child %d is blocked by %s%s: %d tasks wait",
            child.pid,
            what,
            where,
            len(child.calls),
        )

    def _greet(self, child: Child, hello: wire.Hello) -> None:
        if child.pid:
            raise wire.Garbled("it says hello again")
        self._starting.discard(child)
        child.pid, child.memory_mb = hello.pid, hello.memory_mb
        if hello.error is not None:
            self._fail(hello.error, ErrorCode.CONFIG_INVALID_CHILD_HOOK, "correct it and start again")
            return
        self._failed_starts = 0
        if self._heritage is not None:
            child.transport.write(wire.frame([self._heritage]))
        self._spares.append(child)
        self._fill()

    def _fill(self) -> None:
        while self._spares and len(self._children) < self.shape.size:
            child = self._spares.popleft()
            self._children[child.pid] = child
            self._hooks.came_free()
        if len(self._children) == self.shape.size:
            self._ready.set()
        self._house()

    # Ends and beginnings

    def _retire(self, child: Child) -> None:
        """It has done its share. What a serial child has not begun was never touched; any other ends what it has."""
        child.is_leaving = True
        self._children.pop(child.pid, None)
        if child.is_serial:
            self._take_back(child, list(child.calls))
        self._leaving.add(child)
        self._close_if_done(child)
        self._replace()

    def _close_if_done(self, child: Child) -> None:
        """Only when we close the pipe does a leaving child end, so that nothing we wrote to it in vain can fail."""
        if child.is_leaving and not child.calls:
            self._leaving.discard(child)
            self._dismiss(child)

    def _dismiss(self, child: Child) -> None:
        child.is_leaving = True
        child.transport.write(wire.frame([wire.Dismissal()]))
        child.transport.close()

    def _replace(self) -> None:
        if not self._stopping:
            self._fill()
            self._later(self._launch())

    def closed(self, child: Child) -> None:
        """The pipe is closed: the process has ended, or is of no use any more."""
        was_starting = child in self._starting
        self._starting.discard(child)
        self._leaving.discard(child)
        if child in self._spares:
            self._spares.remove(child)
        if self._children.get(child.pid) is child:
            del self._children[child.pid]
        self._dying.add(child)
        self._later(self._bury(child, was_starting))

    async def _bury(self, child: Child, was_starting: bool) -> None:
        how = await self._end_of(child) if child.pid else "its process never started"
        self._dying.discard(child)
        self._report_lost(child, how)
        if was_starting and not self._stopping:
            self._failed_starts += 1
            if self._failed_starts >= MAX_FAILED_STARTS:
                message = f"{MAX_FAILED_STARTS} child processes in a row ended before they were ready"
                self._fail(message, ErrorCode.CONFIG_INVALID_WORKER, "see what they printed above")
                return
        if not child.is_leaving:
            self._replace()

    async def _end_of(self, child: Child) -> str:
        """How a child ended whose pipe is closed; one that has not, does now."""
        if child.is_garbled:
            kill_group(child.pid)
        patience = max(EXIT_STATUS_SECONDS, self._farewell_seconds if child.is_leaving else 0)
        status = await self._launcher.exit_status(child.pid, patience)
        if child.is_garbled:
            return "it wrote to the pipe to its worker"
        if status is not None:
            return describe_exit(status)
        kill_group(child.pid)
        return "it closed the pipe to its worker"

    def _report_lost(self, child: Child, how: str) -> None:
        """A serial child died of the first unanswered call, and the rest go to another; any other took all with it."""
        why = _blame(child, how)
        lost = child.empty()
        untouched = list(lost.values())[1:] if child.is_serial else []
        for ticket, call in list(lost.items())[: len(lost) - len(untouched)]:
            self.load -= 1
            if call.id in self._asked:
                self._hooks.cancelled(call)
            elif ticket in child.overdue:
                self._hooks.timed_out(call, self._limit_ms(call) or 0)
            else:
                self._hooks.crashed(call, why)
        self._rehouse(child, untouched)

    async def _launch(self) -> None:
        await self._launcher.ready()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        is_serial = self.shape.kind is ChildKind.SERIAL
        try:
            _, pipe = await self._loop.create_connection(
                lambda: Pipe(ours, is_serial, self.received, self.closed), sock=ours
            )
        except BaseException:  # such as the pool's end
            ours.close()
            theirs.close()
            raise
        assert pipe.child is not None
        if self._launcher.launch(theirs, self.shape.kind):
            self._starting.add(pipe.child)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._ending.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the children cannot be looked after", exc_info=error)
            self._fail(
                f"{type(error).__name__}: {error}", ErrorCode.CONFIG_INVALID_WORKER, "see the log above"
            )

    def kill_running(self) -> None:
        """End every child that runs a call: those are reported as crashed. What none has begun is no longer held."""
        for child in (*self._children.values(), *self._leaving):
            if child.calls:
                self._children.pop(child.pid, None)
                self._leaving.discard(child)
                self._dying.add(child)  # until all that it has said is read
                kill_group(child.pid)
        for child in self._dying:
            child.is_condemned = True
        self.load -= len(self._homeless)
        self._homeless.clear()
        self._hooks.let_go()

    async def close(self) -> None:
        """End all children, whatever they do; with a farewell, those that do nothing may say it."""
        self._stopping = True
        if self._farewell_seconds:
            await self._see_off()
        for child in [*self._children.values(), *self._spares, *self._starting, *self._leaving]:
            child.empty()
            if child.pid:
                kill_group(child.pid)
            child.transport.close()
        for task in list(self._ending):
            task.cancel()

    async def _see_off(self) -> None:
        for child in [*self._children.values(), *self._spares]:
            if not child.calls:
                self._dismiss(child)
        await asyncio.sleep(0)  # the pipes are closed by then, and their children waited for
        if self._ending:
            await asyncio.wait(list(self._ending), timeout=self._farewell_seconds)


def _blame(child: Child, how: str) -> str:
    """How a child ended, and which of the tasks that it ran at once is to blame."""

    def named(tickets: set[int]) -> str:
        calls = [child.calls[ticket] for ticket in tickets if ticket in child.calls]
        return " and ".join(f"task {call.id} ({call.task_name})" for call in calls)

    if culprits := named(child.overdue):
        return f"its process was ended because {culprits} ran past its limit and did not yield"
    if culprits := named(child.stubborn):
        return f"its process was ended because {culprits} was cancelled and did not stop"
    if culprit := named(set() if child.blocked_by is None else {child.blocked_by}):
        return f"{how} while {culprit} blocked its event loop"
    return how


def call_of(ticket: int, claimed: Claimed, limit_ms: int | None, valid_until: float) -> wire.Call:
    """What a child is told of a task that it is to run."""
    return wire.Call(
        ticket,
        claimed.id,
        claimed.task_name,
        claimed.args,
        claimed.kwargs,
        claimed.queue_name,
        claimed.retry_count + 1,
        claimed.max_retries,
        limit_ms,
        valid_until,
        claimed.claim_seq,
        claimed.task_options,
        claimed.node,
        claimed.inputs,
        claimed.earlier_attempts,
    )
