"""A task that a worker does not know is left to a worker that knows it; if there is none, it waits, and then it fails."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from horsies import Horsies
from horsies.db.queries.tasks import Lane, PoolRoom
from horsies.db.queries.workers import Definition
from horsies.worker.claim import START
from tests.pg.conftest import define_add
from tests.pg.hands import Hands

Db = psycopg.Connection[dict[str, Any]]
ADD = Definition("add", "default", 100, False, 0, None, None)


def _row(db: Db) -> dict[str, Any]:
    (row,) = db.execute(
        "SELECT *, enqueued_at > now() AS is_later, unknown_until - now() AS patience FROM horsies_tasks"
    ).fetchall()
    return row


def test_a_task_that_no_live_worker_knows_is_due_later(app: Horsies, hands: Hands, db: Db) -> None:
    define_add(app).send(1).unwrap()
    claimed = hands.run_next()

    assert hands.defer_unknown(claimed, 60) == {claimed[0].id: False}

    row = _row(db)
    assert (row["status"], row["is_later"]) == ("PENDING", True)
    assert 50 < row["patience"].total_seconds() <= 60
    assert (hands.defer_unknown(claimed, 60), hands.run_next()) == ({}, [])


def test_the_grace_period_starts_when_a_worker_first_meets_the_task_however_long_it_was_due(
    app: Horsies, hands: Hands, db: Db
) -> None:
    define_add(app).send(1).unwrap()
    db.execute("UPDATE horsies_tasks_live SET enqueued_at = now() - interval '1 h'")

    assert list(hands.defer_unknown(hands.run_next(), 60).values()) == [False]


@pytest.mark.parametrize("until", ["now()", "now() - interval '1 s'", "'-infinity'"])
def test_a_task_is_kept_to_fail_when_its_grace_period_is_over(
    app: Horsies, hands: Hands, db: Db, until: str
) -> None:
    define_add(app).send(1).unwrap()
    db.execute(f"UPDATE horsies_tasks_live SET unknown_since = enqueued_at, unknown_until = {until}".encode())

    assert hands.defer_unknown(hands.run_next(), 60) == {}
    assert db.execute("SELECT status FROM horsies_tasks").fetchall() == [{"status": "RUNNING"}]


def test_a_task_does_not_wait_for_ever_whatever_stands_in_its_row(app: Horsies, hands: Hands, db: Db) -> None:
    define_add(app).send(1).unwrap()
    db.execute("UPDATE horsies_tasks_live SET enqueued_at = '-infinity', unknown_until = 'infinity'")

    assert list(hands.defer_unknown(hands.run_next(), 60).values()) == [False]
    patience = "SELECT unknown_until <= now() + interval '60 s' AS is_short FROM horsies_tasks"
    assert db.execute(patience).fetchall() == [{"is_short": True}]


def test_without_a_grace_period_a_task_that_no_live_worker_knows_is_kept_to_fail(
    app: Horsies, hands: Hands
) -> None:
    define_add(app).send(1).unwrap()

    assert hands.defer_unknown(hands.run_next(), 0) == {}


@pytest.mark.parametrize("grace_seconds", [0, 60])
def test_a_task_that_a_live_worker_knows_stays_due_whatever_the_grace_period(
    app: Horsies, hands: Hands, db: Db, grace_seconds: int
) -> None:
    define_add(app).send(1).unwrap()
    due = _row(db)["enqueued_at"]
    hands.register(waiting=False, definitions=[ADD])
    (claimed,) = hands.run_next()

    assert hands.defer_unknown([claimed], grace_seconds) == {claimed.id: True}

    row = _row(db)
    assert (row["status"], row["enqueued_at"], row["unknown_since"]) == ("PENDING", due, None)


@pytest.mark.parametrize(
    "otherwise",
    [
        "queues = '{mail}'",
        "state = 'draining'",
        "lease_expires_at = now()",
        "dead_at = now()",
        "task_names = '{subtract}'",
    ],
)
def test_a_worker_that_cannot_run_the_task_does_not_count(
    app: Horsies, hands: Hands, db: Db, otherwise: str
) -> None:
    define_add(app).send(1).unwrap()
    (claimed,) = hands.run_next()
    hands.register(waiting=False, definitions=[ADD])
    db.execute(f"UPDATE horsies_workers SET {otherwise}".encode())

    assert hands.defer_unknown([claimed], 60) == {claimed.id: False}


def test_what_was_put_off_is_due_as_before_when_a_worker_comes_that_knows_it(
    app: Horsies, hands: Hands, db: Db
) -> None:
    define_add(app).send(1).unwrap()
    before = _row(db)["enqueued_at"]
    hands.defer_unknown(hands.run_next(), 60)

    hands.register(waiting=False, definitions=[ADD])

    row = _row(db)
    assert (row["enqueued_at"], row["unknown_since"], row["unknown_until"]) == (before, None, None)
    assert len(hands.run_next()) == 1


def test_a_claim_leaves_out_the_names_of_a_queue_that_it_is_told(app: Horsies, hands: Hands, db: Db) -> None:
    define_add(app).send(1).unwrap()
    db.execute("INSERT INTO horsies_tasks (task_name, queue_name) VALUES ('new', 'default'), ('new', 'mail')")
    lanes = [Lane(0, queue, False, "", 10, *START) for queue in ("default", "mail")]

    _, claimed, *_ = hands.settle_and_claim(
        [], lanes, [PoolRoom(0, 10, 0, [])], left_out=json.dumps({"default": ["new", "newer"]})
    )

    assert sorted((task.queue_name, task.task_name) for task in claimed) == [
        ("default", "add"),
        ("mail", "new"),
    ]
