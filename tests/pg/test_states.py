"""What workers say of themselves is stored as they said it, only while it is true, and forgotten in time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from horsies.db.queries.tasks import Claimed
from horsies.db.queries.workers import Snapshot, TaskHeartbeat
from tests.pg.conftest import Add
from tests.pg.hands import Hands

Db = psycopg.Connection[dict[str, Any]]


def _snapshot(worker_id: UUID, **changes: Any) -> Snapshot:
    facts: dict[str, Any] = {
        "worker_id": worker_id,
        "state": "busy",
        "max_claim_batch": 7,
        "max_claim_per_worker": 12,
        "cluster_wide_cap": None,
        "queue_priorities": '{"mail": 1}',
        "queue_max_concurrency": '{"mail": null}',
        "recovery_config": '{"check_interval_ms": 30000}',
        "tasks_running": 3,
        "tasks_claimed": 2,
        "memory_usage_mb": 40.5,
        "memory_percent": 0.5,
        "cpu_percent": 12.25,
        "children_memory_mb": 160.0,
        "current_task_ids": [str(UUID(int=1)), str(UUID(int=2))],
        "children": '[{"pid": 11, "memory_mb": 30.0, "started_at": "2001-09-09T01:46:40Z"}]',
    }
    return Snapshot(**{**facts, **changes})


def _heartbeat(task: Claimed, **changes: Any) -> TaskHeartbeat:
    facts = {"task_id": task.id, "claim_seq": task.claim_seq, "pid": 4242, "memory_mb": 33.5}
    return TaskHeartbeat(**{**facts, **changes})


def _all(db: Db, table: str) -> list[dict[str, Any]]:
    return db.execute(f"SELECT * FROM {table} ORDER BY id").fetchall()


# --- snapshots


def test_a_snapshot_holds_what_the_worker_registered_and_what_it_does(hands: Hands, db: Db) -> None:
    hands.register("mail", "bulk", waiting=False)
    started_at = db.execute("SELECT started_at FROM horsies_workers").fetchone()["started_at"]

    hands.snapshot(_snapshot(hands.worker_id))

    (stored,) = _all(db, "horsies_worker_states")
    assert stored.pop("snapshot_at") > started_at
    assert stored == {
        "id": stored["id"],
        "worker_id": hands.worker_id,
        "hostname": "host",
        "pid": 1,
        "state": "busy",
        "processes": 1,
        "max_claim_batch": 7,
        "max_claim_per_worker": 12,
        "cluster_wide_cap": None,
        "queues": ["mail", "bulk"],
        "queue_priorities": {"mail": 1},
        "queue_max_concurrency": {"mail": None},
        "recovery_config": {"check_interval_ms": 30_000},
        "tasks_running": 3,
        "tasks_claimed": 2,
        "memory_usage_mb": 40.5,
        "memory_percent": 0.5,
        "cpu_percent": 12.25,
        "children_memory_mb": 160.0,
        "worker_started_at": started_at,
        "current_task_ids": [UUID(int=1), UUID(int=2)],
        "children": [{"pid": 11, "memory_mb": 30.0, "started_at": "2001-09-09T01:46:40Z"}],
    }


def test_a_setting_that_is_meant_as_no_limit_can_be_stored(hands: Hands, db: Db) -> None:
    hands.register(waiting=False)

    hands.snapshot(_snapshot(hands.worker_id, cluster_wide_cap=10**12, current_task_ids=[]))

    (stored,) = _all(db, "horsies_worker_states")
    assert (stored["cluster_wide_cap"], stored["current_task_ids"]) == (10**12, [])


def test_a_worker_that_was_declared_dead_says_no_more(hands: Hands, db: Db) -> None:
    hands.register(waiting=False)
    db.execute("UPDATE horsies_workers SET dead_at = now(), state = 'dead'")

    hands.snapshot(_snapshot(hands.worker_id))
    hands.wait(True, "idle")

    assert _all(db, "horsies_worker_states") == []
    assert db.execute("SELECT state, waiting FROM horsies_workers").fetchone() == {
        "state": "dead",
        "waiting": False,
    }


@pytest.mark.parametrize(("waiting", "state"), [(True, "idle"), (True, "busy"), (False, "busy")])
def test_whether_a_worker_waits_and_how_it_is_are_said_at_once(
    hands: Hands, db: Db, waiting: bool, state: str
) -> None:
    hands.register(waiting=False)

    hands.wait(waiting, state)

    said = db.execute("SELECT waiting, state FROM horsies_workers").fetchone()
    assert said == {"waiting": waiting, "state": state}


# --- signs of life


def test_a_running_task_gets_a_sign_of_life(hands: Hands, add: Add, db: Db) -> None:
    add.send(1).unwrap()
    (task,) = hands.run_next()

    hands.send_task_heartbeats(_heartbeat(task))
    hands.send_task_heartbeats(_heartbeat(task, memory_mb=34.5))

    rows = _all(db, "horsies_heartbeats")
    assert [row["memory_mb"] for row in rows] == [33.5, 34.5]
    assert rows[0]["sent_at"] < rows[1]["sent_at"]
    assert {(row["task_id"], row["sender_id"], row["role"], row["hostname"], row["pid"]) for row in rows} == {
        (UUID(task.id), str(hands.worker_id), "runner", "host", 4242)
    }


def test_many_tasks_get_theirs_in_one_statement(hands: Hands, add: Add, db: Db) -> None:
    add.send_many([(number,) for number in range(20)]).unwrap()
    running = hands.run_next()

    hands.send_task_heartbeats(*map(_heartbeat, running))

    rows = _all(db, "horsies_heartbeats")
    assert {str(row["task_id"]) for row in rows} == {task.id for task in running}
    assert len(rows) == len({row["sent_at"] for row in rows}) * 20 == 20


def test_what_does_not_run_gets_none(hire: Callable[[], Hands], add: Add, db: Db) -> None:
    hands, other = hire(), hire()
    for number in range(4):
        add.send(number).unwrap()
    (ended,), (claimed,), (foreign,) = hands.run_next(limit=1), hands.claim(limit=1), other.run_next(limit=1)
    hands.complete([ended])
    assert hands.run_next()  # runs, and nothing is said of it

    hands.send_task_heartbeats(
        *map(_heartbeat, (ended, claimed, foreign)), _heartbeat(ended, task_id=str(uuid4()))
    )

    assert _all(db, "horsies_heartbeats") == []


def test_a_run_that_was_given_away_gets_none(hands: Hands, add: Add, db: Db) -> None:
    add.send(1).unwrap()
    (task,) = hands.run_next()

    hands.send_task_heartbeats(_heartbeat(task, claim_seq=task.claim_seq - 1))

    assert _all(db, "horsies_heartbeats") == []


# --- forgetting

STATE = """
    INSERT INTO horsies_worker_states OVERRIDING SYSTEM VALUE
    SELECT (jsonb_populate_record(latest, jsonb_build_object(
               'id', -hours, 'snapshot_at', now() - make_interval(hours => hours)))).*
      FROM horsies_worker_states AS latest, generate_series(1, %s) AS hours"""
HEARTBEAT = """
    INSERT INTO horsies_heartbeats (task_id, sender_id, role, sent_at, hostname, pid)
    SELECT gen_random_uuid(), 'w', 'runner', now() - make_interval(hours => hours), 'host', 1
      FROM generate_series(0, %s) AS hours"""


@pytest.fixture
def old(hands: Hands, db: Db) -> Callable[[], tuple[int, int]]:
    """A snapshot and a heartbeat for each of the last ten hours and one of now; gives how many are left."""
    hands.register(waiting=False)
    hands.snapshot(_snapshot(hands.worker_id))
    db.execute(STATE, (10,))
    db.execute(HEARTBEAT, (10,))
    return lambda: (len(_all(db, "horsies_worker_states")), len(_all(db, "horsies_heartbeats")))


def test_what_is_older_than_its_time_is_forgotten(
    hands: Hands, db: Db, old: Callable[[], tuple[int, int]]
) -> None:
    assert hands.delete_worker_records(worker_state_retention_hours=5, heartbeat_retention_hours=2) is False

    assert old() == (5, 2)
    oldest = "SELECT now() - min(snapshot_at) < interval '5 hours' AS is_young FROM horsies_worker_states"
    assert db.execute(oldest).fetchone()["is_young"]


@pytest.mark.parametrize("for_ever", [None, 10**10])
def test_without_a_time_everything_is_kept(
    hands: Hands, old: Callable[[], tuple[int, int]], for_ever: int | None
) -> None:
    hands.delete_worker_records(worker_state_retention_hours=for_ever, heartbeat_retention_hours=1)
    assert old() == (11, 1)

    hands.delete_worker_records(worker_state_retention_hours=1, heartbeat_retention_hours=for_ever)
    assert old() == (1, 1)


def test_what_another_is_about_to_forget_is_passed_over(
    hands: Hands, db: Db, old: Callable[[], tuple[int, int]]
) -> None:
    with db.transaction():
        for table, moment in (("horsies_worker_states", "snapshot_at"), ("horsies_heartbeats", "sent_at")):
            db.execute(
                f"SELECT FROM {table} WHERE {moment} < now() - interval '7 hours 30 minutes' FOR UPDATE"
            )

        assert (
            hands.delete_worker_records(worker_state_retention_hours=1, heartbeat_retention_hours=1) is False
        )

    assert old() == (1 + 3, 1 + 3)


def test_the_oldest_go_first_so_many_at_a_time(
    hands: Hands, db: Db, old: Callable[[], tuple[int, int]]
) -> None:
    settings = {"worker_state_retention_hours": 1, "heartbeat_retention_hours": 8}

    more = [hands.delete_worker_records(**settings, retention_delete_batch_size=4)]
    assert old() == (7, 8)
    assert max(row["id"] for row in _all(db, "horsies_worker_states") if row["id"] < 0) == -1
    assert min(row["id"] for row in _all(db, "horsies_worker_states")) == -6
    more += [hands.delete_worker_records(**settings, retention_delete_batch_size=4) for _ in range(2)]

    assert old() == (1, 8)
    assert more == [True, True, False]
