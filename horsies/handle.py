"""A handle to a task that was sent: wait for its result, read its record, cancel it.

Follow a result from here: `_get` waits in `Broker.watch` in `client.py`, whose `Waiters` ask the statement `watch` in
`db/queries/tasks.sql` for the tasks of all callers, and `decode_result` in `codec/results.py` makes a value of the JSON.
`result` raises the error of a task; the other methods of a handle return errors as values. A final result never changes, so it is read once and kept. A wait
that times out is an error of the wait, with a code of its own, and not of the task.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Generic, NamedTuple, TypeVar, cast
from uuid import UUID

import psycopg

from horsies import cancellation, task_info
from horsies.client import Broker
from horsies.codec import ArgumentError, decode_result
from horsies.codec.values import NotEncodable, codec_for, why_not_json
from horsies.db.connection import Connection
from horsies.db.queries import steps, tasks
from horsies.db.queries.steps import StepRow
from horsies.db.queries.tasks import TaskLogLine, TaskProgress, TaskState
from horsies.durations import LONGEST_SECONDS, Duration, is_duration, timeout_in_seconds
from horsies.errors import HorsiesError, exception_for, is_storable_text, mask_passwords
from horsies.event_loop import run_async, run_sync
from horsies.result import (
    BrokerOperationError,
    BrokerResult,
    Err,
    Ok,
    TaskError,
    TaskInfo,
    TaskResult,
)
from horsies.status import (
    TASK_TERMINAL_STATES,
    BrokerErrorCode,
    BuiltInTaskCode,
    ContractCode,
    OperationalErrorCode,
    OutcomeCode,
    RetrievalCode,
    TaskStatus,
)
from horsies.task_info import as_uuid

T = TypeVar("T")
A = TypeVar("A")

MAX_SIGNAL_NAME = 255


class StepInfo(NamedTuple):
    """A step of a task. One without `ended_at` is what the task waits for.

    `kind` is step, transact, sleep, wait, call or calls. `result` is the value as plain JSON, or the `TaskError` of a wait or a
    call that failed.
    """

    name: str
    kind: str
    attempt: int
    started_at: datetime
    ended_at: datetime | None
    result: Any


# The error of a task that has ended without a stored result, by its status.
_ENDED_WITHOUT_RESULT: dict[str, tuple[BuiltInTaskCode, str]] = {
    TaskStatus.CANCELLED: (OutcomeCode.TASK_CANCELLED, "the task was cancelled"),
    TaskStatus.EXPIRED: (OutcomeCode.TASK_EXPIRED, "the task was not started in time"),
}

# Codes of errors that say nothing but what became of the task: `get` adds its id as data.
_NAMELESS = (
    OperationalErrorCode.RESULT_DESERIALIZATION_ERROR,
    ContractCode.PYDANTIC_HYDRATION_ERROR,
    OutcomeCode.TASK_CANCELLED,
    OutcomeCode.TASK_EXPIRED,
)


class TaskHandle(Generic[T]):
    """A task that was sent.

    >>> handle = add.delay(2, 3)
    >>> handle.result(timeout=5)
    5
    """

    def __init__(self, task_id: str, broker: Broker, value_type: Any, task_name: str | None = None) -> None:
        self.task_id = task_id
        self._task_name = task_name
        self._broker = broker
        self._value_type = value_type
        self._final: TaskResult[T, TaskError] | None = None

    def __repr__(self) -> str:
        return f"TaskHandle({self.task_id!r})"

    def result(self, timeout: Duration | None = None) -> T:
        """Return the value of the task. Wait for up to `timeout` seconds, or a timedelta; None waits without limit.

        Raise `TaskFailed`, `TaskCancelled`, `TaskExpired` or `TaskNotFound` if there is no value. Raise `TaskTimeout` if the
        task has not ended yet: nothing is lost, ask again. Raise `ResultUnavailable` if the result cannot be read.

        >>> add.delay(2, 3).result(timeout=10)
        5
        """
        seconds = timeout_in_seconds(timeout)
        return self._value_of(self._final or run_sync(self._get(seconds, _in_words(seconds))))

    async def result_async(self, timeout: Duration | None = None) -> T:  # noqa: ASYNC109  the name that `result` has
        """Do the same as `result` without blocking the event loop."""
        seconds = timeout_in_seconds(timeout)
        return self._value_of(self._final or await run_async(self._get(seconds, _in_words(seconds))))

    def get(self, timeout_ms: int | timedelta | None = None) -> TaskResult[T, TaskError]:
        """Return the task's result. Wait for it for up to `timeout_ms` milliseconds: None waits without limit, 0 not at all.

        >>> handle.get(timeout_ms=5_000)
        TaskResult(ok=5)
        """
        if self._final is not None:
            return self._final
        return run_sync(self._get(*_milliseconds(timeout_ms)))

    async def get_async(self, timeout_ms: int | timedelta | None = None) -> TaskResult[T, TaskError]:
        """Do the same as `get` without blocking the event loop."""
        if self._final is not None:
            return self._final
        return await run_async(self._get(*_milliseconds(timeout_ms)))

    def info(
        self,
        *,
        include_result: bool = False,
        include_failed_reason: bool = False,
        include_attempts: bool = False,
    ) -> BrokerResult[TaskInfo | None]:
        """Return the task as recorded, or None if there is none; with its result, failure reason and attempts on request.

        >>> handle.info(include_attempts=True).unwrap().attempts[0].outcome
        """
        return run_sync(self._info(include_result, include_failed_reason, include_attempts))

    async def info_async(
        self,
        *,
        include_result: bool = False,
        include_failed_reason: bool = False,
        include_attempts: bool = False,
    ) -> BrokerResult[TaskInfo | None]:
        """Do the same as `info` without blocking the event loop."""
        return await run_async(self._info(include_result, include_failed_reason, include_attempts))

    def cancel(self) -> BrokerResult[bool]:
        """Cancel the task: at once if it has not started, else ask it to stop.

        Return True if the task was cancelled or asked to stop, False if it has already ended.

        >>> handle.cancel().unwrap()
        True
        """
        return run_sync(self._cancel())

    async def cancel_async(self) -> BrokerResult[bool]:
        """Do the same as `cancel` without blocking the event loop."""
        return await run_async(self._cancel())

    def progress(self) -> BrokerResult[TaskProgress | None]:
        """Return the progress that the task last reported with `current_task().report_progress(…)`, None if it has not.

        >>> handle.progress().unwrap()
        TaskProgress(done=40.0, total=100.0, message='parsing', at=datetime.datetime(…))
        """
        return run_sync(self._query(tasks.progress, None))

    async def progress_async(self) -> BrokerResult[TaskProgress | None]:
        """Do the same as `progress` without blocking the event loop."""
        return await run_async(self._query(tasks.progress, None))

    def logs(self) -> BrokerResult[list[TaskLogLine]]:
        """Return the lines that the task has logged in all of its attempts, the first line first.

        >>> [line.message for line in handle.logs().unwrap()]
        """
        return run_sync(self._query(tasks.log_lines, []))

    async def logs_async(self) -> BrokerResult[list[TaskLogLine]]:
        """Do the same as `logs` without blocking the event loop."""
        return await run_async(self._query(tasks.log_lines, []))

    def steps(self) -> list[StepInfo]:
        """Return the steps of the task, those of all attempts, in the order in which they began.

        Raise `TaskNotFound` if there is no such task.

        >>> [step.name for step in handle.steps()]
        ['charge', 'book']
        """
        return run_sync(self._steps())

    async def steps_async(self) -> list[StepInfo]:
        """Do the same as `steps` without blocking the event loop."""
        return await run_async(self._steps())

    def signal(self, name: str, value: object = None) -> bool:
        """Give the task a signal, for which `current_task().wait_for(name, …)` waits; one that comes early is kept.

        Return False if the task has ended, has had a signal of this name, or has waited for it too long. Raise `TaskNotFound` if
        there is no such task. The value is any that has a JSON form.

        >>> handle.signal("approved", Approval(by="ann"))
        True
        """
        return run_sync(self._signal(*_signal_text(name, value)))

    async def signal_async(self, name: str, value: object = None) -> bool:
        """Do the same as `signal` without blocking the event loop."""
        return await run_async(self._signal(*_signal_text(name, value)))

    async def _steps(self) -> list[StepInfo]:
        task_id = as_uuid(self.task_id)
        if task_id is None:
            raise self._not_found()
        async with self._broker.connection() as connection:
            rows = await steps.steps(connection, task_id)
            if not rows and not await tasks.look(connection, [task_id]):
                raise self._not_found()
        return [_step_info(row) for row in rows]

    async def _signal(self, name: str, value: str) -> bool:
        task_id = as_uuid(self.task_id)
        taken: bool | None = None
        if task_id is not None:
            async with self._broker.connection() as connection:
                taken = await steps.signal(connection, task_id, name, value)
        if taken is None:
            raise self._not_found()
        return taken

    def _not_found(self) -> HorsiesError:
        error = TaskError(error_code=RetrievalCode.TASK_NOT_FOUND, message=f"there is no task {self.task_id}")
        return exception_for(error, task_name=self._task_name, task_id=self.task_id)

    async def _query(
        self,
        query: Callable[[Connection, UUID], Awaitable[A]],
        unknown: A,
        code: BrokerErrorCode = BrokerErrorCode.TASK_INFO_QUERY_FAILED,
    ) -> BrokerResult[A]:
        """Return the result of a query about this task, or `unknown` if the id is not a UUID."""
        task_id = as_uuid(self.task_id)
        if task_id is None:
            return Ok(unknown)
        return await self._broker.ask(lambda connection: query(connection, task_id), code)

    async def _cancel(self) -> BrokerResult[bool]:
        async def cancel(connection: Connection, task_id: UUID) -> bool | None:
            found = await cancellation.cancel(connection, [task_id])
            return found[0].cancelled if found else None

        code = BrokerErrorCode.TASK_CANCEL_FAILED
        asked = await self._query(cancel, None, code)
        if isinstance(asked, Err):
            return asked
        if asked.ok_value is None:
            return Err(BrokerOperationError(code=code, message=f"there is no task {self.task_id}"))
        return Ok(asked.ok_value)

    def _value_of(self, result: TaskResult[T, TaskError]) -> T:
        if result.is_ok():
            return result.unwrap()
        error = result.unwrap_err()
        raise exception_for(error, task_name=self._task_name, task_id=self.task_id)

    async def _get(self, seconds: float | None, waited: str) -> TaskResult[T, TaskError]:
        """Return the result, waiting for up to `seconds`; `waited` is that time in words."""
        task_id = as_uuid(self.task_id)
        if task_id is None:
            return self._error(RetrievalCode.TASK_NOT_FOUND, f"{self.task_id!r} is not a task id")
        try:
            if seconds is not None and seconds <= 0:
                async with self._broker.connection() as connection:
                    found = await tasks.look(connection, [task_id])
                state = found[0] if found else None
            else:
                state = await self._broker.watch(task_id, seconds)
        except TimeoutError:
            message = f"task {task_id} has not ended within {waited}; it is not lost: ask again, or see `horsies why {task_id}`"
            return self._error(RetrievalCode.WAIT_TIMEOUT, message)
        except (psycopg.Error, OSError, HorsiesError) as error:
            message = mask_passwords(str(error)) or type(error).__name__
            return self._error(OperationalErrorCode.BROKER_ERROR, message, error)
        if state is None:
            return self._error(RetrievalCode.TASK_NOT_FOUND, f"there is no task {task_id}")
        if state.status not in TASK_TERMINAL_STATES:
            message = f"task {task_id} has not ended: it is {state.status}"
            return self._error(RetrievalCode.WAIT_TIMEOUT, message)
        self._final = self._decode(state)
        return self._final

    def _decode(self, state: TaskState) -> TaskResult[T, TaskError]:
        if state.result is not None:
            result = decode_result(state.result, self._value_type)
            error = result.err
            if error is None or error.error_code not in _NAMELESS or error.data is not None:
                return result
            return TaskResult(err=replace(error, data={"task_id": self.task_id}))
        not_kept = (
            RetrievalCode.RESULT_NOT_AVAILABLE,
            f"task {state.id} is {state.status}; its result is not kept",
        )
        return self._error(*_ENDED_WITHOUT_RESULT.get(state.status, not_kept))

    def _error(
        self, code: BuiltInTaskCode, message: str, cause: BaseException | None = None
    ) -> TaskResult[Any, TaskError]:
        data = {"task_id": self.task_id}
        return TaskResult(err=TaskError(error_code=code, message=message, data=data, exception=cause))

    async def _info(
        self, with_result: bool, with_reason: bool, with_attempts: bool
    ) -> BrokerResult[TaskInfo | None]:
        async def read(connection: Connection, task_id: UUID) -> TaskInfo | None:
            return await task_info.read(
                connection,
                task_id,
                self._value_type,
                with_result=with_result,
                with_reason=with_reason,
                with_attempts=with_attempts,
            )

        return await self._query(read, None)


def _signal_text(name: str, value: object) -> tuple[str, str]:
    """Return the checked name of a signal, and its value as JSON."""
    if not is_storable_text(cast("object", name), MAX_SIGNAL_NAME):
        raise ValueError(
            f"the name of a signal is {name!r}; use a text of 1 to {MAX_SIGNAL_NAME} characters without NUL"
        )
    annotation = Any if why_not_json(type(value)) else type(value)
    try:
        return name, codec_for(annotation).encode(value).decode()
    except NotEncodable as error:
        raise ArgumentError(f"the value of signal {name!r}{error.path} {error.problem}") from error


def _step_info(row: StepRow) -> StepInfo:
    result: Any = None
    if row.result is not None:
        stored = decode_result(row.result, Any)
        result = stored.ok_value if stored.is_ok() else stored.err_value
    return StepInfo(row.name, row.kind, row.attempt, row.started_at, row.ended_at, result)


def _in_words(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:g} s"


def _milliseconds(timeout_ms: int | timedelta | None) -> tuple[float | None, str]:
    """Return a time to wait in seconds and in words."""
    if timeout_ms is None or isinstance(timeout_ms, timedelta):
        seconds = timeout_in_seconds(timeout_ms)
        return seconds, _in_words(seconds)
    if not is_duration(timeout_ms):
        raise ValueError(
            f"timeout_ms is {timeout_ms!r}; use milliseconds, a timedelta, or None to wait without limit"
        )
    if timeout_ms > LONGEST_SECONDS * 1000:
        return None, ""
    return timeout_ms / 1000, f"{timeout_ms:g} ms (timeout_ms is in milliseconds)"
