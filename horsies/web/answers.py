"""Ask the database once for everybody who wants to know the same.

However many dashboards are open, the database is asked so many times a second and no more: an answer is kept for a moment,
longer when many different ones are wanted, and whoever asks meanwhile shares it or waits for the one on its way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

T = TypeVar("T")

QUERIES_PER_SECOND = 15
# What nobody has asked for so long, nobody wants to follow.
WANTED_SECONDS = 10
MOST_KEPT = 500


@dataclass(slots=True)
class _Kept:
    value: Any
    at: float
    queries: int
    wanted_at: float


class Answers:
    """Answers by what was asked."""

    def __init__(
        self, per_second: int = QUERIES_PER_SECOND, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_second = per_second
        self._clock = clock
        self._kept: dict[Hashable, _Kept] = {}
        self._asking: dict[Hashable, asyncio.Task[Any]] = {}
        self._changes = 0

    async def get(
        self, key: Hashable, seconds: float, ask: Callable[[], Awaitable[T]], queries: int = 1
    ) -> T:
        """The answer to a question that takes so many queries, so many seconds old unless too much is being asked."""
        kept, now = self._kept.get(key), self._clock()
        if kept is not None:
            kept.wanted_at = now
            if now < kept.at + max(seconds, self._round()):
                return cast(T, kept.value)
        if key not in self._asking:
            asking = asyncio.ensure_future(self._ask(key, queries, ask, self._changes))
            asking.add_done_callback(lambda asked: self._asked(key, asked))
            self._asking[key] = asking
        return cast(T, await asyncio.shield(self._asking[key]))

    def _round(self) -> float:
        """How long it takes to ask for everything that is wanted just now, at the pace that is allowed."""
        since = self._clock() - WANTED_SECONDS
        return sum(kept.queries for kept in self._kept.values() if kept.wanted_at > since) / self._per_second

    async def _ask(self, key: Hashable, queries: int, ask: Callable[[], Awaitable[T]], changes: int) -> T:
        value = await ask()
        if changes == self._changes:
            now = self._clock()
            self._kept.pop(key, None)
            self._kept[key] = _Kept(value, now, queries, now)
        while len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return value

    def _asked(self, key: Hashable, asked: asyncio.Task[Any]) -> None:
        """The failure of a question that nobody waits for any more is nobody's concern."""
        if self._asking.get(key) is asked:
            del self._asking[key]
        if not asked.cancelled():
            asked.exception()

    def forget(self) -> None:
        """Something was changed: everything is to be asked anew, also what is being asked just now."""
        self._changes += 1
        self._kept.clear()
        self._asking.clear()
