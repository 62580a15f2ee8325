"""Errors that say what is wrong, where, and what to do next.

Every error a user can meet before work starts is a `HorsiesError`: a message with the offending
value, a stable code, the user's own source line, and a remedy. A password never shows in one.

    HorsiesError
    ├── ConfigurationError             a setting, a URL, a flag
    ├── TaskDefinitionError            a decorated function or its options
    ├── RegistryError                  a task name unknown, or taken
    ├── WorkflowValidationError        a workflow that cannot run as drawn
    ├── WorkflowContextMissingIdError  a result asked for by a node without an id
    ├── DatabaseError                  the server, the schema
    ├── EmbeddedError                  the server we start ourselves
    └── MultipleValidationErrors       several of these at once
"""

import inspect
import linecache
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, field, fields
from enum import StrEnum, unique
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


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

    TASK_NOT_REGISTERED = "HRS-300"
    TASK_DUPLICATE_NAME = "HRS-301"
    TASK_NOT_FOUND = "HRS-302"
    TASK_NOT_RUNNING = "HRS-303"

    EMBEDDED_NO_BINARIES = "HRS-401"
    EMBEDDED_REFUSED = "HRS-402"
    EMBEDDED_DATA_DIRECTORY = "HRS-403"
    EMBEDDED_START_FAILED = "HRS-404"

    SCHEMA_TOO_NEW = "HRS-410"
    SCHEMA_BEHIND = "HRS-411"
    SCHEMA_PERMISSION = "HRS-412"
    DATABASE_UNREACHABLE = "HRS-413"
    DATABASE_REFUSED = "HRS-414"
    EVENTS_REFUSED = "HRS-420"


class SourceLocation(NamedTuple):
    """A line of the user's code."""

    file: str
    line: int


_PACKAGE = __name__.partition(".")[0]
# Frames nobody can act on: our own, and what stands between us and the user's code.
_TRANSPARENT = sys.stdlib_module_names | {_PACKAGE, "click"}


def caller_location() -> SourceLocation | None:
    """The innermost line of user code on the stack; None when nobody's code led here."""
    frame = inspect.currentframe()
    last_of_ours = ""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        top = module.partition(".")[0]
        if top == _PACKAGE:
            last_of_ours = module
        elif top not in _TRANSPARENT:
            break
        frame = frame.f_back
    # What called the command line is its launcher script, which is not the user's code.
    if frame is None or last_of_ours.startswith(f"{_PACKAGE}.cli"):
        return None
    return SourceLocation(frame.f_code.co_filename, frame.f_lineno)


# These patterns rather hide too much than too little.
_SECRETS: Sequence[tuple[re.Pattern[str], str]] = (
    # Unescaped passwords may hold '@', ':' or '/'.
    (re.compile(r"(://[^:]*:).*@", re.DOTALL), r"\1***@"),
    # What stands in the place of a port and is none: the host was forgotten.
    (re.compile(r"(://[^:/?@\[\s]*:)(?!\d+(?![\w%-]))[^/?@\s'\"]+"), r"\1***"),
    # As libpq writes it, with escapes in its quotes and without, in a URL, or as Python shows a dict.
    (
        re.compile(
            r"""((?:password|secret|scram_\w+_key)['"]?\s*[=:]\s*)('(?:\\.|[^'\\])*'|"[^"]*"|(?:\\.|[^&\s\\])+)""",
            re.IGNORECASE,
        ),
        r"\1***",
    ),
    # A name that is itself percent-encoded may be any of these.
    (re.compile(r"([?&][^=&\s]*%[^=&\s]*=)[^&\s]+"), r"\1***"),
)


def mask_passwords(text: str) -> str:
    """The text with the passwords of URLs and of `password=` settings replaced by `***`.

    >>> mask_passwords("postgresql://ann:s3cret@db/app?password=s3cret")
    'postgresql://ann:***@db/app?password=***'
    """
    for pattern, masked in _SECRETS:
        text = pattern.sub(masked, text)
    return text


def masked_repr(record: Any) -> str:
    """The repr of a dataclass instance, with the passwords in its texts masked."""
    values = {each.name: getattr(record, each.name) for each in fields(record)}
    shown = (f"{k}={(mask_passwords(v) if isinstance(v, str) else v)!r}" for k, v in values.items())
    return f"{type(record).__name__}({', '.join(shown)})"


def use_color(env: Mapping[str, str], isatty: bool) -> bool:
    """Whether to colour: on a terminal or when forced, and never against `NO_COLOR`."""
    if env.get("NO_COLOR"):
        return False
    forced = (env.get(name, "") for name in ("HORSIES_FORCE_COLOR", "FORCE_COLOR"))
    return isatty or any(value not in ("", "0") for value in forced)


