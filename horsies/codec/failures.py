"""Write failures down as plain, bounded text.

Exceptions hold anything: locks, sockets, a `__str__` that raises, 200 MB of message. Nothing of that
leaves this module; what comes out is text that JSON and PostgreSQL both take.
"""

import traceback
from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import Enum
from typing import Any, cast

from horsies.results import BUILTIN_CODE_REGISTRY, BuiltInTaskCode, SubWorkflowError, TaskError

FIELD_LIMIT = 8 * 1024  # bytes of UTF-8 in one field
_FRAMES = 100  # the innermost ones; more would be cut off by FIELD_LIMIT anyway
_CUT = "…"
_BUILTIN = "__builtin_task_code__"


def clean(text: str, *, keep_end: bool = False) -> str:
    """The text without NUL and lone surrogates, cut to `FIELD_LIMIT` bytes.

    >>> clean("a\\0b")
    'a\ufffdb'
    """
    whole = len(text) <= FIELD_LIMIT
    text = text[-FIELD_LIMIT:] if keep_end else text[:FIELD_LIMIT]
    data = text.replace("\0", "\ufffd").encode("utf-8", "replace")
    if whole and len(data) <= FIELD_LIMIT:
        return data.decode()
    room = FIELD_LIMIT - len(_CUT.encode())
    if keep_end:
        return _CUT + data[-room:].decode("utf-8", "ignore")
    return data[:room].decode("utf-8", "ignore") + _CUT


def render(value: Any, form: Callable[[Any], object] = str, *, keep_end: bool = False) -> str:
    """A form of the value as clean text; a note in its place when making it fails.

    >>> render(0, lambda n: 1 / n)
    '<unprintable: ZeroDivisionError>'
    """
    try:
        # str.__str__ makes a plain str of a subclass, whose methods are the user's.
        return clean(str.__str__(str(form(value))), keep_end=keep_end)
    except BaseException as error:  # noqa: BLE001  even sys.exit() in a __str__ must not hide the failure it describes
        return f"<unprintable: {type(error).__name__}>"


def describe_exception(error: BaseException) -> dict[str, str]:
    """The exception as text: type, module, message, repr and traceback, each bounded.

    >>> describe_exception(KeyError("colour"))["message"]
    "'colour'"
    """
    return {
        "type": render(error, lambda e: type(e).__name__),
        "module": render(error, lambda e: type(e).__module__),
        "message": render(error),
        "repr": render(error, repr),
        "traceback": render(error, _traceback, keep_end=True),
    }


def _traceback(error: BaseException) -> str:
    return "".join(traceback.format_exception(error, limit=-_FRAMES))


def error_document(error: TaskError, plain: Callable[[Any], Any]) -> dict[str, Any]:
    """The error as JSON values; `plain` gives the JSON form of its data."""
    code = error.error_code
    document: dict[str, Any] = {
        "error_code": {_BUILTIN: code.value} if isinstance(code, Enum) else code and render(code),
        "message": None if error.message is None else render(error.message),
        "data": plain(error.data),
        "exception": _exception_document(error.exception),
    }
    if isinstance(error, SubWorkflowError):
        document["sub_workflow_id"] = error.sub_workflow_id
        document["sub_workflow_summary"] = plain(error.sub_workflow_summary)
    return document


def _exception_document(exception: BaseException | Mapping[str, Any] | None) -> dict[str, str] | None:
    if isinstance(exception, BaseException):
        return describe_exception(exception)
    if not exception:
        return None
    return {render(name): render(text, keep_end=name == "traceback") for name, text in exception.items()}


def error_from(document: Mapping[str, Any]) -> TaskError:
    """The error that `error_document` wrote; what a later version may have added is passed over."""
    known = {**document, "error_code": _code_from(document.get("error_code"))}
    kind = SubWorkflowError if "sub_workflow_id" in known else TaskError
    values: dict[str, Any] = {field.name: known[field.name] for field in fields(kind) if field.name in known}
    return kind(**values)


def _code_from(code: Any) -> BuiltInTaskCode | str | None:
    """The code as a task would write it. One that only a later version knows stays a string."""
    name = cast(dict[str, Any], code).get(_BUILTIN, code) if isinstance(code, dict) else code
    if name is None:
        return None
    if not isinstance(name, str):
        raise ValueError("not a task error: its error_code is not text")
    return BUILTIN_CODE_REGISTRY.get(name, name)
