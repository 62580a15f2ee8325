"""Several statements in one message: one round trip, one answer for each.

A step of a workflow is a handful of short statements, and on a connection next door the way there and back takes longer
than most of them. Parameters are quoted by the driver, since a message of several statements can carry none. On a
connection that is known to keep them, statements are prepared once under a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakSet

from psycopg import AsyncClientCursor

from horsies.storage.database import Connection

Rows = list[tuple[Any, ...]]
_prepared: WeakSet[Connection] = WeakSet()


def prepared_form(name: str, statement: bytes, types: Mapping[str, str]) -> tuple[bytes, bytes]:
    """How a statement is prepared under a name, and how it is then carried out."""
    used = [each for each in types if b"%%(%s)s" % each.encode() in statement]
    numbered = statement % {each.encode(): b"$%d" % n for n, each in enumerate(used, 1)}
    prepare = f"PREPARE horsies_{name} ({', '.join(types[each] for each in used)}) AS ".encode() + numbered
    return prepare, f"EXECUTE horsies_{name} ({', '.join(f'%({each})s' for each in used)})".encode()


class Batch:
    """Gathers statements until their answers are needed."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._cursor = AsyncClientCursor(connection)
        self._parts: list[str] = []

    def add(self, statement: bytes, values: Mapping[str, Any] | None = None) -> None:
        self._parts.append(self._cursor.mogrify(statement, values))

    async def run(self) -> list[Rows]:
        """Carry out what has gathered; the rows of each statement, in order."""
        if not self._parts:
            return []
        message, self._parts = "; ".join(self._parts), []
        await self._cursor.execute(message.encode())
        answers = [await self._rows()]
        while self._cursor.nextset():
            answers.append(await self._rows())
        return answers

    async def _rows(self) -> Rows:
        return [] if self._cursor.description is None else await self._cursor.fetchall()


async def prepare(connection: Connection, statements: Mapping[str, tuple[bytes, bytes]]) -> None:
    """Prepare statements, if that was not done: for connections to the server itself, which keeps them."""
    if connection not in _prepared:
        for statement, _ in statements.values():
            await connection.execute(statement)
        _prepared.add(connection)


def is_prepared(connection: Connection) -> bool:
    return connection in _prepared
