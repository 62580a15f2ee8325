"""The producer's side of the database: insert tasks, wait for their results, read and cancel them.

Sync sends run in the calling thread on a connection pool of their own, because handing work to another thread costs more than
the insert. Many sends at once, and those of coroutines, gather in batches: see `db/send_batches.py`. Everything else runs on the
background loop. All callers in a process that wait for results share one listener and
one query at a time: the query marks each unfinished task as awaited, and the end of an awaited task is notified.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from datetime import timedelta
from random import random
from typing import ClassVar, Generic, NamedTuple, Protocol, TypeVar
from uuid import UUID

import psycopg
from psycopg.errors import SerializationFailure

from horsies import embedded, stale, task_info
from horsies.config import AppConfig, PostgresConfig, configured_database, database_at, schema_of
from horsies.db.connection import (
    TRANSIENT,
    Connection,
    Database,
    SyncPool,
    explain_connection_error,
    is_refused,
)
from horsies.db.insert import (
    COPY,
    ROWS_PER_STATEMENT,
    Rows,
    Values,
    can_copy,
    copy_batches,
    copy_lines,
    fetch_on,
    insert_tasks,
    run_plan,
    run_plan_async,
)
from horsies.db.listener import Listener
from horsies.db.migrations import migrate
from horsies.db.queries import tasks, workflows
from horsies.db.queries.tasks import NewTask, TaskState
from horsies.db.queries.workflows import WorkflowState
from horsies.db.send_batches import SendBatcher, can_gather
from horsies.durations import LONGEST_SECONDS, is_duration
from horsies.errors import HorsiesError, mask_passwords
from horsies.event_loop import background_loop, run_async, run_sync
from horsies.middleware import Middleware
from horsies.result import BrokerOperationError, BrokerResult, Err, Ok, TaskInfo
from horsies.retry import backoff
from horsies.status import TASK_TERMINAL_STATES, WORKFLOW_TERMINAL_STATES, BrokerErrorCode, WorkflowStatus

logger = logging.getLogger("horsies.client")

T = TypeVar("T")

RESENDS = 3
POLL_SECONDS = 5.0
# While the listener has no connection.
POLL_WITHOUT_LISTENER_SECONDS = 0.5
LOCKED_SECONDS = 0.001
# A task that was sent a moment ago is still being claimed: an immediate query would only find it unfinished.
FIRST_QUERY_SECONDS = 0.004


class Watched(Protocol):
    """The state of a task or workflow; `watched` is True if its end will be notified."""

    @property
    def id(self) -> UUID: ...
    @property
    def status(self) -> str: ...
    @property
    def watched(self) -> bool: ...


S = TypeVar("S", bound=Watched)
Watch = Callable[[Connection, Sequence[UUID]], Awaitable[list[S]]]


class Waiters(Generic[S]):
    """All callers of one event loop that wait for a task or workflow to reach a status in `final`."""

    def __init__(self, database: Database, channel: str, watch: Watch[S], final: Collection[str]) -> None:
        self._database = database
        self._watch = watch
        self._final = final
        self._waiting: dict[UUID, list[asyncio.Future[S | None]]] = {}
        self._watched: set[UUID] = set()
        self._to_query: set[UUID] = set()
        self._query_due = asyncio.Event()
        self._runner: asyncio.Task[None] | None = None
        self._listener = Listener(
            database.config,
            [channel],
            on_notify=self._on_notify,
            on_connected=lambda: self._query_again(self._waiting),
        )

    def _on_notify(self, _channel: str, payload: str) -> None:
        # Anyone in the database may notify on this channel: ignore a payload that is not an id.
        with suppress(ValueError):
            self._query_again([UUID(payload)])

    async def wait(self, task_id: UUID, seconds: float | None) -> S | None:
        """Return the state of a task or workflow once it has ended; None if the id is unknown; TimeoutError after `seconds`."""
        if self._runner is None or self._runner.done():
            self._listener.start()
            self._runner = asyncio.create_task(self._run(), name="horsies-waiters")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[S | None] = loop.create_future()
        self._waiting.setdefault(task_id, []).append(future)
        age = time.time() - (task_id.int >> 80) / 1000 if task_id.version == 7 else FIRST_QUERY_SECONDS
        delay = min(FIRST_QUERY_SECONDS, max(0.0, FIRST_QUERY_SECONDS - age))
        loop.call_later(delay, self._query_again, [task_id])
        try:
            async with asyncio.timeout(seconds):
                return await future
        finally:
            futures = self._waiting.get(task_id, [])
            if future in futures:
                futures.remove(future)
                if not futures:
                    del self._waiting[task_id]
                    self._watched.discard(task_id)

    def _query_again(self, ids: Iterable[UUID]) -> None:
        self._to_query.update(task_id for task_id in ids if task_id in self._waiting)
        if self._to_query:
            self._query_due.set()

    async def _run(self) -> None:
        failures = 0
        while True:
            await self._wait_until_query_due()
            batch = [task_id for task_id in self._to_query if task_id in self._waiting]
            self._to_query.clear()
            if not batch:
                continue
            try:
                async with self._database.connection() as connection:
                    seen = await self._watch(connection, batch)
                failures = 0
            except SerializationFailure:  # one of the tasks ended during the query
                self._query_again(batch)
            except TRANSIENT as error:
                self._fail([task_id for task_id in batch if task_id not in self._watched], error)
                await asyncio.sleep(backoff(failures, 50, 2_000, random()))
                failures += 1
                self._query_again(batch)
            except psycopg.Error as error:  # no permission, no such table: a retry would not help
                self._fail(batch, error)
            else:
                self._deliver(batch, seen)

    async def _wait_until_query_due(self) -> None:
        """Wait until some tasks are due to be queried, or until the poll interval has passed and all are."""
        pause = POLL_SECONDS if self._listener.connected.is_set() else POLL_WITHOUT_LISTENER_SECONDS
        try:
            async with asyncio.timeout(pause if self._waiting else None):
                await self._query_due.wait()
        except TimeoutError:
            self._to_query.update(self._waiting)
        self._query_due.clear()

    def _deliver(self, batch: list[UUID], seen: list[S]) -> None:
        by_id = {task.id: task for task in seen}
        locked: list[UUID] = []
        for task_id in batch:
            task = by_id.get(task_id)
            if task is None or task.status in self._final:
                # Removed before the waiters run: a notification that arrives meanwhile must not cause one more query.
                self._watched.discard(task_id)
                for future in self._waiting.pop(task_id, []):
                    if not future.done():
                        future.set_result(task)
            elif task.watched:
                self._watched.add(task_id)
            else:
                locked.append(task_id)
        if locked:
            asyncio.get_running_loop().call_later(LOCKED_SECONDS, self._query_again, locked)

    def _fail(self, ids: Iterable[UUID], error: BaseException) -> None:
        """Raise a database error in the callers that wait for these tasks."""
        for task_id in ids:
            for future in self._waiting.get(task_id, []):
                if not future.done():
                    future.set_exception(error)

    async def close(self) -> None:
        self._fail(
            self._waiting, psycopg.OperationalError("the broker was closed while the task was waited for")
        )
        await self._listener.close()
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)


class Inline(NamedTuple):
    """Run sent tasks at once and in this process; set by `horsies.testing`."""

    run: Callable[[], object]
    run_async: Callable[[], Awaitable[object]]


def resolve(config: AppConfig) -> PostgresConfig:
    """Return the database to use: the configured one, the environment's, or the project's own on the embedded server.

    To start the embedded server may take a second.
    """
    if (configured := configured_database(config)) is not None:
        return configured
    name = config.embedded_database
    assert name is not None, "a configuration without a broker names it"
    url = embedded.database_url(name, announce=logger.warning)
    logger.info("Using the database %s on the embedded PostgreSQL", name)
    return database_at(url)


class Broker:
    """The connections of an app, and what a producer does with them.

    >>> broker = app.get_broker()
    >>> await broker.ensure_schema_initialized()
    """

    # True while `load_app` imports an app: meanwhile no app of this process may send.
    app_is_loading: ClassVar[bool] = False

    def __init__(self, config: AppConfig, *, run_schema_migrations: bool = True) -> None:
        self.config = config
        self.sends_suppressed: bool = False
        self.middleware: list[Middleware] = []
        self.inline: Inline | None = None
        self._run_schema_migrations = run_schema_migrations
        self._opening: tuple[int, asyncio.Task[_Session]] | None = None
        self._resolved: PostgresConfig | None = None

    async def ensure_schema_initialized(self) -> BrokerResult[int]:
        """Create or upgrade the schema and return how many migrations were applied: 0 if it is up to date.

        >>> (await broker.ensure_schema_initialized()).unwrap()
        """
        try:
            return Ok(await self.migrate())
        except BROKER_ERRORS as error:
            return Err(_operation_error(error, BrokerErrorCode.SCHEMA_INIT_FAILED))

    async def migrate(self) -> int:
        """Do the same as `ensure_schema_initialized`; raise if that fails."""
        return await run_async(self._migrate())

    async def open_async(self) -> None:
        """Connect now instead of on first use, so that a problem with the database shows at once.

        >>> await app.get_broker().open_async()
        """
        await run_async(self._open_checked())

    def close(self) -> BrokerResult[None]:
        """Close this process's connections; the next call opens new ones.

        >>> app.get_broker().close()
        """
        try:
            return Ok(run_sync(self._close()))
        except BROKER_ERRORS as error:
            return Err(_operation_error(error, BrokerErrorCode.CLOSE_FAILED))

    async def close_async(self) -> BrokerResult[None]:
        """Do the same as `close` without blocking the event loop."""
        try:
            return Ok(await run_async(self._close()))
        except BROKER_ERRORS as error:
            return Err(_operation_error(error, BrokerErrorCode.CLOSE_FAILED))

    def get_task_info(
        self,
        task_id: str | UUID,
        *,
        include_result: bool = False,
        include_failed_reason: bool = False,
        include_attempts: bool = False,
    ) -> BrokerResult[TaskInfo | None]:
        """Return a task by its id, None if there is none; with its result, failure reason and attempts on request.

        >>> broker.get_task_info(task_id, include_result=True).unwrap().result
        """
        return run_sync(self._task_info(task_id, include_result, include_failed_reason, include_attempts))

    async def get_task_info_async(
        self,
        task_id: str | UUID,
        *,
        include_result: bool = False,
        include_failed_reason: bool = False,
        include_attempts: bool = False,
    ) -> BrokerResult[TaskInfo | None]:
        """Do the same as `get_task_info` without blocking the event loop."""
        return await run_async(
            self._task_info(task_id, include_result, include_failed_reason, include_attempts)
        )

    async def get_stale_tasks(
        self, stale_threshold_minutes: float | timedelta = 2
    ) -> BrokerResult[list[TaskInfo]]:
        """Return up to 1,000 claimed or running tasks whose worker is dead, unknown, or silent for so long.

        >>> (await broker.get_stale_tasks(stale_threshold_minutes=2)).unwrap()
        """
        seconds = _threshold("stale_threshold_minutes", stale_threshold_minutes, 60)
        code = BrokerErrorCode.TASK_INFO_QUERY_FAILED
        return await run_async(self.ask(lambda connection: task_info.read_stale(connection, seconds), code))

    async def get_expired_tasks(self) -> BrokerResult[list[TaskInfo]]:
        """Return up to 1,000 pending tasks whose `good_until` has passed; a worker will set them to EXPIRED.

        >>> [task.task_id for task in (await broker.get_expired_tasks()).unwrap()]
        """
        return await run_async(self.ask(task_info.read_overdue, BrokerErrorCode.TASK_INFO_QUERY_FAILED))

    async def mark_stale_tasks_as_failed(
        self, stale_threshold_ms: int | timedelta = 300_000
    ) -> BrokerResult[int]:
        """Fail running tasks of workers that are dead, unknown or silent for so long; return how many, 500 at most.

        Their code is `WORKER_CRASHED`, and they are not retried. Workers recover such tasks themselves, and retry them if
        their policy says so: call this if no worker runs.

        >>> (await broker.mark_stale_tasks_as_failed()).unwrap()
        """
        seconds = _threshold("stale_threshold_ms", stale_threshold_ms, 0.001)
        code = BrokerErrorCode.RECOVERY_FAILED
        return await run_async(
            self.ask(lambda connection: stale.fail_running(connection, self.config, seconds), code)
        )

    async def requeue_stale_claimed(self, stale_threshold_ms: int | timedelta = 120_000) -> BrokerResult[int]:
        """Release tasks that were claimed and never started by such workers; return how many, 500 at most.

        >>> (await broker.requeue_stale_claimed()).unwrap()
        """
        seconds = _threshold("stale_threshold_ms", stale_threshold_ms, 0.001)
        code = BrokerErrorCode.RECOVERY_FAILED
        return await run_async(
            self.ask(lambda connection: stale.requeue_claimed(connection, self.config, seconds), code)
        )

    async def move_to(self, postgres: PostgresConfig | None) -> None:
        """Close this process's connections and use another database from now on; None means the configured one."""
        await run_async(self._close())
        self._resolved = postgres

    @property
    def schema(self) -> str | None:
        """Return the schema of the tables, for statements that run on a caller's connection."""
        return schema_of(self.config) if self._resolved is None else self._resolved.schema

    async def postgres(self) -> PostgresConfig:
        """Return the database to use; it is resolved once."""
        if self._resolved is None:
            self._resolved = await asyncio.to_thread(resolve, self.config)
        return self._resolved

    def insert(self, rows: Sequence[NewTask]) -> list[UUID]:
        """Insert tasks from any thread, all or none; return the ids as `insert_tasks` does.

        A single task may share its statement with those of other threads. A retry after a lost connection runs on the
        background loop.
        """
        if len(rows) > ROWS_PER_STATEMENT and can_copy(rows[0]):
            return self.copy(copy_batches(rows))
        try:
            session = self._session_sync()
            if can_gather(rows):
                return [session.batcher.insert(rows[0])]
            with session.sync_pool.connection() as connection:

                def fetch(sql: bytes, values: Values) -> Rows:
                    return connection.execute(sql, values).fetchall()

                with connection.transaction() if len(rows) > ROWS_PER_STATEMENT else nullcontext():
                    return run_plan(insert_tasks(rows), fetch)
        except TRANSIENT as error:
            if not self.config.resend_on_transient_err or is_refused(error):
                raise
            return run_sync(self.insert_async(rows, again=True))

    def copy(self, batches: Iterable[Sequence[NewTask]]) -> list[UUID]:
        """Insert many tasks with COPY, in the calling thread; the server stores a batch while the next one is made."""
        rows: list[NewTask] = []
        remaining = iter(batches)
        try:
            with (
                self._session_sync().sync_pool.connection() as connection,
                connection.cursor() as cursor,
                cursor.copy(COPY) as copy,
            ):
                for batch in remaining:
                    rows += batch
                    copy.write(copy_lines(batch))
        except TRANSIENT as error:
            if not self.config.resend_on_transient_err or is_refused(error):
                raise
            for batch in remaining:
                rows += batch
            return run_sync(self.insert_async(rows, again=True))
        return [row.id for row in rows]

    async def insert_from_any_loop(self, rows: Sequence[NewTask]) -> list[UUID]:
        """Do the same as `insert`, from any event loop and without blocking it."""
        if not can_gather(rows):
            return await run_async(self.insert_async(rows))
        try:
            session = self._open_session() or await run_async(self._session())
            return [await session.batcher.insert_async(rows[0])]
        except TRANSIENT as error:
            if not self.config.resend_on_transient_err or is_refused(error):
                raise
            return await run_async(self.insert_async(rows, again=True))

    async def insert_async(self, rows: Sequence[NewTask], *, again: bool = False) -> list[UUID]:
        """Insert tasks, all or none, with retries if the app wants them; return the ids as `insert_tasks` does.

        This is for code on the background loop. With `again` the rows may have been stored before, by a send whose reply was lost.
        """
        tries = RESENDS if self.config.resend_on_transient_err else 0
        attempt = int(again)
        while True:
            try:
                return await self._insert_once(rows, again=attempt > 0)
            except TRANSIENT as error:
                if attempt >= tries or is_refused(error):
                    raise
                logger.warning("send failed (%s), trying again", type(error).__name__)
            await asyncio.sleep(backoff(attempt, 200, 2_000, random()))
            attempt += 1

    async def _insert_once(self, rows: Sequence[NewTask], *, again: bool) -> list[UUID]:
        async with self.connection() as connection:
            fetch = fetch_on(connection)
            if not again and len(rows) <= ROWS_PER_STATEMENT:
                return await run_plan_async(insert_tasks(rows), fetch)
            ids = [row.id for row in rows]
            if not again and can_copy(rows[0]):
                async with connection.cursor() as cursor, cursor.copy(COPY) as copy:
                    for batch in copy_batches(rows):
                        await copy.write(copy_lines(batch))
                return ids
            # psycopg raises Rollback again if the connection is lost during the rollback, which has the same effect.
            with suppress(psycopg.Rollback):
                async with connection.transaction() as transaction:
                    ids = await run_plan_async(insert_tasks(rows), fetch)
                    # A task that ended before its send was repeated is in the history, so its id could be inserted anew.
                    if again and await tasks.finished(connection, [row.id for row in rows]):
                        raise psycopg.Rollback(transaction)
            return ids

    async def watch(self, task_id: UUID, seconds: float | None) -> TaskState | None:
        """Wait until a task has ended; TimeoutError after `seconds`, None if there is no such task."""
        session = await self._session()
        return await session.task_waiters.wait(task_id, seconds)

    async def watch_workflow(self, workflow_id: UUID, seconds: float | None) -> WorkflowState | None:
        """Wait until a workflow has ended or is paused; TimeoutError after `seconds`, None if there is no such workflow."""
        session = await self._session()
        return await session.workflow_waiters.wait(workflow_id, seconds)

    async def transact(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Run `work` in a transaction of its own."""
        async with self.connection() as connection, connection.transaction():
            return await work(connection)

    async def ask(
        self, query: Callable[[Connection], Awaitable[T]], code: BrokerErrorCode
    ) -> BrokerResult[T]:
        """Return the result of a query, or an error with this code; for code on the background loop."""
        try:
            async with self.connection() as connection:
                return Ok(await query(connection))
        except BROKER_ERRORS as error:
            return Err(_operation_error(error, code))

    async def _task_info(
        self, task_id: str | UUID, with_result: bool, with_reason: bool, with_attempts: bool
    ) -> BrokerResult[TaskInfo | None]:
        known = task_info.as_uuid(task_id)
        if known is None:
            return Ok(None)
        return await self.ask(
            lambda connection: task_info.read(
                connection,
                known,
                with_result=with_result,
                with_reason=with_reason,
                with_attempts=with_attempts,
            ),
            BrokerErrorCode.TASK_INFO_QUERY_FAILED,
        )

    async def _migrate(self) -> int:
        config = await self.postgres()
        try:
            return await migrate(config)
        except TRANSIENT as error:
            raise explain_connection_error(error, config) from error

    async def _open_checked(self) -> None:
        try:
            async with self.connection():
                pass
        except TRANSIENT as error:
            raise explain_connection_error(error, await self.postgres()) from error

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Connection]:
        """Borrow a connection; for code on the background loop."""
        session = await self._session()
        async with session.database.connection() as connection:
            yield connection

    def _session_sync(self) -> _Session:
        """Return the session from any thread; a session that is open already costs no round trip to the loop."""
        return self._open_session() or run_sync(self._session())

    def _open_session(self) -> _Session | None:
        """Return the session of this process; None if it is not open yet."""
        opening = self._opening
        if opening is not None and opening[0] == os.getpid() and opening[1].done():
            return opening[1].result()
        return None

    async def _session(self) -> _Session:
        """Return the session of this process; the first caller opens it, and the others wait for that."""
        pid = os.getpid()
        if self._opening is None or self._opening[0] != pid:
            self._opening = pid, asyncio.create_task(self._open())
            self._opening[1].add_done_callback(self._forget_failure)
        return await asyncio.shield(self._opening[1])

    def _forget_failure(self, opening: asyncio.Task[_Session]) -> None:
        """Let the next call open a session after a failure, even if no caller was left to see the failure."""
        failed = opening.cancelled() or opening.exception() is not None
        if failed and self._opening is not None and self._opening[1] is opening:
            self._opening = None

    async def _open(self) -> _Session:
        config = await self.postgres()
        if self._run_schema_migrations:
            await migrate(config)
        session = _Session(config)
        background_loop().closers.append(session.close)
        return session

    async def _close(self) -> None:
        if self._opening is not None and self._opening[0] == os.getpid():
            session = await self._opening[1]
            self._opening = None
            await session.close()


# The errors of a database operation that are returned as `Err`. Any other exception is a bug in horsies and is raised.
BROKER_ERRORS = (psycopg.Error, OSError, HorsiesError)


def _operation_error(error: Exception, code: BrokerErrorCode) -> BrokerOperationError:
    return BrokerOperationError(
        code=code,
        message=mask_passwords(str(error)) or type(error).__name__,
        retryable=isinstance(error, TRANSIENT) or isinstance(error.__cause__, TRANSIENT),
        exception=error,
    )


def _threshold(name: str, value: float | timedelta, unit_seconds: float) -> float:
    """Return a threshold in seconds; raise ValueError if it is none."""
    if is_duration(value):
        seconds = value.total_seconds() if isinstance(value, timedelta) else min(value, 1e15) * unit_seconds
        if 0 <= seconds <= LONGEST_SECONDS:
            return seconds
    raise ValueError(f"{name} is {value!r}; use a number from 0, or a timedelta")


class _Session:
    """The connections and waiters of one process."""

    def __init__(self, config: PostgresConfig) -> None:
        self.database = Database(config, "horsies-producer")
        self.sync_pool = SyncPool(config, "horsies-producer")
        self.batcher = SendBatcher(self.sync_pool)
        self.task_waiters = Waiters(self.database, "task_done", tasks.watch, TASK_TERMINAL_STATES)
        self.workflow_waiters = Waiters(
            self.database,
            "workflow_done",
            workflows.watch,
            WORKFLOW_TERMINAL_STATES | {WorkflowStatus.PAUSED},
        )

    async def close(self) -> None:
        self.batcher.close()
        self.sync_pool.close()
        await self.task_waiters.close()
        await self.workflow_waiters.close()
        await self.database.close()
