"""Tasks of Django's as they run and as they are recorded, in Django's words."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false
# Django is not typed.

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from horsies.codec import decode_result
from horsies.integrations.django import api
from horsies.integrations.django.api import TaskResultStatus
from horsies.results import TaskError, TaskResult
from horsies.running import current_task
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


def runner(backend: type[Any], task: Any) -> Callable[..., Any]:
    """The function that runs one task of Django's, with the signals that Django has for that."""

    def run(args: list[Any], kwargs: dict[str, Any]) -> TaskResult[Any, TaskError]:
        with _announced(backend, task, args, kwargs) as given:
            return TaskResult(ok=task.func(*given, **kwargs))

    async def run_async(args: list[Any], kwargs: dict[str, Any]) -> TaskResult[Any, TaskError]:
        with _announced(backend, task, args, kwargs) as given:
            return TaskResult(ok=await task.func(*given, **kwargs))

    return run_async if inspect.iscoroutinefunction(task.func) else run


@contextmanager
def _announced(
    backend: type[Any], task: Any, args: list[Any], kwargs: dict[str, Any]
) -> Generator[list[Any]]:
    """Tell Django that a task starts and how it ends; gives its positional arguments."""
    running, now = current_task(), datetime.now(UTC)
    result = new_result(
        task,
        running.id,
        args,
        kwargs,
        status=TaskResultStatus.RUNNING,
        started_at=now,
        last_attempted_at=now,
        worker_ids=["horsies"] * running.attempt,
    )
    api.signals.task_started.send(backend, task_result=result)
    ended = TaskResultStatus.FAILED
    try:
        yield [api.TaskContext(task_result=result), *args] if task.takes_context else args
        ended = TaskResultStatus.SUCCESSFUL
    finally:
        object.__setattr__(result, "status", ended)
        object.__setattr__(result, "finished_at", datetime.now(UTC))
        api.signals.task_finished.send(backend, task_result=result)
