"""When a task has failed for good, the task that it names for that is sent: once, with its end, whoever ends it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from horsies import Horsies, RetryPolicy, TaskError, TaskResult
from horsies.db.queries.tasks import Claimed
from horsies.db.queries.workers import Definition, Rules
from horsies.executor.protocol import Outcome
from horsies.validation import check
from horsies.worker.settle import Settler
from tests.pg.conftest import define_add
from tests.pg.hands import ERR, Hands

Db = psycopg.Connection[dict[str, Any]]


@pytest.fixture
def settler(app: Horsies) -> Settler:
    define_add(app, on_failure="tell", retry_policy=RetryPolicy.fixed([1], auto_retry_for=["BROKEN"]))
    return Settler(app)


def _fail(hands: Hands, settler: Settler, tasks: list[Claimed]) -> None:
    for task in tasks:
        settler.ended(task, Outcome(1, False, ERR, 0.0, "BROKEN", "it broke"))
    hands.store(settler.take_failed())


def _told(db: Db) -> list[dict[str, Any]]:
    return db.execute("SELECT * FROM horsies_tasks WHERE task_name = 'tell' ORDER BY id").fetchall()


def test_a_task_for_failures_is_sent_as_the_workers_know_it(
    app: Horsies, settler: Settler, hands: Hands, db: Db
) -> None:
    options = '{"idempotent":true,"on_failure":"add"}'
    hands.register(waiting=False, definitions=[Definition("tell", "mail", 7, True, 2, 500, options)])
    handle = app.tasks["add"].send(1).unwrap()

    _fail(hands, settler, hands.run_next())
    assert _told(db) == []
    db.execute("UPDATE horsies_tasks_live SET enqueued_at = now()")
    _fail(hands, settler, hands.run_next())

    (told,) = _told(db)
    assert json.loads(told["kwargs"]) == {
        "task_id": handle.task_id, "task_name": "add", "error_code": "BROKEN", "message": "it broke",
    }  # fmt: skip
    columns = ("queue_name", "priority", "is_async", "max_retries", "timeout_ms", "status")
    assert [told[column] for column in columns] == ["mail", 7, True, 2, 500, "PENDING"]
    assert json.loads(told["task_options"]) == {"idempotent": True}


def test_it_is_sent_again_when_a_requeued_task_fails_again_and_not_for_one_that_is_cancelled(
    app: Horsies, settler: Settler, hands: Hands, db: Db
) -> None:
    app.tasks["add"].send(1).unwrap()
    db.execute("UPDATE horsies_tasks_live SET retry_count = 1")
    _fail(hands, settler, hands.run_next())
    hands.complete(hands.run_next())
    hands.requeue()
    db.execute("UPDATE horsies_tasks_live SET retry_count = 1")
    _fail(hands, settler, hands.run_next())
    assert len(_told(db)) == 2

    cancelled = app.tasks["add"].send(2).unwrap()
    running = [task for task in hands.run_next() if task.task_name == "add"]
    cancelled.cancel().unwrap()
    _fail(hands, settler, running)
    assert len(_told(db)) == 2


def test_it_is_sent_for_a_task_that_died_with_its_worker(
    app: Horsies, settler: Settler, hands: Hands, db: Db
) -> None:
    app.tasks["add"].send(1).unwrap()
    hands.run_next()

    hands.reap(Rules(quarantine_seconds=0), settler)
    hands.reap(Rules(quarantine_seconds=0), settler)

    (told,) = _told(db)
    assert json.loads(told["kwargs"])["error_code"] == "WORKER_CRASHED"


def test_a_snoozed_task_waits_unless_it_was_asked_to_stop(
    make_app: Callable[..., Horsies], hands: Hands, db: Db
) -> None:
    app = make_app()
    add = define_add(app)
    stays, goes = add.send(1).unwrap(), add.send(2).unwrap()
    settler = Settler(app)
    for task in hands.run_next():
        settler.ended(task, Outcome(1, False, ERR, 0.0, snooze_seconds=60))
    goes.cancel().unwrap()

    assert hands.store(settler.take_failed()) == {stays.task_id: True, goes.task_id: False}

    rows = db.execute("SELECT *, enqueued_at > now() AS later FROM horsies_tasks ORDER BY id").fetchall()
    facts = ("status", "retry_count", "started_at", "later")
    assert [rows[0][fact] for fact in facts] == ["PENDING", 0, None, True]
    assert rows[1]["status"] == "CANCELLED"


def test_a_task_for_failures_must_exist_and_take_what_it_is_told(app: Horsies) -> None:
    define_add(app, on_failure="nobody")
    (error,) = check(app, schedules=False)
    assert "there is no such task" in error.message

    @app.task("nobody")
    def nobody(task_id: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=task_id)

    (error,) = check(app, schedules=False)
    assert "does not accept its arguments" in error.message
