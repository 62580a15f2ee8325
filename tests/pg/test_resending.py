"""A send whose answer was lost can be sent again, and there is one task in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from horsies import Horsies, TaskError, TaskResult, TaskSendErrorCode
from tests.pg.conftest import Add, define_add
from tests.pg.hands import Hands
from tests.support.proxy import Proxy

Db = psycopg.Connection[dict[str, Any]]


def statuses(db: Db) -> list[str]:
    return [row["status"] for row in db.execute("SELECT status FROM horsies_tasks ORDER BY id")]


@pytest.fixture
def far(make_app: Callable[..., Horsies], proxy: Proxy) -> Add:
    """A task that is sent over a bad line; the line is fine until it is told otherwise."""
    add = define_add(make_app(url=proxy.url))
    add.send_many([]).unwrap()
    return add


def test_a_lost_reply_is_an_error_that_carries_the_task(far: Add, proxy: Proxy, db: Db) -> None:
    proxy.lose_reply()

    error = far.send(21_345, 3).unwrap_err()

    assert proxy.lost == 1
    assert (error.code, error.retryable) == (TaskSendErrorCode.ENQUEUE_FAILED, True)
    assert error.payload is not None
    assert (error.payload.task_name, error.payload.queue_name, error.payload.priority) == (
        "add",
        "default",
        100,
    )
    assert error.payload.kwargs_json == '{"x":21345,"y":3}'
    assert "21345" not in repr(error)
    assert [str(row["id"]) for row in db.execute("SELECT id FROM horsies_tasks")] == [error.task_id]


def test_a_lost_reply_and_a_retry_make_one_task(far: Add, proxy: Proxy, db: Db) -> None:
    for _ in range(12):
        proxy.lose_reply()
        error = far.send(1).unwrap_err()

        assert far.retry_send(error).unwrap().task_id == error.task_id

    assert statuses(db) == ["PENDING"] * 12


def test_a_lost_send_and_a_retry_make_one_task(far: Add, proxy: Proxy, db: Db) -> None:
    for _ in range(12):
        proxy.lose_statement()
        error = far.send(1).unwrap_err()

        assert far.retry_send(error).unwrap().task_id == error.task_id

    assert statuses(db) == ["PENDING"] * 12


@pytest.mark.parametrize("fault", ["lose_reply", "lose_statement"])
def test_a_retry_that_fails_at_any_of_its_steps_can_be_retried(
    far: Add, proxy: Proxy, db: Db, fault: str
) -> None:
    for step in range(4):
        proxy.lose_reply()
        error = far.send(step).unwrap_err()
        getattr(proxy, fault)(skip=step)
        again = far.retry_send(error).unwrap_err()

        assert again.code is TaskSendErrorCode.ENQUEUE_FAILED
        assert far.retry_send(again).unwrap().task_id == error.task_id

    assert proxy.lost == 8
    assert statuses(db) == ["PENDING"] * 4


@pytest.mark.parametrize("kind", ["plain", "unique", "keyed"])
def test_a_task_that_has_ended_meanwhile_does_not_run_again(
    make_app: Callable[..., Horsies], proxy: Proxy, hands: Hands, db: Db, kind: str
) -> None:
    add = define_add(make_app(url=proxy.url), unique="args" if kind == "unique" else None)
    add.send_many([]).unwrap()
    for n in range(10):
        sender = add.with_options(idempotency_key=f"k{n}") if kind == "keyed" else add
        proxy.lose_reply(skip=min(n, 1))  # the connection that comes after a lost one says something first
        error = sender.send(n).unwrap_err()
        held = hands.run_next()
        if n % 2:
            hands.complete(held)
        else:
            hands.fail(held)

        handle = add.retry_send(error).unwrap()

        assert handle.task_id == error.task_id
        assert handle.get(timeout_ms=0).is_ok() == bool(n % 2)
        assert hands.claim() == []
    assert sorted(statuses(db)) == ["COMPLETED"] * 5 + ["FAILED"] * 5


def test_a_task_that_runs_meanwhile_goes_on(far: Add, proxy: Proxy, hands: Hands, db: Db) -> None:
    proxy.lose_reply()
    error = far.send(1).unwrap_err()
    held = hands.run_next()

    assert far.retry_send(error).unwrap().task_id == error.task_id

    assert statuses(db) == ["RUNNING"]
    assert hands.complete(held) == 1


def test_a_send_is_retried_by_itself_when_the_app_says_so(
    make_app: Callable[..., Horsies], proxy: Proxy, db: Db
) -> None:
    add = define_add(make_app(url=proxy.url, resend_on_transient_err=True))
    add.send_many([]).unwrap()

    for n in range(3):
        proxy.lose_reply()
        add.send(n).unwrap()
        proxy.lose_statement()
        add.send(n).unwrap()
    proxy.lose_reply(skip=2)
    add.with_options(delay_seconds=1).send_many([(n,) for n in range(4_500)]).unwrap()

    assert proxy.lost == 7
    assert len(statuses(db)) == 6 + 4_500


def test_a_connection_that_died_while_idle_is_replaced_unnoticed(far: Add, proxy: Proxy, db: Db) -> None:
    for _ in range(3):
        far.send(1).unwrap()
        proxy.cut()

    far.send(1).unwrap()

    assert statuses(db) == ["PENDING"] * 4


def test_a_server_that_refuses_is_an_error_until_it_is_back(far: Add, proxy: Proxy, db: Db) -> None:
    proxy.refusing = True
    proxy.cut()
    error = far.send(1).unwrap_err()
    assert error.retryable

    proxy.refusing = False

    assert far.retry_send(error).unwrap().task_id == error.task_id
    assert statuses(db) == ["PENDING"]


def test_the_retry_methods_come_in_the_kinds_of_the_sends(far: Add, proxy: Proxy, db: Db) -> None:
    proxy.lose_statement()
    sent = far.send(1).unwrap_err()
    proxy.lose_statement()
    scheduled = far.schedule(60, 1).unwrap_err()

    for wrong in (
        far.retry_schedule(sent),
        far.retry_send(scheduled),
        asyncio.run(far.retry_schedule_async(sent)),
        asyncio.run(far.retry_send_async(scheduled)),
    ):
        assert wrong.unwrap_err().code is TaskSendErrorCode.VALIDATION_FAILED
    assert statuses(db) == []

    assert asyncio.run(far.retry_send_async(sent)).unwrap().task_id == sent.task_id
    assert asyncio.run(far.retry_schedule_async(scheduled)).unwrap().task_id == scheduled.task_id
    assert far.retry_schedule(scheduled).unwrap().task_id == scheduled.task_id
    assert statuses(db) == ["PENDING"] * 2


def test_only_a_failed_send_of_the_same_task_can_be_retried(
    app: Horsies, far: Add, proxy: Proxy, db: Db
) -> None:
    @app.task("other")
    def other(x: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=x)

    proxy.lose_statement()
    failed = far.send(1).unwrap_err()
    refused = far.send("one").unwrap_err()  # pyright: ignore
    proxy.lose_statement()
    many = far.send_many([(1,), (2,)]).unwrap_err()

    assert "'add'" in other.retry_send(failed).unwrap_err().message
    for error in (refused, many, replace(failed, code=TaskSendErrorCode.SEND_SUPPRESSED)):
        assert far.retry_send(error).unwrap_err().code is TaskSendErrorCode.VALIDATION_FAILED
    assert statuses(db) == []


def test_an_id_that_belongs_to_another_payload_is_a_mismatch(far: Add, proxy: Proxy, db: Db) -> None:
    proxy.lose_reply()
    error = far.send(1).unwrap_err()
    db.execute("""UPDATE horsies_tasks SET kwargs = '{"x":2}'""")

    mismatch = far.retry_send(error).unwrap_err()

    assert mismatch.code is TaskSendErrorCode.PAYLOAD_MISMATCH
    assert not mismatch.retryable
    assert statuses(db) == ["PENDING"]
