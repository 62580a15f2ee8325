"""What a user gives to a command that PostgreSQL or the calendar has no place for is refused, with the reason."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result

from horsies.cli import horsies as command
from tests.cli.conftest import misused
from tests.support.hostile import DEEP_LIST, LONG

Db = psycopg.Connection[dict[str, Any]]
# Nobody listens there: whoever asked would be told so.
NOWHERE = "postgresql://nobody@127.0.0.1:1/none"


def _refused(*words: str) -> Result:
    result = CliRunner().invoke(command, [*words, "--database-url", NOWHERE])
    assert result.exit_code == 2, result.output
    assert "error[HRS-206]" in result.stderr
    assert "Traceback" not in result.stderr
    return result


@pytest.mark.parametrize(
    "given", ["800000d", "99999999999h", "9" * 5000 + "s", "-5m", "5", "", "5 m", "\u0665m", "1e3s", "5m5m"]
)
@pytest.mark.parametrize("words", [("events", "--since"), ("purge", "--older-than")])
def test_a_time_span_that_makes_no_sense_is_refused(words: tuple[str, str], given: str) -> None:
    result = _refused(*words, given)

    assert "write 30s, 15m, 12h or 7d" in result.stderr
    assert len(result.stderr) < 1_000


@pytest.mark.parametrize("given", ["0s", "36525d", "900000h"])
@pytest.mark.parametrize("words", [("events", "--since"), ("purge", "--dry-run", "--older-than")])
def test_every_time_span_up_to_a_century_is_taken(
    database_url: str, words: tuple[str, ...], given: str
) -> None:
    result = CliRunner().invoke(command, [*words, given, "--database-url", database_url])

    is_longer = given == "900000h"
    assert result.exit_code == (2 if is_longer else 0), result.output


@pytest.mark.parametrize(
    "words",
    [
        ("tasks", "--name", "a\0b"),
        ("failed", "--queue", "a\0b"),
        ("retry", "--all", "--code", "a\0b"),
        ("pause", "--queue", "a\0b"),
        ("schedules", "pause", "a\0b"),
        ("workflows", "list", "--name", "a\0b"),
        ("events", "--name", "a\0b"),
        ("health", "--host", "a\0b"),
    ],
)
def test_a_name_with_a_nul_is_refused(words: tuple[str, ...]) -> None:
    assert "has a NUL character in it" in _refused(*words).stderr


def test_a_name_that_is_not_utf_8_is_refused() -> None:
    words = [sys.executable.encode(), b"-m", b"horsies", b"tasks", b"--name", b"\xff\xfe"]
    environment = {**os.environ, "HORSIES_DATABASE_URL": NOWHERE, "PYTHONUTF8": "1"}

    result = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)

    misused(result, "has bytes that are not UTF-8 in it")


def test_arguments_of_a_schedule_that_are_nested_too_deeply_are_refused() -> None:
    result = _refused("schedules", "create", "s", "--task", "t", "--every", "5m", "--kwargs", DEEP_LIST)

    assert "is no JSON object" in result.stderr
    assert len(result.stderr) < 1_000


def test_a_name_of_a_megabyte_is_cut_in_tables_and_whole_in_json(db: Db, database_url: str) -> None:
    db.execute(
        "INSERT INTO horsies_schedule_state (schedule_name, definition, config_hash) VALUES ('s', '{}', 'h')"
    )
    db.execute("UPDATE horsies_schedule_state SET error = %s", (LONG,))

    table = CliRunner().invoke(command, ["schedules", "list", "--database-url", database_url])
    document = CliRunner().invoke(command, ["schedules", "list", "--json", "--database-url", database_url])

    assert (table.exit_code, document.exit_code) == (0, 0)
    assert len(table.output) < 5_000
    assert LONG in document.output


def test_stored_texts_that_cannot_be_decoded_are_flagged(db: Db, database_url: str) -> None:
    row = db.execute(
        "INSERT INTO horsies_tasks (task_name, kwargs, args) VALUES ('t', %s, '{') RETURNING id", (DEEP_LIST,)
    ).fetchone()
    assert row is not None

    shown = CliRunner().invoke(command, ["show", str(row["id"]), "--database-url", database_url])

    assert shown.exit_code == 0, shown.output
    assert shown.output.count("(cannot be decoded)") == 2
    assert len(shown.output) < 100_000


def test_times_without_end_are_written_as_such(db: Db, database_url: str) -> None:
    db.execute(
        "INSERT INTO horsies_workers (worker_id, hostname, pid, queues, processes, lease_expires_at, started_at, last_beat_at)"
        " VALUES (gen_random_uuid(), 'h', 1, '{default}', 1, 'infinity', '-infinity', 'infinity')"
    )

    result = CliRunner().invoke(command, ["info", "-W", "--database-url", database_url])

    assert result.exit_code == 0, result.output
    assert " infinity " in result.output
    assert result.output.rstrip().endswith(" infinity")
