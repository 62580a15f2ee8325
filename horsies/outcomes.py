"""Turn what a task function returned or raised into the result of the task, in a worker and in a direct call."""

from __future__ import annotations

from typing import Any, cast

from horsies.codec import decode_result, encode_result
from horsies.codec.failures import render
from horsies.codec.values import type_name
from horsies.config import AppConfig
from horsies.enqueue import TaskDefinition
from horsies.errors import TaskFailure
from horsies.result import TaskError, TaskResult
from horsies.retry import code_for
from horsies.status import BUILTIN_CODE_REGISTRY, BuiltInTaskCode, ContractCode, OperationalErrorCode

AnyResult = TaskResult[Any, TaskError]


def failed(code: BuiltInTaskCode, message: str) -> AnyResult:
    """Return an error result with one of the library's codes."""
    return TaskResult(err=TaskError(error_code=code, message=message))


def result_of(task: TaskDefinition, returned: Any) -> AnyResult:
    """Return the result of a function that returned; the type of the value is not checked yet.

    A function annotated `TaskResult` returns the result itself. Any other returns the value.
    """
    if task.signature.returns_result:
        if returned is None:
            message = f"task {task.name!r} returned None instead of a TaskResult"
            return failed(OperationalErrorCode.TASK_EXCEPTION, message)
        return returned
    if isinstance(returned, TaskResult):
        promised = type_name(task.signature.value_type)
        message = f"the task's return value is a TaskResult; the task promises {promised}"
        return failed(ContractCode.RETURN_TYPE_MISMATCH, message)
    return TaskResult(ok=returned)


def checked_result(task: TaskDefinition, returned: Any) -> AnyResult:
    """Return the result of a function that returned, or the error that a worker would store in its place."""
    result = result_of(task, returned)
    encoded = encode_result(result, task.signature.value_type, None)
    if encoded.startswith(b'{"ok":'):
        return result
    stored = decode_result(encoded, Any)
    given = result.err if isinstance(cast(object, result), TaskResult) else None
    is_same = isinstance(given, TaskError) and given.error_code == stored.err_value.error_code
    return result if is_same else stored


def error_of(task: TaskDefinition, config: AppConfig, error: BaseException) -> tuple[TaskError, bool]:
    """Return the error of a function that raised, and True if neither a `TaskFailure` nor a mapper gave its code.

    The task's exception mapper comes before the app's. In each of them, the nearest class of the exception applies.
    """
    if (stated := _stated_error(error)) is not None:
        return stated, False
    mapped = code_for(error, task.exception_mapper) or code_for(error, config.exception_mapper)
    code = mapped or task.default_unhandled_error_code or config.default_unhandled_error_code
    message = f"{render(error, lambda e: type(e).__name__)}: {render(error)}"
    found = TaskError(error_code=BUILTIN_CODE_REGISTRY.get(code, code), message=message, exception=error)
    return found, mapped is None


def unwrapped(error: BaseException) -> BaseException:
    """Return the exception that a task group has wrapped, if it has wrapped one; else the exception itself."""
    held = cast("BaseExceptionGroup[BaseException]", error).exceptions if _is_group(error) else ()
    return unwrapped(held[0]) if len(held) == 1 else error


def _is_group(error: BaseException) -> bool:
    return isinstance(error, BaseExceptionGroup)


def _stated_error(error: BaseException) -> TaskError | None:
    """Return the error that a `TaskFailure` states, also one that a task group has wrapped; None for other exceptions."""
    inner = unwrapped(error)
    if not isinstance(inner, TaskFailure):
        return None
    try:
        return TaskError(error_code=inner.code, message=inner.message, data=inner.data, exception=error)
    except Exception:  # noqa: BLE001  a subclass without a valid code is an exception like any other
        return None
