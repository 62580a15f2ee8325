"""Counts over a time span as the charts show them: in total, in steps, by queue or task, and of the span before.

All numbers of a `History` come from one snapshot of the database and cover the same whole steps, so that every total is the sum
of its parts. Pure functions: the current time is an argument.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Literal, NamedTuple

from horsies.db.queries.statistics import (
    Depth,
    Part,
    QueueDepth,
    Scope,
    TaskCounts,
    TimeSlot,
)
from horsies.web.charts import SLOT, Point, Range, floor, longest, points, quantile, total

# The number of queues or tasks that have a line of their own, and of rows in the table of the busiest tasks.
MOST_LINES, MOST_ROWS = 5, 12
MINUTE = timedelta(minutes=1)
# The share of the span before that must have been counted to be compared with.
COVERED = 0.95
# Stands for the queues and tasks that have no row of their own.
OTHERS = ("", "")


class Stored(NamedTuple):
    """Stored figures of two time spans, the one to show and the one before it.

    `counted_at` are the steps in which a worker has counted.
    """

    counted_until: datetime | None
    counted_at: list[datetime]
    steps: list[TimeSlot]
    parts: list[Part]
    pairs: list[TaskCounts]
    depths: list[QueueDepth]


class History(NamedTuple):
    """The counts of a time span. `before` are the points of the span before it, `labels` the queues or tasks of `parts`."""

    range: Range
    scope: Scope
    by: str | None
    points: list[Point]
    before: list[Point]
    pairs: list[TaskCounts]
    parts: dict[str | None, list[Part]]
    depths: dict[str, list[int | None]]
    waits: list[int]
    runs: list[int]
    max_wait_seconds: float | None
    max_run_seconds: float | None

    @property
    def since(self) -> datetime:
        return self.points[0].at

    @property
    def until(self) -> datetime:
        return self.points[-1].at + self.range.step

    @property
    def completed(self) -> int:
        return sum(point.completed for point in self.points)

    @property
    def failed(self) -> int:
        return sum(point.failed for point in self.points)

    @property
    def completed_before(self) -> int:
        return sum(point.completed for point in self.before)

    @property
    def failed_before(self) -> int:
        return sum(point.failed for point in self.before)

    def quantiles(self, name: Literal["waits", "runs"]) -> list[float | None]:
        """Return the median of the wait or run times in seconds, and the values below which 95 % and 99 % lie."""
        counts, max_seconds = (
            (self.waits, self.max_wait_seconds) if name == "waits" else (self.runs, self.max_run_seconds)
        )
        return [quantile(counts, share, max_seconds) for share in (0.5, 0.95, 0.99)]


def stored_step(which: Range) -> timedelta:
    """Return the length of the steps in which stored counts are read: a minute at least."""
    return max(which.step, MINUTE)


def span_of(which: Range, now: datetime) -> tuple[datetime, datetime]:
    """Return the start and the end of a range: whole steps that are over."""
    end = floor(now, which.step)
    return end - which.span, end


def history(
    which: Range, scope: Scope, by: str | None, stored: Stored, recent: Sequence[TimeSlot], now: datetime
) -> History:
    """Put stored counts and the slots of the last minutes together."""
    since, until = span_of(which, now)
    seen = [slot for slot in recent if scope.covers(slot)]
    counted = stored.counted_until
    fresh = [slot for slot in seen if since <= slot.at < until]
    if which.step != SLOT and counted is not None:
        fresh = [slot for slot in fresh if slot.at >= counted]
    kept = [] if which.step == SLOT else [slot for slot in stored.steps if slot.at >= since]
    slots = [*kept, *fresh]
    drawn = _with_empty(which, points(which, kept, fresh, _total_depths(stored.depths), now, counted), stored)
    return History(
        range=which,
        scope=scope,
        by=by,
        points=drawn,
        before=_before(which, stored, since),
        pairs=_pairs([] if which.step == SLOT else stored.pairs, fresh),
        parts={} if by is None else _parts(which, by, stored.parts, fresh, since),
        depths=_depths(which, stored.depths, drawn) if by == "queue" else {},
        waits=total(slot.waits for slot in slots),
        runs=total(slot.runs for slot in slots),
        max_wait_seconds=longest(slot.max_wait_seconds for slot in slots),
        max_run_seconds=longest(slot.max_run_seconds for slot in slots),
    )


def _with_empty(which: Range, drawn: Sequence[Point], stored: Stored) -> list[Point]:
    """Set the depth to 0 where minutes were counted and no queue had a task: empty queues are not stored."""
    step = stored_step(which)
    counted = {floor(at, step) for at in stored.counted_at}
    return [
        point._replace(pending=0, running=0)
        if point.pending is None and floor(point.at, step) in counted
        else point
        for point in drawn
    ]


def _before(which: Range, stored: Stored, since: datetime) -> list[Point]:
    """Return the points of the span before, in the steps in which they are stored; none if they do not cover the span."""
    step = stored_step(which)
    by_start = {floor(slot.at, step): slot for slot in stored.steps}
    counted = {floor(at, step) for at in stored.counted_at if at < since}
    if len(counted) < COVERED * (which.span // step):
        return []
    found: list[Point] = []
    for number in range(which.span // step):
        slot = by_start.get(floor(since - which.span + step * number, step))
        done, failed, other = (0, 0, 0) if slot is None else (slot.completed, slot.failed, slot.other)
        found.append(
            Point(since - which.span + step * number, done, failed, other, None, None, None, None, None, None)
        )
    return found


def _pairs(stored: Sequence[TaskCounts], fresh: Sequence[TimeSlot]) -> list[TaskCounts]:
    """Add slots to the counts of queues and tasks; those of pairs without a row go to the row of all others."""
    known = {(each.queue_name, each.task_name): list(each[2:6]) for each in stored}
    named = _most_frequent(fresh, lambda slot: (slot.queue_name, slot.task_name), known, MOST_ROWS)
    for slot in fresh:
        pair = (slot.queue_name, slot.task_name)
        _add(known.setdefault(pair if pair in named else OTHERS, [0, 0, 0, 0]), slot)
    rows = [TaskCounts(*pair, *counts) for pair, counts in known.items() if any(counts[:3])]
    return sorted(rows, key=lambda row: (row[:2] == OTHERS, -(row.completed + row.failed), row.task_name))


def _parts(
    which: Range, by: str, stored: Sequence[Part], fresh: Sequence[TimeSlot], since: datetime
) -> dict[str | None, list[Part]]:
    """Return the counts of each step by queue or task, the most frequent first."""

    def label_of(slot: TimeSlot) -> str:
        return slot.queue_name if by == "queue" else slot.task_name

    counts: dict[tuple[str | None, datetime], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    kept: Sequence[Part] = [] if which.step == SLOT else stored
    known: dict[str | None, list[int]] = {part.label: [1] for part in kept}
    for part in kept:
        _add(counts[part.label, floor(part.at, which.step)], part)
    named = _most_frequent(fresh, label_of, known, MOST_LINES)
    for slot in fresh:
        label: str | None = label_of(slot)
        _add(counts[label if label in named else None, floor(slot.at, which.step)], slot)
    starts = [since + which.step * number for number in range(which.span // which.step)]
    labels = {label for label, _ in counts}
    lines = {
        label: [Part(at, label, *counts.get((label, at), (0, 0, 0, 0))) for at in starts] for label in labels
    }
    return dict(
        sorted(
            lines.items(),
            key=lambda line: (line[0] is None, -sum(part.completed + part.failed for part in line[1])),
        )
    )


def _most_frequent(
    slots: Iterable[TimeSlot],
    label_of: Callable[[TimeSlot], Hashable],
    known: Iterable[Hashable],
    most: int,
) -> set[Hashable]:
    """Return the labels that have a line: the known ones, and as many of the slots' most frequent ones as there is room for."""
    named: set[Hashable] = {label for label in known if label not in (None, OTHERS)}
    sums: dict[Hashable, int] = defaultdict(int)
    for slot in slots:
        sums[label_of(slot)] += slot.completed + slot.failed
    for label in sorted(sums, key=lambda each: (-sums[each], str(each))):
        if len(named) < most:
            named.add(label)
    return named


