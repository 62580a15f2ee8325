"""Tasks as they are recorded, in Django's words."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false
# Django is not typed.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from horsies.codec import decode_result
from horsies.integrations.django import api
from horsies.integrations.django.api import TaskResultStatus
from horsies.results import TaskError
from horsies.storage.monitor import Payload, TaskState

_STATUS = {
    "PENDING": TaskResultStatus.READY,
    "CLAIMED": TaskResultStatus.READY,
    "RUNNING": TaskResultStatus.RUNNING,
    "COMPLETED": TaskResultStatus.SUCCESSFUL,
}
# Where the worker of an attempt stands in its row.
_WORKER_ID = 9


class Recorded(NamedTuple):
    """A task as it is stored, with its attempts, newest first."""

    state: TaskState
    payload: Payload
    attempts: Sequence[tuple[Any, ...]]


def new_result(
    task: Any, task_id: str, args: Sequence[Any], kwargs: dict[str, Any], **facts: Any
) -> api.TaskResult[Any]:
    """What Django knows of a task that is READY, or of one of which more is said."""
    blank = dict.fromkeys(("enqueued_at", "started_at", "finished_at", "last_attempted_at"))
    known: dict[str, Any] = {
        "status": TaskResultStatus.READY,
        "errors": [],
        "worker_ids": [],
        **blank,
        **facts,
    }
    return api.TaskResult(
        task=task, id=task_id, args=list(args), kwargs=kwargs, backend=task.backend, **known
    )


def recorded_result(task: Any, found: Recorded) -> api.TaskResult[Any]:
    """What Django knows of a task that is stored."""
    state, payload, attempts = found
    given = msgspec.json.decode(payload.kwargs or "{}")
    result = new_result(
        task,
        state.task_id,
        given.get("args", []),
        given.get("kwargs", {}),
        status=_STATUS.get(state.status, TaskResultStatus.FAILED),
        enqueued_at=state.sent_at,
        started_at=state.started_at,
        finished_at=state.completed_at or state.failed_at,
        last_attempted_at=state.started_at,
        worker_ids=[str(attempt[_WORKER_ID]) for attempt in reversed(attempts)],
    )
    if payload.result is not None:
        outcome = decode_result(payload.result.encode(), Any)
        if outcome.is_ok():
            object.__setattr__(result, "_return_value", outcome.ok_value)
        else:
            result.errors.append(_error(outcome.err_value))
    return result


def _error(error: TaskError) -> Any:
    told = error.exception if isinstance(error.exception, dict) else {}
    path = f"{told['module']}.{told['type']}" if "type" in told else "builtins.Exception"
    return api.AttemptError(
        exception_class_path=path, traceback=told.get("traceback") or f"{error.error_code}: {error.message}"
    )
