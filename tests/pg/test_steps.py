"""The statements for steps: fenced, never changing, kept with their task; and what parked tasks cost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from uuid import UUID, uuid4

import msgspec
import psycopg
import pytest

from horsies import PostgresConfig
from horsies.db.connection import Connection, connect_worker
from horsies.db.queries import steps
from horsies.db.queries.steps import EndedStep
from horsies.db.queries.tasks import CANCELLED, CANCELLED_CODE, Failure
from horsies.db.sql import statements
from horsies.workflow import control
from horsies.workflow.settle import settle

Db = psycopg.Connection[dict[str, Any]]
T = TypeVar("T")
WORKER = uuid4()
RUNNING = """
    INSERT INTO horsies_tasks_live (task_name, status, claim_seq, claimed_by_worker_id, claimed_at, started_at)
    SELECT 'saga', 'RUNNING', 1, %s, now(), now() FROM generate_series(1, %s) RETURNING id::text AS id
"""


@pytest.fixture
def ask(database_url: str) -> Callable[[Callable[[Connection], Awaitable[T]]], T]:
    """Run a function with a worker's connection."""

    def run(work: Callable[[Connection], Awaitable[T]]) -> T:
        async def connected() -> T:
            async with await connect_worker(PostgresConfig(database_url=database_url), "test") as connection:
                return await work(connection)

        return asyncio.run(connected())

    return run


Ask = Callable[[Callable[[Connection], Awaitable[Any]]], Any]


def running(db: Db, count: int = 1) -> list[str]:
    return [row["id"] for row in db.execute(RUNNING, [WORKER, count]).fetchall()]


def ended(task_id: str, name: str = "first", value: str = "1", claim_seq: int = 1) -> EndedStep:
    return EndedStep(task_id, claim_seq, name, "step", 1, 0.5, f'{{"ok":{value}}}')


def parking(task_id: str, **step: Any) -> Failure:
    wanted = {"name": "rest", "kind": "sleep", "seconds": None, "calls": None} | step
    return Failure(
        task_id,
        1,
        CANCELLED,
        CANCELLED_CODE,
        "parked",
        delay_seconds=0.0,
        snoozed=True,
        park=msgspec.json.encode(wanted).decode(),
        attempt=1,
    )


def stored(db: Db) -> dict[str, str]:
    return {
        row["name"]: row["result"] for row in db.execute("SELECT name, result FROM horsies_steps").fetchall()
    }


def park(ask: Ask, *parks: Failure) -> dict[str, bool]:
    async def work(connection: Connection) -> dict[str, bool]:
        async with connection.transaction():
            return (await settle(connection, [], parks, WORKER)).failed

    return ask(work)


def test_a_stale_attempt_stores_nothing(db: Db, ask: Ask) -> None:
    (task_id,) = running(db)
    stale, gone = ended(task_id, claim_seq=0), ended(str(UUID(int=1)))

    assert ask(lambda connection: steps.store(connection, [stale, gone], WORKER)) == {(task_id, 1)}
    assert stored(db) == {}
    assert ask(lambda connection: steps.load(connection, [(task_id, 0)], WORKER)) == []


def test_a_stored_step_never_changes(db: Db, ask: Ask) -> None:
    (task_id,) = running(db)

    for value in ("1", "2"):
        assert ask(lambda c, v=value: steps.store(c, [ended(task_id, value=v)], WORKER)) == {(task_id, 1)}

    assert stored(db) == {"first": '{"ok":1}'}


def test_a_task_is_not_taken_over_while_its_step_is_being_stored(db: Db, database_url: str, ask: Ask) -> None:
    (task_id,) = running(db)
    with psycopg.connect(database_url) as other:
        values = {"ended_steps": msgspec.json.encode([ended(task_id)]).decode(), "worker_id": WORKER}
        other.execute(steps.SQL["store"], values)
        taken = db.execute("SELECT id FROM horsies_tasks_live FOR UPDATE SKIP LOCKED").fetchall()
        assert taken == []


@pytest.mark.parametrize("value", ["1", "2"])
def test_one_bad_step_does_not_keep_the_others_from_being_stored(db: Db, ask: Ask, value: str) -> None:
    from horsies.db.queries.tasks import Claimed
    from horsies.executor.protocol import StoreStep
    from horsies.worker.steps import answer

    good, bad = running(db, 2)

    def asked(task_id: str, name: str) -> tuple[StoreStep, Claimed]:
        task = Claimed(
            0, task_id, 1, "saga", None, None, "default", False, 100, "", 1, None, 0, 0, 0, False, None
        )
        return StoreStep(1, 1, name, "step", 0.1, f'{{"ok":{value}}}'), task

    replies = ask(lambda connection: answer(connection, [asked(good, "good"), asked(bad, "x" * 300)], WORKER))

    assert [reply.error is None for reply in replies] == [True, False]
    assert "horsies_steps_name" in replies[1].error
    assert stored(db) == {"good": f'{{"ok":{value}}}'}


