"""Errors with a message, a stable code, the source line and a remedy.

Every exception of the library is a `HorsiesError`. Its message quotes the offending value, but never a password. The errors of
sends and of results are `ValueError`s too.

    HorsiesError
    ├── ConfigurationError             a setting, a URL, a flag
    ├── TaskDefinitionError            a decorated function or its options
    ├── RegistryError                  a task name unknown, or taken
    ├── WorkflowValidationError        a workflow that cannot run as defined
    ├── WorkflowContextMissingIdError  a result asked for by a node without an id
    ├── DatabaseError                  the server, the schema
    ├── EmbeddedError                  the embedded PostgreSQL server
    ├── MultipleValidationErrors       several of these at once
    ├── SendError                      a task that could not be stored
    ├── TaskFailed                     a task that failed
    ├── TaskTimeout                    a task that has not ended while the caller waited
    ├── TaskCancelled                  a task that was cancelled
    ├── TaskExpired                    a task that was not started in time
    ├── TaskNotFound                   a task that does not exist
    ├── ResultUnavailable              a result that cannot be read
    └── UnwrapError                    a value asked of a result that has none
"""

import inspect
import linecache
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, fields
from datetime import timedelta
from enum import StrEnum, unique
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from horsies.status import (
    BUILTIN_CODE_REGISTRY,
    BuiltInTaskCode,
    OperationalErrorCode,
    OutcomeCode,
    RetrievalCode,
    TaskSendErrorCode,
    WorkflowStartErrorCode,
)
from horsies.task_errors import TaskError, TaskSendError

T = TypeVar("T")


def how_to_install(extra: str) -> str:
    """Return the remedy for a missing extra: the name on a package index may be somebody else's package."""
    return f'install horsies with the extra {extra} from your clone or wheel: pip install "/path/to/horsies[{extra}]"'


