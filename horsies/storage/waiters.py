"""Everyone in a process who waits for the end of a task or a workflow, behind one listener and one query at a time.

Waiting costs no busy polling: what is not done is marked, its end is notified, and only then is it looked at
again. Looks gather while one is under way, so a thousand waiters cost as many round trips as a few.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from random import random
from typing import Generic, Protocol, TypeVar
from uuid import UUID

import psycopg
from psycopg.errors import SerializationFailure

from horsies.retry import backoff
from horsies.storage.database import TRANSIENT, Connection, Database
from horsies.storage.listener import Listener

POLL_SECONDS = 5.0
POLL_DEAF_SECONDS = 0.5
LOCKED_SECONDS = 0.001
# A task sent this moment is being claimed: a look now would find nothing.
FIRST_LOOK_SECONDS = 0.004


class Watched(Protocol):
    """What was seen of something that has an end; `watched` when that will be notified."""

    @property
    def id(self) -> UUID: ...
    @property
    def status(self) -> str: ...
    @property
    def watched(self) -> bool: ...


S = TypeVar("S", bound=Watched)
Watch = Callable[[Connection, Sequence[UUID]], Awaitable[list[S]]]


class Waiters(Generic[S]):
    """`wait` for as many as you like, from one event loop, until their status is one of `final`."""

    def __init__(self, database: Database, channel: str, watch: Watch[S], final: Collection[str]) -> None:
        self._database = database
        self._watch = watch
        self._final = final
        self._waiting: dict[UUID, list[asyncio.Future[S | None]]] = {}
        self._watched: set[UUID] = set()
        self._dirty: set[UUID] = set()
        self._news = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._listener = Listener(
            database.config,
            [channel],
            on_notify=self._on_notify,
            on_connected=lambda: self._look_again(self._waiting),
        )

    def _on_notify(self, _channel: str, payload: str) -> None:
        # The channel is open to everyone in the database: what is not an id is not for us.
        with contextlib.suppress(ValueError):
            self._look_again([UUID(payload)])

    async def wait(self, task_id: UUID, seconds: float | None) -> S | None:
        """The task or workflow once it has ended, None if there is none of that id; TimeoutError after `seconds`."""
        self._start()
        future: asyncio.Future[S | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(task_id, []).append(future)
        asyncio.get_running_loop().call_later(_patience(task_id, time.time()), self._look_again, [task_id])
        try:
            async with asyncio.timeout(seconds):
                return await future
        finally:
            self._forget(task_id, future)

    def _forget(self, task_id: UUID, future: asyncio.Future[S | None]) -> None:
        futures = self._waiting.get(task_id, [])
        if future in futures:
            futures.remove(future)
        if not futures:
            self._waiting.pop(task_id, None)
            self._watched.discard(task_id)

    def _start(self) -> None:
        if self._runner is None or self._runner.done():
            self._listener.start()
            self._runner = asyncio.create_task(self._run(), name="horsies-waiters")

    def _look_again(self, ids: Iterable[UUID]) -> None:
        self._dirty.update(task_id for task_id in ids if task_id in self._waiting)
        if self._dirty:
            self._news.set()

    async def _run(self) -> None:
        failures = 0
        while True:
            await self._wait_for_news()
            batch = [task_id for task_id in self._dirty if task_id in self._waiting]
            self._dirty.clear()
            if not batch:
                continue
            try:
                async with self._database.connection() as connection:
                    seen = await self._watch(connection, batch)
                failures = 0
            except SerializationFailure:  # one of them ended while we asked
                self._look_again(batch)
            except TRANSIENT as error:
                self._refuse([task_id for task_id in batch if task_id not in self._watched], error)
                await asyncio.sleep(backoff(failures, 50, 2_000, random()))
                failures += 1
                self._look_again(batch)
            except psycopg.Error as error:  # no permission, no such table: waiting would not help
                self._refuse(batch, error)
            else:
                self._tell(batch, seen)

    async def _wait_for_news(self) -> None:
        """Until something is to be looked at; every now and then, everything that is waited for."""
        pause = POLL_SECONDS if self._listener.connected.is_set() else POLL_DEAF_SECONDS
        try:
            async with asyncio.timeout(pause if self._waiting else None):
                await self._news.wait()
        except TimeoutError:
            self._dirty.update(self._waiting)
        self._news.clear()

    def _tell(self, batch: list[UUID], seen: list[S]) -> None:
        by_id = {task.id: task for task in seen}
        locked: list[UUID] = []
        for task_id in batch:
            task = by_id.get(task_id)
            if task is None or task.status in self._final:
                for future in self._waiting.get(task_id, []):
                    if not future.done():
                        future.set_result(task)
            elif task.watched:
                self._watched.add(task_id)
            else:
                locked.append(task_id)
        if locked:
            asyncio.get_running_loop().call_later(LOCKED_SECONDS, self._look_again, locked)

    def _refuse(self, ids: Iterable[UUID], error: BaseException) -> None:
        """Tell those who wait for these tasks that the database cannot be asked."""
        for task_id in ids:
            for future in self._waiting.get(task_id, []):
                if not future.done():
                    future.set_exception(error)

    async def close(self) -> None:
        self._refuse(
            self._waiting, psycopg.OperationalError("the broker was closed while the task was waited for")
        )
        await self._listener.close()
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)


def _patience(task_id: UUID, now: float) -> float:
    """Seconds to wait before the first look at a task, by the time that its id was made."""
    age = now - (task_id.int >> 80) / 1000 if task_id.version == 7 else FIRST_LOOK_SECONDS
    return min(FIRST_LOOK_SECONDS, max(0.0, FIRST_LOOK_SECONDS - age))