_BOLD, _RED, _BLUE, _CYAN = "1", "1;31", "1;34", "1;36"


def _paint(style: str, text: str, color: bool) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if color else text


class HorsiesError(Exception):
    """What is wrong, where, and what to do about it.

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

    Without a `location`, the innermost line of user code on the stack is taken.
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
        self.code = code
        self.location = location or caller_location()
        self.notes = tuple(notes)
        self.help_text = help_text

    def __str__(self) -> str:
        return self.render(color=False)

    def render(self, color: bool) -> str:
        """The error as a person reads it, in colour if so asked."""
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
    """The place of an error, with its source line underlined when it can be read."""
    lines = [f"  {_paint(_BLUE, '-->', color)} {location.file}:{location.line}"]
    # The line may well be the one that spells out the database URL.
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
    """A setting that cannot be used."""


class TaskDefinitionError(HorsiesError):
    """A task that cannot be defined this way."""


class RegistryError(HorsiesError):
    """A task name that is unknown, or already taken."""


class WorkflowValidationError(HorsiesError):
    """A workflow that cannot run as it is drawn."""


class WorkflowContextMissingIdError(HorsiesError):
    """A workflow context was asked for the result of a node that has no id."""


class DatabaseError(HorsiesError):
    """A database that cannot be reached, or whose schema does not fit."""


class EmbeddedError(HorsiesError):
    """The PostgreSQL server of our own cannot run here."""


class MultipleValidationErrors(HorsiesError):
    """Several errors of one phase, reported together; each is in `errors`."""

    def __init__(self, errors: Sequence[HorsiesError]) -> None:
        super().__init__(f"aborting due to {len(errors)} previous errors")
        self.errors = tuple(errors)

    def render(self, color: bool) -> str:
        last = _paint(_RED, "error", color) + _paint(_BOLD, f": {self.message}", color)
        return "\n\n".join([*(error.render(color) for error in self.errors), last])


class ValidationReport:
    """Collects the errors of one phase, so that a user meets them all at once.

    >>> report = ValidationReport("queues")
    >>> report.raise_if_any()
    """

    def __init__(self, phase: str) -> None:
        self.phase = phase
        self.errors: list[HorsiesError] = []

    def add(self, error: HorsiesError) -> None:
        """Note an error and go on."""
        self.errors.append(error)

    def collect(self, check: Callable[[], T]) -> T | None:
        """What the check gives; None when it raised, which is noted."""
        try:
            return check()
        except MultipleValidationErrors as several:
            self.errors += several.errors
        except HorsiesError as error:
            self.errors.append(error)
        return None

    def raise_if_any(self) -> None:
        """Raise a single error as itself and several as `MultipleValidationErrors`."""
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            raise MultipleValidationErrors(self.errors)


def is_whole_number(value: object, low: int, high: int | None = None) -> bool:
    """Whether the value is an int (a bool is none) from low to high, both included."""
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return low <= value and (high is None or value <= high)


def bounded(
    default: int | None,
    low: int,
    high: int | None = None,
    *,
    or_none: bool = False,
    code: ErrorCode | None = None,
) -> Any:
    """A dataclass field for a whole number within bounds; None too, if that is its default."""
    return field(default=default, metadata={"range": (low, high, or_none or default is None), "code": code})


class SettingsReport(ValidationReport):
    """What is wrong with a configuration object; starts with its `bounded` fields out of range."""

    def __init__(self, config: Any, code: ErrorCode) -> None:
        super().__init__(type(config).__name__)
        self._code = code
        self._out_of_range: set[str] = set()
        for setting in fields(config):
            if "range" in setting.metadata:
                self._check_range(setting, getattr(config, setting.name))

    def _check_range(self, setting: Field[Any], value: object) -> None:
        low, high, or_none = setting.metadata["range"]
        if is_whole_number(value, low, high) or (value is None and or_none):
            return
        self._out_of_range.add(setting.name)
        bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
        none = ", or None" if or_none else ""
        remedy = f"use a whole number {bounds}{none}"
        self.fault(f"{setting.name} is {value!r}", remedy, setting.metadata["code"])

    def in_range(self, *names: str) -> bool:
        """Whether these fields can be compared with each other."""
        return self._out_of_range.isdisjoint(names)

    def fault(self, problem: str, remedy: str, code: ErrorCode | None = None) -> None:
        """Note what is wrong and how to put it right, under the object's own code or another."""
        self.add(ConfigurationError(f"{self.phase}: {problem}", code=code or self._code, help_text=remedy))

    def choice(self, name: str, value: object, *choices: str | None) -> None:
        """Note a value that is none of the choices."""
        if value not in choices:
            self.fault(f"{name} is {value!r}", f"use one of {', '.join(map(repr, choices))}")
