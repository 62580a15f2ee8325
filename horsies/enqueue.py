"""Turn a call of a task into a row to insert.

A send is validated completely before the first statement, or, for a bulk send, before its transaction commits. A row is
stored whole or not at all, and a send that is repeated because its reply was lost never stores a second task.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Literal, cast
from uuid import UUID

import msgspec
import psycopg
from msgspec import UNSET, UnsetType

from horsies.client import Broker
from horsies.codec import ArgumentError, Signature
from horsies.config import CustomQueueConfig
from horsies.db.connection import TRANSIENT, is_refused
from horsies.db.ids import new_ids
from horsies.db.insert import ROWS_PER_STATEMENT, ROWS_PER_WRITE, KeyTaken, PayloadMismatch
from horsies.db.queries.tasks import NewTask, as_json
from horsies.durations import Duration, RateLimit, in_milliseconds, in_seconds, is_duration
from horsies.errors import HorsiesError, is_storable_text, is_whole_number, mask_passwords
from horsies.frozen import dataclass
from horsies.keys import CostOption, KeyOption, cost_number, key_text, lane_of_batch, lane_of_key
from horsies.middleware import Headers, is_observed, with_headers
from horsies.redaction import Redactor
from horsies.result import Result, TaskSendError, TaskSendPayload, WorkflowStartError
from horsies.retry import ExceptionMapper, RetryPolicy
from horsies.status import TaskSendErrorCode

logger = logging.getLogger("horsies.send")

MIN_TIMEOUT_MS, MAX_TIMEOUT_MS = 100, 2**31 - 1
# A century: the longest delay whose due time every datetime and timestamptz can hold.
MAX_DELAY_SECONDS = 36_525 * 86_400
MAX_KEY_LENGTH = 500
Unique = Literal["args"] | Callable[..., str] | None
# What a send does while a live task has its unique key.
OnConflict = Literal["first", "last", "again"]
ON_CONFLICT: tuple[OnConflict, ...] = ("first", "last", "again")
Inserted = Result[list[UUID], TaskSendError]
Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]
ScheduleDelay = int | timedelta | UnsetType


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSendOptions:
    """The options of one send; an option that is None has the value from the task's definition."""

    good_until: datetime | None = None
    idempotency_key: str | None = None
    priority: int | None = None
    queue_name: str | None = None
    eta: datetime | None = None
    delay_seconds: Duration | None = None
    tags: Sequence[str] | None = None
    timeout_ms: int | timedelta | None = None
    conn: Any = None
    delay: Duration | None = None
    timeout: Duration | None = None
    key: str | int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDefinition:
    """The function and options of a task."""

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
    on_conflict: OnConflict = "first"
    idempotent: bool = False
    rate_limit: str | None = None
    on_failure: str | None = None
    key: KeyOption = None
    key_concurrency: int | None = None
    key_rate: str | None = None
    cost: CostOption = None
    batch: int | None = None
    linger: Duration | None = None

    @property
    def linger_seconds(self) -> float:
        """Return how long the first member of a batch waits for others."""
        return 0.0 if self.linger is None else in_seconds(self.linger)

    @property
    def rate(self) -> RateLimit | None:
        """Return the rate limit of the task, parsed."""
        return RateLimit.parse(self.rate_limit)

    @property
    def rate_key(self) -> str:
        """Return the lane of its tasks without a key: that of its batches or its rate limit, or "" without either."""
        if self.batch is not None:
            return lane_of_batch(self.name)
        return "" if self.rate_limit is None else self.name

    @property
    def key_source(self) -> str | None:
        """Return where its key comes from: a parameter's name, or "()" for a function, which only Python can call."""
        return self.key if self.key is None or isinstance(self.key, str) else "()"

    @property
    def per_key(self) -> RateLimit | None:
        """Return the rate limit of each of its keys, parsed."""
        return RateLimit.parse(self.key_rate)

    @property
    def has_keys(self) -> bool:
        """Return True if tasks may be sent with a key: the task has a key, or a limit for the keys of its sends."""
        return self.key is not None or self.key_concurrency is not None or self.key_rate is not None

    @property
    def max_retries(self) -> int:
        """Return how often a failed run is retried."""
        return self.retry_policy.max_retries if self.retry_policy else 0

    @property
    def options_json(self) -> str | None:
        """Return the options that are stored with each task for the worker; None if all have their defaults."""
        options: dict[str, Any] = {}
        if self.retry_policy is not None:
            options["retry_policy"] = self.retry_policy.to_json()
        if self.idempotent:
            options["idempotent"] = True
        if self.on_failure is not None:
            options["on_failure"] = self.on_failure
        if self.on_conflict != "first":
            options["on_conflict"] = self.on_conflict
        return msgspec.json.encode(options).decode() if options else None