@unique
class ErrorCode(StrEnum):
    """The stable number of an error, to search for and to test against."""

    WORKFLOW_NO_NAME = "HRS-001"
    WORKFLOW_NO_NODES = "HRS-002"
    WORKFLOW_INVALID_NODE_ID = "HRS-003"
    WORKFLOW_DUPLICATE_NODE_ID = "HRS-004"
    WORKFLOW_NO_ROOT_TASKS = "HRS-005"
    WORKFLOW_INVALID_DEPENDENCY = "HRS-006"
    WORKFLOW_CYCLE_DETECTED = "HRS-007"
    WORKFLOW_INVALID_ARGS_FROM = "HRS-008"
    WORKFLOW_INVALID_CTX_FROM = "HRS-009"
    WORKFLOW_CTX_PARAM_MISSING = "HRS-010"
    WORKFLOW_INVALID_OUTPUT = "HRS-011"
    WORKFLOW_INVALID_SUCCESS_POLICY = "HRS-012"
    WORKFLOW_INVALID_JOIN = "HRS-013"
    WORKFLOW_UNRESOLVED_QUEUE = "HRS-014"
    WORKFLOW_UNRESOLVED_PRIORITY = "HRS-015"
    WORKFLOW_NO_DEFINITION_KEY = "HRS-016"
    WORKFLOW_DUPLICATE_DEFINITION_KEY = "HRS-017"
    WORKFLOW_SUBWORKFLOW_APP_MISSING = "HRS-018"
    WORKFLOW_INVALID_KWARG_KEY = "HRS-019"
    WORKFLOW_MISSING_REQUIRED_PARAMS = "HRS-020"
    WORKFLOW_KWARGS_ARGS_FROM_OVERLAP = "HRS-021"
    WORKFLOW_SUBWORKFLOW_PARAMS_REQUIRE_BUILD_WITH = "HRS-022"
    WORKFLOW_SUBWORKFLOW_BUILD_WITH_BINDING = "HRS-023"
    WORKFLOW_ARGS_FROM_TYPE_MISMATCH = "HRS-024"
    WORKFLOW_OUTPUT_TYPE_MISMATCH = "HRS-025"
    WORKFLOW_POSITIONAL_ARGS_NOT_SUPPORTED = "HRS-026"
    WORKFLOW_CHECK_CASES_REQUIRED = "HRS-027"
    WORKFLOW_CHECK_CASE_INVALID = "HRS-028"
    WORKFLOW_CHECK_BUILDER_EXCEPTION = "HRS-029"
    WORKFLOW_CHECK_UNDECORATED_BUILDER = "HRS-030"
    WORKFLOW_KWARGS_NOT_SERIALIZABLE = "HRS-031"
    WORKFLOW_INVALID_ID = "HRS-032"

    TASK_NO_RETURN_TYPE = "HRS-100"
    TASK_INVALID_RETURN_TYPE = "HRS-101"
    TASK_INVALID_OPTIONS = "HRS-102"
    TASK_INVALID_QUEUE = "HRS-103"
    TASK_PREDECORATED_NOT_SUPPORTED = "HRS-104"
    TASK_STRICT_SIGNATURE_VIOLATION = "HRS-105"

    CONFIG_INVALID_QUEUE_MODE = "HRS-200"
    CONFIG_INVALID_CLUSTER_CAP = "HRS-201"
    CONFIG_INVALID_PREFETCH = "HRS-202"
    BROKER_INVALID_URL = "HRS-203"
    CONFIG_INVALID_RECOVERY = "HRS-204"
    CONFIG_INVALID_SCHEDULE = "HRS-205"
    CLI_INVALID_ARGS = "HRS-206"
    WORKER_INVALID_LOCATOR = "HRS-207"
    CONFIG_INVALID_RESILIENCE = "HRS-208"
    CONFIG_INVALID_EXCEPTION_MAPPER = "HRS-209"
    MODULE_EXEC_ERROR = "HRS-210"
    BROKER_INIT_FAILED = "HRS-211"
    CHECK_RESERVED_CODE_COLLISION = "HRS-212"
    CONFIG_INVALID_BROKER_POOL = "HRS-213"
    CONFIG_INVALID_CHILD_HOOK = "HRS-214"
    CONFIG_INVALID_KEEPALIVE = "HRS-215"
    CONFIG_INVALID_RETENTION = "HRS-216"
    CONFIG_INVALID_WORKER = "HRS-217"
    CONFIG_INVALID_VALUE = "HRS-218"
    EXTRA_NOT_INSTALLED = "HRS-219"
    WEB_UNPROTECTED = "HRS-230"
    ADDRESS_UNAVAILABLE = "HRS-231"

    TASK_NOT_REGISTERED = "HRS-300"
    TASK_DUPLICATE_NAME = "HRS-301"
    TASK_NOT_FOUND = "HRS-302"
    TASK_NOT_RUNNING = "HRS-303"

    EMBEDDED_NO_BINARIES = "HRS-401"
    EMBEDDED_REFUSED = "HRS-402"
    EMBEDDED_DATA_DIRECTORY = "HRS-403"
    EMBEDDED_START_FAILED = "HRS-404"
    EMBEDDED_ALTERED = "HRS-405"

    SCHEMA_TOO_NEW = "HRS-410"
    SCHEMA_BEHIND = "HRS-411"
    SCHEMA_PERMISSION = "HRS-412"
    DATABASE_UNREACHABLE = "HRS-413"
    DATABASE_REFUSED = "HRS-414"


class SourceLocation(NamedTuple):
    """A line of the user's code."""

    file: str
    line: int


_PACKAGE = __name__.partition(".")[0]
# Modules whose frames are skipped in the search for the user's code.
_SKIPPED_MODULES = sys.stdlib_module_names | {_PACKAGE, "click"}


def caller_location() -> SourceLocation | None:
    """Return the innermost line of user code on the stack; None if there is none."""
    frame = inspect.currentframe()
    outermost_own = ""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        top = module.partition(".")[0]
        if top == _PACKAGE:
            outermost_own = module
        elif top not in _SKIPPED_MODULES:
            break
        frame = frame.f_back
    # The caller of the command line is its launcher script, which is not the user's code.
    if frame is None or outermost_own.startswith(f"{_PACKAGE}.cli"):
        return None
    return SourceLocation(frame.f_code.co_filename, frame.f_lineno)


