"""The tasks of an app, by name, with the settings they share.

Everything that is wrong with a task is said where it is defined: its annotation, its options, its queue, its name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, overload
from uuid import UUID

from horsies.broker import Broker
from horsies.codec import Signature
from horsies.config import AppConfig, CustomQueueConfig, QueueMode
from horsies.errors import (
    ConfigurationError,
    ErrorCode,
    HorsiesError,
    RegistryError,
    SourceLocation,
    TaskDefinitionError,
    ValidationReport,
    is_whole_number,
)
from horsies.handle import TaskHandle
from horsies.rates import RateLimit
from horsies.results import TaskError, TaskResult
from horsies.retry import ExceptionMapper, RetryPolicy, check_exception_mapper, is_error_code
from horsies.sending import MAX_TIMEOUT_MS, MIN_TIMEOUT_MS, TaskDefinition, Unique
from horsies.task import AsyncTask, BaseTask, Task
from horsies.workflow.handle import WorkflowHandle
from horsies.workflow.inspection import Builder
from horsies.workflow.nodes import AnyNode, Node, OnError, SuccessPolicy
from horsies.workflow.spec import WorkflowSpec

P = ParamSpec("P")
T = TypeVar("T")
ChildProcessStartHook = Callable[[], None]
AnyTask = BaseTask[..., Any]

MAX_NAME_LENGTH = 255


class _Decorator:
    """What `@app.task(...)` gives: turns a function into a task of the kind that it is."""

    def __init__(self, registry: TaskRegistry, name: str, options: Mapping[str, Any]) -> None:
        self._registry = registry
        self._name = name
        self._options = options

    @overload
    def __call__(  # an async function also matches the second form, which is therefore second
        self, fn: Callable[P, Coroutine[Any, Any, TaskResult[T, TaskError]]], /
    ) -> AsyncTask[P, T]: ...
    @overload
    def __call__(self, fn: Callable[P, TaskResult[T, TaskError]], /) -> Task[P, T]: ...
    def __call__(self, fn: Callable[..., Any], /) -> AnyTask:
        return self._registry.register(fn, self._name, **self._options)


class TaskRegistry:
    """The part of an app that producers, workers and checks all need."""

    def __init__(self, config: AppConfig | None = None, *, run_schema_migrations: bool = True) -> None:
        self.config = config or AppConfig()
        self.tasks: dict[str, AnyTask] = {}
        self.task_modules: list[str] = []
        self.workflow_builders: list[Builder] = []
        self.child_hooks: list[ChildProcessStartHook] = []
        self._broker = Broker(self.config, run_schema_migrations=run_schema_migrations)
        self._queues = {queue.name: queue for queue in self.config.queues}

    def task(
        self,
        task_name: str,
        *,
        queue_name: str | None = None,
        retry_policy: RetryPolicy | None = None,
        exception_mapper: ExceptionMapper | None = None,
        default_unhandled_error_code: str | None = None,
        timeout_ms: int | None = None,
        priority: int | None = None,
        unique: Unique = None,
        on_failure: AnyTask | str | None = None,
        idempotent: bool = False,
        rate_limit: str | None = None,
        **unknown: Any,
    ) -> _Decorator:
        """Make a task of the function below; it must return `TaskResult[T, TaskError]`.

        >>> @app.task("add")
        ... def add(x: int, y: int) -> TaskResult[int, TaskError]:
        ...     return TaskResult(ok=x + y)
        """
        if not isinstance(task_name, str):  # pyright: ignore[reportUnnecessaryIsInstance]  (people write @app.task)
            raise TaskDefinitionError(
                f"@app.task was given {task_name!r} where the task's name belongs",
                code=ErrorCode.TASK_INVALID_OPTIONS,
                help_text='name the task: @app.task("add")',
            )
        options = {
            "queue_name": queue_name,
            "retry_policy": retry_policy,
            "exception_mapper": exception_mapper,
            "default_unhandled_error_code": default_unhandled_error_code,
            "timeout_ms": timeout_ms,
            "priority": priority,
            "unique": unique,
            "on_failure": on_failure.name if isinstance(on_failure, BaseTask) else on_failure,
            "idempotent": idempotent,
            "rate_limit": rate_limit,
        }
        return _Decorator(self, task_name, {**options, "unknown": unknown})

    def register(
        self,
        fn: Callable[..., Any],
        name: str,
        *,
        queue_name: str | None,
        unknown: Mapping[str, Any],
        **options: Any,
    ) -> AnyTask:
        """Add a task; reports all that is wrong with it together."""
        report = ValidationReport(f"task {name!r}")
        for error in _problems(fn, name, unknown, options):
            report.add(error)
        queue = report.collect(lambda: self._queue_of(name, queue_name))
        signature = report.collect(lambda: Signature.of(fn, task_name=name))
        report.raise_if_any()
        assert queue is not None and signature is not None  # noqa: PT018  what is None has been reported
        is_async = inspect.iscoroutinefunction(fn)
        definition = TaskDefinition(
            name=name, fn=fn, signature=signature, queue=queue, is_async=is_async, **options
        )
        task = (AsyncTask[..., Any] if is_async else Task[..., Any])(definition, self._broker)
        self._add(task)
        return task

    def _add(self, task: AnyTask) -> None:
        known = self.tasks.get(task.name)
        if known is not None and _origin(known.definition.fn) != _origin(task.definition.fn):
            where = _origin(known.definition.fn)
            raise RegistryError(
                f"task {task.name!r} is defined twice",
                code=ErrorCode.TASK_DUPLICATE_NAME,
                location=_origin(task.definition.fn),
                notes=[f"the first one is at {where.file}:{where.line}"],
                help_text="give each task a name of its own",
            )
        self.tasks[task.name] = task

    def _queue_of(self, name: str, queue_name: str | None) -> CustomQueueConfig:
        custom = self.config.queue_mode is QueueMode.CUSTOM
        if queue_name is None and custom:
            raise ConfigurationError(
                f"task {name!r} names no queue, and the app has queues of its own",
                code=ErrorCode.CONFIG_INVALID_QUEUE_MODE,
                help_text=f"add queue_name=…; one of: {', '.join(self._queues)}",
            )
        if queue_name is not None and not custom:
            raise ConfigurationError(
                f"task {name!r} names the queue {queue_name!r}, and the app has one queue only",
                code=ErrorCode.CONFIG_INVALID_QUEUE_MODE,
                help_text="leave queue_name out, or configure AppConfig(queue_mode=QueueMode.CUSTOM, custom_queues=[…])",
            )
        queue = self._queues.get(queue_name) if queue_name is not None else next(iter(self._queues.values()))
        if queue is None:
            raise TaskDefinitionError(
                f"task {name!r} uses queue {queue_name!r}, which is not configured",
                code=ErrorCode.TASK_INVALID_QUEUE,
                help_text=f"add CustomQueueConfig(name={queue_name!r}), or use one of: {', '.join(self._queues)}",
            )
        return queue

    def handle(self, task_id: str | UUID, task: AnyTask | None = None) -> TaskHandle[Any]:
        """A handle to a task by its id; with its task given, the result is decoded to its type, else as plain JSON.

        >>> app.handle("0198f0c2-…", add).get()
        """
        value_type = Any if task is None else task.definition.signature.value_type
        return TaskHandle(str(task_id), self._broker, value_type)

    def workflow(
        self,
        name: str,
        tasks: Sequence[AnyNode],
        on_error: OnError = OnError.FAIL,
        output: Node[T] | None = None,
        success_policy: SuccessPolicy | None = None,
        *,
        definition_key: str | None = None,
        deadline_seconds: float | None = None,
    ) -> WorkflowSpec[T]:
        """A workflow of these nodes, checked: everything that is wrong with it is reported together.

        >>> spec = app.workflow("import", [fetch, parse], output=parse, definition_key="shop.import.v1")
        """
        return WorkflowSpec(
            name=name,
            tasks=tasks,
            on_error=on_error,
            output=output,
            success_policy=success_policy,
            definition_key=definition_key or "",
            deadline_seconds=deadline_seconds,
            broker=self._broker,
            resend_on_transient_err=self.config.resend_on_transient_err,
            app=self,
        )

    def workflow_builder(
        self, cases: Sequence[Mapping[str, Any]] | None = None
    ) -> Callable[[Callable[P, WorkflowSpec[T]]], Callable[P, WorkflowSpec[T]]]:
        """Have a function that makes workflows tried out by `horsies check`, with each of these arguments.

        >>> @app.workflow_builder(cases=[{"month": 1}, {"month": 12}])
        ... def monthly(month: int) -> WorkflowSpec[int]: ...
        """

        def known(fn: Callable[P, WorkflowSpec[T]]) -> Callable[P, WorkflowSpec[T]]:
            self.workflow_builders.append(Builder(fn, cases))
            return fn

        return known

    def workflow_handle(self, workflow_id: str | UUID) -> WorkflowHandle[Any]:
        """A handle to a workflow by its id; values come as plain JSON.

        >>> app.workflow_handle("0198f0c2-…").status()
        """
        return WorkflowHandle(str(workflow_id), self._broker)

    def discover_tasks(self, modules: Sequence[str]) -> None:
        """Say where tasks are defined: dotted modules, or paths of files. Nothing is imported yet.

        >>> app.discover_tasks(["myapp.tasks", "jobs/nightly.py"])
        """
        self.task_modules = list(modules)

    def on_child_process_start(self, hook: ChildProcessStartHook) -> ChildProcessStartHook:
        """Run a function without arguments in every child process before its first task; may be used as a decorator."""
        if not callable(hook) or inspect.iscoroutinefunction(hook) or inspect.signature(hook).parameters:
            raise ConfigurationError(
                f"{hook!r} cannot run when a child process starts",
                code=ErrorCode.CONFIG_INVALID_CHILD_HOOK,
                help_text="pass a plain function that takes no arguments",
            )
        self.child_hooks.append(hook)
        return hook

    def list_tasks(self) -> list[str]:
        """The names of the tasks that are known so far."""
        return sorted(self.tasks)

    def get_valid_queue_names(self) -> list[str]:
        return list(self._queues)

    def get_broker(self) -> Broker:
        return self._broker

    def suppress_sends(self, suppress: bool) -> None:
        """While suppressed, a send returns `Err(SEND_SUPPRESSED)` and stores nothing."""
        self._broker.sends_suppressed = suppress

    def are_sends_suppressed(self) -> bool:
        return self._broker.sends_suppressed


def _origin(fn: Callable[..., Any]) -> SourceLocation:
    code = fn.__code__
    return SourceLocation(code.co_filename, code.co_firstlineno)


def _problems(
    fn: Callable[..., Any], name: str, unknown: Mapping[str, Any], options: Mapping[str, Any]
) -> list[HorsiesError]:
    """What is wrong with the options of a task."""

    def wrong(message: str, remedy: str, code: ErrorCode = ErrorCode.TASK_INVALID_OPTIONS) -> HorsiesError:
        return TaskDefinitionError(f"task {name!r} {message}", code=code, help_text=remedy)

    found = [wrong(f"has the unknown option {option!r}", _remedy_for(option)) for option in unknown]
    if not 1 <= len(name) <= MAX_NAME_LENGTH or "\0" in name:
        found.append(
            wrong("has an unusable name", f"use 1 to {MAX_NAME_LENGTH} characters of any text but NUL")
        )
    if hasattr(fn, "__wrapped__") or not inspect.isfunction(fn):
        found.append(
            wrong(
                "wraps something that is not a plain function",
                "put @app.task directly above the def, below no other decorator",
                ErrorCode.TASK_PREDECORATED_NOT_SUPPORTED,
            )
        )
    for option, low, high in (("timeout_ms", MIN_TIMEOUT_MS, MAX_TIMEOUT_MS), ("priority", 1, 100)):
        value = options[option]
        if value is not None and not is_whole_number(value, low, high):
            found.append(wrong(f"has {option}={value!r}", f"use a whole number from {low} to {high}"))
    if options["unique"] not in (None, "args") and not callable(options["unique"]):
        found.append(wrong(f"has unique={options['unique']!r}", 'use "args" or a function of the arguments'))
    if options["rate_limit"] is not None and RateLimit.parse(options["rate_limit"]) is None:
        found.append(
            wrong(
                f"has rate_limit={options['rate_limit']!r}",
                'write starts per period: "10/s", "100/m" or "500/h"',
            )
        )
    if options["on_failure"] is not None and not isinstance(options["on_failure"], str):
        found.append(wrong(f"has on_failure={options['on_failure']!r}", "use a task or the name of one"))
    code = options["default_unhandled_error_code"]
    if code is not None and not is_error_code(code):
        found.append(wrong(f"has default_unhandled_error_code={code!r}", "use a code such as MY_ERROR"))
    if options["retry_policy"] is not None and not isinstance(options["retry_policy"], RetryPolicy):
        found.append(
            wrong(f"has retry_policy={options['retry_policy']!r}", "use RetryPolicy.fixed or .exponential")
        )
    if options["exception_mapper"] is not None:
        found += check_exception_mapper(options["exception_mapper"], f"task {name!r}")
    return found


def _remedy_for(option: str) -> str:
    match option:
        case "auto_retry_for":
            return "it belongs to the policy: retry_policy=RetryPolicy.fixed([60], auto_retry_for=[…])"
        case "good_until":
            return "it belongs to one send: task.with_options(good_until=…).send(…)"
        case _:
            return "leave it out"
