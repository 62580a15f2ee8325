"""The running task, as seen by its own code, and its durable steps.

A task reports to the process that runs it through a `TaskChannel`, at the cost of a message over a pipe. The channel is kept
in a context variable, so that it is the right one in threads and in concurrent async tasks.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, TypeVar, cast, overload

from horsies.durations import Duration, in_seconds, is_duration
from horsies.errors import ErrorCode, HorsiesError
from horsies.event_loop import finish, is_on_loop
from horsies.frozen import dataclass
from horsies.retry import RetryPolicy

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

# The parent of the loggers of tasks.
LOGGERS = "task"
MAX_SNOOZE_SECONDS = 366 * 86_400
# A century.
MAX_WAIT_SECONDS = 36_525 * 86_400


class Snooze(BaseException):
    """Raised to end a run that is to be repeated later. Not an `Exception`, so that no `except Exception` catches it."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"snooze for {seconds} s")
        self.seconds = seconds


class Parked(BaseException):
    """Raised to end a run whose task waits in a step. Not an `Exception`, so that no `except Exception` catches it."""


class Awaiting(Protocol[T_co]):
    """A handle of a task whose value has this type."""

    def result(self) -> T_co: ...


class Callee(Protocol[T_co]):
    """A task, with or without options, whose value has this type."""

    def delay(self, *args: Any, **kwargs: Any) -> Awaiting[T_co]: ...


