"""Which instants a pattern stands for: strictly one after the other, each as the pattern says, whatever the clocks do."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter
from dateutil import tz
from dateutil.rrule import DAILY, MONTHLY, WEEKLY, rrule
from hypothesis import example, given, settings
from hypothesis import strategies as st

from horsies.schedule.occurrences import NeverAgain, due, latest_run, next_run, upcoming, zone_of
from horsies.schedule.patterns import (
    CronSchedule,
    DailySchedule,
    HourlySchedule,
    IntervalSchedule,
    MonthlySchedule,
    SchedulePattern,
    Weekday,
    WeeklySchedule,
    from_data,
    to_data,
)

# Clocks that change at 2, at 1 and by half an hour; at midnight; never; and one that has left out a whole day.
ZONES = ["America/New_York", "Europe/London", "Australia/Lord_Howe", "America/Havana", "UTC", "Pacific/Apia"]

zones = st.sampled_from(ZONES)
moments = st.datetimes(datetime(2000, 1, 1), datetime(2060, 1, 1)).map(lambda at: at.replace(tzinfo=UTC))
times = st.times().map(lambda at: at.replace(microsecond=0))
weekdays = st.lists(st.sampled_from(Weekday), min_size=1, unique=True)


@st.composite
def cron_schedules(draw: st.DrawFn) -> CronSchedule:
    minute = draw(st.sampled_from(["*", "*/7", "0", "30", "15,45", "0-10", "59"]))
    hour = draw(st.sampled_from(["*", "*/3", "0", "1", "2", "3", "1-4", "23"]))
    day = draw(st.sampled_from(["*", "*/5", "1", "13", "31", "L"]))
    month = draw(st.sampled_from(["*", "3,11", "*/2", "10", "1-12"]))
    weekday = draw(st.sampled_from(["*", "sun", "mon-fri", "0,3", "5#2"]))
    # Of both kinds of days only one: whether `*/5` and a day of the week are both meant, cron programs do not agree.
    days = draw(st.sampled_from([f"{day} {month} *", f"* {month} {weekday}"]))
    return CronSchedule(f"{minute} {hour} {days}")


calendars: st.SearchStrategy[SchedulePattern] = st.one_of(
    st.builds(HourlySchedule, minute=st.integers(0, 59), second=st.integers(0, 59)),
    st.builds(DailySchedule, time=times),
    st.builds(WeeklySchedule, days=weekdays, time=times),
    st.builds(MonthlySchedule, day=st.integers(1, 31), time=times),
    cron_schedules(),
)
intervals = st.builds(
    IntervalSchedule, seconds=st.none() | st.integers(1, 86_400), minutes=st.integers(1, 1_440)
)
patterns = calendars | intervals


def says(pattern: SchedulePattern, local: datetime) -> bool:
    """Whether a local time is one of a pattern's, read off its fields."""
    match pattern:
        case HourlySchedule(minute=minute, second=second):
            return (local.minute, local.second) == (minute, second)
        case DailySchedule(time=at):
            return local.time() == at
        case WeeklySchedule(days=days, time=at):
            return local.time() == at and local.isoweekday() in {day.number for day in days}
        case MonthlySchedule(day=day, time=at):
            return (local.day, local.time()) == (day, at)
        case CronSchedule(expression=expression):
            return local.second == 0 and croniter.match(expression, local.replace(tzinfo=None))
        case IntervalSchedule():
            return local.microsecond == 0


@settings(deadline=None, max_examples=150)
@given(patterns, zones, moments)
@example(HourlySchedule(minute=30), "Australia/Lord_Howe", datetime(2026, 4, 4, 14, tzinfo=UTC))
@example(CronSchedule("30 * 8 3 *"), "America/Havana", datetime(2026, 3, 1, tzinfo=UTC))
def test_slots_come_strictly_one_after_the_other_and_each_is_as_the_pattern_says(
    pattern: SchedulePattern, zone: str, after: datetime
) -> None:
    slots = list(islice(upcoming(pattern, zone, after), 5))

    assert all(earlier < later for earlier, later in zip([after, *slots], slots, strict=False))
    for slot in slots:
        assert slot.tzinfo is UTC
        assert slot.microsecond == 0
        assert says(pattern, slot.astimezone(ZoneInfo(zone))), slot


