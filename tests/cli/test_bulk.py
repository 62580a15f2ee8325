"""The bulk commands work on what matches every filter, and on nothing else."""

from __future__ import annotations

import pytest

from tests.cli.conftest import misused

TASKS = """
    INSERT INTO horsies_tasks (task_name, queue_name, status, live, kwargs, error_code, started_at, failed_at, terminal_at)
    SELECT name, queue, 'FAILED', false, '{}', code, now(), now(), now()
      FROM (VALUES ('send', 'mail', 'TIMEOUT'), ('other', 'mail', 'TIMEOUT'), ('send', 'other', 'TIMEOUT'),
                   ('send', 'mail', 'OTHER')) AS row (name, queue, code)
"""
FILTERS = ("--queue=mail", "--name=send", "--code=TIMEOUT")


@pytest.fixture
def stored(db):
    """Four failed tasks, of which one matches all filters and each other misses one of them."""
    db.execute(TASKS)
    return db


@pytest.mark.parametrize("command", [("purge", "--older-than=0s", "--yes"), ("retry", "--all")])
def test_a_bulk_command_leaves_tasks_alone_that_miss_one_filter(workplace, stored, command):
    done = workplace.run(*command, *FILTERS)

    assert done.returncode == 0, done.stderr
    left = stored.execute(
        "SELECT task_name, queue_name, error_code FROM horsies_tasks WHERE status = 'FAILED'"
    )
    assert sorted(tuple(row.values()) for row in left.fetchall()) == [
        ("other", "mail", "TIMEOUT"),
        ("send", "mail", "OTHER"),
        ("send", "other", "TIMEOUT"),
    ]
    (record,) = stored.execute("SELECT subject, tasks FROM horsies_actions").fetchall()
    assert record["tasks"] == 1
    assert "queue 'mail' and name 'send' and code 'TIMEOUT'" in record["subject"]


def test_a_requeue_by_id_heeds_the_filters_too(workplace, stored):
    row = stored.execute("SELECT id::text FROM horsies_tasks WHERE error_code = 'OTHER'").fetchone()

    done = workplace.run("retry", row["id"], "--code=TIMEOUT")

    assert done.returncode == 1
    assert stored.execute("SELECT count(*) FROM horsies_tasks WHERE status = 'FAILED'").fetchone() == {
        "count": 4
    }


def test_a_bulk_command_without_ids_and_without_all_is_refused(workplace, stored):
    misused(workplace.run("retry"), "--all")
    misused(workplace.run("purge", "--yes"), "--older-than")
