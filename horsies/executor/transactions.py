"""Run a function and store its step in one transaction of the app's database.

The transaction first locks the row of the task, and goes on only if the task is still this worker's. The lock holds until the
commit, so no other worker takes the task over in between: a transaction without the claim never commits.

If the connection is lost during the commit, a new one waits until the old transaction has ended and looks for the step. So it
is known if the transaction was committed.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import psycopg
from psycopg.pq import TransactionStatus

from horsies.config import PostgresConfig
from horsies.db.connection import (
    connection_settings,
    connection_string,
    is_refused,
    open_async,
    open_sync,
)
from horsies.db.foreign_connections import ACCEPTED, async_fetcher, fetcher
from horsies.db.queries.steps import SQL

NAME = "horsies-transact"
# The states with which the server or the network ends a session.
_LOST = ("57P01", "57P02", "57P03", "08000", "08003", "08006", "25P03")
# The longest wait for a transaction whose connection was lost.
DOUBT_SECONDS = 30
# The longest wait for a server that takes connections, as during a failover. Nothing has begun yet.
CONNECT_SECONDS, RETRY_SECONDS = 30.0, 0.25
# An idle connection may be dead, or its server may have become a standby.
IS_PRIMARY = "SELECT NOT pg_is_in_recovery()"

Values = Mapping[str, str]
Work = Callable[[Any], Any]
Encode = Callable[[Any], str]
AnyConnection = psycopg.Connection[Any]
AnyAsyncConnection = psycopg.AsyncConnection[Any]


class Done(NamedTuple):
    """The end of a transaction: its value, or the encoded result if only that is known, or that the claim was lost."""

    value: Any = None
    stored: str | None = None
    is_lost: bool = False


# Sync


def transact(
    postgres: PostgresConfig, session: Callable[[], Any] | None, values: Values, work: Work, encode: Encode
) -> Done:
    """Run a function in a transaction that stores its step, on a connection of this process or in a session of the caller's."""
    try:
        if session is None:
            with _connection(postgres) as connection, connection.transaction():
                return _work_in(connection, postgres, values, work, encode)
        with session() as opened, opened.begin():
            return _work_in(opened, postgres, values, work, encode)
    except Exception as error:
        if not _may_have_committed(error):
            raise
        with suppress(psycopg.Error, OSError):
            if (stored := _look(postgres, values)) is not None:
                return Done(stored=stored)
        raise


def _work_in(opened: Any, postgres: PostgresConfig, values: Values, work: Work, encode: Encode) -> Done:
    fetch = fetcher(opened, postgres.schema)
    if fetch is None:
        raise _unknown(opened)
    if not fetch(SQL["fence"], values):
        return Done(is_lost=True)
    value = work(opened)
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise TypeError(
            "transact was given an async function in a plain task; use a plain function, or an async task"
        )
    fetch(SQL["store_in_transaction"], {**values, "result": encode(value)})
    return Done(value)


def _look(postgres: PostgresConfig, values: Values) -> str | None:
    """Return the stored result of a step after the transaction in doubt has ended."""
    with _connect(postgres) as connection, connection.transaction():
        connection.execute("SELECT set_config('lock_timeout', %s, true)", [f"{DOUBT_SECONDS}s"])
        fetch = fetcher(connection, postgres.schema)
        assert fetch is not None
        fetch(SQL["wait_for_transaction"], {"task_id": values["task_id"]})
        rows = fetch(SQL["stored"], {name: values[name] for name in ("task_id", "name")})
        return rows[0][0] if rows else None


# Idle connections of this process; a fork must not use them.
_idle: list[tuple[str, AnyConnection]] = []
_idle_async: WeakKeyDictionary[asyncio.AbstractEventLoop, list[tuple[str, AnyAsyncConnection]]] = (
    WeakKeyDictionary()
)


def _forget() -> None:
    _idle.clear()
    _idle_async.clear()


os.register_at_fork(after_in_child=_forget)


def _settings(postgres: PostgresConfig) -> tuple[str, dict[str, Any]]:
    settings = connection_settings(postgres, NAME)
    options: dict[str, Any] = {}
    if postgres.pgbouncer_transaction_mode:
        options["prepare_threshold"] = None
    return connection_string(postgres.conninfo, **settings), options


def _connect(postgres: PostgresConfig) -> AnyConnection:
    """Open a connection, however often that takes within `CONNECT_SECONDS`."""
    give_up_at = time.monotonic() + CONNECT_SECONDS
    while True:
        url, options = _settings(postgres)
        try:
            return open_sync(url, **options)
        except psycopg.OperationalError as error:
            if is_refused(error) or time.monotonic() > give_up_at:
                raise
        time.sleep(RETRY_SECONDS)


