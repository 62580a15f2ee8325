"""The children of a worker: one process per slot, each with a pipe of its own.

A child that dies, hangs or is replaced never touches a sibling. When one dies, the call it was running is reported
lost, with how the process ended; calls that were queued behind it were never touched and go to another child. A spare
child stands ready, so that a replacement costs no waiting.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from horsies.errors import ErrorCode, HorsiesError
from horsies.storage.tasks import Claimed
from horsies.worker import wire
from horsies.worker.launch import Launcher
from horsies.worker.system import describe_exit, kill_group, recall

logger = logging.getLogger("horsies.pool")

# The limit counts from the start of user code, which is a little after the call was sent.
TIMEOUT_SLACK_SECONDS = 0.02
MAX_FAILED_STARTS = 5
# A child that runs one call for so long is asked for those queued behind it.
HELD_UP_SECONDS = 0.05
READ_BYTES = 262_144


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the pool's owner does about each call; none of them may block or raise."""

    ended: Callable[[Claimed, wire.Outcome], None]
    crashed: Callable[[Claimed, str], None]
    timed_out: Callable[[Claimed, int], None]
    came_free: Callable[[], None]


@dataclass(eq=False, slots=True)
class Child:
    """The parent's side of a child process."""

    transport: asyncio.Transport
    pid: int = 0
    memory_mb: float = 0.0
    calls: dict[int, Claimed] = field(default_factory=dict[int, Claimed])
    head_since: float = 0.0
    retiring: bool = False
    timed_out: bool = False
    recalled: bool = False

    def deadline(self, default_ms: int | None) -> float | None:
        """When the call that it runs now must have ended."""
        head = next(iter(self.calls.values()), None)
        limit = None if head is None else head.timeout_ms or default_ms
        return None if limit is None else self.head_since + limit / 1000 + TIMEOUT_SLACK_SECONDS

    def is_held_up(self, now: float) -> bool:
        """Whether what it runs has proved to be no short task."""
        return bool(self.calls) and now - self.head_since > HELD_UP_SECONDS


class _Pipe(asyncio.Protocol):
    """Turns what a child writes into messages."""

    def __init__(self, pool: ChildPool, sock: socket.socket) -> None:
        self._pool = pool
        self._sock = sock
        self._frames = wire.Frames()
        self.child: Child | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.child = Child(transport)

    def data_received(self, data: bytes) -> None:
        assert self.child is not None
        for body in self._frames.feed(data):
            for message in wire.messages(body):
                self._pool.received(self.child, message)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        assert self.child is not None
        self._read_the_rest()
        self._pool.closed(self.child)

    def _read_the_rest(self) -> None:
        """A failed write closes the pipe before everything that the child has said is read."""
        with suppress(OSError):
            while data := self._sock.recv(READ_BYTES):
                self.data_received(data)


