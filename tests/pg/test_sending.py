"""A send becomes one row that says what the call said."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import psycopg
import pytest

from horsies import (
    AppConfig,
    CustomQueueConfig,
    Horsies,
    PostgresConfig,
    QueueMode,
    RetryPolicy,
    TaskError,
    TaskResult,
    TaskSendErrorCode,
    is_err,
)
from tests.pg.conftest import Add, define_add

Db = psycopg.Connection[dict[str, Any]]
SOON = datetime.now(UTC) + timedelta(hours=1)


def only_row(db: Db) -> dict[str, Any]:
    (row,) = db.execute("SELECT * FROM horsies_tasks").fetchall()
    return row


def count(db: Db) -> int:
    row = db.execute("SELECT count(*) AS n FROM horsies_tasks").fetchone()
    assert row is not None
    return row["n"]


def delay_of(row: dict[str, Any]) -> float:
    return (row["enqueued_at"] - row["sent_at"]).total_seconds()


def test_a_send_stores_a_pending_task(add: Add, db: Db) -> None:
    handle = add.send(2, 3).unwrap()

    row = only_row(db)
    assert row["id"] == UUID(handle.task_id)
    assert (row["status"], row["task_name"], row["queue_name"], row["priority"]) == (
        "PENDING",
        "add",
        "default",
        100,
    )
    assert json.loads(row["kwargs"]) == {"x": 2, "y": 3}
    assert row["enqueued_at"] == row["sent_at"]
    assert row["claimed_by_worker_id"] is None
    assert (row["retry_count"], row["max_retries"], row["timeout_ms"], row["is_async"]) == (0, 0, None, False)


@pytest.mark.parametrize(
    ("args", "kwargs"), [((2, 3), {}), ((2,), {"y": 3}), ((), {"x": 2, "y": 3}), ((), {"y": 3, "x": 2})]
)
def test_arguments_travel_alike_by_position_and_by_name(
    add: Add, db: Db, args: tuple[int, ...], kwargs: dict[str, int]
) -> None:
    add.send(*args, **kwargs).unwrap()

    assert json.loads(only_row(db)["kwargs"]) == {"x": 2, "y": 3}


def test_a_default_is_left_to_the_worker(add: Add, db: Db) -> None:
    add.send(2).unwrap()

    assert json.loads(only_row(db)["kwargs"]) == {"x": 2}


@pytest.mark.parametrize(
    "form", ["send", "send_async", "schedule", "schedule_async", "send_many", "send_many_async"]
)
def test_every_form_of_send_stores_the_task(add: Add, db: Db, form: str) -> None:
    result: Any = {
        "send": lambda: add.send(2, 3),
        "send_async": lambda: asyncio.run(add.send_async(2, 3)),
        "schedule": lambda: add.schedule(60, 2, 3),
        "schedule_async": lambda: asyncio.run(add.schedule_async(60, 2, 3)),
        "send_many": lambda: add.send_many([(2, 3)]),
        "send_many_async": lambda: asyncio.run(add.send_many_async([{"x": 2, "y": 3}])),
    }[form]().unwrap()

    handle = result[0] if "many" in form else result
    row = only_row(db)
    assert str(row["id"]) == handle.task_id
    assert json.loads(row["kwargs"]) == {"x": 2, "y": 3}
    assert delay_of(row) == (60 if form.startswith("schedule") else 0)


def test_a_delay_of_zero_is_due_at_once(add: Add, db: Db) -> None:
    add.schedule(0, 2).unwrap()

    assert delay_of(only_row(db)) == 0


@pytest.mark.parametrize(
    ("option", "value", "column", "stored"),
    [
        ("priority", 1, "priority", 1),
        ("priority", 100, "priority", 100),
        ("good_until", SOON, "good_until", SOON),
        ("good_until", SOON.astimezone(timezone(timedelta(hours=5, minutes=45))), "good_until", SOON),
        ("eta", SOON, "enqueued_at", SOON),
        ("eta", SOON.astimezone(timezone(timedelta(seconds=1172))), "enqueued_at", SOON),
        ("tags", ["eu", "größe", "a,b", '"'], "tags", ["eu", "größe", "a,b", '"']),
        ("tags", [], "tags", None),
        ("timeout_ms", 100, "timeout_ms", 100),
        ("queue_name", "default", "queue_name", "default"),
    ],
)
def test_an_option_of_the_send_is_in_the_row(
    add: Add, db: Db, option: str, value: Any, column: str, stored: Any
) -> None:
    add.with_options(**{option: value}).send(2).unwrap()

    assert only_row(db)[column] == stored


def test_a_delay_may_be_a_fraction_of_a_second(add: Add, db: Db) -> None:
    add.with_options(delay_seconds=0.25).send(2).unwrap()

    assert delay_of(only_row(db)) == 0.25


def test_schedule_wins_over_the_delay_of_the_options(add: Add, db: Db) -> None:
    add.with_options(delay_seconds=5).schedule(60, 2).unwrap()

    assert delay_of(only_row(db)) == 60


def test_options_hold_for_their_own_send_only(add: Add, db: Db) -> None:
    urgent = add.with_options(priority=1)

    urgent.send(1).unwrap()
    add.send(2).unwrap()

    rows = db.execute("SELECT priority FROM horsies_tasks ORDER BY id").fetchall()
    assert [row["priority"] for row in rows] == [1, 100]


def test_the_row_carries_what_the_task_was_defined_with(app: Horsies, db: Db) -> None:
    policy = RetryPolicy.fixed([1, 2], auto_retry_for=["BROKEN"])

    @app.task("fetch", retry_policy=policy, priority=7, timeout_ms=5_000, idempotent=True)
    async def fetch(url: str) -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    fetch.send("https://example.org").unwrap()

    row = only_row(db)
    assert (row["priority"], row["timeout_ms"], row["max_retries"], row["is_async"]) == (7, 5_000, 2, True)
    options = json.loads(row["task_options"])
    assert RetryPolicy.from_json(options["retry_policy"]) == policy
    assert options["idempotent"] is True


def test_the_priority_is_the_sends_then_the_tasks_then_the_queues(database_url: str, db: Db) -> None:
    queues = [CustomQueueConfig(name="bulk", priority=50), CustomQueueConfig(name="urgent", priority=2)]
    config = AppConfig(
        broker=PostgresConfig(database_url=database_url), queue_mode=QueueMode.CUSTOM, custom_queues=queues
    )
    app = Horsies(config)
    plain = define_add(app, queue_name="bulk")

    @app.task("own", queue_name="bulk", priority=9)
    def own() -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    plain.send(1).unwrap()
    plain.with_options(queue_name="urgent").send(1).unwrap()
    own.send().unwrap()
    own.with_options(priority=3).send().unwrap()
    asyncio.run(app.get_broker().close_async())

    rows = db.execute("SELECT queue_name, priority FROM horsies_tasks ORDER BY id").fetchall()
    assert [tuple(row.values()) for row in rows] == [("bulk", 50), ("urgent", 2), ("bulk", 9), ("bulk", 3)]


def test_send_many_gives_the_handles_in_the_order_of_the_calls(add: Add, db: Db) -> None:
    handles = add.send_many([(n,) if n % 2 else {"x": n} for n in range(100)]).unwrap()

    rows = {
        str(row["id"]): json.loads(row["kwargs"])
        for row in db.execute("SELECT id, kwargs FROM horsies_tasks")
    }
    assert [rows[handle.task_id] for handle in handles] == [{"x": n} for n in range(100)]


def test_send_many_of_nothing_is_no_error(add: Add, db: Db) -> None:
    assert add.send_many([]).unwrap() == []
    assert count(db) == 0


def test_send_many_takes_any_number_in_one_transaction(add: Add, db: Db) -> None:
    handles = add.send_many((n,) for n in range(4_500)).unwrap()

    assert len({handle.task_id for handle in handles}) == 4_500
    row = db.execute(
        "SELECT count(*) AS rows, count(DISTINCT sent_at) AS transactions FROM horsies_tasks"
    ).fetchone()
    assert row == {"rows": 4_500, "transactions": 1}


def test_one_bad_call_keeps_the_other_calls_from_being_sent(add: Add, db: Db) -> None:
    calls: list[Any] = [(1,), {"x": "two"}, (3,)]

    result = add.send_many(calls)

    assert is_err(result)
    assert result.err_value.code is TaskSendErrorCode.VALIDATION_FAILED
    assert count(db) == 0


def test_a_failure_in_the_last_statement_leaves_nothing_of_the_first(
    make_app: Callable[..., Horsies], db: Db
) -> None:
    add = define_add(make_app())
    db.execute("ALTER TABLE horsies_tasks_live ADD CHECK (kwargs <> '{\"x\":4499}')")

    result = add.send_many((n,) for n in range(4_500))

    assert is_err(result)
    assert result.err_value.code is TaskSendErrorCode.ENQUEUE_FAILED
    assert not result.err_value.retryable
    assert count(db) == 0


def test_calling_a_task_runs_it_here_and_stores_nothing(add: Add, db: Db) -> None:
    assert add(2, 3).unwrap() == 5
    assert count(db) == 0


def test_a_database_without_the_schema_gets_it_with_the_first_send(
    make_app: Callable[..., Horsies], empty_database_url: str
) -> None:
    app = make_app(url=empty_database_url)

    handle = define_add(app).send(2).unwrap()

    info = handle.info().unwrap()
    assert info is not None
    assert info.task_name == "add"
