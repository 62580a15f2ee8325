"""When something is to run: patterns, checked when they are made.

A pattern that exists runs some day. All but the interval are local times of a calendar, told as a cron expression with
the seconds in front; which instants these are, a time zone decides (see `slots`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence, Set
from dataclasses import InitVar, dataclass, fields
from itertools import islice, takewhile
from typing import Any, NamedTuple

import msgspec
from cronsim import CronSim, CronSimError

from horsies.errors import ErrorCode, SettingsReport, bounded
from horsies.schedule.cron import (
    CronFields,
    CronMonthTerm,
    CronNumericTerm,
    DaySelector,
    Weekday,
    compile_fields,
)

_CODE = ErrorCode.CONFIG_INVALID_SCHEDULE
_ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
# The calendar repeats itself after 400 years, of which these are the first.
_FIRST, _YEARS = dt.datetime(2001, 1, 1), 400
# A date and a day of the week that can come together do so within so many dates.
_LOOK_AT = 3_000


class Calendar(NamedTuple):
    """Local times: a cron expression with seconds in front, and the days of the week it is restricted to, if any."""

    expression: str
    only_on: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalSchedule:
    """At a fixed distance, counted from when the schedule came into being. Units are added up.

    >>> IntervalSchedule(hours=1, minutes=30).delta
    datetime.timedelta(seconds=5400)
    """

    seconds: int | None = bounded(None, 1, 86_400)
    minutes: int | None = bounded(None, 1, 1_440)
    hours: int | None = bounded(None, 1, 168)
    days: int | None = bounded(None, 1, 365)

    def __post_init__(self) -> None:
        report = SettingsReport(self, _CODE)
        if (self.seconds, self.minutes, self.hours, self.days) == (None,) * 4:
            report.fault("no unit is given", "use at least one of seconds, minutes, hours and days")
        report.raise_if_any()

    @property
    def delta(self) -> dt.timedelta:
        units = {"seconds": self.seconds, "minutes": self.minutes, "hours": self.hours, "days": self.days}
        return dt.timedelta(**{unit: count for unit, count in units.items() if count is not None})


@dataclass(frozen=True, slots=True, kw_only=True)
class HourlySchedule:
    """Every hour, at a minute.

    >>> HourlySchedule(minute=30)
    """

    minute: int = bounded(None, 0, 59)
    second: int = bounded(0, 0, 59)

    def __post_init__(self) -> None:
        report = SettingsReport(self, _CODE)
        if self.minute is None:  # pyright: ignore[reportUnnecessaryComparison]  (it has no default of its own)
            report.fault("minute is missing", "say at which minute of the hour, from 0 to 59")
        report.raise_if_any()

    @property
    def calendar(self) -> Calendar:
        return Calendar(f"{self.second} {self.minute} * * * *")


@dataclass(frozen=True, slots=True, kw_only=True)
class DailySchedule:
    """Every day, at a local time.

    >>> DailySchedule(time=time(3, 0))
    """

    time: dt.time

    def __post_init__(self) -> None:
        report = SettingsReport(self, _CODE)
        _check_time(report, self.time)
        report.raise_if_any()

    @property
    def calendar(self) -> Calendar:
        return Calendar(f"{_clock(self.time)} * * *")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeeklySchedule:
    """On days of the week, at a local time.

    >>> WeeklySchedule(days=[Weekday.MONDAY, Weekday.FRIDAY], time=time(9, 0))
    """

    days: Sequence[Weekday]
    time: dt.time

    def __post_init__(self) -> None:
        report = SettingsReport(self, _CODE)
        _check_time(report, self.time)
        days = _own_weekdays(report, "days", self.days)
        if self.days in ([], ()):
            report.fault("days is empty", "name at least one Weekday")
        object.__setattr__(self, "days", days)
        report.raise_if_any()

    @property
    def calendar(self) -> Calendar:
        return Calendar(f"{_clock(self.time)} * * {','.join(str(day.number) for day in self.days)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthlySchedule:
    """On a day of the month, at a local time; months without that day are left out.

    >>> MonthlySchedule(day=1, time=time(0, 0))
    """

    day: int = bounded(None, 1, 31)
    time: dt.time

    def __post_init__(self) -> None:
        report = SettingsReport(self, _CODE)
        if self.day is None:  # pyright: ignore[reportUnnecessaryComparison]  (it has no default of its own)
            report.fault("day is missing", "say on which day of the month, from 1 to 31")
        _check_time(report, self.time)
        report.raise_if_any()

    @property
    def calendar(self) -> Calendar:
        return Calendar(f"{_clock(self.time)} {self.day} * *")


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """As a cron expression says: minute, hour, day of month, month, day of week.

    `only_on` leaves these days of the week only, which cron itself cannot say. Instead of the expression, its fields may
    be given as terms.

    >>> CronSchedule("*/5 9-17 * * mon-fri")
    >>> CronSchedule("0 0 13 * *", only_on=[Weekday.FRIDAY])
    >>> CronSchedule(minute=[CronValues(values=[15])], hour=[CronStep(step=4)], month=[CronEvery()], day=EveryDay())
    CronSchedule(expression='15 0,4,8,12,16,20 * * *', only_on=())
    """

    expression: str = ""
    only_on: Sequence[Weekday] = ()
    minute: InitVar[Sequence[CronNumericTerm] | None] = None
    hour: InitVar[Sequence[CronNumericTerm] | None] = None
    month: InitVar[Sequence[CronMonthTerm] | None] = None
    day: InitVar[DaySelector | None] = None

    def __post_init__(
        self,
        minute: Sequence[CronNumericTerm] | None,
        hour: Sequence[CronNumericTerm] | None,
        month: Sequence[CronMonthTerm] | None,
        day: DaySelector | None,
    ) -> None:
        report = SettingsReport(self, _CODE)
        only_on = _own_weekdays(report, "only_on", self.only_on)
        expression: object = self.expression
        typed = CronFields(minute, hour, month, day)
        if typed != (None,) * 4:
            compiled = compile_fields(typed)
            if expression or only_on:
                report.fault("both an expression and typed fields are given", "give one of the two")
            else:
                expression, only_on = compiled.expression, compiled.only_on
                for problem in compiled.problems:
                    report.fault(problem, "correct this term, or write a cron expression")
        if not report.errors:
            expression = _readable(report, expression, only_on)
        object.__setattr__(self, "expression", expression)
        object.__setattr__(self, "only_on", only_on)
        report.raise_if_any()

    @property
    def calendar(self) -> Calendar:
        return Calendar(f"0 {self.expression}", frozenset(day.number for day in self.only_on))


SchedulePattern = (
    IntervalSchedule | HourlySchedule | DailySchedule | WeeklySchedule | MonthlySchedule | CronSchedule
)
_KINDS: Mapping[str, Any] = {
    "interval": IntervalSchedule,
    "hourly": HourlySchedule,
    "daily": DailySchedule,
    "weekly": WeeklySchedule,
    "monthly": MonthlySchedule,
    "cron": CronSchedule,
}


def is_pattern(value: object) -> bool:
    return type(value) in _KINDS.values()


def describe(pattern: SchedulePattern) -> str:
    """A pattern in a few words.

    >>> describe(WeeklySchedule(days=[Weekday.MONDAY], time=time(9, 0)))
    'monday at 09:00:00'
    """
    match pattern:
        case IntervalSchedule():
            return f"every {pattern.delta}"
        case HourlySchedule(minute=minute, second=second):
            return f"every hour at :{minute:02}:{second:02}"
        case DailySchedule(time=time):
            return f"every day at {time}"
        case WeeklySchedule(days=days, time=time):
            return f"{', '.join(days)} at {time}"
        case MonthlySchedule(day=day, time=time):
            return f"day {day} of the month at {time}"
        case CronSchedule(expression=expression, only_on=only_on):
            return f"{expression} on {', '.join(only_on)} only" if only_on else expression


def to_data(pattern: SchedulePattern) -> dict[str, Any]:
    """A pattern as plain JSON values, the same for equal patterns.

    >>> to_data(IntervalSchedule(minutes=5))
    {'kind': 'interval', 'minutes': 5}
    """
    kind = next(name for name, each in _KINDS.items() if each is type(pattern))
    given = {setting.name: getattr(pattern, setting.name) for setting in fields(pattern)}
    kept = {name: value for name, value in given.items() if value not in (None, ())}
    return {"kind": kind, **msgspec.to_builtins(kept)}


def from_data(data: Mapping[str, Any]) -> SchedulePattern:
    """The pattern that `to_data` told of; what is no pattern is an error of this module's or a `ValueError`."""
    values = dict(data)
    make = _KINDS.get(values.pop("kind", ""))
    if make is None:
        raise ValueError(f"there is no pattern of the kind {data.get('kind')!r}")
    if "time" in values:
        values["time"] = dt.time.fromisoformat(values["time"])
    for name in ("days", "only_on"):
        if name in values:
            values[name] = [Weekday(day) for day in values[name]]
    try:
        return make(**values)
    except TypeError as error:
        raise ValueError(f"a pattern of the kind {data['kind']!r} cannot be made of {values!r}") from error