class InvalidSend(Exception):
    """A send was rejected before it reached the database."""

    def __init__(self, message: str, code: TaskSendErrorCode = TaskSendErrorCode.VALIDATION_FAILED) -> None:
        super().__init__(message)
        self.code = code

    def as_send_error(self) -> TaskSendError:
        """Return the error as the value that a sender gets."""
        return TaskSendError(code=self.code, message=str(self))


class SendRequest:
    """A task with the options of its sends, validated once for any number of calls."""

    def __init__(self, task: TaskDefinition, options: TaskSendOptions, broker: Broker) -> None:
        self.task = task
        self.options = options
        self.broker = broker
        queue: CustomQueueConfig | None = task.queue
        if options.queue_name is not None:
            queue = next((each for each in broker.config.all_queues if each.name == options.queue_name), None)
        self.queue_name = queue.name if queue is not None else ""
        self._problem = _problem(task, options)
        if queue is None:
            names = ", ".join(each.name for each in broker.config.all_queues)
            self._problem = f"queue {options.queue_name!r} is not configured; use one of: {names}"
        elif self._problem is None:
            self._columns = _shared_columns(task, options, queue)
        self._is_keyed = task.key is not None or options.key is not None

    def rows(
        self, calls: Iterable[Arguments], delay: ScheduleDelay = UNSET, first: int | None = None
    ) -> list[NewTask]:
        """Return the rows of some calls; raise InvalidSend if any of them cannot be sent.

        `delay` is the argument of `schedule`, unset for a plain send. `first` is the place of the first call in a `send_many`,
        None for any other send; errors name the place.
        """
        delay_seconds = UNSET if delay is UNSET else _schedule_seconds(delay)
        if self.broker.sends_suppressed or self.broker.app_is_loading:
            raise InvalidSend(
                "sends are suppressed while modules are imported", TaskSendErrorCode.SEND_SUPPRESSED
            )
        if self._problem is not None:
            raise InvalidSend(self._problem)
        if self.options.eta is not None and delay_seconds is not UNSET:
            raise InvalidSend("the send has an eta and a delay; use one")
        columns, given = self._columns, list(calls)
        if delay_seconds is not UNSET:
            columns = {**columns, "delay_seconds": delay_seconds}
        ids = new_ids(len(given))
        rows: list[NewTask] = []
        try:
            for task_id, call in zip(ids, given, strict=True):
                rows.append(self._row(task_id, columns, *call))
        except InvalidSend as error:
            if first is None:
                raise
            raise InvalidSend(
                f"call {first + len(rows)} of send_many: {error}", error.code
            ) from error.__cause__
        if len(rows) > 1 and self.options.idempotency_key is not None:
            raise InvalidSend("one idempotency_key cannot stand for several calls; send them one by one")
        return rows

    def batches(self, calls: Iterable[Arguments]) -> Iterator[list[NewTask]]:
        """Yield the rows of many calls in batches; each is made when it is asked for."""
        remaining, first = iter(calls), 0
        while batch := list(islice(remaining, ROWS_PER_WRITE)):
            yield self.rows(batch, first=first)
            first += len(batch)

    def is_bulk(self, count: int) -> bool:
        """Return True if this many calls are encoded and inserted batch by batch, with COPY.

        COPY checks no keys, computes no delays and needs our own connection; middleware wants to see all rows first.
        """
        options = self.options
        return (
            count > ROWS_PER_STATEMENT
            and self.task.unique is None
            and options.idempotency_key is None
            and options.delay_seconds is None
            and options.delay is None
            and options.conn is None
            and not is_observed(self.broker.middleware)
        )

    def _row(
        self, task_id: UUID, columns: dict[str, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> NewTask:
        try:
            encoded = self.task.signature.encode(args, kwargs)
        except ArgumentError as error:
            raise InvalidSend(self._redacted(str(error), args, kwargs)) from error
        self._check_size(len(encoded))
        if self._is_keyed:
            columns = {**columns, **self._key_columns(args, kwargs)}
        return NewTask(
            id=task_id,
            kwargs=encoded.decode(),
            unique_key=None if self.task.unique is None else self._unique_key(encoded, args, kwargs),
            enqueue_sha=None if self.options.idempotency_key is None else self._sha(encoded),
            **columns,
        )

    def _key_columns(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return key_columns(self.task, self.options.key, args, kwargs)
        except InvalidSend as error:
            raise InvalidSend(self._redacted(str(error), args, kwargs)) from error.__cause__

    def _check_size(self, size: int) -> None:
        policy = self.broker.config.payload
        if policy.reject_bytes is not None and size > policy.reject_bytes:
            raise InvalidSend(
                f"task {self.task.name!r}: its arguments take {size:,} bytes, more than the limit of "
                f"{policy.reject_bytes:,}; send a reference to the data, or raise PayloadPolicy.reject_bytes",
                TaskSendErrorCode.PAYLOAD_TOO_LARGE,
            )
        if policy.warn_bytes is not None and size > policy.warn_bytes:
            logger.warning("task %r: its arguments take %s bytes", self.task.name, f"{size:,}")

    def _unique_key(self, encoded: bytes, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        name, unique = self.task.name, self.task.unique
        if not callable(unique):
            return f"{name}:{self._sha(encoded)}"
        try:
            key = str(unique(*args, **kwargs))
        except Exception as error:
            problem = f"the unique function of task {name!r} raised {type(error).__name__}: {error}"
            raise InvalidSend(self._redacted(problem, args, kwargs)) from error
        if not is_storable_text(key, MAX_KEY_LENGTH):
            shown = self._redacted(repr(key), args, kwargs)[:80]
            raise InvalidSend(
                f"the unique function of task {name!r} gave {shown}; "
                f"a key has 1 to {MAX_KEY_LENGTH} characters of any text but NUL"
            )
        return f"{name}:{key}"

    def _sha(self, encoded: bytes) -> str:
        """Return a hash of the task's name and its arguments, in whatever order they were passed."""
        named = [self.task.name, msgspec.json.decode(encoded)]
        return hashlib.sha256(msgspec.json.encode(named, order="sorted")).hexdigest()

    def _redacted(self, message: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return the message without the values of redacted arguments."""
        by_name = {**dict(zip(self.task.signature.parameters, args, strict=False)), **kwargs}
        return Redactor(self.broker.config.redact).scrub_call(message, by_name)


def key_columns(
    task: TaskDefinition, key: str | int | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the lane of a call's key, and its cost if it has one; `key` is that of the send, None for that of the task.

    Raise InvalidSend if the key or the cost cannot be used.
    """
    value = key if key is not None else _called(task, "key", task.key, args, kwargs)
    try:
        columns: dict[str, Any] = {"rate_key": lane_of_key(key_text(value))}
    except ValueError as error:
        raise InvalidSend(f"the key of task {task.name!r} {error}") from error
    if task.cost is None:
        return columns
    try:
        return columns | {"cost": cost_number(_called(task, "cost", task.cost, args, kwargs))}
    except ValueError as error:
        raise InvalidSend(f"the cost of task {task.name!r} {error}") from error


def lane_of_node(task: TaskDefinition, key: str | int | None, kwargs: Mapping[str, Any]) -> str:
    """Return the lane of a workflow's task, some of whose arguments may come from other nodes.

    Raise InvalidSend if its key cannot be used, or depends on an argument that is not known yet.
    """
    if key is None and task.key is None:
        return task.rate_key
    if key is None and isinstance(task.key, str):
        parameter = task.signature.parameters[task.key]
        value = kwargs.get(task.key, parameter.default)
        if value is parameter.empty:
            raise InvalidSend(
                f"the key of task {task.name!r} is its argument {task.key!r}, which is not known yet"
            )
        key = value
    return key_columns(replace(task, cost=None), key, (), kwargs)["rate_key"]


def _called(
    task: TaskDefinition, what: str, option: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Return the key or the cost of a call."""
    try:
        if callable(option):
            return option(*args, **kwargs)
        return task.signature.bound(args, kwargs)[option]
    except Exception as error:
        problem = f"the {what} function of task {task.name!r} raised {type(error).__name__}: {error}"
        raise InvalidSend(problem) from error


def _shared_columns(
    task: TaskDefinition, options: TaskSendOptions, queue: CustomQueueConfig
) -> dict[str, Any]:
    """Return the columns that are the same in all rows of a request."""
    return {
        "task_name": task.name,
        "queue_name": queue.name,
        "rate_key": task.rate_key,
        "priority": options.priority or task.priority or queue.priority,
        "is_async": task.is_async,
        "max_retries": task.max_retries,
        "eta": _in_utc(options.eta),
        "delay_seconds": _delay_seconds(options),
        "good_until": _in_utc(options.good_until),
        "timeout_ms": timeout_in_ms(options.timeout, options.timeout_ms) or task.timeout_ms,
        "task_options": task.options_json,
        "tags": tuple(options.tags) if options.tags else None,
        "idempotency_key": options.idempotency_key,
        "on_conflict": None if task.unique is None or task.on_conflict == "first" else task.on_conflict,
    }


def _problem(task: TaskDefinition, options: TaskSendOptions) -> str | None:
    """Return a message for the first invalid option of a send; None if all are valid."""
    if options.priority is not None and not is_whole_number(options.priority, 1, 100):
        return f"priority is {options.priority!r}; use a whole number from 1 (first) to 100"
    if task.batch is not None and options.key is not None:
        return f"task {task.name!r} runs in batches, which have no keys; leave key out"
    problem = timeout_problem(options.timeout, options.timeout_ms) or _delay_problem(options)
    if problem is not None:
        return problem
    for name, moment in (("good_until", options.good_until), ("eta", options.eta)):
        if moment is not None and (not isinstance(cast(object, moment), datetime) or moment.tzinfo is None):
            return f"{name} is {moment!r}; use a datetime with a time zone, such as datetime.now(UTC)"
    tags = cast("object", options.tags)
    if tags is not None and not (
        isinstance(tags, list | tuple | set | frozenset)
        and all(is_storable_text(tag, MAX_KEY_LENGTH) for tag in cast("Iterable[object]", tags))
    ):
        return f"tags is {tags!r}; use a list of texts without NUL characters"
    if options.idempotency_key is not None:
        if task.unique is not None:
            return f"task {task.name!r} is unique and has a key of its own; leave idempotency_key out"
        if not is_storable_text(options.idempotency_key, MAX_KEY_LENGTH):
            return f"idempotency_key must be a text of 1 to {MAX_KEY_LENGTH} characters, none of them NUL"
    return None


def timeout_problem(timeout: Duration | None, timeout_ms: int | timedelta | None) -> str | None:
    """Return a message for an invalid time limit, of which one form at most is given; None if it is valid."""
    if timeout is not None and timeout_ms is not None:
        return "both timeout and timeout_ms are given; use one"
    if timeout_ms is not None and not is_whole_number(
        in_milliseconds(timeout_ms), MIN_TIMEOUT_MS, MAX_TIMEOUT_MS
    ):
        return (
            f"timeout_ms is {timeout_ms!r}; "
            f"use a whole number from {MIN_TIMEOUT_MS} to {MAX_TIMEOUT_MS}, or a timedelta"
        )
    if timeout is not None and not (
        is_duration(timeout) and MIN_TIMEOUT_MS <= in_seconds(timeout) * 1000 <= MAX_TIMEOUT_MS
    ):
        return (
            f"timeout is {timeout!r}; use seconds from {MIN_TIMEOUT_MS / 1000} to {MAX_TIMEOUT_MS // 1000}, "
            "or a timedelta"
        )
    return None


def _delay_problem(options: TaskSendOptions) -> str | None:
    """Return a message for an invalid delay; None if it is valid."""
    given = (("eta", options.eta), ("delay", options.delay), ("delay_seconds", options.delay_seconds))
    names = [name for name, value in given if value is not None]
    if len(names) > 1:
        return f"both {names[0]} and {names[1]} are given; use one"
    for name, value in given[1:]:
        if value is None:
            continue
        if not is_duration(value) or not 0 <= in_seconds(value) <= MAX_DELAY_SECONDS:
            return f"{name} is {value!r}; use seconds from 0 to a century, or a timedelta"
    return None


def _delay_seconds(options: TaskSendOptions) -> float | None:
    delay = options.delay if options.delay is not None else options.delay_seconds
    return None if delay is None else in_seconds(delay)


def timeout_in_ms(timeout: Duration | None, timeout_ms: int | timedelta | None) -> int | None:
    """Return a time limit in milliseconds, in whichever form it is given; None if it is not given."""
    if timeout is not None:
        return round(in_seconds(timeout) * 1000)
    return None if timeout_ms is None else in_milliseconds(timeout_ms)


def _schedule_seconds(delay: int | timedelta) -> float:
    """Return the seconds of a delay that `schedule` was given; raise InvalidSend if it is none."""
    is_valid = isinstance(delay, timedelta) or is_whole_number(delay, 0)
    if not is_valid or not 0 <= in_seconds(delay) <= MAX_DELAY_SECONDS:
        raise InvalidSend(
            f"delay_seconds is {delay!r}; use a whole number from 0 to a century, or a timedelta"
        )
    return in_seconds(delay)


def _in_utc(moment: datetime | None) -> datetime | None:
    """Return the time in UTC: a time zone offset with seconds would be rounded on its way."""
    return None if moment is None else moment.astimezone(UTC)


def add_headers(rows: list[NewTask], headers: Headers) -> list[NewTask]:
    """Return rows of one task with headers in their options."""
    if not headers:
        return rows
    options = with_headers(rows[0].task_options, headers)
    return [msgspec.structs.replace(row, task_options=options) for row in rows]


# The errors of an insert that are returned as `Err`. Any other exception is a bug in horsies and is raised.
INSERT_ERRORS = (psycopg.Error, HorsiesError, KeyTaken, PayloadMismatch, OSError)


def insert_error(error: Exception, rows: Sequence[NewTask]) -> TaskSendError:
    """Return the error of a failed insert; a single row is kept in it, to be sent again."""
    row = rows[0] if len(rows) == 1 else None
    code = TaskSendErrorCode.ENQUEUE_FAILED
    if isinstance(error, PayloadMismatch):
        code = TaskSendErrorCode.PAYLOAD_MISMATCH
    return TaskSendError(
        code=code,
        message=mask_passwords(str(error)) or type(error).__name__,
        retryable=isinstance(error, TRANSIENT) and not is_refused(error),
        task_id=None if row is None else str(row.id),
        payload=None if row is None else _payload(row),
        exception=error,
    )


def transaction_error(error: Exception) -> TaskSendError:
    """Return the error of a send that failed in the caller's transaction.

    It keeps no row to send again: the caller has to retry the whole transaction, and the task with it.
    """
    return TaskSendError(
        code=TaskSendErrorCode.ENQUEUE_FAILED,
        message=mask_passwords(str(error)) or type(error).__name__,
        exception=error,
    )


def log_failed_send(task_name: str, error: TaskSendError, redacts: bool) -> None:
    """Log a send that failed and whose caller gets the error as a value, which is easily overlooked."""
    # A suppressed send stands at the top level of a module that a worker imports. It is meant to do nothing there.
    level = logging.WARNING if error.code is TaskSendErrorCode.SEND_SUPPRESSED else logging.ERROR
    reason = _loggable(error.message, error.exception, redacts)
    logger.log(level, "task %r was not sent: %s: %s", task_name, error.code, reason)


def log_failed_start(error: WorkflowStartError, redacts: bool, suppressed: bool) -> None:
    """Log a start of a workflow that failed and whose caller gets the error as a value."""
    level = logging.WARNING if suppressed else logging.ERROR
    message = error.message.removeprefix(f"workflow {error.workflow_name!r}: ")
    reason = _loggable(message, error.exception, redacts)
    logger.log(level, "workflow %r was not started: %s: %s", error.workflow_name, error.code, reason)


def _loggable(message: str, cause: BaseException | None, redacts: bool) -> str:
    """Return the first line of an error's message.

    A text of the database may quote arguments. With redaction on, the name of the exception takes its place.
    """
    if redacts and cause is not None and not isinstance(cause, (*TRANSIENT, HorsiesError)):
        return type(cause).__name__
    return message.strip().partition("\n")[0]


def _payload(row: NewTask) -> TaskSendPayload:
    encoded = as_json([row])
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
