"""The errors of tasks and of sends, as values.

`horsies/errors.py` has the exceptions that carry them.
"""

from __future__ import annotations

from dataclasses import field, fields
from datetime import datetime
from enum import Enum
from typing import Any, cast

from horsies.frozen import dataclass
from horsies.status import BUILTIN_CODE_REGISTRY, BuiltInTaskCode, TaskSendErrorCode


def _check_task_code(code: object) -> None:
    if code is None or isinstance(code, BuiltInTaskCode):
        return
    if not isinstance(code, str) or isinstance(code, Enum):
        raise ValueError(f"error_code is {code!r}; a code of your own must be a plain str")
    if code in BUILTIN_CODE_REGISTRY:
        kind = type(BUILTIN_CODE_REGISTRY[code]).__name__
        raise ValueError(f"error_code {code!r} is reserved; pass {kind}.{code}, or choose another code")


def _described(exception: BaseException | dict[str, Any] | None) -> dict[str, Any] | None:
    """Return an exception as a dict of its type and message."""
    if not isinstance(exception, BaseException):
        return exception
    return {"type": type(exception).__name__, "module": type(exception).__module__, "message": str(exception)}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TaskError:
    """The error of a task: a code for programs, a message and data for people.

    >>> TaskError(error_code="CARD_DECLINED", message="the bank said no")
    TaskError(error_code='CARD_DECLINED', message='the bank said no')

    Your own codes are plain strings. The library's codes are enum members, so that the two cannot be confused:
    `TaskError(error_code="TASK_TIMEOUT")` raises ValueError. `exception` is the exception itself in the process that raised
    it, and its description as a dict everywhere else.
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

    def model_dump(self, *, mode: str = "python", exclude_none: bool = False) -> dict[str, Any]:
        """Return the fields as a dict; with `mode="json"`, the code is a str and an exception is described by a dict.

        >>> TaskError(error_code="NO_STOCK", message="sold out").model_dump(exclude_none=True)
        {'error_code': 'NO_STOCK', 'message': 'sold out'}
        """
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        if mode == "json":
            values["error_code"] = None if self.error_code is None else str(self.error_code)
            values["exception"] = _described(self.exception)
        return {name: value for name, value in values.items() if value is not None or not exclude_none}

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: object, _handler: object) -> Any:
        """Let pydantic models have fields of this type: an instance or its `model_dump` is valid."""
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            cls._validated,
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda error, info: error.model_dump(mode=info.mode), info_arg=True
            ),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: object, _handler: object) -> dict[str, Any]:
        """Describe the fields of a dump for JSON, for OpenAPI and the like."""
        text = {"anyOf": [{"type": "string"}, {"type": "null"}]}
        known = {"error_code": text, "message": text}
        return {
            "type": "object",
            "title": cls.__name__,
            "properties": {each.name: known.get(each.name, {}) for each in fields(cls)},
        }

    @classmethod
    def _validated(cls, value: object) -> TaskError:
        if isinstance(value, cls):
            return value
        if not isinstance(value, dict):
            raise ValueError(f"{value!r} is no {cls.__name__}; pass one, or a dict of its fields")
        values = dict(cast("dict[str, Any]", value))
        unknown = values.keys() - {each.name for each in fields(cls)}
        if unknown:
            raise ValueError(f"{', '.join(sorted(map(str, unknown)))}: no field of {cls.__name__}")
        code = values.get("error_code")
        # In a dump for JSON, the library's codes are plain strings.
        values["error_code"] = BUILTIN_CODE_REGISTRY.get(code, code) if isinstance(code, str) else code
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SubWorkflowError(TaskError):
    """The failure of a workflow that ran as a node of another."""

    sub_workflow_id: str
    sub_workflow_summary: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSendPayload:
    """The encoded row of a failed send, to be sent again unchanged. Its repr hides the arguments."""

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
    """The error of a failed send. Its repr hides the arguments, and the exception, which may quote them."""

    code: TaskSendErrorCode
    message: str
    retryable: bool = False
    task_id: str | None = None
    payload: TaskSendPayload | None = None
    exception: BaseException | None = field(default=None, repr=False)
