"""Schedules as the dashboard shows them and as its form writes them. Pure functions."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Any, Literal

import msgspec

from horsies.db.queries.schedules import ScheduleRow
from horsies.errors import HorsiesError
from horsies.redaction import Redactor
from horsies.schedule.api import info_from_row
from horsies.schedule.model import TaskSchedule
from horsies.schedule.occurrences import NeverAgain, upcoming, zone_of
from horsies.schedule.patterns import (
    CronSchedule,
    IntervalSchedule,
    SchedulePattern,
    describe,
    from_data,
    to_data,
)
from horsies.web.requests import HttpError

UPCOMING = 5
# The longest definition whose arguments are shown, in characters.
MOST_SHOWN = 20_000

_EVERY = re.compile(r"every\s+(?P<count>[1-9][0-9]{0,8})\s*(?P<unit>s|min|m|h|d)", re.IGNORECASE)
_UNITS = {"s": "seconds", "min": "minutes", "m": "minutes", "h": "hours", "d": "days"}
WAYS = 'Write "every 15 min", a cron expression such as "0 8 * * mon", or a pattern as JSON.'


class SavedSchedule(msgspec.Struct, forbid_unknown_fields=True):
    """A schedule to create, or to replace: a task or a workflow by its definition_key, and when to run it."""

    name: str
    when: str
    task_name: str | None = None
    definition_key: str | None = None
    timezone: str = "UTC"
    kwargs: dict[str, Any] = {}
    overlap: Literal["allow", "skip"] = "allow"


def parse_when(text: str) -> SchedulePattern:
    """Return the pattern that a text describes; raise HttpError if it describes none.

    >>> parse_when("every 15 min")
    IntervalSchedule(seconds=None, minutes=15, hours=None, days=None)
    """
    given = text.strip()
    found = _EVERY.fullmatch(given)
    try:
        if found is not None:
            return IntervalSchedule(**{_UNITS[found["unit"].lower()]: int(found["count"])})
        if given.startswith("{"):
            return from_data(msgspec.json.decode(given, type=dict[str, Any]))
        return CronSchedule(given)
    except HorsiesError as error:
        raise HttpError(400, f"{given[:100]!r} is no time to run at: {error.message}.", WAYS) from None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise HttpError(400, f"{given[:100]!r} is no time to run at: {error}.", WAYS) from None


def when_text(pattern: SchedulePattern) -> str:
    """Return a pattern as `parse_when` reads it.

    >>> when_text(IntervalSchedule(hours=2)), when_text(CronSchedule("0 8 * * mon"))
    ('every 2 h', '0 8 * * mon')
    """
    data = to_data(pattern)
    match pattern:
        case CronSchedule(expression=expression, only_on=()):
            return expression
        case IntervalSchedule() if len(data) == 2:
            unit = next(unit for unit, name in _UNITS.items() if name in data)
            return f"every {data[_UNITS[unit]]} {unit}"
        case _:
            return msgspec.json.encode(data).decode()


def schedule_of(saved: SavedSchedule, stored: TaskSchedule | None, kwargs: dict[str, Any]) -> TaskSchedule:
    """Return the schedule to store. What the form does not show stays as it is stored."""
    given: dict[str, Any] = {
        "name": saved.name,
        "task_name": saved.task_name,
        "definition_key": saved.definition_key,
        "pattern": parse_when(saved.when),
        "timezone": saved.timezone.strip(),
        "kwargs": kwargs,
        "overlap": saved.overlap,
    }
    try:
        return TaskSchedule(**given) if stored is None else replace(stored, **given)
    except HorsiesError as error:
        raise HttpError(400, f"{error.message}.", error.help_text or "") from None


def schedule_view(row: ScheduleRow, redactor: Redactor) -> dict[str, Any]:
    """Return a schedule as the API and the page show it: the task or workflow it runs, and when."""
    info = info_from_row(row)
    schedule = info.schedule
    return {
        "name": info.name,
        "source": info.source,
        "state": "paused" if info.paused_at is not None else "active" if info.enabled else "disabled",
        "task_name": None if schedule is None else schedule.task_name,
        "definition_key": None if schedule is None else schedule.definition_key,
        "kwargs": None
        if schedule is None or len(row.definition) > MOST_SHOWN
        else redactor.json(msgspec.json.encode(schedule.kwargs).decode()),
        "overlap": None if schedule is None else schedule.overlap,
        "written": None
        if schedule is None or len(row.definition) > MOST_SHOWN
        else when_text(schedule.pattern),
        "runs": "?" if schedule is None else schedule.task_name or schedule.definition_key or "?",
        "when": "?" if schedule is None else describe(schedule.pattern),
        "cron": schedule.pattern.expression
        if schedule is not None and isinstance(schedule.pattern, CronSchedule)
        else None,
        "timezone": "?" if schedule is None else schedule.timezone,
        "next_runs": _next_runs(schedule, info.next_run_at),
        "last_run_at": info.last_run_at,
        "last_task_id": info.last_task_id,
        "run_count": info.run_count,
        "skip_count": info.skip_count,
        "error": info.error,
    }


def _next_runs(schedule: TaskSchedule | None, first: datetime | None) -> list[datetime]:
    """Return the next slots of a schedule, none if it is paused or disabled."""
    if schedule is None or first is None or zone_of(schedule.timezone) is None:
        return []
    slots = [first]
    with suppress(NeverAgain):
        for slot in islice(upcoming(schedule.pattern, schedule.timezone, first), UPCOMING - 1):
            slots.append(slot)
    return slots