def test_a_signal_is_seen_by_a_task_that_parks_at_the_same_moment(
    db: Db, database_url: str, ask: Ask
) -> None:
    (task_id,) = running(db)
    with psycopg.connect(database_url) as signalling:
        row = signalling.execute("SELECT horsies_signal(%s, 'answer', '7')", [task_id]).fetchone()
        assert row == (True,)

        async def park_meanwhile(connection: Connection) -> dict[str, bool]:
            async def work() -> dict[str, bool]:
                async with connection.transaction():
                    return (
                        await settle(connection, [], [parking(task_id, name="answer", kind="wait")], WORKER)
                    ).failed

            parking_task = asyncio.create_task(work())
            while not db.execute(
                "SELECT FROM pg_stat_activity WHERE application_name = 'test' AND wait_event_type = 'Lock'"
            ).fetchall():
                await asyncio.sleep(0.01)
            signalling.commit()
            return await parking_task

        assert ask(park_meanwhile) == {task_id: True}

    task = db.execute("SELECT parked_at, enqueued_at <= now() AS due FROM horsies_tasks").fetchone()
    assert task == {"parked_at": None, "due": True}
    assert stored(db) == {"answer": '{"ok":7}'}


def test_a_task_that_was_cancelled_is_not_parked(db: Db, ask: Ask) -> None:
    (task_id,) = running(db)
    db.execute("UPDATE horsies_tasks_live SET cancel_asked_at = now()")

    assert park(ask, parking(task_id, seconds=60)) == {task_id: False}
    assert db.execute("SELECT status FROM horsies_tasks").fetchone() == {"status": "CANCELLED"}


def test_a_thousand_tasks_wake_at_one_instant(db: Db, ask: Ask) -> None:
    ids = running(db, 1_000)
    assert park(ask, *(parking(each, seconds=0.2) for each in ids)) == dict.fromkeys(ids, True)
    waiting = "SELECT count(*) AS tasks FROM horsies_tasks_live WHERE parked_at IS NOT NULL"
    assert db.execute(waiting).fetchone() == {"tasks": 1_000}
    time.sleep(0.25)  # the time that they wait for

    began = time.monotonic()
    ask(control.fire_timers)

    assert time.monotonic() - began < 1.0
    assert db.execute(waiting).fetchone() == {"tasks": 0}
    assert len(stored(db)) == 1
    assert db.execute(
        "SELECT count(*) AS ended FROM horsies_steps WHERE ended_at IS NOT NULL"
    ).fetchone() == {"ended": 1_000}


def test_steps_and_signals_are_deleted_with_their_task(db: Db) -> None:
    row = db.execute(
        "INSERT INTO horsies_tasks (task_name, status, live, started_at, completed_at, terminal_at)"
        " VALUES ('saga', 'COMPLETED', false, now(), now(), now() - interval '2 hours') RETURNING id, terminal_at"
    ).fetchone()
    assert row is not None
    for statement in (
        "INSERT INTO horsies_steps (task_id, name, kind, claim_seq, attempt, ended_at, result)"
        " VALUES (%s, 'a', 'step', 1, 1, now(), '{}')",
        "INSERT INTO horsies_signals (task_id, name, value) VALUES (%s, 'a', '1')",
    ):
        db.execute(statement.encode(), [row["id"]])
    db.execute("UPDATE horsies_steps SET started_at = now() - interval '2 hours'")
    db.execute("UPDATE horsies_signals SET sent_at = now() - interval '2 hours'")

    for what in ("steps", "signals"):  # they stay as long as their task
        db.execute("SELECT horsies_forget(%s, now(), 100)", [what])
    left = "SELECT (SELECT count(*) FROM horsies_steps) + (SELECT count(*) FROM horsies_signals) AS rows"
    assert db.execute(left).fetchone() == {"rows": 2}
    db.execute("SELECT horsies_delete_history(ARRAY[%s::uuid], ARRAY[%s::timestamptz])", list(row.values()))

    assert db.execute(left).fetchone() == {"rows": 0}


def test_parked_tasks_are_in_no_index_that_claims_read(db: Db, ask: Ask) -> None:
    """A claim that finds nothing walks over everything in its lane: ten thousand parked tasks are not there."""
    db.execute(
        "INSERT INTO horsies_tasks_live (task_name, parked_at, enqueued_at)"
        " SELECT 'saga', now(), now() + interval '1 day' FROM generate_series(1, 10000)"
    )
    db.execute(
        "INSERT INTO horsies_steps (task_id, name, kind, claim_seq, attempt, due_at)"
        " SELECT id, 'rest', 'sleep', 1, 1, enqueued_at FROM horsies_tasks_live"
    )
    db.execute("VACUUM ANALYZE horsies_tasks_live")

    found = db.execute(
        "SELECT pg_relation_size('horsies_tasks_live_claim') / 8192 AS pages, reltuples::integer AS entries"
        "  FROM pg_class WHERE relname = 'horsies_tasks_live_claim'"
    ).fetchone()
    assert found is not None
    assert found["entries"] == 0
    assert found["pages"] <= 1
    seconds = ask(control.fire_timers)
    assert 86_000 < seconds <= 86_400


def test_events_say_when_a_task_was_parked(db: Db, ask: Ask) -> None:
    from datetime import UTC, datetime, timedelta

    (task_id,) = running(db)
    park(ask, parking(task_id, seconds=60))
    now = datetime.now(UTC)
    values = {
        "since": now - timedelta(minutes=1),
        "until": now + timedelta(minutes=1),
        "task": UUID(task_id),
        "kinds": ["parked"],
        "queue": None,
        "name": "saga",
        "key": None,
    }

    (event,) = db.execute(statements("events")["events"], values).fetchall()

    assert (event["kind"], event["message"], str(event["task_id"])) == ("parked", "in step rest", task_id)
