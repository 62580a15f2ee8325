"""Give finished work back to the database.

Outcomes arrive one by one and are written in batches: while one batch is on its way the next one gathers. A batch that
could not be written is kept and written later; one whose row has changed hands meanwhile is dropped and counted.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from random import random
from typing import Any

import msgspec

from horsies.codec import encode_result
from horsies.errors import HorsiesError
from horsies.registry import TaskRegistry
from horsies.results import TaskError, TaskResult
from horsies.retry import RetryPolicy, retry_delay
from horsies.status import BuiltInTaskCode, OperationalErrorCode, OutcomeCode
from horsies.storage.tasks import Claimed, Completed, Failure, stopped
from horsies.worker.wire import Outcome

logger = logging.getLogger("horsies.settle")

MAX_CRASHES = 3
CRASH_RETRY_SECONDS = 0.1
MAX_STATEMENT_CHARACTERS = 32 * 1_048_576


class Settler:
    """Collects how tasks ended until they are taken to be written."""

    def __init__(self, app: TaskRegistry) -> None:
        self._app = app
        self.completed: list[Completed] = []
        self.failed: list[Failure] = []

    def __bool__(self) -> bool:
        return bool(self.completed or self.failed)

    def ended(self, task: Claimed, outcome: Outcome) -> None:
        """A child reported an outcome."""
        if outcome.ok:
            self.completed.append(Completed(task.id, task.claim_seq, outcome.result, task.node))
            return
        is_snoozed = outcome.snooze_seconds is not None
        delay = outcome.snooze_seconds if is_snoozed else self._retry_delay(task, outcome)
        self.failed.append(
            Failure(
                task.id,
                task.claim_seq,
                outcome.result,
                outcome.error_code,
                outcome.message,
                None,
                delay,
                node=task.node,
                snoozed=is_snoozed,
                on_failure=self._handler_of(task),
            )
        )

    def _retry_delay(self, task: Claimed, outcome: Outcome) -> float | None:
        return retry_delay(
            self.policy_of(task),
            outcome.error_code,
            unmapped_exception=outcome.unmapped_exception,
            retry_count=task.retry_count,
            random=random(),
        )

    def cancelled(self, task: Claimed) -> None:
        """A task that was asked to stop runs no more, or was not begun."""
        self.failed.append(stopped(task))

    def timed_out(self, task: Claimed, limit_ms: int) -> None:
        """A task ran past its limit and its child was killed."""
        message = f"the task ran longer than its limit of {limit_ms} ms"
        self.failed.append(self._failure(task, OutcomeCode.TASK_TIMEOUT, message))

    def crashed(self, task: Claimed, how: str) -> None:
        """A child died while it ran a task."""
        self.failed.append(self.crash(task, f"the task was lost: {how}"))

    def crash(self, task: Claimed, message: str) -> Failure:
        """The failure of a task that was running when its process went away. The third such end is final."""
        failure = self._failure(task, OperationalErrorCode.WORKER_CRASHED, message)
        delay = failure.delay_seconds
        if delay is None and _options(task).idempotent:
            delay = CRASH_RETRY_SECONDS
        if task.crash_count + 1 >= MAX_CRASHES:
            delay = None
        return msgspec.structs.replace(failure, delay_seconds=delay, crashed=True)

    def _failure(self, task: Claimed, code: BuiltInTaskCode, message: str) -> Failure:
        result = encode_result(TaskResult(err=TaskError(error_code=code, message=message)), Any, None)
        policy = self.policy_of(task)
        delay = retry_delay(policy, code, retry_count=task.retry_count, random=random())
        return Failure(
            task.id,
            task.claim_seq,
            result.decode(),
            code,
            message,
            message,
            delay,
            node=task.node,
            on_failure=self._handler_of(task),
        )

    def _handler_of(self, task: Claimed) -> str | None:
        """The task to send if this one has failed for good, as with its policy."""
        if task.task_options is None:
            known = self._app.tasks.get(task.task_name)
            return None if known is None else known.definition.on_failure
        return _options(task).on_failure

    def policy_of(self, task: Claimed) -> RetryPolicy | None:
        """The retry policy that the task was sent with; a row made by hand goes by the task's own."""
        if task.task_options is None:
            known = self._app.tasks.get(task.task_name)
            return None if known is None else known.definition.retry_policy
        stored = _options(task).retry_policy
        try:
            return None if stored is None else RetryPolicy.from_json(stored)
        except HorsiesError as error:
            logger.warning("task %s goes without retries: %s", task.id, error.message)
            return None

    def take_completed(self) -> list[Completed]:
        """What has returned and is to be written now."""
        count = _fitting(self.completed)
        taken, self.completed = self.completed[:count], self.completed[count:]
        return taken

    def take_failed(self) -> list[Failure]:
        """What has failed and is to be written now."""
        count = _fitting(self.failed)
        taken, self.failed = self.failed[:count], self.failed[count:]
        return taken


def _fitting(outcomes: Sequence[Completed] | Sequence[Failure]) -> int:
    """How many outcomes go into one statement: at least one, and no more than PostgreSQL can well take."""
    size = 0
    for count, outcome in enumerate(outcomes):
        size += len(outcome.result)
        if size > MAX_STATEMENT_CHARACTERS:
            return max(1, count)
    return len(outcomes)


class _Options(msgspec.Struct):
    retry_policy: dict[str, Any] | None = None
    idempotent: bool = False
    on_failure: str | None = None


def _options(task: Claimed) -> _Options:
    """What is stored with a task about its policy; anyone may have written that row."""
    try:
        return msgspec.json.decode(task.task_options or "{}", type=_Options)
    except msgspec.MsgspecError as error:
        logger.warning("the options of task %s cannot be read and are left out: %s", task.id, error)
        return _Options()
