"""A pattern or schedule that exists can run; what is wrong with one is said with its value, under HRS-205."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta
from itertools import islice
from typing import Any

import pytest

import horsies
import horsies.core.models.schedule
from horsies import (
    AppConfig,
    BothDays,
    ByMonthDay,
    ByWeekday,
    CronEnumRange,
    CronEnumStep,
    CronEnumValues,
    CronEvery,
    CronRange,
    CronSchedule,
    CronStep,
    CronValues,
    DailySchedule,
    EitherDay,
    EveryDay,
    HourlySchedule,
    IntervalSchedule,
    Month,
    MonthlySchedule,
    MultipleValidationErrors,
    ScheduleConfig,
    TaskSchedule,
    Weekday,
    WeeklySchedule,
)
from horsies.errors import ConfigurationError
from horsies.schedule.occurrences import upcoming
from horsies.schedule.patterns import from_data

NOON = time(12, 0)
EVERY = IntervalSchedule(minutes=5)


def schedule(**settings: Any) -> TaskSchedule:
    return TaskSchedule(**{"name": "tick", "task_name": "tick", "pattern": EVERY, **settings})


def cron(**fields: Any) -> CronSchedule:
    every: dict[str, Any] = {"minute": [CronValues(values=[0])], "hour": [CronValues(values=[0])]}
    return CronSchedule(**{**every, "month": [CronEvery()], "day": EveryDay(), **fields})


@pytest.mark.parametrize(
    ("make", "unit", "low", "high"),
    [
        (IntervalSchedule, "seconds", 1, 86_400),
        (IntervalSchedule, "minutes", 1, 1_440),
        (IntervalSchedule, "hours", 1, 168),
        (IntervalSchedule, "days", 1, 365),
        (HourlySchedule, "minute", 0, 59),
        (lambda **unit: HourlySchedule(minute=0, **unit), "second", 0, 59),
        (lambda **unit: MonthlySchedule(time=NOON, **unit), "day", 1, 31),
        (lambda **unit: schedule(**unit), "max_catch_up_runs", 1, 10_000),
        (ScheduleConfig, "check_interval_seconds", 1, 60),
    ],
)
def test_numbers_have_bounds(make: Callable[..., Any], unit: str, low: int, high: int) -> None:
    for value in (low, high):
        assert getattr(make(**{unit: value}), unit) == value
    for value in (low - 1, high + 1, True, 1.5, "1"):
        with pytest.raises(ConfigurationError) as refusal:
            make(**{unit: value})
        assert refusal.value.code == "HRS-205"
        assert repr(value) in refusal.value.message


def test_the_units_of_an_interval_are_added_up() -> None:
    assert IntervalSchedule(days=1, hours=2, minutes=3, seconds=4).delta == timedelta(1, 7_384)


@pytest.mark.parametrize(
    "make",
    [
        lambda: IntervalSchedule(),
        lambda: HourlySchedule(),
        lambda: MonthlySchedule(time=NOON),
        lambda: DailySchedule(time="12:00"),  # pyright: ignore
        lambda: DailySchedule(time=time(12, tzinfo=UTC)),
        lambda: DailySchedule(time=time(12, microsecond=1)),
        lambda: WeeklySchedule(days=[], time=NOON),
        lambda: WeeklySchedule(days=[Weekday.MONDAY, Weekday.MONDAY], time=NOON),
        lambda: WeeklySchedule(days=["monday"], time=NOON),  # pyright: ignore
        lambda: WeeklySchedule(days="monday", time=NOON),  # pyright: ignore
        lambda: CronSchedule(),
        lambda: CronSchedule(None),  # pyright: ignore
        lambda: CronSchedule("* * * *"),
        lambda: CronSchedule("0 * * * * *"),
        lambda: CronSchedule("60 * * * *"),
        lambda: CronSchedule("* * * nov-feb *"),
        lambda: CronSchedule("0 0 30 2 *"),
        lambda: CronSchedule("0 0 31 4,6,9,11 *"),
        lambda: CronSchedule("0 0 * 2 mon#5", only_on=[Weekday.TUESDAY]),
        lambda: CronSchedule("* * * * *", minute=[CronEvery()]),
        lambda: cron(hour=[CronStep(step=24)]),
        lambda: cron(hour=[CronRange(start=5, end=4)]),
        lambda: cron(hour=[CronRange(start=1, end=4, step=4)]),
        lambda: cron(minute=[CronValues(values=[])]),
        lambda: cron(minute=[CronValues(values=[60])]),
        lambda: cron(minute=[]),
        lambda: cron(minute=["*"]),
        lambda: cron(month=[CronValues(values=[1])]),
        lambda: cron(month=[CronEnumValues[Weekday](values=[Weekday.MONDAY])]),
        lambda: cron(month=[CronEnumRange[Month](start=Month.MAY, end=Month.APRIL)]),
        lambda: cron(day="*"),
        lambda: cron(
            month=[CronEnumValues[Month](values=[Month.FEBRUARY])],
            day=ByMonthDay(day_of_month=[CronValues(values=[30])]),
        ),
        lambda: schedule(name=""),
        lambda: schedule(name="x" * 256),
        lambda: schedule(name="a\0b"),
        lambda: schedule(task_name=None),
        lambda: schedule(definition_key="flow"),
        lambda: schedule(pattern="* * * * *"),
        lambda: schedule(overlap="queue"),
        lambda: ScheduleConfig(schedules=[schedule(), schedule(pattern=HourlySchedule(minute=1))]),
    ],
)
def test_what_cannot_be_meant_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        make()

    assert refusal.value.code == "HRS-205"
    assert refusal.value.help_text


def test_everything_that_is_wrong_with_one_object_is_said_at_once() -> None:
    with pytest.raises(MultipleValidationErrors) as refusal:
        cron(minute=[CronStep(step=60)], hour=[CronValues(values=[24])], day=None)

    assert {error.code for error in refusal.value.errors} == {"HRS-205"}
    assert len(refusal.value.errors) == 3
    with pytest.raises(MultipleValidationErrors, match="hour is None"):
        CronSchedule(minute=[CronEvery()])


@pytest.mark.parametrize(
    ("pattern", "expression"),
    [
        (cron(minute=[CronValues(values=[15])], hour=[CronStep(step=4)]), "15 0,4,8,12,16,20 * * *"),
        (cron(hour=[CronRange(start=1, end=7, step=3), CronValues(values=[1])]), "0 1,4,7 * * *"),
        (cron(month=[CronEnumStep[Month](step=5)]), "0 0 * 1,6,11 *"),
        (cron(month=[CronEnumRange[Month](start=Month.JANUARY, end=Month.MARCH)]), "0 0 * 1,2,3 *"),
        (
            cron(day=ByWeekday(day_of_week=[CronEnumValues[Weekday](values=[Weekday.SUNDAY])])),
            "0 0 * * 7",
        ),
        (
            cron(
                day=EitherDay(
                    day_of_month=[CronValues(values=[13])],
                    day_of_week=[CronEnumValues[Weekday](values=[Weekday.FRIDAY])],
                )
            ),
            "0 0 13 * 5",
        ),
        (cron(day=EitherDay(day_of_month=[CronEvery()], day_of_week=[CronEnumStep(step=6)])), "0 0 * * *"),
        (CronSchedule("  @Daily "), "0 0 * * *"),
    ],
)
def test_typed_fields_and_aliases_are_cron_expressions(pattern: CronSchedule, expression: str) -> None:
    assert pattern.expression == expression


FRIDAYS: list[tuple[CronSchedule, list[tuple[int, int]]]] = [
    (CronSchedule("0 0 13 * fri"), [(11, 6), (11, 13), (11, 20), (11, 27), (12, 4)]),
    (CronSchedule("0 0 13 * *", only_on=[Weekday.FRIDAY]), [(11, 13), (8, 13), (10, 13), (4, 13), (7, 13)]),
    (
        cron(
            day=BothDays(
                day_of_month=[CronValues(values=[13])],
                day_of_week=[CronEnumValues[Weekday](values=[Weekday.FRIDAY])],
            )
        ),
        [(11, 13), (8, 13), (10, 13), (4, 13), (7, 13)],
    ),
]


@pytest.mark.parametrize(("pattern", "expected"), FRIDAYS)
def test_either_day_is_not_both(pattern: CronSchedule, expected: list[tuple[int, int]]) -> None:
    slots = islice(upcoming(pattern, "UTC", datetime(2026, 11, 1, tzinfo=UTC)), 5)

    assert [(slot.month, slot.day) for slot in slots] == expected


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"kind": "lunar"},
        {"kind": "daily"},
        {"kind": "daily", "time": "soon"},
        {"kind": "weekly", "days": ["x"]},
    ],
)
def test_data_that_is_no_pattern_is_an_error(data: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        from_data(data)


def test_an_app_has_schedules() -> None:
    config = AppConfig(schedule=ScheduleConfig(schedules=[schedule(), schedule(name="tock")]))

    assert config.schedule is not None
    assert [each.name for each in config.schedule.schedules] == ["tick", "tock"]
    assert AppConfig().schedule is None


def test_the_documented_import_path_leads_to_the_same_names() -> None:
    names = [name for name in dir(horsies.core.models.schedule) if name[0].isupper()]

    assert len(names) == 24
    for name in names:
        assert getattr(horsies.core.models.schedule, name) is getattr(horsies, name)


def test_a_pattern_has_a_type_and_an_interval_its_seconds() -> None:
    at = time(3, 0)
    patterns: list[Any] = [
        IntervalSchedule(hours=1, minutes=30),
        HourlySchedule(minute=1),
        DailySchedule(time=at),
        WeeklySchedule(days=[Weekday.MONDAY], time=at),
        MonthlySchedule(day=1, time=at),
        CronSchedule("@daily"),
    ]

    assert [pattern.type for pattern in patterns] == [
        "interval",
        "hourly",
        "daily",
        "weekly",
        "monthly",
        "cron",
    ]
    assert IntervalSchedule(hours=1, minutes=30).total_seconds() == 5_400


def test_an_interval_takes_timedeltas() -> None:
    assert IntervalSchedule(seconds=timedelta(minutes=5)) == IntervalSchedule(seconds=300)
    assert IntervalSchedule(minutes=timedelta(minutes=5), hours=1) == IntervalSchedule(seconds=3_900)
    assert IntervalSchedule(seconds=timedelta(days=2, seconds=5)) == IntervalSchedule(days=2, seconds=5)
    assert IntervalSchedule.every(90) == IntervalSchedule(seconds=90)
    for wrong in (timedelta(0), timedelta(seconds=-5), timedelta(milliseconds=1_500), timedelta(days=366)):
        with pytest.raises(ConfigurationError, match="the interval is"):
            IntervalSchedule(seconds=wrong)
    with pytest.raises(horsies.HorsiesError, match="hours is 'two'"):
        IntervalSchedule(seconds=timedelta(minutes=5), hours="two")  # pyright: ignore[reportArgumentType]
