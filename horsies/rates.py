"""How often a task may start in the whole cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

_PERIODS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_WRITTEN = re.compile(r"([1-9][0-9]{0,8})/([smh])")


@dataclass(frozen=True, slots=True)
class RateLimit:
    """One start every so many seconds; after a quiet time, so many at once: a tenth of a period's, at least one.

    >>> RateLimit.parse("100/m")
    RateLimit(seconds=0.6, burst=10)
    """

    seconds: float
    burst: int

    @classmethod
    def parse(cls, written: object) -> Self | None:
        """The rate that is written as starts per second, minute or hour; None when it is not."""
        found = _WRITTEN.fullmatch(written) if isinstance(written, str) else None
        if found is None:
            return None
        starts = int(found[1])
        return cls(_PERIODS[found[2]] / starts, max(1, starts // 10))