def _add(counts: list[int], more: Part | TimeSlot) -> None:
    for place, value in enumerate((more.completed, more.failed, more.other, more.run_ms)):
        counts[place] += value


def _total_depths(depths: Sequence[QueueDepth]) -> list[Depth]:
    """Return the depth of all queues together at each time."""
    sums: dict[datetime, list[int]] = defaultdict(lambda: [0, 0])
    for depth in depths:
        sums[depth.at][0] += depth.pending
        sums[depth.at][1] += depth.running
    return [Depth(at, *sums[at]) for at in sorted(sums)]


def _depths(
    which: Range, depths: Sequence[QueueDepth], drawn: Sequence[Point]
) -> dict[str, list[int | None]]:
    """Return the number of waiting tasks of the deepest queues at each step."""
    step = stored_step(which)
    by_queue: dict[str, dict[datetime, int]] = defaultdict(dict)
    for depth in depths:
        by_queue[depth.queue_name][floor(depth.at, step)] = depth.pending
    deepest = sorted(by_queue, key=lambda name: (-sum(by_queue[name].values()), name))[:MOST_LINES]
    return {
        name: [
            None if point.pending is None else by_queue[name].get(floor(point.at, step), 0) for point in drawn
        ]
        for name in deepest
    }


def change(now: int, before: int) -> str:
    """Return the difference to the span before, as text; nothing if there is nothing to compare with.

    >>> change(120, 100), change(90, 100), change(5, 0), change(3_000, 10)
    ('+20 %', '-10 %', '', '300 times')
    """
    if not before:
        return ""
    if now >= 10 * before:
        return f"{now / before:,.0f} times"
    share = round(100 * (now - before) / before)
    return f"{share:+d} %" if share else "as before"
