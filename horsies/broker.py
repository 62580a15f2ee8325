"""What producers ask of the database: store tasks, wait for their ends, tell about them.

A broker lives on the portal's loop. It opens nothing until it is used, and after a fork the child's broker opens
connections of its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from random import random
from typing import Any, Protocol, TypeVar
from uuid import UUID

import psycopg

from horsies import embedded
from horsies.config import AppConfig, PostgresConfig, database_url_from
from horsies.context import Watcher
from horsies.portal import portal, run_async, run_sync
from horsies.retry import backoff
from horsies.status import TASK_TERMINAL_STATES, WORKFLOW_TERMINAL_STATES, WorkflowStatus
from horsies.storage import bulk, cancelling, notes, tasks, workflows
from horsies.storage.cancelling import Cancellation
from horsies.storage.database import TRANSIENT, Connection, Database, explain, is_refused
from horsies.storage.direct import DirectDatabase
from horsies.storage.migrate import migrate
from horsies.storage.notes import TaskLogLine, TaskProgress
from horsies.storage.store import ROWS_PER_STATEMENT, Rows, Values, carry_out, carry_out_async, store
from horsies.storage.tasks import NewTask, Seen
from horsies.storage.waiters import Waiters
from horsies.storage.workflows import FlowSeen

logger = logging.getLogger("horsies.broker")

T = TypeVar("T")

RESENDS = 3


class Inline(Protocol):
    """Runs what was sent, at once and here; a test may want that."""

    def run(self) -> None: ...
    async def run_async(self) -> None: ...


def resolve(config: AppConfig) -> PostgresConfig:
    """The database to use: the configured one, the environment's, or a server of our own. May take a second."""
    if config.broker is not None:
        return config.broker
    url = database_url_from(os.environ)
    if url is None:
        url = embedded.ensure(announce=logger.warning).url
    return PostgresConfig(database_url=url)


