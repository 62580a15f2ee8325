"""From a call to a row: everything that can be wrong with a send is found here, before the database is asked; or, of very
many, before it has stored any.

A row is stored whole or not at all, and a send that is repeated because its reply was lost never makes a second task.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Literal, cast
from uuid import UUID

import msgspec
import psycopg

from horsies.broker import Broker
from horsies.codec import ArgumentError, Signature
from horsies.config import CustomQueueConfig
from horsies.context import Sending, is_followed, sending, with_headers
from horsies.errors import HorsiesError, is_whole_number, mask_passwords
from horsies.rates import RateLimit
from horsies.results import Err, Ok, Result, TaskSendError, TaskSendPayload
from horsies.retry import ExceptionMapper, RetryPolicy
from horsies.status import TaskSendErrorCode
from horsies.storage import tasks
from horsies.storage.bulk import ROWS_PER_WRITE
from horsies.storage.database import TRANSIENT, is_refused
from horsies.storage.ids import new_ids
from horsies.storage.store import ROWS_PER_STATEMENT, KeyTaken, PayloadMismatch
from horsies.storage.tasks import NewTask

logger = logging.getLogger("horsies.send")

MIN_TIMEOUT_MS, MAX_TIMEOUT_MS = 100, 2**31 - 1
SUPPRESS = "TASKLIB_SUPPRESS_SENDS"
# A century: far enough for anybody, and near enough for every date there is.
MAX_DELAY_SECONDS = 36_525 * 86_400
MAX_KEY_LENGTH = 500
Unique = Literal["args"] | Callable[..., str] | None
Stored = Result[list[str], TaskSendError]
Call = tuple[tuple[Any, ...], Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSendOptions:
    """What may be said of one send; anything left out is as the task was defined."""

    good_until: datetime | None = None
    idempotency_key: str | None = None
    priority: int | None = None
    queue_name: str | None = None
    eta: datetime | None = None
    delay_seconds: float | None = None
    tags: Sequence[str] | None = None
    timeout_ms: int | None = None
    conn: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDefinition:
    """A task as it was defined."""

    name: str
    fn: Callable[..., Any]
    signature: Signature
    queue: CustomQueueConfig
    is_async: bool
    retry_policy: RetryPolicy | None = None
    exception_mapper: ExceptionMapper | None = None
    default_unhandled_error_code: str | None = None
    timeout_ms: int | None = None
    priority: int | None = None
    unique: Unique = None
    idempotent: bool = False
    rate_limit: str | None = None
    on_failure: str | None = None

    @property
    def rate(self) -> RateLimit | None:
        return RateLimit.parse(self.rate_limit)

    @property
    def rate_key(self) -> str:
        """The line that its tasks stand in: its own, if it has a rate limit."""
        return "" if self.rate_limit is None else self.name

    @property
    def max_retries(self) -> int:
        return self.retry_policy.max_retries if self.retry_policy else 0

    @property
    def options_json(self) -> str | None:
        """What a worker must know of the policy, stored with each task; None when there is nothing to say."""
        options: dict[str, Any] = {}
        if self.retry_policy is not None:
            options["retry_policy"] = self.retry_policy.to_json()
        if self.idempotent:
            options["idempotent"] = True
        if self.on_failure is not None:
            options["on_failure"] = self.on_failure
        return msgspec.json.encode(options).decode() if options else None


class Refused(Exception):
    """A send that must not reach the database."""

    def __init__(self, message: str, code: TaskSendErrorCode = TaskSendErrorCode.VALIDATION_FAILED) -> None:
        super().__init__(message)
        self.code = code


class Envelope:
    """What all sends of one task with the same options have in common, checked once."""

    def __init__(self, task: TaskDefinition, options: TaskSendOptions, broker: Broker) -> None:
        self.task = task
        self.options = options
        self.broker = broker
        self._options_json = task.options_json
        self._queue = task.queue if options.queue_name is None else self._other_queue(options.queue_name)
        self._problem = next(iter(_problems(task, options)), None)

    def _other_queue(self, name: str) -> CustomQueueConfig | None:
        return next((queue for queue in self.broker.config.queues if queue.name == name), None)

    def rows(self, calls: Iterable[Call], delay_seconds: float | None) -> list[NewTask]:
        """The rows for some calls; raises `Refused`, for all of them, when one cannot be sent."""
        common, given = self._common(delay_seconds), list(calls)
        rows = [
            self._row(task_id, common, *call)
            for task_id, call in zip(new_ids(len(given)), given, strict=True)
        ]
        if len(rows) > 1 and self.options.idempotency_key is not None:
            raise Refused("one idempotency_key cannot stand for several calls; send them one by one")
        return rows

    def batches(self, calls: Iterable[Call]) -> Iterator[list[NewTask]]:
        """The same for many calls, in portions that are made when they are asked for."""
        remaining = iter(calls)
        while some := list(islice(remaining, ROWS_PER_WRITE)):
            yield self.rows(some, None)

    def is_bulk(self, count: int) -> bool:
        """Whether so many calls are stored portion by portion: too many for one statement, and nothing looks at them first."""
        keyed = self.task.unique is not None or self.options.idempotency_key is not None
        own = self.options.conn is not None or self.options.delay_seconds is not None
        followed = is_followed(self.broker.watchers)
        return count > ROWS_PER_STATEMENT and not (keyed or own or followed)

    def _common(self, delay_seconds: float | None) -> dict[str, Any]:
        """What is the same in every row."""
        options, queue = self.options, self._queue
        if self.broker.sends_suppressed or os.environ.get(SUPPRESS) == "1":
            raise Refused(
                "sends are suppressed while modules are imported", TaskSendErrorCode.SEND_SUPPRESSED
            )
        if queue is None:
            names = ", ".join(queue.name for queue in self.broker.config.queues)
            raise Refused(f"queue {options.queue_name!r} is not configured; use one of: {names}")
        if self._problem is not None:
            raise Refused(self._problem)
        if options.eta is not None and delay_seconds is not None:
            raise Refused("the send has an eta and a delay; use one")
        return {
            "task_name": self.task.name,
            "queue_name": queue.name,
            "rate_key": self.task.rate_key,
            "priority": options.priority or self.task.priority or queue.priority,
            "is_async": self.task.is_async,
            "max_retries": self.task.max_retries,
            "eta": _in_utc(options.eta),
            "delay_seconds": options.delay_seconds if delay_seconds is None else delay_seconds,
            "good_until": _in_utc(options.good_until),
            "timeout_ms": options.timeout_ms or self.task.timeout_ms,
            "task_options": self._options_json,
            "tags": tuple(options.tags) if options.tags else None,
            "idempotency_key": options.idempotency_key,
        }

    def _row(
        self, task_id: UUID, common: dict[str, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> NewTask:
        return NewTask(
            id=task_id,
            kwargs=self._arguments(args, kwargs),
            unique_key=None if self.task.unique is None else self._unique_key(args, kwargs),
            enqueue_sha=None if self.options.idempotency_key is None else self._sha(args, kwargs),
            **common,
        )

    def _arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        try:
            encoded = self.task.signature.encode(args, kwargs)
        except ArgumentError as error:
            raise Refused(str(error)) from error
        policy = self.broker.config.payload
        if policy.reject_bytes is not None and len(encoded) > policy.reject_bytes:
            raise Refused(
                f"task {self.task.name!r}: its arguments take {len(encoded):,} bytes, more than the limit of "
                f"{policy.reject_bytes:,}; send a reference to the data, or raise PayloadPolicy.reject_bytes",
                TaskSendErrorCode.PAYLOAD_TOO_LARGE,
            )
        if policy.warn_bytes is not None and len(encoded) > policy.warn_bytes:
            logger.warning("task %r: its arguments take %s bytes", self.task.name, f"{len(encoded):,}")
        return encoded.decode()

    def _unique_key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        match self.task.unique:
            case None:
                return None
            case "args":
                return f"{self.task.name}:{self._sha(args, kwargs)}"
            case function:
                return f"{self.task.name}:{self._own_key(function, args, kwargs)}"

    def _own_key(self, function: Callable[..., str], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        try:
            key = str(function(*args, **kwargs))
        except Exception as error:
            raise Refused(
                f"the unique function of task {self.task.name!r} raised {type(error).__name__}: {error}"
            ) from error
        if not _is_text(key, MAX_KEY_LENGTH):
            raise Refused(
                f"the unique function of task {self.task.name!r} gave {key[:80]!r}; "
                f"a key has 1 to {MAX_KEY_LENGTH} characters of any text but NUL"
            )
        return key

    def _sha(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """The fingerprint of a call: its task and arguments, whichever way they were passed."""
        arguments = msgspec.json.decode(self.task.signature.encode(args, kwargs))
        canonical = msgspec.json.encode([self.task.name, arguments], order="sorted")
        return hashlib.sha256(canonical).hexdigest()


def _problems(task: TaskDefinition, options: TaskSendOptions) -> list[str]:
    """What is wrong with the options of a send."""
    found: list[str] = []
    if options.priority is not None and not is_whole_number(options.priority, 1, 100):
        found.append(f"priority is {options.priority!r}; use a whole number from 1 (first) to 100")
    if options.timeout_ms is not None and not is_whole_number(
        options.timeout_ms, MIN_TIMEOUT_MS, MAX_TIMEOUT_MS
    ):
        allowed = f"a whole number from {MIN_TIMEOUT_MS} to {MAX_TIMEOUT_MS}"
        found.append(f"timeout_ms is {options.timeout_ms!r}; use {allowed}")
    for name in ("good_until", "eta"):
        moment = getattr(options, name)
        if moment is not None and (not isinstance(moment, datetime) or moment.tzinfo is None):
            found.append(f"{name} is {moment!r}; use a datetime with a time zone, such as datetime.now(UTC)")
    if options.delay_seconds is not None and not _is_delay(options.delay_seconds):
        found.append(f"delay_seconds is {options.delay_seconds!r}; use seconds from 0 to a century")
    if options.eta is not None and options.delay_seconds is not None:
        found.append("both eta and delay_seconds are given; use one")
    if options.tags is not None and not _are_tags(options.tags):
        found.append(f"tags is {options.tags!r}; use a list of texts without NUL characters")
    if options.idempotency_key is not None:
        found += _key_problems(task, options.idempotency_key)
    return found


def _key_problems(task: TaskDefinition, idempotency_key: object) -> list[str]:
    if task.unique is not None:
        return [f"task {task.name!r} is unique and has a key of its own; leave idempotency_key out"]
    if not _is_text(idempotency_key, MAX_KEY_LENGTH):
        return [f"idempotency_key must be a text of 1 to {MAX_KEY_LENGTH} characters, none of them NUL"]
    return []


def _is_delay(seconds: object) -> bool:
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        return False
    return 0 <= seconds <= MAX_DELAY_SECONDS


def _are_tags(tags: object) -> bool:
    return isinstance(tags, list | tuple | set | frozenset) and all(
        _is_text(tag, MAX_KEY_LENGTH) for tag in cast("Iterable[object]", tags)
    )


def _is_text(value: object, longest: int) -> bool:
    """Whether the database can keep this: a NUL and half a surrogate pair are no characters to it."""
    if not isinstance(value, str) or not 1 <= len(value) <= longest:
        return False
    return not any(character == "\0" or "\ud800" <= character <= "\udfff" for character in value)


def _in_utc(moment: datetime | None) -> datetime | None:
    """The same moment with an offset that every format can write; one of odd seconds would be rounded."""
    return None if moment is None else moment.astimezone(UTC)


def check_delay(delay_seconds: object) -> None:
    """Raise `Refused` unless this is a delay that `schedule` takes."""
    if not is_whole_number(delay_seconds, 0, MAX_DELAY_SECONDS):
        raise Refused(f"delay_seconds is {delay_seconds!r}; use a whole number from 0 to a century")


def announced(broker: Broker, rows: Sequence[NewTask]) -> AbstractContextManager[Sending]:
    """Tell those who watch that these tasks, all of one kind, are sent."""
    return sending(broker.watchers, rows[0].task_name, rows[0].queue_name, (row.id for row in rows))


def carrying(sent: Sending, rows: list[NewTask]) -> list[NewTask]:
    """The rows with what is to travel with their tasks."""
    if not sent.headers:
        return rows
    options = with_headers(rows[0].task_options, sent.headers)
    return [msgspec.structs.replace(row, task_options=options) for row in rows]


def noted(sent: Sending, stored: Stored) -> Stored:
    """What came of a send, which those who watch are shown first."""
    if isinstance(stored, Err):
        sent.failure = stored.err_value.code
    return stored


# What storing may raise; anything else is a bug of ours and must not look like an answer.
STORE_ERRORS = (psycopg.Error, HorsiesError, KeyTaken, PayloadMismatch, OSError)


async def store(broker: Broker, rows: Sequence[NewTask], *, again: bool = False) -> Stored:
    """Store rows through the broker; errors come back as values."""
    try:
        return Ok([str(task_id) for task_id in await broker.send(rows, again=again)])
    except STORE_ERRORS as error:
        return Err(failed(error, rows))


def store_here(broker: Broker, rows: Sequence[NewTask]) -> Stored:
    """The same in the calling thread."""
    try:
        return Ok([str(task_id) for task_id in broker.send_here(rows)])
    except STORE_ERRORS as error:
        return Err(failed(error, rows))


def copy_here(broker: Broker, batches: Iterable[list[NewTask]]) -> Stored:
    """The same for many rows, which may be refused until the last of them is made."""
    try:
        return Ok([str(task_id) for task_id in broker.copy_here(batches)])
    except Refused as refusal:
        return Err(refused(refusal))
    except STORE_ERRORS as error:
        return Err(failed(error, []))


def failed(error: Exception, rows: Sequence[NewTask]) -> TaskSendError:
    """What a producer learns when rows could not be stored; a single one can be sent again."""
    row = rows[0] if len(rows) == 1 else None
    code = TaskSendErrorCode.ENQUEUE_FAILED
    if isinstance(error, PayloadMismatch):
        code = TaskSendErrorCode.PAYLOAD_MISMATCH
    return TaskSendError(
        code=code,
        message=mask_passwords(str(error)) or type(error).__name__,
        retryable=isinstance(error, TRANSIENT) and not is_refused(error),
        task_id=None if row is None else str(row.id),
        payload=None if row is None else payload_of(row),
        exception=error,
    )


def failed_in_transaction(error: Exception) -> TaskSendError:
    """What a producer learns when the send failed in a transaction of their own.

    There is nothing to send again: a task that comes with a transaction must be sent by the next try of all of it.
    """
    return TaskSendError(
        code=TaskSendErrorCode.ENQUEUE_FAILED,
        message=mask_passwords(str(error)) or type(error).__name__,
        exception=error,
    )


def payload_of(row: NewTask) -> TaskSendPayload:
    encoded = tasks.encode_rows([row])
    return TaskSendPayload(
        task_name=row.task_name,
        queue_name=row.queue_name,
        priority=row.priority,
        args_json=None,
        kwargs_json=row.kwargs,
        sent_at=datetime.fromtimestamp((row.id.int >> 80) / 1000, UTC),
        good_until=row.good_until,
        enqueue_delay_seconds=None if row.delay_seconds is None else int(row.delay_seconds),
        task_options=row.task_options,
        enqueue_sha=hashlib.sha256(encoded.encode()).hexdigest(),
        idempotency_key=row.idempotency_key,
        row=encoded,
    )


def row_of(payload: TaskSendPayload) -> NewTask:
    """The row that a failed send was about, to be sent again as it was."""
    return msgspec.json.decode(payload.row, type=list[NewTask])[0]


def refused(refusal: Refused) -> TaskSendError:
    return TaskSendError(code=refusal.code, message=str(refusal))
