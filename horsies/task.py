"""A task: a function that can be called here or sent to a worker.

Follow a send from here: `SendRequest.rows` in `enqueue.py` turns the call into a row, `Broker.insert` in `client.py` picks a
connection, and `insert_tasks` in `db/insert.py` has the statements. A failed send has a code, and then no task was stored: `send`
returns the error as `Err` and logs it, `delay` raises `SendError`, and so does everything with a `conn`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from difflib import get_close_matches
from functools import update_wrapper
from typing import Any, Generic, Never, ParamSpec, TypeVar, cast, overload
from uuid import UUID

import msgspec
from msgspec import UNSET

from horsies.client import Broker
from horsies.db.foreign_connections import ACCEPTED, async_fetcher, fetcher
from horsies.db.insert import insert_and_notify, run_plan, run_plan_async
from horsies.db.queries.tasks import NewTask
from horsies.durations import Duration
from horsies.enqueue import (
    INSERT_ERRORS,
    Arguments,
    Inserted,
    InvalidSend,
    ScheduleDelay,
    SendRequest,
    TaskDefinition,
    TaskSendOptions,
    add_headers,
    insert_error,
    log_failed_send,
    transaction_error,
)
from horsies.errors import ErrorCode, TaskDefinitionError
from horsies.event_loop import run_async, run_sync
from horsies.handle import TaskHandle
from horsies.middleware import observe_send
from horsies.outcomes import checked_result, error_of
from horsies.result import Err, Ok, TaskError, TaskResult, TaskSendError, TaskSendResult
from horsies.retry import RetryPolicy
from horsies.status import TaskSendErrorCode
from horsies.workflow.nodes import AnyNode, Join, NodeBuilder, TaskNode, node_of

P = ParamSpec("P")
A = TypeVar("A")
T = TypeVar("T")

Call = Mapping[str, Any] | tuple[Any, ...]


class Sender(Generic[P, T]):
    """One task with the options of a send."""

    def __init__(self, definition: TaskDefinition, options: TaskSendOptions, broker: Broker) -> None:
        self._request = SendRequest(definition, options, broker)
        self._broker = broker

    @property
    def definition(self) -> TaskDefinition:
        """Return the function and the options of the task."""
        return self._request.task

    def rows_to_call(self, calls: Iterable[Arguments]) -> list[NewTask]:
        """Return the rows of tasks that another task calls, with the headers of the middleware; raise `SendError`.

        A task that is called always runs, so it has no unique key.
        """
        request = self._request
        try:
            rows = request.rows(calls)
        except InvalidSend as error:
            failed: TaskSendResult[Never] = Err(error.as_send_error())
            failed.unwrap()
        with observe_send(
            self._broker.middleware, request.task.name, request.queue_name, [row.id for row in rows]
        ) as sent:
            return [
                msgspec.structs.replace(row, unique_key=None, on_conflict=None)
                for row in add_headers(rows, sent.headers)
            ]

    @property
    def broker(self) -> Broker:
        """Return the broker that stores the tasks."""
        return self._broker

    def send(self, *args: P.args, **kwargs: P.kwargs) -> TaskSendResult[TaskHandle[T]]:
        """Store the task, to run as soon as a worker is free. Return its handle as `Ok`, or the error as `Err`.

        With a `conn`, an error is raised as `SendError` instead.

        >>> match add.send(2, 3):
        ...     case Ok(handle): print(handle.get())
        ...     case Err(error): print(error.code, error.message)
        """
        return self._reported(self._send([(args, kwargs)])).map(self._first_handle)

    async def send_async(self, *args: P.args, **kwargs: P.kwargs) -> TaskSendResult[TaskHandle[T]]:
        """Do the same as `send`, without blocking the running loop."""
        return self._reported(await self._send_async([(args, kwargs)])).map(self._first_handle)

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]:
        """Store the task, to run as soon as a worker is free. Return its handle, or raise `SendError`.

        >>> handle = add.delay(2, 3)
        >>> handle.result(timeout=10)
        5
        """
        return self._first_handle(self._send([(args, kwargs)]).unwrap())

    async def delay_async(self, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]:
        """Do the same as `delay`, without blocking the running loop."""
        return self._first_handle((await self._send_async([(args, kwargs)])).unwrap())

    def schedule(
        self, delay_seconds: int | timedelta, *args: P.args, **kwargs: P.kwargs
    ) -> TaskSendResult[TaskHandle[T]]:
        """Store the task, to run after a delay in seconds, or a timedelta.

        >>> add.schedule(60, 2, 3)
        """
        return self._reported(self._send([(args, kwargs)], delay_seconds)).map(self._first_handle)

    async def schedule_async(
        self, delay_seconds: int | timedelta, *args: P.args, **kwargs: P.kwargs
    ) -> TaskSendResult[TaskHandle[T]]:
        """Do the same as `schedule`, without blocking the running loop."""
        inserted = await self._send_async([(args, kwargs)], delay_seconds)
        return self._reported(inserted).map(self._first_handle)

    def send_many(self, calls: Iterable[Call]) -> TaskSendResult[list[TaskHandle[T]]]:
        """Store many tasks in a few round trips, all or none; pass each call's arguments as a dict or a tuple.

        >>> add.send_many([(1, 2), {"x": 3, "y": 4}])
        """
        return self._reported(self._send_all(calls)).map(self._handles)

    async def send_many_async(self, calls: Iterable[Call]) -> TaskSendResult[list[TaskHandle[T]]]:
        """Do the same as `send_many`, without blocking the running loop."""
        return self._reported(await self._send_async(self._arguments(calls), first=0)).map(self._handles)

    def _reported(self, inserted: Inserted) -> Inserted:
        """Log the error of a failed send; raise it if the caller's transaction would commit without the task."""
        if isinstance(inserted, Ok):
            return inserted
        if self._request.options.conn is not None:
            inserted.unwrap()
        log_failed_send(self._request.task.name, inserted.err_value, bool(self._broker.config.redact))
        return inserted

    def _send_all(self, calls: Iterable[Call]) -> Inserted:
        if not _are_calls(calls):
            return self._send(self._arguments(calls), first=0)
        given = list(calls)
        if not self._request.is_bulk(len(given)):
            return self._send(self._arguments(given), first=0)
        try:
            # Encoded and sent batch by batch; an invalid call in a later batch rolls back the earlier ones.
            ids = self._broker.copy(self._request.batches(self._arguments(given)))
        except InvalidSend as error:
            return Err(error.as_send_error())
        except INSERT_ERRORS as error:
            return Err(insert_error(error, []))
        if self._broker.inline is not None:
            self._broker.inline.run()
        return Ok(ids)

    def _arguments(self, calls: Iterable[Call]) -> Iterable[Arguments]:
        if not _are_calls(calls):
            raise InvalidSend(f"send_many takes a list of calls, not a {type(calls).__name__}")
        for index, call in enumerate(calls):
            if isinstance(call, Mapping):
                yield (), call
            elif isinstance(cast(object, call), tuple):
                yield call, {}
            else:
                # Redaction works by argument names, and this value has none: with redaction on, do not quote it.
                shown = f"a {type(call).__name__}" if self._broker.config.redact else repr(call)
                raise InvalidSend(
                    f"call {index} of send_many is {shown}; "
                    "pass its arguments as a dict by name or as a tuple by position, such as (1,)"
                )

    def _send(
        self, calls: Iterable[Arguments], delay: ScheduleDelay = UNSET, first: int | None = None
    ) -> Inserted:
        request = self._request
        try:
            rows = request.rows(calls, delay, first)
        except InvalidSend as error:
            return Err(error.as_send_error())
        ids = [row.id for row in rows]
        with observe_send(self._broker.middleware, request.task.name, request.queue_name, ids) as sent:
            inserted = self._insert(add_headers(rows, sent.headers))
            sent.failure = inserted.err_value.code if isinstance(inserted, Err) else None
        # The caller's own transaction may still be rolled back, so nothing of it runs inline.
        if self._broker.inline is not None and request.options.conn is None and isinstance(inserted, Ok):
            self._broker.inline.run()
        return inserted

    async def _send_async(
        self, calls: Iterable[Arguments], delay: ScheduleDelay = UNSET, first: int | None = None
    ) -> Inserted:
        request = self._request
        try:
            rows = request.rows(calls, delay, first)
        except InvalidSend as error:
            return Err(error.as_send_error())
        ids = [row.id for row in rows]
        with observe_send(self._broker.middleware, request.task.name, request.queue_name, ids) as sent:
            inserted = await self._insert_async(add_headers(rows, sent.headers))
            sent.failure = inserted.err_value.code if isinstance(inserted, Err) else None
        if self._broker.inline is not None and request.options.conn is None and isinstance(inserted, Ok):
            await self._broker.inline.run_async()
        return inserted

    def _insert(self, rows: list[NewTask]) -> Inserted:
        connection = self._request.options.conn
        if connection is None:
            try:
                return Ok(self._broker.insert(rows))
            except INSERT_ERRORS as error:
                return Err(insert_error(error, rows))
        fetch = fetcher(connection, self._broker.schema)
        if fetch is None:
            return Err(_wrong_connection(connection, "send_async" if async_fetcher(connection) else None))
        try:
            return Ok(run_plan(insert_and_notify(rows), fetch))
        except Exception as error:  # noqa: BLE001  any driver's error; it is the caller's transaction that failed
            return Err(transaction_error(error))

    async def _insert_async(self, rows: list[NewTask]) -> Inserted:
        connection = self._request.options.conn
        if connection is None:
            try:
                return Ok(await self._broker.insert_from_any_loop(rows))
            except INSERT_ERRORS as error:
                return Err(insert_error(error, rows))
        fetch = async_fetcher(connection, self._broker.schema)
        if fetch is None:
            return Err(_wrong_connection(connection, "send" if fetcher(connection) else None))
        try:
            return Ok(await run_plan_async(insert_and_notify(rows), fetch))
        except Exception as error:  # noqa: BLE001  any driver's error; it is the caller's transaction that failed
            return Err(transaction_error(error))

    def _first_handle(self, ids: list[UUID]) -> TaskHandle[T]:
        return self._handles(ids)[0]

    def _handles(self, ids: list[UUID]) -> list[TaskHandle[T]]:
        task, broker = self._request.task, self._broker
        value_type = task.signature.value_type
        handle: type[TaskHandle[T]] = TaskHandle  # calling TaskHandle[T] would take longer than all of this
        return [handle(str(task_id), broker, value_type, task.name) for task_id in ids]


