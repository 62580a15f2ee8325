"""The lifecycle of child processes, seen from the worker: launch, replace, dismiss and kill them.

Each child has a pipe of its own, so a child that dies, hangs or is replaced never affects another one. A spare child stands
ready, so that a replacement takes no time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from horsies.db.queries.tasks import Claimed
from horsies.errors import ErrorCode, HorsiesError
from horsies.executor import protocol
from horsies.executor.forkserver import EXIT_STATUS_SECONDS, Launcher, kill_group
from horsies.executor.protocol import READ_ORDERS, ChildKind
from horsies.executor.tokens import TokenPipe

logger = logging.getLogger("horsies.pool")

# Calls that a serial child was sent so long ago and has not started are taken back. No more calls are sent to a child that
# has run one call for so long.
HELD_UP_SECONDS = 0.05
READ_BYTES = 262_144
MAX_FAILED_STARTS = 5


class ChildState(Enum):
    """The phase of a child between its launch and its end."""

    LAUNCHING = auto()  # no process was requested yet
    STARTING = auto()  # has not said hello
    SPARE = auto()  # ready to take the place of another child
    ACTIVE = auto()  # takes calls
    LEAVING = auto()  # takes no more calls, and exits when its calls have ended
    ENDING = auto()  # was killed, or its pipe is closed


@dataclass(eq=False, slots=True)
class ChildHandle(asyncio.Protocol):
    """A child process, its pipe, and the calls that were sent to it. A serial child runs only the first of its calls."""

    sock: socket.socket
    children: Children
    tokens: TokenPipe | None  # of a serial child
    transport: asyncio.Transport = field(init=False)
    frames: protocol.Frames = field(default_factory=protocol.Frames)
    state: ChildState = ChildState.LAUNCHING
    pid: int = 0
    memory_mb: float = 0.0
    calls: dict[int, Claimed] = field(default_factory=dict[int, Claimed])  # by ticket
    first_started_at: float = 0.0  # when a serial child started the first of its calls
    limit_timers: dict[int, asyncio.TimerHandle] = field(default_factory=dict[int, asyncio.TimerHandle])
    cancel_timers: dict[int, asyncio.TimerHandle] = field(default_factory=dict[int, asyncio.TimerHandle])
    # Frames of calls that may have to be taken back: when each was sent, and its last ticket.
    sent_ahead: deque[tuple[float, int]] = field(default_factory=deque[tuple[float, int]])
    recall_timer: asyncio.TimerHandle | None = None
    overdue: set[int] = field(default_factory=set[int])  # calls for whose time limit the child was killed
    not_cancelled: set[int] = field(default_factory=set[int])  # cancelled calls that did not stop in time
    blocked_by: int | None = None  # the call that blocks the event loop of the child
    killed_because: str | None = None  # why the worker killed the child, if not because of one of its calls
    is_retired: bool = False  # has announced its exit or was told to exit, and is not replaced when it ends
    wrote_garbage: bool = False
    releases_calls: bool = (
        False  # calls that it has not started are released instead of sent to another child
    )

    @property
    def is_serial(self) -> bool:
        return self.tokens is not None

    def send(self, *orders: protocol.Order) -> None:
        """Write orders to the pipe."""
        self.transport.write(protocol.frame(orders))

    def reply(self, reply: protocol.StepReply) -> None:
        """Answer a question of a call, unless the child has gone."""
        if not self.transport.is_closing():
            self.send(reply)

    def dismiss(self) -> None:
        """Tell the child to exit, and close the pipe."""
        self.is_retired = True
        self.send(protocol.Exit())
        self.transport.close()

    def kill(self) -> None:
        """Kill the child and every process that its tasks have started. The closed pipe then reports its end."""
        if self.pid:
            kill_group(self.pid)

    def take_back(self) -> list[int]:
        """Take back the calls that a serial child has not started, and return their tickets."""
        self.sent_ahead.clear()
        return [] if self.tokens is None else self.tokens.take_all()

    def interrupt(self) -> None:
        """Have a serial child read its orders, whatever it runs."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, READ_ORDERS)

    def close_tokens(self) -> None:
        if self.tokens is not None:
            self.tokens.close()

    def is_held_up(self, now: float) -> bool:
        """Return True if a serial child runs a call for so long that others should not queue behind it."""
        return self.is_serial and bool(self.calls) and now - self.first_started_at > HELD_UP_SECONDS

    def pop(self, ticket: int) -> Claimed:
        """Remove and return a call that the child has mentioned, and cancel its timers."""
        if ticket not in self.calls:
            raise protocol.ProtocolError(f"it was not sent the call {ticket}, or has answered it already")
        for timers in (self.limit_timers, self.cancel_timers):
            if (timer := timers.pop(ticket, None)) is not None:
                timer.cancel()
        return self.calls.pop(ticket)

    def pop_all(self) -> dict[int, Claimed]:
        """Remove and return all calls, and cancel all timers."""
        for timer in (*self.limit_timers.values(), *self.cancel_timers.values(), self.recall_timer):
            if timer is not None:
                timer.cancel()
        calls, self.calls, self.limit_timers, self.cancel_timers = self.calls, {}, {}, {}
        self.recall_timer = None
        return calls

    def describe_end(self, how: str) -> str:
        """Return how the child ended and which of its calls is to blame. Call it before the calls are removed."""

        def named(tickets: set[int]) -> str:
            calls = [self.calls[ticket] for ticket in tickets if ticket in self.calls]
            return " and ".join(f"task {call.id} ({call.task_name})" for call in calls)

        if culprits := named(self.overdue):
            return f"its process was killed because {culprits} exceeded its time limit and did not yield"
        if culprits := named(self.not_cancelled):
            return f"its process was killed because {culprits} was cancelled and did not stop"
        if self.killed_because is not None:
            return self.killed_because
        if culprit := named(set() if self.blocked_by is None else {self.blocked_by}):
            return f"{how} while {culprit} blocked its event loop"
        return how

    # Events of the pipe

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for body in self.frames.split(data):
                for message in protocol.decode_messages(body):
                    self.children.received(self, message)
        except protocol.ProtocolError as error:
            logger.error("Child %d wrote garbage to its pipe: %s", self.pid, error)
            self.wrote_garbage = True
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        # Read what is left in the pipe: a failed write closes it before everything was read.
        with suppress(OSError):
            while not self.wrote_garbage and (data := self.sock.recv(READ_BYTES)):
                self.data_received(data)
        self.children.pipe_closed(self)


