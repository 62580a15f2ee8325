"""Outcomes as values.

A failure that the caller can expect is returned instead of raised, with a type and a code. Calls of the library return a
`Result`, tasks return a `TaskResult`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import field
from datetime import datetime
from functools import wraps
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NoReturn,
    ParamSpec,
    TypeAlias,
    TypeVar,
    cast,
    overload,
)

from horsies.errors import HorsiesError, SendError, UnwrapError, exception_for
from horsies.frozen import dataclass
from horsies.status import BUILTIN_CODE_REGISTRY as BUILTIN_CODE_REGISTRY
from horsies.status import (
    BrokerErrorCode,
    HandleErrorCode,
    TaskAttemptOutcome,
    TaskStatus,
)
from horsies.status import BuiltInTaskCode as BuiltInTaskCode
from horsies.status import ContractCode as ContractCode
from horsies.status import OperationalErrorCode as OperationalErrorCode
from horsies.status import OutcomeCode as OutcomeCode
from horsies.status import RetrievalCode as RetrievalCode
from horsies.status import TaskSendErrorCode as TaskSendErrorCode
from horsies.status import WorkflowStartErrorCode as WorkflowStartErrorCode
from horsies.task_errors import SubWorkflowError as SubWorkflowError
from horsies.task_errors import TaskError as TaskError
from horsies.task_errors import TaskSendError as TaskSendError
from horsies.task_errors import TaskSendPayload as TaskSendPayload

if TYPE_CHECKING:
    from typing_extensions import TypeIs


T = TypeVar("T")
E = TypeVar("E")
P = ParamSpec("P")
X = TypeVar("X", bound=BaseException)
T_co = TypeVar("T_co", covariant=True)
E_co = TypeVar("E_co", covariant=True)


@dataclass(frozen=True, slots=True, repr=False)
class Ok(Generic[T_co]):
    """The value of a call that succeeded.

    >>> match Ok(2).map(lambda n: n * 10):
    ...     case Ok(value): print(value)
    ...     case Err(error): print("failed:", error)
    20
    """

    ok_value: T_co

    def __repr__(self) -> str:
        return f"Ok({self.ok_value!r})"

    def is_ok(self) -> Literal[True]:
        """Return True."""
        return True

    def is_err(self) -> Literal[False]:
        """Return False."""
        return False

    def ok(self) -> T_co:
        """Return the value."""
        return self.ok_value

    def err(self) -> None:
        """Return None: there is no error."""
        return

    unwrap = ok

    def unwrap_or(self, _ignored: object, /) -> T_co:
        """Return the value and ignore the argument, which is for an `Err`."""
        return self.ok_value

    unwrap_or_else = unwrap_or_raise = expect = unwrap_or

    def unwrap_err(self) -> NoReturn:
        """Raise `UnwrapError`: there is no error."""
        self.expect_err("unwrap_err() on an Ok")

    def expect_err(self, message: str, /) -> NoReturn:
        """Raise `UnwrapError` with this message: there is no error."""
        raise UnwrapError(f"{message}: {self!r}", self.ok_value)

    def map(self, op: Callable[[T_co], T], /) -> Ok[T]:
        """Return `Ok` of what the function returns for the value."""
        return Ok(op(self.ok_value))

    def map_or(self, _default: object, op: Callable[[T_co], T], /) -> T:
        """Return what the function returns for the value; the default is for an `Err`."""
        return op(self.ok_value)

    map_or_else = map_or

    def and_then(self, op: Callable[[T_co], Result[T, E]], /) -> Result[T, E]:
        """Return the result that the function returns for the value."""
        return op(self.ok_value)

    async def map_async(self, op: Callable[[T_co], Awaitable[T]], /) -> Ok[T]:
        """Do the same as `map` with an async function.

        >>> await Ok("https://example.org").map_async(download)
        """
        return Ok(await op(self.ok_value))

    async def and_then_async(self, op: Callable[[T_co], Awaitable[Result[T, E]]], /) -> Result[T, E]:
        """Do the same as `and_then` with an async function.

        >>> await (await add.send_async(2, 3)).and_then_async(lambda handle: store(handle.task_id))
        """
        return await op(self.ok_value)

    def inspect(self, op: Callable[[T_co], object], /) -> Ok[T_co]:
        """Call the function with the value, and return itself."""
        op(self.ok_value)
        return self

    def map_err(self, _op: Callable[..., object], /) -> Ok[T_co]:
        """Return itself: there is no error to apply the function to."""
        return self

    or_else = inspect_err = map_err


@dataclass(frozen=True, slots=True, repr=False)
class Err(Generic[E_co]):
    """The error of a call that failed.

    >>> Err("no broker").unwrap_or(0)
    0
    """

    err_value: E_co

    def __repr__(self) -> str:
        return f"Err({self.err_value!r})"

    def is_ok(self) -> Literal[False]:
        """Return False."""
        return False

    def is_err(self) -> Literal[True]:
        """Return True."""
        return True

    def ok(self) -> None:
        """Return None: there is no value."""
        return

    def err(self) -> E_co:
        """Return the error."""
        return self.err_value

    unwrap_err = err

    def unwrap(self) -> NoReturn:
        """Raise the error: `SendError` after a failed send, `TaskFailed` and its like after a task, else `UnwrapError`."""
        error: object = self.err_value
        raise _exception(error) or UnwrapError(f"unwrap() on an Err: {self!r}", error) from _cause(error)

    def unwrap_or(self, default: T, /) -> T:
        """Return the default."""
        return default

    def unwrap_or_else(self, op: Callable[[E_co], T], /) -> T:
        """Return what the function returns for the error."""
        return op(self.err_value)

    def unwrap_or_raise(self, error: Callable[[E_co], BaseException], /) -> NoReturn:
        """Raise the exception that `error`, such as an exception class, returns for the error."""
        raise error(self.err_value)

    def expect(self, message: str, /) -> NoReturn:
        """Do the same as `unwrap`, with a message of your own."""
        error: object = self.err_value
        found = _exception(error)
        if found is not None:
            found.message = f"{message}: {found.message}"
        raise found or UnwrapError(f"{message}: {self!r}", error) from _cause(error)

    def expect_err(self, _message: str, /) -> E_co:
        """Return the error; the message is for an `Ok`."""
        return self.err_value

    def map_err(self, op: Callable[[E_co], E], /) -> Err[E]:
        """Return `Err` of what the function returns for the error."""
        return Err(op(self.err_value))

    def map_or(self, default: T, _op: Callable[..., object], /) -> T:
        """Return the default."""
        return default

    def map_or_else(self, default: Callable[[], T], _op: Callable[..., object], /) -> T:
        """Return what the first function returns."""
        return default()

    def or_else(self, op: Callable[[E_co], Result[T, E]], /) -> Result[T, E]:
        """Return the result that the function returns for the error."""
        return op(self.err_value)

    def inspect_err(self, op: Callable[[E_co], object], /) -> Err[E_co]:
        """Call the function with the error, and return itself."""
        op(self.err_value)
        return self

    def map(self, _op: Callable[..., object], /) -> Err[E_co]:
        """Return itself: there is no value to apply the function to."""
        return self

    and_then = inspect = map

    async def map_async(self, _op: Callable[..., object], /) -> Err[E_co]:
        """Return itself: there is no value to apply the function to."""
        return self

    and_then_async = map_async


def _exception(error: object) -> HorsiesError | None:
    """Return the exception that stands for an error of the library; None for any other value."""
    match error:
        case TaskError():
            return exception_for(error)
        case TaskSendError():
            return SendError(error.code, error.message, error.retryable, error)
        case WorkflowStartError():
            return SendError(error.code, error.message, error.retryable)
        case _:
            return None


def _cause(error: object) -> BaseException | None:
    """Return the exception behind an error."""
    cause: object = error if isinstance(error, BaseException) else getattr(error, "exception", None)
    return cause if isinstance(cause, BaseException) else None


Result: TypeAlias = Ok[T] | Err[E]


class ResultDecorator(Generic[X]):
    """The decorator that `as_result(…)` returns."""

    def __init__(self, exceptions: tuple[type[X], ...]) -> None:
        self._exceptions = exceptions

    # The order counts: an async function also matches the form of a sync one.
    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload]
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> Callable[P, Coroutine[Any, Any, Result[T, X]]]: ...
    @overload
    def __call__(self, function: Callable[P, T], /) -> Callable[P, Result[T, X]]: ...
    def __call__(self, function: Callable[..., Any], /) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Result[Any, X]:
            try:
                return Ok(function(*args, **kwargs))
            except self._exceptions as error:
                return Err(error)

        @wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Result[Any, X]:
            try:
                return Ok(await function(*args, **kwargs))
            except self._exceptions as error:
                return Err(error)

        return call_async if inspect.iscoroutinefunction(function) else call


def as_result(*exceptions: type[X]) -> ResultDecorator[X]:
    """Decorate a function so that it returns `Ok` of its value, or `Err` of an exception of these classes.

    An `async def` function stays one: await its calls to get the `Ok` or `Err`.

    >>> @as_result(ValueError)
    ... def parse(text: str) -> int:
    ...     return int(text)
    >>> parse("7"), parse("seven").is_err()
    (Ok(7), True)
    """
    if not exceptions or not all(
        isinstance(each, type) and issubclass(each, BaseException)
        for each in cast("tuple[object, ...]", exceptions)
    ):
        raise TypeError(f"as_result takes one or more exception classes, not {exceptions!r}")
    return ResultDecorator(exceptions)


def is_ok(result: Result[T, E]) -> TypeIs[Ok[T]]:
    """Return True for an `Ok`; type checkers then know `ok_value`."""
    return isinstance(result, Ok)


def is_err(result: Result[T, E]) -> TypeIs[Err[E]]:
    """Return True for an `Err`; type checkers then know `err_value`."""
    return isinstance(result, Err)


_UNSET: Any = object()


class TaskResult(Generic[T_co, E_co]):
    """The result of a task: either a value (`ok`, which may be None) or an error (`err`).

    >>> TaskResult(err=TaskError(error_code="NO_STOCK", message="sold out"))
    TaskResult(err=TaskError(error_code='NO_STOCK', message='sold out'))
    """

    __slots__ = ("_err", "_is_ok", "_ok")

    @overload
    def __init__(self, *, ok: T_co) -> None: ...
    @overload
    def __init__(self, *, err: E_co) -> None: ...
    def __init__(self, *, ok: T_co = _UNSET, err: E_co = _UNSET) -> None:
        if (ok is _UNSET) == (err is _UNSET) or err is None:
            raise ValueError("TaskResult takes exactly one of ok= (a value or None) and err= (an error)")
        self._is_ok = err is _UNSET
        self._ok: T_co | None = ok if self._is_ok else None
        self._err: E_co | None = None if self._is_ok else err

    def is_ok(self) -> bool:
        """Return True if the task succeeded."""
        return self._is_ok

    def is_err(self) -> bool:
        """Return True if the task failed."""
        return not self._is_ok

    @property
    def ok(self) -> T_co | None:
        """Return the value, or None after a failure."""
        return self._ok

    @property
    def err(self) -> E_co | None:
        """Return the error, or None after a success."""
        return self._err

    @property
    def ok_value(self) -> T_co:
        """Return the value; raise as `unwrap` does after a failure."""
        return self.unwrap()

    @property
    def err_value(self) -> E_co:
        """Return the error; raise `UnwrapError` after a success."""
        return self.unwrap_err()

    def unwrap(self) -> T_co:
        """Return the value; raise `TaskFailed` after a failure, or `TaskTimeout` and its like if there is no result."""
        if not self._is_ok:
            error: object = self._err
            raise _exception(error) or UnwrapError(
                f"the task failed and has no value: {self!r}", error
            ) from _cause(error)
        return self._ok  # pyright: ignore[reportReturnType]  # None only where T includes it

    def unwrap_err(self) -> E_co:
        """Return the error; raise `UnwrapError` after a success."""
        if self._err is None:
            raise UnwrapError(f"the task worked and has no error: {self!r}", self._ok)
        return self._err

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TaskResult):
            return NotImplemented
        result = cast("TaskResult[object, object]", other)
        return (self._is_ok, self._ok, self._err) == (result._is_ok, result._ok, result._err)

    def __hash__(self) -> int:
        return hash((self._is_ok, self._ok, self._err))

    def __repr__(self) -> str:
        return f"TaskResult(ok={self._ok!r})" if self._is_ok else f"TaskResult(err={self._err!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowStartError:
    """The error of a failed workflow start. Its repr hides the exception, which may quote arguments."""

    code: WorkflowStartErrorCode
    message: str
    workflow_name: str
    workflow_id: str | None = None
    retryable: bool = False
    exception: BaseException | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandleOperationError:
    """The error of a failed operation on a workflow."""

    code: HandleErrorCode
    message: str
    retryable: bool = False
    workflow_id: str | None = None
    exception: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOperationError:
    """The error of a failed database operation."""

    code: BrokerErrorCode
    message: str
    retryable: bool = False
    exception: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAttemptInfo:
    """The record of one run of a task."""

    task_id: str
    attempt: int
    outcome: TaskAttemptOutcome
    will_retry: bool
    started_at: datetime | None = None
    finished_at: datetime | None = None
    error_code: str | None = None
    error_message: str | None = None
    failed_reason: str | None = None
    worker_id: str | None = None
    worker_hostname: str | None = None
    worker_pid: int | None = None
    worker_process_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo:
    """The record of a task. `result`, `failed_reason` and `attempts` (newest first) are set on request only."""

    task_id: str
    task_name: str
    status: TaskStatus
    queue_name: str
    priority: int
    retry_count: int
    max_retries: int
    next_retry_at: datetime | None = None
    sent_at: datetime | None = None
    enqueued_at: datetime | None = None
    claimed_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    failed_at: datetime | None = None
    worker_hostname: str | None = None
    worker_pid: int | None = None
    worker_process_name: str | None = None
    error_code: str | None = None
    failed_reason: str | None = None
    result: TaskResult[Any, TaskError] | None = None
    attempts: tuple[TaskAttemptInfo, ...] | None = None


TaskSendResult: TypeAlias = Result[T, TaskSendError]
WorkflowStartResult: TypeAlias = Result[T, WorkflowStartError]
HandleResult: TypeAlias = Result[T, HandleOperationError]
BrokerResult: TypeAlias = Result[T, BrokerOperationError]
