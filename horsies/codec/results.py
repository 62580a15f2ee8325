"""Encode and decode the results of tasks, and format stored JSON for people.

Any SQL client may have written a row, so the functions that format stored text never raise.
"""

from __future__ import annotations

import json
import re
from typing import Any, cast

import msgspec

from horsies.codec.failures import render
from horsies.codec.values import (
    HydrationError,
    NotEncodable,
    check_text,
    codec_for,
    decode_stored_result,
    encode_value,
    locate,
    result_document,
    type_name,
)
from horsies.result import ContractCode, OperationalErrorCode, TaskError, TaskResult

# This many characters of a stored result always contain the error's message: it comes first, and its length is limited.
STORED_SHOWN = 20_000
UNREADABLE = "cannot be decoded"
# Errors of decoding: invalid JSON, a number out of range, containers nested too deeply.
UNDECODABLE = (msgspec.MsgspecError, ValueError, RecursionError)
_MESSAGE = re.compile(r'"message"\s*:\s*("(?:[^"\\]|\\.)*")')


class _Exception(msgspec.Struct):
    traceback: str | None = None


class _Error(msgspec.Struct):
    message: str | None = None
    exception: _Exception | None = None


class _Outcome(msgspec.Struct):
    err: _Error | None = None


_decode_outcome = msgspec.json.Decoder(_Outcome).decode
_decode_text = msgspec.json.Decoder(str).decode


def error_of(result: str | None) -> tuple[str | None, str | None]:
    """Return the message and the traceback in a stored result, None for what it lacks; the text may be truncated.

    >>> error_of('{"err":{"message":"no card","data":{"tried')
    ('no card', None)
    """
    if result is None:
        return None, None
    try:
        error = _decode_outcome(result).err
    except UNDECODABLE:
        return _message_in(result), None
    if error is None:
        return None, None
    return error.message, error.exception and error.exception.traceback


def _message_in(result: str) -> str | None:
    found = _MESSAGE.search(result) if result.startswith('{"err"') else None
    try:
        return None if found is None else _decode_text(found[1])
    except UNDECODABLE:
        return None


def pretty(text: str | None, shown: int = STORED_SHOWN) -> str:
    """Return stored JSON indented; a text that cannot be decoded is marked as such and cut to a length.

    >>> pretty("{")
    '(cannot be decoded)\\n{'
    """
    if text is None:
        return ""
    try:
        return json.dumps(msgspec.json.decode(text), indent=2, ensure_ascii=False)
    except RecursionError:
        return f"({UNREADABLE}: it is nested too deeply)\n{text[:shown]}"
    except UNDECODABLE:
        is_cut = len(text) >= shown  # the whole text may be valid
        return text[:shown] if is_cut else f"({UNREADABLE})\n{text}"


def raw(text: str | None, shown: int = STORED_SHOWN) -> msgspec.Raw | str | None:
    """Return stored JSON to be embedded in JSON; a text that cannot be decoded is returned as a string, cut to a length."""
    if text is None:
        return None
    try:
        msgspec.json.decode(text)
    except UNDECODABLE:
        return text[:shown]
    return msgspec.Raw(text.encode())


def stored_text(text: str | None, shown: int = STORED_SHOWN) -> str | None:
    """Return stored JSON unchanged; a text that cannot be decoded is marked as such and cut to a length.

    >>> stored_text("{")
    '(cannot be decoded) {'
    """
    found = raw(text, shown)
    return f"({UNREADABLE}) {found}" if isinstance(found, str) else text


# Within a string of JSON, the quotation marks would be escaped: this finds objects only, also in a text that is cut.
_BUILTIN_CODE = re.compile(
    r'("error_code"\s*:\s*)\{\s*"__builtin_task_code__"\s*:\s*("(?:[^"\\]|\\.)*")\s*\}'
)


