"""Connections to PostgreSQL: opened when needed, reused, and never handed out dead.

A connection is made in the call that needs it, so a wrong password or a stopped server is that call's error at
once and not a wait for a pool to give up. All sessions are in autocommit mode: a transaction is always written out.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import AsyncConnection, errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.string import TextLoader

from horsies.config import PostgresConfig
from horsies.errors import ConfigurationError, DatabaseError, ErrorCode, mask_passwords

logger = logging.getLogger("horsies.database")

Connection = AsyncConnection[tuple[Any, ...]]

CONNECT_TIMEOUT_SECONDS = 10
# What a worker asks for takes milliseconds. After this the server gives it up by itself, and a little later we give up
# the connection: nothing comes through it any more.
STATEMENT_SECONDS, ANSWER_SECONDS = 12, 15

# What a caller may try again: the connection or the server went away, or the transaction lost a race.
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
# made for an empty table would walk a million rows.
_STEADY_PLANS = (
    "-c enable_seqscan=off -c enable_bitmapscan=off -c enable_hashjoin=off -c enable_mergejoin=off"
    " -c enable_material=off -c jit=off -c plan_cache_mode=force_generic_plan"
)
# What is asked for is found by an index, whatever the size of the table was when the plan was made.
BY_INDEX = b"SET enable_seqscan = off"
# A producer asks by key, for which one plan is as good as another. Left alone, PostgreSQL plans each look anew, to leave
# out the days of history before it; that takes twice as long as the look.
BY_KEY = BY_INDEX + b"; SET plan_cache_mode = force_generic_plan"
# Whoever waited for a turn must see what was written by those before, whatever the database prefers.
_FRESH_SNAPSHOTS = r"-c default_transaction_isolation=read\ committed"
# And whoever stops in the middle of a transaction, with its machine or its network, must not hold up the others.
_GIVES_UP = (
    f"-c statement_timeout={STATEMENT_SECONDS}s -c idle_in_transaction_session_timeout={STATEMENT_SECONDS}s"
)


async def connect(config: PostgresConfig, *, session: bool = False, name: str = "horsies") -> Connection:
    """Open one connection; with `session`, over the direct URL that LISTEN needs behind a pooler."""
    pooled = config.pgbouncer_transaction_mode and not session
    return await AsyncConnection.connect(
        connection_string(
            config.session_conninfo if session else config.conninfo, **connection_settings(config, name)
        ),
        autocommit=True,
        prepare_threshold=None if pooled else 2,
    )


async def connect_worker(config: PostgresConfig, name: str) -> Connection:
    """Open a worker's own connection: direct, with steady plans, and ids and times left as the text they came as."""
    connection = await AsyncConnection.connect(
        connection_string(
            config.session_conninfo,
            **connection_settings(config, name),
            options=f"{_own_options(config.session_conninfo)} {_STEADY_PLANS} {_FRESH_SNAPSHOTS} {_GIVES_UP}".strip(),
        ),
        autocommit=True,
    )
    for kind in ("uuid", "timestamptz"):
        connection.adapters.register_loader(kind, TextLoader)
    return connection


@contextmanager
def answering(connection: Connection, seconds: float = ANSWER_SECONDS) -> Generator[None]:
    """Hang up on a server that does not answer for too long, so that whoever waits for it gets an error.

    Cancelling the wait would not do: the driver then waits for the answer to that.
    """
    alarm = asyncio.get_running_loop().call_later(seconds, _hang_up, connection, seconds)
    try:
        yield
    finally:
        alarm.cancel()


def _hang_up(connection: Connection, seconds: float) -> None:
    logger.warning("PostgreSQL has not answered for %.1f s, hanging up", seconds)
    with (
        suppress(psycopg.OperationalError, OSError),  # it is closed already
        socket.socket(fileno=os.dup(connection.fileno())) as sock,
    ):
        sock.shutdown(socket.SHUT_RDWR)


def _own_options(url: str) -> str:
    """The options that a URL has itself, such as a search path, which ours must not replace."""
    try:
        return str(conninfo_to_dict(url).get("options") or "")
    except psycopg.ProgrammingError:
        return ""  # `connection_string` says what is wrong


def connection_string(url: str, **settings: Any) -> str:
    """What libpq is given. Its own words about a URL that it cannot read are left out: they may quote the password."""
    try:
        return make_conninfo(url, **settings)
    except psycopg.ProgrammingError:
        raise ConfigurationError(
            f"PostgreSQL cannot read the URL {mask_passwords(url)!r}",
            code=ErrorCode.BROKER_INVALID_URL,
            help_text="write it as postgresql://user:password@host:5432/database, special characters as %20 and the like",
        ) from None


def connection_settings(config: PostgresConfig, name: str) -> dict[str, Any]:
    return {"application_name": name, "connect_timeout": CONNECT_TIMEOUT_SECONDS, **config.socket_options}


def is_refused(error: BaseException) -> bool:
    """Whether the server answered and said no, so that trying again will not help."""
    return isinstance(error, _REFUSED) or (
        isinstance(error, psycopg.OperationalError) and any(word in str(error) for word in _REFUSED_WORDS)
    )


def explain(error: BaseException, config: PostgresConfig) -> DatabaseError:
    """The error that a user sees when the database could not be used, with the remedy."""
    where = mask_passwords(config.conninfo)
    said = mask_passwords(str(error)).strip()
    detail = said.splitlines()[-1] if said else type(error).__name__
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


@dataclass(slots=True)
class _Idle:
    connection: Connection
    opened_at: float


class Database:
    """A few connections shared by everything on one event loop; `plans` says how they go about what they are asked."""

    def __init__(self, config: PostgresConfig, name: str, plans: bytes = BY_KEY) -> None:
        self.config = config
        self._name = name
        self._plans = plans
        self._idle: list[_Idle] = []
        self._free = asyncio.Semaphore(config.pool_size + config.max_overflow)
        self._closed = False

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Connection]:
        """Borrow a connection; a broken one is not put back."""
        try:
            async with asyncio.timeout(self.config.pool_timeout):
                await self._free.acquire()
        except TimeoutError:
            raise none_free(self.config) from None
        try:
            entry = await self._take()
            try:
                yield entry.connection
            finally:
                await self._put_back(entry)
        finally:
            self._free.release()

    async def _take(self) -> _Idle:
        while self._idle:
            entry = self._idle.pop()
            if is_quiet(entry.connection):
                return entry
            await entry.connection.close()
        connection = await connect(self.config, name=self._name)
        if not self.config.pgbouncer_transaction_mode:
            await connection.execute(self._plans)
        return _Idle(connection, time.monotonic())

    async def _put_back(self, entry: _Idle) -> None:
        connection = entry.connection
        too_old = 0 <= self.config.pool_recycle < time.monotonic() - entry.opened_at
        busy = connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE
        if self._closed or connection.closed or busy or too_old or len(self._idle) >= self.config.pool_size:
            await connection.close()
        else:
            self._idle.append(entry)

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            await self._idle.pop().connection.close()


def none_free(config: PostgresConfig) -> psycopg.OperationalError:
    limit = config.pool_size + config.max_overflow
    return psycopg.OperationalError(
        f"no connection came free within {config.pool_timeout} s: all {limit} are in use"
    )


def is_quiet(connection: Connection | psycopg.Connection[Any]) -> bool:
    """Whether an idle connection is still good: a server that went away has left something to read, at no cost to see."""
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)
