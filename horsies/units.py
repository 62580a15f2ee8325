"""Format durations, times, numbers and sizes for people.

The CLI, `horsies top`, the dashboard, the log and the sentences of `horsies why` all format with this module. The script
`web/static/units.js` formats in the same way what changes in an open page.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, tzinfo

from horsies.durations import in_zone, seconds_between, unbounded

NOTHING = "–"
MINUTE, HOUR, DAY = 60, 3_600, 86_400


def _rounded(value: float) -> int:
    # Half up, as Math.round does: Python's own round would make 2.5 s of a page 2 s here and 3 s in the browser.
    return math.floor(value + 0.5)


def _two_digits(value: float) -> str:
    """Return a number below 10 with one decimal if that is not 0, others without."""
    tenths = _rounded(value * 10)
    return f"{tenths / 10:g}" if tenths < 100 else f"{_rounded(value):,}"


def span(seconds: float) -> str:
    """Return a duration in the units of its magnitude.

    >>> span(0.0086), span(1.3), span(124), span(7_500), span(90_000), span(math.inf)
    ('8.6 ms', '1.3 s', '2 min 4 s', '2 h 5 min', '1 d 1 h', 'infinity')
    """
    if math.isnan(seconds):
        return "unknown"
    if seconds < 0:
        return f"-{span(-seconds)}"
    if math.isinf(seconds):
        return "infinity"
    if seconds == 0:
        return "0 s"
    if _rounded(seconds * 1_000) < 1_000:
        return f"{_two_digits(seconds * 1_000)} ms"
    if _rounded(seconds) < MINUTE:
        return f"{_two_digits(seconds)} s"
    return next(
        _two_units(rounded, *units)
        for units in _LONG_UNITS
        if (rounded := _rounded(seconds / units[2]) * units[2]) < units[4]
    )


# A unit with its seconds, the next smaller one with its own, and the duration from which on a larger unit is used.
_LONG_UNITS = (
    (MINUTE, "min", 1, "s", HOUR),
    (HOUR, "h", MINUTE, "min", DAY),
    (DAY, "d", HOUR, "h", math.inf),
)


def _two_units(seconds: int, size: int, unit: str, part_size: int, part_unit: str, _end: float) -> str:
    whole, rest = divmod(seconds, size)
    part = rest // part_size
    return f"{whole:,} {unit} {part} {part_unit}" if part and whole < 100 else f"{whole:,} {unit}"


def rough(seconds: float) -> str:
    """Return a duration in one unit, rounded down: for times that go by while one reads.

    >>> rough(12.8), rough(124), rough(7_500), rough(200_000)
    ('12 s', '2 min', '2 h', '2 d')
    """
    if not math.isfinite(seconds) or seconds < 0:
        return span(seconds)
    for size, unit, least in ((DAY, "d", 2 * DAY), (HOUR, "h", HOUR), (MINUTE, "min", MINUTE)):
        if seconds >= least:
            return f"{seconds // size:,.0f} {unit}"
    return f"{seconds // 1:.0f} s"


def ago(at: datetime | None, now: datetime | None = None) -> str:
    """Return a time relative to now: "5 min ago", "in 5 min", or "now" within a second of it."""
    if at is None:
        return NOTHING
    if (infinite := unbounded(at)) is not None:
        return infinite
    seconds = seconds_between(at, now or datetime.now(UTC))
    if abs(seconds) < 1:
        return "now"
    return f"{rough(seconds)} ago" if seconds > 0 else f"in {rough(-seconds)}"


def age(at: datetime, now: datetime | None = None) -> str:
    """Return how long ago a time was, in one unit; nothing below zero for a time to come.

    >>> age(datetime(2026, 7, 1, tzinfo=UTC), datetime(2026, 7, 1, 0, 12, tzinfo=UTC))
    '12 min'
    """
    return rough(max(0.0, seconds_between(at, now or datetime.now(UTC))))


def took(began: datetime | None, ended: datetime | None) -> str:
    """Return the duration between two times; a dash if one of them is not known."""
    return NOTHING if began is None or ended is None else span(max(0.0, seconds_between(began, ended)))


def moment(at: datetime | None) -> str:
    """Return a time in UTC, to the second and without its zone, which a page names once.

    >>> moment(datetime(2026, 7, 1, 12, 0, 3, 250_000, tzinfo=UTC))
    '2026-07-01 12:00:03'
    """
    return exactly(at)[:19] if at is not None and unbounded(at) is None else exactly(at)


def exactly(at: datetime | None) -> str:
    """Return a time in UTC, to the millisecond and with its zone.

    >>> exactly(datetime(2026, 7, 1, 12, 0, 3, 250_000, tzinfo=UTC))
    '2026-07-01 12:00:03.250 UTC'
    """
    if at is None:
        return NOTHING
    return unbounded(at) or in_zone(at, UTC).isoformat(sep=" ", timespec="milliseconds")[:23] + " UTC"


def clock(at: datetime) -> str:
    """Return the time of day in UTC."""
    return unbounded(at) or in_zone(at, UTC).strftime("%H:%M:%S")


def time_text(at: datetime | None, zone: tzinfo | None = None) -> str:
    """Return a time in a zone, the local one by default, to the millisecond and with its offset; nothing for None.

    All commands print times with this function.
    """
    if at is None:
        return ""
    return unbounded(at) or in_zone(at, zone).isoformat(sep=" ", timespec="milliseconds")


def number(value: float | None) -> str:
    """Return a number with thousands separators, and two digits of a small one.

    >>> number(1234567), number(0.25), number(None)
    ('1,234,567', '0.25', '–')
    """
    if value is None or math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return span(value)
    if value == int(value):
        return f"{int(value):,}"
    if abs(value) >= 10:
        return f"{value:,.1f}"
    return f"{value:.2g}"


def whole(value: float) -> str:
    """Return a number without decimals.

    >>> whole(1234.5), whole(float("nan"))
    ('1,235', '–')
    """
    return number(_rounded(value) if math.isfinite(value) else value)


def short(value: float) -> str:
    """Return a number in the fewest characters, for an axis or a small table.

    >>> short(250), short(10_000), short(2_500_000)
    ('250', '10k', '2.5M')
    """
    for size, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if value >= size:
            return f"{_rounded(value / size * 10) / 10:g}{unit}"
    return number(value)


def megabytes(value: float | None) -> str:
    """Return a size that is given in megabytes.

    >>> megabytes(312.4), megabytes(2_300), megabytes(0.05), megabytes(None)
    ('312 MB', '2.2 GB', '51 kB', '–')
    """
    if value is None or math.isnan(value):
        return NOTHING
    if math.isfinite(value) and value >= 1_024:
        return f"{_two_digits(value / 1_024)} GB"
    return f"{whole(value * 1_024)} kB" if 0 < value < 0.9995 else f"{whole(value)} MB"


def percentage(value: float | None) -> str:
    """Return a number of percent, without decimals.

    >>> percentage(99.4), percentage(None)
    ('99 %', '–')
    """
    return NOTHING if value is None or math.isnan(value) else f"{whole(value)} %"


def per_second(value: float | None) -> str:
    """Return a rate in the unit of its magnitude: by the second, the minute or the hour.

    >>> per_second(12.5), per_second(0.1), per_second(0.001), per_second(0)
    ('12.5/s', '6/min', '3.6/h', '0/s')
    """
    if value is None or math.isnan(value):
        return NOTHING
    if value <= 0 or value >= 1 or math.isinf(value):
        return f"{number(value)}/s"
    return f"{_two_digits(value * MINUTE)}/min" if value * MINUTE >= 1 else f"{_two_digits(value * HOUR)}/h"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural unless it is one.

    >>> counted(1, "task"), counted(1_200, "task"), counted(2, "retry")
    ('1 task', '1,200 tasks', '2 retries')
    """
    if count == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2] not in "aeiou" else f"{noun}s"
    return f"{count:,} {plural}"