class TaskSteps(Protocol):
    """The durable steps of a run."""

    async def step(
        self,
        name: str,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        retry: RetryPolicy | None,
    ) -> Any: ...
    async def transact(
        self,
        name: str,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        session: Callable[[], Any] | None,
    ) -> Any: ...
    async def sleep(self, name: str, seconds: float) -> None: ...
    async def wait_for(self, name: str, value_type: Any, seconds: float | None) -> Any: ...
    async def call(self, name: str, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any: ...
    async def call_many(
        self, name: str, task: Any, calls: Iterable[Any], return_exceptions: bool
    ) -> list[Any]: ...


class TaskChannel(Protocol):
    """The connection of a running task to the process that runs it."""

    @property
    def task(self) -> CurrentTask: ...
    @property
    def batch(self) -> Sequence[CurrentTask] | None: ...
    def is_cancelled(self) -> bool: ...
    def report(self, done: float, total: float | None, message: str) -> None: ...
    @property
    def steps(self) -> TaskSteps: ...


@dataclass(frozen=True, slots=True)
class CurrentTask:
    """The running task.

    `attempt` counts from 1, and restarts when an operator retries a failed task. `deadline` is when its timeout ends it, None
    without one.

    >>> task = current_task()
    >>> for done, page in enumerate(pages):
    ...     if task.cancelled():
    ...         break
    ...     task.report_progress(done, len(pages))
    """

    id: str
    name: str
    attempt: int
    max_retries: int
    queue_name: str
    deadline: datetime | None
    _channel: TaskChannel = field(repr=False, compare=False)

    @property
    def log(self) -> logging.Logger:
        """Return the task's own logger, whose default level is INFO.

        >>> current_task().log.info("%d rows imported", 12)
        """
        return logging.getLogger(f"{LOGGERS}.{self.name}")

    def cancelled(self) -> bool:
        """Return True if the task was asked to stop. It then ends as cancelled, whatever it returns."""
        return self._channel.is_cancelled()

    def report_progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Report the progress of the task. It may be called often: only the last report of each half second is stored.

        >>> current_task().report_progress(40, 100, "parsing")
        """
        for name, value in (("done", done), ("total", total)):
            if value is not None and not math.isfinite(value):
                raise ValueError(f"{name} is {value!r}; use a finite number")
        self._channel.report(float(done), None if total is None else float(total), str(message))

    def snooze(self, seconds: Duration) -> NoReturn:
        """End this run and run the task again after a delay, without using up an attempt. Never returns.

        The delay is in seconds or a timedelta.

        >>> if not is_ready():
        ...     current_task().snooze(60)
        """
        is_duration = isinstance(cast(object, seconds), int | float | timedelta)
        if not is_duration or not 0 <= in_seconds(seconds) <= MAX_SNOOZE_SECONDS:
            raise ValueError(f"seconds is {seconds!r}; use 0 to a year, in seconds or as a timedelta")
        raise Snooze(in_seconds(seconds))

    # Durable steps

    def step(
        self, name: str, fn: Callable[..., T], *args: Any, retry: RetryPolicy | None = None, **kwargs: Any
    ) -> T:
        """Call a function and store what it returns; in a later run, return the stored value without a call.

        Only a value is stored, no error. The function may be called again if the process dies before its value is stored. With a
        `retry` policy, a failed call is repeated within the step: after every error, unless the policy lists some. In an async
        task, await it.

        >>> card = current_task().step("charge", charge, order)
        """
        return _here(self._channel.steps.step(name, fn, args, kwargs, retry))

    def transact(
        self,
        name: str,
        fn: Callable[..., T],
        *args: Any,
        session: Callable[[], Any] | None = None,
        **kwargs: Any,
    ) -> T:
        """Call `fn(connection, *args)` in a transaction that also stores the step: its effect exists exactly once.

        The connection is one of psycopg to the database of the app, or a session that `session`, such as a `sessionmaker` of
        SQLAlchemy, opens in the same database. The function must neither commit nor roll back. In an async task, await it.

        >>> booked = current_task().transact("book", book, order)
        """
        return _here(self._channel.steps.transact(name, fn, args, kwargs, session))

    def sleep(
        self,
        name: str,
        duration: Duration = 0,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
    ) -> None:
        """Wait without a process: the run ends, and a later one goes on after this step. In an async task, await it.

        The duration is in seconds or a `timedelta`, or given by named numbers, or their sum.

        >>> current_task().sleep("cool-off", hours=1)
        """
        span = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds).total_seconds()
        return _here(self._channel.steps.sleep(name, _wait_seconds("duration", duration) + span))

    def wait_for(self, name: str, type: type[T] | Any = Any, *, timeout: Duration | None = None) -> T:
        """Wait without a process for a signal and return its value; raise `SignalTimeout` when the time is up.

        `handle.signal(name, value)` gives the signal. One that comes before this call is kept. In an async task, await it.

        >>> approval = current_task().wait_for("approved", Approval, timeout=86_400)
        """
        seconds = None if timeout is None else _wait_seconds("timeout", timeout)
        return _here(self._channel.steps.wait_for(name, type, seconds))

    def call(self, name: str, task: Callee[T], *args: Any, **kwargs: Any) -> T:
        """Run another task and return its value; raise `TaskFailed` if it fails. This task waits without a process.

        In an async task, await it.

        >>> small = current_task().call("resize", resize, image)
        """
        return _here(self._channel.steps.call(name, task, args, kwargs))

    @overload
    def call_many(
        self, name: str, task: Callee[T], calls: Iterable[Any], *, return_exceptions: Literal[False] = False
    ) -> list[T]: ...
    @overload
    def call_many(
        self, name: str, task: Callee[T], calls: Iterable[Any], *, return_exceptions: Literal[True]
    ) -> list[T | HorsiesError]: ...
    def call_many(
        self, name: str, task: Callee[Any], calls: Iterable[Any], *, return_exceptions: bool = False
    ) -> list[Any]:
        """Run many tasks and return their values in order. This task waits without a process until all have ended.

        Each call is a tuple of arguments, a mapping of them by name, or a single argument. If a task fails, raise `TaskFailed` of
        the first one that did; with `return_exceptions`, return the exceptions in their places. In an async task, await it.

        >>> pages = current_task().call_many("pages", fetch, urls)
        """
        return _here(self._channel.steps.call_many(name, task, calls, return_exceptions))


def _here(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a step to its end in a plain task; return it, to be awaited, in an async one."""
    return work if is_on_loop() else finish(work)


def _wait_seconds(name: str, value: Duration) -> float:
    if not is_duration(value) or not 0 <= in_seconds(value) <= MAX_WAIT_SECONDS:
        raise ValueError(f"{name} is {value!r}; use 0 to a century, in seconds or as a timedelta")
    return in_seconds(value)


# Holds the channel, not the CurrentTask: that is made on request, because most runs never ask for it.
_channel: ContextVar[TaskChannel] = ContextVar("horsies_channel")


def current_task() -> CurrentTask:
    """Return the task in which this code runs; raise HorsiesError outside of a task.

    >>> current_task().id
    """
    channel = _channel.get(None)
    if channel is None:
        raise HorsiesError(
            "no task runs here",
            code=ErrorCode.TASK_NOT_RUNNING,
            help_text="call current_task() in the code of a task that a worker runs; a thread of your own needs "
            "contextvars.copy_context().run",
        )
    return channel.task


def current_batch() -> list[CurrentTask]:
    """Return the tasks of the batch in which this code runs, in the order of the list; raise HorsiesError outside of one.

    >>> [task.id for task in current_batch()]
    """
    channel = _channel.get(None)
    if channel is None or channel.batch is None:
        raise HorsiesError(
            "no batch runs here",
            code=ErrorCode.TASK_NOT_RUNNING,
            help_text="call current_batch() in the code of a task with batch=…, and current_task() in that of any other",
        )
    return list(channel.batch)


if TYPE_CHECKING:

    class AsyncCurrentTask(CurrentTask):
        """The running async task: its steps are awaited."""

        @overload
        def step(
            self,
            name: str,
            fn: Callable[..., Awaitable[T]],
            *args: Any,
            retry: RetryPolicy | None = None,
            **kwargs: Any,
        ) -> Awaitable[T]: ...
        @overload
        def step(
            self, name: str, fn: Callable[..., T], *args: Any, retry: RetryPolicy | None = None, **kwargs: Any
        ) -> Awaitable[T]: ...
        def step(self, name: str, fn: Any, *args: Any, **kwargs: Any) -> Any: ...  # pyright: ignore[reportIncompatibleMethodOverride]
        @overload
        def transact(
            self,
            name: str,
            fn: Callable[..., Awaitable[T]],
            *args: Any,
            session: Callable[[], Any] | None = None,
            **kwargs: Any,
        ) -> Awaitable[T]: ...
        @overload
        def transact(
            self,
            name: str,
            fn: Callable[..., T],
            *args: Any,
            session: Callable[[], Any] | None = None,
            **kwargs: Any,
        ) -> Awaitable[T]: ...
        def transact(self, name: str, fn: Any, *args: Any, **kwargs: Any) -> Any: ...  # pyright: ignore[reportIncompatibleMethodOverride]
        def sleep(self, *args: Any, **kwargs: Any) -> Awaitable[None]: ...  # pyright: ignore[reportIncompatibleMethodOverride]
        def wait_for(  # pyright: ignore[reportIncompatibleMethodOverride]
            self, name: str, type: type[T] | Any = Any, *, timeout: Duration | None = None
        ) -> Awaitable[T]: ...
        def call(self, name: str, task: Callee[T], *args: Any, **kwargs: Any) -> Awaitable[T]: ...  # pyright: ignore[reportIncompatibleMethodOverride]
        def call_many(  # pyright: ignore[reportIncompatibleMethodOverride]
            self, name: str, task: Callee[T], calls: Iterable[Any], *, return_exceptions: bool = False
        ) -> Awaitable[list[T]]: ...

else:
    AsyncCurrentTask = CurrentTask


def current_async_task() -> AsyncCurrentTask:
    """Return the task in which this code runs, as `current_task` does; for type checkers, its steps are awaited.

    >>> await current_async_task().step("charge", charge, order)
    """
    return cast("AsyncCurrentTask", current_task())


def begin(channel: TaskChannel) -> Token[TaskChannel]:
    """Make the channel's task the current one in this context, until `end`."""
    return _channel.set(channel)


def end(token: Token[TaskChannel]) -> None:
    """Restore the task that was current before `begin`."""
    _channel.reset(token)


def current_channel() -> TaskChannel | None:
    """Return the channel of the task that runs in this context; None outside of a task."""
    return _channel.get(None)