# These patterns prefer to mask too much over too little.
_SECRETS: Sequence[tuple[re.Pattern[str], str]] = (
    # An unescaped password may contain '@', ':' or '/'.
    (re.compile(r"(://[^:]*:).*@", re.DOTALL), r"\1***@"),
    # Text in place of a port that is no number: the host was forgotten, and this is the password.
    (re.compile(r"(://[^:/?@\[\s]*:)(?!\d+(?![\w%-]))[^/?@\s'\"]+"), r"\1***"),
    # A `password=` setting of libpq, quoted or not, in a URL, or in the repr of a dict.
    (
        re.compile(
            r"""((?:password|secret|scram_\w+_key)['"]?\s*[=:]\s*)('(?:\\.|[^'\\])*'|"[^"]*"|(?:\\.|[^&\s\\])+)""",
            re.IGNORECASE,
        ),
        r"\1***",
    ),
    # An unquoted password with a space: it extends to the next setting, or to the end of the line.
    (re.compile(r"(password\s*=\s*\*\*\*)(?:[^\S\n]+(?!\w+\s*=)[^\s&]+)+", re.IGNORECASE), r"\1"),
    # A percent-encoded name may stand for any of these.
    (re.compile(r"([?&][^=&\s]*%[^=&\s]*=)[^&\s]+"), r"\1***"),
)


def mask_passwords(text: str) -> str:
    """Replace the passwords of URLs and of `password=` settings by `***`.

    >>> mask_passwords("postgresql://ann:s3cret@db/app?password=s3cret")
    'postgresql://ann:***@db/app?password=***'
    """
    for pattern, masked in _SECRETS:
        text = pattern.sub(masked, text)
    return text


def masked_repr(record: Any) -> str:
    """Return the repr of a dataclass instance, with the passwords in its strings masked."""
    values = {each.name: getattr(record, each.name) for each in fields(record)}
    shown = (f"{k}={(mask_passwords(v) if isinstance(v, str) else v)!r}" for k, v in values.items())
    return f"{type(record).__name__}({', '.join(shown)})"


def use_color(env: Mapping[str, str], isatty: bool) -> bool:
    """Return True if output is to be coloured: on a terminal or when forced, unless `NO_COLOR` is set."""
    if env.get("NO_COLOR"):
        return False
    forced = (env.get(name, "") for name in ("HORSIES_FORCE_COLOR", "FORCE_COLOR"))
    return isatty or any(value not in ("", "0") for value in forced)


_BOLD, _RED, _BLUE, _CYAN = "1", "1;31", "1;34", "1;36"


def _paint(style: str, text: str, color: bool) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if color else text


