"""The tasks of an app, by name, with their common settings.

Every error of a task (its name, annotations, options or queue) is raised where the task is defined.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any, Literal, Never, ParamSpec, TypeVar, cast, overload
from uuid import UUID

from horsies.client import Broker
from horsies.codec import Signature
from horsies.config import AppConfig, CustomQueueConfig, QueueMode
from horsies.durations import Duration, RateLimit, in_milliseconds, in_seconds, is_duration
from horsies.enqueue import MAX_TIMEOUT_MS, MIN_TIMEOUT_MS, ON_CONFLICT, OnConflict, TaskDefinition, Unique
from horsies.errors import (
    ConfigurationError,
    ErrorCode,
    HorsiesError,
    RegistryError,
    SourceLocation,
    TaskDefinitionError,
    ValidationReport,
    is_error_code,
    is_whole_number,
)
from horsies.events import WORKER_KINDS, Hook
from horsies.handle import TaskHandle
from horsies.keys import BATCH_PREFIX, LANE_PREFIX, CostOption, KeyOption
from horsies.middleware import Middleware
from horsies.names import qualified_name
from horsies.result import TaskError, TaskResult
from horsies.retry import (
    DEFAULT_POLICY,
    ExceptionMapper,
    RetryableErrors,
    RetryPolicy,
    add_errors,
    as_items,
    check_exception_mapper,
    is_retryable_error,
)
from horsies.schedule.model import ScheduleConfig, TaskSchedule
from horsies.task import (
    AsyncPlainTask,
    AsyncTask,
    BaseTask,
    BatchTask,
    PlainTask,
    Task,
    known_options,
    unknown_option,
)
from horsies.workflow.definition import Builder
from horsies.workflow.handle import WorkflowHandle
from horsies.workflow.nodes import AnyNode, Node, OnError, Subgraph, SuccessPolicy
from horsies.workflow.spec import WorkflowSpec

P = ParamSpec("P")
A = TypeVar("A")
T = TypeVar("T")
H = TypeVar("H", bound=Hook)
ChildProcessStartHook = Callable[[], None]
AnyTask = BaseTask[..., Any]

MAX_NAME_LENGTH = 255
MAX_KEY_CONCURRENCY = 1_000_000
MAX_BATCH = 1_000
MAX_LINGER_SECONDS = 3_600
# By whether the function is async, and whether it returns a TaskResult.
_TASK_CLASSES: Mapping[tuple[bool, bool], type[AnyTask]] = {
    (False, False): PlainTask,
    (True, False): AsyncPlainTask,
    (False, True): Task,
    (True, True): AsyncTask,
}
_MISPLACED_OPTIONS = {
    "auto_retry_for": "use retry_on=(…); or give it to the policy: retry_policy=RetryPolicy.fixed([60], auto_retry_for=[…])",
    "good_until": "it belongs to one send: task.with_options(good_until=…).send(…)",
}


class _Decorator:
    """The decorator that `@app.task(...)` returns: makes a task of a function."""

    def __init__(self, registry: TaskRegistry, name: str | None, options: Mapping[str, Any]) -> None:
        self._registry = registry
        self._name = name
        self._options = options

    # The order counts: an async function also matches the forms of a sync one, and a result those of a plain value.
    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload]
        self, fn: Callable[P, Coroutine[Any, Any, TaskResult[T, TaskError]]], /
    ) -> AsyncTask[P, T]: ...
    @overload
    def __call__(self, fn: Callable[P, TaskResult[T, TaskError]], /) -> Task[P, T]: ...
    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, T]], /) -> AsyncPlainTask[P, T]: ...
    @overload
    def __call__(self, fn: Callable[P, T], /) -> PlainTask[P, T]: ...
    def __call__(self, fn: Callable[..., Any], /) -> AnyTask:
        return self._registry.register(fn, self._name, **self._options)


class _BatchDecorator:
    """The decorator that `@app.task(batch=…)` returns: makes a task of a function that takes a list and returns one."""

    def __init__(self, registry: TaskRegistry, name: str | None, options: Mapping[str, Any]) -> None:
        self._registry = registry
        self._name = name
        self._options = options

    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload]
        self, fn: Callable[[list[A]], Coroutine[Any, Any, list[TaskResult[T, TaskError]]]], /
    ) -> BatchTask[A, T]: ...
    @overload
    def __call__(self, fn: Callable[[list[A]], list[TaskResult[T, TaskError]]], /) -> BatchTask[A, T]: ...
    @overload
    def __call__(self, fn: Callable[[list[A]], Coroutine[Any, Any, list[T]]], /) -> BatchTask[A, T]: ...
    @overload
    def __call__(self, fn: Callable[[list[A]], list[T]], /) -> BatchTask[A, T]: ...
    def __call__(self, fn: Callable[..., Any], /) -> AnyTask:
        return self._registry.register(fn, self._name, **self._options)


class TaskRegistry:
    """The part of an app that producers, workers and checks need."""

    def __init__(
        self, config: AppConfig | None = None, *, run_schema_migrations: bool = True, **unknown: Never
    ) -> None:
        for keyword in unknown:
            raise _unknown_keyword(type(self).__name__, keyword)
        self.config = config or AppConfig()
        self.tasks: dict[str, AnyTask] = {}
        self.task_modules: list[str] = []
        self.workflow_builders: list[Builder] = []
        self.declared_schedules: list[TaskSchedule] = []
        self.child_hooks: list[ChildProcessStartHook] = []
        self.event_hooks: dict[str, list[Hook]] = {}
        self._broker = Broker(self.config, run_schema_migrations=run_schema_migrations)
        self._queues = {queue.name: queue for queue in self.config.all_queues}

    @property
    def middleware(self) -> list[Middleware]:
        """Return the middleware around every send and every run of this app's tasks; append to it."""
        return self._broker.middleware

    @property
    def schedule_config(self) -> ScheduleConfig | None:
        """Return the schedules of the configuration and those declared with `@app.schedule`; None if there are neither."""
        config = self.config.schedule
        if not self.declared_schedules:
            return config
        config = config or ScheduleConfig()
        return replace(config, schedules=(*config.schedules, *self.declared_schedules))

    @overload
    def task(  # pyright: ignore[reportOverlappingOverload]  as for the decorator above
        self, task_name: Callable[P, Coroutine[Any, Any, TaskResult[T, TaskError]]], /
    ) -> AsyncTask[P, T]: ...
    @overload
    def task(self, task_name: Callable[P, TaskResult[T, TaskError]], /) -> Task[P, T]: ...
    @overload
    def task(self, task_name: Callable[P, Coroutine[Any, Any, T]], /) -> AsyncPlainTask[P, T]: ...
    @overload
    def task(self, task_name: Callable[P, T], /) -> PlainTask[P, T]: ...
    @overload
    def task(
        self,
        task_name: str | None = None,
        *,
        queue_name: str | None = None,
        queue: str | None = None,
        retry_policy: RetryPolicy | None = None,
        retry_on: RetryableErrors | type[BaseException] | None = None,
        exception_mapper: ExceptionMapper | None = None,
        default_unhandled_error_code: str | None = None,
        timeout_ms: int | timedelta | None = None,
        timeout: Duration | None = None,
        priority: int | None = None,
        unique: Unique = None,
        on_conflict: OnConflict | None = None,
        on_failure: AnyTask | str | None = None,
        idempotent: bool = False,
        rate_limit: str | None = None,
        key: KeyOption = None,
        key_concurrency: int | None = None,
        key_rate: str | None = None,
        cost: CostOption = None,
        batch: None = None,
        linger: None = None,
        **unknown: Never,
    ) -> _Decorator: ...
    @overload
    def task(
        self,
        task_name: str | None = None,
        *,
        batch: int,
        linger: Duration | None = None,
        queue_name: str | None = None,
        queue: str | None = None,
        retry_policy: RetryPolicy | None = None,
        retry_on: RetryableErrors | type[BaseException] | None = None,
        exception_mapper: ExceptionMapper | None = None,
        default_unhandled_error_code: str | None = None,
        timeout_ms: int | timedelta | None = None,
        timeout: Duration | None = None,
        priority: int | None = None,
        unique: Unique = None,
        on_conflict: OnConflict | None = None,
        on_failure: AnyTask | str | None = None,
        idempotent: bool = False,
        **unknown: Never,
    ) -> _BatchDecorator: ...
    def task(
        self,
        task_name: str | Callable[..., Any] | None = None,
        *,
        queue_name: str | None = None,
        queue: str | None = None,
        retry_policy: RetryPolicy | None = None,
        retry_on: RetryableErrors | type[BaseException] | None = None,
        exception_mapper: ExceptionMapper | None = None,
        default_unhandled_error_code: str | None = None,
        timeout_ms: int | timedelta | None = None,
        timeout: Duration | None = None,
        priority: int | None = None,
        unique: Unique = None,
        on_conflict: OnConflict | None = None,
        on_failure: AnyTask | str | None = None,
        idempotent: bool = False,
        rate_limit: str | None = None,
        key: KeyOption = None,
        key_concurrency: int | None = None,
        key_rate: str | None = None,
        cost: CostOption = None,
        batch: int | None = None,
        linger: Duration | None = None,
        **unknown: Any,
    ) -> Any:
        """Make a task of the function below. Without a name, it is called `module.function`.

        The function returns a plain value of any type with a JSON form, or `TaskResult[T, TaskError]`. With `batch`, it takes
        a list and returns one: a worker calls it once for up to so many sends.

        >>> @app.task
        ... def add(x: int, y: int) -> int:
        ...     return x + y
        >>> @app.task("charge", queue="payments", retry_on=(ConnectionError,), timeout=30)
        ... def charge(order_id: int) -> None:
        ...     raise TaskFailure("CARD_DECLINED", "the bank said no")
        """
        options: dict[str, Any] = {
            "queue_name": queue_name,
            "queue": queue,
            "retry_policy": retry_policy,
            "retry_on": retry_on,
            "exception_mapper": exception_mapper,
            "default_unhandled_error_code": default_unhandled_error_code,
            "timeout_ms": timeout_ms,
            "timeout": timeout,
            "priority": priority,
            "unique": unique,
            "on_conflict": on_conflict,
            "on_failure": on_failure.name if isinstance(on_failure, BaseTask) else on_failure,
            "idempotent": idempotent,
            "rate_limit": rate_limit,
            "key": key,
            "key_concurrency": key_concurrency,
            "key_rate": key_rate,
            "cost": cost,
            "batch": batch,
            "linger": linger,
            "unknown": unknown,
        }
        if isinstance(task_name, str | None):
            decorator = _Decorator if batch is None else _BatchDecorator
            return decorator(self, task_name, options)
        if callable(task_name):
            return self.register(task_name, None, **options)
        raise TaskDefinitionError(
            f"@app.task was given {task_name!r} where the task's name belongs",
            code=ErrorCode.TASK_INVALID_OPTIONS,
            help_text='write @app.task, or name the task: @app.task("add")',
        )

    def register(
        self, fn: Callable[..., Any], given_name: str | None, *, unknown: Mapping[str, Any], **options: Any
    ) -> AnyTask:
        """Add a task; raise all of its errors together."""
        name = _default_name(fn) if given_name is None else given_name
        report = ValidationReport(f"task {name!r}")
        for error in _problems(fn, name, unknown, options):
            report.add(error)
        queue_name = options["queue_name"] if options["queue"] is None else options["queue"]
        queue = report.collect(lambda: self._find_queue(name, queue_name))
        is_batch = options["batch"] is not None
        signature = report.collect(lambda: Signature.of(fn, task_name=name, batch=is_batch))
        for error in _key_problems(name, signature, options):
            report.add(error)
        for error in _batch_problems(name, queue, self.config.cluster_wide_cap, options):
            report.add(error)
        report.raise_if_any()
        assert queue is not None and signature is not None  # noqa: PT018  otherwise raise_if_any has raised
        is_async = inspect.iscoroutinefunction(fn)
        definition = TaskDefinition(
            name=name, fn=fn, signature=signature, queue=queue, is_async=is_async, **_resolved(options)
        )
        task_class = _TASK_CLASSES[is_async, signature.returns_result]
        task: AnyTask = (BatchTask[Any, Any] if is_batch else task_class)(definition, self._broker)
        task.registry = self
        known = self.tasks.get(name)
        if known is not None and _origin(known.definition.fn) != _origin(fn):
            first = _origin(known.definition.fn)
            raise RegistryError(
                f"task {name!r} is defined twice",
                code=ErrorCode.TASK_DUPLICATE_NAME,
                location=_origin(fn),
                notes=[f"the first one is at {first.file}:{first.line}"],
                help_text="give each task a name of its own",
            )
        self.tasks[name] = task
        return task

    def _find_queue(self, name: str, queue_name: str | None) -> CustomQueueConfig:
        custom = self.config.queue_mode is QueueMode.CUSTOM
        if queue_name is None and custom:
            raise ConfigurationError(
                f"task {name!r} names no queue, and the app has queues of its own",
                code=ErrorCode.CONFIG_INVALID_QUEUE_MODE,
                help_text=f"add queue_name=…; one of: {', '.join(self._queues)}",
            )
        if queue_name is not None and not custom and self.config.queues is None:
            raise ConfigurationError(
                f"task {name!r} names the queue {queue_name!r}, and the app has one queue only",
                code=ErrorCode.CONFIG_INVALID_QUEUE_MODE,
                help_text=f"leave queue_name out, or configure AppConfig(queues=[{queue_name!r}])",
            )
        queue = self._queues.get(queue_name) if queue_name is not None else next(iter(self._queues.values()))
        if queue is None:
            added = (
                f"add CustomQueueConfig(name={queue_name!r})"
                if custom
                else f"add {queue_name!r} to queues=[…]"
            )
            raise TaskDefinitionError(
                f"task {name!r} uses queue {queue_name!r}, which is not configured",
                code=ErrorCode.TASK_INVALID_QUEUE,
                help_text=f"{added}, or use one of: {', '.join(self._queues)}",
            )
        return queue

    @overload
    def handle(self, task_id: str | UUID, task: None = None) -> TaskHandle[Any]: ...
    @overload
    def handle(self, task_id: str | UUID, task: BaseTask[..., T]) -> TaskHandle[T]: ...
    def handle(self, task_id: str | UUID, task: AnyTask | None = None) -> TaskHandle[Any]:
        """Return a handle to a task by its id. The result has the type that `task` returns, or is plain JSON without it.

        >>> app.handle("0198f0c2-…", add).get()
        """
        if not isinstance(cast(object, task), BaseTask | None):
            raise TaskDefinitionError(
                f"app.handle was given {task!r} as the task",
                code=ErrorCode.TASK_INVALID_OPTIONS,
                help_text="pass the decorated function: app.handle(task_id, add)",
            )
        if task is None:
            return TaskHandle(str(task_id), self._broker, Any)
        return TaskHandle(str(task_id), self._broker, task.definition.signature.value_type, task.name)

    def workflow(
        self,
        name: str,
        tasks: Sequence[AnyNode | Subgraph[Any]] | Subgraph[T],
        on_error: OnError | Literal["fail", "pause", "FAIL", "PAUSE"] = OnError.FAIL,
        output: Node[T] | None = None,
        success_policy: SuccessPolicy | None = None,
        *,
        definition_key: str | None = None,
        deadline_seconds: Duration | None = None,
    ) -> WorkflowSpec[T]:
        """Return a validated workflow of these nodes, chains and groups; raise all of its errors together.

        Given one chain or group, its output is that of the workflow, and the definition key defaults to the name.

        >>> spec = app.workflow("import", [fetch, parse], output=parse, definition_key="shop.import.v1")
        """
        return WorkflowSpec(
            name=name,
            tasks=cast("Sequence[AnyNode]", tasks),
            on_error=cast(OnError, on_error),
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
        """Register a function that builds workflows, for `horsies check` to call with each of these cases of arguments.

        >>> @app.workflow_builder(cases=[{"month": 1}, {"month": 12}])
        ... def monthly(month: int) -> WorkflowSpec[int]: ...
        """

        def register(fn: Callable[P, WorkflowSpec[T]]) -> Callable[P, WorkflowSpec[T]]:
            self.workflow_builders.append(Builder(fn, cases))
            return fn

        return register

    def workflow_handle(self, workflow_id: str | UUID) -> WorkflowHandle[Any]:
        """Return a handle to a workflow by its id; its values are plain JSON.

        >>> app.workflow_handle("0198f0c2-…").status()
        """
        return WorkflowHandle(str(workflow_id), self._broker)

    def discover_tasks(self, modules: Sequence[str]) -> None:
        """Set the modules or files that define tasks; they are imported later.

        >>> app.discover_tasks(["myapp.tasks", "jobs/nightly.py"])
        """
        self.task_modules = list(modules)

    def on_child_process_start(self, hook: ChildProcessStartHook) -> ChildProcessStartHook:
        """Call a function without arguments in every child process before its first task; usable as a decorator."""
        if not callable(hook) or inspect.iscoroutinefunction(hook) or inspect.signature(hook).parameters:
            raise ConfigurationError(
                f"{hook!r} cannot run when a child process starts",
                code=ErrorCode.CONFIG_INVALID_CHILD_HOOK,
                help_text="pass a plain function that takes no arguments",
            )
        self.child_hooks.append(hook)
        return hook

    @overload
    def on(self, kind: str, hook: None = None) -> Callable[[H], H]: ...
    @overload
    def on(self, kind: str, hook: H) -> H: ...
    def on(self, kind: str, hook: H | None = None) -> H | Callable[[H], H]:
        """Call a function with each `Event` of this kind, or with "*" of any kind, that a worker of this app causes.

        It runs in a thread of the worker's main process, after the event; its exceptions are logged.

        >>> @app.on("failed")
        ... def alarm(event: Event) -> None:
        ...     page_somebody(f"{event.task_name} {event.task_id}: {event.error_code}")
        """
        if kind not in (*WORKER_KINDS, "*"):
            raise ConfigurationError(
                f"workers have no {kind!r} events",
                code=ErrorCode.CONFIG_INVALID_VALUE,
                help_text=f'use "*" or one of: {", ".join(WORKER_KINDS)}; `horsies events --follow` shows all others, too',
            )
        if hook is None:
            return lambda decorated: self.on(kind, decorated)
        if not callable(hook) or inspect.iscoroutinefunction(hook):
            raise ConfigurationError(
                f"{hook!r} cannot be called with an event",
                code=ErrorCode.CONFIG_INVALID_VALUE,
                help_text="pass a plain function that takes an Event",
            )
        self.event_hooks.setdefault(kind, []).append(hook)
        return hook

    def list_tasks(self) -> list[str]:
        """Return the names of all registered tasks."""
        return sorted(self.tasks)

    def get_valid_queue_names(self) -> list[str]:
        """Return the names of the app's queues."""
        return list(self._queues)

    def get_broker(self) -> Broker:
        """Return the app's connections to the database."""
        return self._broker

    def suppress_sends(self, suppress: bool) -> None:
        """Turn sends off or on; while they are off, a send returns `Err(SEND_SUPPRESSED)` and stores nothing."""
        self._broker.sends_suppressed = suppress

    def are_sends_suppressed(self) -> bool:
        """Return True while sends are suppressed."""
        return self._broker.sends_suppressed


def _unknown_keyword(owner: str, keyword: str) -> ConfigurationError:
    """Return the error for a keyword that an app does not take; its value may be a password and is not quoted."""
    settings = [setting.name for setting in fields(AppConfig)]
    if keyword in settings:
        remedy = f"it is a setting: {owner}(AppConfig({keyword}=…))"
    elif keyword in ("database", "database_url", "url", "dsn"):
        remedy = f'pass the database as {owner}(AppConfig.for_database_url("postgresql://…")), or set HORSIES_DATABASE_URL'
    else:
        remedy = f"pass settings as {owner}(AppConfig(…)); they are: {', '.join(settings)}"
    return ConfigurationError(
        f"{owner} takes no argument {keyword!r}", code=ErrorCode.CONFIG_INVALID_VALUE, help_text=remedy
    )


def _default_name(fn: Callable[..., Any]) -> str:
    # A callable object has no name, and is rejected.
    return qualified_name(fn) if hasattr(fn, "__qualname__") else repr(fn)


def _origin(fn: Callable[..., Any]) -> SourceLocation:
    code = fn.__code__
    return SourceLocation(code.co_filename, code.co_firstlineno)


def _problems(
    fn: Callable[..., Any], name: str, unknown: Mapping[str, Any], options: Mapping[str, Any]
) -> Iterator[HorsiesError]:
    """Yield an error for each invalid option of a task."""

    def wrong(message: str, remedy: str, code: ErrorCode = ErrorCode.TASK_INVALID_OPTIONS) -> HorsiesError:
        return TaskDefinitionError(f"task {name!r} {message}", code=code, help_text=remedy)

    for option in unknown:
        remedy = _MISPLACED_OPTIONS.get(option)
        yield (
            unknown_option(f"task {name!r}", option, ["task_name", *known_options(TaskRegistry.task)])
            if remedy is None
            else wrong(f"has the unknown option {option!r}", remedy)
        )
    if not 1 <= len(name) <= MAX_NAME_LENGTH or "\0" in name:
        yield wrong("has an unusable name", f"use 1 to {MAX_NAME_LENGTH} characters of any text but NUL")
    if hasattr(fn, "__wrapped__") or not inspect.isfunction(fn):
        yield wrong(
            "wraps something that is not a plain function",
            "put @app.task directly above the def, below no other decorator",
            ErrorCode.TASK_PREDECORATED_NOT_SUPPORTED,
        )
    if options["priority"] is not None and not is_whole_number(options["priority"], 1, 100):
        yield wrong(f"has priority={options['priority']!r}", "use a whole number from 1 to 100")
    for one, other in (("timeout", "timeout_ms"), ("queue", "queue_name")):
        if options[one] is not None and options[other] is not None:
            yield wrong(f"has both {one}= and {other}=", f"use {one}= alone")
    yield from (wrong(*problem) for problem in _timeout_problems(options))
    yield from (wrong(*problem) for problem in _retry_problems(options))
    unique, rate_limit, on_failure = options["unique"], options["rate_limit"], options["on_failure"]
    if unique not in (None, "args") and not callable(unique):
        yield wrong(f"has unique={unique!r}", 'use "args" or a function of the arguments')
    on_conflict = options["on_conflict"]
    if on_conflict is not None and on_conflict not in ON_CONFLICT:
        yield wrong(f"has on_conflict={on_conflict!r}", f"use one of: {', '.join(map(repr, ON_CONFLICT))}")
    elif on_conflict is not None and unique is None:
        yield wrong(
            f"has on_conflict={on_conflict!r} and is not unique",
            'it is about sends with the same unique key: add unique="args"',
        )
    if rate_limit is not None and RateLimit.parse(rate_limit) is None:
        yield wrong(f"has rate_limit={rate_limit!r}", 'write starts per period: "10/s", "100/m" or "500/h"')
    if on_failure is not None and not isinstance(on_failure, str):
        yield wrong(f"has on_failure={on_failure!r}", "use a task or the name of one")
    code = options["default_unhandled_error_code"]
    if code is not None and not is_error_code(code):
        yield wrong(f"has default_unhandled_error_code={code!r}", "use a code such as MY_ERROR")
    if options["exception_mapper"] is not None:
        yield from check_exception_mapper(options["exception_mapper"], f"task {name!r}")


def _timeout_problems(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each error of the time limit and its remedy."""
    given, in_ms = options["timeout"], options["timeout_ms"]
    if in_ms is not None and not is_whole_number(in_milliseconds(in_ms), MIN_TIMEOUT_MS, MAX_TIMEOUT_MS):
        remedy = f"use a whole number from {MIN_TIMEOUT_MS} to {MAX_TIMEOUT_MS}, or a timedelta"
        yield f"has timeout_ms={in_ms!r}", remedy
    if given is None:
        return
    is_number = isinstance(given, int | float | timedelta) and not isinstance(given, bool)
    if not is_number or not MIN_TIMEOUT_MS <= in_seconds(given) * 1_000 <= MAX_TIMEOUT_MS:
        remedy = f"use seconds from {MIN_TIMEOUT_MS / 1_000} to {MAX_TIMEOUT_MS // 1_000}, or a timedelta"
        yield f"has timeout={given!r}", remedy


def _key_problems(
    name: str, signature: Signature | None, options: Mapping[str, Any]
) -> Iterator[TaskDefinitionError]:
    """Yield an error for each invalid option that concerns keys."""

    def wrong(message: str, remedy: str) -> TaskDefinitionError:
        return TaskDefinitionError(
            f"task {name!r} {message}", code=ErrorCode.TASK_INVALID_OPTIONS, help_text=remedy
        )

    for option in ("key", "cost"):
        given = options[option]
        if isinstance(given, str):
            if signature is not None and given not in signature.parameters:
                known = ", ".join(signature.parameters) or "none"
                remedy = f"name a parameter of the task ({known}), or pass a function of its arguments"
                yield wrong(f"has {option}={given!r}, and no parameter of that name", remedy)
        elif given is not None and (not callable(given) or inspect.iscoroutinefunction(given)):
            yield wrong(
                f"has {option}={given!r}", "name a parameter, or pass a plain function of the arguments"
            )
    concurrency, rate = options["key_concurrency"], options["key_rate"]
    if concurrency is not None and not is_whole_number(concurrency, 1, MAX_KEY_CONCURRENCY):
        yield wrong(
            f"has key_concurrency={concurrency!r}", f"use a whole number from 1 to {MAX_KEY_CONCURRENCY:,}"
        )
    if rate is not None and RateLimit.parse(rate) is None:
        yield wrong(f"has key_rate={rate!r}", 'write starts per period: "10/s", "100/m" or "500/h"')
    if options["cost"] is not None and rate is None:
        yield wrong("has a cost and no key_rate", 'a cost counts against a rate: add key_rate="60/m"')
    for prefix in (LANE_PREFIX, BATCH_PREFIX):
        if options["rate_limit"] is not None and name.startswith(prefix):
            yield wrong(f"has a rate limit and a name that begins with {prefix!r}", "give it another name")


def _batch_problems(
    name: str, queue: CustomQueueConfig | None, cluster_wide_cap: int | None, options: Mapping[str, Any]
) -> Iterator[TaskDefinitionError]:
    """Yield an error for each invalid option that concerns batches."""

    def wrong(message: str, remedy: str) -> TaskDefinitionError:
        return TaskDefinitionError(
            f"task {name!r} {message}", code=ErrorCode.TASK_INVALID_OPTIONS, help_text=remedy
        )

    batch, linger = options["batch"], options["linger"]
    if batch is None:
        if linger is not None:
            yield wrong("has a linger and no batch", "add batch=100, the most calls that run as one")
        return
    if not is_whole_number(batch, 1, MAX_BATCH):
        yield wrong(f"has batch={batch!r}", f"use a whole number from 1 to {MAX_BATCH:,}")
    if linger is not None and not (is_duration(linger) and 0 <= in_seconds(linger) <= MAX_LINGER_SECONDS):
        yield wrong(f"has linger={linger!r}", f"use 0 to {MAX_LINGER_SECONDS:,} seconds, or a timedelta")
    for option in ("key", "key_concurrency", "key_rate", "cost", "rate_limit"):
        if options[option] is not None:
            yield wrong(f"has batch= and {option}=", f"leave {option}= out: a batch has members of any key")
    if queue is not None and queue.max_concurrency is not None:
        yield wrong(
            f"runs in batches on queue {queue.name!r}, which has max_concurrency={queue.max_concurrency}",
            "use a queue with max_concurrency=None: every member of a batch would count against the limit",
        )
    if cluster_wide_cap is not None:
        yield wrong(
            f"runs in batches, and the app has cluster_wide_cap={cluster_wide_cap}",
            "leave cluster_wide_cap out: every member of a batch would count against the limit",
        )


def _retry_problems(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each error of the retry options and its remedy."""
    policy, retry_on = options["retry_policy"], options["retry_on"]
    if policy is not None and not isinstance(policy, RetryPolicy):
        yield f"has retry_policy={policy!r}", "use RetryPolicy.fixed or .exponential"
    elif policy is not None and policy.auto_retry_for is None and retry_on is None:
        remedy = "add retry_on=(ConnectionError,) to the task, or auto_retry_for=[…] to the policy"
        yield "has a retry_policy that lists no errors", remedy
    if retry_on is None:
        return
    remedy = "list exception classes and error codes: retry_on=(ConnectionError, TimeoutError)"
    if not as_items(retry_on):
        yield f"has retry_on={retry_on!r}", remedy
    for item in as_items(retry_on):
        if not is_retryable_error(item):
            yield f"has {item!r} in retry_on", remedy


def _resolved(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return valid options as a definition has them: one time limit and one retry policy, and no queue."""
    resolved = {name: value for name, value in options.items() if name not in ("queue", "queue_name")}
    timeout, retry_on = resolved.pop("timeout"), resolved.pop("retry_on")
    resolved["on_conflict"] = resolved["on_conflict"] or "first"
    if timeout is not None:
        resolved["timeout_ms"] = round(in_seconds(timeout) * 1_000)
    elif resolved["timeout_ms"] is not None:
        resolved["timeout_ms"] = in_milliseconds(resolved["timeout_ms"])
    if retry_on is not None:
        resolved["retry_policy"] = add_errors(resolved["retry_policy"] or DEFAULT_POLICY, retry_on)
    return resolved