class Children:
    """Keeps a fixed number of children active, and one spare. Replaces those that end."""

    def __init__(
        self,
        kind: ChildKind,
        size: int,
        launcher: Launcher,
        exit_seconds: float,
        on_message: Callable[[ChildHandle, protocol.Message], None],
        on_available: Callable[[], None],
        on_lost: Callable[[ChildHandle, str], None],
    ) -> None:
        """Create no child yet: `start` does.

        `exit_seconds` is the time that a dismissed child gets to exit, 0 if it need not do anything on exit. The callbacks
        get every message but the first, are told that a child has become active, and how a process has ended. None of them
        may block.
        """
        self._kind = kind
        self._size = size
        self._launcher = launcher
        self._exit_seconds = exit_seconds
        self._on_message = on_message
        self._on_available = on_available
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._known: set[ChildHandle] = set()
        self.active: dict[int, ChildHandle] = {}  # by pid
        self._identity: protocol.Identity | None = None
        self._failed_starts = 0
        self._ready = asyncio.Event()
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.failed: asyncio.Future[HorsiesError] = self._loop.create_future()

    @property
    def working(self) -> list[ChildHandle]:
        """The children that can take calls or still run some."""
        leaving = self._in_state(ChildState.LEAVING)
        return [*self.active.values(), *(child for child in leaving if child.calls)]

    @property
    def ending(self) -> list[ChildHandle]:
        """The children that were killed or closed their pipe, and whose end is not reported yet."""
        return self._in_state(ChildState.ENDING)

    def _in_state(self, *states: ChildState) -> list[ChildHandle]:
        return [child for child in self._known if child.state in states]

    # Start and replacement

    async def start(self) -> None:
        """Launch all children and wait until they can take calls."""
        for _ in range(self._size + 1):
            await self._launch()
        ready = asyncio.ensure_future(self._ready.wait())
        await asyncio.wait([ready, self.failed], return_when=asyncio.FIRST_COMPLETED)
        if self.failed.done():
            ready.cancel()
            raise self.failed.result()

    def set_identity(self, identity: protocol.Identity) -> None:
        """Tell the children the id of their worker, and the database for their last results should the worker die."""
        self._identity = identity
        for child in self._in_state(ChildState.SPARE, ChildState.ACTIVE, ChildState.LEAVING):
            child.send(identity)

    async def _launch(self) -> None:
        await self._launcher.ready()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        tokens = TokenPipe() if self._kind is ChildKind.SERIAL else None
        try:
            _, child = await self._loop.create_connection(lambda: ChildHandle(ours, self, tokens), sock=ours)
        except BaseException:  # such as the cancellation when the pool is closed
            ours.close()
            theirs.close()
            if tokens is not None:
                tokens.close()
            raise
        self._known.add(child)
        descriptors = () if tokens is None else (tokens.descriptor,)
        if self._launcher.launch(theirs, self._kind, *descriptors):
            child.state = ChildState.STARTING

    def received(self, child: ChildHandle, message: protocol.Message) -> None:
        """Handle a message: the child is ready, wants to exit, or says something about its calls."""
        if isinstance(message, protocol.Hello):
            self._greet(child, message)
            return
        if not isinstance(message, protocol.Retiring):
            self._on_message(child, message)
            return
        child.is_retired = True
        self.active.pop(child.pid, None)
        child.state = ChildState.LEAVING
        self._on_message(child, message)
        self.dismiss_if_done(child)
        self._replace()

    def _greet(self, child: ChildHandle, hello: protocol.Hello) -> None:
        if child.pid:
            raise protocol.ProtocolError("it says hello again")
        child.pid, child.memory_mb = hello.pid, hello.memory_mb
        if hello.error is not None:
            child.state = ChildState.ENDING
            self._fail(hello.error, ErrorCode.CONFIG_INVALID_CHILD_HOOK, "correct it and start again")
            return
        self._failed_starts = 0
        if self._identity is not None:
            child.send(self._identity)
        child.state = ChildState.SPARE
        self._activate_spares()

    def _activate_spares(self) -> None:
        for child in self._in_state(ChildState.SPARE):
            if len(self.active) < self._size:
                child.state = ChildState.ACTIVE
                self.active[child.pid] = child
                self._on_available()
        if len(self.active) == self._size:
            self._ready.set()

    def dismiss_if_done(self, child: ChildHandle) -> None:
        """Dismiss a leaving child that has no calls left. It waits for this, so that no write to its pipe can fail."""
        if child.state is ChildState.LEAVING and not child.calls:
            child.dismiss()

    def _replace(self) -> None:
        if not self._stopping:
            self._activate_spares()
            self._run_in_background(self._launch())

    # The end of a child

    def pipe_closed(self, child: ChildHandle) -> None:
        """Handle that the pipe is closed: the process has ended, or is of no more use."""
        is_failed_start = child.state is ChildState.STARTING
        self.set_ending(child)
        self._run_in_background(self._report_end(child, is_failed_start))

    def set_ending(self, child: ChildHandle) -> None:
        """Give the child no more calls."""
        if self.active.get(child.pid) is child:
            del self.active[child.pid]
        child.state = ChildState.ENDING

    async def _report_end(self, child: ChildHandle, is_failed_start: bool) -> None:
        how = await self._wait_for_exit(child) if child.pid else "its process never started"
        self._known.discard(child)
        self._on_lost(child, how)
        child.close_tokens()
        if is_failed_start and not self._stopping:
            self._failed_starts += 1
            if self._failed_starts >= MAX_FAILED_STARTS:
                message = f"{MAX_FAILED_STARTS} child processes in a row ended before they were ready"
                self._fail(message, ErrorCode.CONFIG_INVALID_WORKER, "see what they printed above")
                return
        if not child.is_retired:
            self._replace()

    async def _wait_for_exit(self, child: ChildHandle) -> str:
        """Wait until a child whose pipe is closed has exited, kill it if it does not; return how it ended."""
        if child.wrote_garbage:
            child.kill()
        seconds = max(EXIT_STATUS_SECONDS, self._exit_seconds if child.is_retired else 0)
        status = await self._launcher.exit_status(child.pid, seconds)
        if child.wrote_garbage:
            return "it wrote to the pipe to its worker"
        if status is not None:
            return describe_exit(status)
        child.kill()
        return "it closed the pipe to its worker"

    def _fail(self, message: str, code: ErrorCode, help_text: str) -> None:
        """Report that no child can work and that another try would not help."""
        if not self.failed.done():
            self.failed.set_result(HorsiesError(message, code=code, help_text=help_text))

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._check_result)

    def _check_result(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("The child processes can no longer be managed", exc_info=error)
            self._fail(
                f"{type(error).__name__}: {error}", ErrorCode.CONFIG_INVALID_WORKER, "see the log above"
            )

    async def close(self) -> None:
        """Kill all children. If they get time to exit, idle ones are dismissed first."""
        self._stopping = True
        if self._exit_seconds:
            for child in self._in_state(ChildState.ACTIVE, ChildState.SPARE):
                if not child.calls:
                    child.dismiss()
            await asyncio.sleep(0)  # the pipes are closed then, and the background tasks wait for the exits
            if self._tasks:
                await asyncio.wait(list(self._tasks), timeout=self._exit_seconds)
        for child in list(self._known):
            if child.state is not ChildState.ENDING:
                child.pop_all()
                child.kill()
                child.transport.close()
        for task in list(self._tasks):
            task.cancel()
        for child in self._known:
            child.close_tokens()


def describe_exit(status: int) -> str:
    """Return the meaning of a wait status in words."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"its process exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "an unnamed signal"
    hint = ", perhaps because memory ran out" if -code == signal.SIGKILL else ""
    return f"its process was killed by signal {-code} ({name}{hint})"
