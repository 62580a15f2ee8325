"""Outcomes as values: what a call, a task or a send came to.

Nothing here raises for a failure that the caller can expect; the failure is returned, typed, with a
code to decide by. `Result` is what calls to the library return, `TaskResult` what tasks return.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeAlias, TypeVar, cast, overload

from horsies.status import (
    BUILTIN_CODE_REGISTRY,
    BrokerErrorCode,
    BuiltInTaskCode,
    HandleErrorCode,
    TaskAttemptOutcome,
    TaskSendErrorCode,
    TaskStatus,
)
from horsies.status import ContractCode as ContractCode
from horsies.status import OperationalErrorCode as OperationalErrorCode
from horsies.status import OutcomeCode as OutcomeCode
from horsies.status import RetrievalCode as RetrievalCode
from horsies.status import WorkflowStartErrorCode as WorkflowStartErrorCode

if TYPE_CHECKING:
    from typing_extensions import TypeIs

T = TypeVar("T")
E = TypeVar("E")
T_co = TypeVar("T_co", covariant=True)
E_co = TypeVar("E_co", covariant=True)


@dataclass(frozen=True, slots=True, repr=False)
class Ok(Generic[T_co]):
    """A call that worked, with its value.

    >>> match Ok(2).map(lambda n: n * 10):
    ...     case Ok(value): print(value)
    ...     case Err(error): print("failed:", error)
    20
    """

    ok_value: T_co

    def __repr__(self) -> str:
        return f"Ok({self.ok_value!r})"

    def is_ok(self) -> Literal[True]:
        return True

    def is_err(self) -> Literal[False]:
        return False

    def ok(self) -> T_co:
        return self.ok_value

    def err(self) -> None:
        return None

    unwrap = ok

    def unwrap_or(self, _ignored: object, /) -> T_co:
        """The value; what was meant for a failure is not needed."""
        return self.ok_value

    unwrap_or_else = unwrap_or_raise = expect = unwrap_or

    def unwrap_err(self) -> NoReturn:
        self.expect_err("unwrap_err() on an Ok")

    def expect_err(self, message: str, /) -> NoReturn:
        raise ValueError(f"{message}: {self!r}")

    def map(self, op: Callable[[T_co], T], /) -> Ok[T]:
        return Ok(op(self.ok_value))

    def map_or(self, _default: object, op: Callable[[T_co], T], /) -> T:
        return op(self.ok_value)

    map_or_else = map_or

    def and_then(self, op: Callable[[T_co], Result[T, E]], /) -> Result[T, E]:
        return op(self.ok_value)

    def inspect(self, op: Callable[[T_co], object], /) -> Ok[T_co]:
        op(self.ok_value)
        return self

    def map_err(self, _op: Callable[..., object], /) -> Ok[T_co]:
        """Itself; there is no error to work on."""
        return self

    or_else = inspect_err = map_err


@dataclass(frozen=True, slots=True, repr=False)
class Err(Generic[E_co]):
    """A call that failed, with its error.

    >>> Err("no broker").unwrap_or(0)
    0
    """

    err_value: E_co

    def __repr__(self) -> str:
        return f"Err({self.err_value!r})"

    def is_ok(self) -> Literal[False]:
        return False

    def is_err(self) -> Literal[True]:
        return True

    def ok(self) -> None:
        return None

    def err(self) -> E_co:
        return self.err_value

    unwrap_err = err

    def unwrap(self) -> NoReturn:
        self.expect("unwrap() on an Err")

    def unwrap_or(self, default: T, /) -> T:
        return default

    def unwrap_or_else(self, op: Callable[[E_co], T], /) -> T:
        return op(self.err_value)

    def unwrap_or_raise(self, error: Callable[[E_co], BaseException], /) -> NoReturn:
        """Raise what `error` (an exception class, say) makes of the error."""
        raise error(self.err_value)

    def expect(self, message: str, /) -> NoReturn:
        error = self.err_value
        raise ValueError(f"{message}: {self!r}") from (error if isinstance(error, BaseException) else None)

    def expect_err(self, _message: str, /) -> E_co:
        return self.err_value

    def map_err(self, op: Callable[[E_co], E], /) -> Err[E]:
        return Err(op(self.err_value))

    def map_or(self, default: T, _op: Callable[..., object], /) -> T:
        return default

    def map_or_else(self, default: Callable[[], T], _op: Callable[..., object], /) -> T:
        return default()

    def or_else(self, op: Callable[[E_co], Result[T, E]], /) -> Result[T, E]:
        return op(self.err_value)

    def inspect_err(self, op: Callable[[E_co], object], /) -> Err[E_co]:
        op(self.err_value)
        return self

    def map(self, _op: Callable[..., object], /) -> Err[E_co]:
        """Itself; there is no value to work on."""
        return self

    and_then = inspect = map


Result: TypeAlias = Ok[T] | Err[E]


def is_ok(result: Result[T, E]) -> TypeIs[Ok[T]]:
    """Whether it worked; narrows the type, so that `ok_value` is there."""
    return isinstance(result, Ok)


def is_err(result: Result[T, E]) -> TypeIs[Err[E]]:
    """Whether it failed; narrows the type, so that `err_value` is there."""
    return isinstance(result, Err)


def _check_task_code(code: object) -> None:
    if code is None or isinstance(code, BuiltInTaskCode):
        return
    if not isinstance(code, str) or isinstance(code, Enum):
        raise ValueError(f"error_code is {code!r}; a code of your own must be a plain str")
    if code in BUILTIN_CODE_REGISTRY:
        kind = type(BUILTIN_CODE_REGISTRY[code]).__name__
        raise ValueError(f"error_code {code!r} is reserved; pass {kind}.{code}, or choose another code")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TaskError:
    """Why a task failed: a code to decide by, and words and data for people.

    >>> TaskError(error_code="CARD_DECLINED", message="the bank said no")
    TaskError(error_code='CARD_DECLINED', message='the bank said no')

    Codes of your own are plain strings. The library's are members of its enums, so that the two
    can never be confused: `TaskError(error_code="TASK_TIMEOUT")` is a ValueError. `exception` is
    the live exception where it was raised, and its description as a dict everywhere else.
    """

    error_code: BuiltInTaskCode | str | None = None
    message: str | None = None
    data: Any = None
    exception: BaseException | dict[str, Any] | None = None

    def __post_init__(self) -> None:
        _check_task_code(self.error_code)

    def __repr__(self) -> str:
        code = None if self.error_code is None else str(self.error_code)
        data = "" if self.data is None else f", data={self.data!r}"
        return f"{type(self).__name__}(error_code={code!r}, message={self.message!r}{data})"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SubWorkflowError(TaskError):
    """The failure of a workflow that ran as a node of another."""

    sub_workflow_id: str
    sub_workflow_summary: Any = None


_UNSET: Any = object()


class TaskResult(Generic[T_co, E_co]):
    """What a task returns: exactly one of a value (`ok`, which may be None) and an error (`err`).

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
        return self._is_ok

    def is_err(self) -> bool:
        return not self._is_ok

    @property
    def ok(self) -> T_co | None:
        """The value, or None after a failure."""
        return self._ok

    @property
    def err(self) -> E_co | None:
        """The error, or None after a success."""
        return self._err

    @property
    def ok_value(self) -> T_co:
        """The value; ValueError after a failure."""
        return self.unwrap()

    @property
    def err_value(self) -> E_co:
        """The error; ValueError after a success."""
        return self.unwrap_err()

    def unwrap(self) -> T_co:
        if not self._is_ok:
            raise ValueError(f"the task failed and has no value: {self!r}")
        return self._ok  # pyright: ignore[reportReturnType]  # None only where T includes it

    def unwrap_err(self) -> E_co:
        if self._err is None:
            raise ValueError(f"the task worked and has no error: {self!r}")
        return self._err

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TaskResult):
            return NotImplemented
        theirs = cast("TaskResult[object, object]", other)
        return (self._is_ok, self._ok, self._err) == (theirs._is_ok, theirs._ok, theirs._err)

    def __hash__(self) -> int:
        return hash((self._is_ok, self._ok, self._err))

    def __repr__(self) -> str:
        return f"TaskResult(ok={self._ok!r})" if self._is_ok else f"TaskResult(err={self._err!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSendPayload:
    """A send as it was encoded, to be sent again unchanged. Its repr hides the arguments."""

    task_name: str
    queue_name: str
    priority: int
    args_json: str | None = field(repr=False)
    kwargs_json: str | None = field(repr=False)
    sent_at: datetime
    good_until: datetime | None
    enqueue_delay_seconds: int | None
    task_options: str | None
    enqueue_sha: str
    idempotency_key: str | None = None
    row: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSendError:
    """Why a task was not sent. Its repr hides the arguments, and the exception that may quote them."""

    code: TaskSendErrorCode
    message: str
    retryable: bool = False
    task_id: str | None = None
    payload: TaskSendPayload | None = None
    exception: BaseException | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowStartError:
    """Why a workflow was not started. Its repr hides the exception, which may quote arguments."""

    code: WorkflowStartErrorCode
    message: str
    workflow_name: str
    workflow_id: str | None = None
    retryable: bool = False
    exception: BaseException | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandleOperationError:
    """Why an operation on a workflow failed."""

    code: HandleErrorCode
    message: str
    retryable: bool = False
    workflow_id: str | None = None
    exception: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOperationError:
    """Why an operation on the database failed."""

    code: BrokerErrorCode
    message: str
    retryable: bool = False
    exception: BaseException | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAttemptInfo:
    """One run of a task, as recorded."""

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
    """A task as recorded. `result`, `failed_reason` and `attempts` (newest first) only on request."""

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
