"""Run a statement on a connection that belongs to the caller, whatever library it comes from.

A task sent this way exists exactly when the caller's transaction commits. Libraries are recognised by the class of
what is passed; none but our own driver is imported unless the caller uses it. The statements take text parameters
only, by name, so that every parameter style can carry them.
"""

from __future__ import annotations

import re
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from horsies.storage.store import Fetch, FetchAsync, Rows, Values

_PARAMETER = re.compile(r"%\((\w+)\)s")

ACCEPTED = (
    "a psycopg connection, a SQLAlchemy Session, AsyncSession or Connection, an asyncpg connection "
    "or a Django database connection"
)


def fetcher(connection: Any) -> Fetch | None:
    """How to run a statement on a sync connection; None when it is not one that we know."""
    match _family(connection):
        case "psycopg":
            return lambda sql, values: _psycopg(connection, sql, values)
        case "sqlalchemy":
            return lambda sql, values: _tuples(connection.execute(_text(sql), values))
        case "django":
            return lambda sql, values: _django(connection, sql, values)
        case _:
            return None


def async_fetcher(connection: Any) -> FetchAsync | None:
    """How to run a statement on an async connection; None when it is not one that we know."""

    async def psycopg_async(sql: bytes, values: Values) -> Rows:
        async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
            await cursor.execute(sql, values)
            return await cursor.fetchall()

    async def sqlalchemy(sql: bytes, values: Values) -> Rows:
        return _tuples(await connection.execute(_text(sql), values))

    async def asyncpg(sql: bytes, values: Values) -> Rows:
        numbered = _PARAMETER.sub(lambda found: f"${list(values).index(found[1]) + 1}", sql.decode())
        return [tuple(row) for row in await connection.fetch(numbered, *values.values())]

    known: dict[str, FetchAsync] = {
        "psycopg async": psycopg_async,
        "sqlalchemy async": sqlalchemy,
        "asyncpg": asyncpg,
    }
    return known.get(_family(connection) or "")


_FAMILIES = {
    ("psycopg", "Connection"): "psycopg",
    ("psycopg", "AsyncConnection"): "psycopg async",
    ("sqlalchemy", "Session"): "sqlalchemy",
    ("sqlalchemy", "scoped_session"): "sqlalchemy",
    ("sqlalchemy", "Connection"): "sqlalchemy",
    ("sqlalchemy", "AsyncSession"): "sqlalchemy async",
    ("sqlalchemy", "async_scoped_session"): "sqlalchemy async",
    ("sqlalchemy", "AsyncConnection"): "sqlalchemy async",
    ("asyncpg", "Connection"): "asyncpg",
    ("asyncpg", "PoolConnectionProxy"): "asyncpg",
    ("django", "BaseDatabaseWrapper"): "django",
    ("django", "ConnectionProxy"): "django",
}


def _family(connection: Any) -> str | None:
    """Which library a connection is from, told by its class and those it inherits from."""
    for cls in type(connection).__mro__:
        family = _FAMILIES.get((cls.__module__.partition(".")[0], cls.__name__))
        if family is not None:
            return family
    return None


def _psycopg(connection: Any, sql: bytes, values: Values) -> Rows:
    # A cursor of our own: the connection's may bind parameters and make rows in another way.
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        cursor.execute(sql, values)
        return cursor.fetchall()


def _text(sql: bytes) -> Any:
    from sqlalchemy import text  # only the caller's own SQLAlchemy leads here

    return text(_PARAMETER.sub(r":\1", sql.decode()))


def _tuples(result: Any) -> Rows:
    return [tuple(row) for row in result.fetchall()]


def _django(connection: Any, sql: bytes, values: Values) -> Rows:
    with connection.cursor() as cursor:
        cursor.execute(sql.decode(), values)
        return cursor.fetchall()