# What other task queues call an option, and what it is called here; the first one that exists is suggested.
_OTHER_NAMES = {
    "retries": ("retry_policy",),
    "max_retries": ("retry_policy",),
    "retry": ("retry_policy",),
    "autoretry_for": ("retry_on",),
    "queue": ("queue_name",),
    "name": ("task_name",),
    "time_limit": ("timeout", "timeout_ms"),
    "timeout": ("timeout_ms",),
    "countdown": ("delay", "delay_seconds"),
    "delay": ("delay_seconds",),
    "expires": ("good_until",),
    "connection": ("conn",),
    "session": ("conn",),
}


def known_options(function: Callable[..., Any]) -> list[str]:
    """Return the names of the keyword-only options of a function."""
    return list(cast("dict[str, Any]", cast(Any, function).__kwdefaults__))


def unknown_option(owner: str, option: str, known: Sequence[str]) -> TaskDefinitionError:
    """Return the error for an option that does not exist, with the one that was probably meant.

    >>> unknown_option("task 'add'", "prioritty", ["priority"]).help_text
    "did you mean 'priority'? The options are: priority"
    """
    close = [name for name in _OTHER_NAMES.get(option, ()) if name in known]
    close += get_close_matches(option, known, 1, cutoff=0.5)
    meant = f"did you mean {close[0]!r}? " if close else ""
    return TaskDefinitionError(
        f"{owner} has the unknown option {option!r}",
        code=ErrorCode.TASK_INVALID_OPTIONS,
        help_text=f"{meant}The options are: {', '.join(known)}",
    )


