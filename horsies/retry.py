"""Retry policies and delays.

These are pure functions: randomness is an argument, so that every result can be tested.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal, Self, TypeAlias, cast

import msgspec

from horsies.durations import in_seconds
from horsies.errors import (
    TASK_CODE_HELP,
    ConfigurationError,
    ErrorCode,
    HorsiesError,
    TaskDefinitionError,
    ValidationReport,
    is_error_code,
    is_whole_number,
)
from horsies.frozen import dataclass
from horsies.names import qualified_name
from horsies.result import OperationalErrorCode
from horsies.status import OutcomeCode

ExceptionMapper: TypeAlias = Mapping[type[BaseException], str]
"""Maps exception classes to error codes; of several entries that apply, that of the nearest class counts."""

RetryableErrors: TypeAlias = Sequence[str | type[BaseException]]
"""Error codes and exception classes."""

_ANY_ERROR = "*"
_MAX_RETRIES = 20
_DAY = 86_400
_CLASS_NAME = re.compile(r"\w+(\.\w+)+")
_MAX_BASES = 100


def check_exception_mapper(mapper: object, owner: str) -> list[HorsiesError]:
    """Return the errors of the exception mapper of `owner`, an empty list if there are none."""
    if not isinstance(mapper, Mapping):
        return [
            _mapper_error(owner, f"is {mapper!r}", 'pass a dict such as {TimeoutError: "UPSTREAM_TIMEOUT"}')
        ]
    errors: list[HorsiesError] = []
    for exception, code in cast("Mapping[object, object]", mapper).items():
        if not (isinstance(exception, type) and issubclass(exception, BaseException)):
            errors.append(_mapper_error(owner, f"has the key {exception!r}", "use exception classes as keys"))
        if not is_error_code(code):
            errors.append(_mapper_error(owner, f"maps {exception!r} to {code!r}", TASK_CODE_HELP))
    return errors


def _mapper_error(owner: str, problem: str, help_text: str) -> HorsiesError:
    code = ErrorCode.CONFIG_INVALID_EXCEPTION_MAPPER
    return ConfigurationError(f"exception_mapper of {owner} {problem}", code=code, help_text=help_text)


def code_for(error: BaseException, mapper: ExceptionMapper | None) -> str | None:
    """Return the code that a mapper has for the nearest class of an exception; None if it has none of its classes.

    >>> code_for(ConnectionResetError(), {OSError: "IO", ConnectionError: "NETWORK"})
    'NETWORK'
    """
    if not mapper:
        return None
    return next((mapper[each] for each in type(error).__mro__ if each in mapper), None)


def class_names(error: BaseException) -> list[str]:
    """Return the names of the classes of an exception, the nearest first, to compare with those in a policy.

    >>> class_names(ConnectionError())
    ['builtins.ConnectionError', 'builtins.OSError', 'builtins.Exception', 'builtins.BaseException']
    """
    names = [_name_of(each) for each in type(error).__mro__[:_MAX_BASES] if each is not object]
    return [name for name in names if _CLASS_NAME.fullmatch(name)]


def _name_of(cls: type[Any]) -> str:
    try:
        return qualified_name(cls)
    except Exception:  # noqa: BLE001  a metaclass may do anything; a class without a name cannot be listed
        return ""


def is_retryable_error(item: object) -> bool:
    """Return True for an error code, `"*"`, or an exception class or the name of one."""
    if isinstance(item, type):
        return issubclass(item, BaseException)
    return (
        item == _ANY_ERROR
        or is_error_code(item)
        or (isinstance(item, str) and _CLASS_NAME.fullmatch(item) is not None)
    )


def as_items(value: object) -> list[object]:
    """Return the items of a list, tuple or set; a single value becomes a list of one, and a text is not split."""
    if isinstance(value, list | tuple | set | frozenset):
        return list(cast("Iterable[object]", value))
    return [value]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The errors of a task that are retried, the number of retries, and the delays.

    >>> policy = RetryPolicy.exponential(30, max_retries=5, auto_retry_for=["RATE_LIMITED", ConnectionError])
    >>> policy.delay(3, random=0.5)
    120.0

    `auto_retry_for` lists error codes and exception classes; a class stands for its subclasses too, and `"*"` for every error.
    It may be left out if the task lists the errors in `retry_on`. With `jitter`, a delay varies by up to 25 % either way, so that
    tasks that failed together are not retried together. A delay is at least a second and at most `max_delay_seconds`. All times
    are whole seconds, as numbers or as timedeltas.

    A class is kept as its qualified name, such as `builtins.ConnectionError`: the policy is stored as JSON with each task. The
    name is only compared with the names of the classes of an exception; it is never looked up.
    """

    auto_retry_for: RetryableErrors | None = None
    max_retries: int = 3
    intervals: Sequence[int | timedelta] = (60, 300, 900)
    backoff_strategy: Literal["fixed", "exponential"] = "fixed"
    jitter: bool = True
    max_delay_seconds: int | timedelta | None = None

    @classmethod
    def fixed(
        cls,
        intervals: Sequence[int | timedelta],
        *,
        auto_retry_for: RetryableErrors | None = None,
        jitter: bool = True,
        max_delay_seconds: int | timedelta | None = None,
    ) -> Self:
        """Return a policy with one delay in seconds for each retry."""
        return cls(
            auto_retry_for=auto_retry_for,
            max_retries=len(intervals),
            intervals=intervals,
            jitter=jitter,
            max_delay_seconds=max_delay_seconds,
        )

    @classmethod
    def exponential(
        cls,
        base_seconds: int | timedelta,
        *,
        auto_retry_for: RetryableErrors | None = None,
        max_retries: int = 3,
        jitter: bool = True,
        max_delay_seconds: int | timedelta | None = None,
    ) -> Self:
        """Return a policy that waits `base_seconds` and doubles the delay with each retry."""
        return cls(
            auto_retry_for=auto_retry_for,
            max_retries=max_retries,
            intervals=(base_seconds,),
            backoff_strategy="exponential",
            jitter=jitter,
            max_delay_seconds=max_delay_seconds,
        )

    def __post_init__(self) -> None:
        if self.auto_retry_for is not None:
            names = tuple(_as_name(item) for item in as_items(self.auto_retry_for))
            object.__setattr__(self, "auto_retry_for", names)
        object.__setattr__(self, "intervals", tuple(map(_whole_seconds, as_items(self.intervals))))
        object.__setattr__(self, "max_delay_seconds", _whole_seconds(self.max_delay_seconds))
        report = ValidationReport("retry policy")
        for problem, help_text in _problems(self):
            code = ErrorCode.TASK_INVALID_OPTIONS
            report.add(TaskDefinitionError(f"RetryPolicy {problem}", code=code, help_text=help_text))
        report.raise_if_any()

    def delay(self, retry_number: int, random: float) -> float:
        """Return the seconds to wait before retry 1, 2, …; `random` is a number from 0 to 1."""
        if self.backoff_strategy == "fixed":
            seconds = float(in_seconds(self.intervals[retry_number - 1]))
        else:
            seconds = float(in_seconds(self.intervals[0]) * 2 ** (retry_number - 1))
        if self.jitter:
            seconds *= _jitter(random)
        if self.max_delay_seconds is not None:
            seconds = min(seconds, in_seconds(self.max_delay_seconds))
        return max(1.0, seconds)

    def to_json(self) -> dict[str, Any]:
        """Return the policy as a JSON object, to be stored with a task."""
        return msgspec.to_builtins(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Return the policy that `to_json` encoded. Unknown keys, which a newer release may add, are ignored."""
        try:
            return cls(**msgspec.to_builtins(msgspec.convert(stored, _StoredPolicy)))
        except msgspec.ValidationError as error:
            raise TaskDefinitionError(
                f"a stored retry policy cannot be read: {error}",
                code=ErrorCode.TASK_INVALID_OPTIONS,
                help_text="store the result of RetryPolicy.to_json()",
            ) from error


class _StoredPolicy(msgspec.Struct, omit_defaults=True):
    """The JSON object of a policy. Only a stored policy must list its errors itself."""

    auto_retry_for: list[str]
    max_retries: int = 3
    intervals: list[int] = msgspec.field(default_factory=lambda: [60, 300, 900])
    backoff_strategy: Literal["fixed", "exponential"] = "fixed"
    jitter: bool = True
    max_delay_seconds: int | None = None


def _as_name(item: object) -> object:
    if isinstance(item, type) and issubclass(item, BaseException):
        return qualified_name(item)
    return cast(object, item)


def _whole_seconds(value: object) -> object:
    """Return a timedelta of whole seconds as an int, and anything else unchanged."""
    if isinstance(value, timedelta) and value.total_seconds().is_integer():
        return int(value.total_seconds())
    return value


def _problems(policy: RetryPolicy) -> Iterator[tuple[str, str]]:
    """Yield each error of a policy and its remedy."""
    if policy.auto_retry_for is not None and not policy.auto_retry_for:
        yield "has an empty auto_retry_for", 'list at least one error code, or ["*"] to retry every error'
    for item in policy.auto_retry_for or ():
        if not is_retryable_error(item):
            remedy = f"{TASK_CODE_HELP}; or list exception classes, such as ConnectionError without quotes"
            yield (
                f"lists {item!r} in auto_retry_for, which is neither an error code nor an exception class",
                remedy,
            )
    if not is_whole_number(policy.max_retries, 1, _MAX_RETRIES):
        yield f"has max_retries={policy.max_retries!r}", f"use a whole number from 1 to {_MAX_RETRIES}"
    given = len(policy.intervals)
    if not 1 <= given <= _MAX_RETRIES:
        yield f"has {given} intervals", f"give 1 to {_MAX_RETRIES} of them"
    for wait in policy.intervals:
        if not is_whole_number(wait, 1, _DAY):
            yield f"has the interval {wait!r}", f"use whole seconds from 1 to {_DAY} (a day)"
    if policy.max_delay_seconds is not None and not is_whole_number(policy.max_delay_seconds, 1):
        yield f"has max_delay_seconds={policy.max_delay_seconds!r}", "use whole seconds, at least 1"
    match policy.backoff_strategy:
        case "fixed" if given != policy.max_retries:
            remedy = f"give one interval for each retry, or set max_retries={given}"
            yield f"is fixed, with {given} intervals for {policy.max_retries!r} retries", remedy
        case "exponential" if given != 1:
            yield f"is exponential, with {given} intervals", "give exactly one, the first wait"
        case "fixed" | "exponential":
            return
        case other:  # pyright: ignore[reportUnnecessaryComparison]
            yield f"has backoff_strategy={other!r}", 'use "fixed" or "exponential"'


def add_errors(policy: RetryPolicy, errors: object) -> RetryPolicy:
    """Return the policy with more errors to retry.

    >>> add_errors(RetryPolicy.fixed([60]), ConnectionError).auto_retry_for
    ('builtins.ConnectionError',)
    """
    listed: Any = (*(policy.auto_retry_for or ()), *as_items(errors))
    return replace(policy, auto_retry_for=listed)


def take_errors(policy: RetryPolicy, other: RetryPolicy | None) -> RetryPolicy:
    """Return the policy; if it lists no errors, with those of another one."""
    if policy.auto_retry_for is not None or other is None or other.auto_retry_for is None:
        return policy
    return add_errors(policy, other.auto_retry_for)


def add_local_names(stored: RetryPolicy, own: RetryPolicy | None) -> RetryPolicy:
    """Return a stored policy with the names that its exception classes have in the policy of the task's definition here.

    A module may have another name in the process that sent the task, and a class may have moved since.

    >>> stored = RetryPolicy.fixed([60], auto_retry_for=["shop.errors.Busy"])
    >>> add_local_names(stored, RetryPolicy.fixed([60], auto_retry_for=["errors.Busy"])).auto_retry_for
    ('shop.errors.Busy', 'errors.Busy')
    """
    if own is None or stored.auto_retry_for == own.auto_retry_for:
        return stored
    wanted = {_last_part(item) for item in stored.auto_retry_for or () if "." in str(item)}
    local = [item for item in own.auto_retry_for or () if "." in str(item) and _last_part(item) in wanted]
    return add_errors(stored, local) if local else stored


def _last_part(name: object) -> str:
    return str(name).rpartition(".")[2]


# The delays of a task that has `retry_on` and no policy: 10, 20, 40, 80 and 160 seconds.
DEFAULT_POLICY = RetryPolicy.exponential(10, max_retries=5)


def retry_delay(
    policy: RetryPolicy | None,
    error_code: str | None,
    *,
    unmapped_exception: bool = False,
    exception_classes: Sequence[str] | None = None,
    retry_count: int,
    random: float,
) -> float | None:
    """Return the seconds until the next run of a task that has failed and been retried `retry_count` times; None for no retry.

    `unmapped_exception` is True for an exception that no mapper has, whatever its code. `exception_classes` has the names of the
    classes of an exception, as `class_names` returns them. The database decides, by its own clock, if the next run would be after
    `good_until`.

    >>> retry_delay(None, "RATE_LIMITED", retry_count=0, random=0.5) is None
    True
    """
    if policy is None or retry_count >= policy.max_retries:
        return None
    if (
        error_code == OutcomeCode.UPSTREAM_FAILED
    ):  # the node before has ended: another run would find the same
        return None
    names = {_ANY_ERROR, error_code, *(exception_classes or ())}
    if unmapped_exception or error_code == OperationalErrorCode.UNHANDLED_EXCEPTION:
        names |= {OperationalErrorCode.TASK_EXCEPTION, OperationalErrorCode.UNHANDLED_EXCEPTION}
    is_listed = not names.isdisjoint(policy.auto_retry_for or ())
    return policy.delay(retry_count + 1, random) if is_listed else None


def backoff(attempt: int, initial_ms: int, max_ms: int, random: float) -> float:
    """Return the seconds to wait after consecutive failure 0, 1, …: doubling up to a maximum, with 25 % jitter."""
    return min(max_ms, initial_ms * 2**attempt) / 1_000 * _jitter(random)


def _jitter(random: float) -> float:
    return 0.75 + random / 2
