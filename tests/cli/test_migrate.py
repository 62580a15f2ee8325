"""`horsies migrate`: creates the schema, prints it, or says whether it is there."""

from __future__ import annotations

import psycopg
import pytest

from horsies.db.migrations import LATEST
from tests.cli.conftest import misused, refused


@pytest.fixture
def empty(workplace, empty_database_url):
    """A workplace whose database has no schema."""
    workplace.env["HORSIES_DATABASE_URL"] = empty_database_url
    return workplace


def test_the_schema_is_created_once(empty):
    first, second = empty.run("migrate"), empty.run("migrate")

    assert (first.returncode, second.returncode) == (0, 0)
    assert f"the schema has version {LATEST}" in first.stdout
    assert "nothing to do" in second.stdout


def test_the_check_fails_until_the_schema_is_there(empty):
    before = empty.run("migrate", "--check")
    empty.run("migrate")
    after = empty.run("migrate", "--check")

    refused(before, "HRS-411", "no schema yet")
    assert after.returncode == 0


def test_the_printed_sql_makes_the_schema(empty, empty_database_url):
    script = empty.run("migrate", "--sql")
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute(script.stdout)

    assert empty.run("migrate", "--check").returncode == 0


def test_a_database_that_has_the_schema_needs_no_sql(workplace, db):
    script = workplace.run("migrate", "--sql")

    assert "CREATE TABLE horsies_tasks" not in script.stdout
    db.execute(script.stdout)


def test_without_a_database_the_whole_schema_is_printed_and_nothing_is_started(workplace, tmp_path):
    del workplace.env["HORSIES_DATABASE_URL"]
    workplace.env["HORSIES_HOME"] = str(tmp_path / "home")

    result = workplace.run("migrate", "--sql")

    assert result.returncode == 0
    assert "horsies_tasks" in result.stdout
    assert not (tmp_path / "home").exists()


def test_the_database_may_be_given_by_an_app(empty, empty_database_url):
    empty.write(f"app = Horsies(AppConfig.for_database_url({empty_database_url!r}))")
    empty.env["HORSIES_DATABASE_URL"] = "postgresql://nobody@127.0.0.1:1/nowhere"

    by_option = empty.run("migrate", "--app", "app:app")
    by_environment_only = empty.run("migrate", "--check")
    empty.env["HORSIES_APP"] = "app:app"
    by_variable = empty.run("migrate", "--check")

    assert by_option.returncode == 0, by_option.stderr
    assert by_variable.returncode == 0, by_variable.stderr
    refused(by_environment_only, "HRS-413")


def test_the_url_on_the_command_line_comes_before_the_environment(workplace, empty_database_url):
    workplace.env["HORSIES_APP"] = "no_such_module:app"

    result = workplace.run("migrate", "--check", "--database-url", empty_database_url)

    refused(result, "HRS-411")


def test_a_newer_schema_is_refused(workplace, db):
    db.execute("INSERT INTO horsies_schema_version (version) VALUES (999999)")

    refused(workplace.run("migrate"), "HRS-410")
    refused(workplace.run("migrate", "--check"), "HRS-410")


def test_no_sql_is_printed_for_a_newer_schema(workplace, db):
    db.execute("INSERT INTO horsies_schema_version (version) VALUES (999999)")

    result = workplace.run("migrate", "--sql")

    refused(result, "HRS-410", "999999", "upgrade horsies")
    assert result.stdout == ""


def test_the_roles_are_printed_under_the_names_that_are_wanted(workplace, tmp_path):
    workplace.env["HORSIES_HOME"] = str(tmp_path / "home")
    workplace.env["HORSIES_DATABASE_URL"] = "postgresql://nobody@127.0.0.1:1/nowhere"

    usual, own = workplace.run("migrate", "--roles"), workplace.run("migrate", "--roles", "--prefix", "shop_")

    assert (usual.returncode, own.returncode) == (0, 0)
    assert "TO horsies_producer;" in usual.stdout
    assert "TO shop_producer;" in own.stdout
    assert "horsies_producer" not in own.stdout
    assert "horsies_worker_states" in own.stdout
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("prefix", ["", "Shop_", "1_", "a b", "x; DROP TABLE y; --", 'a"', "x" * 51])
def test_a_prefix_is_a_plain_name(workplace, prefix):
    misused(workplace.run("migrate", "--roles", "--prefix", prefix), "--prefix")


def test_one_thing_is_asked_for_at_a_time(workplace):
    misused(workplace.run("migrate", "--roles", "--check"), "exclude each other")
