"""Batches in the database: which tasks are claimed together, when, and by whom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from horsies.db.queries.tasks import BatchLane, Claimed
from horsies.db.queries.workers import Definition
from tests.pg.hands import Hands

Db = psycopg.Connection[dict[str, Any]]

LANE = BatchLane("default", False, "batch=index", level=0, size=3, linger=60.0)


def insert(
    db: Db, count: int, *, age: float = 0.0, lane: str = "batch=index", queue: str = "default"
) -> None:
    db.execute(
        "INSERT INTO horsies_tasks (task_name, queue_name, rate_key, enqueued_at, args)"
        " SELECT 'index', %s, %s, now() - make_interval(secs => %s), format('[%%s]', n) FROM generate_series(1, %s) AS n",
        (queue, lane, age, count),
    )


def numbers(batches: list[list[Claimed]]) -> list[list[str | None]]:
    return [[member.args for member in members] for members in batches]


def test_a_batch_is_claimed_when_it_is_full(hands: Hands, db: Db) -> None:
    insert(db, 2)
    assert hands.claim_batches(LANE) == []

    insert(db, 1)
    (members,) = hands.claim_batches(LANE)

    assert len(members) == 3
    assert {member.pid for member in members} == {1}
    stored = db.execute("SELECT DISTINCT status, worker_pid, claim_seq FROM horsies_tasks").fetchall()
    assert stored == [{"status": "RUNNING", "worker_pid": 1, "claim_seq": 1}]


def test_a_batch_is_claimed_when_its_first_member_has_lingered(hands: Hands, db: Db) -> None:
    insert(db, 1, age=59.0)
    insert(db, 1)
    assert hands.claim_batches(LANE) == []

    insert(db, 1, age=60.5, lane="batch=other")
    db.execute("UPDATE horsies_tasks_live SET enqueued_at = enqueued_at - interval '1 s'")

    assert [len(members) for members in hands.claim_batches(LANE)] == [2]


def test_what_is_left_of_full_batches_waits_for_more(hands: Hands, db: Db) -> None:
    insert(db, 8)

    batches = hands.claim_batches(LANE, pids=[1, 2, 3])

    assert numbers(batches) == [["[1]", "[2]", "[3]"], ["[4]", "[5]", "[6]"]]
    assert [members[0].pid for members in batches] == [1, 2]


def test_members_are_ordered_by_priority_and_then_by_age(hands: Hands, db: Db) -> None:
    insert(db, 4)
    db.execute("UPDATE horsies_tasks_live SET priority = 1 WHERE args = '[4]'")

    assert numbers(hands.claim_batches(LANE)) == [["[4]", "[1]", "[2]"]]


def test_lanes_take_turns_and_urgent_queues_come_first(hands: Hands, db: Db) -> None:
    insert(db, 6)
    insert(db, 6, lane="batch=mail")
    insert(db, 3, queue="urgent")
    lanes = [
        BatchLane("default", False, "batch=index", 1, 3, 60.0),
        BatchLane("default", False, "batch=mail", 1, 3, 60.0),
        BatchLane("urgent", False, "batch=index", 0, 3, 60.0),
    ]

    batches = hands.claim_batches(*lanes, pids=[1, 2, 3, 4])

    claimed = [(members[0].queue_name, members[0].rate_key) for members in batches]
    assert claimed[0] == ("urgent", "batch=index")
    assert claimed[1:3] == [("default", "batch=index"), ("default", "batch=mail")]


def test_two_workers_never_have_the_same_member(hire: Callable[[], Hands], db: Db) -> None:
    first, second = hire(), hire()
    insert(db, 6)
    db.execute("BEGIN")
    db.execute("SELECT FROM horsies_tasks_live WHERE args IN ('[1]', '[2]') FOR UPDATE")
    try:
        (locked_out,) = second.claim_batches(LANE)
    finally:
        db.execute("ROLLBACK")
    (rest,) = first.claim_batches(BatchLane("default", False, "batch=index", 0, 3, 0.0))

    assert [member.args for member in locked_out] == ["[3]", "[4]", "[5]"]
    assert [member.args for member in rest] == ["[1]", "[2]", "[6]"]


def test_no_other_claim_takes_a_task_that_waits_for_a_batch(hands: Hands, db: Db) -> None:
    insert(db, 3)

    assert hands.claim(limit=10, pids=[1] * 10) == []


def test_tasks_that_are_delayed_or_expired_belong_to_no_batch(hands: Hands, db: Db) -> None:
    insert(db, 4)
    db.execute("UPDATE horsies_tasks_live SET enqueued_at = now() + interval '1 h' WHERE args = '[1]'")
    db.execute("UPDATE horsies_tasks_live SET good_until = now() - interval '1 s' WHERE args = '[2]'")

    assert hands.claim_batches(LANE) == []
    insert(db, 1)
    assert [len(members) for members in hands.claim_batches(LANE)] == [3]


def test_a_member_that_fails_goes_on_by_itself_and_one_that_snoozes_in_a_batch(hands: Hands, db: Db) -> None:
    insert(db, 3)
    (members,) = hands.claim_batches(LANE)
    hands.fail(members[:1], delay_seconds=0.0)
    hands.snooze(members[1:2])

    stored = db.execute(
        "SELECT args, rate_key FROM horsies_tasks WHERE status = 'PENDING' ORDER BY args"
    ).fetchall()
    assert stored == [{"args": "[1]", "rate_key": ""}, {"args": "[2]", "rate_key": "batch=index"}]


@pytest.mark.parametrize(("count", "age", "expected"), [(2, 10.0, 50.0), (0, 0.0, None)])
def test_a_worker_knows_when_the_next_batch_starts(
    hands: Hands, db: Db, count: int, age: float, expected: float | None
) -> None:
    insert(db, count, age=age)

    due = hands.next_due(batches={"batch=index": 60.0})

    assert due == (None if expected is None else pytest.approx(expected, abs=5.0))


def test_workers_that_know_no_batch_of_that_name_claim_its_tasks_as_any_others(
    hire: Callable[[], Hands], db: Db
) -> None:
    former = hire()
    batched = Definition("index", "default", 100, False, 0, None, None, "batch=index")
    former.register(waiting=False, definitions=[batched])
    insert(db, 2)

    present = hire()
    present.register(waiting=False, definitions=[Definition("index", "default", 100, False, 0, None, None)])
    rates = [row["rate_key"] for row in db.execute("SELECT rate_key FROM horsies_rates").fetchall()]

    assert rates == ["batch=index"]
    assert len(present.claim(limit=10, pids=[1] * 10, rates=rates)) == 2
