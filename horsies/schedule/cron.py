"""The typed way to write a cron expression: terms for each field, and an explicit choice between days of both kinds.

Terms are turned into plain numbers, which is all that the walk over the calendar gets to see. Steps count from the
start of the field, ranges do not wrap around, and a term that cannot mean what it says is reported by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar, cast

from horsies.errors import is_whole_number


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
        """As cron and ISO 8601 count: Monday is 1."""
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
        return list(Month).index(self) + 1


# Classes over these have no slots: on Python 3.11, `CronEnumStep[Month](…)` cannot be made of a frozen class that does.
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


class CronFields(NamedTuple):
    """A typed cron schedule as it was written; None is what was left out."""

    minute: Sequence[CronNumericTerm] | None
    hour: Sequence[CronNumericTerm] | None
    month: Sequence[CronMonthTerm] | None
    day: DaySelector | None


class Compiled(NamedTuple):
    """A cron expression, the days of the week that it is restricted to, and what was wrong with the terms."""

    expression: str
    only_on: tuple[Weekday, ...]
    problems: list[str]


class _Field(NamedTuple):
    name: str
    low: int
    high: int


_MINUTE, _HOUR = _Field("minute", 0, 59), _Field("hour", 0, 23)
_MONTH_DAY, _MONTH, _WEEKDAY = (
    _Field("day_of_month", 1, 31),
    _Field("month", 1, 12),
    _Field("day_of_week", 1, 7),
)


def compile_fields(fields: CronFields) -> Compiled:
    """What typed fields come to.

    >>> compile_fields(CronFields([CronValues(values=[15])], [CronStep(step=8)], [CronEvery()], EveryDay())).expression
    '15 0,8,16 * * *'
    """
    problems: list[str] = []
    minute = _text(_MINUTE, fields.minute, problems)
    hour = _text(_HOUR, fields.hour, problems)
    month = _text(_MONTH, fields.month, problems)
    month_day, weekday, only_on = "*", "*", ()
    match fields.day:
        case EveryDay():
            pass
        case ByMonthDay(day_of_month=terms):
            month_day = _text(_MONTH_DAY, terms, problems)
        case ByWeekday(day_of_week=terms):
            weekday = _text(_WEEKDAY, terms, problems)
        case EitherDay(day_of_month=days, day_of_week=terms):
            month_day, weekday = _text(_MONTH_DAY, days, problems), _text(_WEEKDAY, terms, problems)
            if "*" in (month_day, weekday):  # cron would read every day of one kind as a day of the other
                month_day = weekday = "*"
        case BothDays(day_of_month=days, day_of_week=terms):
            month_day = _text(_MONTH_DAY, days, problems)
            numbers = _numbers(_WEEKDAY, terms, problems)
            only_on = tuple(day for day in Weekday if day.number in numbers)
        case other:
            problems.append(f"day is {other!r}; use EveryDay, ByMonthDay, ByWeekday, EitherDay or BothDays")
    return Compiled(f"{minute} {hour} {month_day} {month} {weekday}", only_on, problems)


def _text(field: _Field, terms: object, problems: list[str]) -> str:
    numbers = sorted(_numbers(field, terms, problems))
    is_every = len(numbers) == field.high - field.low + 1
    return "*" if is_every or not numbers else ",".join(map(str, numbers))


def _numbers(field: _Field, terms: object, problems: list[str]) -> set[int]:
    """The union of some terms; what cannot be is left out and reported."""
    if not isinstance(terms, list | tuple) or not terms:
        problems.append(f"{field.name} is {terms!r}; use a list of terms, such as [CronEvery()]")
        return set()
    found: set[int] = set()
    for term in cast("Sequence[_Term]", terms):
        try:
            found.update(_of_term(field, term))
        except _Impossible as problem:
            problems.append(f"{field.name} has {term!r}: {problem}")
    return found


class _Impossible(Exception):
    """A term that stands for nothing; the message says why."""


def _of_term(field: _Field, term: _Term) -> Iterable[int]:
    match term:
        case CronEvery():
            return range(field.low, field.high + 1)
        case CronStep(step=step) | CronEnumStep(step=step):
            _check_step(step, field.high - field.low)
            return range(field.low, field.high + 1, step)
        case CronValues(values=values) | CronEnumValues(values=values):
            if not values:
                raise _Impossible("name at least one value")
            return [_number(field, value) for value in values]
        case CronRange(start=start, end=end, step=step) | CronEnumRange(start=start, end=end, step=step):
            first, last = _number(field, start), _number(field, end)
            if last < first:
                raise _Impossible("a range goes upwards; list the values instead")
            _check_step(step, max(1, last - first))
            return range(first, last + 1, step)
        case _:  # pyright: ignore[reportUnnecessaryComparison]  (lists may hold anything)
            raise _Impossible("it is no term of this field")


def _check_step(step: object, span: int) -> None:
    if not is_whole_number(step, 1, span):
        raise _Impossible(f"use a step from 1 to {span}; a larger one would stand for the first value only")


def _number(field: _Field, value: object) -> int:
    """A value as a number of its field; days and months go by their names, everything else by number."""
    kind = {_MONTH: Month, _WEEKDAY: Weekday}.get(field)
    if kind is not None:
        if not isinstance(value, kind):
            raise _Impossible(f"use members of {kind.__name__}")
        return value.number
    if not isinstance(value, int) or not is_whole_number(value, field.low, field.high):
        raise _Impossible(f"use whole numbers from {field.low} to {field.high}")
    return value
