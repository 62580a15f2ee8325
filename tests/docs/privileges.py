"""Write the tables of privileges in `docs/security.md`, as a server reports them after the roles script has run.

python -m tests.docs.privileges
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import psycopg

from horsies import embedded
from tests.docs.pages import ROOT
from tests.pg.house import ROLES, new_house

PAGE = ROOT / "docs" / "security.md"
BEGIN = "<!-- Made by `python -m tests.docs.privileges`: change horsies/db/schema/roles.sql, not these tables. -->"
END = "<!-- End of the tables of privileges. -->"

_TABLES = """
    SELECT relname FROM pg_class
     WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v')
       AND relname !~ '^horsies_tasks_(\\d+|history_default)$'
     ORDER BY relname"""
_COLUMNS = """
    SELECT has_table_privilege(%(role)s, %(table)s::regclass, %(right)s),
           array_agg(attname::text ORDER BY attnum)
               FILTER (WHERE has_column_privilege(%(role)s, %(table)s::regclass, attnum, %(right)s))
      FROM pg_attribute WHERE attrelid = %(table)s::regclass AND attnum > 0 AND NOT attisdropped"""
_TABLE = "SELECT has_table_privilege(%(role)s, %(table)s::regclass, %(right)s), NULL::text[]"
_FUNCTIONS = """
    SELECT proname, prosecdef, array_agg(has_function_privilege(role, pg_proc.oid, 'EXECUTE') ORDER BY place)
      FROM pg_proc CROSS JOIN unnest(%(roles)s::text[]) WITH ORDINALITY AS given (role, place)
     WHERE pronamespace = 'public'::regnamespace AND prokind = 'f' AND prorettype <> 'trigger'::regtype
     GROUP BY pg_proc.oid, proname, prosecdef
     ORDER BY proname"""
_RIGHTS = {"SELECT": _COLUMNS, "INSERT": _COLUMNS, "UPDATE": _COLUMNS, "DELETE": _TABLE}


def described(connection: psycopg.Connection[Any], prefix: str) -> str:
    """Return the tables: for each role the rights on tables, and for all the rights on functions."""
    names = [row[0] for row in connection.execute(_TABLES.encode()).fetchall()]
    parts: list[str] = []
    for role in ROLES:
        parts += [f"### horsies_{role}", _table(connection, prefix + role, names)]
    return "\n\n".join([*parts, "### Functions", _functions(connection, prefix)])


def written(page: str) -> str:
    """Return the tables as the page has them."""
    return page.partition(BEGIN)[2].partition(END)[0].strip()


def _table(connection: psycopg.Connection[Any], role: str, names: list[str]) -> str:
    lines = ["| table | SELECT | INSERT | UPDATE | DELETE |", "| --- | --- | --- | --- | --- |"]
    for name in names:
        cells = [_cell(*_held(connection, query, role, name, right)) for right, query in _RIGHTS.items()]
        if any(cells):
            lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _held(
    connection: psycopg.Connection[Any], query: str, role: str, name: str, right: str
) -> tuple[bool, list[str] | None]:
    row = connection.execute(query.encode(), {"role": role, "table": name, "right": right}).fetchone()
    assert row is not None
    return row[0], row[1]


def _cell(whole: bool, columns: list[str] | None) -> str:
    return "all" if whole else ", ".join(f"`{column}`" for column in columns or ())


def _functions(connection: psycopg.Connection[Any], prefix: str) -> str:
    heads = ["function", "acts as", *(f"`horsies_{role}`" for role in ROLES)]
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    rows = connection.execute(_FUNCTIONS.encode(), {"roles": [prefix + role for role in ROLES]}).fetchall()
    for name, is_definer, held in rows:
        cells = [f"`{name}`", "owner" if is_definer else "caller", *("yes" if may else "" for may in held)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    home = Path(tempfile.mkdtemp(prefix="horsies-privileges-"))
    home.chmod(0o755)
    try:
        url = embedded.ensure(home / "home", settings={"fsync": "off"}, announce=lambda _: None).url
        for house in new_house(url):
            with house.owner() as owner:
                tables = described(owner, house.prefix)
    finally:
        embedded.stop(home / "home", remove=True)
        shutil.rmtree(home)
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(page.replace(written(page), tables), encoding="utf-8")
    print(PAGE.relative_to(ROOT))


if __name__ == "__main__":
    main()
