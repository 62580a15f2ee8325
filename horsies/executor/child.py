"""A child process: receive calls from the worker, run them, send back outcomes.

Plain tasks run one at a time or in threads, async tasks side by side on one loop. A child exits when its parent does.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import random
import resource
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

from horsies import logs, middleware
from horsies.discovery import load_app
from horsies.errors import HorsiesError
from horsies.executor import orphan_flush, protocol
from horsies.executor.batches import run_call, run_call_async
from horsies.executor.durable import StepPort
from horsies.executor.protocol import READ_ORDERS, ChildKind, ChildSettings
from horsies.executor.runner import Run, own_pid
from horsies.executor.tokens import TokenReader
from horsies.middleware import flush
from horsies.registry import TaskRegistry

RECEIVE_BYTES = 262_144
# The size of the reported outcomes that are kept in case the worker dies; more than a worker ever leaves unstored.
KEPT_CHARACTERS = 1_048_576
# An event loop that does not answer for so long is reported as blocked.
BLOCKED_SECONDS = 0.5


class ParentChannel:
    """The child's end of the pipe. Keeps the last outcomes in case the worker dies, and decides when the child retires."""

    def __init__(self, sock: socket.socket, settings: ChildSettings) -> None:
        self.sock = sock
        self._settings = settings
        self._frames = protocol.Frames()
        self._sending = threading.Lock()
        self._reading = threading.Lock()
        self._asked: dict[tuple[int, int], Future[protocol.StepReply]] = {}
        self._pid = own_pid()
        self._tasks_done = 0
        self._started_at = time.monotonic()
        self.calls: dict[int, protocol.Call] = {}  # received and not answered, by ticket
        self._kept_characters = 0
        self.outcomes: deque[tuple[protocol.Call, protocol.Outcome]] = deque()
        self.identity: protocol.Identity | None = None
        self.cancelled: set[int] = set()  # tickets of the calls here that are to stop
        self.is_retiring = self.is_closed = self._is_dismissed = False

    @property
    def is_being_read(self) -> bool:
        """True while a thread reads the pipe."""
        return self._reading.locked()

    @property
    def is_orphaned(self) -> bool:
        """True if the worker has died: it has closed the pipe without an `Exit`."""
        return self.is_closed and not self._is_dismissed

    def receive(self, flags: int = 0) -> list[protocol.Call] | None:
        """Read the pipe and return the new calls, perhaps none; None when the pipe is closed.

        With MSG_DONTWAIT, raise BlockingIOError if there is nothing to read, or if another thread reads.
        """
        if not self._reading.acquire(blocking=not flags & socket.MSG_DONTWAIT):
            raise BlockingIOError
        try:
            return self._receive(flags)
        finally:
            self._reading.release()

    def _receive(self, flags: int) -> list[protocol.Call] | None:
        try:
            data = b"" if self.is_closed else self.sock.recv(RECEIVE_BYTES, flags)
        except ConnectionResetError:  # the worker died without having read everything
            data = b""
        if not data:
            self._close()
            return None
        calls: list[protocol.Call] = []
        for body in self._frames.split(data):
            for order in protocol.decode_orders(body):
                match order:
                    case protocol.Call():
                        calls.append(order)
                        self.calls[order.ticket] = order
                    case protocol.Identity():
                        self.identity = order
                        middleware.set_worker_id(order.worker_id)
                    case protocol.Exit():
                        self._is_dismissed = True
                    case protocol.Cancel():
                        if order.ticket in self.calls:
                            self.cancelled.add(order.ticket)
                    case protocol.StepReply():
                        if (asked := self._asked.pop((order.ticket, order.number), None)) is not None:
                            asked.set_result(order)
        return calls

    def read_until_call(self, ticket: int) -> None:
        """Read the pipe until this call is there or the pipe is closed. Another thread may read the call meanwhile."""
        while ticket not in self.calls and not self.is_closed:
            with self._reading:
                if ticket not in self.calls:
                    self._receive(0)

    # Steps

    def ask(self, question: protocol.Question) -> Future[protocol.StepReply]:
        """Ask the worker; the future has the reply once somebody has read it. A dead worker's task goes on elsewhere."""
        reply: Future[protocol.StepReply] = Future()
        reply.set_running_or_notify_cancel()  # so that nobody can cancel it
        self._asked[question.ticket, question.number] = reply
        self.send(question)
        if self.is_closed:
            self._close()
        return reply

    def read_until(self, reply: Future[protocol.StepReply]) -> None:
        """Read the pipe until a reply is there. Several threads may do this at once."""
        while not reply.done():
            with self._reading:
                if not reply.done():
                    self._receive(0)

    def _close(self) -> None:
        self.is_closed = True
        for (ticket, number), reply in list(self._asked.items()):
            if self._asked.pop((ticket, number), None) is not None:
                reply.set_result(protocol.StepReply(ticket, number, lost=True))

    def send(self, message: protocol.Message) -> None:
        """Send a message. Outcomes are also kept, for when the worker has died."""
        if own_pid() != self._pid:
            os._exit(0)  # a process that the task forked has returned as well: only the original reports
        with self._sending:
            messages = [message]
            match message:
                case protocol.Outcome() | protocol.BatchOutcome() | protocol.TimedOut():
                    call = self._remove(message.ticket)
                    if isinstance(message, protocol.Outcome):
                        self._keep(call, message)
                    elif isinstance(message, protocol.BatchOutcome):
                        for member, outcome in zip(call.members, message.outcomes, strict=True):
                            self._keep(member, outcome)
                    if self._retires_now():
                        messages.append(protocol.Retiring())
                case protocol.Returned():
                    for ticket in message.tickets:
                        self._remove(ticket)
                case _:
                    pass
            try:
                self.sock.sendall(protocol.frame(messages))
            except (BrokenPipeError, ConnectionResetError):
                self.is_closed = True

    def _remove(self, ticket: int) -> protocol.Call:
        self.cancelled.discard(ticket)
        return self.calls.pop(ticket)

    def _keep(self, call: protocol.Call, outcome: protocol.Outcome) -> None:
        self.outcomes.append((call, outcome))
        self._kept_characters += _size(call, outcome)
        while self._kept_characters > KEPT_CHARACTERS and len(self.outcomes) > 1:
            self._kept_characters -= _size(*self.outcomes.popleft())

    def _retires_now(self) -> bool:
        """Count a task that has ended; return True if the child reaches a limit with it. A limit of 0 tasks is none."""
        self._tasks_done += 1
        if self.is_retiring:
            return False
        most_tasks, most_mb = self._settings.max_tasks, self._settings.max_memory_mb
        is_old = time.monotonic() - self._started_at >= self._settings.min_seconds
        self.is_retiring = (is_old and 0 < most_tasks <= self._tasks_done) or (
            most_mb is not None and memory_mb() >= most_mb
        )
        return self.is_retiring

    def must_return(self, call: protocol.Call) -> bool:
        """Return True if a call must not start: the lease of the worker has expired, or the call was cancelled."""
        return time.monotonic() > call.valid_until or call.ticket in self.cancelled


