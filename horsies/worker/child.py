"""A child process: receives calls, runs them, reports outcomes. It has no connection to the database, but to carry out the
last will of a worker that died.

It ends when its pipe closes. When it has done its share of tasks, or holds too much memory, it says so after the outcome
that made it so, and is dismissed when nothing runs in it any more.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import socket
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from types import FrameType

from horsies.discovery import load_app
from horsies.errors import HorsiesError
from horsies.registry import TaskRegistry
from horsies.worker import last_will, wire
from horsies.worker.concurrent import LoopServer, ThreadServer
from horsies.worker.execution import execute
from horsies.worker.outlet import Outlet
from horsies.worker.reporting import Run
from horsies.worker.settings import ChildKind, ChildSettings
from horsies.worker.system import RECALL, die_with_parent, memory_mb, name_process

SERVERS = {ChildKind.THREADS: ThreadServer, ChildKind.ASYNC: LoopServer}


def run(
    sock: socket.socket, app: TaskRegistry, settings: ChildSettings, kind: ChildKind, parent_pid: int
) -> None:
    """The life of a child, from hello to the end of its pipe."""
    settle_in(parent_pid, "horsies-async" if kind is ChildKind.ASYNC else "horsies-child")
    keep_private(sock)
    try:
        for hook in app.child_hooks:
            hook()
    except BaseException as error:  # noqa: BLE001  a hook that fails stops the worker, which reports this
        hello = wire.Hello(
            os.getpid(), memory_mb(), f"a child start hook failed with {type(error).__name__}: {error}"
        )
        sock.sendall(wire.frame([hello]))
        return
    gc.collect()
    sock.sendall(wire.frame([wire.Hello(os.getpid(), memory_mb())]))
    outlet = Outlet(sock, settings)
    server = SERVERS.get(kind, SerialServer)
    unbegun = server(outlet, app, settings).serve()
    if outlet.is_orphaned and outlet.heritage is not None:
        last_will.carry_out(outlet.heritage, app, list(outlet.endings), unbegun, settings.afterlife_seconds)


class SerialServer:
    """Runs calls one after another, until there are no more or it is time to be replaced."""

    def __init__(self, outlet: Outlet, app: TaskRegistry, _settings: ChildSettings) -> None:
        self._outlet = outlet
        self._app = app
        self._queue: deque[wire.Call] = deque()
        self._busy_with_pipe = self._recalled = False

    def serve(self) -> list[wire.Call]:
        """Run calls until the pipe closes; gives back those that it has not begun."""
        signal.signal(RECALL, self._recall)
        while self._queue or self._receive():
            while self._queue and not self._outlet.is_closed:
                if self._recalled:  # while it was busy with the pipe
                    self._give_back()
                    continue
                call = self._queue.popleft()
                if time.monotonic() > call.valid_until or call.ticket in self._outlet.cancelled:
                    self._send(wire.Returned([call.ticket]))
                    continue
                self._send(execute(self._app, call, Run(call, self._say, self._outlet.cancelled)))
                if self._outlet.is_leaving:
                    break
            if self._outlet.is_leaving or self._outlet.is_closed:
                break
        while self._receive():
            pass  # a living worker knows that it wrote this in vain
        return list(self._queue)

    def _say(self, message: wire.Progress | wire.Logged) -> bool:
        """Pass on what a task says. Not in the middle of a message, where a handler of its own signals may say it."""
        if threading.current_thread() is not threading.main_thread():
            self._outlet.send(message)
            return True
        if self._busy_with_pipe:
            return False
        self._send(message)
        return True

    def _receive(self) -> bool:
        """Wait for calls; False when the worker has closed the pipe."""
        self._busy_with_pipe = True
        calls = self._outlet.receive()
        self._queue.extend(calls or ())
        self._busy_with_pipe = False
        return calls is not None

    def _send(self, message: wire.Message) -> None:
        self._busy_with_pipe = True
        self._outlet.send(message)
        self._busy_with_pipe = False
        if self._recalled:
            self._give_back()

    def _recall(self, _number: int, _frame: FrameType | None) -> None:
        """The worker wants back what has not been begun, or has what runs stop. Not in the middle of a message, though."""
        self._recalled = True
        if not self._busy_with_pipe:
            self._give_back()

    def _give_back(self) -> None:
        self._recalled = False
        with suppress(BlockingIOError):
            while (calls := self._outlet.receive(socket.MSG_DONTWAIT)) is not None:
                self._queue.extend(calls)
        tickets = [call.ticket for call in self._queue]
        self._queue.clear()
        if tickets:
            self._send(wire.Returned(tickets))


def settle_in(parent_pid: int, name: str) -> None:
    """Be a process of its own: its own group, deaf to Ctrl-C, and gone when its parent is."""
    os.setsid()
    die_with_parent(parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    name_process(name)
    os.environ["HORSIES_CHILD_PROCESS"] = "1"
    random.seed()  # a fork would draw the same numbers as its siblings


def keep_private(sock: socket.socket) -> None:
    """Nothing that a task starts gets the pipe: it would stay open, and seem alive, after the child has died."""
    sock.set_inheritable(False)
    os.register_at_fork(after_in_child=sock.close)


def main() -> None:
    """A child started afresh (`--start-method spawn`): imports the app by itself."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    settings = ChildSettings.from_argument(sys.argv[2])
    sys.path[:] = settings.sys_path
    try:
        app = load_app(settings.locator, settings.imports)
    except HorsiesError as error:
        sock.sendall(wire.frame([wire.Hello(os.getpid(), memory_mb(), str(error))]))
        return
    run(sock, app, settings, ChildKind(sys.argv[3]), os.getppid())