class HorsiesError(Exception):
    """An error with its cause, its place in the code, and a remedy.

    >>> error = ConfigurationError(
    ...     "queue 'mail' is not configured",
    ...     code=ErrorCode.CONFIG_INVALID_QUEUE_MODE,
    ...     location=SourceLocation("app.py", 12),
    ...     help_text="add CustomQueueConfig(name='mail')",
    ... )
    >>> print(error)
    error[HRS-200]: queue 'mail' is not configured
      --> app.py:12
       = help: add CustomQueueConfig(name='mail')

    The default `location` is the innermost line of user code on the stack.
    """

    def __init__(
        self,
        message: str,
        *,
        code: ErrorCode | None = None,
        location: SourceLocation | None = None,
        notes: Iterable[str] = (),
        help_text: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self._code: str | None = code
        self.location = location or caller_location()
        self.notes = tuple(notes)
        self.help_text = help_text

    @property
    def code(self) -> str | None:
        """Return the stable code of the error."""
        return self._code

    def __str__(self) -> str:
        return self.render(color=False)

    def render(self, color: bool) -> str:
        """Return the error as text for people, optionally in colour."""
        label = f"error[{self.code}]" if self.code else "error"
        lines = [_paint(_RED, label, color) + _paint(_BOLD, f": {self.message}", color)]
        if self.location:
            lines += _pointer(self.location, color)
        remarks = [("note", note) for note in self.notes]
        if self.help_text:
            remarks.append(("help", self.help_text))
        lines += [f"   = {_paint(_CYAN, kind, color)}: {text}" for kind, text in remarks]
        return "\n".join(lines)


def _pointer(location: SourceLocation, color: bool) -> list[str]:
    """Return lines with the place of an error and, if it can be read, its source line underlined."""
    lines = [f"  {_paint(_BLUE, '-->', color)} {location.file}:{location.line}"]
    # The source line may contain a database URL.
    source = mask_passwords(linecache.getline(location.file, location.line).strip())
    if source:
        number = str(location.line)
        gutter = " " * len(number)
        lines += [
            _paint(_BLUE, f"{gutter} |", color),
            f"{_paint(_BLUE, f'{number} |', color)} {source}",
            f"{_paint(_BLUE, f'{gutter} |', color)} {_paint(_RED, '^' * len(source), color)}",
        ]
    return lines


class ConfigurationError(HorsiesError):
    """A setting is invalid."""


class TaskDefinitionError(HorsiesError):
    """The definition of a task is invalid."""


class RegistryError(HorsiesError):
    """A task name is unknown, or already taken."""


class WorkflowValidationError(HorsiesError):
    """A workflow cannot run as it is defined."""


class WorkflowContextMissingIdError(HorsiesError):
    """A workflow context was asked for the result of a node that has no id."""


class DatabaseError(HorsiesError):
    """The database cannot be reached, or its schema has the wrong version."""


class EmbeddedError(HorsiesError):
    """The embedded PostgreSQL server cannot run here."""


class MultipleValidationErrors(HorsiesError):
    """Several errors of one phase, reported together in `errors`."""

    def __init__(self, errors: Sequence[HorsiesError]) -> None:
        super().__init__(f"aborting due to {len(errors)} previous errors")
        self.errors = tuple(errors)

    def render(self, color: bool) -> str:
        """Return all errors as text for people, optionally in colour."""
        last = _paint(_RED, "error", color) + _paint(_BOLD, f": {self.message}", color)
        return "\n\n".join([*(error.render(color) for error in self.errors), last])


class SendError(HorsiesError, ValueError):
    """A task or workflow could not be stored, so it will not run.

    >>> try:
    ...     add.delay(2, 3)
    ... except SendError as error:
    ...     print(error.code, error.retryable)

    If `retryable` is True, the database was away, and the same call may succeed later. `error` is the value that `send` would
    have returned; `retry_send(error.error)` never stores a second task.
    """

    def __init__(
        self,
        code: TaskSendErrorCode | WorkflowStartErrorCode,
        message: str,
        retryable: bool = False,
        error: TaskSendError | None = None,
    ) -> None:
        super().__init__(message)
        self.args = (code, message, retryable, error)
        self.error = error
        self.retryable = retryable

    @property
    def code(self) -> TaskSendErrorCode | WorkflowStartErrorCode:
        """Return the code of the failed send."""
        return self.args[0]

    def render(self, color: bool) -> str:
        """Return the code and the message."""
        return f"{_paint(_RED, str(self.code), color)}: {self.message}"


class _NoValue(HorsiesError, ValueError):
    """A task has no value to return; `error` says why."""

    _what = "has no value"

    def __init__(self, error: TaskError, *, task_name: str | None = None, task_id: str | None = None) -> None:
        super().__init__(error.message or "")
        self.args = (error,)
        self.error = error
        self.task_name = task_name
        self.task_id = task_id
        if isinstance(error.exception, BaseException):
            self.__cause__ = error.exception

    @property
    def code(self) -> str | None:
        """Return the code of the task's error."""
        return self.error.error_code

    def render(self, color: bool) -> str:
        """Return the task, the code, the message and the last lines of the traceback in the worker."""
        name = f" {self.task_name!r}" if self.task_name else ""
        task = f"task{name} {self.task_id}" if self.task_id else f"task{name}" if name else "the task"
        if self.task_id and self.message.startswith(f"task {self.task_id} "):
            text = self.message.replace(f"task {self.task_id}", task, 1)  # it says what became of the task
        else:
            text = ": ".join(str(part) for part in (f"{task} {self._what}", self.code, self.message) if part)
        first, *more = text.splitlines()
        lines = [_paint(_BOLD, first, color), *more, *_remote_traceback(self.error)]
        return "\n".join(mask_passwords(line) for line in lines)


_TRACEBACK_LINES = 8


def _remote_traceback(error: TaskError) -> list[str]:
    """Return the last lines of the traceback that the worker stored with an error, indented."""
    stored: object = error.exception.get("traceback") if isinstance(error.exception, dict) else None
    if not isinstance(stored, str) or not stored.strip():
        return []
    lines = stored.rstrip().splitlines()
    omitted = ["  …"] if len(lines) > _TRACEBACK_LINES else []
    return ["in the worker:", *omitted, *(f"  {line}" for line in lines[-_TRACEBACK_LINES:])]


class TaskFailed(_NoValue):
    """The task failed; `error` has its code, message and data.

    >>> try:
    ...     charge.delay(7).result(timeout=10)
    ... except TaskFailed as failed:
    ...     print(failed.error.error_code, failed.error.data)

    A task that ran longer than its time limit has failed, too, with the code `TASK_TIMEOUT`.
    """

    _what = "failed"


class TaskTimeout(_NoValue):
    """The task has not ended while the caller waited. It goes on, and its result can be asked for again.

    >>> try:
    ...     handle.result(timeout=10)
    ... except TaskTimeout:
    ...     handle.result(timeout=60)
    """

    _what = "has not ended"


class TaskCancelled(_NoValue):
    """The task was cancelled and has no value.

    >>> handle.cancel()
    >>> handle.result()
    Traceback (most recent call last):
    horsies.errors.TaskCancelled: task 'add' 0199… was cancelled: TASK_CANCELLED: the task was cancelled
    """

    _what = "was cancelled"


class TaskExpired(_NoValue):
    """The task was not started before its `good_until`, so it never ran.

    >>> add.with_options(good_until=datetime.now(UTC)).delay(2, 3).result()
    Traceback (most recent call last):
    horsies.errors.TaskExpired: task 'add' 0199… has expired: TASK_EXPIRED: the task was not started in time
    """

    _what = "has expired"


class TaskNotFound(_NoValue):
    """There is no such task: the id is wrong, or the task was deleted after the retention time.

    >>> app.handle("0199…").result()
    Traceback (most recent call last):
    horsies.errors.TaskNotFound: task 0199… was not found: TASK_NOT_FOUND: there is no task 0199…
    """

    _what = "was not found"


class ResultUnavailable(_NoValue):
    """The result cannot be read: the database is unreachable, or the result is no longer stored. The task may have succeeded.

    >>> try:
    ...     handle.result(timeout=10)
    ... except ResultUnavailable as unavailable:
    ...     print(unavailable.code)
    BROKER_ERROR
    """

    _what = "has a result that cannot be read"


class UnwrapError(HorsiesError, ValueError):
    """The value of a failed result was asked for, or the error of a successful one; `error` is what the result has instead.

    >>> Err("no broker").unwrap()
    Traceback (most recent call last):
    horsies.errors.UnwrapError: unwrap() on an Err: Err('no broker')
    """

    def __init__(self, message: str, error: object = None) -> None:
        super().__init__(message)
        self.args = (message, error)
        self.error = error

    def render(self, color: bool) -> str:
        """Return the message."""
        return _paint(_BOLD, self.message, color)


_NO_VALUE: Mapping[str | None, type[_NoValue]] = {
    RetrievalCode.WAIT_TIMEOUT: TaskTimeout,
    RetrievalCode.RESULT_NOT_READY: TaskTimeout,
    RetrievalCode.TASK_NOT_FOUND: TaskNotFound,
    RetrievalCode.WORKFLOW_NOT_FOUND: TaskNotFound,
    RetrievalCode.RESULT_NOT_AVAILABLE: ResultUnavailable,
    OperationalErrorCode.BROKER_ERROR: ResultUnavailable,
    OutcomeCode.TASK_CANCELLED: TaskCancelled,
    OutcomeCode.WORKFLOW_CANCELLED: TaskCancelled,
    OutcomeCode.TASK_EXPIRED: TaskExpired,
    OutcomeCode.WORKFLOW_EXPIRED: TaskExpired,
}


def exception_for(
    error: TaskError, *, task_name: str | None = None, task_id: str | None = None
) -> HorsiesError:
    """Return the exception to raise for the error of a task, by its code: `TaskFailed` unless another one fits better."""
    if task_id is None and isinstance(error.data, dict):
        # Errors of `get` have the id in their data.
        found: object = error.data.get("task_id")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        task_id = found if isinstance(found, str) else None
    kind = _NO_VALUE.get(error.error_code, TaskFailed)
    return kind(error, task_name=task_name, task_id=task_id)


class ValidationReport:
    """Collect the errors of one phase, to raise them all at once.

    >>> report = ValidationReport("queues")
    >>> report.raise_if_any()
    """

    def __init__(self, phase: str) -> None:
        self.phase = phase
        self.errors: list[HorsiesError] = []

    def add(self, error: HorsiesError) -> None:
        """Add an error to the report."""
        self.errors.append(error)

    def collect(self, check: Callable[[], T]) -> T | None:
        """Call `check` and return its result; if it raises, add the error and return None."""
        try:
            return check()
        except MultipleValidationErrors as several:
            self.errors += several.errors
        except HorsiesError as error:
            self.errors.append(error)
        return None

    def raise_if_any(self) -> None:
        """Raise the only error as itself, or several as `MultipleValidationErrors`."""
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            raise MultipleValidationErrors(self.errors)


def is_whole_number(value: object, low: int, high: int | None = None) -> bool:
    """Return True for an int (a bool does not count) from low to high, both included."""
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return low <= value and (high is None or value <= high)


def is_storable_text(value: object, max_length: int) -> bool:
    """Return True for text of 1 to `max_length` characters that PostgreSQL can store: no NUL and no lone surrogate."""
    if not isinstance(value, str) or not 1 <= len(value) <= max_length:
        return False
    return not any(character == "\0" or "\ud800" <= character <= "\udfff" for character in value)


def bounded(
    default: int | None,
    low: int,
    high: int | None = None,
    *,
    or_none: bool = False,
    code: ErrorCode | None = None,
    unit: str = "",
) -> Any:
    """Return a dataclass field for a whole number within bounds; None is valid too if it is the default.

    The `unit` of a duration, such as "seconds", is named in its errors.
    """
    limits = (low, high, or_none or default is None)
    return field(default=default, metadata={"range": limits, "code": code, "unit": unit})


if TYPE_CHECKING:

    class Span:
        """A duration: a number in the unit of the setting's name, or a timedelta. It is stored as a number."""

        def __get__(self, config: object, owner: type | None = None) -> int: ...
        def __set__(self, config: object, value: int | timedelta) -> None: ...

    class SpanOrNone:
        """The same, or None."""

        def __get__(self, config: object, owner: type | None = None) -> int | None: ...
        def __set__(self, config: object, value: int | timedelta | None) -> None: ...

else:
    Span = int | timedelta
    SpanOrNone = int | timedelta | None

_UNITS = {
    "milliseconds": timedelta(milliseconds=1),
    "seconds": timedelta(seconds=1),
    "hours": timedelta(hours=1),
}


def read_timedeltas(config: Any) -> None:
    """Replace the timedeltas of a configuration object by numbers, in the units of their `bounded` fields.

    A timedelta that is no whole number of its unit stays, and `SettingsReport` reports it.
    """
    for setting in fields(config):
        value: object = getattr(config, setting.name)
        unit = _UNITS.get(setting.metadata.get("unit", ""))
        if unit is not None and isinstance(value, timedelta) and not value % unit:
            object.__setattr__(config, setting.name, value // unit)


class SettingsReport(ValidationReport):
    """The errors of a configuration object; begins with its `bounded` fields that are out of range."""

    def __init__(self, config: Any, code: ErrorCode) -> None:
        super().__init__(type(config).__name__)
        self._code = code
        self._out_of_range: set[str] = set()
        for setting in fields(config):
            if "range" not in setting.metadata:
                continue
            value: object = getattr(config, setting.name)
            low, high, or_none = setting.metadata["range"]
            if is_whole_number(value, low, high) or (value is None and or_none):
                continue
            self._out_of_range.add(setting.name)
            bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
            unit = setting.metadata["unit"]
            number = (
                f"a whole number of {unit}, or a timedelta of whole {unit}," if unit else "a whole number"
            )
            remedy = f"use {number} {bounds}{', or None' if or_none else ''}"
            self.fault(f"{setting.name} is {value!r}", remedy, setting.metadata["code"])

    def in_range(self, *names: str) -> bool:
        """Return True if these fields are in range, so that they can be compared with each other."""
        return self._out_of_range.isdisjoint(names)

    def fault(self, problem: str, remedy: str, code: ErrorCode | None = None) -> None:
        """Add an error with its remedy; the default code is that of the object."""
        self.add(ConfigurationError(f"{self.phase}: {problem}", code=code or self._code, help_text=remedy))

    def choice(self, name: str, value: object, *choices: str | None) -> None:
        """Add an error if the value is none of the choices."""
        if value not in choices:
            self.fault(f"{name} is {value!r}", f"use one of {', '.join(map(repr, choices))}")


_TASK_CODE = re.compile(r"[A-Z][A-Z0-9_]*")
TASK_CODE_HELP = "write error codes like RATE_LIMITED: capitals, digits and underscores, a letter first"


def is_error_code(code: object) -> bool:
    """Return True for a valid error code of a task: `RATE_LIMITED` is one, `RateLimitError` is not."""
    return isinstance(code, str) and _TASK_CODE.fullmatch(code) is not None


MAX_WAIT_SECONDS = 366 * 86_400


class RateLimited(Exception):
    """Raise it in the code of a task, at any depth, if a service has refused a request because there were too many.

    The task runs again after so many seconds, or a timedelta, and the run does not count as an attempt. Until then no task of the
    same key starts; of a task with a rate limit and no key, no task of that name.

    >>> raise RateLimited(after=20)
    Traceback (most recent call last):
    horsies.errors.RateLimited: no more requests for 20 s
    """

    def __init__(self, after: float | timedelta) -> None:
        seconds = after.total_seconds() if isinstance(after, timedelta) else after
        if (
            isinstance(seconds, bool)
            or not isinstance(cast(object, seconds), int | float)
            or not 0 <= seconds <= MAX_WAIT_SECONDS
        ):
            raise ValueError(f"after is {after!r}; use 0 to a year, in seconds or as a timedelta")
        super().__init__(after)  # so that the exception can be pickled
        self.seconds = float(seconds)

    def __str__(self) -> str:
        return f"no more requests for {self.seconds:g} s"


class TaskFailure(Exception):
    """Raise it in the code of a task, at any depth, to fail the task with an error code of your own.

    `data` is any value with a JSON form. The error that callers get has the code, the message, the data and the traceback. Retry
    policies go by the code.

    >>> raise TaskFailure("CARD_DECLINED", "the bank said no", data={"card": 17})
    Traceback (most recent call last):
    horsies.errors.TaskFailure: CARD_DECLINED: the bank said no
    """

    def __init__(self, code: str | BuiltInTaskCode, message: str | None = None, data: Any = None) -> None:
        if not is_error_code(code):
            raise ValueError(f"the code of a TaskFailure is {code!r}; {TASK_CODE_HELP}")
        if not isinstance(code, BuiltInTaskCode) and code in BUILTIN_CODE_REGISTRY:
            kind = type(BUILTIN_CODE_REGISTRY[code]).__name__
            raise ValueError(
                f"the code {code!r} of a TaskFailure is reserved; pass {kind}.{code}, or choose another code"
            )
        super().__init__(code, message, data)  # all of them, so that the exception can be pickled
        self.code = code
        self.message = message
        self.data = data

    def __str__(self) -> str:
        return str(self.code) if self.message is None else f"{self.code}: {self.message}"


class SignalTimeout(TaskFailure):
    """A task has waited for a signal until its time was up.

    >>> try:
    ...     approval = t.wait_for("approved", Approval, timeout=86_400)
    ... except SignalTimeout:
    ...     t.step("decline", decline, order)
    """

    def __init__(self, name: str) -> None:
        super().__init__(OutcomeCode.SIGNAL_TIMEOUT, f"the signal {name!r} was not given in time")
        self.name = name

    def __reduce__(self) -> tuple[Any, ...]:  # its arguments are not those of the base class
        return SignalTimeout, (self.name,)
