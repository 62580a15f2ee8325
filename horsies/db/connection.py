"""Open connections to PostgreSQL with the right settings, pool them, and classify their errors.

Every session finds the tables through a search path with the configured schema, loads any value that a row may hold, and turns
off JIT wherever it sets a planner flag.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import select
import socket
import threading
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import datetime
from functools import cache
from random import random
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import msgspec
import psycopg
from psycopg import AsyncConnection, AsyncCursor, Cursor, errors
from psycopg.abc import Buffer
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg.sql import Composable
from psycopg.types.datetime import TimestamptzLoader
from psycopg.types.json import set_json_loads
from psycopg.types.string import TextLoader

from horsies.codec.values import is_too_deep
from horsies.config import PostgresConfig, WorkerResilienceConfig
from horsies.db import hosts
from horsies.durations import EARLIEST, LATEST
from horsies.errors import ConfigurationError, DatabaseError, ErrorCode, mask_passwords
from horsies.retry import backoff

logger = logging.getLogger("horsies.database")


class LenientTimestamptzLoader(TimestamptzLoader):
    """Load every `timestamptz`; a time out of Python's range is clamped."""

    def load(self, data: Buffer) -> datetime:
        """Return the time, or the nearest one that a datetime can hold."""
        try:
            return super().load(data)
        except psycopg.DataError:
            text = bytes(data)
            return EARLIEST if text.startswith(b"-") or text.endswith(b"BC") else LATEST


def lenient_json(data: str | bytes) -> Any:
    """Return the values of a JSON text; the text itself if it cannot be decoded."""
    encoded = data.encode() if isinstance(data, str) else bytes(data)
    try:
        if not is_too_deep(encoded):
            return msgspec.json.decode(encoded)
    except (msgspec.MsgspecError, RecursionError):
        pass
    return encoded.decode("utf-8", "replace")


def read_leniently(connection: psycopg.AsyncConnection[Any] | psycopg.Connection[Any]) -> None:
    """Make a connection load any value of a row without an error."""
    connection.adapters.register_loader("timestamptz", LenientTimestamptzLoader)
    set_json_loads(lenient_json, connection)


# Skips strings and quoted identifiers, a name after a dot, which is a column, and the name of a prepared statement.
_NAME = re.compile(
    rb"""'(?:[^']|'')*' | "(?:[^"]|"")*" | (?<![\w.]) (?<!PREPARE[ ]) (?<!EXECUTE[ ]) (horsies_\w+)""",
    re.VERBOSE,
)


def quoted(schema: str) -> str:
    """Return the schema's name as SQL writes it."""
    return '"' + schema.replace('"', '""') + '"'


def search_path(schema: str, *, local: bool = False) -> str:
    """Return the statement that makes a session, or a transaction, find the tables of this schema only."""
    return f"SET {'LOCAL ' if local else ''}search_path = {quoted(schema)}, pg_temp"


@cache
def qualified(statement: bytes, prefix: str) -> bytes:
    """Return the statement with this prefix and a dot before each horsies table and function.

    The prefix is a quoted name, with whatever escapes the driver's parameter style needs.

    >>> qualified(b"SELECT horsies_new_id(), 'horsies_tasks' FROM horsies_tasks AS t", '"jobs"')
    b'SELECT "jobs".horsies_new_id(), \\'horsies_tasks\\' FROM "jobs".horsies_tasks AS t'
    """
    before = f"{prefix}.".encode()
    return _NAME.sub(lambda found: before + found[1] if found[1] else found[0], statement)


def qualified_for_psycopg(statement: bytes, schema: str, has_values: bool) -> bytes:
    """Return the qualified statement; psycopg treats `%` as a placeholder only if there are values."""
    name = quoted(schema)
    return qualified(statement, name.replace("%", "%%") if has_values else name)


class _Qualifying:
    """The schema and the rewriting of queries, common to both kinds of cursor."""

    schema: ClassVar[str]

    def rewritten(self, query: Any, values: Any) -> bytes:
        """Return the query with the schema before each name."""
        if isinstance(query, Composable):
            query = query.as_bytes(None)
        text: bytes = query.encode() if isinstance(query, str) else query
        return qualified_for_psycopg(text, self.schema, values is not None)


