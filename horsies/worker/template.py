"""The template: a process that has imported the app, started no thread, and forks children on request.

A child forked from it starts in milliseconds and shares the pages of everything imported. The template also reaps the
children and reports how each ended, after killing whatever was left in its group. When the worker dies, it gives the
children a moment to store what they have done, and ends them.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Generator
from contextlib import suppress
from types import FrameType

from horsies.discovery import load_app
from horsies.errors import HorsiesError
from horsies.registry import TaskRegistry
from horsies.worker import child
from horsies.worker.settings import ChildKind, ChildSettings
from horsies.worker.system import die_with_parent, kill_group, name_process
from horsies.worker.wire import LENGTH

# A report to the worker: the pid of a child that ended and its wait status.
REPORT = struct.Struct("!ii")
READY = b"\0"
WAIT_SECONDS = 0.01


def run(control: socket.socket, app: TaskRegistry, settings: ChildSettings, parent_pid: int) -> None:
    """Fork a child for every socket received, report every child that ended, end soon after the worker does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _noted)  # sent to the whole group, it is the worker's to act on
    die_with_parent(parent_pid, signal.SIGTERM)
    name_process("horsies-template")
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _noted)
    gc.collect()
    gc.freeze()  # what is imported by now is never looked at again, so that its pages stay shared
    control.sendall(READY)
    children: set[int] = set()
    with suppress(BrokenPipeError, ConnectionResetError):
        while os.getppid() == parent_pid:
            readable, _, _ = select.select([control, wake_read], [], [])
            if wake_read in readable:
                with suppress(BlockingIOError):
                    os.read(wake_read, 4096)
                for report in reap(children):
                    control.sendall(report)
            if control in readable:
                pid = fork_child(control, app, settings)
                if pid is None:
                    break
                children.add(pid)
    see_off(children, settings.afterlife_seconds)


def _noted(_number: int, _frame: FrameType | None) -> None:
    """A handler must exist for the wake-up to be written."""


def fork_child(control: socket.socket, app: TaskRegistry, settings: ChildSettings) -> int | None:
    """Fork one child around the socket that came with the request; None when the worker has gone."""
    data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
    if not data:
        return None
    template_pid = os.getpid()
    if (pid := os.fork()) == 0:
        code = 1
        try:
            control.close()
            kind = ChildKind(data.decode())
            child.run(socket.socket(fileno=descriptors[0]), app, settings, kind, template_pid)
            code = 0
        except (BrokenPipeError, ConnectionResetError):
            pass  # the worker has gone before this child could say hello
        except BaseException:  # noqa: BLE001  it must not run on as a second template
            traceback.print_exc()
        finally:
            flush_output()
            os._exit(code)
    os.close(descriptors[0])
    return pid


def flush_output() -> None:
    """A task may have closed the streams, or put anything in their place."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


def reap(children: set[int]) -> Generator[bytes]:
    """Reports of what has ended. Its group is cleared first, while the unreaped pid cannot be anyone else's."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None:
            return
        kill_group(ended.si_pid)
        _, status = os.waitpid(ended.si_pid, 0)
        children.discard(ended.si_pid)
        yield REPORT.pack(ended.si_pid, status)


def see_off(children: set[int], seconds: float) -> None:
    """Wait for the children that are left, and end those that take too long, with everything that they started."""
    deadline = time.monotonic() + seconds
    while children and time.monotonic() < deadline:
        for _ in reap(children):
            pass  # and nobody to report it to
        time.sleep(WAIT_SECONDS)
    for pid in children:
        kill_group(pid)


def main() -> None:
    """A template started afresh: imports the app, and says so or says why not."""
    control = socket.socket(fileno=int(sys.argv[1]))
    settings = ChildSettings.from_argument(sys.argv[2])
    sys.path[:] = settings.sys_path
    try:
        app = load_app(settings.locator, settings.imports)
    except HorsiesError as error:
        message = str(error).encode()
        control.sendall(b"\1" + LENGTH.pack(len(message)) + message)
        return
    run(control, app, settings, os.getppid())
