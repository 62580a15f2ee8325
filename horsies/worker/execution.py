"""Run one call: find the task, decode its arguments, call it, encode what came of it.

Whatever the user's code does short of ending the process becomes an outcome.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec

from horsies.codec import ArgumentError, decode_result, describe_exception, encode_result
from horsies.registry import AnyTask, TaskRegistry
from horsies.results import TaskError, TaskResult
from horsies.running import Snooze, begin, end
from horsies.status import BUILTIN_CODE_REGISTRY, OperationalErrorCode
from horsies.storage.tasks import CANCELLED, CANCELLED_CODE
from horsies.worker.building import build_part
from horsies.worker.reporting import Run, listen
from horsies.worker.wire import Call, Outcome
from horsies.workflow.context import arguments
from horsies.workflow.rows import BUILD

MESSAGE_LIMIT = 1_000
# What can be stored at all, in bytes: PostgreSQL takes no statement of a gigabyte, and what is quoted grows.
MAX_RESULT = 128 * 1_048_576


def execute(registry: TaskRegistry, call: Call, run: Run) -> Outcome:
    """Run a call to its end; an async task that was sent as a plain one gets a loop of its own."""
    started = time.perf_counter()
    task, kwargs, problem = prepare(registry, call)
    if task is None:
        return conclude(registry, call, None, problem, started)
    listen()
    token = begin(run)
    try:
        returned = task.definition.fn(**kwargs)
        result = asyncio.run(returned) if task.definition.is_async else returned
    except BaseException as error:  # noqa: BLE001  the task's own failure, SystemExit and all, is its outcome
        return raised(registry, call, task, error, started)
    finally:
        end(token)
        run.end()
    return conclude(registry, call, task, result, started)


async def execute_async(registry: TaskRegistry, call: Call, run: Run) -> Outcome:
    """Run a call to its end beside others; a plain task that was sent as an async one gets a thread."""
    started = time.perf_counter()
    task, kwargs, problem = prepare(registry, call)
    if task is None:
        return conclude(registry, call, None, problem, started)
    listen()
    token = begin(run)
    try:
        if task.definition.is_async:
            result = await task.definition.fn(**kwargs)
        else:
            result = await asyncio.to_thread(task.definition.fn, **kwargs)
    except BaseException as error:  # noqa: BLE001  the task's own failure, a cancellation and all, is its outcome
        return raised(registry, call, task, error, started)
    finally:
        end(token)
        run.end()
    return conclude(registry, call, task, result, started)


def prepare(
    registry: TaskRegistry, call: Call
) -> tuple[AnyTask | None, dict[str, Any], TaskResult[Any, TaskError] | None]:
    """The task of a call and its arguments, or the result that says why it cannot be run."""
    task = registry.tasks.get(call.task_name)
    if call.task_name == BUILD:
        return None, {}, build_part(registry, call.kwargs, call.inputs)
    if task is None:
        message = f"this worker knows no task {call.task_name!r}"
        return None, {}, _err(OperationalErrorCode.WORKER_RESOLUTION_ERROR, message)
    try:
        return task, arguments(task.definition.signature, call.args, call.kwargs, call.inputs), None
    except ArgumentError as error:
        return None, {}, _err(OperationalErrorCode.WORKER_SERIALIZATION_ERROR, str(error))


def conclude(
    registry: TaskRegistry, call: Call, task: AnyTask | None, result: Any, started: float
) -> Outcome:
    """The outcome of a run that returned, its result encoded."""
    if result is None:
        result = _err(
            OperationalErrorCode.TASK_EXCEPTION,
            f"task {call.task_name!r} returned None instead of a TaskResult",
        )
    value_type = Any if task is None else task.definition.signature.value_type
    encoded = encode_result(
        result, value_type, min(registry.config.payload.reject_bytes or MAX_RESULT, MAX_RESULT)
    )
    seconds = time.perf_counter() - started
    if encoded.startswith(b'{"ok":'):
        return Outcome(call.ticket, True, encoded.decode(), seconds)
    # What is stored may be another error than the one returned: that it could not be encoded, say.
    stored = decode_result(encoded, Any).err_value
    return Outcome(
        call.ticket,
        False,
        encoded.decode(),
        seconds,
        error_code=None if stored.error_code is None else str(stored.error_code),
        message=None if stored.message is None else stored.message[:MESSAGE_LIMIT],
    )


def raised(
    registry: TaskRegistry, call: Call, task: AnyTask, error: BaseException, started: float
) -> Outcome:
    """The outcome of a run that raised. A class counts for itself in a mapper, not for its subclasses."""
    if isinstance(error, Snooze):
        seconds = time.perf_counter() - started
        return Outcome(
            call.ticket, False, CANCELLED, seconds, CANCELLED_CODE, str(error), snooze_seconds=error.seconds
        )
    definition, config = task.definition, registry.config
    mapped = (definition.exception_mapper or {}).get(type(error)) or config.exception_mapper.get(type(error))
    code = mapped or definition.default_unhandled_error_code or config.default_unhandled_error_code
    described = describe_exception(error)
    failure = TaskError(
        error_code=BUILTIN_CODE_REGISTRY.get(code, code),
        message=f"{described['type']}: {described['message']}",
        exception=dict(described),
    )
    outcome = conclude(registry, call, task, TaskResult(err=failure), started)
    return msgspec.structs.replace(outcome, unmapped_exception=mapped is None)


def _err(code: OperationalErrorCode, message: str) -> TaskResult[Any, TaskError]:
    return TaskResult(err=TaskError(error_code=code, message=message))
