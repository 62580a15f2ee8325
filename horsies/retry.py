"""When to try again.

Decisions only: chance is an argument, so every answer can be checked.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias, cast

import msgspec

from horsies.errors import (
    ConfigurationError,
    ErrorCode,
    HorsiesError,
    TaskDefinitionError,
    ValidationReport,
    is_whole_number,
)
from horsies.results import OperationalErrorCode

ExceptionMapper: TypeAlias = Mapping[type[BaseException], str]
"""Exception classes and the error codes they become; a class counts for itself, not for its subclasses."""

_ANY_ERROR = "*"
_MAX_RETRIES = 20
_DAY = 86_400
_CODE = re.compile(r"[A-Z][A-Z0-9_]*")
_CODE_HELP = "write error codes like RATE_LIMITED: capitals, digits and underscores, a letter first"


def is_error_code(code: object) -> bool:
    """Whether this can be the code of an error: `RATE_LIMITED` can, `RateLimitError` cannot."""
    return isinstance(code, str) and _CODE.fullmatch(code) is not None


def check_exception_mapper(mapper: object, owner: str) -> list[HorsiesError]:
    """What is wrong with the exception mapper of `owner`; empty when all is well."""
    if not isinstance(mapper, Mapping):
        return [
            _mapper_error(owner, f"is {mapper!r}", 'pass a dict such as {TimeoutError: "UPSTREAM_TIMEOUT"}')
        ]
    errors: list[HorsiesError] = []
    for exception, code in cast("Mapping[object, object]", mapper).items():
        if not (isinstance(exception, type) and issubclass(exception, BaseException)):
            errors.append(_mapper_error(owner, f"has the key {exception!r}", "use exception classes as keys"))
        if not is_error_code(code):
            errors.append(_mapper_error(owner, f"maps {exception!r} to {code!r}", _CODE_HELP))
    return errors


def _mapper_error(owner: str, problem: str, help_text: str) -> HorsiesError:
    code = ErrorCode.CONFIG_INVALID_EXCEPTION_MAPPER
    return ConfigurationError(f"exception_mapper of {owner} {problem}", code=code, help_text=help_text)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Which errors are worth another run of the task, how many, and how long to wait before each.

    >>> policy = RetryPolicy.exponential(30, max_retries=5, auto_retry_for=["RATE_LIMITED"])
    >>> policy.delay(3, random=0.5)
    120.0

    `auto_retry_for` lists error codes; `"*"` stands for every error. With `jitter` a delay varies by
    a quarter either way, so that tasks which failed together do not come back together. A delay is
    never under a second, and never over `max_delay_seconds`.
    """

    auto_retry_for: Sequence[str]
    max_retries: int = 3
    intervals: Sequence[int] = (60, 300, 900)
    backoff_strategy: Literal["fixed", "exponential"] = "fixed"
    jitter: bool = True
    max_delay_seconds: int | None = None

    @classmethod
    def fixed(
        cls,
        intervals: Sequence[int],
        *,
        auto_retry_for: Sequence[str],
        jitter: bool = True,
        max_delay_seconds: int | None = None,
    ) -> Self:
        """Wait these seconds, one entry for each retry."""
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
        base_seconds: int,
        *,
        auto_retry_for: Sequence[str],
        max_retries: int = 3,
        jitter: bool = True,
        max_delay_seconds: int | None = None,
    ) -> Self:
        """Wait `base_seconds`, then twice as long each time."""
        return cls(
            auto_retry_for=auto_retry_for,
            max_retries=max_retries,
            intervals=(base_seconds,),
            backoff_strategy="exponential",
            jitter=jitter,
            max_delay_seconds=max_delay_seconds,
        )

    def __post_init__(self) -> None:
        for name in ("auto_retry_for", "intervals"):
            object.__setattr__(self, name, _as_tuple(getattr(self, name)))
        report = ValidationReport("retry policy")
        for problem, help_text in _problems(self):
            code = ErrorCode.TASK_INVALID_OPTIONS
            report.add(TaskDefinitionError(f"RetryPolicy {problem}", code=code, help_text=help_text))
        report.raise_if_any()

    def delay(self, retry_number: int, random: float) -> float:
        """Seconds to wait before retry 1, 2, …; `random` is a number from 0 to 1."""
        if self.backoff_strategy == "fixed":
            seconds = float(self.intervals[retry_number - 1])
        else:
            seconds = float(self.intervals[0] * 2 ** (retry_number - 1))
        if self.jitter:
            seconds *= _jitter(random)
        if self.max_delay_seconds is not None:
            seconds = min(seconds, self.max_delay_seconds)
        return max(1.0, seconds)

    def to_json(self) -> dict[str, Any]:
        """The policy as a JSON object, to be stored with a task."""
        return msgspec.to_builtins(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """The policy that `to_json` gave. Unknown keys are passed over: a newer release may add some."""
        try:
            return msgspec.convert(stored, cls)
        except msgspec.ValidationError as error:
            raise TaskDefinitionError(
                f"a stored retry policy cannot be read: {error}",
                code=ErrorCode.TASK_INVALID_OPTIONS,
                help_text="store what RetryPolicy.to_json() gives",
            ) from error


def _as_tuple(value: object) -> tuple[object, ...]:
    # A lone code or number is taken as a list of one; it must not be taken apart.
    return tuple(cast("list[object]", value)) if isinstance(value, list | tuple | set) else (value,)


def _problems(policy: RetryPolicy) -> Iterator[tuple[str, str]]:
    """Each thing wrong with a policy, and its remedy."""
    if not policy.auto_retry_for:
        yield "has an empty auto_retry_for", 'list at least one error code, or ["*"] to retry every error'
    for code in policy.auto_retry_for:
        if code != _ANY_ERROR and not is_error_code(code):
            remedy = f"{_CODE_HELP}; an exception class gets its code from exception_mapper"
            yield f"lists {code!r} in auto_retry_for, which is not an error code", remedy
    if not is_whole_number(policy.max_retries, 1, _MAX_RETRIES):
        yield f"has max_retries={policy.max_retries!r}", f"use a whole number from 1 to {_MAX_RETRIES}"
    if not 1 <= len(policy.intervals) <= _MAX_RETRIES:
        yield f"has {len(policy.intervals)} intervals", f"give 1 to {_MAX_RETRIES} of them"
    for wait in policy.intervals:
        if not is_whole_number(wait, 1, _DAY):
            yield f"has the interval {wait!r}", f"use whole seconds from 1 to {_DAY} (a day)"
    if policy.max_delay_seconds is not None and not is_whole_number(policy.max_delay_seconds, 1):
        yield f"has max_delay_seconds={policy.max_delay_seconds!r}", "use whole seconds, at least 1"
    yield from _shape_problems(policy)


def _shape_problems(policy: RetryPolicy) -> Iterator[tuple[str, str]]:
    given = len(policy.intervals)
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


def retry_delay(
    policy: RetryPolicy | None,
    error_code: str | None,
    *,
    unmapped_exception: bool = False,
    retry_count: int,
    random: float,
) -> float | None:
    """Seconds until the next run after a failed one, `retry_count` retries having been spent; None: the error stands.

    `unmapped_exception` says that the error is a raised exception which no mapper knew, under
    whatever code it goes. Whether the next run would come too late is for the database's clock to say.

    >>> retry_delay(None, "RATE_LIMITED", retry_count=0, random=0.5) is None
    True
    """
    if policy is None or retry_count >= policy.max_retries:
        return None
    if not _names(error_code, unmapped_exception) & set(policy.auto_retry_for):
        return None
    return policy.delay(retry_count + 1, random)


def _names(error_code: str | None, unmapped_exception: bool) -> set[str | None]:
    """Everything a policy may list to mean this error."""
    names = {_ANY_ERROR, error_code}
    if unmapped_exception or error_code == OperationalErrorCode.UNHANDLED_EXCEPTION:
        names |= {OperationalErrorCode.TASK_EXCEPTION, OperationalErrorCode.UNHANDLED_EXCEPTION}
    return names


def backoff(attempt: int, initial_ms: int, max_ms: int, random: float) -> float:
    """Seconds to wait after failure 0, 1, … in a row: doubling up to a cap, a quarter more or less."""
    return min(max_ms, initial_ms * 2**attempt) / 1_000 * _jitter(random)


def _jitter(random: float) -> float:
    return 0.75 + random / 2