class BaseTask(Sender[P, T]):
    """The common part of all tasks."""

    # The app that has registered the task: a `TaskRegistry`, which is declared above this module.
    registry: Any

    def __init__(self, definition: TaskDefinition, broker: Broker) -> None:
        super().__init__(definition, TaskSendOptions(), broker)
        self.name = definition.name
        update_wrapper(cast(Any, self), definition.fn, updated=())

    def __repr__(self) -> str:
        return f"<task {self.name!r}>"

    def with_options(
        self,
        *,
        good_until: datetime | None = None,
        idempotency_key: str | None = None,
        priority: int | None = None,
        queue_name: str | None = None,
        eta: datetime | None = None,
        delay_seconds: Duration | None = None,
        tags: Sequence[str] | None = None,
        timeout_ms: int | timedelta | None = None,
        conn: Any = None,
        delay: Duration | None = None,
        timeout: Duration | None = None,
        key: str | int | None = None,
        **unknown: Never,
    ) -> Sender[P, T]:
        """Return the same task with options for one send.

        `delay` (before the start) and `timeout` (of a run) are seconds or timedeltas. `key` replaces the key of the task.

        `conn` is a connection or session of your own: the task is stored if and only if its transaction commits.

        >>> add.with_options(priority=1, good_until=datetime.now(UTC) + timedelta(hours=1)).send(2, 3)
        """
        for option in unknown:
            raise unknown_option(f"a send of task {self.name!r}", option, known_options(self.with_options))
        options = TaskSendOptions(
            good_until=good_until,
            idempotency_key=idempotency_key,
            priority=priority,
            queue_name=queue_name,
            eta=eta,
            delay_seconds=delay_seconds,
            tags=tags,
            timeout_ms=timeout_ms,
            conn=conn,
            delay=delay,
            timeout=timeout,
            key=key,
        )
        return Sender(self.definition, options, self._broker)

    def _raised(self, error: Exception) -> TaskResult[T, TaskError]:
        """Return the error result of a function that raised here."""
        failure, _ = error_of(self.definition, self._broker.config, error)
        return TaskResult(err=failure)

    def gives(self) -> type[T]:
        """Return the type of the value that the task returns on success."""
        return self.definition.signature.value_type

    @overload
    def node(
        self,
        *,
        waits_for: Sequence[AnyNode] = (),
        args_from: Mapping[str, AnyNode] | None = None,
        workflow_ctx_from: Sequence[AnyNode] | None = None,
        queue: str | None = None,
        priority: int | None = None,
        allow_failed_deps: bool = False,
        join: Join = "all",
        min_success: int | None = None,
        good_until: datetime | None = None,
        timeout_ms: int | timedelta | None = None,
        timeout: Duration | None = None,
        retry_policy: RetryPolicy | None = None,
        node_id: str | None = None,
        task_key: str | int | None = None,
    ) -> NodeBuilder[P, T]: ...
    @overload
    def node(self, *args: P.args, **kwargs: P.kwargs) -> TaskNode[T]: ...
    def node(self, *args: Any, **kwargs: Any) -> TaskNode[T]:
        """Return a workflow node that runs this task. Pass the arguments of the task, or options and then the arguments.

        >>> fetch = fetch_page.node("https://example.org")
        >>> parse = parse_page.node(node_id="parse", priority=1)(page=from_node(fetch))
        """
        return node_of(self, args, kwargs)

    def retry_send(self, error: TaskSendError) -> TaskSendResult[TaskHandle[T]]:
        """Send again what `send` could not store; if it was stored after all, return a handle to that task.

        >>> result = add.send(2, 3)
        >>> if is_err(result) and result.err_value.retryable:
        ...     result = add.retry_send(result.err_value)
        """
        return run_sync(self._send_again(error, scheduled=False))

    async def retry_send_async(self, error: TaskSendError) -> TaskSendResult[TaskHandle[T]]:
        """Do the same as `retry_send`, without blocking the running loop."""
        return await run_async(self._send_again(error, scheduled=False))

    def retry_schedule(self, error: TaskSendError) -> TaskSendResult[TaskHandle[T]]:
        """Send again what `schedule` could not store."""
        return run_sync(self._send_again(error, scheduled=True))

    async def retry_schedule_async(self, error: TaskSendError) -> TaskSendResult[TaskHandle[T]]:
        """Do the same as `retry_schedule`, without blocking the running loop."""
        return await run_async(self._send_again(error, scheduled=True))

    async def _send_again(self, error: TaskSendError, *, scheduled: bool) -> TaskSendResult[TaskHandle[T]]:
        try:
            row = self._row_of(error, scheduled=scheduled)
        except InvalidSend as invalid:
            return self._reported(Err(invalid.as_send_error())).map(self._first_handle)
        try:
            ids = await self._broker.insert_async([row], again=True)
        except INSERT_ERRORS as failure:
            return self._reported(Err(insert_error(failure, [row]))).map(self._first_handle)
        return Ok(self._first_handle(ids))

    def _row_of(self, error: TaskSendError, *, scheduled: bool) -> NewTask:
        """Return the row of a failed send; raise InvalidSend unless this task and method may send it again."""
        payload = error.payload
        if error.code is not TaskSendErrorCode.ENQUEUE_FAILED:
            raise InvalidSend(f"only a send that failed with ENQUEUE_FAILED can be retried, not {error.code}")
        if payload is None:
            raise InvalidSend("only a send of one task, in no transaction of your own, can be retried")
        if payload.task_name != self.name:
            raise InvalidSend(f"the failed send was of task {payload.task_name!r}, not {self.name!r}")
        if scheduled != (payload.enqueue_delay_seconds is not None):
            method = "retry_schedule" if not scheduled else "retry_send"
            raise InvalidSend(f"the failed send was of the other kind; use {method}")
        return msgspec.json.decode(payload.row, type=list[NewTask])[0]


