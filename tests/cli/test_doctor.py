"""`horsies doctor`: a line for each check, and an exit code that says whether something is violated."""

from __future__ import annotations

import json
import re

import psycopg
import pytest
from psycopg import sql

from horsies.db.queries.doctor import CHECKS, VIOLATIONS
from tests.cli.conftest import misused, refused
from tests.docs.pages import ROOT, tables

STRANDED = """
    INSERT INTO horsies_tasks (task_name, status, claimed_by_worker_id, claimed_at)
    VALUES ('add', 'RUNNING', gen_random_uuid(), now() - interval '1 hour')
    RETURNING id::text
"""


def test_there_is_a_line_for_each_check(workplace):
    result = workplace.run("doctor")

    *rows, summary = result.stdout.splitlines()
    assert result.returncode == 0, result.stderr
    checks = [re.split(" {3,}", row) for row in rows if not row.startswith(" ")]
    assert [(title, name) for title, name, _ in checks] == [(check.title, check.name) for check in CHECKS]
    # the server of the tests does not wait for the disk, which is worth a warning
    assert summary == f"{len(CHECKS)} checks: 1 warning"
    assert [name for _, name, result in checks if result != "ok"] == ["durability"]
    place = next(number for number, row in enumerate(rows) if row.startswith("durability settings"))
    warning, finding, remedy = rows[place : place + 3]
    assert warning.endswith("   warning")
    assert finding.startswith("  2 settings by which")
    assert remedy.startswith("  remedy: set it to on")
    assert all(row == row.rstrip() for row in rows)


@pytest.mark.breaks_invariants
def test_a_violation_is_shown_with_an_example_and_a_remedy_and_fails(workplace, db):
    task_id = db.execute(STRANDED).fetchone()["id"]

    result = workplace.run("doctor")

    lines = result.stdout.splitlines()
    place = next(
        number for number, line in enumerate(lines) if line.startswith("tasks held by no live worker")
    )
    check, finding, remedy = lines[place : place + 3]
    assert result.returncode == 1
    assert result.stderr == ""
    assert check.split()[-2:] == ["limbo", "violation"]
    assert "1 task held by a worker" in finding
    assert task_id in finding
    assert "restart" in remedy
    assert result.stdout.splitlines()[-1].endswith(": 1 violation and 1 warning")


def test_warnings_fail_only_when_strict(workplace):
    assert workplace.run("doctor").returncode == 0
    assert workplace.run("doctor", "--strict").returncode == 1


@pytest.mark.breaks_invariants
def test_the_findings_are_one_json_document(workplace, db):
    task_id = db.execute(STRANDED).fetchone()["id"]

    result = workplace.run("doctor", "--json")

    document = json.loads(result.stdout)
    assert result.returncode == 1
    assert document["checks"] == [check.name for check in CHECKS]
    limbo, durability = document["findings"]
    assert sorted(limbo) == ["check", "command", "count", "examples", "level", "message", "remedy"]
    assert (limbo["check"], limbo["level"], limbo["count"]) == ("limbo", "violation", 1)
    assert limbo["examples"] == [task_id]
    assert (durability["check"], durability["level"], durability["count"]) == ("durability", "warning", 2)


@pytest.mark.breaks_invariants
def test_the_grace_is_an_option(workplace, db):
    db.execute(STRANDED)

    assert workplace.run("doctor", "--grace-seconds=7200").returncode == 0
    misused(workplace.run("doctor", "--grace-seconds=-1"), "--grace-seconds")
    misused(workplace.run("doctor", "--grace-seconds=soon"), "--grace-seconds")


def test_a_database_without_the_schema_is_told_to_migrate(workplace, empty_database_url):
    result = workplace.run("doctor", "--database-url", empty_database_url)

    _, _, remedy, summary = result.stdout.splitlines()
    assert result.returncode == 1
    assert "horsies migrate" in remedy
    assert summary == "1 check: 1 violation"


def test_the_database_may_be_given_by_an_app(workplace, database_url, deaf_port):
    workplace.write(f"app = Horsies(AppConfig.for_database_url({database_url!r}))")
    workplace.env["HORSIES_DATABASE_URL"] = f"postgresql://127.0.0.1:{deaf_port}/app"

    by_option = workplace.run("doctor", "--app", "app:app")
    workplace.env["HORSIES_APP"] = "app:app"
    by_variable = workplace.run("doctor")

    assert by_option.returncode == by_variable.returncode == 0
    misused(workplace.run("doctor", "--app", "app:app", "--database-url", database_url), "one of the two")


def test_a_database_that_cannot_be_reached_is_an_error(workplace, deaf_port):
    refused(workplace.run("doctor", "--database-url", f"postgresql://127.0.0.1:{deaf_port}/app"), "HRS-413")


def test_a_role_that_may_read_nothing_is_told_what_it_lacks(workplace, stranger, empty_database_url):
    workplace.run("migrate", "--database-url", empty_database_url)

    refused(workplace.run("doctor", "--database-url", stranger), "HRS-412", "horsies_schema_version")


def test_names_from_the_database_cannot_disturb_the_terminal(workplace, db, database_url):
    with psycopg.connect(database_url, autocommit=True) as other:
        other.execute(
            sql.SQL(
                "INSERT INTO horsies_tasks (task_name, queue_name, enqueued_at) VALUES ('add', {}, now() - interval '1 hour')"
            ).format("[red]\x1b[2J\n")
        )

    assert r"[red]\x1b[2J\n: 1 due" in workplace.run("doctor").stdout


def test_every_check_is_in_the_documentation():
    page = tables(ROOT / "docs" / "operations.md")

    violations = {check.name for check in VIOLATIONS}
    assert [row[0] for row in page["Violations"]] == [c.name for c in CHECKS if c.name in violations]
    assert [row[0] for row in page["Warnings"]] == [c.name for c in CHECKS if c.name not in violations]
