"""`horsies schedules`: what is to run when, and how to stop it, run it out of turn or have more of it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, TypeVar

import click
import msgspec

from horsies.app import Horsies
from horsies.cli.options import database_options, load, messages
from horsies.cli.report import raise_all
from horsies.cli.tables import print_json, print_table
from horsies.config import AppConfig, PostgresConfig
from horsies.errors import ConfigurationError, DatabaseError, ErrorCode, HorsiesError
from horsies.handle import TaskHandle
from horsies.results import Err
from horsies.schedule.model import TaskSchedule
from horsies.schedule.patterns import CronSchedule, IntervalSchedule, SchedulePattern, describe, to_data
from horsies.schedule.slots import on_the_wall, zone_of
from horsies.scheduler.rows import ScheduleErrorCode, ScheduleInfo, ScheduleResult, Schedules

T = TypeVar("T")

SLOTS = 5
_DURATION = re.compile(r"(?P<count>[1-9][0-9]{0,8})(?P<unit>[smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@click.group()
def schedules() -> None:
    """What is to run when: the schedules of the code, and those made at run time."""


@schedules.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@database_options
def list_(as_json: bool, app: str | None, database_url: PostgresConfig | None) -> None:
    """List the schedules, where they stand, and what is wrong with them."""
    found = _answer(_schedules(app, database_url).list())
    if as_json:
        document = {"schedules": [_document(info) for info in found]}
        print_json(document)
        return
    header = ["name", "source", "runs", "when", "zone", "state", "next run", "last run", "count", "error"]
    print_table(header, [_row(info) for info in found], right=["count"])
    click.echo(f"{len(found)} {'schedule' if len(found) == 1 else 'schedules'}")


@schedules.command(name="next")
@click.argument("name")
@database_options
def next_(name: str, app: str | None, database_url: PostgresConfig | None) -> None:
    """Print the next five slots of a schedule, and where the clock is set in between."""
    info = _answer(_schedules(app, database_url).get(name))
    schedule = info.schedule
    if schedule is None or zone_of(schedule.timezone) is None:
        problem = info.error if schedule is None else f"there is no time zone {schedule.timezone!r} here"
        raise _invalid(f"schedule {name!r} has no slots: {problem}")
    now = datetime.now(UTC)
    if info.next_run_at is None:
        click.echo(f"it is {_state(info)}: these slots would be the next ones")
    start = now if info.next_run_at is None else _before(schedule.pattern, info.next_run_at)
    slots = islice(on_the_wall(schedule.pattern, schedule.timezone, start, now), SLOTS)
    rows = [
        [
            slot.at.strftime("%a %Y-%m-%d %H:%M:%S"),
            slot.at.strftime("%z"),
            _utc(slot.at),
            _change(slot.change),
        ]
        for slot in slots
    ]
    print_table([f"in {schedule.timezone}", "offset", "in UTC", ""], rows)


@schedules.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@database_options
def pause(names: Sequence[str], app: str | None, database_url: PostgresConfig | None) -> None:
    """Let the slots of schedules pass by until they are resumed."""
    there = _schedules(app, database_url)
    for name in names:
        _answer(there.pause(name))
        click.echo(f"{name} is paused")


@schedules.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@database_options
def resume(names: Sequence[str], app: str | None, database_url: PostgresConfig | None) -> None:
    """Go on with the next slots from now."""
    there = _schedules(app, database_url)
    for name in names:
        info = _answer(there.resume(name))
        click.echo(
            f"{name} runs next at {_utc(info.next_run_at)}" if info.next_run_at else f"{name} is disabled"
        )


@schedules.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@database_options
def delete(names: Sequence[str], app: str | None, database_url: PostgresConfig | None) -> None:
    """Forget schedules; their runs stay."""
    there = _schedules(app, database_url)
    for name in names:
        _answer(there.delete(name))
        click.echo(f"{name} is deleted")


@schedules.command(name="run-now")
@click.argument("name")
@database_options
def run_now(name: str, app: str | None, database_url: PostgresConfig | None) -> None:
    """Run what a schedule runs, out of turn, and print the id of the task or workflow. Needs the app."""
    handle = _answer(_schedules(app, database_url, needs_app=True).run_now(name))
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
    except msgspec.DecodeError as error:
        raise click.BadParameter(f"{value!r} is no JSON object: {error}") from error


@schedules.command()
@click.argument("name")
@click.option("--task", "task_name", help="The task to run.")
@click.option("--workflow", "definition_key", help="The workflow to run, by its definition_key.")
@click.option("--cron", callback=_cron, metavar="TEXT", help='When, such as "0 3 * * mon-fri".')
@click.option("--every", callback=_every, metavar="DURATION", help="How often, such as 30s, 15m, 12h or 7d.")
@click.option("--timezone", default="UTC", show_default=True, help="Whose local times these are.")
@click.option("--kwargs", default="{}", callback=_arguments, metavar="JSON", help="The arguments by name.")
@click.option("--queue", "queue_name", help="Another queue than the task's own.")
@click.option("--catch-up", "catch_up_missed", is_flag=True, help="Run every slot that was missed.")
@click.option("--overlap", type=click.Choice(["allow", "skip"]), default="allow", show_default=True)
@database_options
def create(
    name: str,
    cron: CronSchedule | None,
    every: IntervalSchedule | None,
    app: str | None,
    database_url: PostgresConfig | None,
    **settings: Any,
) -> None:
    """Make a schedule. Needs the app, which knows the task or workflow and its arguments."""
    if (settings["task_name"] is None) == (settings["definition_key"] is None):
        raise click.UsageError("give one of --task and --workflow")
    patterns = [pattern for pattern in (cron, every) if pattern is not None]
    if len(patterns) != 1:
        raise click.UsageError("give one of --cron and --every")
    there = _schedules(app, database_url, needs_app=True)
    info = _answer(there.create(TaskSchedule(name=name, pattern=patterns[0], **settings)))
    click.echo(f"{name} runs first at {_utc(info.next_run_at)}")


def _schedules(
    locator: str | None, database_url: PostgresConfig | None, *, needs_app: bool = False
) -> Schedules:
    """The schedules of an app, or, where that will do, of a database."""
    if locator and database_url:
        raise click.UsageError("--app and --database-url each name a database; give one of the two")
    locator = locator or (None if database_url else os.environ.get("HORSIES_APP"))
    if locator:
        return load(locator, "WARNING").schedules
    if needs_app:
        raise click.UsageError("the app is needed here: give --app LOCATOR, or set HORSIES_APP")
    return Horsies(AppConfig(broker=database_url)).schedules


def _answer(answer: ScheduleResult[T]) -> T:
    if not isinstance(answer, Err):
        return answer.ok_value
    error = answer.err_value
    raise_all(error.errors)
    if isinstance(error.exception, HorsiesError):
        raise error.exception
    if error.code is ScheduleErrorCode.DB_OPERATION_FAILED:
        raise DatabaseError(
            f"the database could not be asked: {error.message}",
            code=ErrorCode.DATABASE_UNREACHABLE,
            help_text="see that the server runs and that the role may use its tables, then try again",
        )
    raise _invalid(error.message)


def _invalid(message: str) -> ConfigurationError:
    return ConfigurationError(
        message,
        code=ErrorCode.CONFIG_INVALID_SCHEDULE,
        help_text="see `horsies schedules list` for what there is",
    )


def _before(pattern: SchedulePattern, slot: datetime) -> datetime:
    """A moment after which this slot is the next."""
    return slot - (pattern.delta if isinstance(pattern, IntervalSchedule) else timedelta(microseconds=1))


def _state(info: ScheduleInfo) -> str:
    if info.paused_at is not None:
        return "paused"
    return "active" if info.enabled else "disabled"


def _row(info: ScheduleInfo) -> list[str]:
    schedule = info.schedule
    return [
        info.name,
        info.source,
        "?" if schedule is None else schedule.task_name or schedule.definition_key or "?",
        "?" if schedule is None else describe(schedule.pattern),
        "?" if schedule is None else schedule.timezone,
        _state(info),
        "–" if info.next_run_at is None else _utc(info.next_run_at),
        "–" if info.last_run_at is None else _utc(info.last_run_at),
        f"{info.run_count:,}",
        info.error or "",
    ]


def _document(info: ScheduleInfo) -> dict[str, Any]:
    schedule = info.schedule
    told = asdict(info) | {"state": _state(info)}
    told["schedule"] = None
    if schedule is not None:
        kept = (
            "task_name",
            "definition_key",
            "queue_name",
            "timezone",
            "catch_up_missed",
            "max_catch_up_runs",
        )
        told["schedule"] = {name: getattr(schedule, name) for name in (*kept, "overlap")}
        told["schedule"]["pattern"] = to_data(schedule.pattern)
    return told


def _utc(at: datetime | None) -> str:
    return "–" if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _change(change: timedelta) -> str:
    if not change:
        return ""
    way = "forward" if change > timedelta(0) else "back"
    return f"after the clock went {way} by {abs(change)}"
