"""Run a statement on a connection that belongs to the caller, whatever library it comes from.

A task sent this way is stored if and only if the caller's transaction commits. A library is recognised by the class of the
connection, and is never imported unless the caller uses it. The statements take text parameters only, by name, so that they
can be translated into every driver's parameter style.
"""

from __future__ import annotations

import re
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from horsies.db.connection import qualified, qualified_for_psycopg, quoted
from horsies.db.insert import Fetch, FetchAsync, Rows, Values

_PARAMETER = re.compile(r"%\((\w+)\)s")

ACCEPTED = (
    "a psycopg connection, a SQLAlchemy Session, AsyncSession or Connection, an asyncpg connection "
    "or a Django database connection"
)


def fetcher(connection: Any, schema: str | None = None) -> Fetch | None:
    """Return a function that runs a statement on a sync connection; None if the connection is of no known library.

    With a schema, the statement is qualified with it, because the connection has a search path of its own.
    """
    match _family(connection):
        case "psycopg":
            return lambda sql, values: _psycopg(connection, _percent(sql, schema), values)
        case "sqlalchemy":
            return lambda sql, values: _tuples(connection.execute(_text(sql, schema), values))
        case "django":
            return lambda sql, values: _django(connection, _percent(sql, schema), values)
        case _:
            return None


def async_fetcher(connection: Any, schema: str | None = None) -> FetchAsync | None:
    """Return the async counterpart of `fetcher`."""

    async def psycopg_async(sql: bytes, values: Values) -> Rows:
        async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
            await cursor.execute(_percent(sql, schema), values)
            return await cursor.fetchall()

    async def sqlalchemy(sql: bytes, values: Values) -> Rows:
        return _tuples(await connection.execute(_text(sql, schema), values))

    async def asyncpg(sql: bytes, values: Values) -> Rows:
        numbered = _PARAMETER.sub(lambda found: f"${list(values).index(found[1]) + 1}", sql.decode())
        if schema is not None:
            numbered = qualified(numbered.encode(), quoted(schema)).decode()
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
    """Return the library of a connection by the names of its class and base classes."""
    for cls in type(connection).__mro__:
        family = _FAMILIES.get((cls.__module__.partition(".")[0], cls.__name__))
        if family is not None:
            return family
    return None


def _psycopg(connection: Any, sql: bytes, values: Values) -> Rows:
    # Not the connection's own cursor class: it may bind parameters and make rows differently.
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        cursor.execute(sql, values)
        return cursor.fetchall()


def _percent(sql: bytes, schema: str | None) -> bytes:
    return sql if schema is None else qualified_for_psycopg(sql, schema, has_values=True)


def _text(sql: bytes, schema: str | None) -> Any:
    from sqlalchemy import text  # the caller's connection is SQLAlchemy's, so it is imported already

    named = _PARAMETER.sub(r":\1", sql.decode())
    if schema is not None:
        named = qualified(named.encode(), quoted(schema).replace(":", r"\:")).decode()
    return text(named)


def _tuples(result: Any) -> Rows:
    return [tuple(row) for row in result.fetchall()]


def _django(connection: Any, sql: bytes, values: Values) -> Rows:
    with connection.cursor() as cursor:
        cursor.execute(sql.decode(), values)
        return cursor.fetchall()
