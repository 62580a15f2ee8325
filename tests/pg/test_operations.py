"""What an operator does: failed tasks are sent through once more, queues are suspended, and all of it is on record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest

from horsies import Horsies
from horsies.db.queries.operations import ALL_QUEUES, Selection
from tests.pg.conftest import Add, define_add
from tests.pg.hands import Hands
from tests.pg.test_notifying import heard, listen

Db = psycopg.Connection[dict[str, Any]]


def _rows(db: Db) -> list[dict[str, Any]]:
    return db.execute("SELECT * FROM horsies_tasks ORDER BY id").fetchall()


def _fail(add: Add, hands: Hands, count: int = 1) -> list[UUID]:
    handles = [add.send(number).unwrap() for number in range(count)]
    hands.fail(hands.run_next())
    return [UUID(handle.task_id) for handle in handles]


def test_a_requeued_task_is_the_same_task_as_new(add: Add, hands: Hands, db: Db) -> None:
    (task_id,) = _fail(add, hands)
    (before,) = _rows(db)

    assert hands.requeue() == 1

    (row,) = _rows(db)
    assert (row["id"], row["status"], row["live"]) == (task_id, "PENDING", True)
    assert (row["kwargs"], row["sent_at"]) == (before["kwargs"], before["sent_at"])
    assert (row["retry_count"], row["crash_count"], row["max_retries"]) == (0, 0, before["max_retries"])
    gone = ("result", "error_code", "failed_at", "terminal_at", "started_at", "claimed_by_worker_id")
    assert [row[column] for column in gone] == [None] * len(gone)
    assert row["claim_seq"] > before["claim_seq"]
    (again,) = hands.run_next()
    assert again.id == str(task_id)
    assert hands.complete([again]) == 1


def test_the_attempts_before_a_requeue_are_kept_and_counted_on(add: Add, hands: Hands, db: Db) -> None:
    add.send(1).unwrap()
    hands.fail(hands.run_next(), delay_seconds=0)
    hands.fail(hands.run_next())
    hands.requeue()
    hands.fail(hands.run_next(), delay_seconds=0)
    hands.complete(hands.run_next())

    query = "SELECT attempt, outcome, will_retry FROM horsies_task_attempts ORDER BY attempt"
    assert [tuple(row.values()) for row in db.execute(query).fetchall()] == [
        (1, "FAILED", True),
        (2, "FAILED", False),
        (3, "FAILED", True),
        (4, "COMPLETED", False),
    ]


def test_only_what_has_failed_is_requeued_and_once(add: Add, hands: Hands, db: Db) -> None:
    _fail(add, hands)
    add.send(1).unwrap()
    hands.complete(hands.run_next())
    add.send(2).unwrap()

    assert (hands.requeue(), hands.requeue()) == (1, 0)
    assert sorted(row["status"] for row in _rows(db)) == ["COMPLETED", "PENDING", "PENDING"]


def test_what_is_requeued_can_be_chosen(app: Horsies, hands: Hands) -> None:
    add = define_add(app)
    first, second, third = _fail(add, hands, 3)

    assert hands.requeue(Selection(queue="other")) == 0
    assert hands.requeue(Selection(name="other")) == 0
    assert hands.requeue(Selection(code="OTHER")) == 0
    assert hands.requeue(Selection(ids=[second])) == 1
    assert hands.requeue(Selection(queue="default", name="add", code="BROKEN")) == 2
    assert {task.id for task in hands.claim()} == {str(first), str(second), str(third)}
    hands.release()


def test_a_deadline_that_is_over_does_not_end_a_requeued_task(add: Add, hands: Hands, db: Db) -> None:
    _fail(add, hands)
    db.execute("UPDATE horsies_tasks SET good_until = now() - interval '1 hour'")

    hands.requeue()

    assert len(hands.run_next()) == 1
    hands.release()


def test_of_failed_tasks_with_one_unique_key_only_one_comes_back(
    make_app: Callable[..., Horsies], hands: Hands, db: Db
) -> None:
    add = define_add(make_app(), unique="args")
    for _ in range(2):
        add.send(1).unwrap()
        hands.fail(hands.run_next())

    assert (hands.requeue(), hands.requeue()) == (1, 0)
    assert sorted(row["status"] for row in _rows(db)) == ["FAILED", "PENDING"]


def test_a_sleeping_worker_is_told_of_what_comes_back(add: Add, hands: Hands, db: Db) -> None:
    _fail(add, hands)
    db.execute("LISTEN task_queue_default")

    hands.requeue()

    assert [notify.channel for notify in db.notifies(timeout=5, stop_after=1)] == ["task_queue_default"]


def test_workers_that_are_not_seen_to_sleep_are_told_too(add: Add, hands: Hands, db: Db) -> None:
    """A worker may be about to sleep when the statement looks; a lost wake-up would cost it a poll."""
    hands.register(waiting=False)
    _fail(add, hands)
    listen(db, "task_queue_default")

    hands.requeue()

    assert heard(db) == [("task_queue_default", "")]


def test_a_suspension_is_told_to_workers_at_their_next_beat(hands: Hands) -> None:
    hands.register(waiting=False)
    assert (hands.suspend("mail"), hands.suspend("mail"), hands.suspend(ALL_QUEUES)) == (True, False, True)

    assert sorted(hands.beat().suspended) == ["", "mail"]
    assert (hands.resume("mail"), hands.resume("mail")) == (True, False)
    assert hands.beat().suspended == [""]


@pytest.mark.parametrize("act", ["suspend", "resume"])
def test_workers_need_not_wait_for_their_next_beat(hands: Hands, db: Db, act: str) -> None:
    if act == "resume":
        hands.suspend("mail")
    db.execute("LISTEN horsies_control")

    getattr(hands, act)("mail")

    assert len(list(db.notifies(timeout=5, stop_after=1))) == 1


def test_every_act_is_on_record(hands: Hands, db: Db) -> None:
    hands.suspend("mail")
    hands.resume("mail")
    hands.resume("mail")

    query = "SELECT actor, action, subject FROM horsies_actions ORDER BY id"
    assert [tuple(row.values()) for row in db.execute(query).fetchall()] == [
        ("ann", "suspend", "mail"),
        ("ann", "resume", "mail"),
    ]