def with_plain_codes(text: str) -> str:
    """Return stored JSON for people: a built-in error code is a string there, not the object in which it is stored.

    >>> with_plain_codes('{"err":{"error_code":{"__builtin_task_code__":"TASK_TIMEOUT"},"message":null}}')
    '{"err":{"error_code":"TASK_TIMEOUT","message":null}}'
    """
    return _BUILTIN_CODE.sub(r"\1\2", text)


# Encoded in advance, because there may be no memory left when it is needed.
_LAST_RESORT = encode_value(
    {
        "err": {
            "error_code": {"__builtin_task_code__": "WORKER_SERIALIZATION_ERROR"},
            "message": "the result could not be written as JSON, and neither could the reason",
            "data": None,
            "exception": None,
        }
    }
)


def encode_result(result: TaskResult[Any, Any], value_type: Any, limit: int | None) -> bytes:
    """Encode a task's result, or the error that replaces it. Never raises.

    A value that is not a `value_type` becomes RETURN_TYPE_MISMATCH; a value without a JSON form, or one that takes more than
    `limit` bytes, becomes WORKER_SERIALIZATION_ERROR.

    >>> encode_result(TaskResult(ok=5), int, None)
    b'{"ok":5}'
    """
    try:
        return _encode(result, value_type, limit)
    except BaseException as error:  # noqa: BLE001  user code runs here (validators, __eq__), and some result must be stored
        reason = error
    try:
        return encode_value(result_document(TaskResult(err=_substitute(result, value_type, reason))))
    except BaseException:  # noqa: BLE001  out of memory or stack, say; the prepared text needs neither
        return _LAST_RESORT


def _encode(result: TaskResult[Any, Any], value_type: Any, limit: int | None) -> bytes:
    if not isinstance(cast(object, result), TaskResult):
        raise NotEncodable(f"is {type_name(type(result))}, not a TaskResult", is_mismatch=True)
    if result.is_ok():
        return b'{"ok":%b}' % codec_for(value_type).encode(result.ok, limit)
    data = encode_value(result_document(result))
    if limit is not None and len(data) > limit:
        raise NotEncodable(f"takes {len(data):,} bytes as JSON, and the limit is {limit:,}")
    check_text(data)
    return data


def _substitute(result: TaskResult[Any, Any], value_type: Any, reason: BaseException) -> TaskError:
    """Return the error to store instead of a result that cannot be encoded."""
    if not isinstance(reason, NotEncodable):
        reason = NotEncodable(f"cannot be written as JSON: {render(reason) or type(reason).__name__}")
    if isinstance(cast(object, result), TaskResult) and result.is_err():
        code = render(result.err, lambda err: err.error_code)
        subject = f"the task's error {code} (its data{reason.path})"
    else:
        subject = f"the task's return value{reason.path}"
    message = f"{subject} {reason.problem}"
    if reason.is_mismatch:
        message += f"; the task promises {type_name(value_type)}"
        return TaskError(error_code=ContractCode.RETURN_TYPE_MISMATCH, message=message)
    return TaskError(error_code=OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message=message)


def decode_result(data: bytes | str, value_type: Any) -> TaskResult[Any, TaskError]:
    """Decode a stored result; one that cannot be decoded becomes an error result. Never raises.

    >>> decode_result(b'{"ok":5}', int)
    TaskResult(ok=5)
    """
    try:
        return decode_stored_result(data, value_type)
    except Exception as error:  # noqa: BLE001  returned as an error result; the user's validators run here
        problem, path = locate(error)
        hydration = isinstance(error, HydrationError) or isinstance(error.__cause__, HydrationError)
    code = (
        ContractCode.PYDANTIC_HYDRATION_ERROR
        if hydration
        else OperationalErrorCode.RESULT_DESERIALIZATION_ERROR
    )
    message = f"the stored result{path} is not a {type_name(value_type)}: {problem}"
    return TaskResult(err=TaskError(error_code=code, message=message))
