"""Schedules made, changed and stopped while everything runs: `app.schedules`.

What could not be run is refused here as it is when a scheduler starts, before it is written down. Every running scheduler
is told, so that a change counts from the next slot on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeVar

import psycopg

from horsies.errors import HorsiesError, mask_passwords
from horsies.handle import TaskHandle
from horsies.portal import run_async, run_sync
from horsies.registry import TaskRegistry
from horsies.results import Err, Ok, Result
from horsies.schedule.definition import Unreadable, Written, read
from horsies.schedule.model import TaskSchedule
from horsies.schedule.slots import next_run, zone_of
from horsies.scheduler.roster import statement
from horsies.scheduler.targets import Run, Starters, Unknown
from horsies.sending import Refused
from horsies.storage import schedules
from horsies.storage.database import TRANSIENT, Connection
from horsies.storage.ids import new_ids
from horsies.storage.schedules import Known, Listed
from horsies.workflow.handle import WorkflowHandle

T = TypeVar("T")
Work = Callable[[Connection], Awaitable[T]]
# What a schedule runs is a task or a workflow.
RunHandle = TaskHandle[Any] | WorkflowHandle[Any]


class ScheduleErrorCode(StrEnum):
    """Why something could not be done with a schedule."""

    INVALID = "INVALID"
    EXISTS = "EXISTS"
    NOT_FOUND = "NOT_FOUND"
    IN_CODE = "IN_CODE"
    DB_OPERATION_FAILED = "DB_OPERATION_FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleError:
    """Why something could not be done; when the schedule is invalid, `errors` has all that is wrong with it."""

    code: ScheduleErrorCode
    message: str
    errors: tuple[HorsiesError, ...] = ()
    retryable: bool = False
    exception: BaseException | None = field(default=None, repr=False)


ScheduleResult = Result[T, ScheduleError]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleInfo:
    """A schedule and its record. `schedule` is None when what is stored cannot be read."""

    name: str
    source: str
    schedule: TaskSchedule | None
    enabled: bool
    paused_at: datetime | None
    next_run_at: datetime | None
    last_run_at: datetime | None
    last_task_id: str | None
    run_count: int
    skip_count: int
    error: str | None
    error_at: datetime | None


class _Failed(Exception):
    """Carries an error out of the transaction that it undoes."""

    def __init__(self, code: ScheduleErrorCode, message: str, errors: tuple[HorsiesError, ...] = ()) -> None:
        super().__init__(message)
        self.error = ScheduleError(code=code, message=message, errors=errors)


class Schedules:
    """The schedules in the database, those of the code and those made at run time.

    >>> app.schedules.create(TaskSchedule(name="report-7", task_name="report", pattern=HourlySchedule(minute=0)))
    """

    def __init__(self, app: TaskRegistry) -> None:
        self._app = app
        self._starters = Starters(app)

    def create(self, schedule: TaskSchedule) -> ScheduleResult[ScheduleInfo]:
        """Make a schedule; its first slot is the next one from now.

        >>> app.schedules.create(
        ...     TaskSchedule(name="digest-42", task_name="digest", kwargs={"user": 42}, pattern=CronSchedule("0 8 * * mon"))
        ... )
        """
        return run_sync(self._do(lambda connection: self._create(connection, schedule)))

    async def create_async(self, schedule: TaskSchedule) -> ScheduleResult[ScheduleInfo]:
        """As `create`, without blocking the running loop."""
        return await run_async(self._do(lambda connection: self._create(connection, schedule)))

    def update(self, schedule: TaskSchedule) -> ScheduleResult[ScheduleInfo]:
        """Replace the schedule of the same name; its slots begin anew only if its pattern or time zone is another.

        >>> app.schedules.update(replace(schedule, overlap="skip"))
        """
        return run_sync(self._do(lambda connection: self._update(connection, schedule)))

    async def update_async(self, schedule: TaskSchedule) -> ScheduleResult[ScheduleInfo]:
        """As `update`, without blocking the running loop."""
        return await run_async(self._do(lambda connection: self._update(connection, schedule)))

    def pause(self, name: str) -> ScheduleResult[ScheduleInfo]:
        """Let the slots of a schedule pass by until it is resumed, across restarts and whoever has it in the code.

        >>> app.schedules.pause("digest-42")
        """
        return run_sync(self._do(lambda connection: self._pause(connection, name)))

    async def pause_async(self, name: str) -> ScheduleResult[ScheduleInfo]:
        """As `pause`, without blocking the running loop."""
        return await run_async(self._do(lambda connection: self._pause(connection, name)))

    def resume(self, name: str) -> ScheduleResult[ScheduleInfo]:
        """Go on with the next slot from now; those of the pause are not made up for.

        >>> app.schedules.resume("digest-42").unwrap().next_run_at
        """
        return run_sync(self._do(lambda connection: self._resume(connection, name)))

    async def resume_async(self, name: str) -> ScheduleResult[ScheduleInfo]:
        """As `resume`, without blocking the running loop."""
        return await run_async(self._do(lambda connection: self._resume(connection, name)))

    def delete(self, name: str) -> ScheduleResult[None]:
        """Forget a schedule; its runs stay. One that this app has in its code cannot be deleted, but paused.

        >>> app.schedules.delete("digest-42")
        """
        return run_sync(self._do(lambda connection: self._delete(connection, name)))

    async def delete_async(self, name: str) -> ScheduleResult[None]:
        """As `delete`, without blocking the running loop."""
        return await run_async(self._do(lambda connection: self._delete(connection, name)))

    def list(self) -> ScheduleResult[list[ScheduleInfo]]:
        """All schedules, by name.

        >>> [info.name for info in app.schedules.list().unwrap() if info.error]
        """
        return run_sync(self._do(_list))

    async def list_async(self) -> ScheduleResult[list[ScheduleInfo]]:
        """As `list`, without blocking the running loop."""
        return await run_async(self._do(_list))

    def get(self, name: str) -> ScheduleResult[ScheduleInfo]:
        """One schedule.

        >>> app.schedules.get("digest-42").unwrap().next_run_at
        """
        return run_sync(self._do(lambda connection: _info(connection, name)))

    async def get_async(self, name: str) -> ScheduleResult[ScheduleInfo]:
        """As `get`, without blocking the running loop."""
        return await run_async(self._do(lambda connection: _info(connection, name)))

    def run_now(self, name: str) -> ScheduleResult[RunHandle]:
        """Run what a schedule runs, out of turn; its slots stay where they are, and it may be paused.

        >>> app.schedules.run_now("digest-42").unwrap().get()
        """
        return run_sync(self._do(lambda connection: self._run_now(connection, name)))

    async def run_now_async(self, name: str) -> ScheduleResult[RunHandle]:
        """As `run_now`, without blocking the running loop."""
        return await run_async(self._do(lambda connection: self._run_now(connection, name)))

    async def _do(self, work: Work[T]) -> ScheduleResult[T]:
        """Carry something out in a transaction; errors come back as values."""
        try:
            return Ok(await self._app.get_broker().transact(work))
        except _Failed as failed:
            return Err(failed.error)
        except (psycopg.Error, HorsiesError, OSError) as error:
            return Err(
                ScheduleError(
                    code=ScheduleErrorCode.DB_OPERATION_FAILED,
                    message=mask_passwords(str(error)) or type(error).__name__,
                    retryable=isinstance(error, TRANSIENT),
                    exception=error,
                )
            )

    async def _create(self, connection: Connection, schedule: TaskSchedule) -> ScheduleInfo:
        self._refuse_invalid(schedule)
        now = await schedules.now(connection)
        said = statement(schedule, None, self._starters, now)
        if schedule.name in self._in_code or not await schedules.create(connection, said):
            raise _Failed(ScheduleErrorCode.EXISTS, f"there is a schedule {schedule.name!r} already")
        return await _info(connection, schedule.name)

    async def _update(self, connection: Connection, schedule: TaskSchedule) -> ScheduleInfo:
        self._refuse_invalid(schedule)
        known = await _held(connection, schedule.name)
        if known.source == "code" or schedule.name in self._in_code:
            problem = f"schedule {schedule.name!r} is in the code; change it there"
            raise _Failed(ScheduleErrorCode.IN_CODE, problem)
        await schedules.change(connection, statement(schedule, known, self._starters, known.now))
        return await _info(connection, schedule.name)

    async def _pause(self, connection: Connection, name: str) -> ScheduleInfo:
        await schedules.pause(connection, name)
        return await _info(connection, name)

    async def _resume(self, connection: Connection, name: str) -> ScheduleInfo:
        known = await _held(connection, name)
        if known.next_run_at is None:
            schedule = _read(known).schedule
            if zone_of(schedule.timezone) is None:
                raise _Failed(ScheduleErrorCode.INVALID, f"there is no time zone {schedule.timezone!r} here")
            next_run_at = next_run(schedule.pattern, schedule.timezone, known.now) if known.enabled else None
            await schedules.resume(connection, name, next_run_at)
        return await _info(connection, name)

    async def _delete(self, connection: Connection, name: str) -> None:
        if name in self._in_code:
            problem = f"schedule {name!r} is in the code; take it out there, or pause it"
            raise _Failed(ScheduleErrorCode.IN_CODE, problem)
        if not await schedules.delete(connection, name):
            raise _unknown(name)

    async def _run_now(self, connection: Connection, name: str) -> RunHandle:
        known = await _held(connection, name)
        written = _read(known)
        try:
            starter = self._starters.of(written.schedule)
            what = starter.prepare(written)
        except (Unknown, Refused) as error:
            raise _Failed(ScheduleErrorCode.INVALID, f"schedule {name!r}: {error}") from error
        (task_id,) = await starter.start(connection, [Run(new_ids(1)[0], known.now, what)])
        await schedules.ran(connection, name, task_id)
        return starter.handle(what, task_id)

    def _refuse_invalid(self, schedule: TaskSchedule) -> None:
        if errors := tuple(self._starters.problems(schedule)):
            message = "; ".join(f"{error.message}: {error.help_text}" for error in errors)
            raise _Failed(ScheduleErrorCode.INVALID, message, errors)

    @property
    def _in_code(self) -> set[str]:
        config = self._app.config.schedule
        return set() if config is None else {schedule.name for schedule in config.schedules}


async def _list(connection: Connection) -> list[ScheduleInfo]:
    return [_described(row) for row in await schedules.listing(connection)]


async def _info(connection: Connection, name: str) -> ScheduleInfo:
    for row in await schedules.listing(connection, name):
        return _described(row)
    raise _unknown(name)


async def _held(connection: Connection, name: str) -> Known:
    known = await schedules.hold(connection, name)
    if known is None:
        raise _unknown(name)
    return known


def _unknown(name: str) -> _Failed:
    return _Failed(ScheduleErrorCode.NOT_FOUND, f"there is no schedule {name!r}")


def _read(known: Known) -> Written:
    try:
        return read(known.name, known.definition, enabled=known.enabled)
    except Unreadable as error:
        raise _Failed(
            ScheduleErrorCode.INVALID, f"schedule {known.name!r} cannot be read: {error}"
        ) from error


def _described(row: Listed) -> ScheduleInfo:
    error, schedule = row.error, None
    try:
        schedule = read(row.name, row.definition, enabled=row.enabled).schedule
    except Unreadable as problem:
        error = error or str(problem)
    return ScheduleInfo(
        name=row.name,
        source=row.source,
        schedule=schedule,
        enabled=row.enabled,
        paused_at=row.paused_at,
        next_run_at=row.next_run_at,
        last_run_at=row.last_run_at,
        last_task_id=None if row.last_task_id is None else str(row.last_task_id),
        run_count=row.run_count,
        skip_count=row.skip_count,
        error=error,
        error_at=row.error_at,
    )
