"""The schema comes into being once, whoever starts first, and is the one that is written down."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import errors, sql

from horsies import ErrorCode, Horsies, PostgresConfig
from horsies.db import migrations as module
from horsies.db.migrations import LATEST, MIGRATIONS, Migration, migrate, script
from horsies.errors import DatabaseError
from tests.pg.conftest import define_add
from tests.pg.racing import race
from tests.pg.schema import SNAPSHOT, describe

UPDATE = "HORSIES_UPDATE_SCHEMA"


def migrated(url: str) -> int:
    return asyncio.run(migrate(PostgresConfig(database_url=url)))


def test_migrating_twice_is_harmless(empty_database_url: str) -> None:
    assert migrated(empty_database_url) == LATEST
    before = describe(empty_database_url)

    assert migrated(empty_database_url) == 0
    assert describe(empty_database_url) == before


@pytest.fixture
def more(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Add migrations to those there are, as later versions of horsies do."""

    def add(*statements: str) -> None:
        added = tuple(
            Migration(version, f"{version:04}_more.sql", f"{statement};")
            for version, statement in enumerate(statements, LATEST + 1)
        )
        monkeypatch.setattr(module, "MIGRATIONS", MIGRATIONS + added)
        monkeypatch.setattr(module, "LATEST", LATEST + len(added))

    return add


def recorded(url: str) -> list[int]:
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT version FROM horsies_schema_version ORDER BY version").fetchall()
    return [version for (version,) in rows]


def test_the_files_are_numbered_from_one_on() -> None:
    numbers = [(migration.version, migration.name.partition("_")[0]) for migration in MIGRATIONS]

    assert numbers == [(number, f"{number:04}") for number in range(1, LATEST + 1)]


def test_a_newer_version_applies_the_migrations_that_are_missing(
    more: Callable[..., None], empty_database_url: str
) -> None:
    migrated(empty_database_url)
    more("CREATE TABLE horsies_more (one integer)", "ALTER TABLE horsies_more ADD COLUMN two integer")

    assert migrated(empty_database_url) == 2
    assert migrated(empty_database_url) == 0

    assert recorded(empty_database_url) == list(range(1, LATEST + 3))
    assert "TABLE horsies_more\n    one integer\n    two integer\n" in describe(empty_database_url)


def test_all_missing_migrations_are_applied_or_none(
    more: Callable[..., None], empty_database_url: str
) -> None:
    migrated(empty_database_url)
    before = describe(empty_database_url)
    more("CREATE TABLE horsies_more ()", "SELECT 1 / 0")

    with pytest.raises(errors.DivisionByZero):
        migrated(empty_database_url)

    assert recorded(empty_database_url) == list(range(1, LATEST + 1))
    assert describe(empty_database_url) == before


def test_the_broker_migrates_on_request(make_app: Callable[..., Horsies], empty_database_url: str) -> None:
    broker = make_app(url=empty_database_url).get_broker()

    assert asyncio.run(broker.ensure_schema_initialized()).unwrap() == LATEST
    assert asyncio.run(broker.migrate()) == 0


# A second migration, so that each process has several to apply.
ONE_OF_TEN = """
import asyncio
from horsies import PostgresConfig
from horsies.db import migrations as migrate

migrate.LATEST += 1
migrate.MIGRATIONS += (migrate.Migration(migrate.LATEST, "more.sql", "CREATE TABLE horsies_more ()"),)
ready()
print(asyncio.run(migrate.migrate(PostgresConfig(database_url=sys.argv[1]))))
"""


def test_ten_processes_may_migrate_at_once(empty_database_url: str) -> None:
    applied = race(ONE_OF_TEN, empty_database_url, 10)

    assert sorted(map(int, applied)) == [0] * 9 + [LATEST + 1]


def test_a_stricter_default_isolation_is_no_obstacle(empty_database_url: str) -> None:
    with psycopg.connect(empty_database_url, autocommit=True) as owner:
        name = sql.Identifier(owner.info.dbname)
        owner.execute(
            sql.SQL("ALTER DATABASE {} SET default_transaction_isolation = 'serializable'").format(name)
        )

    applied = race(ONE_OF_TEN, empty_database_url, 4)

    assert sorted(map(int, applied)) == [0] * 3 + [LATEST + 1]


