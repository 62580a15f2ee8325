"""How children come to be: forked from a template process, or started afresh.

Whichever way, a child is given one end of a socket pair, and how it ended can be asked for.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Protocol

from horsies.errors import ConfigurationError, ErrorCode, HorsiesError
from horsies.registry import TaskRegistry
from horsies.worker import template
from horsies.worker.settings import ChildKind, ChildSettings
from horsies.worker.system import kill_group
from horsies.worker.wire import LENGTH

# How long the end of a process may take after the end of its pipe.
EXIT_STATUS_SECONDS = 0.25
EXIT_POLL_SECONDS = 0.005


class Launcher(Protocol):
    """Starts children."""

    async def ready(self) -> None: ...
    def launch(self, theirs: socket.socket, kind: ChildKind) -> bool: ...
    async def exit_status(self, pid: int, seconds: float) -> int | None:
        """How a child ended, and nothing of its group is left then; None when it has not within a moment."""
        ...

    async def close(self) -> None: ...


class TemplateLauncher:
    """Forks children from a template: one started afresh, or forked from this process before it has threads."""

    def __init__(self, settings: ChildSettings, app: TaskRegistry | None = None) -> None:
        self._settings = settings
        self._app = app  # given, the template is a fork of this process
        self._process: subprocess.Popen[bytes] | None = None
        self._forked_pid: int | None = None
        self._control: socket.socket | None = None
        self._statuses: dict[int, asyncio.Future[int]] = {}
        self._reports = bytearray()
        self._starting = asyncio.Lock()

    async def ready(self) -> None:
        """Have a template, a new one if the last has died."""
        async with self._starting:
            if self._control is None:
                await self._start()

    async def _start(self) -> None:
        ours, theirs = socket.socketpair()
        if self._app is None:
            self._process = _run("horsies.worker.template", theirs, self._settings)
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
                template.run(theirs, app, self._settings, parent_pid)
                code = 0
            finally:
                os._exit(code)
        self._forked_pid = pid
        theirs.close()

    @staticmethod
    def _wait_until_ready(control: socket.socket) -> None:
        answer = control.recv(1)
        if answer == template.READY:
            return
        if not answer:
            raise HorsiesError(
                "the template process ended before it was ready",
                code=ErrorCode.MODULE_EXEC_ERROR,
                help_text="something ended the process while the app was imported; see its output above",
            )
        (size,) = LENGTH.unpack(control.recv(LENGTH.size, socket.MSG_WAITALL))
        raise HorsiesError(
            f"the app cannot be loaded in a child process\n{control.recv(size, socket.MSG_WAITALL).decode()}",
            code=ErrorCode.MODULE_EXEC_ERROR,
            help_text="it was imported here without an error: what differs in a fresh process?",
        )

    def launch(self, theirs: socket.socket, kind: ChildKind) -> bool:
        """Ask for a child; False when the template has just died."""
        with theirs, suppress(BrokenPipeError, ConnectionResetError):
            if self._control is not None:
                socket.send_fds(self._control, [kind.encode()], [theirs.fileno()])
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
        while len(self._reports) >= template.REPORT.size:
            pid, status = template.REPORT.unpack_from(self._reports)
            del self._reports[: template.REPORT.size]
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
    """Starts each child afresh; it imports the app by itself."""

    def __init__(self, settings: ChildSettings) -> None:
        self._settings = settings
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    async def ready(self) -> None:
        """Nothing to prepare."""

    def launch(self, theirs: socket.socket, kind: ChildKind) -> bool:
        process = _run("horsies.worker.child", theirs, self._settings, kind)
        self._processes[process.pid] = process
        return True

    async def exit_status(self, pid: int, seconds: float) -> int | None:
        process = self._processes.get(pid)
        if process is None:
            return None  # we are closed, and all have ended
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):  # noqa: ASYNC222  it does not wait
                kill_group(pid)  # while the unreaped pid cannot be anyone else's
                code = process.wait()
                del self._processes[pid]
                return (
                    -code if code < 0 else code << 8
                )  # as a wait status, which is how a template reports it
            await asyncio.sleep(EXIT_POLL_SECONDS)
        return None

    async def close(self) -> None:
        processes, self._processes = list(self._processes.values()), {}
        for process in processes:
            process.kill()
            await asyncio.to_thread(process.wait)


def _run(module: str, theirs: socket.socket, settings: ChildSettings, *more: str) -> subprocess.Popen[bytes]:
    entry = f"from {module} import main; main()"
    command = [sys.executable, "-c", entry, str(theirs.fileno()), settings.to_argument(), *more]
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
    theirs.close()
    return process
