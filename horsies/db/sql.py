"""Load named SQL statements from `queries/*.sql`, and send several of them in one round trip.

A file holds blocks that open with `-- name: verb`. Python, logs and docs use the same verb. A block that opens with
`-- fragment: name` is a piece of SQL that the statements after it insert as `{name}`. `fragments.sql` holds those of several files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from importlib.resources import files
from typing import Any
from weakref import WeakSet

from psycopg import AsyncClientCursor, errors

from horsies.db.connection import Connection

_BLOCK = re.compile(
    r"^-- (?P<kind>name|fragment): (?P<name>\w+)\n(?P<sql>.*?)(?=^-- (?:name|fragment): |\Z)",
    re.DOTALL | re.MULTILINE,
)
_FRAGMENT = re.compile(r"\{([a-z_]+)\}")
_COMMENT = re.compile(r"^ *--.*\n", re.MULTILINE)
_INDENT = re.compile(r"^ +", re.MULTILINE)


def statements(noun: str) -> Mapping[str, bytes]:
    """Return the statements of `queries/<noun>.sql` by verb, without comments and indents: the driver caches short ones."""
    folder = files("horsies.db.queries")
    text = "".join(folder.joinpath(f"{name}.sql").read_text(encoding="utf-8") for name in ("fragments", noun))
    fragments: dict[str, str] = {}
    found: dict[str, bytes] = {}
    for block in _BLOCK.finditer(text):
        plain = _INDENT.sub("", _COMMENT.sub("", block["sql"])).strip().rstrip(";")
        complete = _FRAGMENT.sub(lambda mark: fragments[mark[1]], plain)
        if block["kind"] == "fragment":
            fragments[block["name"]] = complete
        else:
            found[block["name"]] = complete.encode()
    return found


Rows = list[tuple[Any, ...]]
_prepared: WeakSet[Connection] = WeakSet()


def prepared_form(name: str, statement: bytes, types: Mapping[str, str]) -> tuple[bytes, bytes]:
    """Return the SQL that prepares a statement under a name, and the SQL that executes it.

    `types` may hold more parameters than the statement uses.
    """
    used = [parameter for parameter in types if b"%%(%s)s" % parameter.encode() in statement]
    numbered = statement % {parameter.encode(): b"$%d" % n for n, parameter in enumerate(used, 1)}
    used_types = ", ".join(types[parameter] for parameter in used)
    values = ", ".join(f"%({parameter})s" for parameter in used)
    return (
        f"PREPARE horsies_{name} ({used_types}) AS ".encode() + numbered,
        f"EXECUTE horsies_{name} ({values})".encode(),
    )


class Batch:
    """Collects statements and sends them in one round trip when their answers are needed."""

    def __init__(self, connection: Connection) -> None:
        self._cursor = AsyncClientCursor(connection)
        self._queued: list[tuple[str, Rows]] = []

    def add(self, statement: bytes, values: Mapping[str, Any] | None = None) -> Rows:
        """Queue a statement; `run` fills the returned list with its rows."""
        rows: Rows = []
        self._queued.append((self._cursor.mogrify(statement, values), rows))
        return rows

    async def run(self) -> None:
        """Execute what is queued, in order."""
        if not self._queued:
            return
        queued, self._queued = self._queued, []
        await self._cursor.execute("; ".join(statement for statement, _ in queued).encode())
        for number, (_, rows) in enumerate(queued):
            if number:
                self._cursor.nextset()
            if self._cursor.description is not None:
                rows += await self._cursor.fetchall()


async def prepare(connection: Connection, statements: Mapping[str, tuple[bytes, bytes]]) -> None:
    """Prepare statements once per connection. The connection must go to the server itself, which keeps them."""
    if connection not in _prepared:
        for statement, _ in statements.values():
            with suppress(errors.DuplicatePreparedStatement):
                await connection.execute(statement)
        _prepared.add(connection)


async def roll_back(connection: Connection) -> None:
    """Roll back the open transaction. The driver may drop prepared statements with it, so all will be prepared again."""
    await connection.rollback()
    _prepared.discard(connection)
    await connection.execute(b"DEALLOCATE ALL")