def _own_weekdays(report: SettingsReport, name: str, days: object) -> tuple[Weekday, ...]:
    """The days in their order; a list that is none is reported."""
    if not isinstance(days, list | tuple | set | frozenset):
        report.fault(f"{name} is {days!r}", "use a list of members of Weekday")
        return ()
    strange = [day for day in days if not isinstance(day, Weekday)]  # pyright: ignore[reportUnknownVariableType]
    if strange:
        report.fault(f"{name} has {strange[0]!r}", "use members of Weekday")
    if len(set(days)) != len(days):  # pyright: ignore[reportUnknownArgumentType]
        report.fault(f"{name} names a day twice", "name each day once")
    return tuple(day for day in Weekday if day in days)


def _check_time(report: SettingsReport, time: object) -> None:
    if not isinstance(time, dt.time):
        report.fault(f"time is {time!r}", "use a datetime.time, such as time(3, 0)")
    elif time.tzinfo is not None:
        report.fault(f"time is {time!r}", "leave its time zone out; the schedule has one: timezone=…")
    elif time.microsecond:
        report.fault(f"time is {time!r}", "use whole seconds")


def _clock(time: dt.time) -> str:
    return f"{time.second} {time.minute} {time.hour}"


def _readable(report: SettingsReport, expression: object, only_on: Sequence[Weekday]) -> str:
    """The expression with single spaces and without aliases; reports one that is wrong or never comes true."""
    text = " ".join(expression.split()) if isinstance(expression, str) else ""
    text = _ALIASES.get(text.lower(), text)
    example = 'such as "*/5 9-17 * * mon-fri": minute, hour, day of month, month, day of week'
    if len(text.split()) != 5:
        report.fault(f"the cron expression is {expression!r}", f"write five fields, {example}")
        return text
    if problem := _wrong_with(text, {day.number for day in only_on}):
        report.fault(
            f"the cron expression {expression!r} {problem}", f"write one that can come true, {example}"
        )
    return text


def _wrong_with(expression: str, only_on: Set[int]) -> str | None:
    minute, hour, month_day, month, weekday = expression.split()
    try:
        CronSim(f"{minute} {hour} {month_day} * {weekday}", _FIRST)
    except CronSimError as error:
        return f"has a wrong {str(error).lower().removeprefix('bad ')}"
    try:
        days = CronSim(f"0 0 {month_day} {month} {weekday}", _FIRST)
    except CronSimError as error:
        wrong = str(error).lower().removeprefix("bad ")
        return (
            "names a day that none of its months has" if wrong == "day-of-month" else f"has a wrong {wrong}"
        )
    dates = takewhile(lambda at: at.year < _FIRST.year + _YEARS, islice(days, _LOOK_AT))
    if any(not only_on or at.isoweekday() in only_on for at in dates):
        return None
    return "never comes true"
