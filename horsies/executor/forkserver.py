"""Start child processes.

The fork server is a process that has imported the app, has started no thread, and forks children on request. The first part
of this module runs in it, the second part in the worker. With `--start-method spawn` each child imports the app itself.
"""

from __future__ import annotations

import asyncio
import gc
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Generator, Sequence
from contextlib import suppress
from types import FrameType
from typing import Protocol

from horsies.discovery import load_app
from horsies.errors import ConfigurationError, ErrorCode, HorsiesError
from horsies.executor import child
from horsies.executor.protocol import ChildKind, ChildSettings
from horsies.registry import TaskRegistry

# A report to the worker: the pid of a child that ended and its wait status.
REPORT = struct.Struct("!ii")
READY = b"\0"
FAILED = b"\1"  # followed by the length of a message, and the message
LENGTH = struct.Struct("!I")
WAIT_SECONDS = 0.01


# In the fork server


def run(control: socket.socket, app: TaskRegistry, settings: ChildSettings, parent_pid: int) -> None:
    """Fork a child for every socket received and report every child that ended, until the worker has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _ignore)  # sent to the whole group, but only the worker acts on it
    child.die_with_parent(parent_pid, signal.SIGTERM)
    child.name_process("horsies-forksrv")
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _ignore)
    gc.collect()
    gc.freeze()  # the collector never touches what is imported by now, so that its memory pages stay shared
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
    kill_after(children, settings.orphan_seconds)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Do nothing. A handler must exist so that the signal is written to the wake-up pipe."""


def fork_child(control: socket.socket, app: TaskRegistry, settings: ChildSettings) -> int | None:
    """Fork a child that serves the socket of the request; return its pid, or None when the worker has ended."""
    data, descriptors, _, _ = socket.recv_fds(control, 1, 2)
    if not data:
        return None
    server_pid = os.getpid()
    if (pid := os.fork()) == 0:
        code = 1
        try:
            control.close()
            kind = ChildKind(data.decode())
            sock, *tokens = descriptors
            child.run(socket.socket(fileno=sock), app, settings, kind, server_pid, *tokens)
            code = 0
        except (BrokenPipeError, ConnectionResetError):
            pass  # the worker ended before this child could say hello
        except BaseException:  # noqa: BLE001  the child must not go on as a second fork server
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):  # which a task may have closed or replaced
                with suppress(Exception):
                    stream.flush()
            os._exit(code)
    for descriptor in descriptors:
        os.close(descriptor)
    return pid


def reap(children: set[int]) -> Generator[bytes]:
    """Reap ended children and yield a report for each.

    The process group of a child is killed before its pid is reaped, while no other process can have that pid.
    """
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


def kill_group(pid: int) -> None:
    """Kill a child and everything that it started: it leads a process group, which is killed as a whole."""
    if pid <= 1:
        raise ValueError(f"{pid} is not a child process")  # killpg(1) would kill every process of the system
    for kill in (os.killpg, os.kill):  # a child that was only just forked does not lead a group yet
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def kill_after(children: set[int], seconds: float) -> None:
    """Wait until the children have ended; then kill those that are left, with everything that they started."""
    deadline = time.monotonic() + seconds
    while children and time.monotonic() < deadline:
        for _ in reap(children):
            pass  # the worker has ended, so there is no one to report to
        time.sleep(WAIT_SECONDS)
    for pid in children:
        kill_group(pid)


def main() -> None:
    """Run the fork server as a new process: import the app, and report success or the error."""
    control = socket.socket(fileno=int(sys.argv[1]))
    settings = ChildSettings.from_argument(sys.argv[2])
    sys.path[:] = settings.sys_path
    try:
        app = load_app(settings.locator, settings.imports)
    except HorsiesError as error:
        message = str(error).encode()
        control.sendall(FAILED + LENGTH.pack(len(message)) + message)
        return
    run(control, app, settings, os.getppid())


# In the worker

# The time that a process may take to exit after its pipe was closed.
EXIT_STATUS_SECONDS = 0.25
EXIT_POLL_SECONDS = 0.005


class Launcher(Protocol):
    """Starts children."""

    async def ready(self) -> None:
        """Wait until children can be launched."""

    def launch(self, theirs: socket.socket, kind: ChildKind, *tokens: int) -> bool:
        """Start a child that serves a socket; return False if that is not possible right now.

        A serial child gets the read end of its token pipe as well.
        """
        ...

    async def exit_status(self, pid: int, seconds: float) -> int | None:
        """Wait for the end of a child and its process group; return its wait status, None if it takes longer."""
        ...

    async def close(self) -> None:
        """End the launcher and its children."""