def test_a_schema_from_the_future_is_refused(make_app: Callable[..., Horsies], database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("INSERT INTO horsies_schema_version (version) VALUES (%s)", (LATEST + 1,))

    with pytest.raises(DatabaseError) as refusal:
        migrated(database_url)

    assert refusal.value.code is ErrorCode.SCHEMA_TOO_NEW
    assert str(LATEST + 1) in str(refusal.value)
    error = define_add(make_app()).send(1).unwrap_err()
    assert "HRS-410" in error.message
    assert not error.retryable


@pytest.fixture
def guest_url(role_maker: str, empty_database_url: str) -> Iterator[str]:
    """The empty database as somebody sees it who may not create anything in it."""
    name = f"guest_{uuid4().hex}"
    with psycopg.connect(empty_database_url, autocommit=True) as owner:
        role = sql.Identifier(name)
        owner.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 's3cret'").format(role))
        owner.execute(sql.SQL("REVOKE CREATE ON SCHEMA public FROM PUBLIC"))
        yield empty_database_url.replace(
            "//" + empty_database_url.split("//")[1].split("@")[0], f"//{name}:s3cret"
        )
        owner.execute(sql.SQL("DROP OWNED BY {}").format(role))
        owner.execute(sql.SQL("DROP ROLE {}").format(role))


def test_no_permission_to_create_the_schema_says_who_can_help(
    make_app: Callable[..., Horsies], guest_url: str
) -> None:
    with pytest.raises(DatabaseError) as refusal:
        migrated(guest_url)

    assert refusal.value.code is ErrorCode.SCHEMA_PERMISSION
    assert "horsies migrate --sql" in str(refusal.value)
    assert "s3cret" not in str(refusal.value)
    assert "HRS-412" in define_add(make_app(url=guest_url)).send(1).unwrap_err().message


def test_no_schema_to_create_in_is_no_permission_either(guest_url: str, empty_database_url: str) -> None:
    with psycopg.connect(empty_database_url, autocommit=True) as owner:
        owner.execute("REVOKE USAGE ON SCHEMA public FROM PUBLIC")

    with pytest.raises(DatabaseError) as refusal:
        migrated(guest_url)

    assert refusal.value.code is ErrorCode.SCHEMA_PERMISSION


def test_who_may_use_the_tables_needs_no_permission_to_create_them(
    make_app: Callable[..., Horsies], guest_url: str, empty_database_url: str
) -> None:
    migrated(empty_database_url)
    assert "HRS-412" in define_add(make_app(url=guest_url)).send(1).unwrap_err().message
    with psycopg.connect(empty_database_url, autocommit=True) as owner:
        owner.execute("GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO PUBLIC")

    handle = define_add(make_app(url=guest_url)).send(1).unwrap()

    assert handle.info().unwrap() is not None
    assert handle.get(timeout_ms=50).is_err()


def test_the_script_makes_the_same_schema(empty_database_url: str, database_url: str) -> None:
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute(script().encode())

    assert describe(empty_database_url) == describe(database_url)
    assert migrated(empty_database_url) == 0


def test_the_script_begins_after_the_version_that_is_there(
    more: Callable[..., None], empty_database_url: str
) -> None:
    migrated(empty_database_url)
    more("CREATE TABLE horsies_more ()", "CREATE TABLE horsies_even_more ()")

    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute(script(after=LATEST).encode())

    assert recorded(empty_database_url) == list(range(1, LATEST + 3))
    assert migrated(empty_database_url) == 0


def test_the_schema_can_live_under_another_name(empty_database_url: str) -> None:
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA jobs")
    url = f"{empty_database_url}?options=-csearch_path%3Djobs"

    assert migrated(url) == LATEST

    with psycopg.connect(empty_database_url) as connection:
        connection.execute("SELECT jobs.horsies_send('add')")
        rows = connection.execute("SELECT task_name FROM jobs.horsies_tasks").fetchall()
    assert rows == [("add",)]


def test_the_schema_is_the_one_that_is_written_down(database_url: str) -> None:
    found = describe(database_url)
    if os.environ.get(UPDATE):
        SNAPSHOT.write_text(found)

    assert found == SNAPSHOT.read_text(), (
        f"the migrations make another schema than {SNAPSHOT.name} says; if that is meant, write it down again with\n"
        f"    {UPDATE}=1 pytest {Path(__file__).relative_to(Path.cwd())}\nand read the difference"
    )
