"""`keys`, `tasks --key`, `pause --key` and `why`, as an operator uses them."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import misused

WORKER = "00000000-0000-0000-0000-000000000001"
TASKS = f"""
INSERT INTO horsies_task_definitions (task_name, queue_name, priority, is_async, max_retries, key_concurrency)
VALUES ('resize', 'default', 100, false, 0, 2);
INSERT INTO horsies_workers (worker_id, hostname, pid, processes, queues, task_names, lease_expires_at)
VALUES ('{WORKER}', 'here', 1, 4, '{{default}}', '{{resize}}', now() + interval '1 hour');
INSERT INTO horsies_tasks (task_name, rate_key, status, claimed_by_worker_id, claim_seq, claimed_at, started_at)
SELECT 'resize', 'key=acme', 'RUNNING', '{WORKER}', 1, now(), now() FROM generate_series(1, 2);
INSERT INTO horsies_key_slots (rate_key, task_id, claim_seq) SELECT rate_key, id, 1 FROM horsies_tasks_live;
INSERT INTO horsies_tasks (task_name, rate_key, enqueued_at)
VALUES ('resize', 'key=acme', now() - interval '5 min'), ('resize', 'key=acme', now()),
       ('resize', 'key=late one', now() - interval '3 hours');
"""


@pytest.fixture
def stored(db):
    """The ids of the tasks that wait, the first one first."""
    db.execute(TASKS)
    return [
        row["id"]
        for row in db.execute(
            "SELECT id::text FROM horsies_tasks_live WHERE status = 'PENDING' AND rate_key = 'key=acme' ORDER BY enqueued_at"
        )
    ]


def test_keys_that_wait_longest_come_first_or_the_busiest(workplace, stored):
    header, first, second = workplace.run("keys").stdout.splitlines()
    assert header.split() == ["key", "running", "waiting", "oldest", "state"]
    assert first.split() == ["late", "one", "0", "1", "3", "h"]
    assert second.split()[:3] == ["acme", "2", "2"]

    assert workplace.run("keys", "--busiest").stdout.splitlines()[1].startswith("acme")
    document = json.loads(workplace.run("keys", "--json", "--limit=1").stdout)
    assert [key["key"] for key in document["keys"]] == ["late one"]


def test_without_keys_that_is_said(workplace, db):
    result = workplace.run("keys")
    assert (result.returncode, result.stdout) == (0, "no task with a key is running or waiting\n")


def test_tasks_can_be_listed_by_key(workplace, stored):
    found = json.loads(workplace.run("tasks", "--key", "acme", "--json").stdout)["tasks"]
    assert len(found) == 4
    assert json.loads(workplace.run("tasks", "--key", "nobody", "--json").stdout)["tasks"] == []


def test_why_names_the_tasks_that_hold_the_key_and_those_ahead(workplace, stored):
    first, second = (workplace.run("why", task_id).stdout for task_id in stored)
    assert "2 of 2 tasks of key 'acme' are running: resize " in first
    assert "behind" not in first
    assert "It is behind 1 task of its key" in second


def test_a_key_can_be_paused_and_resumed_and_both_are_recorded(workplace, stored, db):
    assert workplace.run("pause", "--key", "late one").stdout == "key late one: paused\n"
    assert workplace.run("pause", "--key", "late one").stdout == "key late one: paused already\n"
    assert "paused by" in workplace.run("keys").stdout
    late = db.execute("SELECT id::text FROM horsies_tasks_live WHERE rate_key = 'key=late one'").fetchone()
    assert "Key 'late one' was paused by" in workplace.run("why", late["id"]).stdout

    assert workplace.run("resume", "--key", "late one").stdout == "key late one: resumed\n"
    assert workplace.run("resume", "--key", "late one").stdout == "key late one: not paused\n"

    actions = db.execute("SELECT action, subject FROM horsies_actions ORDER BY id").fetchall()
    assert [tuple(row.values()) for row in actions] == [("pause key", "late one"), ("resume key", "late one")]


def test_a_key_that_cannot_be_is_refused(workplace):
    misused(workplace.run("pause", "--key", ""), "--key")
    misused(workplace.run("pause", "--key", "x" * 201), "201 characters")
    misused(workplace.run("pause", "--key=a", "--queue=b"), "not both")
