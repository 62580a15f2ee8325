"""Turn counts by minute into charts. Pure functions: the current time is an argument."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from horsies.db.queries.statistics import BOUNDS, BUCKETS, Depth, TimeSlot

SLOT = timedelta(seconds=5)
# The time for which a stored depth is shown. Depths are stored once a minute, now and then a little later.
DEPTH_VALID = timedelta(minutes=3)


class Range(NamedTuple):
    """A time span of a chart and the length of its steps."""

    name: str
    label: str
    span: timedelta
    step: timedelta


RANGES = {
    each.name: each
    for each in (
        Range("5m", "5 min", timedelta(minutes=5), SLOT),
        Range("30m", "30 min", timedelta(minutes=30), timedelta(minutes=1)),
        Range("1h", "1 h", timedelta(hours=1), timedelta(minutes=1)),
        Range("6h", "6 h", timedelta(hours=6), timedelta(minutes=5)),
        Range("24h", "24 h", timedelta(hours=24), timedelta(minutes=15)),
    )
}


class Point(NamedTuple):
    """The values of one step of a chart. Times are in seconds, None if no task ended."""

    at: datetime
    completed: int
    failed: int
    other: int
    run_p50: float | None
    run_p95: float | None
    wait_p50: float | None
    wait_p95: float | None
    pending: int | None
    running: int | None


def points(
    which: Range,
    minutes: Sequence[TimeSlot],
    recent: Sequence[TimeSlot],
    depths: Sequence[Depth],
    now: datetime,
    counted_until: datetime | None = None,
) -> list[Point]:
    """Return a point for every step that is over. Times that no stored minute covers yet come from the recent slots."""
    if counted_until is None and minutes:
        counted_until = minutes[-1].at + timedelta(minutes=1)
    latest = [slot for slot in recent if counted_until is None or slot.at >= counted_until]
    slots = recent if which.step == SLOT else [*minutes, *latest]
    end = floor(now, which.step)
    starts = [end - which.step * back for back in range(which.span // which.step, 0, -1)]
    ended: dict[datetime, list[TimeSlot]] = {start: [] for start in starts}
    for slot in slots:
        if (start := floor(slot.at, which.step)) in ended:
            ended[start].append(slot)
    return [_point(start, ended[start], _depth_at(start + which.step, depths)) for start in starts]


def _depth_at(end: datetime, depths: Sequence[Depth]) -> Depth | None:
    """Return the last stored depth before a time, None if it is too old."""
    place = bisect_left(depths, end, key=lambda depth: depth.at)
    return depths[place - 1] if place and end - depths[place - 1].at <= DEPTH_VALID else None


def _point(at: datetime, slots: Sequence[TimeSlot], depth: Depth | None) -> Point:
    runs, waits = total(slot.runs for slot in slots), total(slot.waits for slot in slots)
    max_run = longest(slot.max_run_seconds for slot in slots)
    max_wait = longest(slot.max_wait_seconds for slot in slots)
    return Point(
        at,
        sum(slot.completed for slot in slots),
        sum(slot.failed for slot in slots),
        sum(slot.other for slot in slots),
        quantile(runs, 0.5, max_run),
        quantile(runs, 0.95, max_run),
        quantile(waits, 0.5, max_wait),
        quantile(waits, 0.95, max_wait),
        None if depth is None else depth.pending,
        None if depth is None else depth.running,
    )


def floor(at: datetime, step: timedelta) -> datetime:
    """Return the start of the step that a time lies in."""
    return at - timedelta(seconds=at.timestamp() % step.total_seconds())


def total(histograms: Iterable[Sequence[int] | None]) -> list[int]:
    """Return the sum of several histograms."""
    counted = [histogram for histogram in histograms if histogram]
    return [sum(counts) for counts in zip([0] * BUCKETS, *counted, strict=True)]


def longest(seconds: Iterable[float | None]) -> float | None:
    """Return the longest of several times, None if none is known."""
    return max((each for each in seconds if each is not None), default=None)


def quantile(histogram: Sequence[int], share: float, max_seconds: float | None = None) -> float | None:
    """Return a quantile of a histogram in seconds, interpolated between its bounds; None if the histogram is empty.

    The times of a bucket count as evenly spread, and the last one as the upper bound of the bucket. `max_seconds` is the
    longest time, and so the upper bound of the last bucket with a time. Without it, times above the last bound count as
    that bound.

    >>> quantile([0] * 7 + [10] + [0] * 8, 0.5)
    0.75
    >>> quantile([0] * 11 + [1] + [0] * 4, 0.5, 12.0)
    12.0
    """
    rank = math.ceil(sum(histogram) * share)
    if rank == 0:
        return None
    below, lower = 0, 0.0
    for count, bound in zip(histogram, (*BOUNDS, None), strict=True):
        if count and below + count >= rank:
            upper = _upper(bound, lower, max_seconds)
            return lower + (upper - lower) * (rank - below) / count
        below, lower = below + count, bound or lower
    return lower


def _upper(bound: float | None, lower: float, max_seconds: float | None) -> float:
    """Return the upper bound of a bucket. The last bucket has no bound of its own."""
    if max_seconds is None:
        return lower if bound is None else bound
    return max(lower, max_seconds if bound is None else min(bound, max_seconds))


class Series(NamedTuple):
    """A line of a plot, with one value for each step or None. A thin line has no area."""

    label: str
    style: str
    values: list[float | None]
    is_thin: bool = False


def plot(
    title: str, unit: str, starts: Sequence[datetime], lines: list[Series], target: str | None = None
) -> dict[str, Any]:
    """Draw lines over steps: as SVG paths in a box of 1000 by 100, with ticks and labels beside them.

    `target` is the address of the tasks behind a step, without the time.
    """
    top = nice(max((value or 0 for line in lines for value in line.values), default=0), unit)
    step = starts[1] - starts[0]
    since, until = starts[0].astimezone(UTC), (starts[-1] + step).astimezone(UTC)
    return {
        "title": title,
        "unit": unit,
        "lines": lines,
        "paths": [(line.style, line.is_thin, *_paths(line.values, top)) for line in lines],
        "top": top,
        "ticks": _ticks(since, until, step),
        "target": target,
        "data": {  # for the script that shows the values under the pointer
            "since": since.timestamp(),
            "step": step.total_seconds(),
            "unit": unit,
            "target": target,
            "lines": [[line.label, line.style, [_rounded(value) for value in line.values]] for line in lines],
        },
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


_TICKS = [timedelta(minutes=minutes) for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720)]


def _ticks(since: datetime, until: datetime, step: timedelta) -> list[tuple[float, str]]:
    """Return the places of three to six round times on the axis, as a percentage of its length, with their labels."""
    span = until - since - step
    every = next((tick for tick in _TICKS if span / tick <= 6), timedelta(days=1))
    found: list[tuple[float, str]] = []
    at = floor(since, every) + every
    while at <= until:
        found.append((round(100 * ((at - since) / span), 2), at.strftime("%H:%M")))
        at += every
    return [(place, label) for place, label in found if place <= 100]


def spark(values: Sequence[float | None], top: float = 0) -> tuple[str, str]:
    """Return the SVG paths of a small line without axes, in a box of 1000 by 100."""
    return (
        _paths(values, max(top, *(value or 0 for value in values), 1e-9) * 1.04)[:2] if values else ("", "")
    )


_ROUND_SECONDS = (60, 120, 240, 600, 1_200, 2_400, 3_600, 7_200, 14_400, 28_800, 43_200, 86_400)


def nice(top: float, unit: str = "") -> float:
    """Return a round number that is at least `top`: of tasks, or of seconds, minutes or hours if the unit is s.

    >>> nice(0.0), nice(3.1), nice(170), nice(70, "s")
    (1.0, 5.0, 200.0, 120.0)
    """
    if top <= 0:
        return 1.0
    if unit == "s" and top > 50:
        longer = next((float(seconds) for seconds in _ROUND_SECONDS if seconds >= top), None)
        return longer or math.ceil(top / 86_400) * 86_400.0
    size = 10.0 ** math.floor(math.log10(top))
    return next(size * factor for factor in (1, 2, 5, 10) if size * factor >= top * 0.999999)


def _paths(values: Sequence[float | None], top: float) -> tuple[str, str, str]:
    """Return the SVG paths of the line, of the area below it, and of the dots for values between two gaps.

    The line and the area have a gap where there is no value.
    """
    width = 1000 / max(1, len(values) - 1)
    line, area, dots = "", "", ""
    start = None
    for step, value in enumerate((*values, None)):
        if value is not None:
            x, y = f"{step * width:.1f}", f"{100 - value / top * 100:.1f}"
            line += f"{'M' if start is None else 'L'}{x} {y}"
            area += f"{f'M{x} 100' if start is None else ''}L{x} {y}"
            start = step if start is None else start
        elif start is not None:
            if start == step - 1:
                line += "h0.1"
                dots += line[line.rindex("M") :]
            area += f"L{(step - 1) * width:.1f} 100Z"
            start = None
    return line, area, dots
