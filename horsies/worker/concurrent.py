"""Children that run several calls at once: blocking ones in threads, async ones on an event loop.

What goes wrong with the pipe ends the process: nobody could be told of an outcome any more, and the worker finds out by
the closed pipe.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import traceback
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

from horsies.registry import TaskRegistry
from horsies.worker import wire
from horsies.worker.execution import execute, execute_async
from horsies.worker.outlet import Outlet
from horsies.worker.reporting import Run
from horsies.worker.settings import ChildSettings

# A loop that does not answer for so long is blocked, and its tasks are told late of everything.
BLOCKED_SECONDS = 0.5


@contextmanager
def _or_die() -> Generator[None]:
    try:
        yield
    except BaseException:  # noqa: BLE001  whatever it is, this process is of no use any more
        traceback.print_exc()
        os._exit(1)


def run_of(call: wire.Call, outlet: Outlet) -> Run:
    """A run that says what it has to say over the pipe, from whichever thread."""

    def say(message: wire.Progress | wire.Logged) -> bool:
        with _or_die():
            outlet.send(message)
        return True

    return Run(call, say, outlet.cancelled)


class ThreadServer:
    """Runs calls in as many threads as there are slots."""

    def __init__(self, outlet: Outlet, app: TaskRegistry, settings: ChildSettings) -> None:
        self._outlet = outlet
        self._app = app
        self._threads = ThreadPoolExecutor(settings.threads, thread_name_prefix="horsies")

    def serve(self) -> list[wire.Call]:
        """Run calls until the pipe closes; there are none that have not begun then."""
        while (calls := self._outlet.receive()) is not None:
            for call in calls:
                self._threads.submit(self._run, call)
        return []

    def _run(self, call: wire.Call) -> None:
        with _or_die():
            if time.monotonic() > call.valid_until or call.ticket in self._outlet.cancelled:
                self._outlet.send(wire.Returned([call.ticket]))
                return
            if call.timeout_ms is not None:
                self._outlet.send(wire.Begun(call.ticket))
            self._outlet.send(execute(self._app, call, run_of(call, self._outlet)))


class LoopServer:
    """Runs calls as tasks of one event loop, cancels those that are to stop or pass their limit, and tells who blocks the
    others."""

    def __init__(self, outlet: Outlet, app: TaskRegistry, _settings: ChildSettings) -> None:
        self._outlet = outlet
        self._app = app
        self._call: ContextVar[wire.Call] = ContextVar("call")
        self._call_of: WeakKeyDictionary[asyncio.Task[Any], wire.Call] = WeakKeyDictionary()
        self._running: set[asyncio.Task[None]] = set()
        self._begun: dict[int, asyncio.Task[Any]] = {}  # by ticket, and not asked to stop
        self._busy = threading.Event()

    def serve(self) -> list[wire.Call]:
        """Run calls until the pipe closes; there are none that have not begun then."""
        asyncio.run(self._serve())
        return []

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(self._make_task)
        closed = loop.create_future()
        loop.add_reader(self._outlet.sock, self._receive, closed)
        threading.Thread(target=self._watch, args=(loop,), name="horsies-watch", daemon=True).start()
        await closed

    def _receive(self, closed: asyncio.Future[None]) -> None:
        with _or_die():
            calls = self._outlet.receive()
        if calls is None:
            asyncio.get_running_loop().remove_reader(self._outlet.sock)
            closed.set_result(None)
        for ticket in self._outlet.cancelled & self._begun.keys():
            self._begun.pop(ticket).cancel()
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

    async def _run(self, call: wire.Call) -> None:
        if time.monotonic() > call.valid_until or call.ticket in self._outlet.cancelled:
            self._send(wire.Returned([call.ticket]))
            return
        task = asyncio.current_task()
        assert task is not None
        self._begun[call.ticket] = task
        if call.timeout_ms is None:
            self._send(await self._execute(call))
            return
        self._send(wire.Begun(call.ticket))
        late: list[bool] = []

        def cancel() -> None:
            late.append(True)
            task.cancel()

        alarm = asyncio.get_running_loop().call_later(call.timeout_ms / 1000, cancel)
        outcome = await self._execute(call)
        alarm.cancel()
        self._send(wire.TimedOut(call.ticket) if late else outcome)

    async def _execute(self, call: wire.Call) -> wire.Outcome:
        outcome = await execute_async(self._app, call, run_of(call, self._outlet))
        self._begun.pop(call.ticket, None)
        return outcome

    def _send(self, message: wire.Message) -> None:
        if self._outlet.is_closed:
            return  # what ends now was cancelled because nobody waits for it any more
        with _or_die():
            self._outlet.send(message)

    # Who blocks the loop

    def _make_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """A task, remembered with the call on whose behalf it runs."""
        task = asyncio.Task(coro, loop=loop, **options)
        if (call := self._call.get(None)) is not None:
            self._call_of[task] = call
        return task

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread: while there are calls, ask the loop for a sign of life from time to time."""
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
            answered.wait()  # once for each time that it is blocked

    def _report_blocked(self, loop: asyncio.AbstractEventLoop) -> None:
        task = asyncio.current_task(loop)
        call = None if task is None else self._call_of.get(task)
        frames = [] if task is None else task.get_stack(limit=1)
        where = f"{frames[0].f_code.co_filename}:{frames[0].f_lineno}" if frames else None
        self._send(wire.Blocked(None if call is None else call.ticket, where))
