"""Dispatch calls to child processes and report how they end.

When a serial child dies, the call that it was running is reported as crashed. The calls queued behind it were never started
and go to another child, as do calls that a child does not start in time (see `tokens`). When a child that runs several calls
at once dies, all of them crashed. No call is started after the lease of the worker has expired: the task may belong to
another worker by then.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol
from uuid import UUID

from horsies.config import PostgresConfig
from horsies.db.queries.tasks import UNDONE, Claimed
from horsies.executor import protocol
from horsies.executor.children import HELD_UP_SECONDS, ChildHandle, Children
from horsies.executor.forkserver import Launcher
from horsies.executor.protocol import ChildKind
from horsies.worker.steps import StepWriter
from horsies.worker.task_output import TaskOutputWriter

logger = logging.getLogger("horsies.pool")

# The limit counts from the start of user code, which is a little after the call was sent.
TIMEOUT_SLACK_SECONDS = 0.02
# An async child cancels a call at its limit itself. If the call has not stopped by then, the child is killed.
ASYNC_CANCEL_SECONDS = 0.12
# A child that has nothing to do takes over the calls behind one that has run for so long in another child.
SHARED_AFTER_SECONDS = 0.002


class PoolListener(Protocol):
    """The owner of a pool, which is told how calls end. No method may block or raise."""

    def ended(self, task: Claimed, outcome: protocol.Outcome) -> None:
        """Handle the outcome of a call that ran to its end."""

    def crashed(self, task: Claimed, how: str) -> None:
        """Handle that the process of a running call has died; `how` describes its end."""

    def timed_out(self, task: Claimed, limit_ms: int) -> None:
        """Handle that a call exceeded its time limit and was stopped."""

    def cancelled(self, task: Claimed) -> None:
        """Handle that a call was cancelled, before or after its start."""

    def child_available(self) -> None:
        """Handle that a child can take a call."""

    def calls_released(self) -> None:
        """Handle that calls which had not started are no longer held by the pool."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The kind of the children, their number, and how many calls each of them runs at once."""

    kind: ChildKind
    size: int
    width: int = 1

    @property
    def slots(self) -> int:
        return self.size * self.width


