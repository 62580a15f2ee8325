"""Schedule patterns: interval, hourly, daily, weekly, monthly and cron, with typed terms for each field of a cron expression."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import InitVar, fields
from enum import StrEnum
from itertools import islice, takewhile
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar, cast

import msgspec
from cronsim import CronSim, CronSimError

from horsies.durations import Duration
from horsies.errors import ConfigurationError, ErrorCode, SettingsReport, bounded, is_whole_number
from horsies.frozen import dataclass
from horsies.units import span


class Weekday(StrEnum):
    """A day of the week."""

    MONDAY = "monday"
    TUESDAY = "tuesday"
    WEDNESDAY = "wednesday"
    THURSDAY = "thursday"
    FRIDAY = "friday"
    SATURDAY = "saturday"
    SUNDAY = "sunday"

    @property
    def number(self) -> int:
        """Return the number of the day as in cron and ISO 8601: Monday is 1."""
        return list(Weekday).index(self) + 1


class Month(StrEnum):
    """A month of the year."""

    JANUARY = "january"
    FEBRUARY = "february"
    MARCH = "march"
    APRIL = "april"
    MAY = "may"
    JUNE = "june"
    JULY = "july"
    AUGUST = "august"
    SEPTEMBER = "september"
    OCTOBER = "october"
    NOVEMBER = "november"
    DECEMBER = "december"

    @property
    def number(self) -> int:
        """Return the number of the month: January is 1."""
        return list(Month).index(self) + 1


# The generic classes below have no slots: on Python 3.11, `CronEnumStep[Month](…)` fails for a frozen class with slots.
Named = TypeVar("Named", Weekday, Month)


@dataclass(frozen=True, slots=True)
class CronEvery:
    """Every value of the field: `*`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CronStep:
    """Every nth value from the start of the field: `*/n`."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CronValues:
    """These values: `a,b,c`."""

    values: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CronRange:
    """From start to end, both included: `a-b` or `a-b/n`."""

    start: int
    end: int
    step: int = 1


@dataclass(frozen=True, kw_only=True)
class CronEnumStep(Generic[Named]):
    """Every nth month or day of the week, from January or Monday on."""

    step: int


@dataclass(frozen=True, kw_only=True)
class CronEnumValues(Generic[Named]):
    """These months or days of the week."""

    values: Sequence[Named]


@dataclass(frozen=True, kw_only=True)
class CronEnumRange(Generic[Named]):
    """From one month or day of the week to a later one, both included."""

    start: Named
    end: Named
    step: int = 1


CronNumericTerm = CronEvery | CronStep | CronValues | CronRange
CronMonthTerm = CronEvery | CronEnumStep[Month] | CronEnumValues[Month] | CronEnumRange[Month]
CronWeekdayTerm = CronEvery | CronEnumStep[Weekday] | CronEnumValues[Weekday] | CronEnumRange[Weekday]
_Term = CronNumericTerm | CronMonthTerm | CronWeekdayTerm
_TERM_REMEDY = "correct this term, or write a cron expression"


@dataclass(frozen=True, slots=True)
class EveryDay:
    """Every day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByMonthDay:
    """On these days of the month."""

    day_of_month: Sequence[CronNumericTerm]


@dataclass(frozen=True, slots=True, kw_only=True)
class ByWeekday:
    """On these days of the week."""

    day_of_week: Sequence[CronWeekdayTerm]


@dataclass(frozen=True, slots=True, kw_only=True)
class EitherDay:
    """On these days of the month, and on these days of the week as well: the 13th, and every Friday."""

    day_of_month: Sequence[CronNumericTerm]
    day_of_week: Sequence[CronWeekdayTerm]


@dataclass(frozen=True, slots=True, kw_only=True)
class BothDays:
    """On days that are both: Friday the 13th."""

    day_of_month: Sequence[CronNumericTerm]
    day_of_week: Sequence[CronWeekdayTerm]


DaySelector = EveryDay | ByMonthDay | ByWeekday | EitherDay | BothDays


class _Field(NamedTuple):
    """A field of a cron expression. Months and days of the week are given as members of `kind`, all else as numbers."""

    name: str
    low: int
    high: int
    kind: type[Weekday] | type[Month] | None = None


_MINUTE = _Field("minute", 0, 59)
_HOUR = _Field("hour", 0, 23)
_MONTH_DAY = _Field("day_of_month", 1, 31)
_MONTH = _Field("month", 1, 12, Month)
_WEEKDAY = _Field("day_of_week", 1, 7, Weekday)


