"""Run tasks of Django's, with the signals that Django has for that."""

# pyright: reportUnknownMemberType=false
# Django is not typed.

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from horsies.context import worker_id
from horsies.integrations.django import api
from horsies.integrations.django.api import TaskResultStatus
from horsies.integrations.django.results import new_result
from horsies.results import TaskError, TaskResult
from horsies.running import current_task


def runner(backend: type[Any], task: Any) -> Callable[..., Any]:
    """The function that runs one task of Django's in a worker."""

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
        worker_ids=[worker_id() or ""] * running.attempt,
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
