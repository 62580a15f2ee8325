"""Tell every open page that there is news, over server-sent events.

One look a second at how far the database has written serves all viewers, and none is made while nobody watches.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable

import psycopg

from horsies.errors import HorsiesError
from horsies.storage.database import TRANSIENT

LOOK_SECONDS = 1.0
KEEP_ALIVE_SECONDS = 15.0
# A stream ends after so long, and the browser opens the next one: a server that stops waits for those that are open.
STREAM_SECONDS = 30.0
MOST_VIEWERS = 500

CHANGED, TROUBLE, END = "changed", "trouble", "end"


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

    def hang_up(self) -> None:
        """The server stops: whoever follows is let go."""
        for viewer in self._viewers:
            viewer.put_nowait(END)

    async def follow(self) -> AsyncGenerator[str]:
        """The events for one viewer, as they go over the wire, until it leaves."""
        news: asyncio.Queue[str] = asyncio.Queue()
        news.put_nowait(CHANGED)  # between the page and this stream something may have happened
        self._viewers.add(news)
        if self._looking is None:
            self._looking = asyncio.create_task(self._look(), name="horsies-web-hub")
        ends_at = time.monotonic() + STREAM_SECONDS
        try:
            yield "retry: 1000\n\n"
            while time.monotonic() < ends_at:
                try:
                    async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                        told = await news.get()
                except TimeoutError:
                    yield ": still here\n\n"
                    continue
                if told == END:
                    return
                yield f"event: {told}\ndata: {{}}\n\n"
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