def _compile(
    report: SettingsReport, minute: object, hour: object, month: object, day: DaySelector | None
) -> tuple[str, tuple[Weekday, ...]]:
    """Return the cron expression of typed fields, and the days of the week that it is restricted to."""
    times = f"{_text(report, _MINUTE, minute)} {_text(report, _HOUR, hour)}"
    months = _text(report, _MONTH, month)
    month_day, weekday, only_on = "*", "*", ()
    match day:
        case EveryDay():
            pass
        case ByMonthDay(day_of_month=terms):
            month_day = _text(report, _MONTH_DAY, terms)
        case ByWeekday(day_of_week=terms):
            weekday = _text(report, _WEEKDAY, terms)
        case EitherDay(day_of_month=days, day_of_week=terms):
            month_day, weekday = _text(report, _MONTH_DAY, days), _text(report, _WEEKDAY, terms)
            if "*" in (month_day, weekday):  # cron would restrict the days to the other field
                month_day = weekday = "*"
        case BothDays(day_of_month=days, day_of_week=terms):
            month_day = _text(report, _MONTH_DAY, days)
            numbers = _numbers(report, _WEEKDAY, terms)
            only_on = tuple(day for day in Weekday if day.number in numbers)
        case other:
            kinds = "EveryDay, ByMonthDay, ByWeekday, EitherDay or BothDays"
            report.fault(f"day is {other!r}; use {kinds}", _TERM_REMEDY)
    return f"{times} {month_day} {months} {weekday}", only_on


def _text(report: SettingsReport, field: _Field, terms: object) -> str:
    numbers = sorted(_numbers(report, field, terms))
    is_every = len(numbers) == field.high - field.low + 1
    return "*" if is_every or not numbers else ",".join(map(str, numbers))


def _numbers(report: SettingsReport, field: _Field, terms: object) -> set[int]:
    """Return the union of some terms; report invalid terms and leave them out."""
    if not isinstance(terms, list | tuple) or not terms:
        report.fault(f"{field.name} is {terms!r}; use a list of terms, such as [CronEvery()]", _TERM_REMEDY)
        return set()
    found: set[int] = set()
    for term in cast("Sequence[_Term]", terms):
        try:
            found.update(_term_numbers(field, term))
        except _InvalidTerm as problem:
            report.fault(f"{field.name} has {term!r}: {problem}", _TERM_REMEDY)
    return found


class _InvalidTerm(Exception):
    """A term is invalid; the message says why."""


def _term_numbers(field: _Field, term: _Term) -> Iterable[int]:
    match term:
        case CronEvery():
            return range(field.low, field.high + 1)
        case CronStep(step=step) | CronEnumStep(step=step):
            _check_step(step, field.high - field.low)
            return range(field.low, field.high + 1, step)
        case CronValues(values=values) | CronEnumValues(values=values):
            if not values:
                raise _InvalidTerm("name at least one value")
            return [_number(field, value) for value in values]
        case CronRange(start=start, end=end, step=step) | CronEnumRange(start=start, end=end, step=step):
            first, last = _number(field, start), _number(field, end)
            if last < first:
                raise _InvalidTerm("a range goes upwards; list the values instead")
            _check_step(step, max(1, last - first))
            return range(first, last + 1, step)
        case _:  # pyright: ignore[reportUnnecessaryComparison]  (lists may hold anything)
            raise _InvalidTerm("it is no term of this field")


def _check_step(step: object, span: int) -> None:
    if not is_whole_number(step, 1, span):
        raise _InvalidTerm(f"use a step from 1 to {span}; a larger one would stand for the first value only")


def _number(field: _Field, value: object) -> int:
    if field.kind is not None:
        if not isinstance(value, field.kind):
            raise _InvalidTerm(f"use members of {field.kind.__name__}")
        return value.number
    if not isinstance(value, int) or not is_whole_number(value, field.low, field.high):
        raise _InvalidTerm(f"use whole numbers from {field.low} to {field.high}")
    return value


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
# The calendar repeats after 400 years; this is the first of them.
_FIRST, _YEARS = dt.datetime(2001, 1, 1), 400
# If a date and a day of the week can coincide at all, they do within this many dates.
_MAX_DATES = 3_000