async def _connect_async(postgres: PostgresConfig) -> AnyAsyncConnection:
    """Do the same as `_connect` on the running loop."""
    give_up_at = time.monotonic() + CONNECT_SECONDS
    while True:
        url, options = _settings(postgres)
        try:
            return await open_async(url, **options)
        except psycopg.OperationalError as error:
            if is_refused(error) or time.monotonic() > give_up_at:
                raise
        await asyncio.sleep(RETRY_SECONDS)


@contextmanager
def _connection(postgres: PostgresConfig) -> Generator[AnyConnection]:
    """Borrow a connection of this process. One that the server has closed meanwhile is replaced."""
    connection: AnyConnection | None = None
    while _idle and connection is None:
        known, candidate = _idle.pop()
        try:
            if known == postgres.conninfo and candidate.execute(IS_PRIMARY).fetchone() == (True,):
                connection = candidate
        except (psycopg.Error, OSError):
            pass
        finally:
            if connection is None:
                candidate.close()
    connection = connection or _connect(postgres)
    try:
        yield connection
    finally:
        if connection.closed or connection.info.transaction_status != TransactionStatus.IDLE:
            connection.close()
        else:
            _idle.append((postgres.conninfo, connection))


# Async


async def transact_async(
    postgres: PostgresConfig,
    session: Callable[[], Any] | None,
    values: Values,
    work: Work,
    encode: Encode,
    is_async: bool,
) -> Done:
    """Do the same as `transact` on the running loop. A plain function runs in a thread, on a connection for plain functions."""
    if not is_async:
        return await asyncio.to_thread(transact, postgres, session, values, work, encode)
    try:
        if session is None:
            async with _async_connection(postgres) as connection, connection.transaction():
                return await _work_in_async(connection, postgres, values, work, encode)
        async with session() as opened, opened.begin():
            return await _work_in_async(opened, postgres, values, work, encode)
    except Exception as error:
        if not _may_have_committed(error):
            raise
        with suppress(psycopg.Error, OSError):
            if (stored := await asyncio.to_thread(_look, postgres, values)) is not None:
                return Done(stored=stored)
        raise


async def _work_in_async(
    opened: Any, postgres: PostgresConfig, values: Values, work: Work, encode: Encode
) -> Done:
    fetch = async_fetcher(opened, postgres.schema)
    if fetch is None:
        raise _unknown(opened)
    if not await fetch(SQL["fence"], values):
        return Done(is_lost=True)
    value = await work(opened)
    await fetch(SQL["store_in_transaction"], {**values, "result": encode(value)})
    return Done(value)


@asynccontextmanager
async def _async_connection(postgres: PostgresConfig) -> AsyncGenerator[AnyAsyncConnection]:
    """Borrow a connection of the running loop. One that is given back after `close_idle` is closed."""
    loop = asyncio.get_running_loop()
    idle = _idle_async.setdefault(loop, [])
    connection: AnyAsyncConnection | None = None
    while idle and connection is None:
        known, candidate = idle.pop()
        try:
            if known == postgres.conninfo and await _is_primary(candidate):
                connection = candidate
        except (psycopg.Error, OSError):
            pass
        finally:
            if connection is None:
                await candidate.close()
    connection = connection or await _connect_async(postgres)
    try:
        yield connection
    finally:
        is_idle = not connection.closed and connection.info.transaction_status == TransactionStatus.IDLE
        if is_idle and _idle_async.get(loop) is idle:
            idle.append((postgres.conninfo, connection))
        else:
            await connection.close()


async def _is_primary(connection: AnyAsyncConnection) -> bool:
    return await (await connection.execute(IS_PRIMARY)).fetchone() == (True,)


async def close_idle() -> None:
    """Close the idle connections of the running loop, before it ends."""
    for _, connection in _idle_async.pop(asyncio.get_running_loop(), []):
        await connection.close()


def _may_have_committed(error: BaseException) -> bool:
    """Return True if the connection was lost, so that nobody has told if the transaction was committed.

    SQLAlchemy wraps the error of the driver.
    """
    cause: object = getattr(error, "orig", None) or error
    if isinstance(cause, psycopg.OperationalError):
        return cause.sqlstate is None or cause.sqlstate in _LOST
    is_of_asyncpg = type(cause).__module__.partition(".")[0] == "asyncpg"
    return is_of_asyncpg or isinstance(cause, OSError | psycopg.InterfaceError)


def _unknown(opened: Any) -> TypeError:
    return TypeError(f"transact was given a session of type {type(opened).__name__}; use {ACCEPTED}")
