"""A task that is both live and in history, by hand or by a bug: operators' acts pass it over, say so, and end."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import psycopg
import pytest
from click.testing import CliRunner

from horsies.cli import horsies as command
from horsies.db.queries.operations import BATCH
from tests.pg.conftest import Add
from tests.pg.hands import Hands

Db = psycopg.Connection[dict[str, Any]]
pytestmark = pytest.mark.breaks_invariants

FAILED = (
    "INSERT INTO horsies_tasks (id, task_name, live, status, error_code, started_at, failed_at, terminal_at, result, claim_seq)"
    " VALUES (coalesce(%(id)s, gen_random_uuid()), 't', false, 'FAILED', 'X', now(), now(), %(ended)s::timestamptz,"
    " %(result)s, 7) RETURNING id"
)
SOUND = '{"err":{"error_code":"X","message":"no \\"card\\"\\n","data":null,"exception":{"traceback":"at\\nline 7"}}}'


def _failed(
    db: Db, task_id: UUID | None = None, result: str | None = SOUND, ended: str | None = "now"
) -> UUID:
    row = db.execute(FAILED.encode(), {"id": task_id, "result": result, "ended": ended}).fetchone()
    assert row is not None
    return row["id"]


def _live(db: Db, task_id: UUID) -> None:
    db.execute("INSERT INTO horsies_tasks_live (id, task_name) VALUES (%s, 't')", (task_id,))


def _statuses(db: Db) -> list[str]:
    return [
        row["status"] for row in db.execute("SELECT status FROM horsies_tasks ORDER BY status").fetchall()
    ]


def _run(database_url: str, *words: str) -> str:
    result = CliRunner().invoke(command, [*words, "--database-url", database_url])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_requeue_passes_over_a_task_that_is_live_too_and_says_so(db: Db, database_url: str) -> None:
    twin = _failed(db)
    _live(db, twin)
    _failed(db)

    output = _run(database_url, "requeue", "--all")

    assert "1 of 2 failed tasks is PENDING again" in output
    assert "1 task was not retried: a live task has the same id" in output
    assert "the others" not in output
    assert _statuses(db) == ["FAILED", "PENDING", "PENDING"]


def test_of_two_failed_rows_with_one_id_one_comes_back(db: Db, database_url: str) -> None:
    twin = _failed(db)
    _failed(db, twin, ended="2020-01-01")

    output = _run(database_url, "requeue", str(twin))

    assert "1 of 2 failed tasks is PENDING again" in output
    assert _statuses(db) == ["FAILED", "PENDING"]


def test_a_failed_task_without_a_time_of_its_end_does_not_hold_up_a_requeue(
    db: Db, database_url: str
) -> None:
    _failed(db, ended=None)
    _failed(db)

    assert "1 of 2 failed tasks is PENDING again" in _run(database_url, "requeue", "--all")


def test_an_attempt_that_is_on_record_already_does_not_hold_up_a_requeue(db: Db, database_url: str) -> None:
    task_id = _failed(db)
    db.execute(
        "INSERT INTO horsies_attempts (task_id, claim_seq, attempt, outcome) VALUES (%s, 7, 1, 'FAILED')",
        (task_id,),
    )

    assert "1 of 1 failed task is PENDING again" in _run(database_url, "requeue", "--all")


def test_failed_tasks_of_all_times_come_back(db: Db, database_url: str) -> None:
    for ended in ("infinity", "294276-12-31", "0044-03-15 BC", "-infinity"):
        _failed(db, ended=ended)

    assert "4 of 4 failed tasks are PENDING again" in _run(database_url, "requeue", "--all")


@pytest.mark.parametrize(
    ("result", "message", "traceback"),
    [
        (SOUND, 'no "card"\n', "at\nline 7"),
        (
            '{"err":{"message":"a\\u0000b\\ud800","exception":{"traceback":"\\\\u0000"}}}',
            "a\ufffdb\ufffd",
            "\\ufffd",
        ),
        ("{", None, None),
        ("[" * 100_000 + "]" * 100_000, None, None),
        ('{"err":{"message":"m","data":' + "[" * 100_000, "m", None),
        ('{"err": {"message": "\\x"}}', None, None),
        ('{"ok": {"message": "m"}}', None, None),
        (None, None, None),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_requeue_keeps_what_can_be_read_of_the_last_attempt(
    db: Db, database_url: str, result: str | None, message: str | None, traceback: str | None
) -> None:
    _failed(db, result=result)

    _run(database_url, "requeue", "--all")

    row = db.execute("SELECT error_message, traceback FROM horsies_attempts").fetchone()
    assert row == {"error_message": message, "traceback": traceback}


def test_a_requeue_of_many_ends_with_twins_among_them(db: Db, hands: Hands) -> None:
    db.execute(
        "INSERT INTO horsies_tasks (task_name, live, status, terminal_at) SELECT 't', false, 'FAILED', now()"
        " FROM generate_series(1, %s)",
        (BATCH + 5,),
    )
    db.execute(
        "INSERT INTO horsies_tasks_live (id, task_name) SELECT id, 't' FROM horsies_tasks WHERE NOT live LIMIT 3"
    )

    counts = [hands.requeue(), hands.requeue(), hands.requeue()]

    assert counts == [BATCH, 2, 0]


def test_a_task_whose_id_is_in_history_is_not_cancelled_and_others_are(
    db: Db, database_url: str, add: Add
) -> None:
    twin = _failed(db)
    _live(db, twin)
    other = add.send(1).unwrap()

    output = _run(database_url, "cancel", str(twin), other.task_id)

    assert f"{twin}: not cancelled: a finished task has the same id" in output
    assert f"{other.task_id}: cancelled" in output


def test_a_purge_deletes_tasks_of_all_times(db: Db, database_url: str) -> None:
    for ended in ("2020-01-01", "0044-03-15 BC", "-infinity", "infinity"):
        _failed(db, ended=ended)

    assert "3 finished tasks deleted" in _run(database_url, "purge", "--older-than", "1d", "--yes")
    assert _statuses(db) == ["FAILED"]


def test_a_workflow_that_is_its_own_part_can_be_cancelled(db: Db, database_url: str) -> None:
    row = db.execute(
        "INSERT INTO horsies_workflows (id, root_workflow_id, parent_workflow_id, parent_task_index, name, status, on_error,"
        " definition_key, open_tasks) SELECT id, id, id, 0, 'f', 'RUNNING', 'FAIL', 'k', 0"
        " FROM (SELECT gen_random_uuid() AS id) AS new RETURNING id"
    ).fetchone()
    assert row is not None

    async def cancel() -> str:
        return await asyncio.to_thread(_run, database_url, "workflows", "cancel", str(row["id"]))

    assert "cancelled" in asyncio.run(asyncio.wait_for(cancel(), 30))
