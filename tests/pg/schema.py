"""The schema as the catalog tells it, as text: the same for everybody who has the same schema."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psycopg

Connection = psycopg.Connection[Any]
SNAPSHOT = Path(__file__).parent / "schema.txt"

_RELATIONS = """
    SELECT relation.oid, relation.relname, relation.relkind, array_to_string(relation.reloptions, ', '),
           pg_get_partkeydef(relation.oid), pg_get_expr(relation.relpartbound, relation.oid)
      FROM pg_class AS relation
     WHERE relation.relnamespace = current_schema()::regnamespace AND relation.relkind IN ('r', 'p', 'v')
     ORDER BY relation.relname"""
_COLUMNS = """
    SELECT concat_ws(' ', attname, format_type(atttypid, atttypmod), CASE WHEN attnotnull THEN 'NOT NULL' END,
                     'DEFAULT ' || pg_get_expr(adbin, adrelid))
      FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
     WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped
     ORDER BY attnum"""
_CONSTRAINTS = """
    SELECT concat_ws(' ', 'CONSTRAINT', conname, pg_get_constraintdef(oid)) FROM pg_constraint
     WHERE conrelid = %s AND contype <> 'n' ORDER BY conname"""
_INDEXES = "SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = %s ORDER BY 1"
# Before PostgreSQL 15, a partition's copy of a trigger counts as internal.
_TRIGGERS = """
    SELECT pg_get_triggerdef(child.oid) FROM pg_trigger AS child LEFT JOIN pg_trigger AS parent ON parent.oid = child.tgparentid
     WHERE child.tgrelid = %s AND NOT coalesce(parent.tgisinternal, child.tgisinternal) ORDER BY child.tgname"""
_VIEW = "SELECT pg_get_viewdef(oid) FROM pg_class WHERE oid = %s AND relkind = 'v'"
_FUNCTIONS = """
    SELECT pg_get_functiondef(oid) FROM pg_proc
     WHERE pronamespace = current_schema()::regnamespace AND prokind = 'f' ORDER BY proname"""
_KINDS = {"r": "TABLE", "p": "TABLE", "v": "VIEW"}


def describe(url: str) -> str:
    """Tables, views and functions of a database; the partitions of all days are told as one."""
    with psycopg.connect(url) as connection:
        connection.execute("SET timezone TO 'UTC'")
        return _describe(connection)


def _describe(connection: Connection) -> str:
    blocks = [_relation(connection, *row) for row in connection.execute(_RELATIONS).fetchall()]
    blocks += [row[0].rstrip() for row in connection.execute(_FUNCTIONS).fetchall()]
    return "\n\n".join(dict.fromkeys(map(_alike, blocks))) + "\n"


def _relation(
    connection: Connection,
    oid: int,
    name: str,
    kind: str,
    options: str | None,
    key: str | None,
    bound: str | None,
) -> str:
    lines = [f"{_KINDS[kind]} {name}"]
    lines += [f"    PARTITION BY {key}"] if key else []
    lines += [f"    PARTITION {bound}"] if bound else []
    lines += [f"    WITH {options}"] if options else []
    for query in (_COLUMNS, _CONSTRAINTS, _INDEXES, _TRIGGERS, _VIEW):
        lines += [f"    {row[0].strip()}" for row in connection.execute(query.encode(), (oid,)).fetchall()]
    return "\n".join(lines)


def _alike(block: str) -> str:
    """Without the names of days, and without the qualifiers that not every version writes in a view."""
    if block.startswith("VIEW"):
        block = re.sub(r"\bhorsies_\w+\.(?=\w)", "", block)
    named = re.sub(r"horsies_tasks_\d{8}", "horsies_tasks_<day>", block)
    return re.sub(r"'\d{4}-\d\d-\d\d 00:00:00\+00'", "'<day>'", named)
