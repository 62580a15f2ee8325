"""A child process: receives calls, runs them, reports outcomes. It has no connection to the database.

It ends when its pipe closes, when it has done its share of tasks, or when it holds too much memory; in the last two
cases the outcome that it has just reported says so, and calls behind it were never touched.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import socket
import sys
from collections import deque
from contextlib import suppress
from types import FrameType

from horsies.discovery import load_app
from horsies.errors import HorsiesError
from horsies.registry import TaskRegistry
from horsies.worker import wire
from horsies.worker.execution import execute
from horsies.worker.settings import ChildSettings
from horsies.worker.system import RECALL, die_with_parent, memory_mb, name_process

RECEIVE_BYTES = 262_144


def run(sock: socket.socket, app: TaskRegistry, settings: ChildSettings, parent_pid: int) -> None:
    """The life of a child, from hello to the end of its pipe."""
    settle_in(parent_pid)
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
    Server(sock, app, settings).serve()


class Server:
    """Runs calls one after another, until there are no more or it is time to be replaced."""

    def __init__(self, sock: socket.socket, app: TaskRegistry, settings: ChildSettings) -> None:
        self._sock = sock
        self._app = app
        self._settings = settings
        self._frames = wire.Frames()
        self._queue: deque[wire.Call] = deque()
        self._busy_with_pipe = self._recalled = False

    def serve(self) -> None:
        signal.signal(RECALL, self._recall)
        done = 0
        while self._queue or self._receive():
            while self._queue:
                outcome = execute(self._app, self._queue.popleft())
                done += 1
                retiring = self._settings.is_worn(done, memory_mb)
                self._send(wire.retiring(outcome) if retiring else outcome)
                if retiring:
                    self._wait_for_leave()
                    return

    def _receive(self) -> bool:
        """Wait for calls; False when the worker has closed the pipe."""
        self._busy_with_pipe = True
        data = self._sock.recv(RECEIVE_BYTES)
        self._unpack(data)
        self._busy_with_pipe = False
        return bool(data)

    def _unpack(self, data: bytes) -> None:
        for body in self._frames.feed(data):
            self._queue.extend(wire.calls(body))

    def _send(self, message: wire.Message) -> None:
        self._busy_with_pipe = True
        self._sock.sendall(wire.frame([message]))
        self._busy_with_pipe = False
        if self._recalled:
            self._give_back()

    def _recall(self, _number: int, _frame: FrameType | None) -> None:
        """The worker wants back what has not been begun. Not in the middle of a message, though."""
        self._recalled = True
        if not self._busy_with_pipe:
            self._give_back()

    def _give_back(self) -> None:
        self._recalled = False
        with suppress(BlockingIOError):
            while data := self._sock.recv(RECEIVE_BYTES, socket.MSG_DONTWAIT):
                self._unpack(data)
        tickets = [call.ticket for call in self._queue]
        self._queue.clear()
        if tickets:
            self._send(wire.Returned(tickets))

    def _wait_for_leave(self) -> None:
        """What the worker wrote meanwhile is not lost: it knows that this was the last outcome."""
        while self._sock.recv(RECEIVE_BYTES):
            pass


def settle_in(parent_pid: int) -> None:
    """Be a process of its own: its own group, deaf to Ctrl-C, and gone when its parent is."""
    os.setsid()
    die_with_parent(parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    name_process("horsies-child")
    os.environ["HORSIES_CHILD_PROCESS"] = "1"
    random.seed()  # a fork would draw the same numbers as its siblings


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
    run(sock, app, settings, os.getppid())
