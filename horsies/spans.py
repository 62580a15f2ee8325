"""Durations as people write and read them."""

from __future__ import annotations

import re

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_WRITTEN = re.compile(r"(\d+)([smhd])")


def seconds_of(text: str) -> int:
    """The seconds of a duration such as `30s`, `15m`, `12h` or `7d`; ValueError for anything else.

    >>> seconds_of("15m")
    900
    """
    match = _WRITTEN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no duration: write 30s, 15m, 12h or 7d")
    return int(match[1]) * _UNITS[match[2]]


def span(seconds: float) -> str:
    """A duration as a person says it.

    >>> span(0.25), span(75), span(90_000)
    ('0.25 s', '1 min', '25 h')
    """
    if seconds < 0:
        return f"-{span(-seconds)}"
    for size, unit, least in ((86_400, "d", 2), (3_600, "h", 2), (60, "min", 1)):
        if seconds >= least * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"
