"""Nobody's functions, operators or tables of the same name step in for what ours call."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from horsies import PostgresConfig
from horsies.storage.database import connect_worker

Db = psycopg.Connection[dict[str, Any]]

# What looks like a call and is syntax.
_SYNTAX = {"IF", "EXISTS", "least", "LIKE", "KEY", "FROM", "TO"}

# Whoever is called notes it, with the rights that it was given.
EVIL = """
    CREATE TABLE {schema}.calls (of text, by text);
    GRANT INSERT ON {schema}.calls TO PUBLIC;
    CREATE FUNCTION {schema}.note(of text) RETURNS boolean LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO {schema}.calls VALUES (of, current_user);
        RETURN true;
    END $$;
"""

# The same names and arguments as the catalog's, in a schema that comes before it.
SHADOWS = """
    CREATE FUNCTION evil.now() RETURNS timestamptz LANGUAGE sql AS
        $$ SELECT CASE WHEN evil.note('now') THEN pg_catalog.now() END $$;
    CREATE FUNCTION evil.pg_notify(text, text) RETURNS void LANGUAGE sql AS $$ SELECT evil.note('pg_notify') $$;
    CREATE FUNCTION evil.horsies_queue_channel(text) RETURNS text LANGUAGE sql AS
        $$ SELECT CASE WHEN evil.note('horsies_queue_channel') THEN $1 END $$;
    CREATE FUNCTION evil.pg_try_advisory_xact_lock(bigint) RETURNS boolean LANGUAGE sql AS $$ SELECT evil.note('lock') $$;
    CREATE FUNCTION evil.to_char(timestamptz, text) RETURNS text LANGUAGE sql AS
        $$ SELECT CASE WHEN evil.note('to_char') THEN '' END $$;
    CREATE FUNCTION evil.gen_random_uuid() RETURNS uuid LANGUAGE sql AS
        $$ SELECT CASE WHEN evil.note('gen_random_uuid') THEN pg_catalog.gen_random_uuid() END $$;
    CREATE FUNCTION evil.same(text, text) RETURNS boolean LANGUAGE sql AS $$ SELECT evil.note('=') $$;
    CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.same);
    CREATE FUNCTION evil.joined(text, text) RETURNS text LANGUAGE sql AS
        $$ SELECT CASE WHEN evil.note('||') THEN '' END $$;
    CREATE OPERATOR evil.|| (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.joined);
    CREATE TABLE evil.horsies_workers (LIKE public.horsies_workers);
    CREATE TABLE evil.horsies_tasks (LIKE public.horsies_tasks);
    CREATE TABLE evil.horsies_task_definitions (LIKE public.horsies_task_definitions);
    CREATE TABLE evil.horsies_idempotency_keys (LIKE public.horsies_idempotency_keys);
"""

# Functions that fit what is passed better than the catalog's, in the very schema of the tables.
BETTER_FITS = """
    CREATE FUNCTION to_char(date, text) RETURNS text LANGUAGE sql AS
        $$ SELECT CASE WHEN public.note('to_char') THEN pg_catalog.to_char($1, $2) END $$;
    CREATE FUNCTION format(text, text) RETURNS text LANGUAGE sql AS
        $$ SELECT CASE WHEN public.note('format') THEN pg_catalog.format($1, $2) END $$;
    CREATE FUNCTION format(text, text, text) RETURNS text LANGUAGE sql AS
        $$ SELECT CASE WHEN public.note('format') THEN pg_catalog.format($1, $2, $3) END $$;
    CREATE FUNCTION format(text, text, timestamptz, timestamptz) RETURNS text LANGUAGE sql AS
        $$ SELECT CASE WHEN public.note('format') THEN pg_catalog.format($1, $2, $3, $4) END $$;
    CREATE FUNCTION pg_relation_size(text) RETURNS bigint LANGUAGE sql AS
        $$ SELECT CASE WHEN public.note('pg_relation_size') THEN 0 END $$;
"""


@pytest.fixture
def last_day_is_missing(db: Db) -> None:
    db.execute(
        "DO $$ BEGIN EXECUTE 'DROP TABLE horsies_tasks_'"
        " || to_char((now() AT TIME ZONE 'UTC')::date + 7, 'YYYYMMDD'); END $$"
    )


@pytest.fixture
def misled(database_url: str, db: Db) -> Iterator[psycopg.Connection[Any]]:
    """A session whose search path begins with somebody else's schema, before the catalog even."""
    db.execute(b"CREATE SCHEMA evil;" + EVIL.format(schema="evil").encode() + SHADOWS.encode())
    with psycopg.connect(
        database_url, options="-c search_path=evil,pg_catalog,public", autocommit=True
    ) as session:
        yield session


