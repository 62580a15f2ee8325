"""Parse durations and rate limits, and compare times that may be infinite."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Self, TypeAlias

from horsies.frozen import dataclass

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_DURATION = re.compile(r"([0-9]+)([smhd])")
_RATE = re.compile(r"([1-9][0-9]{0,8})/([smh])")
# A century: a time so far in the past or future still fits a datetime.
LONGEST_SECONDS = 36_525 * 86_400

# Stand for times that a datetime cannot hold: PostgreSQL has `infinity`, years BC and years after 9999.
EARLIEST, LATEST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


Duration: TypeAlias = float | timedelta
"""A number of seconds, or a `timedelta`."""


def in_seconds(duration: Duration) -> float:
    """Return a duration in seconds; a number is in seconds already.

    >>> in_seconds(timedelta(minutes=2)), in_seconds(1.5)
    (120.0, 1.5)
    """
    return duration.total_seconds() if isinstance(duration, timedelta) else duration


def in_milliseconds(duration: int | timedelta) -> int:
    """Return a duration in whole milliseconds; a number is in milliseconds already.

    >>> in_milliseconds(timedelta(seconds=2)), in_milliseconds(250)
    (2000, 250)
    """
    return round(duration / timedelta(milliseconds=1)) if isinstance(duration, timedelta) else duration


def timeout_in_seconds(timeout: Duration | None) -> float | None:
    """Return a time to wait in seconds; None, which waits without limit, for None and over a century.

    Raise ValueError for anything but a number of seconds, a timedelta and None.

    >>> timeout_in_seconds(timedelta(minutes=1)), timeout_in_seconds(0.5), timeout_in_seconds(None)
    (60.0, 0.5, None)
    """
    if timeout is None:
        return None
    if not is_duration(timeout):
        raise ValueError(f"timeout is {timeout!r}; use seconds, a timedelta, or None to wait without limit")
    seconds = in_seconds(timeout)
    return None if seconds > LONGEST_SECONDS else seconds


def is_duration(value: object) -> bool:
    """Return True for a timedelta and for a number that is not NaN (a bool is no number).

    >>> is_duration(1.5), is_duration("1.5")
    (True, False)
    """
    if isinstance(value, timedelta):
        return True
    if isinstance(value, float):
        return not math.isnan(value)
    return isinstance(value, int) and not isinstance(value, bool)


def seconds_of(text: str) -> int:
    """Return the seconds of a duration such as `30s`, `15m`, `12h` or `7d`, a century at most; ValueError for anything else.

    >>> seconds_of("15m")
    900
    """
    match = _DURATION.fullmatch(text)
    quoted = repr(text if len(text) <= 40 else text[:39] + "…")
    if match is None:
        raise ValueError(f"{quoted} is no duration: write 30s, 15m, 12h or 7d")
    seconds = int(match[1]) * _UNITS[match[2]] if len(match[1]) <= len(str(LONGEST_SECONDS)) else math.inf
    if seconds > LONGEST_SECONDS:
        raise ValueError(f"{quoted} is longer than a century: write 30s, 15m, 12h or 7d")
    return int(seconds)


def unbounded(moment: datetime) -> str | None:
    """Return `infinity` or `-infinity` for a time that Python could not hold, None for any other.

    >>> unbounded(LATEST), unbounded(datetime(2026, 7, 1, tzinfo=UTC))
    ('infinity', None)
    """
    if moment == LATEST:
        return "infinity"
    return "-infinity" if moment == EARLIEST else None


def seconds_between(began: datetime, ended: datetime) -> float:
    """Return the seconds from one time to another; infinite when one of the two is, unknown (NaN) when both are.

    >>> seconds_between(EARLIEST, datetime(2026, 7, 1, tzinfo=UTC))
    inf
    """
    if unbounded(began) is None and unbounded(ended) is None:
        return (ended - began).total_seconds()
    infinities = {LATEST: math.inf, EARLIEST: -math.inf}
    return infinities.get(ended, 0.0) - infinities.get(began, 0.0)


def in_zone(moment: datetime, zone: tzinfo | None = None) -> datetime:
    """Return the time in a zone, the local one by default; unchanged if it would be out of range there.

    >>> in_zone(LATEST, UTC) == LATEST
    True
    """
    try:
        return moment.astimezone(zone)
    except (OverflowError, ValueError, OSError):
        return moment


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A rate limit: one start every `seconds`; after a pause, up to `burst` at once, a tenth of a period's starts.

    >>> RateLimit.parse("100/m")
    RateLimit(seconds=0.6, burst=10)
    """

    seconds: float
    burst: int

    @classmethod
    def parse(cls, written: object) -> Self | None:
        """Parse starts per second, minute or hour, such as "10/s"; return None for anything else."""
        found = _RATE.fullmatch(written) if isinstance(written, str) else None
        if found is None:
            return None
        starts = int(found[1])
        return cls(_UNITS[found[2]] / starts, max(1, starts // 10))
