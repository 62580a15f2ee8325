"""Tell every open page that there is news, over server-sent events.

One look a second at how far the database has written serves all viewers, and none is made while nobody watches.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

import psycopg

from horsies.errors import HorsiesError
from horsies.storage.database import TRANSIENT

LOOK_SECONDS = 1.0
KEEP_ALIVE_SECONDS = 15.0
MOST_VIEWERS = 500

CHANGED, TROUBLE = "changed", "trouble"


class Hub:
    """Passes on that something has changed, or that the database does not answer."""

    def __init__(self, pulse: Callable[[], Awaitable[str]]) -> None:
        self._pulse = pulse
        self._viewers: set[asyncio.Queue[str]] = set()
        self._looking: asyncio.Task[None] | None = None

    @property
    def is_full(self) -> bool:
        return len(self._viewers) >= MOST_VIEWERS

    def tell(self, news: str) -> None:
        """Who has not read the last news yet needs no more."""
        for viewer in self._viewers:
            if viewer.empty():
                viewer.put_nowait(news)

    async def follow(self) -> AsyncGenerator[str]:
        """The events for one viewer, as they go over the wire, until it leaves."""
        news: asyncio.Queue[str] = asyncio.Queue()
        self._viewers.add(news)
        if self._looking is None:
            self._looking = asyncio.create_task(self._look(), name="horsies-web-hub")
        try:
            yield "retry: 2000\n\n"
            while True:
                try:
                    async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                        yield f"event: {await news.get()}\ndata: {{}}\n\n"
                except TimeoutError:
                    yield ": still here\n\n"
        finally:
            self._viewers.discard(news)
            self._rest()

    def _rest(self) -> None:
        if not self._viewers and self._looking is not None:
            self._looking.cancel()
            self._looking = None

    async def _look(self) -> None:
        last = None
        while True:
            try:
                seen = await self._pulse()
            except (psycopg.Error, HorsiesError, *TRANSIENT):
                seen = None
                self.tell(TROUBLE)
            if seen is not None and seen != last:
                self.tell(CHANGED)
            last = seen
            await asyncio.sleep(LOOK_SECONDS)