class ChildPool:
    """Runs calls in children. A call is submitted for a child that has room, named by its pid."""

    _listener: PoolListener  # set by `start`

    def __init__(
        self,
        shape: Shape,
        launcher: Launcher,
        output: TaskOutputWriter,
        steps: StepWriter,
        default_timeout_ms: int | None,
        cancel_grace_seconds: float = 10.0,
        exit_seconds: float = 0,
    ) -> None:
        self.shape = shape
        self._children = Children(
            shape.kind,
            shape.size,
            launcher,
            exit_seconds,
            on_message=self._received,
            on_available=self._child_available,
            on_lost=self._lost,
        )
        self.failed = self._children.failed  # resolves to an error when no child can be started any more
        self._output = output
        self._steps = steps
        self._default_timeout_ms = default_timeout_ms
        self._cancel_grace_seconds = cancel_grace_seconds
        self._cancelled_ids: frozenset[str] = frozenset()  # tasks that are to stop
        self._waiting: deque[Claimed] = deque()  # calls without a child
        self._reserved: Counter[int] = Counter()  # room for calls that are being claimed, by pid
        self._next_ticket = 0
        self._share_timer: asyncio.TimerHandle | None = None
        self._valid_until = float("inf")
        self._postgres: PostgresConfig | None = None
        self.load = 0  # calls that were submitted and have not ended
        self.depth = shape.width  # calls that a child may hold
        # The names of tasks behind which others may wait in a child; None: all of them.
        self.short_names: Collection[str] | None = None
        self._loop = asyncio.get_running_loop()

    async def start(self, listener: PoolListener) -> None:
        """Launch all children and wait until they can take calls."""
        self._listener = listener
        await self._children.start()

    async def close(self) -> None:
        """Kill all children."""
        await self._children.close()

    @property
    def baseline_mb(self) -> float:
        """The memory of the largest child before it has run anything."""
        return max((child.memory_mb for child in self._children.active.values()), default=0.0)

    @property
    def running(self) -> list[Claimed]:
        """Every call that was submitted and has not ended."""
        children = [*self._children.working, *self._children.ending]
        calls = [*self._waiting, *(call for child in children for call in child.calls.values())]
        return [task for call in calls for task in tasks_of(call)]

    @property
    def pids(self) -> list[int]:
        """The children that can take calls or still run some."""
        return [child.pid for child in self._children.working]

    @property
    def at_work(self) -> list[Claimed]:
        """The calls that run now, with the pid of their child. Calls queued in a serial child have not started."""
        return [
            task._replace(pid=child.pid)
            for child in self._children.working
            for call in islice(child.calls.values(), 1 if child.is_serial else None)
            for task in tasks_of(call)
        ]

    # Identity and lease of the worker

    def set_identity(self, postgres: PostgresConfig, worker_id: UUID) -> None:
        """Tell the children the id of their worker, and the database for their last results should the worker die."""
        self._postgres = postgres
        self._steps.set_worker_id(worker_id)
        self._children.set_identity(protocol.Identity(postgres, str(worker_id)))

    def set_worker_id(self, worker_id: UUID) -> None:
        """Tell the children that the worker has a new id."""
        assert self._postgres is not None
        self.set_identity(self._postgres, worker_id)

    def renew(self, valid_until: float) -> None:
        """Set the end of the worker's lease, on the clock of the loop."""
        self._valid_until = valid_until
        self._dispatch_waiting()

    def is_valid(self) -> bool:
        """Return True if the worker's lease is valid. Without a lease, no call is started."""
        return self._loop.time() < self._valid_until

    # Room for calls

    def idle(self) -> int:
        """Return how many calls would start at once if they were submitted now."""
        if self._waiting:
            return 0
        if self.shape.kind is not ChildKind.SERIAL:
            return self.room()
        return sum(1 for child in self._children.active.values() if not self._held(child))

    def room(self) -> int:
        """Return how many calls may be submitted now. A child that is held up has no room."""
        return (
            0
            if self._waiting
            else sum(self._depth_of(child) - self._held(child) for child in self._with_room())
        )

    def free(self, limit: int) -> list[int]:
        """Return a pid for each call that may be submitted now, idle children first."""
        if self._waiting:
            return []
        held = [(child.pid, self._held(child)) for child in self._with_room()]
        level = min((count for _, count in held), default=self.depth)
        pids: list[int] = []
        while level < self.depth and len(pids) < limit:
            pids += [pid for pid, count in held if count <= level]
            level += 1
        return pids[:limit]

    def _with_room(self) -> list[ChildHandle]:
        now = self._loop.time()
        if now >= self._valid_until:
            return []
        return [
            child
            for child in self._children.active.values()
            if self._held(child) < self._depth_of(child) and not child.is_held_up(now)
        ]

    def _depth_of(self, child: ChildHandle) -> int:
        """Return how many calls a child may hold. No call waits behind one that is not short."""
        first = next(iter(child.calls.values()), None)
        is_long = (
            first is not None and self.short_names is not None and first.task_name not in self.short_names
        )
        return self.shape.width if is_long else self.depth

    def _held(self, child: ChildHandle) -> int:
        return len(child.calls) + self._reserved[child.pid]

    def reserve(self, pids: Sequence[int]) -> None:
        """Keep room in these children for calls that are being claimed."""
        self._reserved.update(pids)

    def unreserve(self, pids: Sequence[int]) -> None:
        """Undo `reserve`."""
        self._reserved.subtract(pids)
        self._reserved = +self._reserved

    # Dispatch

    def submit(self, calls: Sequence[Claimed]) -> None:
        """Send calls to the children they were claimed for; if one is gone, to any other."""
        self.load += len(calls)
        by_child: dict[int, list[Claimed]] = {}
        for call in calls:
            if call.pid in self._children.active and not self._waiting and self.is_valid():
                by_child.setdefault(call.pid, []).append(call)
            else:
                self._waiting.append(call)  # behind those that have waited longer
        for pid, batch in by_child.items():
            self._send(self._children.active[pid], batch)
        self._dispatch_waiting()

    def _send(self, child: ChildHandle, batch: Sequence[Claimed]) -> None:
        was_idle = not child.calls
        first = self._next_ticket + 1
        sent: list[protocol.Call] = []
        for call in batch:
            self._next_ticket += 1
            child.calls[self._next_ticket] = call
            sent.append(call_of(self._next_ticket, call, self._limit_ms(call), self._valid_until))
        child.send(*sent)
        if child.tokens is not None:
            child.tokens.give(range(first, self._next_ticket + 1))
            if was_idle:
                self._call_started(child, first)
            if len(child.calls) > 1:
                child.sent_ahead.append((self._loop.time(), self._next_ticket))
                self._recall_later(child)

    def _dispatch_waiting(self) -> None:
        """Send the calls without a child to children that have room, the oldest first."""
        while self._waiting and self.is_valid():
            child = min(self._with_room(), key=self._held, default=None)
            if child is None:
                return
            self._send(child, [self._waiting.popleft()])

    def _reassign(self, child: ChildHandle, calls: Sequence[Claimed]) -> None:
        """Send calls that a child has not started to another one, unless they are to be released."""
        if child.releases_calls:
            self._release(calls)
            return
        self._waiting.extendleft(reversed(self._drop_cancelled(calls)))
        self._dispatch_waiting()

    def _release(self, calls: Collection[Claimed]) -> None:
        """Hold these calls no longer, so that any worker can claim their tasks."""
        self.load -= len(calls)
        self._listener.calls_released()

    def _drop_cancelled(self, calls: Sequence[Claimed]) -> list[Claimed]:
        """Report the cancelled ones among calls that have not started, and return the others without the undone ones."""
        others: list[Claimed] = []
        for call in calls:
            kept: list[Claimed] = []
            for task in tasks_of(call):
                if task.id in self._cancelled_ids and task.claim_seq != UNDONE:
                    self._listener.cancelled(task)
                elif task.claim_seq != UNDONE:
                    kept.append(task)
            if kept:
                others.append(batch_of(kept) if call.members else call)
            else:
                self.load -= 1
        return others

    def _recall_later(self, child: ChildHandle) -> None:
        if child.sent_ahead and child.recall_timer is None:
            due = child.sent_ahead[0][0] + HELD_UP_SECONDS
            child.recall_timer = self._loop.call_at(due, self._recall_if_held_up, child)

    def _recall_if_held_up(self, child: ChildHandle) -> None:
        """Take back the calls that a serial child was sent some time ago and has not started.

        Idle children get them. The rest is released: a worker that has a child for them can claim them.
        """
        child.recall_timer = None
        first = next(iter(child.calls), float("inf"))
        while child.sent_ahead and child.sent_ahead[0][1] <= first:
            child.sent_ahead.popleft()  # all of that frame has started
        if child.sent_ahead and self._loop.time() >= child.sent_ahead[0][0] + HELD_UP_SECONDS:
            calls = self._drop_cancelled([child.pop(ticket) for ticket in child.take_back()])
            for idle in [each for each in self._children.active.values() if not self._held(each)]:
                if calls and not self._waiting and self.is_valid():
                    self._send(idle, [calls.pop(0)])
            if calls:
                self._release(calls)
        self._recall_later(child)

    def _share(self) -> None:
        """Let idle children take over the calls that wait behind a long one in another child."""
        if self._waiting or not self.is_valid():
            return
        children = self._children.active.values()
        idle = [child for child in children if not self._held(child)]
        behind = [child for child in children if len(child.calls) > 1]
        if not idle or not behind:
            return
        busiest = max(behind, key=lambda child: len(child.calls))
        due = busiest.first_started_at + SHARED_AFTER_SECONDS
        if self._loop.time() < due:
            if self._share_timer is None:
                self._share_timer = self._loop.call_at(due, self._share_later)
            return
        calls = self._drop_cancelled([busiest.pop(ticket) for ticket in busiest.take_back()])
        share = -(-len(calls) // len(idle)) or 1
        for number, child in enumerate(idle):
            if some := calls[number * share : (number + 1) * share]:
                self._send(child, some)

    def _share_later(self) -> None:
        self._share_timer = None
        self._share()

    # Time limits, cancelling and killing

    def _limit_ms(self, call: Claimed) -> int | None:
        """Return the time limit of a call: for a batch, the shortest of its members."""
        limits = [limit for task in tasks_of(call) if (limit := task.timeout_ms or self._default_timeout_ms)]
        return min(limits, default=None)

    def _call_started(self, child: ChildHandle, ticket: int) -> None:
        """Start the timer of a call whose user code runs from now on. Cancel it at once if it is to stop."""
        if ticket not in child.calls:
            raise protocol.ProtocolError(f"it was not sent the call {ticket}")
        child.first_started_at = self._loop.time()
        call = child.calls[ticket]
        limit_ms = self._limit_ms(call)
        if limit_ms is not None:
            is_async = self.shape.kind is ChildKind.ASYNC
            seconds = limit_ms / 1000 + (ASYNC_CANCEL_SECONDS if is_async else TIMEOUT_SLACK_SECONDS)
            child.limit_timers[ticket] = self._loop.call_later(
                seconds, _kill_because_of, child, child.overdue, ticket
            )
        if self._is_cancelled(call):
            self._cancel_call(child, ticket)

    def _is_cancelled(self, call: Claimed) -> bool:
        """Return True if a call is to stop. A batch stops only if all of its members are to."""
        return all(task.id in self._cancelled_ids for task in tasks_of(call))

    def cancel(self, ids: Iterable[str]) -> None:
        """Cancel these tasks and no others. Calls that have not started never start."""
        self._cancelled_ids = frozenset(ids)
        if not self._cancelled_ids:
            return
        self._waiting = deque(self._drop_cancelled(self._waiting))
        for child in self._children.working:
            for ticket, call in list(child.calls.items()):
                if self._is_cancelled(call):
                    self._cancel_call(child, ticket)

    def disown(self, undone: Collection[tuple[str, int]]) -> None:
        """Stop these calls, given by id and `claim_seq`, and see to it that their outcomes are not stored."""

        def changed(call: Claimed) -> Claimed:
            if call.members:
                return batch_of([changed(member) for member in call.members])
            return call._replace(claim_seq=UNDONE) if (call.id, call.claim_seq) in undone else call

        self._waiting = deque(self._drop_cancelled([changed(call) for call in self._waiting]))
        for child in self._children.working:
            child.calls = {ticket: changed(call) for ticket, call in child.calls.items()}
            for ticket, call in list(child.calls.items()):
                if all(task.claim_seq == UNDONE for task in tasks_of(call)) and ticket in child.calls:
                    self._cancel_call(child, ticket)

    def _cancel_call(self, child: ChildHandle, ticket: int) -> None:
        """Ask a child to stop a call, and kill the child if the call does not stop within the grace period.

        A call that a serial child has not started is taken back.
        """
        if ticket in child.cancel_timers:
            return
        if child.is_serial:
            self._take_back(child, child.take_back())
            if ticket not in child.calls:
                return
        child.send(protocol.Cancel(ticket))
        if child.is_serial:
            child.interrupt()
        child.cancel_timers[ticket] = self._loop.call_later(
            self._cancel_grace_seconds, _kill_because_of, child, child.not_cancelled, ticket
        )

    def kill_running(self, why: str) -> None:
        """Kill every child that runs a call, which is reported as crashed. Release all calls that have not started.

        `why` becomes part of the failure: without it, nobody could tell such a kill from one by the kernel or an operator.
        """
        for child in self._children.working:
            if child.calls:
                child.killed_because = why
                self._children.set_ending(child)  # its calls are reported when its pipe is read to the end
                child.kill()
        for child in self._children.ending:
            child.releases_calls = True
        self._release(self._waiting)
        self._waiting.clear()

    # Events of children

    def _received(self, child: ChildHandle, message: protocol.Message) -> None:
        match message:
            case protocol.Outcome():
                self._listener.ended(self._remove_ended(child, message.ticket), message)
                self._dispatch_waiting()
            case protocol.BatchOutcome():
                members = self._remove_ended(child, message.ticket).members
                if len(members) != len(message.outcomes):
                    raise protocol.ProtocolError(
                        f"it has answered {len(message.outcomes)} of {len(members)} members"
                    )
                for task, outcome in zip(members, message.outcomes, strict=True):
                    self._listener.ended(task, outcome)
                self._dispatch_waiting()
            case protocol.TimedOut():
                call = self._remove_ended(child, message.ticket)
                for task in tasks_of(call):
                    self._listener.timed_out(task, self._limit_ms(call) or 0)
                self._dispatch_waiting()
            case protocol.Started():
                self._call_started(child, message.ticket)
            case protocol.Returned():
                self._take_back(child, message.tickets)
            case protocol.Blocked():
                self._note_blocked(child, message)
            case protocol.Progress() | protocol.Logged():
                # A late message comes from a thread that has outlived its task.
                if (call := child.calls.get(message.ticket)) is not None:
                    for task in tasks_of(call):
                        self._output.add(task, message)
            case protocol.LoadSteps() | protocol.StoreStep() | protocol.BeginTransaction():
                # Without its call, the question comes from a thread that has outlived its task.
                call = child.calls.get(message.ticket)
                self._steps.add(message, call, child.reply)
            case protocol.Retiring():
                if child.is_serial:  # others finish all of their calls
                    child.take_back()
                    self._take_back(child, list(child.calls))
            case protocol.Hello():
                pass  # about the child itself, not about a call

    def _remove_ended(self, child: ChildHandle, ticket: int) -> Claimed:
        call = child.pop(ticket)
        self.load -= 1
        child.blocked_by = None
        if child.is_serial and child.calls:
            self._call_started(child, next(iter(child.calls)))
        elif child.is_serial:
            self._share()
        self._children.dismiss_if_done(child)
        return call

    def _take_back(self, child: ChildHandle, tickets: Sequence[int]) -> None:
        """Take back calls that the child has not started. If its first call is among them, it goes on with the next."""
        first = next(iter(child.calls), None)
        returned = [child.pop(ticket) for ticket in tickets]
        if child.is_serial and child.calls and first not in child.calls:
            self._call_started(child, next(iter(child.calls)))
        self._reassign(child, returned)

    def _note_blocked(self, child: ChildHandle, blocked: protocol.Blocked) -> None:
        child.blocked_by = blocked.ticket
        culprit = child.calls.get(blocked.ticket or 0)
        what = "a callback" if culprit is None else f"task {culprit.id} ({culprit.task_name})"
        where = f" at {blocked.where}" if blocked.where else ""
        count = len(child.calls)
        logger.warning(
            "The event loop of child %d is blocked by %s%s: %d %s waiting",
            child.pid,
            what,
            where,
            count,
            "task is" if count == 1 else "tasks are",
        )

    def _child_available(self) -> None:
        self._listener.child_available()
        self._dispatch_waiting()

    def _lost(self, child: ChildHandle, how: str) -> None:
        """Report the calls that ran in a child that has died, and send the others to another child."""
        description = child.describe_end(how)
        not_started = set(child.take_back())
        calls = child.pop_all()
        for ticket, call in calls.items():
            if ticket in not_started:
                continue
            self.load -= 1
            for task in tasks_of(call):
                if task.id in self._cancelled_ids:
                    self._listener.cancelled(task)
                elif ticket in child.overdue:
                    self._listener.timed_out(task, self._limit_ms(call) or 0)
                else:
                    self._listener.crashed(task, description)
        self._reassign(child, [call for ticket, call in calls.items() if ticket in not_started])


def _kill_because_of(child: ChildHandle, culprits: set[int], ticket: int) -> None:
    """Kill a child, and note the call to blame in one of its sets."""
    culprits.add(ticket)
    child.kill()


def batch_of(members: Sequence[Claimed]) -> Claimed:
    """Return tasks that were claimed together as one call."""
    return members[0]._replace(members=tuple(members))


def tasks_of(call: Claimed) -> Sequence[Claimed]:
    """Return the tasks that run in a call: the members of a batch, or the one task."""
    return call.members or (call,)


def call_of(ticket: int, claimed: Claimed, limit_ms: int | None, valid_until: float) -> protocol.Call:
    """Return the message that tells a child to run a task."""
    return protocol.Call(
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
        [call_of(ticket, member, limit_ms, valid_until) for member in claimed.members],
    )
