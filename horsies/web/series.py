"""From counts by minute to lines that can be drawn. Pure: the moment is an argument."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from horsies.storage.sights import Depth, Slot

# As horsies_time_bounds() has them, in seconds.
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
SLOT = timedelta(seconds=5)
# So long a sounding stands for the depth of a queue: they are made once a minute, now and then a little later.
SOUNDING = timedelta(minutes=3)


class Range(NamedTuple):
    """How far back to look, in how large steps."""

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
    """What happened in one step. Times are in seconds, None when nothing ended."""

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

    def per_second(self, step: timedelta) -> float:
        return (self.completed + self.failed + self.other) / step.total_seconds()


def points(
    which: Range, minutes: Sequence[Slot], recent: Sequence[Slot], depths: Sequence[Depth], now: datetime
) -> list[Point]:
    """A point for every step that is over; what no minute has been counted of comes from the latest slots."""
    counted_until = minutes[-1].at + timedelta(minutes=1) if minutes else None
    latest = [slot for slot in recent if counted_until is None or slot.at >= counted_until]
    slots = recent if which.step == SLOT else [*minutes, *latest]
    end = _floor(now, which.step)
    starts = [end - which.step * back for back in range(which.span // which.step, 0, -1)]
    ended: dict[datetime, list[Slot]] = {start: [] for start in starts}
    for slot in slots:
        if (start := _floor(slot.at, which.step)) in ended:
            ended[start].append(slot)
    return [_point(start, ended[start], _depth_at(start + which.step, depths)) for start in starts]


def _depth_at(end: datetime, depths: Sequence[Depth]) -> Depth | None:
    """The last sounding before a moment, unless it is too old to tell."""
    place = bisect_left(depths, end, key=lambda depth: depth.at)
    return depths[place - 1] if place and end - depths[place - 1].at <= SOUNDING else None


def _point(at: datetime, slots: Sequence[Slot], depth: Depth | None) -> Point:
    runs, waits = total(slot.runs for slot in slots), total(slot.waits for slot in slots)
    return Point(
        at,
        sum(slot.completed for slot in slots),
        sum(slot.failed for slot in slots),
        sum(slot.other for slot in slots),
        quantile(runs, 0.5),
        quantile(runs, 0.95),
        quantile(waits, 0.5),
        quantile(waits, 0.95),
        None if depth is None else depth.pending,
        None if depth is None else depth.running,
    )


def _floor(at: datetime, step: timedelta) -> datetime:
    return at - timedelta(seconds=at.timestamp() % step.total_seconds())


def total(histograms: Iterable[Sequence[int] | None]) -> list[int]:
    """Several histograms as one."""
    summed = [0] * (len(BOUNDS) + 1)
    for histogram in histograms:
        summed = [a + b for a, b in zip(summed, histogram or summed, strict=True)] if histogram else summed
    return summed


def quantile(histogram: Sequence[int], share: float) -> float | None:
    """The time below which a share of the tasks was, as near as the bounds tell; None when there were none.

    >>> quantile([0] * 7 + [10] + [0] * 8, 0.5)
    0.75
    """
    rank = sum(histogram) * share
    if rank == 0:
        return None
    below, lower = 0.0, 0.0
    for count, upper in zip(histogram, (*BOUNDS, BOUNDS[-1]), strict=True):
        if count and below + count >= rank:
            return lower + (upper - lower) * (rank - below) / count
        below, lower = below + count, upper
    return BOUNDS[-1]


class Line(NamedTuple):
    """A line of a plot: its values, one for each step, None where there is none."""

    label: str
    style: str
    values: list[float | None]


class Plot(NamedTuple):
    """What a page draws: paths in a box of 1000 by 100, and what stands beside them."""

    title: str
    unit: str
    lines: list[Line]
    paths: list[tuple[str, str, str]]  # style, line, area below it
    top: float
    since: datetime
    until: datetime
    dates: str
    data: dict[str, Any]


def plot(title: str, unit: str, points: Sequence[Point], lines: list[Line]) -> Plot:
    top = nice(max((value or 0 for line in lines for value in line.values), default=0))
    step = points[1].at - points[0].at
    drawn = [(line.style, *_paths(line.values, top)) for line in lines]
    data = {
        "since": points[0].at.timestamp(),
        "step": step.total_seconds(),
        "unit": unit,
        "lines": [{"label": line.label, "style": line.style, "values": line.values} for line in lines],
    }
    since, until = points[0].at.astimezone(UTC), (points[-1].at + step).astimezone(UTC)
    dates = (
        "%H:%M:%S"
        if step < timedelta(minutes=1)
        else "%H:%M"
        if until - since < timedelta(hours=12)
        else "%d %b %H:%M"
    )
    return Plot(title, unit, lines, drawn, top, since, until, dates, data)


def nice(top: float) -> float:
    """A round number that is not below.

    >>> nice(0.0), nice(3.1), nice(170)
    (1.0, 5.0, 200.0)
    """
    if top <= 0:
        return 1.0
    size = 1.0
    while size > top:
        size /= 10
    while size * 10 <= top:
        size *= 10
    return next(size * factor for factor in (1, 2, 5, 10) if size * factor >= top * 0.999999)


def _paths(values: Sequence[float | None], top: float) -> tuple[str, str]:
    """The line, and the area below it; where there is no value, both are interrupted."""
    width = 1000 / max(1, len(values) - 1)
    line, area = "", ""
    began = None
    for place, value in enumerate((*values, None)):
        if value is not None:
            x, y = f"{place * width:.1f}", f"{100 - value / top * 100:.1f}"
            line += f"{'M' if began is None else 'L'}{x} {y}"
            area += f"{f'M{x} 100' if began is None else ''}L{x} {y}"
            began = place if began is None else began
        elif began is not None:
            line += "h0.1" if began == place - 1 else ""
            area += f"L{(place - 1) * width:.1f} 100Z"
            began = None
    return line, area