class Calendar(NamedTuple):
    """Local times: a cron expression with a leading field for seconds, restricted to days of the week if there are any."""

    expression: str
    only_on: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalSchedule:
    """Run at a fixed interval, counted from the creation of the schedule. Units are added up; each may be a `timedelta`.

    >>> IntervalSchedule(hours=1, minutes=30).delta
    datetime.timedelta(seconds=5400)
    >>> IntervalSchedule(seconds=timedelta(days=2, minutes=1))
    IntervalSchedule(seconds=60, minutes=None, hours=None, days=2)
    """

    type: ClassVar[str] = "interval"

    seconds: int | dt.timedelta | None = bounded(None, 1, 86_400)
    minutes: int | dt.timedelta | None = bounded(None, 1, 1_440)
    hours: int | dt.timedelta | None = bounded(None, 1, 168)
    days: int | dt.timedelta | None = bounded(None, 1, 365)

    def __post_init__(self) -> None:
        if any(isinstance(value, dt.timedelta) for value in self._units.values()):
            self._split()
        report = SettingsReport(self, _CODE)
        if (self.seconds, self.minutes, self.hours, self.days) == (None,) * 4:
            report.fault("no unit is given", "use at least one of seconds, minutes, hours and days")
        report.raise_if_any()

    @classmethod
    def every(cls, duration: Duration) -> Self:
        """Return the interval of this many seconds, or of a `timedelta`.

        >>> IntervalSchedule.every(90)
        IntervalSchedule(seconds=90, minutes=None, hours=None, days=None)
        """
        given = cast(object, duration)
        if isinstance(given, bool) or not isinstance(given, int | float | dt.timedelta):
            raise _no_interval(given)
        try:
            return cls(seconds=given if isinstance(given, dt.timedelta) else dt.timedelta(seconds=given))
        except (OverflowError, ValueError):  # infinite, or no number
            raise _no_interval(given) from None

    @property
    def delta(self) -> dt.timedelta:
        """Return the interval."""
        parts = (
            value if isinstance(value, dt.timedelta) else dt.timedelta(**{unit: value})
            for unit, value in self._units.items()
            if value is not None
        )
        return sum(parts, dt.timedelta(0))

    def total_seconds(self) -> int:
        """Return the interval in seconds."""
        return round(self.delta.total_seconds())

    @property
    def _units(self) -> dict[str, int | dt.timedelta | None]:
        return {"seconds": self.seconds, "minutes": self.minutes, "hours": self.hours, "days": self.days}

    def _split(self) -> None:
        """Replace units that are given as a `timedelta` by whole days and seconds."""
        numbers = (value for value in self._units.values() if not isinstance(value, dt.timedelta))
        if not all(value is None or is_whole_number(value, 0) for value in numbers):
            return  # the field that is out of range is reported
        total = self.delta
        if total < dt.timedelta(seconds=1) or total.microseconds or total.days > _MAX_DAYS:
            raise _no_interval(total)
        for name, value in (("seconds", total.seconds), ("minutes", 0), ("hours", 0), ("days", total.days)):
            object.__setattr__(self, name, value or None)


_MAX_DAYS = 365


