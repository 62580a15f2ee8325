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

from horsies.discovery import load_app
from horsies.errors import HorsiesError
from horsies.registry import TaskRegistry
from horsies.worker import wire
from horsies.worker.execution import execute
from horsies.worker.settings import ChildSettings
from horsies.worker.system import die_with_parent, memory_mb, name_process

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
    serve(sock, app, settings)


def serve(sock: socket.socket, app: TaskRegistry, settings: ChildSettings) -> None:
    """Run calls one after another, until there are no more or it is time to be replaced."""
    frames, done = wire.Frames(), 0
    while data := sock.recv(RECEIVE_BYTES):
        for body in frames.feed(data):
            for call in wire.calls(body):
                outcome = execute(app, call)
                done += 1
                retiring = settings.is_worn(done, memory_mb)
                sock.sendall(wire.frame([outcome if not retiring else wire.retiring(outcome)]))
                if retiring:
                    return


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
        app = load_app(settings.locator)
    except HorsiesError as error:
        sock.sendall(wire.frame([wire.Hello(os.getpid(), memory_mb(), str(error))]))
        return
    run(sock, app, settings, os.getppid())
