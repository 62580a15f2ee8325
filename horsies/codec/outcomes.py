"""Task results as they are stored.

`encode_result` always gives something to store: when the value cannot be written, the error that
says so. `decode_result` always gives a result: when the text cannot be read, the error that says so.
"""

from typing import Any, cast

from horsies.codec.failures import render
from horsies.codec.schema import HydrationError, type_name
from horsies.codec.values import Unfit, check_text, codec_for, locate, read_result, result_document, write
from horsies.results import ContractCode, OperationalErrorCode, TaskError, TaskResult

# Made beforehand: there may be no memory left when it is needed.
_LAST_RESORT = write(
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
    """The JSON text of a task's result, or of the error that takes its place. Never raises.

    A value that is not a `value_type` becomes RETURN_TYPE_MISMATCH; one that JSON cannot carry, or
    that takes more than `limit` bytes, becomes WORKER_SERIALIZATION_ERROR.

    >>> encode_result(TaskResult(ok=5), int, None)
    b'{"ok":5}'
    """
    try:
        return _encode(result, value_type, limit)
    except BaseException as error:  # noqa: BLE001  user code runs here (validators, __eq__), and a result must be stored
        fault = error
    try:
        return write(result_document(TaskResult(err=_substitute(result, value_type, fault))))
    except BaseException:  # noqa: BLE001  out of memory or stack, say; the prepared text needs neither
        return _LAST_RESORT


def _encode(result: TaskResult[Any, Any], value_type: Any, limit: int | None) -> bytes:
    if not isinstance(cast(object, result), TaskResult):
        raise Unfit(f"is {type_name(type(result))}, not a TaskResult", mismatch=True)
    if result.is_ok():
        return b'{"ok":%b}' % codec_for(value_type).encode(result.ok, limit)
    data = write(result_document(result))
    if limit is not None and len(data) > limit:
        raise Unfit(f"takes {len(data):,} bytes as JSON, and the limit is {limit:,}")
    check_text(data)
    return data


def _substitute(result: TaskResult[Any, Any], value_type: Any, fault: BaseException) -> TaskError:
    """The error to store instead of a result that cannot be."""
    if not isinstance(fault, Unfit):
        fault = Unfit(f"cannot be written as JSON: {render(fault) or type(fault).__name__}")
    if isinstance(cast(object, result), TaskResult) and result.is_err():
        code = render(result.err, lambda err: err.error_code)
        subject = f"the task's error {code} (its data{fault.path})"
    else:
        subject = f"the task's return value{fault.path}"
    message = f"{subject} {fault.problem}"
    if fault.mismatch:
        message += f"; the task promises {type_name(value_type)}"
        return TaskError(error_code=ContractCode.RETURN_TYPE_MISMATCH, message=message)
    return TaskError(error_code=OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message=message)


def decode_result(data: bytes | str, value_type: Any) -> TaskResult[Any, TaskError]:
    """The result in a stored text. What cannot be read comes back as an error result. Never raises.

    >>> decode_result(b'{"ok":5}', int)
    TaskResult(ok=5)
    """
    try:
        return read_result(data, value_type)
    except Exception as error:  # noqa: BLE001  reported as the result; validators of the user run here
        problem, path = locate(error)
        hydration = isinstance(error, HydrationError) or isinstance(error.__cause__, HydrationError)
    code = (
        ContractCode.PYDANTIC_HYDRATION_ERROR
        if hydration
        else OperationalErrorCode.RESULT_DESERIALIZATION_ERROR
    )
    message = f"the stored result{path} is not a {type_name(value_type)}: {problem}"
    return TaskResult(err=TaskError(error_code=code, message=message))