class _QualifyingCursor(_Qualifying, Cursor[Any]):
    def execute(self, query: Any, params: Any = None, **options: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().execute(self.rewritten(query, params), params, **options)

    def copy(self, statement: Any, params: Any = None, **options: Any) -> Any:
        return super().copy(self.rewritten(statement, params), params, **options)


class _QualifyingAsyncCursor(_Qualifying, AsyncCursor[Any]):
    async def execute(self, query: Any, params: Any = None, **options: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return await super().execute(self.rewritten(query, params), params, **options)

    def copy(self, statement: Any, params: Any = None, **options: Any) -> Any:
        return super().copy(self.rewritten(statement, params), params, **options)


@cache
def qualifying_cursor(schema: str) -> type[Cursor[Any]]:
    """Return a cursor class whose statements name the schema, for a transaction pooler."""
    return type("QualifyingCursor", (_QualifyingCursor,), {"schema": schema})


@cache
def qualifying_async_cursor(schema: str) -> type[AsyncCursor[Any]]:
    """Return the async counterpart of `qualifying_cursor`."""
    return type("QualifyingAsyncCursor", (_QualifyingAsyncCursor,), {"schema": schema})


Connection = AsyncConnection[tuple[Any, ...]]
SyncConnection = psycopg.Connection[tuple[Any, ...]]

CONNECT_TIMEOUT_SECONDS = 10
# A worker's statement takes milliseconds. After STATEMENT_SECONDS the server cancels it. If no answer has come after
# ANSWER_SECONDS, the connection is dead and the worker closes it.
STATEMENT_SECONDS, ANSWER_SECONDS = 12, 15
# A statement that carries more text than this has a second more for each million characters. On an idle machine, 100 million take
# three to five seconds.
LARGE_CHARACTERS, CHARACTERS_PER_SECOND = 8 * 1_048_576, 1_000_000

# Errors after which a retry may succeed: the connection or the server went away, or the transaction lost a race.
TRANSIENT = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    errors.SerializationFailure,
    errors.DeadlockDetected,
    errors.ReadOnlySqlTransaction,
    errors.IdleInTransactionSessionTimeout,
    TimeoutError,
    ConnectionError,
)

# Errors that the content of one row can cause: values, constraints, limits of size and depth, a trigger that raises, corruption.
_ROW_FAULT_CLASSES = frozenset({"22", "23", "44", "54", "P0", "XX"})
_ROW_FAULTS = (LookupError, ValueError, TypeError, ArithmeticError, RecursionError, msgspec.MsgspecError)

# libpq's words for a server that `target_session_attrs=read-write` excludes.
READ_ONLY = "session is read-only"

_REFUSED = (
    errors.InvalidPassword,
    errors.InvalidAuthorizationSpecification,
    errors.InvalidCatalogName,
)
# libpq reports a refused login as text only, with the server's own wording.
_REFUSED_WORDS = (
    "password authentication failed",
    "no password supplied",
    "does not exist",
    "no pg_hba.conf entry",
)


# The worker's statements have one right plan, and it must not depend on when the tables were last analysed: a plan
# made for an empty table would scan a million rows.
_STABLE_PLANS = (
    "-c enable_seqscan=off -c enable_bitmapscan=off -c enable_hashjoin=off -c enable_mergejoin=off"
    " -c enable_material=off -c jit=off -c plan_cache_mode=force_generic_plan"
)
# Plans use an index, whatever the size of the table was when the plan was made. Up to PostgreSQL 17 a disabled scan adds 1e10
# to a plan's cost, which is above `jit_above_cost`: without `jit = off`, every send would compile the insert trigger's scan of
# `horsies_workers`, which takes 200 ms and more.
BY_INDEX = b"SET jit = off; SET enable_seqscan = off"
# A producer queries by key, for which one generic plan is good enough. By default PostgreSQL plans each query anew, to skip
# older partitions of the history; the planning takes twice as long as the query.
BY_KEY = BY_INDEX + b"; SET plan_cache_mode = force_generic_plan"
# A session that has waited for a lock must see what the previous holder wrote, whatever the database's default is.
_READ_COMMITTED = r"-c default_transaction_isolation=read\ committed"
# A worker whose machine or network fails in the middle of a transaction must not block the others.
_TIMEOUTS = (
    f"-c statement_timeout={STATEMENT_SECONDS}s -c idle_in_transaction_session_timeout={STATEMENT_SECONDS}s"
)


async def connect(config: PostgresConfig, *, session: bool = False, name: str = "horsies") -> Connection:
    """Open one connection; with `session`, over the direct URL that LISTEN needs behind a pooler."""
    pooled = config.pgbouncer_transaction_mode and not session
    schema = config.schema
    connection = await open_async(
        connection_string(
            config.session_conninfo if session else config.conninfo, **connection_settings(config, name)
        ),
        prepare_threshold=None if pooled else 2,
        cursor_factory=qualifying_async_cursor(schema) if pooled and schema is not None else None,
    )
    read_leniently(connection)
    return connection if pooled or schema is None else await _set_up(connection, search_path(schema).encode())


async def connect_worker(config: PostgresConfig, name: str) -> Connection:
    """Open a worker's own connection: direct, with stable plans; ids and times are loaded as text."""
    connection = await open_async(
        connection_string(
            config.session_conninfo,
            **connection_settings(config, name),
            options=f"{_url_options(config.session_conninfo)} {_STABLE_PLANS} {_READ_COMMITTED} {_TIMEOUTS}".strip(),
        )
    )
    for kind in ("uuid", "timestamptz"):
        connection.adapters.register_loader(kind, TextLoader)
    if config.schema is None:
        return connection
    return await _set_up(connection, search_path(config.schema).encode())


# The connection strings of open connections, with all hosts: a connection itself knows only the host that it goes to.
_conninfo_of: WeakKeyDictionary[Connection, str] = WeakKeyDictionary()


async def open_async(conninfo: str, **options: Any) -> Connection:
    """Open a connection in autocommit for the running loop."""
    connection = await AsyncConnection.connect(conninfo, autocommit=True, **options)
    _conninfo_of[connection] = conninfo
    hosts.prefer(conninfo, *server_of(connection))
    return connection


def open_sync(conninfo: str, **options: Any) -> SyncConnection:
    """Open a connection in autocommit for the calling thread."""
    connection = psycopg.Connection.connect(conninfo, autocommit=True, **options)
    hosts.prefer(conninfo, *server_of(connection))
    return connection


def server_of(connection: AsyncConnection[Any] | psycopg.Connection[Any]) -> tuple[str, int]:
    """Return the host and the port that a connection goes to."""
    return connection.info.host, connection.info.port


async def _set_up(connection: Connection, settings: bytes) -> Connection:
    """Change settings of a new connection, and close the connection if that fails or is cancelled.

    A startup option would save the round trip, but a pooler in session mode rejects the option or silently drops it.
    """
    try:
        await connection.execute(settings)
    except BaseException:
        await connection.close()
        raise
    return connection


@contextmanager
def hangup_after(connection: Connection, seconds: float = ANSWER_SECONDS) -> Generator[None]:
    """Shut the connection's socket down if the block takes too long, so that its statement fails with an error.

    Cancelling the statement does not help: the driver would wait for the answer to the cancellation.
    """
    alarm = asyncio.get_running_loop().call_later(seconds, _give_up, connection, seconds)
    try:
        yield
    finally:
        alarm.cancel()


@asynccontextmanager
async def time_to_store(connection: Connection, characters: int) -> AsyncGenerator[None]:
    """Hang up if the block takes too long, as `hangup_after` does; statements that carry a large text may take longer."""
    extra = characters // CHARACTERS_PER_SECOND if characters > LARGE_CHARACTERS else 0
    with hangup_after(connection, ANSWER_SECONDS + extra):
        if not extra:
            yield
            return
        await connection.execute(f"SET statement_timeout = '{STATEMENT_SECONDS + extra}s'".encode())
        try:
            yield
        finally:
            if connection.info.transaction_status is TransactionStatus.IDLE:
                await connection.execute(b"RESET statement_timeout")


def _give_up(connection: Connection, seconds: float) -> None:
    logger.warning("PostgreSQL has not answered for %.1f s, closing the connection", seconds)
    with suppress(psycopg.OperationalError):  # the connection is closed already
        hosts.avoid(_conninfo_of.get(connection, ""), *server_of(connection))
    hang_up(connection)


def hang_up(connection: Connection) -> None:
    """Shut the socket of a connection down, so that the statement under way fails with an error."""
    with (
        suppress(psycopg.OperationalError, OSError),  # the connection is closed already
        socket.socket(fileno=os.dup(connection.fileno())) as sock,
    ):
        sock.shutdown(socket.SHUT_RDWR)


def _url_options(url: str) -> str:
    """Return the `options` in a URL, such as a search path, which ours must not replace."""
    try:
        return str(conninfo_to_dict(url).get("options") or "")
    except psycopg.ProgrammingError:
        return ""  # `connection_string` reports the problem


def connection_string(url: str, **settings: Any) -> str:
    """Return the connection string for libpq. libpq's own error for an unreadable URL may quote the password and is left out."""
    try:
        return hosts.arranged(url, CONNECT_TIMEOUT_SECONDS, **settings)
    except psycopg.ProgrammingError:
        # The text after a password in the query may belong to the password: an unescaped & ends the value.
        shown = re.sub(r"(password=\*\*\*).*", r"\1", mask_passwords(url), flags=re.IGNORECASE | re.DOTALL)
        raise ConfigurationError(
            f"PostgreSQL cannot read the URL {shown!r}",
            code=ErrorCode.BROKER_INVALID_URL,
            help_text="write it as postgresql://user:password@host:5432/database, special characters as %20 and the like",
        ) from None


def connection_settings(config: PostgresConfig, name: str) -> dict[str, Any]:
    """Return the settings of libpq that every connection has."""
    return {"application_name": name, **config.socket_options}


def is_row_fault(error: BaseException) -> bool:
    """Return True if the content of a row causes this error, so that the same statement will fail again.

    A missing table or privilege is not a row fault. A row nested too deeply is one, although the driver calls it operational.
    """
    if isinstance(error, psycopg.Error):
        if error.sqlstate is None:
            return isinstance(error, psycopg.DataError)  # the driver itself refused a value
        return error.sqlstate[:2] in _ROW_FAULT_CLASSES
    return isinstance(error, _ROW_FAULTS)


def is_refused(error: BaseException) -> bool:
    """Return True if the server rejected the login, so that a retry would not help; of several servers, each of them."""
    if isinstance(error, _REFUSED):
        return True
    if not isinstance(error, psycopg.OperationalError):
        return False
    attempts = _attempts(str(error)) or [str(error)]
    return all(any(word in attempt for word in _REFUSED_WORDS) for attempt in attempts)


def explain_connection_error(error: BaseException, config: PostgresConfig) -> DatabaseError:
    """Return the error for a user whose database cannot be used, with the remedy."""
    where = mask_passwords(config.conninfo)
    detail = _reason(error)
    if isinstance(error, errors.ReadOnlySqlTransaction) or READ_ONLY in detail:
        return DatabaseError(
            f"PostgreSQL at {where} accepts no writes: {detail}",
            code=ErrorCode.DATABASE_UNREACHABLE,
            help_text="this is a standby: promote one, or name all servers in the URL, as in postgresql://db1,db2,db3/app",
        )
    if is_refused(error):
        return DatabaseError(
            f"PostgreSQL refused the connection to {where}: {detail}",
            code=ErrorCode.DATABASE_REFUSED,
            help_text="check the user, password and database name in HORSIES_DATABASE_URL or PostgresConfig",
        )
    return DatabaseError(
        f"cannot reach PostgreSQL at {where}: {detail}",
        code=ErrorCode.DATABASE_UNREACHABLE,
        help_text="start the server or correct the host and port; with no URL at all, horsies starts a server of its own",
    )


def _reason(error: BaseException) -> str:
    """Return on one line why a connection failed; with several hosts, why that to each of them did."""
    text = mask_passwords(str(error))
    if attempts := _attempts(text):
        return "; ".join(attempt.rpartition("connection failed: ")[2] for attempt in attempts)
    lines = [line.strip() for line in text.splitlines()]
    # What libpq adds on lines of its own, below the reason.
    reasons = [line for line in lines if line and not line.startswith(_ADDITIONS)]
    return reasons[-1] if reasons else type(error).__name__


_ADDITIONS = (
    "Is the server running",
    "This probably means the server terminated",
    "before or while processing",
)


def _attempts(text: str) -> list[str]:
    """Return the attempts to connect that psycopg lists as `- host: 'a', port: '1', hostaddr: '::1': connection failed: …`."""
    lines = [line.strip() for line in text.splitlines()]
    return [line.removeprefix("- ") for line in lines if line.startswith("- host: ")]


def reconnect_delay(
    error: BaseException,
    attempt: int,
    config: PostgresConfig,
    resilience: WorkerResilienceConfig,
    log: logging.Logger,
) -> float:
    """Return the seconds to wait before the next try to connect; raise if another try would not help."""
    explained = explain_connection_error(error, config)
    if is_refused(error) or 0 < resilience.db_retry_max_attempts <= attempt:
        raise explained from error
    longest_ms = retry_pause_ms(config, resilience.db_retry_max_ms)
    seconds = backoff(attempt, resilience.db_retry_initial_ms, longest_ms, random())
    log.warning("%s; next try in %.1f s", explained.message, seconds)
    return seconds


def retry_pause_ms(config: PostgresConfig, longest_ms: int) -> int:
    """Return the longest pause between two tries to connect: shorter with several hosts, one of which may soon be promoted."""
    return (
        min(longest_ms, hosts.LONGEST_PAUSE_MS) if hosts.are_several(config.session_conninfo) else longest_ms
    )


class Database:
    """A connection pool for one event loop; `plans` sets the planner's flags in each new connection."""

    def __init__(self, config: PostgresConfig, name: str, plans: bytes = BY_KEY) -> None:
        self.config = config
        self._name = name
        self._plans = plans
        self._idle: list[tuple[Connection, float]] = []
        self._free = asyncio.Semaphore(config.pool_size + config.max_overflow)
        self._closed = False

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Connection]:
        """Borrow a connection; a broken one is not put back."""
        try:
            async with asyncio.timeout(self.config.pool_timeout):
                await self._free.acquire()
        except TimeoutError:
            raise _pool_exhausted(self.config) from None
        try:
            connection, opened_at = await self._take()
            try:
                yield connection
            except Exception as error:
                if _has_lost_server(connection, error):
                    await connection.close()
                    await self._close_idle()
                raise
            finally:
                if not self._closed and _can_be_reused(connection, opened_at, self.config, len(self._idle)):
                    self._idle.append((connection, opened_at))
                else:
                    await connection.close()
        finally:
            self._free.release()

    async def _take(self) -> tuple[Connection, float]:
        while self._idle:
            connection, opened_at = self._idle.pop()
            if _is_alive(connection):
                return connection, opened_at
            await connection.close()
        connection = await connect(self.config, name=self._name)
        if not self.config.pgbouncer_transaction_mode:
            await _set_up(connection, self._plans)
        return connection, time.monotonic()

    async def close(self) -> None:
        self._closed = True
        await self._close_idle()

    async def _close_idle(self) -> None:
        while self._idle:
            await self._idle.pop()[0].close()


