"""`horsies schedules`: list, pause, create and run schedules."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, TypeVar

import click
import msgspec

from horsies.app import Horsies
from horsies.cli import CommandGroup
from horsies.cli.locators import require_app
from horsies.cli.options import (
    Database,
    as_json_option,
    database_options,
    load,
    messages,
    subject_argument,
)
from horsies.cli.output import cut, print_json, print_table, raise_all
from horsies.config import AppConfig
from horsies.db.connection import TRANSIENT, explain_connection_error
from horsies.errors import ConfigurationError, DatabaseError, ErrorCode, HorsiesError
from horsies.handle import TaskHandle
from horsies.result import Err
from horsies.schedule.api import ScheduleErrorCode, ScheduleInfo, ScheduleResult, Schedules
from horsies.schedule.model import TaskSchedule
from horsies.schedule.occurrences import NeverAgain, local_slots, zone_of
from horsies.schedule.patterns import CronSchedule, IntervalSchedule, describe, to_data
from horsies.units import counted, time_text

T = TypeVar("T")

SLOTS = 5
_SCHEDULE_FIELDS = (
    "task_name", "definition_key", "queue_name", "timezone", "catch_up_missed", "max_catch_up_runs", "overlap",
)  # fmt: skip
_DURATION = re.compile(r"(?P<count>[1-9][0-9]{0,8})(?P<unit>[smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@click.group(cls=CommandGroup)
def schedules() -> None:
    """List, pause, create and run schedules: those in the code and those created at run time."""


@schedules.command(name="list")
@as_json_option
@database_options
def list_(as_json: bool, database: Database) -> None:
    """List the schedules with their state, next run and last error."""
    found = _unwrap(_schedules(database).list(), database)
    if as_json:
        print_json({"schedules": [_document(info) for info in found]})
        return
    print_table(
        [_row(info) for info in found],
        right=["count"],
        drop=["error", "source", "last run", "zone", "count", "runs"],
    )
    click.echo(counted(len(found), "schedule"))


@schedules.command(name="next")
@subject_argument("name", "NAME")
def next_(name: str, database: Database) -> None:
    """Print the next five runs of a schedule, and the clock changes between them."""
    info = _unwrap(_schedules(database).get(name), database)
    schedule = info.schedule
    if schedule is None or zone_of(schedule.timezone) is None:
        problem = info.error if schedule is None else f"there is no time zone {schedule.timezone!r} here"
        raise _invalid(f"schedule {name!r} has no next run: {problem}")
    now = datetime.now(UTC)
    if info.next_run_at is None:
        click.echo(f"it is {_state(info)}: these would be its next runs")
    rows: list[dict[str, str]] = []
    try:
        start = now
        if info.next_run_at is not None:
            # Go back by so much that this run is the next one.
            pattern = schedule.pattern
            step = pattern.delta if isinstance(pattern, IntervalSchedule) else timedelta(microseconds=1)
            start = info.next_run_at - step
        for at, change in islice(local_slots(schedule.pattern, schedule.timezone, start, now), SLOTS):
            row = {
                "day": at.strftime("%a"),
                f"in {schedule.timezone}": time_text(at, at.tzinfo),
                "in UTC": time_text(at, UTC),
                "": _clock_change(change),
            }
            rows.append(row)
    except (NeverAgain, OverflowError, ValueError):
        if not rows:
            problem = f"its next run is {time_text(info.next_run_at)}, and there is none after that"
            raise _invalid(f"schedule {name!r} has no next run: {problem}") from None
    print_table(rows)


@schedules.command()
@subject_argument("names", "NAME...")
def pause(names: Sequence[str], database: Database) -> None:
    """Pause schedules: skip their runs until they are resumed."""
    api = _schedules(database)
    for name in names:
        _unwrap(api.pause(name), database)
        click.echo(f"{name} is paused")


@schedules.command()
@subject_argument("names", "NAME...")
def resume(names: Sequence[str], database: Database) -> None:
    """Resume schedules with their next run from now on."""
    api = _schedules(database)
    for name in names:
        info = _unwrap(api.resume(name), database)
        click.echo(
            f"{name} runs next at {time_text(info.next_run_at)}"
            if info.next_run_at
            else f"{name} is disabled"
        )


@schedules.command()
@subject_argument("names", "NAME...")
def delete(names: Sequence[str], database: Database) -> None:
    """Delete schedules; their past tasks are kept."""
    api = _schedules(database)
    for name in names:
        _unwrap(api.delete(name), database)
        click.echo(f"{name} is deleted")


@schedules.command(name="run-now")
@subject_argument("name", "NAME")
def run_now(name: str, database: Database) -> None:
    """Run a schedule once at once, and print the id of the task or workflow. Needs the app."""
    handle = _unwrap(_schedules(database, needs_app=True).run_now(name), database)
    click.echo(handle.task_id if isinstance(handle, TaskHandle) else handle.workflow_id)


def _every(_context: click.Context, _param: click.Parameter, value: str | None) -> IntervalSchedule | None:
    if value is None:
        return None
    found = _DURATION.fullmatch(value)
    if found is None:
        raise click.BadParameter(f"{value!r} is no duration; write it as 30s, 15m, 12h or 7d")
    try:
        return IntervalSchedule(**{_UNITS[found["unit"]]: int(found["count"])})
    except HorsiesError as error:
        raise click.BadParameter(messages(error)) from error


def _cron(_context: click.Context, _param: click.Parameter, value: str | None) -> CronSchedule | None:
    try:
        return None if value is None else CronSchedule(value)
    except HorsiesError as error:
        raise click.BadParameter(messages(error)) from error


def _arguments(_context: click.Context, _param: click.Parameter, value: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(value, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise click.BadParameter(f"{cut(value, 100)!r} is no JSON object: {error}") from error


@schedules.command()
@click.option("--task", "task_name", help="Run this task.")
@click.option("--workflow", "definition_key", help="Run the workflow with this definition_key.")
@click.option("--cron", callback=_cron, metavar="TEXT", help='Run at these times, such as "0 3 * * mon-fri".')
@click.option(
    "--every", callback=_every, metavar="DURATION", help="Run at this interval: 30s, 15m, 12h or 7d."
)
@click.option("--timezone", default="UTC", show_default=True, help="Use the local time of this zone.")
@click.option(
    "--kwargs", default="{}", callback=_arguments, metavar="JSON", help="Pass these keyword arguments."
)
@click.option("--queue", "queue_name", help="Use this queue instead of the task's own.")
@click.option("--catch-up", "catch_up_missed", is_flag=True, help="Run every missed time later.")
@click.option(
    "--overlap",
    type=click.Choice(["allow", "skip"]),
    default="allow",
    show_default=True,
    help="Run or skip while the previous run is not finished.",
)
@subject_argument("name", "NAME")
def create(
    name: str,
    cron: CronSchedule | None,
    every: IntervalSchedule | None,
    database: Database,
    **settings: Any,
) -> None:
    """Create a schedule. Needs the app, to validate the task or workflow and its arguments."""
    if (settings["task_name"] is None) == (settings["definition_key"] is None):
        raise click.UsageError("give one of --task and --workflow")
    patterns = [pattern for pattern in (cron, every) if pattern is not None]
    if len(patterns) != 1:
        raise click.UsageError("give one of --cron and --every")
    api = _schedules(database, needs_app=True)
    info = _unwrap(api.create(TaskSchedule(name=name, pattern=patterns[0], **settings)), database)
    click.echo(f"{name} runs first at {time_text(info.next_run_at)}")


def _schedules(database: Database, *, needs_app: bool = False) -> Schedules:
    """Return the schedules of the app, or of a database if the command does not need the app."""
    if needs_app and database.url:
        raise click.UsageError("this command needs the app, and --database-url names a database only")
    locator = require_app(database.app) if needs_app else database.locator
    if locator is not None:
        return load(locator, "WARNING").schedules
    return Horsies(AppConfig(broker=database.postgres)).schedules


def _unwrap(result: ScheduleResult[T], database: Database) -> T:
    """Return the value of a result, or raise its error."""
    if not isinstance(result, Err):
        return result.ok_value
    error = result.err_value
    raise_all(error.errors)
    if isinstance(error.exception, HorsiesError):
        raise error.exception
    if isinstance(error.exception, TRANSIENT):
        raise explain_connection_error(error.exception, database.postgres) from error.exception
    if error.code is ScheduleErrorCode.DB_OPERATION_FAILED:
        raise DatabaseError(
            f"the database could not be read: {error.message}",
            code=ErrorCode.DATABASE_UNREACHABLE,
            help_text="check that the server runs and that the role may use its tables, then try again",
        )
    raise _invalid(error.message)


def _invalid(message: str) -> ConfigurationError:
    return ConfigurationError(
        message,
        code=ErrorCode.CONFIG_INVALID_SCHEDULE,
        help_text="see the schedules with `horsies schedules list`",
    )


def _state(info: ScheduleInfo) -> str:
    if info.paused_at is not None:
        return "paused"
    return "active" if info.enabled else "disabled"


def _row(info: ScheduleInfo) -> dict[str, str]:
    schedule = info.schedule
    return {
        "name": info.name,
        "source": info.source,
        "runs": "?" if schedule is None else schedule.task_name or schedule.definition_key or "?",
        "when": "?" if schedule is None else describe(schedule.pattern),
        "zone": "?" if schedule is None else schedule.timezone,
        "state": _state(info),
        "next run": time_text(info.next_run_at) or "–",
        "last run": time_text(info.last_run_at) or "–",
        "count": f"{info.run_count:,}",
        "error": info.error or "",
    }


def _document(info: ScheduleInfo) -> dict[str, Any]:
    document = asdict(info) | {"state": _state(info), "schedule": None}
    if info.schedule is not None:
        document["schedule"] = {field: getattr(info.schedule, field) for field in _SCHEDULE_FIELDS}
        document["schedule"]["pattern"] = to_data(info.schedule.pattern)
    return document


def _clock_change(change: timedelta) -> str:
    if not change:
        return ""
    direction = "forward" if change > timedelta(0) else "back"
    return f"after the clock went {direction} by {abs(change)}"