def _size(call: protocol.Call, outcome: protocol.Outcome) -> int:
    return len(call.args or "") + len(call.kwargs or "") + len(outcome.result)


@contextmanager
def _exit_on_error() -> Generator[None]:
    """Exit the process on any error: it could not report its calls any more."""
    try:
        yield
    except BaseException:  # noqa: BLE001  any error at all
        traceback.print_exc()
        os._exit(1)


class SerialServer:
    """Runs calls one after another, until the pipe is closed or the child retires.

    It begins a call only with its token. The worker takes back calls by taking their tokens.
    """

    def __init__(self, channel: ParentChannel, app: TaskRegistry, tokens: TokenReader) -> None:
        self._channel = channel
        self._app = app
        self._tokens = tokens
        self._poll = select.poll()
        self._poll.register(channel.sock, select.POLLIN)
        self._poll.register(tokens.descriptor, select.POLLIN)
        self._uses_pipe = self._has_orders = False
        self._port = StepPort(self._ask, self._read_until, lambda: channel.identity)

    def serve(self) -> list[protocol.Call]:
        """Run calls until the pipe is closed; return those that are still this child's and have not started."""
        signal.signal(READ_ORDERS, self._on_orders)
        while not self._channel.is_retiring and (call := self._next_call()) is not None:
            if self._channel.must_return(call):
                self._send(protocol.Returned([call.ticket]))
            else:
                self._send(
                    run_call(self._app, Run(call, self._send_output, self._channel.cancelled, self._port))
                )
        while self._channel.receive() is not None:
            pass  # these calls are sent to another child: the worker knows that this one retires
        calls = self._channel.calls
        return [calls[ticket] for ticket in self._tokens.take_all() if ticket in calls]

    def _next_call(self) -> protocol.Call | None:
        """Wait for a token and return its call; None when the worker has closed the pipe."""
        ticket: int | None = None
        while not self._channel.is_closed and (ticket := self._tokens.take()) is None:
            self._poll.poll()
            self._read_orders()
        if ticket is None:
            return None
        calls = self._channel.calls
        self._uses_pipe = True  # before looking: a signal must not read the call once it was looked for
        self._channel.read_until_call(ticket)
        self._uses_pipe = False
        if self._has_orders:
            self._read_orders()
        while (oldest := next(iter(calls), ticket)) < ticket:
            del calls[oldest]  # the worker has taken it back
        return calls.get(ticket)

    def _send_output(self, message: protocol.Progress | protocol.Logged) -> bool:
        """Send progress or log lines; return False in the middle of a message, where a signal handler may have logged."""
        if threading.current_thread() is not threading.main_thread():
            self._channel.send(message)
            return True
        if self._uses_pipe:
            return False
        self._send(message)
        return True

    def _send(self, message: protocol.Message) -> None:
        self._uses_pipe = True
        self._channel.send(message)
        self._uses_pipe = False
        if self._has_orders:
            self._read_orders()

    def _ask(self, question: protocol.Question) -> Future[protocol.StepReply]:
        if threading.current_thread() is not threading.main_thread():
            return self._channel.ask(question)
        self._uses_pipe = True
        reply = self._channel.ask(question)
        self._uses_pipe = False
        return reply

    def _read_until(self, reply: Future[protocol.StepReply]) -> None:
        """Read the pipe until a reply is there, and then what a signal handler could not read meanwhile."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main:
            self._uses_pipe = True
        self._channel.read_until(reply)
        if is_main:
            self._uses_pipe = False
        if self._has_orders:
            self._drain()

    def _on_orders(self, _number: int, _frame: FrameType | None) -> None:
        """Handle the signal of the worker: the call that runs was cancelled.

        The pipe is not read in the middle of a message; that is done right after it.
        """
        self._has_orders = True
        if not self._uses_pipe:
            self._read_orders()

    def _read_orders(self) -> None:
        """Read everything that is in the pipe, without waiting. If a thread reads it, that does this when it is done."""
        self._uses_pipe = True
        self._drain()
        self._uses_pipe = False

    def _drain(self) -> None:
        if self._channel.is_being_read:
            return
        self._has_orders = False
        with suppress(BlockingIOError):
            while self._channel.receive(socket.MSG_DONTWAIT) is not None:
                pass


def run_of(call: protocol.Call, channel: ParentChannel) -> Run:
    """Return a run that sends its progress and log lines over the pipe, from any thread."""

    def send(message: protocol.Progress | protocol.Logged) -> bool:
        with _exit_on_error():
            channel.send(message)
        return True

    def ask(question: protocol.Question) -> Future[protocol.StepReply]:
        with _exit_on_error():
            return channel.ask(question)

    return Run(call, send, channel.cancelled, StepPort(ask, None, lambda: channel.identity))


def serve_in_threads(channel: ParentChannel, app: TaskRegistry, threads: int) -> None:
    """Run calls in a fixed number of threads, until the pipe is closed."""

    def answer(call: protocol.Call) -> None:
        with _exit_on_error():
            if channel.must_return(call):
                channel.send(protocol.Returned([call.ticket]))
                return
            if call.timeout_ms is not None:
                channel.send(protocol.Started(call.ticket))
            channel.send(run_call(app, run_of(call, channel)))

    executor = ThreadPoolExecutor(threads, thread_name_prefix="horsies")
    while (calls := channel.receive()) is not None:
        for call in calls:
            executor.submit(answer, call)


class LoopServer:
    """Runs calls as tasks of one event loop. Cancels calls at their time limit, and reports a call that blocks the loop."""

    def __init__(self, channel: ParentChannel, app: TaskRegistry) -> None:
        self._channel = channel
        self._app = app
        self._call: ContextVar[protocol.Call] = ContextVar("call")
        self._call_of: WeakKeyDictionary[asyncio.Task[Any], protocol.Call] = WeakKeyDictionary()
        self._running: set[asyncio.Task[None]] = set()
        self._started: dict[int, asyncio.Task[Any]] = {}  # by ticket, without the cancelled ones
        self._busy = threading.Event()

    async def serve(self) -> None:
        """Run calls until the pipe is closed."""
        loop = asyncio.get_running_loop()
        loop.set_task_factory(self._make_task)
        closed = loop.create_future()
        loop.add_reader(self._channel.sock, self._receive, closed)
        threading.Thread(target=self._watch, args=(loop,), name="horsies-watch", daemon=True).start()
        await closed

    def _receive(self, closed: asyncio.Future[None]) -> None:
        with _exit_on_error():
            calls = self._channel.receive()
        if calls is None:
            asyncio.get_running_loop().remove_reader(self._channel.sock)
            closed.set_result(None)
        for ticket in self._channel.cancelled & self._started.keys():
            self._started.pop(ticket).cancel()
        for call in calls or ():
            self._call.set(call)  # the new task gets a copy of this context
            task = asyncio.get_running_loop().create_task(self._run(call), name=call.task_name)
            self._running.add(task)
            task.add_done_callback(self._ended)
            self._busy.set()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not self._running:
            self._busy.clear()

    async def _run(self, call: protocol.Call) -> None:
        if self._channel.must_return(call):
            self._send(protocol.Returned([call.ticket]))
            return
        task = asyncio.current_task()
        assert task is not None
        self._started[call.ticket] = task
        if call.timeout_ms is None:
            self._send(await self._execute(call))
            return
        self._send(protocol.Started(call.ticket))
        async with asyncio.timeout(call.timeout_ms / 1000) as limit:
            outcome = await self._execute(
                call
            )  # a cancellation is an outcome too, so no TimeoutError is raised
        self._send(protocol.TimedOut(call.ticket) if limit.expired() else outcome)

    async def _execute(self, call: protocol.Call) -> protocol.Outcome | protocol.BatchOutcome:
        outcome = await run_call_async(self._app, run_of(call, self._channel))
        self._started.pop(call.ticket, None)
        return outcome

    def _send(self, message: protocol.Message) -> None:
        if self._channel.is_closed:
            return  # the loop is shutting down and has cancelled the rest
        with _exit_on_error():
            self._channel.send(message)

    # Detection of a blocked event loop

    def _make_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """Create a task, and note the call that it belongs to."""
        task = asyncio.Task(coro, loop=loop, **options)
        if (call := self._call.get(None)) is not None:
            self._call_of[task] = call
        return task

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Check from a thread, while calls run, that the loop still answers."""
        while True:
            self._busy.wait()
            answered = threading.Event()
            try:
                loop.call_soon_threadsafe(answered.set)
            except RuntimeError:
                return  # the loop is closed
            if answered.wait(BLOCKED_SECONDS):
                time.sleep(BLOCKED_SECONDS)
                continue
            self._report_blocked(loop)
            answered.wait()  # report each blockage once

    def _report_blocked(self, loop: asyncio.AbstractEventLoop) -> None:
        task = asyncio.current_task(loop)
        call = None if task is None else self._call_of.get(task)
        frames = [] if task is None else task.get_stack(limit=1)
        where = f"{frames[0].f_code.co_filename}:{frames[0].f_lineno}" if frames else None
        self._send(protocol.Blocked(None if call is None else call.ticket, where))