@settings(deadline=None, max_examples=50)
@given(calendars, zones, moments)
def test_nothing_that_the_pattern_says_is_passed_over(
    pattern: SchedulePattern, zone: str, after: datetime
) -> None:
    """Between two slots, no local time fits that comes for the first time, tried second by second where it is near."""
    found = next_run(pattern, zone, after)
    there = ZoneInfo(zone)

    for seconds in range(1, min(900, int((found - after).total_seconds()))):
        at = (after + timedelta(seconds=seconds)).replace(microsecond=0)
        local = at.astimezone(there)
        if at > after and local.fold == 0:
            assert at >= found or not says(pattern, local), at


@settings(deadline=None)
@given(patterns, zones, moments, st.timedeltas(timedelta(0), timedelta(days=3)), st.integers(1, 20))
def test_what_is_due_is_the_latest_slot_or_all_of_them(
    pattern: SchedulePattern, zone: str, after: datetime, away: timedelta, most: int
) -> None:
    first = next_run(pattern, zone, after)
    now = first + away
    missed = [first]
    for slot in islice(upcoming(pattern, zone, first), 5_000):
        if slot > now:
            break
        missed.append(slot)

    one = due(pattern, zone, first, now, catch_up=False, most=most)
    several = due(pattern, zone, first, now, catch_up=True, most=most)

    assert several.slots == tuple(missed[:most])
    assert several.next_run_at == next_run(pattern, zone, several.slots[-1])
    assert one.slots == (latest_run(pattern, zone, first, now),)
    assert one.slots[0] <= now < one.next_run_at
    if len(missed) < 5_000:
        assert one.slots[0] == missed[-1]


def test_the_latest_of_a_million_missed_slots_is_found_at_once() -> None:
    first = datetime(2000, 1, 1, tzinfo=UTC)
    now = datetime(2026, 11, 16, 12, 34, 56, tzinfo=UTC)

    assert latest_run(IntervalSchedule(seconds=1), "UTC", first, now) == now
    assert latest_run(CronSchedule("* * * * *"), "UTC", first, now) == now.replace(second=0)
    assert latest_run(CronSchedule("0 0 29 2 *"), "UTC", first.replace(month=2, day=29), now) == datetime(
        2024, 2, 29, tzinfo=UTC
    )


@given(patterns)
def test_a_pattern_survives_being_written_down(pattern: SchedulePattern) -> None:
    assert from_data(to_data(pattern)) == pattern


def test_a_pattern_that_never_comes_true_again_says_so() -> None:
    midnight_of_a_day_left_out = CronSchedule("0 0 30 12 *")

    assert next_run(midnight_of_a_day_left_out, "Pacific/Apia", datetime(2011, 6, 1, tzinfo=UTC)).year == 2012
    with pytest.raises(NeverAgain):
        next_run(CronSchedule("0 0 * * *"), "UTC", datetime(9_999, 12, 31, tzinfo=UTC))


@pytest.mark.parametrize(
    "name", ["Mars/Olympus", "", "../../etc/passwd", "Europe", "no\0zone", "/etc/localtime"]
)
def test_a_zone_that_does_not_exist_is_none(name: str) -> None:
    assert zone_of(name) is None


# --- clocks that change, against other libraries


def wall(zone: str, *parts: int, fold: int = 0) -> datetime:
    return datetime(*parts, tzinfo=ZoneInfo(zone), fold=fold).astimezone(UTC)  # pyright: ignore


