"""`info`, `tasks`, `show`, `failed`, `retry` and `cancel`, as a person and as a program reads them."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest

from tests.cli.conftest import misused, refused

TASKS = """
    INSERT INTO horsies_tasks (id, task_name, queue_name, status, live, kwargs, result, error_code, failed_reason,
                               started_at, failed_at, completed_at, terminal_at, claimed_by_worker_id, enqueued_at)
    SELECT gen_random_uuid(), name, queue, status, live, '{"x":1}', result, code, NULL,
           ended, ended, ended, ended, CASE WHEN status <> 'PENDING' THEN gen_random_uuid() END,
           now() + make_interval(secs => delay)
      FROM (VALUES ('add', 'default', 'PENDING', true, NULL, NULL, NULL::timestamptz, -90),
                   ('add', 'default', 'PENDING', true, NULL, NULL, NULL, 3600),
                   ('add', 'default', 'COMPLETED', false, '{"ok":1}', NULL, now(), 0),
                   ('send', 'mail', 'FAILED', false,
                    '{"err":{"error_code":"BOUNCED","message":"no such box","data":null,"exception":null}}',
                    'BOUNCED', now(), 0)) AS row (name, queue, status, live, result, code, ended, delay)
    RETURNING id::text, status
"""


@pytest.fixture
def stored(db):
    """The ids of a few tasks, by their state."""
    return {row["status"]: row["id"] for row in db.execute(TASKS).fetchall()}


def test_info_counts_the_tasks_of_each_queue(workplace, stored):
    result = workplace.run("info")

    header, default, mail = result.stdout.splitlines()
    assert result.returncode == 0, result.stderr
    assert header.split() == [
        "queue", "pending", "scheduled", "claimed", "running", "failed", "oldest", "limit", "state",
    ]  # fmt: skip
    assert default.split() == ["default", "1", "1", "0", "0", "0", "1", "min"]
    assert mail.split() == ["mail", "0", "0", "0", "0", "1"]


def test_info_is_one_json_document(workplace, stored):
    workplace.run("pause", "--queue=mail")

    document = json.loads(workplace.run("info", "--json").stdout)

    assert document["suspended"] is False
    default, mail = document["queues"]
    assert default["oldest_pending_seconds"] == pytest.approx(90, abs=60)
    del default["oldest_pending_seconds"]
    assert default == {
        "name": "default", "pending": 1, "scheduled": 1, "parked": 0, "claimed": 0, "running": 0, "failed": 0,
        "max_concurrency": None, "suspended": False,
    }  # fmt: skip
    assert (mail["failed"], mail["suspended"]) == (1, True)


def test_info_of_workers_names_each_with_what_it_does(workplace):
    workplace.write("app = Horsies()\n@app.task('t')\ndef t() -> TaskResult[None, TaskError]: ...\n")
    worker = workplace.start("--processes=3")

    (found,) = json.loads(workplace.run("info", "-W", "--json").stdout)["workers"]

    assert (found["pid"], found["processes"], found["queues"]) == (worker.pid, 3, ["default"])
    assert (found["tasks_running"], found["current_task_ids"]) == (0, [])
    assert {"worker_id", "hostname", "state", "started_at", "last_beat_at", "memory_usage_mb",
            "children_memory_mb"} <= found.keys()  # fmt: skip
    table = workplace.run("info", "-W").stdout.splitlines()
    assert table[1].split()[0] == found["worker_id"]


def test_nothing_there_is_said_and_no_error(workplace):
    for command, words in (("info", "no tasks"), ("tasks", "no such tasks"), ("failed", "no such tasks")):
        result = workplace.run(command)
        assert (result.returncode, result.stderr) == (0, "")
        assert words in result.stdout


def test_tasks_are_listed_by_what_is_asked_for(workplace, stored):
    def ids(*arguments: str) -> set[str]:
        return {
            task["task_id"]
            for task in json.loads(workplace.run("tasks", "--json", *arguments).stdout)["tasks"]
        }

    assert len(ids()) == 4
    assert ids("--status=failed") == ids("--queue=mail") == ids("--name=send") == ids("--code=BOUNCED")
    assert ids("--status=failed") == {stored["FAILED"]}
    assert len(ids("--limit=2")) == 2


def test_failed_says_why(workplace, stored):
    header, line = workplace.run("failed").stdout.splitlines()

    assert line[header.index("error") :].split()[0] == "BOUNCED"
    assert line[header.index("message") :].startswith("no such box")
    assert stored["FAILED"] in line


def test_show_has_everything_of_a_task(workplace, stored, db):
    db.execute(
        "INSERT INTO horsies_progress (task_id, claim_seq, done, total, message) VALUES (%s, 1, 3, 8, 'packing')",
        (stored["FAILED"],),
    )
    db.execute(
        "INSERT INTO horsies_task_logs (task_id, claim_seq, seq, attempt, at, level, logger, message)"
        " VALUES (%s, 1, 0, 1, now(), 'INFO', 'shop', 'about to send')",
        (stored["FAILED"],),
    )
    document = json.loads(workplace.run("show", stored["FAILED"], "--json").stdout)

    assert (document["task_id"], document["status"]) == (stored["FAILED"], "FAILED")
    assert document["kwargs"] == {"x": 1}
    assert document["result"]["err"]["message"] == "no such box"
    (attempt,) = document["attempts"]
    assert (attempt["attempt"], attempt["error_code"]) == (1, "BOUNCED")
    assert (document["progress"]["done"], document["progress"]["message"]) == (3, "packing")
    (line,) = document["logs"]
    assert (line["attempt"], line["level"], line["logger"], line["message"]) == (
        1,
        "INFO",
        "shop",
        "about to send",
    )
    text = workplace.run("show", stored["FAILED"]).stdout
    assert "no such box" in text
    assert '{"x":1}' in text
    assert "3 of 8, packing" in text
    assert "about to send" in text


FAILURE = {
    "err": {
        "error_code": {"__builtin_task_code__": "UNHANDLED_EXCEPTION"},
        "message": "no such box",
        "data": {"box": 7},
        "exception": {
            "type": "LookupError",
            "traceback": 'Traceback (most recent call last):\n  File "mail.py", line 3, in send\nLookupError: \x1b[2J\n',
        },
    }
}


def store_failure(db, result: object, ended: str = "now") -> str:
    return db.execute(
        "INSERT INTO horsies_tasks (task_name, queue_name, status, live, result, error_code, started_at, failed_at,"
        " terminal_at, enqueued_at, claimed_by_worker_id) SELECT 'send', 'mail', 'FAILED', false, %s, 'BOUNCED', at, at, at, at,"
        " gen_random_uuid() FROM (SELECT %s::timestamptz AS at) AS ended RETURNING id::text",
        (json.dumps(result), ended),
    ).fetchone()["id"]


def test_show_aligns_the_fields_and_ends_with_the_traceback_as_text(workplace, db):
    lines = workplace.run("show", store_failure(db, FAILURE)).stdout.splitlines()

    assert lines[-4:] == [
        "traceback",
        "  Traceback (most recent call last):",
        '    File "mail.py", line 3, in send',
        r"  LookupError: \x1b[2J",
    ]
    fields = lines[: lines.index("")]
    (width,) = {len(line) - len(line.split(maxsplit=1)[1]) for line in fields}
    assert all(line[width - 3 : width] == "   " for line in fields)
    assert lines == [line.rstrip() for line in lines]
    (result,) = [line for line in fields if line.startswith("result ")]
    assert '"data":{"box":7}' in result
    assert "Traceback" not in result


def test_show_has_built_in_codes_as_text_and_in_json_as_they_are_stored(workplace, db):
    task_id = store_failure(db, FAILURE)
    db.execute(
        "INSERT INTO horsies_steps (task_id, claim_seq, name, kind, attempt, result, started_at, ended_at)"
        " VALUES (%s, 0, 'charge', 'step', 1, %s, now(), now())",
        (task_id, json.dumps(FAILURE)),
    )

    shown = workplace.run("show", task_id).stdout
    compared = workplace.run("show", task_id, "--diff").stdout
    document = json.loads(workplace.run("show", task_id, "--json").stdout)

    assert '"error_code":"UNHANDLED_EXCEPTION"' in shown
    assert "__builtin_task_code__" not in shown + compared
    assert document["result"] == FAILURE


def test_every_time_has_one_format(workplace, db):
    workplace.env["TZ"] = "America/New_York"
    at = "2026-07-01 12:00:00.5Z"
    task_id = store_failure(db, FAILURE, at)
    db.execute(
        "INSERT INTO horsies_workflows (id, root_workflow_id, open_tasks, status, on_error, name, definition_key, sent_at,"
        " completed_at) SELECT id, id, 0, 'COMPLETED', 'FAIL', 'w', 'k', %s, %s FROM (SELECT gen_random_uuid() AS id) AS new",
        (at, at),
    )
    db.execute(
        "INSERT INTO horsies_task_logs (task_id, claim_seq, seq, attempt, at, level, logger, message)"
        " VALUES (%s, 1, 0, 1, %s, 'INFO', 'shop', 'about to send')",
        (task_id, at),
    )

    for words in (["show", task_id], ["workflows", "list"], ["events", "--since=36500d"]):
        lines = workplace.run(*words).stdout.splitlines()
        assert any("2026-07-01 08:00:00.500-04:00" in line for line in lines), (words, lines)
        assert not any(" 08:00:00" in line and "08:00:00.500-04:00" not in line for line in lines)


def test_a_task_that_is_not_there_is_an_error(workplace):
    missing = str(uuid4())

    refused(workplace.run("show", missing), "HRS-302", missing)
    misused(workplace.run("show", "abc"), "abc")


def test_retry_needs_to_know_what(workplace):
    misused(workplace.run("retry"), "TASK_ID", "--all")
    misused(workplace.run("retry", "--all", str(uuid4())), "TASK_ID", "--all")


def test_retry_says_how_many_it_would_touch_and_then_how_many_it_did(workplace, stored, db):
    dry = workplace.run("retry", "--all", "--dry-run")
    assert dry.stdout.startswith("1 failed task would")
    assert workplace.run("retry", "--all", "--queue=other").stdout.startswith("0 of 0")

    done = workplace.run("retry", "--all", "--code=BOUNCED")

    assert (done.returncode, done.stdout) == (0, "1 of 1 failed task is PENDING again\n")
    row = db.execute("SELECT status FROM horsies_tasks WHERE id = %s", (stored["FAILED"],)).fetchone()
    assert row["status"] == "PENDING"
    (action,) = db.execute("SELECT action, subject, tasks FROM horsies_actions").fetchall()
    assert action == {"action": "requeue", "subject": "code 'BOUNCED'", "tasks": 1}


def test_retry_of_a_task_that_has_not_failed_fails(workplace, stored):
    result = workplace.run("retry", stored["COMPLETED"])

    assert result.returncode == 1
    assert "none of these tasks has failed" in result.stderr


def test_cancel_says_what_became_of_each_task_and_which_there_is_not(workplace, stored, db):
    missing = str(uuid4())
    result = workplace.run("cancel", stored["PENDING"], stored["COMPLETED"], missing)

    assert sorted(result.stdout.splitlines()) == sorted(
        [f"{stored['PENDING']}: cancelled", f"{stored['COMPLETED']}: COMPLETED already"]
    )
    refused(result, "HRS-302", missing)
    (action,) = db.execute("SELECT action, tasks FROM horsies_actions").fetchall()
    assert action == {"action": "cancel", "tasks": 1}

    document = json.loads(workplace.run("cancel", stored["PENDING"], "--json").stdout)
    assert document == {"tasks": [{"task_id": stored["PENDING"], "status": "CANCELLED", "cancelled": False}]}


def test_resume_tells_what_is_still_paused(workplace):
    workplace.run("pause")
    workplace.run("pause", "--queue=mail")

    assert workplace.run("pause").stdout == "all queues: paused already\n"
    assert workplace.run("resume").stdout == "all queues: resumed\nstill paused: mail\n"
    assert workplace.run("resume", "--queue=mail").stdout == "queue mail: resumed\n"
    assert workplace.run("resume").stdout == "all queues: not paused\n"


def test_a_database_without_our_tables_is_said(workplace, empty_database_url):
    for command in ("info", "tasks", "failed", "pause"):
        refused(workplace.run(command, f"--database-url={empty_database_url}"), "HRS-411", "horsies migrate")


def test_why_names_the_reason_and_the_remedy(workplace, stored, db):
    assert "No worker is running" in workplace.run("why", stored["PENDING"]).stdout
    assert "BOUNCED" in workplace.run("why", stored["FAILED"]).stdout
    workplace.run("pause", "--queue=default")

    document = json.loads(workplace.run("why", stored["PENDING"], "--json").stdout)

    assert document["reasons"][0].startswith("Queue default is paused")
    refused(workplace.run("why", str(uuid4())), "HRS-302")


def test_purge_asks_before_it_deletes(workplace, stored, db):
    assert (
        workplace.run("purge", "--older-than=0s", "--dry-run").stdout == "2 finished tasks would be deleted\n"
    )
    asked = workplace.run("purge", "--older-than=0s")
    assert asked.returncode == 1
    assert "Delete 2 finished tasks?" in asked.stdout + asked.stderr

    done = workplace.run("purge", "--older-than=0s", "--status=completed", "--yes")

    assert (done.returncode, done.stdout) == (0, "1 finished task deleted\n")
    left = {row["status"] for row in db.execute("SELECT status FROM horsies_tasks").fetchall()}
    assert left == {"PENDING", "FAILED"}
    assert [row["action"] for row in db.execute("SELECT action FROM horsies_actions").fetchall()] == ["purge"]


def test_purge_refuses_what_is_no_duration(workplace):
    misused(workplace.run("purge", "--older-than=soon", "--yes"), "--older-than", "soon", "7d")
    misused(workplace.run("purge", "--yes"), "--older-than")
