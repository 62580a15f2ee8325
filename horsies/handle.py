"""A handle to a task that was sent: wait for its result, ask about it, cancel it.

A handle never raises and never lies: a final answer is the same for ever and is asked for once; running out of
patience is an error of waiting, not of the task.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar
from uuid import UUID

import psycopg

from horsies.broker import Broker
from horsies.codec import decode_result
from horsies.errors import HorsiesError, mask_passwords
from horsies.portal import run_async, run_sync
from horsies.results import (
    BrokerOperationError,
    BrokerResult,
    Err,
    Ok,
    TaskAttemptInfo,
    TaskError,
    TaskInfo,
    TaskResult,
)
from horsies.status import (
    TASK_TERMINAL_STATES,
    BrokerErrorCode,
    BuiltInTaskCode,
    OperationalErrorCode,
    OutcomeCode,
    RetrievalCode,
    TaskAttemptOutcome,
    TaskStatus,
)
from horsies.storage.database import TRANSIENT
from horsies.storage.notes import TaskLogLine, TaskProgress
from horsies.storage.tasks import Seen

logger = logging.getLogger("horsies.handle")

T = TypeVar("T")
A = TypeVar("A")

# Why there is no value although the task has ended, when the row itself does not say.
_ENDED_WITHOUT_RESULT: dict[str, tuple[BuiltInTaskCode, str]] = {
    TaskStatus.CANCELLED: (OutcomeCode.TASK_CANCELLED, "the task was cancelled"),
    TaskStatus.EXPIRED: (OutcomeCode.TASK_EXPIRED, "the task was not started in time"),
}


class TaskHandle(Generic[T]):
    """Stands for a task that was sent.

    >>> handle = add.send(2, 3).unwrap()
    >>> handle.get(timeout_ms=5_000)
    TaskResult(ok=5)
    """

    def __init__(self, task_id: str, broker: Broker, value_type: Any) -> None:
        self.task_id = task_id
        self._broker = broker
        self._value_type = value_type
        self._final: TaskResult[T, TaskError] | None = None

    def __repr__(self) -> str:
        return f"TaskHandle({self.task_id!r})"

    def get(self, timeout_ms: int | None = None) -> TaskResult[T, TaskError]:
        """The task's result, waiting for it as long as you say: None for ever, 0 not at all."""
        return self._final if self._final is not None else run_sync(self._get(timeout_ms))

    async def get_async(self, timeout_ms: int | None = None) -> TaskResult[T, TaskError]:
        """As `get`, without blocking the running loop."""
        return self._final if self._final is not None else await run_async(self._get(timeout_ms))

    def info(
        self,
        *,
        include_result: bool = False,
        include_failed_reason: bool = False,
        include_attempts: bool = False,
    ) -> BrokerResult[TaskInfo | None]:
        """The task as recorded, or None if there is none; results, reasons and attempts on request.

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
        """As `info`, without blocking the running loop."""
        return await run_async(self._info(include_result, include_failed_reason, include_attempts))

    def cancel(self) -> BrokerResult[bool]:
        """Cancel the task: at once if it has not begun, else it is asked to stop.

        True when it took effect or was asked for, False when the task has ended already.

        >>> handle.cancel().unwrap()
        True
        """
        return run_sync(self._cancel())

    async def cancel_async(self) -> BrokerResult[bool]:
        """As `cancel`, without blocking the running loop."""
        return await run_async(self._cancel())

    def progress(self) -> BrokerResult[TaskProgress | None]:
        """How far the task is, as it last said by `current_task().report_progress(…)`; None if it has not.

        >>> handle.progress().unwrap()
        TaskProgress(done=40.0, total=100.0, message='parsing', at=datetime.datetime(…))
        """
        return run_sync(self._asked(self._broker.progress, None))

    async def progress_async(self) -> BrokerResult[TaskProgress | None]:
        """As `progress`, without blocking the running loop."""
        return await run_async(self._asked(self._broker.progress, None))

    def logs(self) -> BrokerResult[list[TaskLogLine]]:
        """What the task has logged while it ran, in all of its attempts, first line first.

        >>> [line.message for line in handle.logs().unwrap()]
        """
        return run_sync(self._asked(self._broker.log_lines, []))

    async def logs_async(self) -> BrokerResult[list[TaskLogLine]]:
        """As `logs`, without blocking the running loop."""
        return await run_async(self._asked(self._broker.log_lines, []))

    async def _asked(self, question: Callable[[UUID], Awaitable[A]], without: A) -> BrokerResult[A]:
        """What the database answers about this task; what is no id is no task."""
        task_id = _as_uuid(self.task_id)
        try:
            return Ok(without if task_id is None else await question(task_id))
        except (psycopg.Error, OSError, HorsiesError) as error:
            return Err(_failed(BrokerErrorCode.TASK_INFO_QUERY_FAILED, error))

    async def _cancel(self) -> BrokerResult[bool]:
        code = BrokerErrorCode.TASK_CANCEL_FAILED
        task_id = _as_uuid(self.task_id)
        try:
            done = None if task_id is None else await self._broker.cancel(task_id)
        except (psycopg.Error, OSError, HorsiesError) as error:
            return Err(_failed(code, error))
        if done is None:
            return Err(BrokerOperationError(code=code, message=f"there is no task {self.task_id}"))
        return Ok(done.cancelled)

    async def _get(self, timeout_ms: int | None) -> TaskResult[T, TaskError]:
        task_id = _as_uuid(self.task_id)
        if task_id is None:
            return _error(RetrievalCode.TASK_NOT_FOUND, f"{self.task_id!r} is not a task id")
        try:
            seen = await self._seen(task_id, timeout_ms)
        except TimeoutError:
            return _error(RetrievalCode.WAIT_TIMEOUT, f"task {task_id} has not ended within {timeout_ms} ms")
        except (psycopg.Error, OSError, HorsiesError) as error:
            return _error(
                OperationalErrorCode.BROKER_ERROR, mask_passwords(str(error)) or type(error).__name__
            )
        if seen is None:
            return _error(RetrievalCode.TASK_NOT_FOUND, f"there is no task {task_id}")
        if seen.status not in TASK_TERMINAL_STATES:
            return _error(RetrievalCode.WAIT_TIMEOUT, f"task {task_id} is {seen.status}")
        self._final = self._decoded(seen)
        return self._final

    async def _seen(self, task_id: UUID, timeout_ms: int | None) -> Seen | None:
        if timeout_ms is not None and timeout_ms <= 0:
            return await self._broker.look(task_id)
        return await self._broker.watch(task_id, None if timeout_ms is None else timeout_ms / 1000)

    def _decoded(self, seen: Seen) -> TaskResult[T, TaskError]:
        if seen.result is not None:
            return decode_result(seen.result, self._value_type)
        without = (
            RetrievalCode.RESULT_NOT_AVAILABLE,
            f"task {seen.id} is {seen.status}; its result is not kept",
        )
        return _error(*_ENDED_WITHOUT_RESULT.get(seen.status, without))

    async def _info(self, result: bool, reason: bool, attempts: bool) -> BrokerResult[TaskInfo | None]:
        task_id = _as_uuid(self.task_id)
        if task_id is None:
            return Ok(None)
        try:
            row, tries = await self._broker.info(task_id, with_attempts=attempts)
        except (psycopg.Error, OSError, HorsiesError) as error:
            return Err(_failed(BrokerErrorCode.TASK_INFO_QUERY_FAILED, error))
        return Ok(None if row is None else self._described(row, tries, result, reason))

    def _described(
        self, row: tuple[Any, ...], tries: list[tuple[Any, ...]] | None, result: bool, reason: bool
    ) -> TaskInfo:
        facts: dict[str, Any] = dict(zip(_INFO_FIELDS, row, strict=True))
        stored, failed_reason = facts.pop("result"), facts.pop("failed_reason")
        facts |= {"task_id": str(facts["task_id"]), "status": TaskStatus(facts["status"])}
        return TaskInfo(
            **facts,
            failed_reason=failed_reason if reason else None,
            result=decode_result(stored, self._value_type) if result and stored is not None else None,
            attempts=None if tries is None else tuple(map(_attempt, tries)),
        )


_INFO_FIELDS = (
    "task_id", "task_name", "status", "queue_name", "priority", "retry_count", "max_retries", "next_retry_at",
    "sent_at", "enqueued_at", "claimed_at", "started_at", "completed_at", "failed_at", "worker_hostname",
    "worker_pid", "worker_process_name", "error_code", "failed_reason", "result",
)  # fmt: skip
_ATTEMPT_FIELDS = (
    "task_id", "attempt", "outcome", "will_retry", "started_at", "finished_at", "error_code", "error_message",
    "failed_reason", "worker_id", "worker_hostname", "worker_pid", "worker_process_name",
)  # fmt: skip


def _attempt(row: tuple[Any, ...]) -> TaskAttemptInfo:
    facts: dict[str, Any] = dict(zip(_ATTEMPT_FIELDS, row, strict=True))
    worker_id = facts.pop("worker_id")
    facts |= {"task_id": str(facts["task_id"]), "outcome": TaskAttemptOutcome(facts["outcome"])}
    return TaskAttemptInfo(**facts, worker_id=None if worker_id is None else str(worker_id))


def _as_uuid(task_id: str) -> UUID | None:
    try:
        return UUID(task_id)
    except ValueError:
        return None


def _failed(code: BrokerErrorCode, error: Exception) -> BrokerOperationError:
    return BrokerOperationError(
        code=code,
        message=mask_passwords(str(error)),
        retryable=isinstance(error, TRANSIENT),
        exception=error,
    )


def _error(code: BuiltInTaskCode, message: str) -> TaskResult[Any, TaskError]:
    return TaskResult(err=TaskError(error_code=code, message=message))
