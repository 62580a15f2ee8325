"""Turn what happened to tasks into outcomes, and collect these until they are written to the database.

Outcomes arrive one by one and are written in batches: while one batch is being written, the next one gathers. A batch that
could not be written is kept and written later.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Sequence
from random import random
from typing import Any, TypeVar

import msgspec

from horsies.codec import encode_result
from horsies.db.connection import LARGE_CHARACTERS
from horsies.db.queries.tasks import UNDONE, Claimed, Completed, Failure
from horsies.errors import HorsiesError
from horsies.executor.protocol import Outcome
from horsies.keys import is_batched
from horsies.registry import TaskRegistry
from horsies.result import TaskError, TaskResult
from horsies.retry import RetryPolicy, add_local_names, retry_delay
from horsies.status import BuiltInTaskCode, OperationalErrorCode
from horsies.worker.event_hooks import EventHooks
from horsies.worker.failure_log import FailureLog
from horsies.workflow.settle import CRASH_RETRY_SECONDS

logger = logging.getLogger("horsies.settle")

# A task whose process died so often is not retried.
MAX_CRASHES = 3
MAX_NAME_CHARACTERS = 255
# How long, and how much in all, outcomes are kept after they were written.
RECENT_SECONDS, RECENT_CHARACTERS = 30.0, 8 * 1_048_576


class Settler:
    """Collects outcomes until they are written."""

    def __init__(self, app: TaskRegistry) -> None:
        self._app = app
        self.event_hooks = EventHooks(app)
        self.failure_log = FailureLog(app)
        self.completed: list[Completed] = []
        self.failed: list[Failure] = []
        self._recent: deque[tuple[float, Completed | Failure]] = deque()
        self._recent_characters = 0

    def __bool__(self) -> bool:
        return bool(self.completed or self.failed)

    @property
    def characters(self) -> int:
        """The number of characters of the outcomes that the next statements store."""
        return _batch_size(self.completed)[1] + _batch_size(self.failed)[1]

    @property
    def claims(self) -> set[tuple[str, int]]:
        """The id and `claim_seq` of every task whose outcome is to be written."""
        return {(ended.id, ended.claim_seq) for ended in (*self.completed, *self.failed)}

    def disown(self, undone: Collection[tuple[str, int]]) -> None:
        """See to it that the outcomes of these claims, given by id and `claim_seq`, are not stored."""
        self.completed[:] = [_disowned(outcome, undone) for outcome in self.completed]
        self.failed[:] = [_disowned(outcome, undone) for outcome in self.failed]

    def ended(self, task: Claimed, outcome: Outcome) -> None:
        """Add the outcome that a child reported."""
        if outcome.ok:
            self.completed.append(
                Completed(task.id, task.claim_seq, outcome.result, task.node, task.rate_key)
            )
            return
        delay = outcome.snooze_seconds if outcome.park is None else 0.0
        if delay is None:
            delay = retry_delay(
                self.policy_of(task),
                outcome.error_code,
                unmapped_exception=outcome.unmapped_exception,
                exception_classes=outcome.exception_classes,
                retry_count=task.retry_count,
                random=random(),
            )
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
                snoozed=outcome.snooze_seconds is not None or outcome.park is not None,
                holds_lane=outcome.holds_lane,
                on_failure=self._handler_of(task),
                park=outcome.park,
                attempt=task.earlier_attempts + task.retry_count + 1,
            )
        )

    def crash(self, task: Claimed, message: str) -> Failure:
        """Return the failure of a task whose process died. The third such failure is final.

        If the policy does not retry it, the database does so if the task has stored steps. The members of a batch run again, each
        by itself: most of them have not caused the crash.
        """
        failure = self.failure(task, OperationalErrorCode.WORKER_CRASHED, message)
        delay = failure.delay_seconds
        if delay is None and (is_batched(task.rate_key) or _options(task).idempotent):
            delay = CRASH_RETRY_SECONDS
        is_last = task.crash_count + 1 >= MAX_CRASHES
        return msgspec.structs.replace(
            failure, delay_seconds=None if is_last else delay, crashed=True, resumable=not is_last
        )

    def failure(self, task: Claimed, code: BuiltInTaskCode, message: str) -> Failure:
        """Return the failure of a task that could not report an outcome itself."""
        result = encode_result(TaskResult(err=TaskError(error_code=code, message=message)), Any, None)
        delay = retry_delay(self.policy_of(task), code, retry_count=task.retry_count, random=random())
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
        """Return the name of the task to send if this one finally fails, from its options or else its definition."""
        if task.task_options is None:
            known = self._app.tasks.get(task.task_name)
            return None if known is None else known.definition.on_failure
        name = _options(task).on_failure
        if name is not None and (not 1 <= len(name) <= MAX_NAME_CHARACTERS or "\0" in name):
            logger.warning(
                "task %s has an invalid on_failure, so no task is sent when it fails: %.40r", task.id, name
            )
            return None
        return name

    def policy_of(self, task: Claimed) -> RetryPolicy | None:
        """Return the retry policy that the task was sent with; for a row without options, that of its definition."""
        known = self._app.tasks.get(task.task_name)
        own = None if known is None else known.definition.retry_policy
        if task.task_options is None:
            return own
        stored = _options(task).retry_policy
        try:
            return None if stored is None else add_local_names(RetryPolicy.from_json(stored), own)
        except HorsiesError as error:
            logger.warning(
                "task %s has an invalid retry policy and is not retried: %s", task.id, error.message
            )
            return None

    def take_completed(self) -> list[Completed]:
        """Remove and return the completed tasks that fit into one statement."""
        return _take_batch(self.completed)

    def take_failed(self) -> list[Failure]:
        """Remove and return the failures that fit into one statement."""
        return _take_batch(self.failed)

    # Outcomes that were written, and that a failover to an asynchronous standby may have undone

    def written(self, outcomes: Sequence[Completed | Failure], now: float) -> None:
        """Keep outcomes for a while after they were written."""
        for outcome in outcomes:
            self._recent.append((now, outcome))
            self._recent_characters += len(outcome.result)
        while self._recent and (
            self._recent[0][0] < now - RECENT_SECONDS or self._recent_characters > RECENT_CHARACTERS
        ):
            self._recent_characters -= len(self._recent.popleft()[1].result)

    def take_recent(self) -> list[Completed | Failure]:
        """Remove and return the outcomes that were written a short time ago."""
        recent = [outcome for _, outcome in self._recent]
        self._recent.clear()
        self._recent_characters = 0
        return recent

    def write_again(self, outcomes: Sequence[Completed | Failure]) -> None:
        """Write outcomes once more: the database has lost them."""
        self.completed += [outcome for outcome in outcomes if isinstance(outcome, Completed)]
        self.failed += [outcome for outcome in outcomes if isinstance(outcome, Failure)]


AnyOutcome = TypeVar("AnyOutcome", Completed, Failure)


def _take_batch(outcomes: list[AnyOutcome]) -> list[AnyOutcome]:
    """Remove and return the outcomes for one statement: at least one, and no more than PostgreSQL takes easily."""
    count, _ = _batch_size(outcomes)
    taken, outcomes[:] = outcomes[:count], outcomes[count:]
    return taken


def _batch_size(outcomes: Sequence[Completed | Failure]) -> tuple[int, int]:
    """Return how many outcomes go into one statement, and how many characters they have."""
    count = size = 0
    for outcome in outcomes:
        own = len(outcome.result) + (len(outcome.park or "") if isinstance(outcome, Failure) else 0)
        if count and size + own > LARGE_CHARACTERS:
            break
        size += own
        count += 1
    return count, size


class _Options(msgspec.Struct):
    """The options stored with a task that say how to handle its failures."""

    retry_policy: dict[str, Any] | None = None
    idempotent: bool = False
    on_failure: str | None = None


def _disowned(outcome: AnyOutcome, undone: Collection[tuple[str, int]]) -> AnyOutcome:
    """Return the outcome, under a number that no claim has if its claim is one of these."""
    if (outcome.id, outcome.claim_seq) not in undone:
        return outcome
    return msgspec.structs.replace(outcome, claim_seq=UNDONE)


def _options(task: Claimed) -> _Options:
    """Return the stored options of a task. Anyone may have written the row, so options that cannot be read are left out."""
    try:
        return msgspec.json.decode(task.task_options or "{}", type=_Options)
    except (msgspec.MsgspecError, RecursionError) as error:
        logger.warning("the options of task %s cannot be read and are left out: %s", task.id, error)
        return _Options()
