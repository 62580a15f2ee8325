"""A backend for the tasks of Django 6, or of the package django-tasks for earlier versions.

A task is enqueued over Django's own connection: inside `atomic()` it is stored if and only if that commits. OPTIONS may name
the `database` (an alias of DATABASES), or an `app` of your own (`"shop.queue.app"`), with retry policies, limits and other
settings. Only functions that are Django tasks can be run: the name in a row is looked up and never imported.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportIncompatibleVariableOverride=false
# Django is not typed.

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode
from uuid import UUID

import msgspec
from django.conf import settings
from django.core import checks
from django.db import close_old_connections, connections
from django.utils.module_loading import import_string
from psycopg.pq import Conninfo

from horsies.app import Horsies
from horsies.codec import decode_result
from horsies.config import AppConfig, CustomQueueConfig, PostgresConfig, QueueMode
from horsies.db.queries import inspect
from horsies.db.queries.inspect import Attempt, TaskDetail
from horsies.errors import ConfigurationError, ErrorCode, HorsiesError
from horsies.event_loop import run_sync
from horsies.middleware import Middleware, RunContext, worker_id
from horsies.result import TaskError, TaskSendError
from horsies.result import TaskResult as Outcome
from horsies.task_context import current_task

if TYPE_CHECKING or find_spec("django.tasks") is None:
    try:
        from django_tasks import exceptions, signals
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.base import Task, TaskContext, TaskResult, TaskResultStatus
        from django_tasks.base import TaskError as AttemptError
    except ImportError as error:
        raise ConfigurationError(
            "this Django has no tasks",
            code=ErrorCode.EXTRA_NOT_INSTALLED,
            help_text="use Django 6 or later, or install the package django-tasks",
        ) from error
else:
    from django.tasks import exceptions, signals
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskContext, TaskResult, TaskResultStatus
    from django.tasks.base import TaskError as AttemptError

# The app of each alias of TASKS, and the Django tasks that it can run, by name. Django creates a backend for every thread.
_apps: dict[str, Horsies] = {}
_tasks: dict[str, dict[str, Any]] = {}


class HorsiesBackend(BaseTaskBackend):
    """Run Django's tasks in horsies workers: `manage.py horsies worker`."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self._database: str = self.options.get("database", "default")
        if alias not in _apps:
            app: Horsies = (
                import_string(self.options["app"]) if "app" in self.options else self._default_app()
            )
            app.middleware.append(_Connections())
            _apps[alias], _tasks[alias] = app, {}
        self.app = _apps[alias]

    def _default_app(self) -> Horsies:
        """Return an app on one of Django's databases, with the queues of this backend."""
        url = database_url(settings.DATABASES[self._database])
        return Horsies(
            AppConfig(
                broker=PostgresConfig(database_url=url, schema=self.options.get("schema")),
                queue_mode=QueueMode.CUSTOM,
                custom_queues=[
                    CustomQueueConfig(name=name, max_concurrency=None) for name in sorted(self.queues)
                ],
            )
        )

    def _queue_name(self, task: Task[..., Any]) -> str | None:
        """Return the queue name to pass to the app: None for an app that has only the default queue."""
        return task.queue_name if self.app.config.queue_mode is QueueMode.CUSTOM else None

    def validate_task(self, task: Task[..., Any]) -> None:
        """Register a task with the app; Django calls this for each task that is defined.

        A variant of a known task, such as one with another priority, changes nothing.
        """
        super().validate_task(task)
        if task.module_path not in _tasks[self.alias]:
            self.app.task(task.module_path, queue_name=self._queue_name(task))(_runner(type(self), task))
            _tasks[self.alias][task.module_path] = task

    def enqueue(self, task: Task[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> TaskResult[Any]:
        """Send a task over Django's connection."""
        self.validate_task(task)
        result = _new_result(task, "", args, kwargs, enqueued_at=datetime.now(UTC))
        sender = self.app.tasks[task.module_path].with_options(
            priority=to_horsies_priority(task.priority),
            queue_name=self._queue_name(task),
            eta=task.run_after,
            conn=connections[self._database],
        )
        try:
            handle = sender.send(args=result.args, kwargs=result.kwargs).unwrap_or_raise(_not_enqueued)
        except HorsiesError as error:
            raise NotEnqueued(str(error)) from error
        object.__setattr__(result, "id", handle.task_id)
        signals.task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult[Any]:
        """Return the result of a task by its id."""
        found = run_sync(self._look(result_id))
        task = None if found is None else _tasks[self.alias].get(found[0].task_name)
        if found is None or task is None:
            raise exceptions.TaskResultDoesNotExist(result_id)
        return _recorded_result(task, *found)

    async def _look(self, result_id: str) -> tuple[TaskDetail, list[Attempt]] | None:
        try:
            task_id = UUID(result_id)
        except ValueError:
            return None
        async with self.app.get_broker().connection() as connection:
            found = await inspect.task(connection, task_id)
            if found is None:
                return None
            return found, inspect.ended_attempts(await inspect.attempts(connection, found))

    def check(self, **_: Any) -> Iterable[checks.CheckMessage]:
        """Yield an error if the database is not PostgreSQL."""
        vendor = connections[self._database].vendor
        if vendor != "postgresql":
            yield checks.Error(
                f"the task backend {self.alias!r} is on the database {self._database!r}, which is {vendor}",
                hint="name one that is PostgreSQL: OPTIONS = {'database': …}",
                id="horsies.E001",
            )


class NotEnqueued(exceptions.TaskException):
    """The task could not be stored."""


def _not_enqueued(error: TaskSendError) -> NotEnqueued:
    exception = NotEnqueued(f"{error.code}: {error.message}")
    exception.__cause__ = error.exception
    return exception


def to_horsies_priority(priority: int) -> int:
    """Convert Django's priority (100 is first, -100 last) to that of horsies (1 is first, 100 last)."""
    return max(1, 50 - priority // 2)


def database_url(database: Mapping[str, Any]) -> str:
    """Return the URL of one of Django's DATABASES.

    >>> database_url({"NAME": "shop", "USER": "ann", "HOST": "db"})
    'postgresql:///shop?user=ann&host=db'
    """
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    parts = {
        "user": database.get("USER"),
        "password": database.get("PASSWORD"),
        "host": database.get("HOST"),
        "port": database.get("PORT"),
        **{name: value for name, value in database.get("OPTIONS", {}).items() if name in known},
    }
    given = {name: str(value) for name, value in parts.items() if value}
    return f"postgresql:///{quote(str(database['NAME']), safe='')}?{urlencode(given, quote_via=quote)}"


class _Connections(Middleware):
    """Close expired database connections around each task, as Django does around each request."""

    @contextmanager
    def running(self, task: RunContext) -> Generator[None]:  # noqa: ARG002  the same for every task
        close_old_connections()
        yield
        close_old_connections()


def _runner(backend: type[HorsiesBackend], task: Task[..., Any]) -> Callable[..., Any]:
    """Return the function that runs a Django task in a worker."""

    def run(args: list[Any], kwargs: dict[str, Any]) -> Outcome[Any, TaskError]:
        with _send_signals(backend, task, args, kwargs) as given:
            return Outcome(ok=task.func(*given, **kwargs))

    async def run_async(args: list[Any], kwargs: dict[str, Any]) -> Outcome[Any, TaskError]:
        with _send_signals(backend, task, args, kwargs) as given:
            return Outcome(ok=await task.func(*given, **kwargs))

    return run_async if iscoroutinefunction(task.func) else run


@contextmanager
def _send_signals(
    backend: type[HorsiesBackend], task: Task[..., Any], args: list[Any], kwargs: dict[str, Any]
) -> Generator[list[Any]]:
    """Send Django's signals before and after a run; yield the positional arguments of the task."""
    running, now = current_task(), datetime.now(UTC)
    result = _new_result(
        task,
        running.id,
        args,
        kwargs,
        status=TaskResultStatus.RUNNING,
        started_at=now,
        last_attempted_at=now,
        worker_ids=[worker_id() or ""] * running.attempt,
    )
    signals.task_started.send(backend, task_result=result)
    ended = TaskResultStatus.FAILED
    try:
        yield [TaskContext(task_result=result), *args] if task.takes_context else args
        ended = TaskResultStatus.SUCCESSFUL
    finally:
        object.__setattr__(result, "status", ended)
        object.__setattr__(result, "finished_at", datetime.now(UTC))
        signals.task_finished.send(backend, task_result=result)


def _new_result(
    task: Task[..., Any], task_id: str, args: Sequence[Any], kwargs: dict[str, Any], **facts: Any
) -> TaskResult[Any]:
    """Return Django's result of a task: READY, unless `facts` say otherwise."""
    known: dict[str, Any] = {
        "status": TaskResultStatus.READY,
        "errors": [],
        "worker_ids": [],
        "enqueued_at": None,
        "started_at": None,
        "finished_at": None,
        "last_attempted_at": None,
        **facts,
    }
    return TaskResult(task=task, id=task_id, args=list(args), kwargs=kwargs, backend=task.backend, **known)


_STATUS = {
    "PENDING": TaskResultStatus.READY,
    "CLAIMED": TaskResultStatus.READY,
    "RUNNING": TaskResultStatus.RUNNING,
    "COMPLETED": TaskResultStatus.SUCCESSFUL,
}


class _Arguments(msgspec.Struct):
    """The arguments of a task as the backend stores them."""

    args: list[Any] = []
    kwargs: dict[str, Any] = {}


def _recorded_result(task: Task[..., Any], found: TaskDetail, attempts: Sequence[Attempt]) -> TaskResult[Any]:
    """Return Django's result of a stored task with its attempts, the last one first."""
    try:
        given = msgspec.json.decode(found.kwargs or "{}", type=_Arguments)
    except (msgspec.MsgspecError, RecursionError):
        given = _Arguments()  # anybody may have written the row
    result = _new_result(
        task,
        found.task_id,
        given.args,
        given.kwargs,
        status=_STATUS.get(found.status, TaskResultStatus.FAILED),
        enqueued_at=found.sent_at,
        started_at=found.started_at,
        finished_at=found.completed_at or found.failed_at,
        last_attempted_at=found.started_at,
        worker_ids=[str(attempt.worker_id) for attempt in reversed(attempts)],
    )
    if found.result is not None:
        outcome = decode_result(found.result, Any)
        if outcome.is_ok():
            object.__setattr__(result, "_return_value", outcome.ok_value)
        else:
            result.errors.append(_attempt_error(outcome.err_value))
    return result


def _attempt_error(error: TaskError) -> AttemptError:
    exception = error.exception if isinstance(error.exception, dict) else {}
    path = f"{exception.get('module')}.{exception['type']}" if "type" in exception else "builtins.Exception"
    return AttemptError(
        exception_class_path=path,
        traceback=exception.get("traceback") or f"{error.error_code}: {error.message}",
    )
