"""`info`, `tasks`, `show`, `failed`, `requeue` and `cancel`, as a person and as a program reads them."""

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
    workplace.run("suspend", "--queue=mail")

    document = json.loads(workplace.run("info", "--json").stdout)

    assert document["suspended"] is False
    default, mail = document["queues"]
    assert default["oldest_pending_seconds"] == pytest.approx(90, abs=60)
    del default["oldest_pending_seconds"]
    assert default == {
        "name": "default", "pending": 1, "scheduled": 1, "claimed": 0, "running": 0, "failed": 0,
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


def test_a_task_that_is_not_there_is_an_error(workplace):
    missing = str(uuid4())

    refused(workplace.run("show", missing), "HRS-302", missing)
    misused(workplace.run("show", "abc"), "abc")


def test_requeue_needs_to_know_what(workplace):
    misused(workplace.run("requeue"), "TASK_ID", "--all")
    misused(workplace.run("requeue", "--all", str(uuid4())), "TASK_ID", "--all")


def test_requeue_says_how_many_it_would_touch_and_then_how_many_it_did(workplace, stored, db):
    dry = workplace.run("requeue", "--all", "--dry-run")
    assert dry.stdout.startswith("1 failed tasks would")
    assert workplace.run("requeue", "--all", "--queue=other").stdout.startswith("0 of 0")

    done = workplace.run("requeue", "--all", "--code=BOUNCED")

    assert (done.returncode, done.stdout) == (0, "1 of 1 failed tasks are PENDING again\n")
    row = db.execute("SELECT status FROM horsies_tasks WHERE id = %s", (stored["FAILED"],)).fetchone()
    assert row["status"] == "PENDING"
    (action,) = db.execute("SELECT action, subject, tasks FROM horsies_actions").fetchall()
    assert action == {"action": "requeue", "subject": "code 'BOUNCED'", "tasks": 1}


def test_requeue_of_a_task_that_has_not_failed_fails(workplace, stored):
    result = workplace.run("requeue", stored["COMPLETED"])

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


def test_resume_tells_what_is_still_suspended(workplace):
    workplace.run("suspend")
    workplace.run("suspend", "--queue=mail")

    assert workplace.run("suspend").stdout == "all queues: suspended already\n"
    assert workplace.run("resume").stdout == "all queues: resumed\nstill suspended: mail\n"
    assert workplace.run("resume", "--queue=mail").stdout == "queue mail: resumed\n"
    assert workplace.run("resume").stdout == "all queues: not suspended\n"


def test_a_database_without_our_tables_is_said(workplace, empty_database_url):
    for command in ("info", "tasks", "failed", "suspend"):
        refused(workplace.run(command, f"--database-url={empty_database_url}"), "HRS-411", "horsies migrate")


def test_why_names_the_reason_and_the_remedy(workplace, stored, db):
    assert "No worker is running" in workplace.run("why", stored["PENDING"]).stdout
    assert "BOUNCED" in workplace.run("why", stored["FAILED"]).stdout
    workplace.run("suspend", "--queue=default")

    document = json.loads(workplace.run("why", stored["PENDING"], "--json").stdout)

    assert document["reasons"][0].startswith("Queue default is suspended")
    refused(workplace.run("why", str(uuid4())), "HRS-302")


def test_purge_asks_before_it_deletes(workplace, stored, db):
    assert (
        workplace.run("purge", "--older-than=0s", "--dry-run").stdout == "2 finished tasks would be deleted\n"
    )
    asked = workplace.run("purge", "--older-than=0s")
    assert asked.returncode == 1
    assert "Delete 2 finished tasks?" in asked.stdout + asked.stderr

    done = workplace.run("purge", "--older-than=0s", "--status=completed", "--yes")

    assert (done.returncode, done.stdout) == (0, "1 finished tasks deleted\n")
    left = {row["status"] for row in db.execute("SELECT status FROM horsies_tasks").fetchall()}
    assert left == {"PENDING", "FAILED"}
    assert [row["action"] for row in db.execute("SELECT action FROM horsies_actions").fetchall()] == ["purge"]


def test_purge_refuses_what_is_no_duration(workplace):
    misused(workplace.run("purge", "--older-than=soon", "--yes"), "--older-than", "soon", "7d")
    misused(workplace.run("purge", "--yes"), "--older-than")
