"""Ask the database once for everybody who wants to know the same.

However many dashboards are open, the database is asked so many times a second and no more: an answer is kept for a moment,
whoever asks meanwhile shares it or waits for the one on its way, and when enough was asked an older answer will do.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, NamedTuple, TypeVar, cast

T = TypeVar("T")

PER_SECOND = 12
MOST_KEPT = 500


class _Kept(NamedTuple):
    value: Any
    until: float


class Answers:
    """Answers by what was asked."""

    def __init__(self, per_second: int = PER_SECOND, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._clock = clock
        self._kept: dict[Hashable, _Kept] = {}
        self._asking: dict[Hashable, asyncio.Task[Any]] = {}
        self._left, self._refilled = float(per_second), clock()
        self._changes = 0

    async def get(self, key: Hashable, seconds: float, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer to a question, at most so many seconds old unless too much is being asked."""
        kept = self._kept.get(key)
        if kept is not None and (self._clock() < kept.until or not self._may_ask()):
            return cast(T, kept.value)
        if key not in self._asking:
            if kept is None:
                self._may_ask()
            self._asking[key] = asyncio.ensure_future(self._ask(key, seconds, ask))
            self._asking[key].add_done_callback(lambda asked: self._asked(key, asked))
        return cast(T, await asyncio.shield(self._asking[key]))

    async def _ask(self, key: Hashable, seconds: float, ask: Callable[[], Awaitable[T]]) -> T:
        changes = self._changes
        value = await ask()
        if changes != self._changes:
            return value
        self._kept.pop(key, None)
        self._kept[key] = _Kept(value, self._clock() + seconds)
        while len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return value

    def _asked(self, key: Hashable, asked: asyncio.Task[Any]) -> None:
        """The failure of a question that nobody waits for any more is nobody's concern."""
        if self._asking.get(key) is asked:
            del self._asking[key]
        if not asked.cancelled():
            asked.exception()

    def _may_ask(self) -> bool:
        now = self._clock()
        self._left = min(self._per_second, self._left + (now - self._refilled) * self._per_second)
        self._refilled = now
        self._left -= 1
        if self._left < 0:
            self._left = max(self._left, -self._per_second)
            return False
        return True

    def forget(self) -> None:
        """Something was changed: everything is to be asked anew, also what is being asked just now."""
        self._changes += 1
        self._kept.clear()
        self._asking.clear()
