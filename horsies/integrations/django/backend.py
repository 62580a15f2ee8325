"""A backend for `django.tasks`. A task is enqueued by Django's own connection: inside `atomic()` it exists when that commits.

OPTIONS may name the `database` (an alias of DATABASES), or an `app` of your own (`"shop.queue.app"`), for retry policies,
limits and everything else that an app can set.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportIncompatibleVariableOverride=false
# Django is not typed.

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.core import checks
from django.db import connections

from horsies.integrations.django.api import BaseTaskBackend, Task, TaskResult, exceptions, signals
from horsies.integrations.django.queue import queue_of
from horsies.integrations.django.results import Recorded, new_result, recorded_result
from horsies.integrations.django.runner import runner
from horsies.portal import run_sync
from horsies.results import TaskSendError
from horsies.storage import monitor
from horsies.storage import tasks as rows


class HorsiesBackend(BaseTaskBackend):
    """Runs Django's tasks in horsies workers: `manage.py horsies worker`."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.queue = queue_of(alias, self.queues, self.options)
        self._database: str = self.options.get("database", "default")

    def validate_task(self, task: Task[..., Any]) -> None:
        """Called by Django for each task that is defined, which is how the app comes to know it."""
        super().validate_task(task)
        self.queue.add(task, runner(type(self), task))

    def enqueue(self, task: Task[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> TaskResult[Any]:
        self.validate_task(task)
        result = new_result(task, "", args, kwargs, enqueued_at=datetime.now(UTC))
        sender = self.queue.app.tasks[task.module_path].with_options(
            priority=urgency(task.priority),
            queue_name=self.queue.name_of(task.queue_name),
            eta=task.run_after,
            conn=connections[self._database],
        )
        handle = sender.send(args=result.args, kwargs=result.kwargs).unwrap_or_raise(_refusal)
        object.__setattr__(result, "id", handle.task_id)
        signals.task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult[Any]:
        found = run_sync(self._look(result_id))
        task = None if found is None else self.queue.tasks.get(found.state.task_name)
        if found is None or task is None:
            raise exceptions.TaskResultDoesNotExist(result_id)
        return recorded_result(task, found)

    async def _look(self, result_id: str) -> Recorded | None:
        try:
            task_id = UUID(result_id)
        except ValueError:
            return None
        async with self.queue.app.get_broker().connection() as connection:
            found = await monitor.task(connection, task_id)
            return None if found is None else Recorded(*found, await rows.attempts(connection, task_id))

    def check(self, **_: Any) -> Iterable[checks.CheckMessage]:
        vendor = connections[self._database].vendor
        if vendor != "postgresql":
            yield checks.Error(
                f"the task backend {self.alias!r} is on the database {self._database!r}, which is {vendor}",
                hint="name one that is PostgreSQL: OPTIONS = {'database': …}",
                id="horsies.E001",
            )


class NotEnqueued(exceptions.TaskException):
    """The task could not be written."""


def _refusal(error: TaskSendError) -> NotEnqueued:
    refusal = NotEnqueued(f"{error.code}: {error.message}")
    refusal.__cause__ = error.exception
    return refusal


def urgency(priority: int) -> int:
    """A priority of ours (1 is first, 100 last) for one of Django's (100 is first, -100 last)."""
    return max(1, 50 - priority // 2)
