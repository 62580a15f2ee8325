"""The background event loop of a process, and the safe way to cancel asyncio tasks.

Sync callers and every loop of the process share one background loop, so a process has one connection pool and one
listener however many loops it runs. The loop is started on first use and forgotten after a fork.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

RETRY_SECONDS = 0.5
CLOSE_SECONDS = 5.0


async def cancel_and_wait(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and return when all of them have ended.

    A cancellation can get lost: before Python 3.12, `asyncio.wait_for`, which the driver uses, swallows one that arrives just as
    the awaited task ends. The task then goes on, so it is cancelled again until it has ended.
    """
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=RETRY_SECONDS)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # marks it as retrieved, so that asyncio does not log it


async def wait_until_set(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event; return False if it was not set for so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


def is_on_loop() -> bool:
    """Return True if an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def finish(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits for an event loop."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    work.close()
    raise RuntimeError("a coroutine that should not wait has waited for an event loop")


class BackgroundLoop:
    """An event loop in a thread; it calls its `closers` before it ends."""

    def __init__(self) -> None:
        self.closers: list[Callable[[], Awaitable[None]]] = []
        started: Future[asyncio.AbstractEventLoop] = Future()
        # The thread creates the loop: Ctrl-C interrupts the main thread only, and would leave a loop there unclosed.
        self.thread = threading.Thread(
            target=self._run, args=(started,), name="horsies-event-loop", daemon=True
        )
        self.thread.start()
        self.loop = started.result()

    def _run(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        try:
            loop = asyncio.new_event_loop()
        except BaseException as error:  # noqa: BLE001  raised where the loop is needed
            started.set_exception(error)
            return
        asyncio.set_event_loop(loop)
        loop.call_soon(started.set_result, loop)
        loop.run_forever()
        self.loop.close()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop, from any thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def close(self) -> None:
        """Call the closers, cancel all tasks and end the loop."""

        async def close_all() -> None:
            await asyncio.gather(*(closer() for closer in self.closers), return_exceptions=True)
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        closing = self.submit(close_all())
        try:
            closing.result(timeout=CLOSE_SECONDS)
        except TimeoutError:
            closing.cancel()  # the process ends anyway; the server notices closed sockets by itself
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(timeout=CLOSE_SECONDS)


_background_loop: BackgroundLoop | None = None
_starting = threading.Lock()


def background_loop() -> BackgroundLoop:
    """Return the background loop of this process, started on first use."""
    global _background_loop
    with _starting:
        if _background_loop is None:
            _background_loop = BackgroundLoop()
        return _background_loop


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the background loop and wait for its result in this thread."""
    background = background_loop()
    if threading.current_thread() is background.thread:
        work.close()
        raise RuntimeError("a sync call on the background loop would wait for itself; use the _async form")
    waiting = background.submit(work)
    try:
        return waiting.result()
    except BaseException:
        waiting.cancel()  # Ctrl-C ends the wait, and also cancels the work
        raise


async def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the background loop and await its result on the caller's loop."""
    return await asyncio.wrap_future(background_loop().submit(work))


def _close() -> None:
    if _background_loop is not None:
        _background_loop.close()


def _forget() -> None:
    """Forget the loop in a forked child: its thread was not forked, and its sockets belong to the parent."""
    global _background_loop, _starting
    _background_loop = None
    _starting = threading.Lock()


atexit.register(_close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