NEW_YORK, LONDON, LORD_HOWE = ZONES[:3]
# A pattern, a zone, a moment, and the local times of the slots that follow, with their offsets from UTC.
CHANGES: list[tuple[SchedulePattern, str, str, list[str]]] = [
    # New York, 8 March 2026: after 01:59 comes 03:00.
    (DailySchedule(time=time(2, 30)), NEW_YORK, "2026-03-07 00:00", ["03-07 02:30-0500", "03-09 02:30-0400"]),
    (DailySchedule(time=time(3, 0)), NEW_YORK, "2026-03-07 12:00", ["03-08 03:00-0400", "03-09 03:00-0400"]),
    (HourlySchedule(minute=30), NEW_YORK, "2026-03-08 01:00", ["03-08 01:30-0500", "03-08 03:30-0400"]),
    (CronSchedule("*/30 * * * *"), NEW_YORK, "2026-03-08 01:00", ["03-08 01:30-0500", "03-08 03:00-0400"]),
    (CronSchedule("0 2 * * *"), NEW_YORK, "2026-03-07 12:00", ["03-09 02:00-0400"]),
    # 1 November 2026: 01:00 to 01:59 comes twice.
    (DailySchedule(time=time(1, 30)), NEW_YORK, "2026-10-31 12:00", ["11-01 01:30-0400", "11-02 01:30-0500"]),
    (DailySchedule(time=time(2, 0)), NEW_YORK, "2026-10-31 12:00", ["11-01 02:00-0500", "11-02 02:00-0500"]),
    (
        HourlySchedule(minute=30),
        NEW_YORK,
        "2026-11-01 00:00",
        ["11-01 00:30-0400", "11-01 01:30-0400", "11-01 01:30-0500", "11-01 02:30-0500"],
    ),
    # Asked between the two: the first 01:30 is over, and the second one is not used.
    (DailySchedule(time=time(1, 30)), NEW_YORK, "2026-11-01 01:10+second", ["11-02 01:30-0500"]),
    (CronSchedule("30 1-2 * * *"), NEW_YORK, "2026-11-01 00:00", ["11-01 01:30-0400", "11-01 02:30-0500"]),
    # London, 29 March 2026: after 00:59 comes 02:00. 25 October: 01:00 to 01:59 comes twice.
    (DailySchedule(time=time(1, 15)), LONDON, "2026-03-28 00:00", ["03-28 01:15+0000", "03-30 01:15+0100"]),
    (
        WeeklySchedule(days=[Weekday.SUNDAY], time=time(1, 0)),
        LONDON,
        "2026-03-22 12:00",
        ["04-05 01:00+0100"],
    ),
    (MonthlySchedule(day=29, time=time(1, 30)), LONDON, "2026-03-01 00:00", ["04-29 01:30+0100"]),
    (DailySchedule(time=time(1, 30)), LONDON, "2026-10-24 12:00", ["10-25 01:30+0100", "10-26 01:30+0000"]),
    (
        CronSchedule("*/20 * * * *"),
        LONDON,
        "2026-10-25 01:30",
        ["10-25 01:40+0100", "10-25 01:00+0000", "10-25 01:20+0000", "10-25 01:40+0000", "10-25 02:00+0000"],
    ),
    # Lord Howe, half an hour: 4 October 2026, after 01:59 comes 02:30. 5 April: 01:30 to 01:59 comes twice.
    (
        DailySchedule(time=time(2, 15)),
        LORD_HOWE,
        "2026-10-03 12:00",
        ["10-05 02:15+1100"],
    ),
    (DailySchedule(time=time(2, 30)), LORD_HOWE, "2026-10-03 12:00", ["10-04 02:30+1100"]),
    (
        DailySchedule(time=time(1, 45)),
        LORD_HOWE,
        "2026-04-04 12:00",
        ["04-05 01:45+1100", "04-06 01:45+1030"],
    ),
    (
        HourlySchedule(minute=45),
        LORD_HOWE,
        "2026-04-05 01:00",
        ["04-05 01:45+1100", "04-05 01:45+1030", "04-05 02:45+1030"],
    ),
    # An interval takes no notice.
    (
        IntervalSchedule(hours=1),
        NEW_YORK,
        "2026-03-08 00:30",
        ["03-08 01:30-0500", "03-08 03:30-0400", "03-08 04:30-0400"],
    ),
]