def _no_interval(given: object) -> ConfigurationError:
    return ConfigurationError(
        f"IntervalSchedule: the interval is {given!r}",
        code=_CODE,
        help_text=f"use whole seconds, or a timedelta of whole seconds, from a second to {_MAX_DAYS} days",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HourlySchedule:
    """Run every hour, at a minute.

    >>> HourlySchedule(minute=30)
    """

    type: ClassVar[str] = "hourly"

    minute: int = bounded(None, 0, 59)
    second: int = bounded(0, 0, 59)

    def __post_init__(self) -> None:
        report = SettingsReport(self, _CODE)
        if self.minute is None:  # pyright: ignore[reportUnnecessaryComparison]  (the field has no real default)
            report.fault("minute is missing", "say at which minute of the hour, from 0 to 59")
        report.raise_if_any()

    @property
    def calendar(self) -> Calendar:
        """Return the local times of the slots."""
        return Calendar(f"{self.second} {self.minute} * * * *")


@dataclass(frozen=True, slots=True, kw_only=True)
class DailySchedule:
    """Run every day, at a local time.

    >>> DailySchedule(time=time(3, 0))
    """

    type: ClassVar[str] = "daily"

    time: dt.time

    def __post_init__(self) -> None:
        report = SettingsReport(self, _CODE)
        _check_time(report, self.time)
        report.raise_if_any()

    @property
    def calendar(self) -> Calendar:
        """Return the local times of the slots."""
        return Calendar(f"{_clock(self.time)} * * *")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeeklySchedule:
    """Run on days of the week, at a local time.

    >>> WeeklySchedule(days=[Weekday.MONDAY, Weekday.FRIDAY], time=time(9, 0))
    """

    type: ClassVar[str] = "weekly"

    days: Sequence[Weekday]
    time: dt.time

    def __post_init__(self) -> None:
        report = SettingsReport(self, _CODE)
        _check_time(report, self.time)
        days = _sorted_weekdays(report, "days", self.days)
        if self.days in ([], ()):
            report.fault("days is empty", "name at least one Weekday")
        object.__setattr__(self, "days", days)
        report.raise_if_any()

    @property
    def calendar(self) -> Calendar:
        """Return the local times of the slots."""
        return Calendar(f"{_clock(self.time)} * * {','.join(str(day.number) for day in self.days)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthlySchedule:
    """Run on a day of the month, at a local time; months without that day are skipped.

    >>> MonthlySchedule(day=1, time=time(0, 0))
    """

    type: ClassVar[str] = "monthly"

    day: int = bounded(None, 1, 31)
    time: dt.time

    def __post_init__(self) -> None:
        report = SettingsReport(self, _CODE)
        if self.day is None:  # pyright: ignore[reportUnnecessaryComparison]  (the field has no real default)
            report.fault("day is missing", "say on which day of the month, from 1 to 31")
        _check_time(report, self.time)
        report.raise_if_any()

    @property
    def calendar(self) -> Calendar:
        """Return the local times of the slots."""
        return Calendar(f"{_clock(self.time)} {self.day} * *")


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """Run by a cron expression: minute, hour, day of month, month, day of week.

    `only_on` restricts it to these days of the week, which cron itself cannot express. Instead of an expression, the fields
    may be given as terms.

    >>> CronSchedule("*/5 9-17 * * mon-fri")
    >>> CronSchedule("0 0 13 * *", only_on=[Weekday.FRIDAY])
    >>> CronSchedule(minute=[CronValues(values=[15])], hour=[CronStep(step=4)], month=[CronEvery()], day=EveryDay())
    CronSchedule(expression='15 0,4,8,12,16,20 * * *', only_on=())
    """

    type: ClassVar[str] = "cron"

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
        only_on = _sorted_weekdays(report, "only_on", self.only_on)
        expression: object = self.expression
        if (minute, hour, month, day) != (None,) * 4:
            if expression or only_on:
                report.fault("both an expression and typed fields are given", "give one of the two")
            else:
                expression, only_on = _compile(report, minute, hour, month, day)
        if not report.errors:
            expression = _normalized(report, expression, only_on)
        object.__setattr__(self, "expression", expression)
        object.__setattr__(self, "only_on", only_on)
        report.raise_if_any()

    @property
    def calendar(self) -> Calendar:
        """Return the local times of the slots."""
        return Calendar(f"0 {self.expression}", frozenset(day.number for day in self.only_on))


SchedulePattern = (
    IntervalSchedule | HourlySchedule | DailySchedule | WeeklySchedule | MonthlySchedule | CronSchedule
)
_KINDS: Mapping[str, Any] = {
    kind.type: kind
    for kind in (
        IntervalSchedule,
        HourlySchedule,
        DailySchedule,
        WeeklySchedule,
        MonthlySchedule,
        CronSchedule,
    )
}


def is_pattern(value: object) -> bool:
    """Return True for an instance of one of the pattern classes."""
    return type(value) in _KINDS.values()


def describe(pattern: SchedulePattern) -> str:
    """Describe a pattern in a few words.

    >>> describe(WeeklySchedule(days=[Weekday.MONDAY], time=time(8, 0))), describe(IntervalSchedule(seconds=10))
    ('Mondays at 08:00', 'every 10 s')
    """
    match pattern:
        case IntervalSchedule():
            return f"every {span(pattern.delta.total_seconds())}"
        case HourlySchedule(minute=minute, second=second):
            return f"every hour at :{minute:02}" + (f":{second:02}" if second else "")
        case DailySchedule(time=time):
            return f"every day at {_time_of_day(time)}"
        case WeeklySchedule(days=days, time=time):
            return f"{_weekdays(days)} at {_time_of_day(time)}"
        case MonthlySchedule(day=day, time=time):
            return f"day {day} of the month at {_time_of_day(time)}"
        case CronSchedule(expression=expression, only_on=only_on):
            words = _cron_words(expression)
            return f"{words}, {_weekdays(only_on)} only" if only_on else words


def _cron_words(expression: str) -> str:
    """Describe a cron expression if it has a common form; return any other as it is.

    >>> _cron_words("30 2 * * *"), _cron_words("0 8 * * 1-5"), _cron_words("*/5 * * * *"), _cron_words("0 0 29 2 *")
    ('every day at 02:30', 'Monday to Friday at 08:00', 'every 5 min', '0 0 29 2 *')
    """
    fields = expression.split()
    if len(fields) != 5 or fields[3] != "*":
        return expression
    minute, hour, day, _, weekday = fields
    if (hour, day, weekday) == ("*", "*", "*"):
        if minute == "*":
            return "every minute"
        if minute.startswith("*/") and minute[2:].isdigit() and 60 % int(minute[2:]) == 0:
            return f"every {span(60.0 * int(minute[2:]))}"
        return f"every hour at :{int(minute):02}" if minute.isdigit() else expression
    if not (minute.isdigit() and hour.isdigit()):
        return expression
    at = f"{int(hour):02}:{int(minute):02}"
    if (day, weekday) == ("*", "*"):
        return f"every day at {at}"
    if weekday == "*":
        return f"day {day} of the month at {at}" if day.isdigit() else expression
    days = _cron_weekdays(weekday) if day == "*" else None
    return f"{days} at {at}" if days else expression


def _cron_weekdays(field: str) -> str | None:
    """Return a day or a range of days of a cron expression in words; None if it is something else."""
    names = list(Weekday)
    numbers = [
        int(name) if name.isdigit() else next((day.number for day in names if day.startswith(name)), None)
        for name in field.lower().split("-")
    ]
    days = [names[(number - 1) % 7].capitalize() for number in numbers if number is not None]
    if len(days) != len(numbers) or len(days) > 2:
        return None
    return f"{days[0]}s" if len(days) == 1 else f"{days[0]} to {days[1]}"


def _weekdays(days: Sequence[Weekday]) -> str:
    names = [f"{day.capitalize()}s" for day in days]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _time_of_day(time: dt.time) -> str:
    return time.isoformat("seconds" if time.second else "minutes")


def to_data(pattern: SchedulePattern) -> dict[str, Any]:
    """Return a pattern as plain JSON values; equal patterns give equal values.

    >>> to_data(IntervalSchedule(minutes=5))
    {'kind': 'interval', 'minutes': 5}
    """
    given = {setting.name: getattr(pattern, setting.name) for setting in fields(pattern)}
    kept = {name: value for name, value in given.items() if value not in (None, ())}
    return {"kind": pattern.type, **msgspec.to_builtins(kept)}


def from_data(data: Mapping[str, Any]) -> SchedulePattern:
    """Return the pattern that `to_data` encoded; raise ConfigurationError or ValueError for anything else."""
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


def _sorted_weekdays(report: SettingsReport, name: str, days: object) -> tuple[Weekday, ...]:
    """Return the days in their order; report a value that is no list of days."""
    if not isinstance(days, list | tuple | set | frozenset):
        report.fault(f"{name} is {days!r}", "use a list of members of Weekday")
        return ()
    invalid = [day for day in days if not isinstance(day, Weekday)]  # pyright: ignore[reportUnknownVariableType]
    if invalid:
        report.fault(f"{name} has {invalid[0]!r}", "use members of Weekday")
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


def _normalized(report: SettingsReport, expression: object, only_on: Sequence[Weekday]) -> str:
    """Return the expression with single spaces and without aliases; report one that is invalid or never matches."""
    text = " ".join(expression.split()) if isinstance(expression, str) else ""
    text = _ALIASES.get(text.lower(), text)
    example = 'such as "*/5 9-17 * * mon-fri": minute, hour, day of month, month, day of week'
    if len(text.split()) != 5:
        report.fault(f"the cron expression is {expression!r}", f"write five fields, {example}")
        return text
    if problem := _cron_problem(text, {day.number for day in only_on}):
        report.fault(
            f"the cron expression {expression!r} {problem}", f"write one that matches some time, {example}"
        )
    return text


def _cron_problem(expression: str, only_on: Set[int]) -> str | None:
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
    dates = takewhile(lambda at: at.year < _FIRST.year + _YEARS, islice(days, _MAX_DATES))
    if any(not only_on or at.isoweekday() in only_on for at in dates):
        return None
    return "never matches"
