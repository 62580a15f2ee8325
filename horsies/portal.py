"""One event loop in a thread of its own, for everything a producer asks of the database.

Every call, from sync code, from a running loop or from many threads, is carried out on this one loop. So a process
has one pool and one listener however many loops it runs, sync calls work inside a running loop, and nothing is tied
to a loop that the caller may close. After a fork the child starts a loop of its own.
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
Closer = Callable[[], Awaitable[None]]

CLOSE_SECONDS = 5.0


class Portal:
    """The loop, its thread, and what must be closed before it ends."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._closers: list[Closer] = []
        self._thread = threading.Thread(target=self._run, name="horsies-portal", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def on_close(self, closer: Closer) -> None:
        self._closers.append(closer)

    def close(self) -> None:
        async def close_all() -> None:
            await asyncio.gather(*(closer() for closer in self._closers), return_exceptions=True)
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
        self._thread.join(timeout=CLOSE_SECONDS)


_portal: Portal | None = None
_starting = threading.Lock()


def portal() -> Portal:
    """This process's portal, started on first use."""
    global _portal
    with _starting:
        if _portal is None:
            _portal = Portal()
        return _portal


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """Carry out a coroutine on the portal's loop and wait for it here."""
    there = portal()
    if threading.current_thread().name == "horsies-portal" and _is_running_on(there.loop):
        work.close()
        raise RuntimeError(
            "a sync call from the portal's own loop would wait for itself; use the _async form"
        )
    waiting = there.submit(work)
    try:
        return waiting.result()
    except BaseException:
        waiting.cancel()  # Ctrl-C ends the wait here; it ends the work there too
        raise


async def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Carry out a coroutine on the portal's loop and await it on the caller's."""
    return await asyncio.wrap_future(portal().submit(work))


def _is_running_on(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def _close() -> None:
    if _portal is not None:
        _portal.close()


def _forget() -> None:
    """In a forked child: the loop's thread did not come along, and the parent's sockets are not ours to close."""
    global _portal, _starting
    _portal = None
    _starting = threading.Lock()


atexit.register(_close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
