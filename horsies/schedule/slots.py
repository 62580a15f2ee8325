"""From patterns to instants: which slots there are, and which of them are due.

Local times that a change of the clock leaves out are left out. A local time that comes twice is used when it comes
first; only a pattern that runs in every hour runs in both of two hours of the same name, so that an hour is an hour. A
slot is a whole second in UTC, and the next one depends on nothing but the one before: whoever computes it, and however
late, gets the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim

from horsies.schedule.patterns import Calendar, IntervalSchedule, SchedulePattern

HOURS_OF_A_DAY = 24
_ANY_DAY = datetime(2001, 1, 1)
# How far back the latest slot is looked for, step by step: soon enough for all but the rarest patterns.
_LOOK_BACK = (timedelta(hours=1), timedelta(days=1), timedelta(days=32), timedelta(days=366))


class NeverAgain(Exception):
    """A pattern has no slot any more before the calendar ends."""


class Due(NamedTuple):
    """The slots to run now, the oldest first, and the one that comes after them."""

    slots: tuple[datetime, ...]
    next_run_at: datetime


def zone_of(name: str) -> ZoneInfo | None:
    """The time zone of this name; None when there is none here."""
    try:
        return ZoneInfo(name)
    except (
        KeyError,
        ValueError,
        OSError,
        TypeError,
    ):  # what a name that is a folder, a path or no text leads to
        return None


# Schedules often share a pattern, and all that run at three o'clock ask for the same tomorrow.
@lru_cache(maxsize=4_096)
def next_run(pattern: SchedulePattern, timezone: str, after: datetime) -> datetime:
    """The first slot after a moment, in UTC.

    >>> next_run(DailySchedule(time=time(3, 0)), "Europe/Berlin", datetime(2026, 7, 1, tzinfo=UTC))
    datetime.datetime(2026, 7, 1, 1, 0, tzinfo=datetime.timezone.utc)
    """
    if isinstance(pattern, IntervalSchedule):
        return after.astimezone(UTC).replace(microsecond=0) + pattern.delta
    try:
        return next(_instants(pattern.calendar, ZoneInfo(timezone), after))
    except (StopIteration, OverflowError):
        raise NeverAgain(f"{pattern} has no slot in {timezone} after {after}") from None


def upcoming(pattern: SchedulePattern, timezone: str, after: datetime) -> Iterator[datetime]:
    """One slot after the other."""
    while True:
        after = next_run(pattern, timezone, after)
        yield after


class Local(NamedTuple):
    """A slot on the wall clock, and by how much that was set since the one before."""

    at: datetime
    change: timedelta


def on_the_wall(pattern: SchedulePattern, timezone: str, after: datetime, since: datetime) -> Iterator[Local]:
    """One slot after the other as local times, so that changes of the clock, the first of them since then, can be seen."""
    zone = ZoneInfo(timezone)
    before = _offset(zone, since)
    for slot in upcoming(pattern, timezone, after):
        offset = _offset(zone, slot)
        yield Local(slot.astimezone(zone), offset - before)
        before = offset


def due(
    pattern: SchedulePattern, timezone: str, first: datetime, now: datetime, *, catch_up: bool, most: int
) -> Due:
    """What to run of a schedule whose next slot is `first`, which is due: the latest slot, or all up to `most`."""
    if not catch_up:
        latest = latest_run(pattern, timezone, first, now)
        return Due((latest,), next_run(pattern, timezone, latest))
    slots = [first]
    for slot in islice(upcoming(pattern, timezone, first), most):
        if slot > now or len(slots) == most:
            return Due(tuple(slots), slot)
        slots.append(slot)
    raise AssertionError("one more than the most is always enough")


def latest_run(pattern: SchedulePattern, timezone: str, first: datetime, now: datetime) -> datetime:
    """The last slot up to now, `first` being one; how long ago that was makes little difference."""
    if isinstance(pattern, IntervalSchedule):
        return first + (now - first) // pattern.delta * pattern.delta
    if next_run(pattern, timezone, first) > now:
        return first
    for span in _LOOK_BACK:
        since = max(first, now - span)
        *_, latest = [None, *_until(now, upcoming(pattern, timezone, since))]
        if latest is not None:
            return latest
    *_, latest = _until(now, upcoming(pattern, timezone, first))
    return latest


def _until(now: datetime, slots: Iterator[datetime]) -> Iterator[datetime]:
    for slot in slots:
        if slot > now:
            return
        yield slot


def _instants(calendar: Calendar, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    """The slots of a calendar after a moment."""
    is_hourly = len(CronSim(calendar.expression, _ANY_DAY).hours) == HOURS_OF_A_DAY
    return _in_every_hour(calendar, zone, after) if is_hourly else _at_named_hours(calendar, zone, after)


def _at_named_hours(calendar: Calendar, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    for local in _walk(calendar, after.astimezone(zone).replace(tzinfo=None, fold=0)):
        slot = local.replace(tzinfo=zone).astimezone(UTC)
        exists = slot.astimezone(zone).replace(tzinfo=None) == local
        if exists and slot > after:
            yield slot


def _in_every_hour(calendar: Calendar, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    """With the offset of now, and when the clock changes before the next slot, with the one of then."""
    offset = _offset(zone, after)
    soon = next(_walk(calendar, _shifted(after, offset))) - offset
    later = _offset(zone, soon.replace(tzinfo=UTC))
    for local in _walk(calendar, _shifted(after, later)):
        slot = (local - later).replace(tzinfo=UTC)
        if _offset(zone, slot) == later:
            yield slot


def _walk(calendar: Calendar, local: datetime) -> Iterator[datetime]:
    """The local times of a calendar after one of them, as if clocks never changed."""
    times = CronSim(calendar.expression, local)
    if not calendar.only_on:
        return times
    return (at for at in times if at.isoweekday() in calendar.only_on)


def _offset(zone: ZoneInfo, at: datetime) -> timedelta:
    return at.astimezone(zone).utcoffset() or timedelta(0)


def _shifted(at: datetime, offset: timedelta) -> datetime:
    return at.astimezone(UTC).replace(tzinfo=None) + offset