class ChildPool:
    """Runs calls in `size` children. Give each call to a child that has room, named by its pid."""

    def __init__(self, size: int, launcher: Launcher, hooks: Hooks, default_timeout_ms: int | None) -> None:
        self._size = size
        self._launcher = launcher
        self._hooks = hooks
        self._default_timeout_ms = default_timeout_ms
        self._children: dict[int, Child] = {}
        self._spares: deque[Child] = deque()
        self._starting: set[Child] = set()
        self._dying: set[Child] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._homeless: deque[Claimed] = deque()
        self._reserved: Counter[int] = Counter()
        self._next_ticket = 0
        self.load = 0  # calls that were handed in and have not ended
        self.depth = 1  # calls that a child may hold
        self._watch: asyncio.TimerHandle | None = None
        self._failed_starts = 0
        self._ready = asyncio.Event()
        self._stopping = False
        self.failed: asyncio.Future[HorsiesError] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        """Start all children and wait until they can take calls."""
        for _ in range(self._size + 1):
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
    def running(self) -> list[Claimed]:
        """Every call that was handed in and has not ended."""
        held = [*self._children.values(), *self._dying]
        return [*self._homeless, *(call for child in held for call in child.calls.values())]

    def idle(self) -> list[int]:
        """The children that have nothing to do."""
        if self._homeless:
            return []
        return [child.pid for child in self._children.values() if not self._held(child)]

    def free(self) -> list[int]:
        """A pid for each call that may be submitted now, idle children first; none of a child that is held up."""
        if self._homeless:
            return []
        now = asyncio.get_running_loop().time()
        open_to_more = [child for child in self._children.values() if not child.is_held_up(now)]
        return [
            child.pid for taken in range(self.depth) for child in open_to_more if self._held(child) <= taken
        ]

    def _held(self, child: Child) -> int:
        return len(child.calls) + self._reserved[child.pid]

    def reserve(self, pids: Sequence[int]) -> None:
        """Keep room in these children for calls that are on their way."""
        self._reserved.update(pids)

    def unreserve(self, pids: Sequence[int]) -> None:
        self._reserved.subtract(pids)
        self._reserved = +self._reserved

    def submit(self, calls: Sequence[Claimed]) -> None:
        """Send calls to the children that they were started for; if one is gone, to any other."""
        self.load += len(calls)
        by_child: dict[int, list[Claimed]] = {}
        for call in calls:
            if call.pid in self._children and not self._homeless:
                by_child.setdefault(call.pid, []).append(call)
            else:
                self._homeless.append(call)  # behind those that have waited longer
        for pid, batch in by_child.items():
            self._send(self._children[pid], batch)
        self._house()

    def _send(self, child: Child, batch: Sequence[Claimed]) -> None:
        if not child.calls:
            child.head_since = asyncio.get_running_loop().time()
        sent: list[wire.Call] = []
        for claimed in batch:
            self._next_ticket += 1
            child.calls[self._next_ticket] = claimed
            sent.append(_call(self._next_ticket, claimed))
        child.transport.write(wire.frame(sent))
        self._watch_deadlines()

    def _house(self) -> None:
        """Find children for calls whose own child went away before it touched them, the oldest first."""
        while self._homeless:
            now = asyncio.get_running_loop().time()
            open_to_more = [child for child in self._children.values() if not child.is_held_up(now)]
            child = min(open_to_more, key=self._held, default=None)
            if child is None or self._held(child) >= self.depth:
                return
            self._send(child, [self._homeless.popleft()])

    def received(self, child: Child, message: wire.Message) -> None:
        if isinstance(message, wire.Hello):
            self._greet(child, message)
            return
        if isinstance(message, wire.Returned):
            self._take_back(child, message.tickets)
            return
        claimed = child.calls.pop(message.ticket)
        child.recalled = False
        child.head_since = asyncio.get_running_loop().time()
        if message.retiring:
            self._retire(child)
        self.load -= 1
        self._hooks.ended(claimed, message)
        self._house()

    def _take_back(self, child: Child, tickets: Sequence[int]) -> None:
        calls = [child.calls.pop(ticket) for ticket in tickets]
        self._homeless.extendleft(reversed(calls))
        self._house()

    def _greet(self, child: Child, hello: wire.Hello) -> None:
        self._starting.discard(child)
        child.pid, child.memory_mb = hello.pid, hello.memory_mb
        if hello.error is not None:
            self._fail(hello.error, ErrorCode.CONFIG_INVALID_CHILD_HOOK, "correct it and start again")
            return
        self._failed_starts = 0
        self._spares.append(child)
        self._fill()

    def _fill(self) -> None:
        while self._spares and len(self._children) < self._size:
            child = self._spares.popleft()
            self._children[child.pid] = child
            self._hooks.came_free()
        if len(self._children) == self._size:
            self._ready.set()
        self._house()

    def _retire(self, child: Child) -> None:
        """It has reported its last outcome and ends; what was queued behind it was never touched."""
        child.retiring = True
        self._children.pop(child.pid, None)
        self._take_back(child, list(child.calls))
        child.transport.close()  # only then does it end, so that nothing we wrote to it in vain can fail
        self._replace()

    def _replace(self) -> None:
        if not self._stopping:
            self._fill()
            self._later(self._launch())

    def closed(self, child: Child) -> None:
        """The pipe is closed: the process has ended, or is of no use any more."""
        was_starting = child in self._starting
        self._starting.discard(child)
        if child in self._spares:
            self._spares.remove(child)
        if self._children.get(child.pid) is child:
            del self._children[child.pid]
        self._dying.add(child)
        self._later(self._bury(child, was_starting))

    async def _bury(self, child: Child, was_starting: bool) -> None:
        if child.pid and not child.retiring:
            kill_group(child.pid)
        status = await self._launcher.exit_status(child.pid) if child.pid else None
        if child.retiring and status is None:
            kill_group(child.pid)  # it was to end by itself, and has not
        self._dying.discard(child)
        self._report_lost(child, describe_exit(status))
        if was_starting and not self._stopping:
            self._failed_starts += 1
            if self._failed_starts >= MAX_FAILED_STARTS:
                message = f"{MAX_FAILED_STARTS} child processes in a row ended before they were ready"
                self._fail(message, ErrorCode.CONFIG_INVALID_WORKER, "see what they printed above")
                return
        if not child.retiring:
            self._replace()

    def _report_lost(self, child: Child, how: str) -> None:
        """The first unanswered call is the one that the child died of; the rest go to another."""
        lost = list(child.calls.values())
        child.calls.clear()
        if lost:
            head = lost.pop(0)
            self.load -= 1
            if child.timed_out:
                self._hooks.timed_out(head, head.timeout_ms or self._default_timeout_ms or 0)
            else:
                self._hooks.crashed(head, how)
        self._homeless.extendleft(reversed(lost))
        self._house()

    def _watch_deadlines(self) -> None:
        """Set the alarm for the next deadline, if one is nearer than the alarm that is set."""
        due = [at for child in self._children.values() for at in self._alarms(child)]
        if not due:
            return
        nearest = min(due)
        if self._watch is None or self._watch.when() > nearest:
            if self._watch is not None:
                self._watch.cancel()
            self._watch = asyncio.get_running_loop().call_at(nearest, self._enforce_deadlines)

    def _alarms(self, child: Child) -> list[float]:
        """When something must be done about what a child runs."""
        deadline = child.deadline(self._default_timeout_ms)
        alarms = [] if deadline is None or child.timed_out else [deadline]
        if len(child.calls) > 1 and not child.recalled:
            alarms.append(child.head_since + HELD_UP_SECONDS)
        return alarms

    def _enforce_deadlines(self) -> None:
        self._watch = None
        now = asyncio.get_running_loop().time()
        for child in list(self._children.values()):
            deadline = child.deadline(self._default_timeout_ms)
            if deadline is not None and deadline <= now and not child.timed_out:
                child.timed_out = True
                kill_group(child.pid)
            elif len(child.calls) > 1 and child.is_held_up(now) and not child.recalled:
                child.recalled = True
                recall(child.pid)
        self._watch_deadlines()

    async def _launch(self) -> None:
        await self._launcher.ready()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        _, pipe = await asyncio.get_running_loop().create_connection(lambda: _Pipe(self, ours), sock=ours)
        assert pipe.child is not None
        if self._launcher.launch(theirs):
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
        """End every child that runs a call; the calls are reported as crashed."""
        for child in self._children.values():
            if child.calls:
                kill_group(child.pid)

    async def close(self) -> None:
        """End all children, whatever they do."""
        self._stopping = True
        if self._watch is not None:
            self._watch.cancel()
        for child in [*self._children.values(), *self._spares, *self._starting]:
            if child.pid:
                kill_group(child.pid)
            child.transport.close()
        for task in list(self._ending):
            task.cancel()
        await self._launcher.close()


def _call(ticket: int, claimed: Claimed) -> wire.Call:
    return wire.Call(
        ticket,
        claimed.id,
        claimed.task_name,
        claimed.args,
        claimed.kwargs,
        claimed.queue_name,
        claimed.retry_count + 1,
        claimed.max_retries,
        claimed.timeout_ms,
    )