class SyncPool:
    """A connection pool for the threads of one process, which send tasks."""

    def __init__(self, config: PostgresConfig, name: str) -> None:
        self._config = config
        self._name = name
        self._idle: list[tuple[SyncConnection, float]] = []
        self._free = threading.BoundedSemaphore(config.pool_size + config.max_overflow)
        self._closed = False

    @contextmanager
    def connection(self) -> Generator[SyncConnection]:
        """Borrow a connection; a broken one is not put back."""
        if not self._free.acquire(timeout=self._config.pool_timeout):
            raise _pool_exhausted(self._config)
        try:
            connection, opened_at = self._take()
            try:
                yield connection
            except Exception as error:
                if _has_lost_server(connection, error):
                    connection.close()
                    self._close_idle()
                raise
            finally:
                if not self._closed and _can_be_reused(connection, opened_at, self._config, len(self._idle)):
                    self._idle.append((connection, opened_at))
                else:
                    connection.close()
        finally:
            self._free.release()

    def _take(self) -> tuple[SyncConnection, float]:
        while True:
            try:
                connection, opened_at = self._idle.pop()
            except IndexError:  # not checked beforehand: another thread may take the last one in between
                return self._connect(), time.monotonic()
            if _is_alive(connection):
                return connection, opened_at
            connection.close()

    def _connect(self) -> SyncConnection:
        pooled, schema = self._config.pgbouncer_transaction_mode, self._config.schema
        settings = connection_settings(self._config, self._name)
        connection = open_sync(
            connection_string(self._config.conninfo, **settings),
            prepare_threshold=None if pooled else 2,
            cursor_factory=qualifying_cursor(schema) if pooled and schema is not None else None,
        )
        read_leniently(connection)
        if not pooled:
            connection.execute(
                BY_KEY if schema is None else b"%s; %s" % (BY_KEY, search_path(schema).encode())
            )
        return connection

    def close(self) -> None:
        self._closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        with suppress(IndexError):  # another thread may take the last one
            while self._idle:
                self._idle.pop()[0].close()


def _has_lost_server(connection: Connection | SyncConnection, error: Exception) -> bool:
    """Return True if the idle connections are of no use, either: they go to a server that is gone, or has become a standby.

    If a machine is gone, each of them would fail only after `tcp_user_timeout_ms`, one after the other.
    """
    return connection.broken or isinstance(error, errors.ReadOnlySqlTransaction)


def _pool_exhausted(config: PostgresConfig) -> psycopg.OperationalError:
    limit = config.pool_size + config.max_overflow
    return psycopg.OperationalError(
        f"no connection came free within {config.pool_timeout} s: all {limit} are in use"
    )


def _can_be_reused(
    connection: Connection | SyncConnection, opened_at: float, config: PostgresConfig, idle: int
) -> bool:
    """Return True if a connection can go back into a pool that has `idle` other ones."""
    if connection.closed or idle >= config.pool_size:
        return False
    is_idle = connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    too_old = 0 <= config.pool_recycle < time.monotonic() - opened_at
    return is_idle and not too_old


def _is_alive(connection: Connection | SyncConnection) -> bool:
    """Return False if the server has closed an idle connection: its socket is then readable. This costs no round trip."""
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)
