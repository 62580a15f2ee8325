"""Compute the slots of a pattern, and which of them are due.

A local time that a clock change skips has no slot. Of a local time that occurs twice, the first is the slot; only a pattern that
runs in every hour runs in both, so that its runs stay an hour apart. A slot is a whole second in UTC, and the next slot depends
on nothing but the previous one: every scheduler computes the same, however late.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import takewhile
from typing import NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim

from horsies.schedule.patterns import Calendar, IntervalSchedule, SchedulePattern

_ANY_DAY = datetime(2001, 1, 1)
# How far back to search for the latest slot, step by step. All but the rarest patterns have one within a year.
_LOOK_BACK = (timedelta(hours=1), timedelta(days=1), timedelta(days=32), timedelta(days=366))


class NeverAgain(Exception):
    """A pattern has no further slot before the year 9999 ends."""


class Due(NamedTuple):
    """The slots to run now, the oldest first, and the slot after them."""

    slots: tuple[datetime, ...]
    next_run_at: datetime


def zone_of(name: str) -> ZoneInfo | None:
    """Return the time zone of this name; None if this machine does not have it."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):  # unknown, or a directory, a path, or no string
        return None


# Cached because many schedules share a pattern: all that run at three o'clock have the same next slot.
@lru_cache(maxsize=4_096)
def next_run(pattern: SchedulePattern, timezone: str, after: datetime) -> datetime:
    """Return the first slot after a time, in UTC.

    >>> next_run(DailySchedule(time=time(3, 0)), "Europe/Berlin", datetime(2026, 7, 1, tzinfo=UTC))
    datetime.datetime(2026, 7, 1, 1, 0, tzinfo=datetime.timezone.utc)
    """
    try:
        if isinstance(pattern, IntervalSchedule):
            return after.astimezone(UTC).replace(microsecond=0) + pattern.delta
        calendar, zone = pattern.calendar, ZoneInfo(timezone)
        runs_every_hour = len(CronSim(calendar.expression, _ANY_DAY).hours) == 24
        slots = _hourly_slots if runs_every_hour else _fixed_hour_slots
        return next(slots(calendar, zone, after))
    except (StopIteration, OverflowError):
        raise NeverAgain(f"{pattern} has no slot in {timezone} after {after}") from None


def upcoming(pattern: SchedulePattern, timezone: str, after: datetime) -> Iterator[datetime]:
    """Yield all slots after a time."""
    while True:
        after = next_run(pattern, timezone, after)
        yield after


def local_slots(
    pattern: SchedulePattern, timezone: str, after: datetime, since: datetime
) -> Iterator[tuple[datetime, timedelta]]:
    """Yield slots in local time, each with the change of the UTC offset since the slot before, the first since `since`."""
    zone = ZoneInfo(timezone)
    before = _offset(zone, since)
    for slot in upcoming(pattern, timezone, after):
        offset = _offset(zone, slot)
        yield slot.astimezone(zone), offset - before
        before = offset


def due(
    pattern: SchedulePattern, timezone: str, first: datetime, now: datetime, *, catch_up: bool, most: int
) -> Due:
    """Return the slots to run of a schedule that is due since `first`: the latest, or with `catch_up` all, up to `most`."""
    if not catch_up:
        latest = latest_run(pattern, timezone, first, now)
        return Due((latest,), next_run(pattern, timezone, latest))
    slots, following = [first], next_run(pattern, timezone, first)
    while following <= now and len(slots) < most:
        slots.append(following)
        following = next_run(pattern, timezone, following)
    return Due(tuple(slots), following)


def latest_run(pattern: SchedulePattern, timezone: str, first: datetime, now: datetime) -> datetime:
    """Return the last slot up to now, at about the same cost however long ago `first` was."""
    if isinstance(pattern, IntervalSchedule):
        return first + (now - first) // pattern.delta * pattern.delta
    if next_run(pattern, timezone, first) > now:
        return first
    for span in (*_LOOK_BACK, now - first):
        since = max(first, now - span)
        slots = list(takewhile(lambda slot: slot <= now, upcoming(pattern, timezone, since)))
        if slots:
            return slots[-1]
    raise AssertionError("unreachable: there is a slot between `first` and now")


def _fixed_hour_slots(calendar: Calendar, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    for local in _local_times(calendar, after.astimezone(zone).replace(tzinfo=None, fold=0)):
        slot = local.replace(tzinfo=zone).astimezone(UTC)
        exists = slot.astimezone(zone).replace(tzinfo=None) == local
        if exists and slot > after:
            yield slot


def _hourly_slots(calendar: Calendar, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    """Yield slots computed with one UTC offset: today's, or the new one if the clock changes before the next slot."""
    offset = _offset(zone, after)
    soon = next(_local_times(calendar, _shifted(after, offset))) - offset
    later = _offset(zone, soon.replace(tzinfo=UTC))
    for local in _local_times(calendar, _shifted(after, later)):
        slot = (local - later).replace(tzinfo=UTC)
        if _offset(zone, slot) == later:
            yield slot


def _local_times(calendar: Calendar, local: datetime) -> Iterator[datetime]:
    """Return the local times of a calendar, ignoring clock changes."""
    times = CronSim(calendar.expression, local)
    if not calendar.only_on:
        return times
    return (at for at in times if at.isoweekday() in calendar.only_on)


def _offset(zone: ZoneInfo, at: datetime) -> timedelta:
    return at.astimezone(zone).utcoffset() or timedelta(0)


def _shifted(at: datetime, offset: timedelta) -> datetime:
    return at.astimezone(UTC).replace(tzinfo=None) + offset
