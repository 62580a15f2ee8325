"""Nobody's functions, operators or tables of the same name step in for what ours call."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import errors

from horsies import (
    Horsies,
    PostgresConfig,
    SuccessCase,
    SuccessPolicy,
    TaskError,
    TaskResult,
    from_node,
    map_node,
    signal_node,
    sleep_node,
)
from horsies.db.connection import connect_worker
from horsies.db.queries.tasks import as_json
from horsies.db.queries.workflows import WorkflowRows
from horsies.workflow.spec import workflow_rows

Db = psycopg.Connection[dict[str, Any]]

# What looks like a call in a function of one statement, and is syntax.
_SYNTAX = {"coalesce", "CASE", "AS", "BY", "FROM", "JOIN", "SELECT", "OPERATOR", "a", "b", "held", "bound"}

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

# Operators for every pair of these types, in the schema of the tables: an exact match is preferred to one of the catalog's
# operators that needs a cast.
TYPES = ("text", "name", "integer", "bigint", "smallint", "real", "double precision", "numeric", "uuid", "date",
         "timestamptz", "timestamp", "interval", "json", "jsonb", "oid", "regclass", "boolean")  # fmt: skip
OPERATORS = ("=", "<>", "<", ">", "<=", ">=", "+", "-", "*", "/", "||", "~", "->", "->>")
OPERATOR_SHADOWS = """
    DO $$
    DECLARE
        one text; other text; symbol text; number integer := 0;
    BEGIN
        FOREACH one IN ARRAY %(types)s::text[] LOOP FOREACH other IN ARRAY %(types)s::text[] LOOP
            number := number + 1;
            EXECUTE format('CREATE FUNCTION shadow_%%s(%%s, %%s) RETURNS boolean LANGUAGE sql AS
                            $of$SELECT public.note(''operator'')$of$', number, one, other);
            FOREACH symbol IN ARRAY %(operators)s::text[] LOOP
                EXECUTE format('CREATE OPERATOR %%s (LEFTARG = %%s, RIGHTARG = %%s, FUNCTION = shadow_%%s)',
                               symbol, one, other, number);
            END LOOP;
        END LOOP; END LOOP;
    END $$"""

# Functions that fit what is passed better than the catalog's, in the schema of the tables.
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
    CREATE FUNCTION format(text, uuid, text) RETURNS text LANGUAGE sql AS
        $$ SELECT CASE WHEN public.note('format') THEN pg_catalog.format($1, $2, $3) END $$;
    CREATE FUNCTION format(text, uuid, smallint) RETURNS text LANGUAGE sql AS
        $$ SELECT CASE WHEN public.note('format') THEN pg_catalog.format($1, $2, $3) END $$;
    CREATE FUNCTION length(integer) RETURNS integer LANGUAGE sql AS
        $$ SELECT CASE WHEN public.note('length') THEN 1 END $$;
    CREATE FUNCTION make_interval(secs double precision) RETURNS interval LANGUAGE sql AS
        $$ SELECT CASE WHEN public.note('make_interval') THEN pg_catalog.make_interval(secs => $1) END $$;
    CREATE FUNCTION cardinality(integer[]) RETURNS integer LANGUAGE sql AS
        $$ SELECT CASE WHEN public.note('cardinality') THEN pg_catalog.cardinality($1) END $$;
    CREATE FUNCTION unnest(integer[]) RETURNS SETOF integer LANGUAGE sql AS
        $$ SELECT CASE WHEN public.note('unnest') THEN element END FROM pg_catalog.unnest($1) AS element $$;
    CREATE FUNCTION brin_summarize_new_values(oid) RETURNS integer LANGUAGE sql AS
        $$ SELECT CASE WHEN public.note('brin_summarize_new_values') THEN 0 END $$;
    CREATE FUNCTION array_position(text, text) RETURNS integer LANGUAGE sql AS
        $$ SELECT CASE WHEN public.note('array_position') THEN 0 END $$;
    CREATE FUNCTION horsies_queue_channel(name) RETURNS text LANGUAGE sql AS
        $$ SELECT CASE WHEN public.note('horsies_queue_channel') THEN $1::text END $$;
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


@pytest.fixture
def shadowed(database_url: str, db: Db) -> None:
    """Everything in the schema of the tables that could be taken for what our functions call."""
    db.execute(EVIL.format(schema="public").encode() + BETTER_FITS.encode())
    with psycopg.connect(database_url, autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
        connection.execute(OPERATOR_SHADOWS, {"types": list(TYPES), "operators": list(OPERATORS)})


DEBOUNCED = (
    "'id', gen_random_uuid(), 'task_name', 'add', 'queue_name', 'default', 'is_async', false, 'priority', 100, 'kwargs', '{}',"
    " 'max_retries', 0, 'unique_key', '7', 'task_options', '{\"on_conflict\":\"last\"}'"
)
# Every function of ours, with arguments with which it does its work.
CALLS = (
    "SELECT horsies_prepare_history(7)",
    "SELECT horsies_drop_history(now())",
    "SELECT horsies_refresh_statistics()",
    "SELECT horsies_summarize_history()",
    "SELECT horsies_forget(what, now(), 10) FROM unnest(ARRAY['results', 'attempts', 'progress', 'logs', 'keys', 'actions',"
    " 'workflows', 'states', 'heartbeats', 'counts']) AS what",
    "SELECT horsies_delete_history(ARRAY[gen_random_uuid()], ARRAY[now()])",
    "SELECT horsies_send('add', idempotency_key => 'k')",
    "SELECT horsies_signal(id, 'approved', '1'), horsies_wake(ARRAY[id]) FROM horsies_tasks",
    "SELECT horsies_send('add', idempotency_key => 'k')",
    'SELECT horsies_lane(json_populate_record(NULL::horsies_task_definitions, \'{"task_name": "a", "key_source": "x",'
    ' "key_concurrency": 1, "key_seconds": 1, "key_burst": 1}\'), \'{"x": 7}\')',
    *[
        f"SELECT horsies_debounce(json_build_object({DEBOUNCED}), {rule!r})"
        for rule in ("first", "again", "last")
    ],
    "UPDATE horsies_tasks_live SET status = 'RUNNING', claimed_by_worker_id = gen_random_uuid(), started_at = now()"
    " WHERE unique_key IS NOT NULL",
    f"SELECT horsies_debounce(json_build_object({DEBOUNCED}), 'last')",
    "DELETE FROM horsies_tasks_live WHERE unique_key IS NOT NULL",
    "SELECT horsies_follow(NULL), horsies_follow('7')",
    "SELECT horsies_new_id(), horsies_queue_channel('q'), horsies_queue_channel(repeat('q', 90)), horsies_time_bounds(),"
    " horsies_node_result('SKIPPED', NULL, 1), horsies_node_result('COMPLETED', '1', 1), horsies_histogram('{1, 2}'),"
    " horsies_add('{1, 2}', '{3, 4}')",
    "UPDATE horsies_workflows SET status = 'PAUSED'",
    "UPDATE horsies_workflows SET status = 'RUNNING'",
    "INSERT INTO horsies_schedule_state (schedule_name, definition, config_hash) VALUES ('s', '{}', '')",
    "UPDATE horsies_schedule_state SET run_count = 1",
    "INSERT INTO horsies_tasks (task_name, live, status, result, terminal_at)"
    " VALUES ('add', false, 'FAILED', '{}', now())",
    "UPDATE horsies_tasks SET result = NULL WHERE NOT live",
)
REFUSED = (
    "INSERT INTO horsies_tasks (task_name, priority) VALUES ('add', 101)",
    "UPDATE horsies_tasks SET status = 'COMPLETED' WHERE NOT live",
)


@pytest.fixture
def rows(app: Horsies) -> WorkflowRows:
    """A workflow with a node of each kind, ready to be stored."""

    @app.task("listed")
    def listed(x: TaskResult[list[int], TaskError] | None = None) -> TaskResult[list[int], TaskError]:
        return TaskResult(ok=[1])

    @app.task("item")
    def item(n: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=n)

    first = listed.node(node_id="first")()
    fed = listed.node(node_id="fed")(x=from_node(first))
    mapped = map_node(item, over=first, node_id="mapped")
    slept = sleep_node(60, node_id="slept")
    asked = signal_node("yes", timeout_seconds=60, waits_for=[first, slept], node_id="asked")
    either = listed.node(node_id="either", waits_for=[mapped, asked, fed], join="quorum", min_success=2)()
    policy = SuccessPolicy(cases=[SuccessCase(required=[first, either])])
    nodes = [first, fed, mapped, slept, asked, either]
    spec = app.workflow("all", nodes, definition_key="all", success_policy=policy, deadline_seconds=60)
    return workflow_rows(spec, uuid4(), None)


@pytest.mark.breaks_invariants  # whose query would call the shadows
def test_who_may_create_in_our_schema_does_not_get_the_rights_of_those_who_call_our_functions(
    db: Db, last_day_is_missing: None, rows: WorkflowRows, shadowed: None
) -> None:
    values = (rows.flows[0].id, as_json(rows.flows), as_json(rows.nodes))
    db.execute("SET search_path TO pg_catalog, public")

    started = db.execute("SELECT horsies_start_workflow(%s, %s, %s) AS started", values).fetchone()
    adopted = db.execute(
        "SELECT horsies_store_sub_workflow(%s, %s, %s, %s, 0)", (*values, uuid4())
    ).fetchone()
    for call in CALLS:
        db.execute(call.encode())
    for call in REFUSED:
        with pytest.raises(errors.IntegrityError):
            db.execute(call.encode())

    assert started == {"started": True}
    assert adopted is not None
    assert db.execute("SELECT DISTINCT of, by FROM calls").fetchall() == []


def test_every_function_of_ours_is_called_beside_the_shadows(db: Db) -> None:
    """Those that are called by others are not called by name."""
    inner = {"horsies_store_workflow", "horsies_workflow_fault", "horsies_refuse", "horsies_join"}
    rows = db.execute(
        "SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND prokind = 'f'"
        " AND prorettype <> 'trigger'::regtype"
    ).fetchall()
    called = set(re.findall(r"horsies_\w+(?=\()", " ".join(CALLS)))

    assert {row["proname"] for row in rows} - inner - called == {
        "horsies_start_workflow",
        "horsies_store_sub_workflow",
    }


@pytest.mark.breaks_invariants  # whose query would call the shadows
def test_operators_that_fit_better_would_be_seen_if_they_were_called(db: Db, shadowed: None) -> None:
    db.execute("SELECT 1.5::real > 1, now()::date + interval '1 day' < now()::timestamp, length(1)")

    seen = {row["of"] for row in db.execute("SELECT of FROM calls").fetchall()}
    assert {"operator", "length"} <= seen


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


def test_every_function_in_a_procedural_language_searches_the_catalog_alone(db: Db) -> None:
    loose = db.execute(
        "SELECT proname FROM pg_proc JOIN pg_language ON pg_language.oid = prolang"
        " WHERE pronamespace = 'public'::regnamespace AND lanname = 'plpgsql'"
        " AND NOT coalesce(proconfig, '{}') @> '{\"search_path=pg_catalog, pg_temp\"}'"
    ).fetchall()

    assert loose == []


def test_a_function_without_a_search_path_names_the_schema_of_all_that_it_uses(db: Db) -> None:
    bodies = db.execute(
        "SELECT proname, prosrc FROM pg_proc JOIN pg_language ON pg_language.oid = prolang"
        " WHERE pronamespace = 'public'::regnamespace AND lanname = 'sql' AND prokind = 'f'"
    ).fetchall()

    assert len(bodies) >= 6
    for each in bodies:
        code = re.sub(r"'[^']*'|--[^\n]*|::pg_catalog\.", "", each["prosrc"])
        assert set(re.findall(r"(?<![\w.])(\w+) ?\(", code)) <= _SYNTAX, each["proname"]
        bare = re.sub(r"OPERATOR\(pg_catalog\.[^)]+\)|count\(\*\)", "", code)
        assert re.findall(r"[-+*/<>=~!@#%^&|`?]", bare) == [], each["proname"]
        assert not re.search(r"\b(IN|LIKE|BETWEEN|USING|NULLIF|DISTINCT)\b", bare, re.IGNORECASE), each[
            "proname"
        ]


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
