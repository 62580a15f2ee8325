"""Read tasks from the database as the records that users get."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar
from uuid import UUID

from horsies.codec import decode_result
from horsies.db.connection import Connection
from horsies.db.ids import not_before
from horsies.db.queries import inspect
from horsies.result import TaskAttemptInfo, TaskInfo
from horsies.status import TaskAttemptOutcome, TaskStatus, member

R = TypeVar("R", TaskInfo, TaskAttemptInfo)


def as_uuid(task_id: str | UUID) -> UUID | None:
    """Return the id as a UUID, None if it is none.

    >>> as_uuid("nonsense")
    """
    try:
        return UUID(str(task_id))
    except ValueError:
        return None


async def read(
    connection: Connection,
    task_id: UUID,
    value_type: Any = Any,
    *,
    with_result: bool = False,
    with_reason: bool = False,
    with_attempts: bool = False,
) -> TaskInfo | None:
    """Return a task, None if there is none; its result is decoded as a `value_type`."""
    task = await inspect.task(connection, task_id, since=not_before([task_id]))
    if task is None:
        return None
    result = attempts = None
    if with_result and task.result is not None:
        result = decode_result(task.result, value_type)
    if with_attempts:
        ended = inspect.ended_attempts(await inspect.attempts(connection, task))
        attempts = tuple(
            _copy(
                TaskAttemptInfo,
                each,
                task_id=task.task_id,
                outcome=member(TaskAttemptOutcome, each.outcome),
            )
            for each in ended
        )
    return _copy(
        TaskInfo,
        task,
        status=member(TaskStatus, task.status),
        failed_reason=task.failed_reason if with_reason else None,
        result=result,
        attempts=attempts,
    )


async def read_stale(connection: Connection, seconds: float) -> list[TaskInfo]:
    """Return up to 1,000 claimed or running tasks whose worker is dead, unknown, or silent for so many seconds."""
    return [_listed(row) for row in await inspect.stale_tasks(connection, seconds)]


async def read_overdue(connection: Connection) -> list[TaskInfo]:
    """Return up to 1,000 pending tasks whose `good_until` has passed."""
    return [_listed(row) for row in await inspect.overdue_tasks(connection)]


def _listed(row: inspect.TaskRow) -> TaskInfo:
    status = member(TaskStatus, row.status)
    return _copy(TaskInfo, row, status=status, failed_reason=None, result=None, attempts=None)


def _copy(record: type[R], row: object, **other: Any) -> R:
    """Return a record with these fields, and all others copied from the row by their names."""
    names = [field.name for field in fields(record) if field.name not in other]
    return record(**{name: getattr(row, name) for name in names}, **other)