class Broker:
    """A producer's side of the database.

    >>> broker = app.get_broker()
    >>> await broker.ensure_schema_initialized()
    """

    def __init__(self, config: AppConfig, *, run_schema_migrations: bool = True) -> None:
        self.config = config
        self.sends_suppressed = False
        self.watchers: list[Watcher] = []
        self.inline: Inline | None = None
        self._run_schema_migrations = run_schema_migrations
        self._opening: tuple[int, asyncio.Task[_Session]] | None = None
        self._resolved: PostgresConfig | None = None

    async def ensure_schema_initialized(self) -> int:
        """Create or upgrade the schema; harmless when it is there. Gives back how many migrations were applied."""
        return await run_async(self._migrate())

    migrate = ensure_schema_initialized

    async def open_async(self) -> None:
        """Connect now instead of on first use, so that what is wrong with the database is known at once.

        >>> await app.get_broker().open_async()
        """
        await run_async(self._try_out())

    async def close_async(self) -> None:
        """Close this process's connections; the next call opens new ones."""
        await run_async(self._close())

    async def move_to(self, postgres: PostgresConfig | None) -> None:
        """Close this process's connections and use another database from now on; None: the one that is configured."""
        await run_async(self._close())
        self._resolved = postgres

    async def postgres(self) -> PostgresConfig:
        """Where the database is, found out once."""
        if self._resolved is None:
            self._resolved = await asyncio.to_thread(resolve, self.config)
        return self._resolved

    async def send(self, rows: Sequence[NewTask], *, again: bool = False) -> list[UUID]:
        """Store tasks, all or none; gives the id for each row, its own or that of the task that holds its key.

        With `again` the rows may have been stored before, by a send whose reply was lost.
        """
        tries = RESENDS if self.config.resend_on_transient_err else 0
        attempt = int(again)
        while True:
            try:
                return await self._send(rows, again=attempt > 0)
            except TRANSIENT as error:
                if attempt >= tries or is_refused(error):
                    raise
                logger.warning("send failed (%s), trying again", type(error).__name__)
            await asyncio.sleep(backoff(attempt, 200, 2_000, random()))
            attempt += 1

    def send_here(self, rows: Sequence[NewTask]) -> list[UUID]:
        """As `send`, in the calling thread; only a repeated send goes through the portal."""
        if len(rows) > ROWS_PER_STATEMENT and bulk.fits(rows[0]):
            return self.copy_here(bulk.batches(rows))
        try:
            with self._session_here().direct.connection() as connection:

                def fetch(sql: bytes, values: Values) -> Rows:
                    return connection.execute(sql, values).fetchall()

                with connection.transaction() if len(rows) > ROWS_PER_STATEMENT else nullcontext():
                    return carry_out(store(rows), fetch)
        except TRANSIENT as error:
            if not self.config.resend_on_transient_err or is_refused(error):
                raise
            return run_sync(self.send(rows, again=True))

    def copy_here(self, batches: Iterable[Sequence[NewTask]]) -> list[UUID]:
        """As `send_here`, for many tasks that fit `bulk`; the last may be made while the first are on their way."""
        rows: list[NewTask] = []
        remaining = iter(batches)
        try:
            with (
                self._session_here().direct.connection() as connection,
                connection.cursor() as cursor,
                cursor.copy(bulk.COPY) as copy,
            ):
                for batch in remaining:
                    rows += batch
                    copy.write(bulk.lines(batch))
        except TRANSIENT as error:
            if not self.config.resend_on_transient_err or is_refused(error):
                raise
            for batch in remaining:
                rows += batch
            return run_sync(self.send(rows, again=True))
        return [row.id for row in rows]

    def _session_here(self) -> _Session:
        opening = self._opening
        if opening is not None and opening[0] == os.getpid() and opening[1].done():
            return opening[1].result()
        return run_sync(self._opened())

    async def _send(self, rows: Sequence[NewTask], *, again: bool) -> list[UUID]:
        async with self.connection() as connection:

            async def fetch(sql: bytes, values: Values) -> Rows:
                return await (await connection.execute(sql, values)).fetchall()

            if not again and len(rows) <= ROWS_PER_STATEMENT:
                return await carry_out_async(store(rows), fetch)
            ids = [row.id for row in rows]
            if not again and bulk.fits(rows[0]):
                async with connection.cursor() as cursor, cursor.copy(bulk.COPY) as copy:
                    for batch in bulk.batches(rows):
                        await copy.write(bulk.lines(batch))
                return ids
            # Of a connection that is lost while it rolls back, which is as good, the wish to do so comes out again.
            with suppress(psycopg.Rollback):
                async with connection.transaction() as transaction:
                    ids = await carry_out_async(store(rows), fetch)
                    # A task that ended while its send was repeated has left the live rows: its id was free again.
                    if again and await tasks.finished(connection, [row.id for row in rows]):
                        raise psycopg.Rollback(transaction)
            return ids

    async def watch(self, task_id: UUID, seconds: float | None) -> Seen | None:
        """Wait until a task has ended; TimeoutError when it has not in time, None when there is no such task."""
        session = await self._opened()
        return await session.waiters.wait(task_id, seconds)

    async def watch_workflow(self, workflow_id: UUID, seconds: float | None) -> FlowSeen | None:
        """The same for a workflow, until it has ended or stands still."""
        session = await self._opened()
        return await session.flows.wait(workflow_id, seconds)

    async def look(self, task_id: UUID) -> Seen | None:
        async with self.connection() as connection:
            return next(iter(await tasks.look(connection, [task_id])), None)

    async def info(
        self, task_id: UUID, *, with_attempts: bool
    ) -> tuple[tuple[Any, ...] | None, list[tuple[Any, ...]] | None]:
        """The row of a task, and its attempts if they are wanted."""
        async with self.connection() as connection:
            row = await tasks.info(connection, task_id)
            return row, await tasks.attempts(connection, task_id) if with_attempts else None

    async def cancel(self, task_id: UUID) -> Cancellation | None:
        """Cancel a task; None when there is none of that id."""
        async with self.connection() as connection:
            return next(iter(await cancelling.cancel(connection, [task_id])), None)

    async def progress(self, task_id: UUID) -> TaskProgress | None:
        async with self.connection() as connection:
            return await notes.progress(connection, task_id)

    async def log_lines(self, task_id: UUID) -> list[TaskLogLine]:
        async with self.connection() as connection:
            return await notes.log_lines(connection, task_id)

    async def transact(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Carry something out in a transaction of its own."""
        async with self.connection() as connection, connection.transaction():
            return await work(connection)

    async def _migrate(self) -> int:
        config = await self.postgres()
        try:
            return await migrate(config)
        except TRANSIENT as error:
            raise explain(error, config) from error

    async def _try_out(self) -> None:
        try:
            async with self.connection():
                pass
        except TRANSIENT as error:
            raise explain(error, await self.postgres()) from error

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Connection]:
        """Borrow a connection; for code on the portal's loop."""
        session = await self._opened()
        async with session.database.connection() as connection:
            yield connection

    async def _opened(self) -> _Session:
        """The session of this process; whoever comes first opens it, the others wait for that."""
        pid = os.getpid()
        if self._opening is None or self._opening[0] != pid:
            self._opening = pid, asyncio.create_task(self._open())
            self._opening[1].add_done_callback(self._forget_failure)
        return await asyncio.shield(self._opening[1])

    def _forget_failure(self, opening: asyncio.Task[_Session]) -> None:
        """When opening failed the next call tries again, even if nobody was left to see it fail."""
        failed = opening.cancelled() or opening.exception() is not None
        if failed and self._opening is not None and self._opening[1] is opening:
            self._opening = None

    async def _open(self) -> _Session:
        config = await self.postgres()
        if self._run_schema_migrations:
            await migrate(config)
        session = _Session(config)
        portal().on_close(session.close)
        return session

    async def _close(self) -> None:
        if self._opening is not None and self._opening[0] == os.getpid():
            session = await self._opening[1]
            self._opening = None
            await session.close()


class _Session:
    """The connections of one process."""

    def __init__(self, config: PostgresConfig) -> None:
        self.database = Database(config, "horsies-producer")
        self.waiters = Waiters(self.database, "task_done", tasks.watch, TASK_TERMINAL_STATES)
        self.flows = Waiters(
            self.database,
            "workflow_done",
            workflows.watch,
            WORKFLOW_TERMINAL_STATES | {WorkflowStatus.PAUSED},
        )
        self.direct = DirectDatabase(config, "horsies-producer")

    async def close(self) -> None:
        self.direct.close()
        await self.waiters.close()
        await self.flows.close()
        await self.database.close()
