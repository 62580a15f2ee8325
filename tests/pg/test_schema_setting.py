"""With `PostgresConfig(schema=…)` everything of ours lives in that schema, whatever the search path of a session is."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import dict_row

from horsies import AppConfig, CronSchedule, ErrorCode, Horsies, PostgresConfig, TaskSchedule
from horsies.db.connection import qualified
from horsies.db.migrations import LATEST, migrate, roles_script, script
from horsies.db.sql import statements
from horsies.errors import ConfigurationError, DatabaseError
from horsies.testing import bound, drain
from tests.pg.conftest import Add, define_add, new_apps
from tests.pg.schema import describe
from tests.pg.test_transactional import ASYNC, SYNC
from tests.support.pooler import PGBOUNCER, PgBouncer

Db = psycopg.Connection[dict[str, Any]]
MakeApp = Callable[..., Horsies]

# Everything that a quoted name may hold and some driver could misread.
ODD = 'Jobs "50%" of :all, o\'clock'


@pytest.fixture
def make_app(empty_database_url: str) -> Iterator[MakeApp]:
    yield from new_apps(empty_database_url)


@pytest.fixture
def plain(empty_database_url: str) -> Iterator[Db]:
    """A session whose search path does not lead to the schema."""
    with psycopg.connect(empty_database_url, autocommit=True, row_factory=dict_row) as session:
        yield session


@pytest.fixture
def through_pooler(server_url: str, empty_database_url: str) -> Iterator[dict[str, Any]]:
    """The settings of a broker that goes through PgBouncer in transaction mode."""
    with tempfile.TemporaryDirectory(prefix="horsies-pooler-") as folder:  # the pooler runs as nobody
        pooler = PgBouncer(Path(folder), server_url)
        yield _through(pooler, empty_database_url)
        pooler.stop()


def _through(pooler: PgBouncer, database_url: str) -> dict[str, Any]:
    name = database_url.rpartition("/")[2]
    return {
        "url": f"{pooler.url.rpartition('/')[0]}/{name}",
        "pool": {
            "session_database_url": database_url,
            "pgbouncer_transaction_mode": True,
            "schema": ODD,
        },
    }


def rows(session: Db, schema: str, table: str = "horsies_tasks") -> list[dict[str, Any]]:
    return session.execute(
        sql.SQL("SELECT * FROM {} ORDER BY id").format(sql.Identifier(schema, table))
    ).fetchall()


def ours_elsewhere(session: Db, schema: str) -> list[dict[str, Any]]:
    """Return the relations, functions and types of ours outside the schema."""
    return session.execute(
        "SELECT relname FROM pg_class JOIN pg_namespace AS space ON space.oid = relnamespace"
        " WHERE relname LIKE 'horsies%%' AND nspname <> %(schema)s"
        " UNION ALL SELECT proname FROM pg_proc JOIN pg_namespace AS space ON space.oid = pronamespace"
        " WHERE proname LIKE 'horsies%%' AND nspname <> %(schema)s",
        {"schema": schema},
    ).fetchall()


def exercise(app: Horsies, add: Add) -> None:
    """Send in every way there is, run it all, and read what became of it."""

    async def send_async() -> list[Any]:
        one = (await add.send_async(2, 3)).unwrap()
        return [one, *(await add.send_many_async([(n,) for n in range(1_001)])).unwrap()]

    handles = [
        add.send(1, 2).unwrap(),
        add.with_options(idempotency_key="k").send(1).unwrap(),
        *add.send_many([(n,) for n in range(3)]).unwrap(),
        *add.send_many([(n,) for n in range(1_001)]).unwrap(),
        *asyncio.run(send_async()),
    ]
    assert add.with_options(idempotency_key="k").send(1).unwrap().task_id == handles[1].task_id
    first = add.node(node_id="first")(x=1)
    second = add.node(node_id="second", waits_for=[first])(x=5, y=5)
    spec = app.workflow("sum", [first, second], output=second, definition_key="sum.v1")
    flow = spec.start().unwrap()
    app.schedules.create(
        TaskSchedule(name="tick", pattern=CronSchedule("0 0 1 1 *"), task_name="add", args=(1,))
    ).unwrap()
    by_hand = app.schedules.run_now("tick").unwrap()
    cancelled = add.schedule(3600, 1).unwrap()
    assert cancelled.cancel().unwrap()

    assert len(drain(app, limit=5_000)) == len(handles) + 3

    assert handles[0].get(timeout_ms=5_000).ok_value == 3
    assert flow.get(timeout_ms=5_000).ok_value == 10
    assert by_hand.get(timeout_ms=5_000).ok_value == 1
    assert handles[0].info(include_attempts=True).unwrap()


def test_everything_a_producer_does_happens_in_the_schema(make_app: MakeApp, plain: Db) -> None:
    app = make_app(pool={"schema": ODD})

    exercise(app, define_add(app))

    assert ours_elsewhere(plain, ODD) == []
    assert len(rows(plain, ODD)) == 1 + 1 + 3 + 1_001 + 1_002 + 2 + 1 + 1


@pytest.mark.skipif(PGBOUNCER is None, reason="there is no PgBouncer on this machine")
def test_the_same_happens_through_a_pooler_in_transaction_mode(
    make_app: MakeApp, plain: Db, through_pooler: dict[str, Any]
) -> None:
    app = make_app(**through_pooler)

    exercise(app, define_add(app))

    assert ours_elsewhere(plain, ODD) == []
    assert len(rows(plain, ODD)) == 1 + 1 + 3 + 1_001 + 1_002 + 2 + 1 + 1


def test_two_schemas_of_one_database_do_not_see_each_others_tasks(make_app: MakeApp, plain: Db) -> None:
    one, two = make_app(pool={"schema": "one"}), make_app(pool={"schema": "two"})
    add_one, add_two = define_add(one), define_add(two)
    mine, other = add_one.send(1).unwrap(), add_two.send(2).unwrap()

    assert [str(ran.task_id) for ran in drain(one)] == [mine.task_id]

    assert [row["status"] for row in rows(plain, "one")] == ["COMPLETED"]
    assert [(str(row["id"]), row["status"]) for row in rows(plain, "two")] == [(other.task_id, "PENDING")]
    assert add_one.send(1).unwrap().get(timeout_ms=0).is_err()


@pytest.mark.parametrize("open_it", SYNC)
def test_a_callers_connection_needs_no_search_path(
    make_app: MakeApp, empty_database_url: str, plain: Db, open_it: Callable[[str], Any]
) -> None:
    app = make_app(pool={"schema": ODD})
    add = define_add(app)
    asyncio.run(app.get_broker().migrate())
    with open_it(empty_database_url) as connection:
        sent = [
            add.with_options(conn=connection).send(1).unwrap(),
            *add.with_options(conn=connection).send_many([(1,), (2,)]).unwrap(),
            add.with_options(conn=connection, idempotency_key="k").send(3).unwrap(),
        ]
        again = add.with_options(conn=connection, idempotency_key="k").send(3).unwrap()
        connection.commit()

    assert again.task_id == sent[-1].task_id
    assert [str(row["id"]) for row in rows(plain, ODD)] == sorted(handle.task_id for handle in sent)


@pytest.mark.parametrize("open_it", ASYNC)
def test_a_callers_async_connection_needs_no_search_path(
    make_app: MakeApp, empty_database_url: str, plain: Db, open_it: Callable[[str], Any]
) -> None:
    app = make_app(pool={"schema": ODD})
    add = define_add(app)

    async def send() -> list[str]:
        await app.get_broker().migrate()
        async with open_it(empty_database_url) as (connection, transaction):
            sent = [
                (await add.with_options(conn=connection).send_async(1)).unwrap(),
                (await add.with_options(conn=connection, idempotency_key="k").send_async(3)).unwrap(),
            ]
            await transaction.commit()
        return [handle.task_id for handle in sent]

    sent = asyncio.run(send())

    assert [str(row["id"]) for row in rows(plain, ODD)] == sorted(sent)


def test_plain_sql_sends_by_the_schemas_function(make_app: MakeApp, plain: Db) -> None:
    app = make_app(pool={"schema": "jobs"})
    define_add(app)
    asyncio.run(app.get_broker().migrate())

    plain.execute("SELECT jobs.horsies_send('add', '{\"x\": 4}', idempotency_key => 'k')")

    assert [ran.result.ok_value for ran in drain(app)] == [4]


def test_the_schema_is_the_same_wherever_it_lies(empty_database_url: str, plain: Db) -> None:
    asyncio.run(migrate(PostgresConfig(database_url=empty_database_url)))
    asyncio.run(migrate(PostgresConfig(database_url=empty_database_url, schema="jobs")))

    here = describe(empty_database_url)
    plain.execute("DROP SCHEMA public CASCADE; ALTER SCHEMA jobs RENAME TO public")

    assert describe(empty_database_url).replace("jobs", "public") == here


def test_the_printed_script_makes_the_schema(make_app: MakeApp, plain: Db) -> None:
    plain.execute(script(schema=ODD).encode())

    assert ours_elsewhere(plain, ODD) == []
    assert asyncio.run(make_app(pool={"schema": ODD}).get_broker().migrate()) == 0
    assert plain.execute("SHOW search_path").fetchone() == {"search_path": '"$user", public'}


def test_the_printed_roles_are_for_the_schema(make_app: MakeApp, plain: Db) -> None:
    asyncio.run(make_app(pool={"schema": ODD}).get_broker().migrate())
    prefix = f"r{uuid4().hex[:12]}_"
    try:
        plain.execute(roles_script(prefix, ODD).encode())
        held = plain.execute(
            "SELECT has_schema_privilege(%(role)s, %(schema)s, 'USAGE') AS uses,"
            " has_table_privilege(%(role)s, %(table)s, 'SELECT') AS reads",
            {
                "role": f"{prefix}viewer",
                "schema": ODD,
                "table": sql.Identifier(ODD, "horsies_tasks").as_string(None),
            },
        ).fetchone()
        assert held == {"uses": True, "reads": True}
    finally:
        plain.rollback()
        for role in ("producer", "worker", "scheduler", "viewer", "operator"):
            name = sql.Identifier(prefix + role)
            plain.execute(sql.SQL("DROP OWNED BY {}").format(name))
        for role in ("producer", "worker", "scheduler", "viewer", "operator"):
            plain.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(prefix + role)))


@pytest.fixture
def stranger(server_url: str, plain: Db) -> Iterator[str]:
    """A role that may connect, and create nothing."""
    role = f"stranger_{uuid4().hex[:12]}"
    plain.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'pw'").format(sql.Identifier(role)))
    yield role
    with psycopg.connect(server_url, autocommit=True) as admin:
        admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def test_a_role_that_may_not_create_the_schema_is_told_what_to_ask_for(
    empty_database_url: str, plain: Db, stranger: str
) -> None:
    config = PostgresConfig(database_url=f"{empty_database_url}?user={stranger}&password=pw", schema="jobs")
    with pytest.raises(DatabaseError) as refused:
        asyncio.run(migrate(config))
    assert refused.value.code is ErrorCode.SCHEMA_PERMISSION
    remedy = re.search(r'CREATE SCHEMA "jobs" AUTHORIZATION "\w+"', refused.value.help_text or "")
    assert remedy is not None

    plain.execute(remedy[0].encode())
    try:
        assert asyncio.run(migrate(config)) == LATEST
    finally:
        plain.execute("DROP SCHEMA jobs CASCADE")


@pytest.mark.parametrize("granted", [False, True])
def test_a_schema_of_someone_elses_is_not_mistaken_for_public(
    empty_database_url: str, plain: Db, stranger: str, granted: bool
) -> None:
    """Without a right on the schema the search path is empty; nothing may be created elsewhere then."""
    plain.execute("CREATE SCHEMA jobs; GRANT CREATE ON SCHEMA public TO PUBLIC")
    if granted:
        plain.execute("GRANT USAGE ON SCHEMA jobs TO PUBLIC")
    config = PostgresConfig(database_url=f"{empty_database_url}?user={stranger}&password=pw", schema="jobs")

    with pytest.raises(DatabaseError) as refused:
        asyncio.run(migrate(config))

    assert refused.value.code is ErrorCode.SCHEMA_PERMISSION
    assert ours_elsewhere(plain, "jobs") == []


@pytest.mark.parametrize("name", ["", "a" * 64, "ä" * 32, "a\0b", "pg_jobs", 7])
def test_a_name_that_no_schema_can_have_is_refused_when_it_is_set(name: Any) -> None:
    with pytest.raises(ConfigurationError) as refused:
        PostgresConfig(database_url="postgresql://db/app", schema=name)

    assert "schema is" in refused.value.message


def test_the_environment_names_the_schema_of_a_database_that_it_names(
    empty_database_url: str, plain: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HORSIES_DATABASE_URL", empty_database_url)
    monkeypatch.setenv("HORSIES_SCHEMA", "jobs")
    app = Horsies(AppConfig())
    try:
        define_add(app).send(1).unwrap()
        with psycopg.connect(empty_database_url) as connection:
            app.tasks["add"].with_options(conn=connection).send(2).unwrap()
    finally:
        asyncio.run(app.get_broker().close_async())

    assert len(rows(plain, "jobs")) == 2


def test_an_app_that_a_test_binds_keeps_its_schema(make_app: MakeApp, database_url: str, db: Db) -> None:
    app = make_app(pool={"schema": "jobs"})
    add = define_add(app)

    with bound(app, database_url):
        add.send(1).unwrap()
        assert len(drain(app)) == 1

    assert len(rows(db, "jobs")) == 1
    assert rows(db, "public") == []


def test_each_name_in_our_statements_is_a_table_or_a_function_of_ours(db: Db) -> None:
    """The rewriting relies on this: a prefix and a dot before anything else would break the statement."""
    known = {
        row["name"]
        for row in db.execute(
            "SELECT relname AS name FROM pg_class UNION SELECT proname FROM pg_proc"
        ).fetchall()
    }
    nouns = [
        file.name.removesuffix(".sql")
        for file in files("horsies.db.queries").iterdir()
        if file.name.endswith(".sql")
    ]
    found = {
        name.decode()
        for noun in nouns
        for statement in statements(noun).values()
        for name in re.findall(rb"@\.(horsies_\w+)", qualified(statement, "@"))
    }

    assert len(found) > 30
    assert found <= known


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (b"SELECT 'horsies_control', 'it''s horsies_x'", b"SELECT 'horsies_control', 'it''s horsies_x'"),
        (
            b'SELECT t.horsies_x, "horsies_y" FROM horsies_tasks t',
            b'SELECT t.horsies_x, "horsies_y" FROM s.horsies_tasks t',
        ),
        (
            b"EXECUTE horsies_settle_and_claim (horsies_new_id())",
            b"EXECUTE horsies_settle_and_claim (s.horsies_new_id())",
        ),
        (b"SELECT my_horsies_tasks", b"SELECT my_horsies_tasks"),
    ],
)
def test_only_tables_and_functions_are_qualified(statement: bytes, expected: bytes) -> None:
    assert qualified(statement, "s") == expected
