"""Unique tasks and idempotency keys: however often a call is sent, there is one task for it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from horsies import Horsies, TaskError, TaskResult, TaskSendErrorCode, TaskStatus
from horsies.task import Task
from tests.pg.conftest import Add, define_add
from tests.pg.hands import Hands
from tests.pg.racing import race

Db = psycopg.Connection[dict[str, Any]]


def count(db: Db) -> int:
    return len(db.execute("SELECT 1 FROM horsies_tasks").fetchall())


@pytest.fixture
def once(app: Horsies) -> Add:
    return define_add(app, unique="args")


def test_a_second_send_of_a_live_unique_task_gives_its_handle(once: Add, hands: Hands, db: Db) -> None:
    first = once.send(1, 2).unwrap()

    assert once.send(1, 2).unwrap().task_id == first.task_id
    (claimed,) = hands.claim()
    assert once.send(x=1, y=2).unwrap().task_id == first.task_id
    hands.start([claimed])
    assert once.send(y=2, x=1).unwrap().task_id == first.task_id
    assert once.schedule(60, 1, 2).unwrap().task_id == first.task_id

    assert count(db) == 1


def test_other_arguments_make_another_task(once: Add, db: Db) -> None:
    ids = {once.send(1, 2).unwrap().task_id, once.send(2, 1).unwrap().task_id, once.send(1).unwrap().task_id}

    assert len(ids) == count(db) == 3


@pytest.mark.parametrize("end", ["complete", "fail"])
def test_after_the_task_has_ended_a_new_one_is_made(once: Add, hands: Hands, db: Db, end: str) -> None:
    first = once.send(1).unwrap()
    if end == "complete":
        hands.complete(hands.run_next())
    else:
        hands.fail(hands.run_next())

    assert once.send(1).unwrap().task_id != first.task_id
    assert count(db) == 2


def test_a_task_that_is_to_be_tried_again_still_holds_its_key(once: Add, hands: Hands) -> None:
    first = once.send(1).unwrap()
    hands.fail(hands.run_next(), delay_seconds=3600)

    assert once.send(1).unwrap().task_id == first.task_id


def test_a_function_may_say_what_is_the_same(app: Horsies, db: Db) -> None:
    def parity(x: int, y: int = 0) -> str:
        return "even" if x % 2 == 0 else "odd"

    add = define_add(app, unique=parity)

    ids = [add.send(n).unwrap().task_id for n in range(6)]

    assert ids == ids[:2] * 3
    assert count(db) == 2


def test_the_keys_of_two_tasks_have_nothing_to_do_with_each_other(app: Horsies, db: Db) -> None:
    def key(**_: int) -> str:
        return "k"

    first = define_add(app, unique=key)

    @app.task("other", unique=key)
    def other(x: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=x)

    assert first.send(x=1).unwrap().task_id != other.send(x=1).unwrap().task_id


def test_send_many_of_a_unique_task_gives_one_handle_for_each_call(once: Add, db: Db) -> None:
    existing = once.send(0).unwrap()

    handles = once.send_many([(n % 3,) for n in range(9)]).unwrap()

    ids = [handle.task_id for handle in handles]
    assert ids == ids[:3] * 3
    assert ids[0] == existing.task_id
    assert count(db) == 3


def test_threads_that_send_the_same_call_get_the_same_task(once: Add, db: Db) -> None:
    with ThreadPoolExecutor(16) as threads:
        ids = {result.unwrap().task_id for result in threads.map(once.send, [1] * 100)}

    assert len(ids) == count(db) == 1


def test_sends_of_the_same_keys_in_opposite_orders_do_not_block_each_other(
    make_app: Callable[..., Horsies], hands: Hands, db: Db
) -> None:
    senders = [define_add(make_app(), unique="args") for _ in range(2)]
    calls = [[(n,) for n in range(3_000)], [(n,) for n in reversed(range(3_000))]]

    for _ in range(3):
        with ThreadPoolExecutor(2) as threads:
            results = threads.map(Task[..., int].send_many, senders, calls)
        assert all(len(result.unwrap()) == 3_000 for result in results)
        assert count(db) == 3_000
        db.execute("DELETE FROM horsies_tasks")


ONE_OF_MANY = """
import sys
from horsies import AppConfig, Horsies, TaskError, TaskResult

app = Horsies(AppConfig.for_database_url(sys.argv[1]))

@app.task("add", unique="args")
def add(x: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=x)

@app.task("plain")
def plain(x: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=x)

ready()
for n in range(20):
    print(add.send(n).unwrap().task_id, plain.with_options(idempotency_key=f"k{n}").send(n).unwrap().task_id)
"""


def test_processes_that_send_the_same_calls_get_the_same_tasks(database_url: str, db: Db) -> None:
    answers = race(ONE_OF_MANY, database_url, 3)

    assert len(set(answers)) == 1
    assert count(db) == 40


def test_the_same_idempotency_key_and_call_is_the_same_task(add: Add, hands: Hands, db: Db) -> None:
    keyed = add.with_options(idempotency_key="order-17")
    first = keyed.send(1, 2).unwrap()

    assert keyed.send(x=1, y=2).unwrap().task_id == first.task_id
    hands.complete(hands.run_next())
    again = keyed.send(1, 2).unwrap()

    assert again.task_id == first.task_id
    assert again.get(timeout_ms=0).unwrap() == 5
    assert count(db) == 1


def test_the_same_idempotency_key_for_another_call_is_an_error(app: Horsies, add: Add, db: Db) -> None:
    first = add.with_options(idempotency_key="order-17").send(1).unwrap()

    error = add.with_options(idempotency_key="order-17").send(2).unwrap_err()

    assert error.code is TaskSendErrorCode.ENQUEUE_FAILED
    assert not error.retryable
    assert "order-17" in error.message
    info = app.handle(first.task_id).info().unwrap()
    assert info is not None
    assert info.status is TaskStatus.PENDING
    assert count(db) == 1


def test_threads_that_send_the_same_idempotency_key_get_the_same_task(add: Add, db: Db) -> None:
    keyed = add.with_options(idempotency_key="k" * 500)

    with ThreadPoolExecutor(16) as threads:
        ids = {result.unwrap().task_id for result in threads.map(keyed.send, [1] * 100)}

    assert len(ids) == count(db) == 1


def test_a_key_that_was_forgotten_can_be_used_again(add: Add, hands: Hands, db: Db) -> None:
    first = add.with_options(idempotency_key="k").send(1).unwrap()
    hands.complete(hands.run_next())
    db.execute("DELETE FROM horsies_idempotency_keys")

    assert add.with_options(idempotency_key="k").send(2).unwrap().task_id != first.task_id