def test_a_schema_earlier_in_the_search_path_is_passed_over(
    misled: psycopg.Connection[Any], db: Db, last_day_is_missing: None
) -> None:
    db.execute(
        "INSERT INTO horsies_workers (worker_id, hostname, pid, processes, queues, lease_expires_at, waiting)"
        " VALUES (gen_random_uuid(), 'h', 1, 1, '{default}', 'infinity', true)"
    )
    db.execute("LISTEN task_new")

    misled.execute("SELECT public.horsies_send('add', idempotency_key => 'k')")
    misled.execute("INSERT INTO public.horsies_tasks (task_name) VALUES ('add')")
    misled.execute("SELECT public.horsies_refresh_statistics()")
    made = misled.execute("SELECT public.horsies_prepare_history(7)").fetchone()

    assert made == (1,)
    assert db.execute("SELECT * FROM evil.calls").fetchall() == []
    assert len(db.execute("SELECT FROM horsies_tasks").fetchall()) == 2
    assert len(list(db.notifies(timeout=10, stop_after=2))) == 2


def test_the_shadows_would_be_seen_if_they_were_called(misled: psycopg.Connection[Any], db: Db) -> None:
    misled.execute(
        "SELECT now(), to_char(now(), ''), gen_random_uuid(), 'a'::text || 'b', pg_notify('a', 'b')"
    )

    seen = {row["of"] for row in db.execute("SELECT of FROM evil.calls").fetchall()}
    assert seen == {"now", "to_char", "gen_random_uuid", "||", "pg_notify"}


def test_who_may_create_in_our_schema_does_not_get_its_owners_rights(
    db: Db, last_day_is_missing: None
) -> None:
    db.execute(EVIL.format(schema="public").encode() + BETTER_FITS.encode())

    made = db.execute("SELECT horsies_prepare_history(7), horsies_refresh_statistics()").fetchone()

    assert made is not None
    assert made["horsies_prepare_history"] == 1
    assert db.execute("SELECT * FROM calls").fetchall() == []


@pytest.fixture
def definers(db: Db) -> list[dict[str, Any]]:
    """The functions that act with the rights of their owner."""
    return db.execute(
        "SELECT proname, prosrc, has_function_privilege('public', oid, 'EXECUTE')"
        " AS is_public FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND prosecdef"
    ).fetchall()


def test_what_acts_with_its_owners_rights_is_not_for_everybody(definers: list[dict[str, Any]]) -> None:
    assert {"horsies_prepare_history", "horsies_refresh_statistics"} <= {each["proname"] for each in definers}
    assert [each["proname"] for each in definers if each["is_public"]] == []


def test_what_acts_with_its_owners_rights_calls_the_catalogs_functions_by_name(
    definers: list[dict[str, Any]],
) -> None:
    for each in definers:
        code = re.sub(r"'[^']*'|--[^\n]*", "", each["prosrc"])
        assert set(re.findall(r"(?<![\w.])(\w+) ?\(", code)) <= _SYNTAX, each["proname"]


def test_every_function_in_a_procedural_language_keeps_its_search_path(db: Db) -> None:
    loose = db.execute(
        "SELECT proname FROM pg_proc JOIN pg_language ON pg_language.oid = prolang"
        " WHERE pronamespace = 'public'::regnamespace AND lanname = 'plpgsql'"
        " AND NOT coalesce(proconfig, '{}') @> '{\"search_path=public, pg_temp\"}'"
    ).fetchall()

    assert loose == []


def test_one_call_prepares_a_year_at_most(db: Db) -> None:
    db.execute("SELECT horsies_prepare_history(2000000000)")

    days = db.execute(
        "SELECT count(*) AS days FROM pg_class WHERE relname ~ '^horsies_tasks_[0-9]{8}$'"
    ).fetchone()
    assert days == {"days": 367}


def test_a_search_path_in_the_url_is_kept_by_workers(database_url: str) -> None:
    url = f"{database_url}?options=-csearch_path%3Dpg_catalog,public"

    async def search_path() -> str:
        async with await connect_worker(PostgresConfig(database_url=url), "test") as connection:
            row = await (await connection.execute("SHOW search_path")).fetchone()
            assert row is not None
            return row[0]

    assert asyncio.run(search_path()) == "pg_catalog,public"
