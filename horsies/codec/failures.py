"""Describe exceptions as plain text of limited length.

An exception may hold anything: locks, sockets, a `__str__` that raises, a message of 200 MB. The functions here return only text
that JSON and PostgreSQL accept.
"""

import traceback
from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any, cast

from horsies.result import BUILTIN_CODE_REGISTRY, SubWorkflowError, TaskError

FIELD_LIMIT = 8 * 1024  # bytes of UTF-8 in one field
_FRAMES = 100  # the innermost ones; FIELD_LIMIT would cut off more
_CUT = "…"
_EXECUTOR = str(Path(__file__).parents[1] / "executor")
_BUILTIN = "__builtin_task_code__"


def clean(text: str, *, keep_end: bool = False) -> str:
    """Return the text without NUL and lone surrogates, cut to `FIELD_LIMIT` bytes.

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
    """Return `form(value)` as clean text; a placeholder if that raises.

    >>> render(0, lambda n: 1 / n)
    '<unprintable: ZeroDivisionError>'
    """
    try:
        # str.__str__ makes a plain str of a subclass, whose own methods are user code.
        return clean(str.__str__(str(form(value))), keep_end=keep_end)
    except BaseException as error:  # noqa: BLE001  even sys.exit() in a __str__ must not hide the failure it describes
        return f"<unprintable: {type(error).__name__}>"


def describe_exception(error: BaseException) -> dict[str, str]:
    """Describe an exception by its type, module, message, repr and traceback, each of limited length.

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
    """Return the traceback from user code on. The frames above it are ours and call the task."""
    first = error.__traceback__
    while first is not None and first.tb_frame.f_code.co_filename.startswith(_EXECUTOR):
        first = first.tb_next
    lines = traceback.format_exception(type(error), error, first or error.__traceback__, limit=-_FRAMES)
    return "".join(lines)


def error_document(error: TaskError, plain: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the error as JSON values; `plain` converts its data."""
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
    """Return the error that `error_document` encoded; fields that a later version has added are ignored."""
    code: Any = document.get("error_code")
    if isinstance(code, dict):
        code = cast(dict[str, Any], code).get(_BUILTIN, cast(Any, code))
    if code is not None and not isinstance(code, str):
        raise ValueError("not a task error: its error_code is not text")
    # A code that a later version has added stays a string.
    known = {**document, "error_code": code and BUILTIN_CODE_REGISTRY.get(code, code)}
    kind = SubWorkflowError if "sub_workflow_id" in known else TaskError
    values: dict[str, Any] = {field.name: known[field.name] for field in fields(kind) if field.name in known}
    return kind(**values)