# The process of a child

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
_libc: ctypes.CDLL | None = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent(parent_pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent ends. Without Linux, only the closed pipe tells it."""
    if _libc is None:
        return
    _libc.prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent_pid:  # it ended before the call
        os._exit(1)


def name_process(name: str) -> None:
    """Set the name that `ps` and `top` show, at most 15 characters."""
    if _libc is not None:
        _libc.prctl(PR_SET_NAME, name.encode()[:15])


def memory_mb() -> float:
    """Return the resident memory of this process; without /proc, the maximum that it ever had."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize() / 1_048_576
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1_048_576 if sys.platform == "darwin" else 1_024)


def set_up_process(sock: socket.socket, kind: ChildKind, parent_pid: int, tokens: int | None) -> None:
    """Lead a process group, ignore Ctrl-C, end with the parent, restore default signal handlers, and guard the pipe."""
    os.setsid()
    die_with_parent(parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    name_process("horsies-async" if kind is ChildKind.ASYNC else "horsies-child")
    os.environ["HORSIES_CHILD_PROCESS"] = "1"
    random.seed()  # all forks would draw the same numbers
    # Keep the pipe from processes that a task starts: it would stay open after the child has died.
    sock.set_inheritable(False)
    if tokens is not None:
        os.set_inheritable(tokens, False)
    os.register_at_fork(after_in_child=sock.close)


def run(
    sock: socket.socket,
    app: TaskRegistry,
    settings: ChildSettings,
    kind: ChildKind,
    parent_pid: int,
    tokens: int | None = None,
) -> None:
    """Run a child: set up the process, run calls until the pipe is closed, store the last outcomes if the worker died.

    `tokens` is the read end of the token pipe, which a serial child has.
    """
    set_up_process(sock, kind, parent_pid, tokens)
    try:
        for hook in app.child_hooks:
            hook()
    except BaseException as error:  # noqa: BLE001  the worker reports any failure of a hook, and stops
        hello = protocol.Hello(
            os.getpid(), memory_mb(), f"a child start hook failed with {type(error).__name__}: {error}"
        )
        sock.sendall(protocol.frame([hello]))
        return
    # After the hooks, which may have configured logging themselves.
    logs.configure(settings.loglevel, app.config.log_format)
    gc.collect()
    sock.sendall(protocol.frame([protocol.Hello(os.getpid(), memory_mb())]))
    channel = ParentChannel(sock, settings)
    not_started: list[protocol.Call] = []
    match kind:
        case ChildKind.SERIAL:
            assert tokens is not None
            not_started = SerialServer(channel, app, TokenReader(tokens)).serve()
        case ChildKind.THREADS:
            serve_in_threads(channel, app, settings.threads)
        case ChildKind.ASYNC:
            asyncio.run(LoopServer(channel, app).serve())
    if channel.is_orphaned and channel.identity is not None:
        orphan_flush.store_last_outcomes(
            channel.identity, app, list(channel.outcomes), not_started, settings.orphan_seconds
        )
    else:
        flush(app.middleware)


def main() -> None:
    """Run a child as a new process (`--start-method spawn`), which imports the app itself."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    settings = ChildSettings.from_argument(sys.argv[2])
    sys.path[:] = settings.sys_path
    try:
        app = load_app(settings.locator, settings.imports)
    except HorsiesError as error:
        sock.sendall(protocol.frame([protocol.Hello(os.getpid(), memory_mb(), str(error))]))
        return
    run(sock, app, settings, ChildKind(sys.argv[3]), os.getppid(), *map(int, sys.argv[4:]))
