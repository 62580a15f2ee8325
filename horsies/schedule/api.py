"""Create, change, pause and run schedules at run time: `app.schedules`.

A schedule that no scheduler could run is rejected before it is stored. Every running scheduler is notified, so that a change
applies from the next slot on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import field
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeVar, TypeVarTuple

import psycopg

from horsies.db.connection import TRANSIENT, Connection
from horsies.db.ids import new_ids
from horsies.db.queries import schedules
from horsies.db.queries.schedules import ScheduleRow
from horsies.enqueue import InvalidSend
from horsies.errors import HorsiesError, mask_passwords
from horsies.event_loop import run_async, run_sync
from horsies.frozen import dataclass
from horsies.handle import TaskHandle
from horsies.registry import TaskRegistry
from horsies.result import Err, Ok, Result
from horsies.schedule.model import TaskSchedule, UnreadableDefinition, decode_definition
from horsies.schedule.occurrences import next_run, zone_of
from horsies.schedule.scheduler import Run, Starters, UnknownTarget, new_row
from horsies.workflow.handle import WorkflowHandle

T = TypeVar("T")
Args = TypeVarTuple("Args")
# A schedule runs a task or a workflow.
RunHandle = TaskHandle[Any] | WorkflowHandle[Any]


class ScheduleErrorCode(StrEnum):
    """The reason why an operation on a schedule failed."""

    INVALID = "INVALID"
    EXISTS = "EXISTS"
    NOT_FOUND = "NOT_FOUND"
    IN_CODE = "IN_CODE"
    DB_OPERATION_FAILED = "DB_OPERATION_FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleError:
    """The failure of an operation on a schedule; `errors` has every problem of an invalid schedule."""

    code: ScheduleErrorCode
    message: str
    errors: tuple[HorsiesError, ...] = ()
    retryable: bool = False
    exception: BaseException | None = field(default=None, repr=False)


ScheduleResult = Result[T, ScheduleError]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleInfo:
    """A stored schedule with its last and next runs. `schedule` is None if its definition cannot be decoded."""

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
    """Raised to roll the transaction back and return an error."""

    def __init__(self, code: ScheduleErrorCode, message: str, errors: tuple[HorsiesError, ...] = ()) -> None:
        super().__init__(message)
        self.error = ScheduleError(code=code, message=message, errors=errors)


class Schedules:
    """The schedules in the database: those from code and those made at run time.

    >>> app.schedules.create(TaskSchedule(name="report-7", task_name="report", pattern=HourlySchedule(minute=0)))
    """

    def __init__(self, app: TaskRegistry) -> None:
        self._app = app
        self._starters = Starters(app)

    def create(self, schedule: TaskSchedule) -> ScheduleResult[ScheduleInfo]:
        """Create a schedule; its first slot is the next one from now.

        >>> app.schedules.create(
        ...     TaskSchedule(name="digest-42", task_name="digest", kwargs={"user": 42}, pattern=CronSchedule("0 8 * * mon"))
        ... )
        """
        return run_sync(self._transact(self._create, schedule))

    async def create_async(self, schedule: TaskSchedule) -> ScheduleResult[ScheduleInfo]:
        """Do the same as `create`, without blocking the running loop."""
        return await run_async(self._transact(self._create, schedule))

    def update(self, schedule: TaskSchedule) -> ScheduleResult[ScheduleInfo]:
        """Replace the schedule of the same name; its next slot changes only if its pattern or time zone does.

        >>> app.schedules.update(replace(schedule, overlap="skip"))
        """
        return run_sync(self._transact(self._update, schedule))

    async def update_async(self, schedule: TaskSchedule) -> ScheduleResult[ScheduleInfo]:
        """Do the same as `update`, without blocking the running loop."""
        return await run_async(self._transact(self._update, schedule))

    def pause(self, name: str) -> ScheduleResult[ScheduleInfo]:
        """Pause a schedule until it is resumed; a restart of a scheduler that has it in its code does not resume it.

        >>> app.schedules.pause("digest-42")
        """
        return run_sync(self._transact(self._pause, name))

    async def pause_async(self, name: str) -> ScheduleResult[ScheduleInfo]:
        """Do the same as `pause`, without blocking the running loop."""
        return await run_async(self._transact(self._pause, name))

    def resume(self, name: str) -> ScheduleResult[ScheduleInfo]:
        """Resume a schedule with its next slot from now; slots during the pause are not caught up.

        >>> app.schedules.resume("digest-42").unwrap().next_run_at
        """
        return run_sync(self._transact(self._resume, name))

    async def resume_async(self, name: str) -> ScheduleResult[ScheduleInfo]:
        """Do the same as `resume`, without blocking the running loop."""
        return await run_async(self._transact(self._resume, name))

    def delete(self, name: str) -> ScheduleResult[None]:
        """Delete a schedule and keep its runs. A schedule in this app's code can only be paused.

        >>> app.schedules.delete("digest-42")
        """
        return run_sync(self._transact(self._delete, name))

    async def delete_async(self, name: str) -> ScheduleResult[None]:
        """Do the same as `delete`, without blocking the running loop."""
        return await run_async(self._transact(self._delete, name))

    def list(self) -> ScheduleResult[list[ScheduleInfo]]:
        """Return all schedules, sorted by name.

        >>> [info.name for info in app.schedules.list().unwrap() if info.error]
        """
        return run_sync(self._transact(_list))

    async def list_async(self) -> ScheduleResult[list[ScheduleInfo]]:
        """Do the same as `list`, without blocking the running loop."""
        return await run_async(self._transact(_list))

    def get(self, name: str) -> ScheduleResult[ScheduleInfo]:
        """Return one schedule.

        >>> app.schedules.get("digest-42").unwrap().next_run_at
        """
        return run_sync(self._transact(_info, name))

    async def get_async(self, name: str) -> ScheduleResult[ScheduleInfo]:
        """Do the same as `get`, without blocking the running loop."""
        return await run_async(self._transact(_info, name))

    def run_now(self, name: str) -> ScheduleResult[RunHandle]:
        """Run a schedule's task or workflow now, even if it is paused; its next slot does not change.

        >>> app.schedules.run_now("digest-42").unwrap().get()
        """
        return run_sync(self._transact(self._run_now, name))

    async def run_now_async(self, name: str) -> ScheduleResult[RunHandle]:
        """Do the same as `run_now`, without blocking the running loop."""
        return await run_async(self._transact(self._run_now, name))

    async def _transact(
        self, work: Callable[[Connection, *Args], Awaitable[T]], *args: *Args
    ) -> ScheduleResult[T]:
        """Call `work` with a connection, in a transaction; return errors as values."""
        try:
            return Ok(await self._app.get_broker().transact(lambda connection: work(connection, *args)))
        except _Failed as failed:
            return Err(failed.error)
        except (psycopg.Error, HorsiesError, OSError, UnicodeError) as error:
            return Err(
                ScheduleError(
                    code=ScheduleErrorCode.DB_OPERATION_FAILED,
                    message=mask_passwords(str(error)) or type(error).__name__,
                    retryable=isinstance(error, TRANSIENT),
                    exception=error,
                )
            )

    async def _create(self, connection: Connection, schedule: TaskSchedule) -> ScheduleInfo:
        self._raise_if_invalid(schedule)
        now = await schedules.now(connection)
        row = new_row(schedule, None, self._starters, now)
        if schedule.name in self._in_code or not await schedules.create(connection, row):
            raise _Failed(ScheduleErrorCode.EXISTS, f"there is a schedule {schedule.name!r} already")
        return await _info(connection, schedule.name)

    async def _update(self, connection: Connection, schedule: TaskSchedule) -> ScheduleInfo:
        self._raise_if_invalid(schedule)
        stored = await _locked(connection, schedule.name)
        if stored.source == "code" or schedule.name in self._in_code:
            problem = f"schedule {schedule.name!r} is in the code; change it there"
            raise _Failed(ScheduleErrorCode.IN_CODE, problem)
        await schedules.update(connection, new_row(schedule, stored, self._starters, stored.now))
        return await _info(connection, schedule.name)

    async def _pause(self, connection: Connection, name: str) -> ScheduleInfo:
        await schedules.pause(connection, name)
        return await _info(connection, name)

    async def _resume(self, connection: Connection, name: str) -> ScheduleInfo:
        stored = await _locked(connection, name)
        if stored.next_run_at is None:
            schedule, _ = _decode(stored)
            if zone_of(schedule.timezone) is None:
                raise _Failed(ScheduleErrorCode.INVALID, f"there is no time zone {schedule.timezone!r} here")
            next_run_at = (
                next_run(schedule.pattern, schedule.timezone, stored.now) if stored.enabled else None
            )
            await schedules.resume(connection, name, next_run_at)
        return await _info(connection, name)

    async def _delete(self, connection: Connection, name: str) -> None:
        if name in self._in_code:
            problem = f"schedule {name!r} is in the code; take it out there, or pause it"
            raise _Failed(ScheduleErrorCode.IN_CODE, problem)
        if not await schedules.delete(connection, name):
            raise _not_found(name)

    async def _run_now(self, connection: Connection, name: str) -> RunHandle:
        stored = await _locked(connection, name)
        schedule, arguments = _decode(stored)
        try:
            starter = self._starters.for_schedule(schedule)
            prepared = starter.prepare(schedule, arguments)
        except (UnknownTarget, InvalidSend) as error:
            raise _Failed(ScheduleErrorCode.INVALID, f"schedule {name!r}: {error}") from error
        (task_id,) = await starter.start(connection, [Run(new_ids(1)[0], stored.now, prepared)])
        await schedules.record_run(connection, name, task_id)
        return starter.handle(prepared, task_id)

    def _raise_if_invalid(self, schedule: TaskSchedule) -> None:
        if errors := tuple(self._starters.problems(schedule)):
            message = "; ".join(f"{error.message}: {error.help_text}" for error in errors)
            raise _Failed(ScheduleErrorCode.INVALID, message, errors)

    @property
    def _in_code(self) -> set[str]:
        config = self._app.schedule_config
        return set() if config is None else {schedule.name for schedule in config.schedules}


async def _list(connection: Connection) -> list[ScheduleInfo]:
    return [info_from_row(row) for row in await schedules.listing(connection)]


async def _info(connection: Connection, name: str) -> ScheduleInfo:
    for row in await schedules.listing(connection, name):
        return info_from_row(row)
    raise _not_found(name)


async def _locked(connection: Connection, name: str) -> ScheduleRow:
    stored = await schedules.lock_one(connection, name)
    if stored is None:
        raise _not_found(name)
    return stored


def _not_found(name: str) -> _Failed:
    return _Failed(ScheduleErrorCode.NOT_FOUND, f"there is no schedule {name!r}")


def _decode(row: ScheduleRow) -> tuple[TaskSchedule, str]:
    try:
        return decode_definition(row.name, row.definition, enabled=row.enabled)
    except UnreadableDefinition as error:
        raise _Failed(ScheduleErrorCode.INVALID, f"schedule {row.name!r} cannot be read: {error}") from error


def info_from_row(row: ScheduleRow) -> ScheduleInfo:
    """Return a stored schedule as users see it; a definition that cannot be decoded is reported as its error."""
    error, schedule = row.error, None
    try:
        schedule, _ = decode_definition(row.name, row.definition, enabled=row.enabled)
    except UnreadableDefinition as problem:
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
