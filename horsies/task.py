"""A task: a function that can be called here or sent to run elsewhere.

Sending never raises: what can go wrong comes back as `Err` with a code, before or instead of a row.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, ParamSpec, TypeVar, cast

from horsies.broker import Broker
from horsies.context import is_followed
from horsies.handle import TaskHandle
from horsies.portal import run_async, run_sync
from horsies.results import Err, Ok, Result, TaskError, TaskResult, TaskSendError, TaskSendResult
from horsies.retry import RetryPolicy
from horsies.sending import (
    Envelope,
    Refused,
    Stored,
    TaskDefinition,
    TaskSendOptions,
    announced,
    carrying,
    check_delay,
    copy_here,
    failed_in_transaction,
    noted,
    refused,
    row_of,
    store,
    store_here,
)
from horsies.status import TaskSendErrorCode
from horsies.storage.store import carry_out, carry_out_async, store_and_wake
from horsies.storage.tasks import NewTask
from horsies.storage.transactional import ACCEPTED, async_fetcher, fetcher
from horsies.workflow.nodes import AnyNode, Join, NodeBuilder

P = ParamSpec("P")
T = TypeVar("T")

Call = Mapping[str, Any] | tuple[Any, ...]


class Sender(Generic[P, T]):
    """Sends one task with given options."""

    def __init__(self, definition: TaskDefinition, options: TaskSendOptions, broker: Broker) -> None:
        self._envelope = Envelope(definition, options, broker)
        self._broker = broker

    def send(self, *args: P.args, **kwargs: P.kwargs) -> TaskSendResult[TaskHandle[T]]:
        """Store the task, to run as soon as a worker is free.

        >>> match add.send(2, 3):
        ...     case Ok(handle): print(handle.get())
        ...     case Err(error): print(error.code, error.message)
        """
        return self._rows([(args, kwargs)]).and_then(self._send).map(self._first)

    async def send_async(self, *args: P.args, **kwargs: P.kwargs) -> TaskSendResult[TaskHandle[T]]:
        """As `send`, without blocking the running loop."""
        return (await self._send_async(self._rows([(args, kwargs)]))).map(self._first)

    def schedule(
        self, delay_seconds: int, *args: P.args, **kwargs: P.kwargs
    ) -> TaskSendResult[TaskHandle[T]]:
        """Store the task, to run after a delay.

        >>> add.schedule(60, 2, 3)
        """
        return (
            self._rows([(args, kwargs)], delay_seconds, scheduled=True).and_then(self._send).map(self._first)
        )

    async def schedule_async(
        self, delay_seconds: int, *args: P.args, **kwargs: P.kwargs
    ) -> TaskSendResult[TaskHandle[T]]:
        """As `schedule`, without blocking the running loop."""
        return (await self._send_async(self._rows([(args, kwargs)], delay_seconds, scheduled=True))).map(
            self._first
        )

    def send_many(self, calls: Iterable[Call]) -> TaskSendResult[list[TaskHandle[T]]]:
        """Store many tasks in a few round trips, all or none; a call is its arguments by name or by position.

        >>> add.send_many([(1, 2), {"x": 3, "y": 4}])
        """
        given = list(calls)
        if self._envelope.is_bulk(len(given)):
            stored = copy_here(self._broker, self._envelope.batches(_unpacked(given)))
            return self._then_run(stored).map(self._handles)
        return self._rows(_unpacked(given)).and_then(self._send).map(self._handles)

    async def send_many_async(self, calls: Iterable[Call]) -> TaskSendResult[list[TaskHandle[T]]]:
        """As `send_many`, without blocking the running loop."""
        return (await self._send_async(self._rows(_unpacked(calls)))).map(self._handles)

    def _rows(
        self,
        calls: Iterable[tuple[tuple[Any, ...], Mapping[str, Any]]],
        delay_seconds: int | None = None,
        *,
        scheduled: bool = False,
    ) -> Result[list[NewTask], TaskSendError]:
        try:
            if scheduled:
                check_delay(delay_seconds)
            return Ok(self._envelope.rows(calls, delay_seconds))
        except Refused as refusal:
            return Err(refused(refusal))

    @property
    def broker(self) -> Broker:
        """Through which it is sent."""
        return self._broker

    def _send(self, rows: list[NewTask]) -> Stored:
        return self._then_run(self._store(rows))

    def _then_run(self, stored: Stored) -> Stored:
        """Where a test has tasks run as they are sent, run them. What its transaction may yet undo has to wait."""
        inline = self._broker.inline
        if inline is not None and isinstance(stored, Ok) and self._envelope.options.conn is None:
            inline.run()
        return stored

    async def _send_async(self, prepared: Result[list[NewTask], TaskSendError]) -> Stored:
        stored, inline = await self._store_async(prepared), self._broker.inline
        if inline is not None and isinstance(stored, Ok) and self._envelope.options.conn is None:
            await inline.run_async()
        return stored

    def _store(self, rows: list[NewTask]) -> Stored:
        if not rows or not is_followed(self._broker.watchers):
            return self._put(rows)
        with announced(self._broker, rows) as sent:
            return noted(sent, self._put(carrying(sent, rows)))

    def _put(self, rows: list[NewTask]) -> Stored:
        connection = self._envelope.options.conn
        if connection is None:
            return store_here(self._broker, rows)
        fetch = fetcher(connection)
        if fetch is None:
            return Err(
                refused(_wrong_connection(connection, "send_async" if async_fetcher(connection) else None))
            )
        try:
            return Ok([str(task_id) for task_id in carry_out(store_and_wake(rows), fetch)])
        except Exception as error:  # noqa: BLE001  any driver's error; it is the caller's transaction that failed
            return Err(failed_in_transaction(error))

    async def _store_async(self, prepared: Result[list[NewTask], TaskSendError]) -> Stored:
        if isinstance(prepared, Err):
            return prepared
        rows = prepared.ok_value
        if not rows or not is_followed(self._broker.watchers):
            return await self._put_async(rows)
        with announced(self._broker, rows) as sent:
            return noted(sent, await self._put_async(carrying(sent, rows)))

    async def _put_async(self, rows: list[NewTask]) -> Stored:
        connection = self._envelope.options.conn
        if connection is None:
            return await run_async(store(self._broker, rows))
        fetch = async_fetcher(connection)
        if fetch is None:
            return Err(refused(_wrong_connection(connection, "send" if fetcher(connection) else None)))
        try:
            return Ok([str(task_id) for task_id in await carry_out_async(store_and_wake(rows), fetch)])
        except Exception as error:  # noqa: BLE001  any driver's error; it is the caller's transaction that failed
            return Err(failed_in_transaction(error))

    def _handles(self, ids: list[str]) -> list[TaskHandle[T]]:
        value_type = self._envelope.task.signature.value_type
        handle: type[TaskHandle[T]] = TaskHandle  # to call TaskHandle[T] takes longer than to make one
        return [handle(task_id, self._broker, value_type) for task_id in ids]

    def _first(self, ids: list[str]) -> TaskHandle[T]:
        return self._handles(ids)[0]


class BaseTask(Sender[P, T]):
    """What sync and async tasks have in common."""

    def __init__(self, definition: TaskDefinition, broker: Broker) -> None:
        super().__init__(definition, TaskSendOptions(), broker)
        self.definition = definition
        self.name = definition.name
        self.__doc__ = definition.fn.__doc__
        self.__name__ = getattr(definition.fn, "__name__", definition.name)
        self.__qualname__ = getattr(definition.fn, "__qualname__", definition.name)
        self.__module__ = definition.fn.__module__
        self.__wrapped__ = definition.fn

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
        delay_seconds: float | None = None,
        tags: Sequence[str] | None = None,
        timeout_ms: int | None = None,
        conn: Any = None,
    ) -> Sender[P, T]:
        """The same task with options for this send.

        `conn` is a connection or session of your own: the task exists exactly when its transaction commits.

        >>> add.with_options(priority=1, good_until=datetime.now(UTC) + timedelta(hours=1)).send(2, 3)
        """
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
        )
        return Sender(self.definition, options, self._broker)

    def gives(self) -> type[T]:
        """The type of the value that it gives on success."""
        return self.definition.signature.value_type

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
        timeout_ms: int | None = None,
        retry_policy: RetryPolicy | None = None,
        node_id: str | None = None,
    ) -> NodeBuilder[P, T]:
        """A node of a workflow that runs this task; call what you get with the task's arguments, by name.

        >>> parse = parse_page.node(node_id="parse")(page=from_node(fetch))
        """
        options = {
            "waits_for": waits_for,
            "args_from": dict(args_from or {}),
            "workflow_ctx_from": workflow_ctx_from,
            "queue": queue,
            "priority": priority,
            "allow_failed_deps": allow_failed_deps,
            "join": join,
            "min_success": min_success,
            "good_until": good_until,
            "timeout_ms": timeout_ms,
            "retry_policy": retry_policy,
            "node_id": node_id,
        }
        return NodeBuilder(self, options)

    def retry_send(self, error: TaskSendError) -> TaskSendResult[TaskHandle[T]]:
        """Send again what `send` could not store; the task is stored once, even if it was stored after all.

        >>> result = add.send(2, 3)
        >>> if is_err(result) and result.err_value.retryable:
        ...     result = add.retry_send(result.err_value)
        """
        return self._again(error, scheduled=False).and_then(self._store_again).map(self._first)

    async def retry_send_async(self, error: TaskSendError) -> TaskSendResult[TaskHandle[T]]:
        """As `retry_send`, without blocking the running loop."""
        return await self._retry_async(self._again(error, scheduled=False))

    def retry_schedule(self, error: TaskSendError) -> TaskSendResult[TaskHandle[T]]:
        """As `retry_send`, for what `schedule` could not store."""
        return self._again(error, scheduled=True).and_then(self._store_again).map(self._first)

    async def retry_schedule_async(self, error: TaskSendError) -> TaskSendResult[TaskHandle[T]]:
        """As `retry_schedule`, without blocking the running loop."""
        return await self._retry_async(self._again(error, scheduled=True))

    def _again(self, error: TaskSendError, *, scheduled: bool) -> Result[list[NewTask], TaskSendError]:
        """The row of a failed send, if it is one that may be sent again by this task and this method."""
        payload = error.payload
        if error.code is not TaskSendErrorCode.ENQUEUE_FAILED:
            return Err(
                refused(
                    Refused(f"only a send that failed with ENQUEUE_FAILED can be retried, not {error.code}")
                )
            )
        if payload is None:
            return Err(
                refused(Refused("only a send of one task, in no transaction of your own, can be retried"))
            )
        if payload.task_name != self.name:
            return Err(
                refused(Refused(f"the failed send was of task {payload.task_name!r}, not {self.name!r}"))
            )
        if scheduled != (payload.enqueue_delay_seconds is not None):
            method = "retry_schedule" if not scheduled else "retry_send"
            return Err(refused(Refused(f"the failed send was of the other kind; use {method}")))
        return Ok([row_of(payload)])

    def _store_again(self, rows: list[NewTask]) -> Stored:
        return run_sync(store(self._broker, rows, again=True))

    async def _retry_async(self, rows: Result[list[NewTask], TaskSendError]) -> TaskSendResult[TaskHandle[T]]:
        if isinstance(rows, Err):
            return rows
        return (await run_async(store(self._broker, rows.ok_value, again=True))).map(self._first)


class Task(BaseTask[P, T]):
    """A task made of a plain function. Calling it runs it here, without any queue.

    >>> add(2, 3)
    TaskResult(ok=5)
    """

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> TaskResult[T, TaskError]:
        return self.definition.fn(*args, **kwargs)


class AsyncTask(BaseTask[P, T]):
    """A task made of an `async def` function. Awaiting a call runs it here, without any queue."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Awaitable[TaskResult[T, TaskError]]:
        return self.definition.fn(*args, **kwargs)


def _unpacked(calls: Iterable[Call]) -> Iterable[tuple[tuple[Any, ...], Mapping[str, Any]]]:
    for call in calls:
        if isinstance(call, Mapping):
            yield (), call
        elif isinstance(cast(object, call), tuple):
            yield call, {}
        else:
            raise Refused(
                f"{call!r} is no call; pass its arguments as a dict by name or as a tuple by position"
            )


def _wrong_connection(connection: object, method: str | None) -> Refused:
    kind = type(connection).__name__
    if method is not None:
        return Refused(f"conn is a {kind}, which needs {method}(…) instead")
    return Refused(f"conn is a {kind}; pass {ACCEPTED}")