@pytest.mark.parametrize(("pattern", "zone", "after", "expected"), CHANGES)
def test_changes_of_the_clock(pattern: SchedulePattern, zone: str, after: str, expected: list[str]) -> None:
    moment, _, second = after.partition("+")
    start = datetime.fromisoformat(moment).replace(tzinfo=ZoneInfo(zone), fold=bool(second))

    slots = islice(upcoming(pattern, zone, start.astimezone(UTC)), len(expected))

    assert [slot.astimezone(ZoneInfo(zone)).strftime("%m-%d %H:%M%z") for slot in slots] == expected


def rules(pattern: SchedulePattern, start: datetime) -> rrule:
    """The same local times by another library, which knows calendars and no clocks."""
    match pattern:
        case DailySchedule(time=at):
            return rrule(DAILY, dtstart=start, byhour=at.hour, byminute=at.minute, bysecond=at.second)
        case WeeklySchedule(days=days, time=at):
            on = [day.number - 1 for day in days]
            return rrule(
                WEEKLY, dtstart=start, byweekday=on, byhour=at.hour, byminute=at.minute, bysecond=at.second
            )
        case MonthlySchedule(day=day, time=at):
            return rrule(
                MONTHLY, dtstart=start, bymonthday=day, byhour=at.hour, byminute=at.minute, bysecond=at.second
            )
        case _:
            raise AssertionError(pattern)


def by_dateutil(pattern: SchedulePattern, zone: str, after: datetime) -> Iterator[datetime]:
    """Its local times that exist, at the first instant that they stand for, all of it by dateutil."""
    there = tz.gettz(zone)
    local = after.astimezone(there)
    for naive in rules(pattern, local.replace(tzinfo=None) - timedelta(days=1)):
        at = naive.replace(tzinfo=there, fold=0)
        if tz.datetime_exists(at) and at.astimezone(UTC) > after:
            yield at.astimezone(UTC)


named_hours = st.one_of(
    st.builds(DailySchedule, time=times),
    st.builds(WeeklySchedule, days=weekdays, time=times),
    st.builds(MonthlySchedule, day=st.integers(1, 31), time=times),
)
# The hours around the changes of 2026 in each of the three zones.
around_changes = st.sampled_from(
    ["2026-03-08", "2026-11-01", "2026-03-29", "2026-10-25", "2026-04-05", "2026-10-04"]
).flatmap(
    lambda day: st.integers(-2_880, 2_880).map(
        lambda minutes: datetime.fromisoformat(day).replace(tzinfo=UTC) + timedelta(minutes=minutes)
    )
)


@settings(deadline=None, max_examples=150)
@given(named_hours, st.sampled_from(ZONES[:3]), around_changes | moments)
def test_patterns_that_name_their_hour_agree_with_dateutil(
    pattern: SchedulePattern, zone: str, after: datetime
) -> None:
    ours = list(islice(upcoming(pattern, zone, after), 4))

    assert ours == list(islice(by_dateutil(pattern, zone, after), 4))


@settings(deadline=None, max_examples=100)
@given(
    st.sampled_from(["0", "30", "*/15", "*/30", "7,38", "*"]),
    st.sampled_from(ZONES[:2]),  # croniter knows no changes by half an hour
    around_changes,
)
def test_patterns_of_every_hour_agree_with_croniter(minute: str, zone: str, after: datetime) -> None:
    expression = f"{minute} * * * *"
    theirs = croniter(expression, after.astimezone(ZoneInfo(zone)))

    ours = list(islice(upcoming(CronSchedule(expression), zone, after), 8))

    assert ours == [theirs.get_next(datetime).astimezone(UTC) for _ in range(8)]