class ForkServer:
    """Starts children with a fork server, which is a new process, or a fork of this one made before it has threads."""

    def __init__(self, settings: ChildSettings, app: TaskRegistry | None = None) -> None:
        self._settings = settings
        self._app = app  # if given, the fork server is a fork of this process
        self._process: subprocess.Popen[bytes] | None = None
        self._forked_pid: int | None = None
        self._control: socket.socket | None = None
        self._statuses: dict[int, asyncio.Future[int]] = {}
        self._reports = bytearray()
        self._starting = asyncio.Lock()

    async def ready(self) -> None:
        """Start the fork server, again if the last one has died."""
        async with self._starting:
            if self._control is None:
                await self._start()

    async def _start(self) -> None:
        ours, theirs = socket.socketpair()
        if self._app is None:
            self._process = _run_module("horsies.executor.forkserver", theirs, self._settings)
        else:
            self._fork(theirs, self._app)
        await asyncio.to_thread(self._wait_until_ready, ours)
        ours.setblocking(False)
        self._control = ours
        asyncio.get_running_loop().add_reader(ours, self._read_reports)

    def _fork(self, theirs: socket.socket, app: TaskRegistry) -> None:
        if threading.active_count() > 1:
            raise ConfigurationError(
                f"this process has {threading.active_count()} threads, so it cannot be forked safely",
                code=ErrorCode.CONFIG_INVALID_WORKER,
                help_text="use start_method='forkserver'",
            )
        parent_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                run(theirs, app, self._settings, parent_pid)
                code = 0
            finally:
                os._exit(code)
        self._forked_pid = pid
        theirs.close()

    @staticmethod
    def _wait_until_ready(control: socket.socket) -> None:
        answer = control.recv(1)
        if answer == READY:
            return
        if not answer:
            raise HorsiesError(
                "the fork server ended before it was ready",
                code=ErrorCode.MODULE_EXEC_ERROR,
                help_text="something ended the process while the app was imported; see its output above",
            )
        (size,) = LENGTH.unpack(control.recv(LENGTH.size, socket.MSG_WAITALL))
        raise HorsiesError(
            f"the app cannot be loaded in a child process\n{control.recv(size, socket.MSG_WAITALL).decode()}",
            code=ErrorCode.MODULE_EXEC_ERROR,
            help_text="it was imported here without an error: what differs in a fresh process?",
        )

    def launch(self, theirs: socket.socket, kind: ChildKind, *tokens: int) -> bool:
        """Request a child; return False if the fork server has just died."""
        with theirs, suppress(BrokenPipeError, ConnectionResetError):
            if self._control is not None:
                socket.send_fds(self._control, [kind.encode()], [theirs.fileno(), *tokens])
                return True
        return False

    def _read_reports(self) -> None:
        assert self._control is not None
        try:
            data = self._control.recv(4096)
        except ConnectionResetError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
            self._control = None
            return
        self._reports += data
        while len(self._reports) >= REPORT.size:
            pid, status = REPORT.unpack_from(self._reports)
            del self._reports[: REPORT.size]
            future = self._status_of(pid)
            if not future.done():
                future.set_result(status)

    def _status_of(self, pid: int) -> asyncio.Future[int]:
        return self._statuses.setdefault(pid, asyncio.get_running_loop().create_future())

    async def exit_status(self, pid: int, seconds: float) -> int | None:
        try:
            async with asyncio.timeout(seconds):
                return await self._status_of(pid)
        except TimeoutError:
            return None
        finally:
            self._statuses.pop(pid, None)

    async def close(self) -> None:
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
        if self._process is not None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
        if self._forked_pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._forked_pid, 9)
            await asyncio.to_thread(os.waitpid, self._forked_pid, 0)


class SpawnLauncher:
    """Starts each child as a new process, which imports the app itself."""

    def __init__(self, settings: ChildSettings) -> None:
        self._settings = settings
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    async def ready(self) -> None:
        """Return at once: nothing has to be prepared."""

    def launch(self, theirs: socket.socket, kind: ChildKind, *tokens: int) -> bool:
        more = (kind, *map(str, tokens))
        process = _run_module("horsies.executor.child", theirs, self._settings, *more, pass_fds=tokens)
        self._processes[process.pid] = process
        return True

    async def exit_status(self, pid: int, seconds: float) -> int | None:
        process = self._processes.get(pid)
        if process is None:
            return None  # the launcher is closed, and all children have ended
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):  # noqa: ASYNC222  it does not wait
                kill_group(pid)  # before the pid is reaped, so no other process can have it
                code = process.wait()
                del self._processes[pid]
                return -code if code < 0 else code << 8  # the wait status, as a fork server reports it
            await asyncio.sleep(EXIT_POLL_SECONDS)
        return None

    async def close(self) -> None:
        processes, self._processes = list(self._processes.values()), {}
        for process in processes:
            process.kill()
            await asyncio.to_thread(process.wait)


def _run_module(
    module: str, theirs: socket.socket, settings: ChildSettings, *more: str, pass_fds: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    entry = f"from {module} import main; main()"
    command = [sys.executable, "-c", entry, str(theirs.fileno()), settings.to_argument(), *more]
    process = subprocess.Popen(command, pass_fds=[theirs.fileno(), *pass_fds])
    theirs.close()
    return process
