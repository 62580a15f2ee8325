"""A task ends once, by the hand of whoever holds it; what has ended stays as it ended."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.errors import IntegrityConstraintViolation

from horsies.db.queries.tasks import Failure, as_json
from tests.pg.conftest import Add
from tests.pg.hands import ERR, OK, Hands

Db = psycopg.Connection[dict[str, Any]]


def task(db: Db) -> dict[str, Any]:
    (row,) = db.execute("SELECT * FROM horsies_tasks").fetchall()
    return row


def attempts(db: Db) -> list[dict[str, Any]]:
    return db.execute("SELECT * FROM horsies_task_attempts ORDER BY attempt").fetchall()


def test_a_completed_task_keeps_its_result_and_leaves_the_live_rows(add: Add, hands: Hands, db: Db) -> None:
    add.send(2).unwrap()

    assert hands.complete(hands.run_next()) == 1

    row = task(db)
    assert (row["status"], row["live"], row["result"], row["error_code"]) == ("COMPLETED", False, OK, None)
    assert row["completed_at"] == row["terminal_at"] >= row["started_at"]
    assert row["failed_at"] is None
    assert db.execute("SELECT 1 FROM horsies_tasks_live").fetchall() == []
    (attempt,) = attempts(db)
    assert (attempt["outcome"], attempt["attempt"], attempt["will_retry"]) == ("COMPLETED", 1, False)
    assert attempt["worker_id"] == hands.worker_id


def test_a_failed_task_keeps_its_error(add: Add, hands: Hands, db: Db) -> None:
    handle = add.send(2).unwrap()

    assert hands.fail(hands.run_next(), reason="why") == {handle.task_id: False}

    row = task(db)
    assert (row["status"], row["result"], row["error_code"], row["failed_reason"]) == (
        "FAILED",
        ERR,
        "BROKEN",
        "why",
    )
    assert row["failed_at"] == row["terminal_at"]
    assert row["completed_at"] is None
    (attempt,) = attempts(db)
    assert (attempt["outcome"], attempt["error_code"], attempt["error_message"]) == (
        "FAILED",
        "BROKEN",
        "it broke",
    )


def test_a_failure_with_a_delay_makes_the_task_pending_again_and_keeps_the_attempt(
    add: Add, hands: Hands, db: Db
) -> None:
    handle = add.send(2).unwrap()
    before = task(db)

    assert hands.fail(hands.run_next(), delay_seconds=60) == {handle.task_id: True}

    row = task(db)
    assert (row["status"], row["retry_count"], row["claim_seq"]) == ("PENDING", 1, 2)
    assert row["sent_at"] == before["sent_at"]
    assert row["enqueued_at"] == row["next_retry_at"]
    assert 50 < (row["enqueued_at"] - datetime.now(UTC)).total_seconds() <= 60
    for column in ("claimed_by_worker_id", "claimed_at", "started_at", "result", "error_code"):
        assert row[column] is None
    (attempt,) = attempts(db)
    assert (attempt["attempt"], attempt["outcome"], attempt["will_retry"]) == (1, "FAILED", True)
    assert hands.claim() == []


def test_every_attempt_is_on_record(add: Add, hands: Hands, db: Db) -> None:
    add.send(2).unwrap()
    for _ in range(2):
        hands.fail(hands.run_next(), delay_seconds=0)

    hands.complete(hands.run_next())

    rows = attempts(db)
    assert [row["attempt"] for row in rows] == [1, 2, 3]
    assert [row["outcome"] for row in rows] == ["FAILED", "FAILED", "COMPLETED"]
    assert [row["will_retry"] for row in rows] == [True, True, False]
    assert task(db)["retry_count"] == 2


def test_every_attempt_keeps_where_it_failed(add: Add, hands: Hands, db: Db) -> None:
    add.send(2).unwrap()

    for where, delay in (("line 1", 0.0), ("line 2", None)):
        (run,) = hands.run_next()
        result = as_json({"err": {"message": "it broke", "exception": {"traceback": where}}})
        hands.store([Failure(run.id, run.claim_seq, result, "BROKEN", "it broke", delay_seconds=delay)])

    assert [row["traceback"] for row in attempts(db)] == ["line 1", "line 2"]


def test_a_retry_that_would_come_too_late_ends_the_task_with_its_own_error(
    add: Add, hands: Hands, db: Db
) -> None:
    handle = add.with_options(good_until=datetime.now(UTC) + timedelta(seconds=30)).send(2).unwrap()

    assert hands.fail(hands.run_next(), delay_seconds=31) == {handle.task_id: False}

    row = task(db)
    assert (row["status"], row["error_code"], row["result"], row["retry_count"]) == (
        "FAILED",
        "BROKEN",
        ERR,
        0,
    )
    assert db.execute("SELECT 1 FROM horsies_attempts").fetchall() == []


def test_a_crash_is_counted(add: Add, hands: Hands, db: Db) -> None:
    add.send(2).unwrap()

    hands.fail(hands.run_next(), delay_seconds=0, crashed=True)
    hands.fail(hands.run_next(), delay_seconds=0, crashed=False)
    hands.fail(hands.run_next(), crashed=True)

    assert task(db)["crash_count"] == 2


@pytest.mark.parametrize("late", ["complete", "fail", "retry"])
def test_a_stale_outcome_changes_nothing(hire: Callable[[], Hands], add: Add, db: Db, late: str) -> None:
    add.send(2).unwrap()
    slow, quick = hire(), hire()
    stale = slow.run_next()
    slow.release()
    quick.run_next()
    before = task(db)

    match late:
        case "complete":
            assert slow.complete(stale) == 0
        case "fail":
            assert slow.fail(stale) == {}
        case _:
            assert slow.fail(stale, delay_seconds=0) == {}

    assert task(db) == before
    assert attempts(db) == []


def test_an_outcome_is_counted_once_even_if_it_is_sent_twice(add: Add, hands: Hands, db: Db) -> None:
    add.send(2).unwrap()
    held = hands.run_next()

    assert [hands.complete(held), hands.complete(held, ERR)] == [1, 0]
    assert hands.fail(held) == {}
    assert task(db)["result"] == OK


def test_a_batch_settles_what_is_ours_and_passes_over_the_rest(add: Add, hands: Hands, db: Db) -> None:
    add.send_many([(n,) for n in range(5)]).unwrap()
    held = hands.run_next()
    lost = held[2]._replace(claim_seq=9)

    assert hands.complete([*held[:2], lost, *held[3:]]) == 4

    rows = db.execute("SELECT status, count(*) FROM horsies_tasks GROUP BY 1 ORDER BY 1").fetchall()
    assert [tuple(row.values()) for row in rows] == [("COMPLETED", 4), ("RUNNING", 1)]


CHANGES = (
    "status = 'RUNNING', live = true, claimed_by_worker_id = gen_random_uuid()",
    "status = CASE status WHEN 'CANCELLED' THEN 'FAILED' ELSE 'CANCELLED' END",
    "error_code = 'OTHER'",
    """result = '{"ok":6}'""",
)


@pytest.mark.parametrize("status", ["COMPLETED", "CANCELLED", "EXPIRED", "FAILED"])
def test_nothing_replaces_what_has_ended_and_only_a_failure_can_be_tried_again(db: Db, status: str) -> None:
    db.execute(
        "INSERT INTO horsies_tasks (task_name, live, status, terminal_at, result) VALUES ('add', false, %s, now(), %s)",
        (status, OK),
    )
    before = task(db)
    requeue = b"UPDATE horsies_tasks SET status = 'PENDING', live = true"

    for change in CHANGES:
        with pytest.raises(IntegrityConstraintViolation, match=f"is {status} and final"):
            db.execute(f"UPDATE horsies_tasks SET {change}".encode())
        assert task(db) == before
    if status == "FAILED":
        db.execute(requeue)
        assert task(db)["status"] == "PENDING"
    else:
        with pytest.raises(IntegrityConstraintViolation, match="final"):
            db.execute(requeue)


def test_retention_may_clear_a_result(db: Db) -> None:
    db.execute(
        "INSERT INTO horsies_tasks (task_name, live, status, terminal_at, result)"
        " VALUES ('add', false, 'COMPLETED', now(), 'x')"
    )

    db.execute("UPDATE horsies_tasks SET result = NULL")

    assert task(db)["result"] is None


def test_a_prefetched_task_is_started_while_it_is_ours_and_in_time(add: Add, hands: Hands, db: Db) -> None:
    add.send_many([(n,) for n in range(3)]).unwrap()
    ours, late, stale = hands.claim()
    db.execute("UPDATE horsies_tasks SET good_until = now() - interval '1 s' WHERE id = %s", (late.id,))
    hands.unclaim([stale])

    assert hands.start([ours, late, stale], pid=7) == {ours.id}

    row = db.execute("SELECT * FROM horsies_tasks WHERE id = %s", (ours.id,)).fetchone()
    assert row is not None
    assert (row["status"], row["worker_pid"]) == ("RUNNING", 7)
    assert row["started_at"] is not None


def test_release_gives_back_all_but_what_is_named(hire: Callable[[], Hands], add: Add, db: Db) -> None:
    add.send_many([(n,) for n in range(6)]).unwrap()
    ours, theirs = hire(), hire()
    kept, *given = ours.run_next(limit=2) + ours.claim(limit=2)
    theirs.claim()

    assert ours.release(keep=[kept]) == 3

    rows = db.execute("SELECT * FROM horsies_tasks").fetchall()
    pending = [row for row in rows if row["status"] == "PENDING"]
    assert {str(row["id"]) for row in pending} == {task.id for task in given}
    assert {(row["claim_seq"], row["started_at"], row["worker_pid"]) for row in pending} == {(2, None, None)}
    assert ours.complete(given) == 0
    assert ours.complete([kept]) == 1


def test_a_task_that_was_given_twice_is_kept_only_by_its_latest_number(
    add: Add, hands: Hands, db: Db
) -> None:
    add.send(1).unwrap()
    old = hands.run_next()
    hands.fail(old, delay_seconds=0)
    hands.run_next()  # as if the reply had been lost

    assert hands.release(keep=old) == 1
    assert task(db)["status"] == "PENDING"


def test_a_failure_that_is_said_twice_counts_once(add: Add, hands: Hands, db: Db) -> None:
    handle = add.send(1).unwrap()

    assert hands.fail(2 * hands.run_next(), delay_seconds=0) == {handle.task_id: True}

    assert (task(db)["retry_count"], len(attempts(db))) == (1, 1)


def test_only_what_was_never_started_is_unclaimed(add: Add, hands: Hands, db: Db) -> None:
    add.send_many([(n,) for n in range(2)]).unwrap()
    started, waiting = hands.claim(pids=[1])

    hands.unclaim([started, waiting, waiting._replace(id=started.id)])

    rows = db.execute("SELECT id, status FROM horsies_tasks").fetchall()
    assert {str(row["id"]): row["status"] for row in rows} == {started.id: "RUNNING", waiting.id: "PENDING"}


def test_what_was_not_started_in_time_expires_with_a_result_and_no_attempt(
    hire: Callable[[], Hands], add: Add, db: Db
) -> None:
    add.send_many([(n,) for n in range(5)]).unwrap()
    ours, theirs = hire(), hire()
    (running,) = ours.run_next(limit=1)
    (held,) = ours.claim(limit=1)
    (others,) = theirs.claim(limit=1)
    (waiting, in_time) = (
        row["id"] for row in db.execute("SELECT id FROM horsies_tasks WHERE status = 'PENDING'")
    )
    db.execute("UPDATE horsies_tasks SET good_until = now() - interval '1 s' WHERE id <> %s", (in_time,))

    assert ours.expire() == 2

    rows = {str(row["id"]): row for row in db.execute("SELECT * FROM horsies_tasks")}
    assert {task_id for task_id, row in rows.items() if row["status"] == "EXPIRED"} == {held.id, str(waiting)}
    assert rows[held.id]["result"] == ERR
    assert rows[held.id]["error_code"] == "TASK_EXPIRED"
    assert rows[running.id]["status"] == "RUNNING"
    assert rows[others.id]["status"] == "CLAIMED"
    assert attempts(db) == []


def test_history_is_kept_by_the_day_and_days_without_a_partition_are_no_problem(
    add: Add, hands: Hands, db: Db
) -> None:
    add.send(1).unwrap()
    hands.complete(hands.run_next())
    db.execute(
        "INSERT INTO horsies_tasks (task_name, live, status, terminal_at)"
        " VALUES ('add', false, 'COMPLETED', now() - interval '90 days')"
    )

    parts = [
        row["part"]
        for row in db.execute("SELECT tableoid::regclass::text AS part FROM horsies_tasks ORDER BY 1")
    ]

    assert parts == [f"horsies_tasks_{datetime.now(UTC):%Y%m%d}", "horsies_tasks_history_default"]


def test_any_number_of_workers_may_prepare_the_same_days_at_once(database_url: str, db: Db) -> None:
    def prepare(_: int) -> int:
        with psycopg.connect(database_url) as connection:
            row = connection.execute("SELECT horsies_prepare_history(30)").fetchone()
            assert row is not None
            return row[0]

    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(prepare, range(8)))

    assert sum(made) == 23


def test_a_long_read_of_history_delays_its_next_day_and_not_the_readers(
    add: Add, database_url: str, db: Db
) -> None:
    handle = add.send(1).unwrap()
    with psycopg.connect(database_url) as reader, psycopg.connect(database_url) as other:
        reader.execute("SELECT count(*) FROM horsies_tasks")
        other.execute("SET statement_timeout = '20s'")

        assert other.execute("SELECT horsies_prepare_history(30)").fetchone() == (0,)

        assert handle.info().unwrap() is not None
        other.commit()
        reader.commit()
        assert other.execute("SELECT horsies_prepare_history(30)").fetchone() == (23,)


def test_any_number_of_failures_end_at_once(add: Add, hands: Hands, db: Db) -> None:
    add.send_many([(n,) for n in range(250)]).unwrap()
    held = hands.run_next(limit=250)

    assert hands.fail(held) == {task.id: False for task in held}
    assert db.execute("SELECT status, count(*) AS tasks FROM horsies_tasks GROUP BY status").fetchall() == [
        {"status": "FAILED", "tasks": 250}
    ]