class PlainTask(BaseTask[P, T]):
    """A task made of a function that returns a plain value. Calling it runs the function here, without the queue.

    >>> add(2, 3)
    5
    """

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.definition.fn(*args, **kwargs)


class AsyncPlainTask(BaseTask[P, T]):
    """A task made of an `async def` function that returns a plain value. Awaiting a call runs the function here.

    >>> await fetch("https://example.org")
    200
    """

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return self.definition.fn(*args, **kwargs)


class Task(BaseTask[P, T]):
    """A task made of a function that returns a `TaskResult`. Calling it runs the function here, without the queue.

    An exception, None and a value of the wrong type become the error result that a worker would store. A call with the wrong
    arguments raises TypeError.

    >>> add(2, 3)
    TaskResult(ok=5)
    """

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> TaskResult[T, TaskError]:
        try:
            returned = self.definition.fn(*args, **kwargs)
        except Exception as error:
            if isinstance(error, TypeError) and _is_of_this_call(error):
                raise
            return self._raised(error)
        return checked_result(self.definition, returned)


class AsyncTask(BaseTask[P, T]):
    """A task made of an `async def` function that returns a `TaskResult`. Awaiting a call runs the function here.

    Exceptions and wrong values become error results, as for a `Task`.
    """

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, TaskResult[T, TaskError]]:
        return self._awaited(self.definition.fn(*args, **kwargs))

    async def _awaited(self, running: Awaitable[Any]) -> TaskResult[T, TaskError]:
        try:
            returned = await running
        except Exception as error:  # noqa: BLE001  whatever the function raises is the error of the task
            return self._raised(error)
        return checked_result(self.definition, returned)


class BatchTask(BaseTask[[A], T], Generic[A, T]):
    """A task whose function takes a list of members and returns a list of their results. A worker calls it for many sends.

    Each send has one member, and its handle gives the result of that member. Calling the task runs the function here, with a
    list, without the queue.

    >>> handles = index.send_many([(doc,) for doc in docs]).unwrap()
    >>> index(docs)
    [1, 2, 3]
    """

    def __call__(self, members: list[A], /) -> Any:
        return self.definition.fn(members)


def _is_of_this_call(error: BaseException) -> bool:
    """Return True if the exception was raised by the call itself, and not by code of the called function."""
    return error.__traceback__ is not None and error.__traceback__.tb_next is None


def _are_calls(calls: object) -> bool:
    """Return True for anything to iterate over but a text or a single call by name."""
    return isinstance(calls, Iterable) and not isinstance(calls, str | bytes | Mapping)


def _wrong_connection(connection: object, method: str | None) -> TaskSendError:
    kind = type(connection).__name__
    if method is not None:
        return InvalidSend(f"conn is a {kind}, which needs {method}(…) instead").as_send_error()
    return InvalidSend(f"conn is a {kind}; pass {ACCEPTED}").as_send_error()
