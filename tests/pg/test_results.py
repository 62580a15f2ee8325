"""A handle tells what became of its task, and every answer has its code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from horsies import AppConfig, Horsies, TaskAttemptOutcome, TaskError, TaskResult, TaskStatus
from horsies.codec import encode_result
from horsies.db.ids import new_ids
from horsies.status import BrokerErrorCode, OperationalErrorCode, OutcomeCode, RetrievalCode
from tests.pg.conftest import Add, define_add
from tests.pg.hands import Hands
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

Db = psycopg.Connection[dict[str, Any]]
EXPIRED = encode_result(
    TaskResult(err=TaskError(error_code=OutcomeCode.TASK_EXPIRED, message="too late")), int, None
).decode()


def code_of(result: TaskResult[Any, TaskError]) -> object:
    return result.unwrap_err().error_code


def test_the_result_is_what_the_task_returned(add: Add, hands: Hands) -> None:
    handle = add.send(2, 3).unwrap()
    hands.complete(hands.run_next())

    assert handle.get() == handle.get(timeout_ms=0) == TaskResult(ok=5)
    assert asyncio.run(handle.get_async()) == TaskResult(ok=5)


def test_the_error_is_the_one_the_task_failed_with(add: Add, hands: Hands) -> None:
    handle = add.send(2).unwrap()
    hands.fail(hands.run_next())

    error = handle.get(timeout_ms=5_000).unwrap_err()

    assert (error.error_code, error.message) == ("BROKEN", "it broke")


@pytest.mark.parametrize("timeout_ms", [0, 1, 30, -5])
def test_running_out_of_time_is_an_error_of_waiting_only(add: Add, hands: Hands, timeout_ms: int) -> None:
    handle = add.send(2).unwrap()

    assert code_of(handle.get(timeout_ms=timeout_ms)) is RetrievalCode.WAIT_TIMEOUT
    assert code_of(asyncio.run(handle.get_async(timeout_ms=timeout_ms))) is RetrievalCode.WAIT_TIMEOUT

    # A claim passes over the row while the last query of the waiter has it locked.
    hands.complete(eventually(hands.run_next, what="the task being claimed"))
    assert handle.get(timeout_ms=5_000).unwrap() == 5


def test_a_task_that_does_not_exist_is_not_found(app: Horsies) -> None:
    far_future = "ffffffff-ffff-7fff-bfff-ffffffffffff"
    for task_id in ("nonsense", "", new_ids(1)[0], UUID(int=2**128 - 1), UUID(int=0), far_future):
        for timeout_ms in (0, 5_000):
            assert code_of(app.handle(task_id).get(timeout_ms=timeout_ms)) is RetrievalCode.TASK_NOT_FOUND
        assert app.handle(task_id).info().unwrap() is None


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("CANCELLED", OutcomeCode.TASK_CANCELLED),
        ("EXPIRED", OutcomeCode.TASK_EXPIRED),
        ("COMPLETED", RetrievalCode.RESULT_NOT_AVAILABLE),
        ("FAILED", RetrievalCode.RESULT_NOT_AVAILABLE),
    ],
)
def test_a_task_that_ended_without_a_result_says_how(app: Horsies, db: Db, status: str, code: object) -> None:
    row = db.execute(
        "INSERT INTO horsies_tasks (task_name, live, status, terminal_at) VALUES ('add', false, %s, now()) RETURNING id",
        (status,),
    ).fetchone()
    assert row is not None

    for timeout_ms in (0, 5_000):
        assert code_of(app.handle(row["id"]).get(timeout_ms=timeout_ms)) is code


def test_a_task_that_was_not_started_in_time_is_expired(add: Add, hands: Hands) -> None:
    handle = add.with_options(good_until=datetime.now(UTC) - timedelta(seconds=1)).send(2).unwrap()
    assert hands.run_next() == []

    hands.expire(EXPIRED)

    assert code_of(handle.get(timeout_ms=5_000)) is OutcomeCode.TASK_EXPIRED


def test_a_database_that_cannot_be_asked_is_a_broker_error(
    make_app: Callable[..., Horsies], proxy: Proxy
) -> None:
    add = define_add(make_app(url=proxy.url))
    handle = add.send(1).unwrap()
    proxy.refusing = True
    proxy.cut()

    for timeout_ms in (0, 20_000, None):
        assert code_of(handle.get(timeout_ms=timeout_ms)) is OperationalErrorCode.BROKER_ERROR
    error = handle.info().unwrap_err()
    assert (error.code, error.retryable) == (BrokerErrorCode.TASK_INFO_QUERY_FAILED, True)

    proxy.refusing = False
    assert code_of(handle.get(timeout_ms=0)) is RetrievalCode.WAIT_TIMEOUT


def test_a_database_without_the_tables_is_a_broker_error(empty_database_url: str) -> None:
    app = Horsies(AppConfig.for_database_url(empty_database_url), run_schema_migrations=False)
    handle = app.handle(new_ids(1)[0])

    for timeout_ms in (0, 20_000, None):
        assert code_of(handle.get(timeout_ms=timeout_ms)) is OperationalErrorCode.BROKER_ERROR
    assert handle.info().unwrap_err().code is BrokerErrorCode.TASK_INFO_QUERY_FAILED
    asyncio.run(app.get_broker().close_async())


@pytest.mark.parametrize("end", ["complete", "fail"])
def test_a_final_answer_is_asked_for_once(
    make_app: Callable[..., Horsies], proxy: Proxy, hands: Hands, end: str
) -> None:
    handle = define_add(make_app(url=proxy.url)).send(1).unwrap()
    if end == "complete":
        hands.complete(hands.run_next())
    else:
        hands.fail(hands.run_next())
    first = handle.get(timeout_ms=0)
    asked = proxy.statements

    for timeout_ms in (None, 0, 5_000):
        assert handle.get(timeout_ms=timeout_ms) is first
        assert asyncio.run(handle.get_async(timeout_ms=timeout_ms)) is first

    assert proxy.statements == asked


def test_a_handle_made_from_an_id_decodes_to_the_type_of_its_task_if_it_is_given(
    app: Horsies, hands: Hands
) -> None:
    @app.task("when")
    def when() -> TaskResult[datetime, TaskError]:
        return TaskResult(ok=datetime.now(UTC))

    task_id = when.send().unwrap().task_id
    hands.complete(hands.run_next(), '{"ok":"2026-01-02T03:04:05Z"}')

    assert app.handle(task_id, when).get(timeout_ms=5_000).unwrap() == datetime(
        2026, 1, 2, 3, 4, 5, tzinfo=UTC
    )
    assert app.handle(UUID(task_id)).get(timeout_ms=5_000).unwrap() == "2026-01-02T03:04:05Z"


def test_a_result_that_is_not_of_the_promised_type_is_an_error(add: Add, hands: Hands) -> None:
    handle = add.send(1).unwrap()
    hands.complete(hands.run_next(), '{"ok":"five"}')

    assert code_of(handle.get(timeout_ms=5_000)) is OperationalErrorCode.RESULT_DESERIALIZATION_ERROR


def test_info_tells_what_is_recorded(add: Add, hands: Hands, db: Db) -> None:
    handle = add.with_options(priority=3).send(1).unwrap()
    (row,) = db.execute("SELECT * FROM horsies_tasks").fetchall()

    info = handle.info().unwrap()

    assert info is not None
    assert (info.task_id, info.task_name, info.status) == (handle.task_id, "add", TaskStatus.PENDING)
    assert (info.queue_name, info.priority, info.retry_count, info.max_retries) == ("default", 3, 0, 0)
    assert (info.sent_at, info.enqueued_at) == (row["sent_at"], row["enqueued_at"])
    assert info.claimed_at is info.started_at is info.completed_at is info.failed_at is None
    assert info.attempts is info.result is info.failed_reason is None

    hands.run_next(pid=77)
    info = asyncio.run(handle.info_async()).unwrap()
    assert info is not None
    assert (info.status, info.worker_pid, info.worker_hostname) == (TaskStatus.RUNNING, 77, "host")
    assert info.worker_process_name == "hands"


def test_results_reasons_and_attempts_come_on_request_with_the_newest_attempt_first(
    add: Add, hands: Hands
) -> None:
    handle = add.send(1).unwrap()
    hands.fail(hands.run_next(), delay_seconds=0, reason="first")
    hands.fail(hands.run_next(), delay_seconds=0, reason="second")
    hands.fail(hands.run_next(), reason="third")

    plain = handle.info().unwrap()
    full = handle.info(include_result=True, include_failed_reason=True, include_attempts=True).unwrap()

    assert plain is not None
    assert full is not None
    assert (plain.attempts, plain.result, plain.failed_reason, plain.error_code) == (
        None,
        None,
        None,
        "BROKEN",
    )
    assert full.result == handle.get()
    assert full.failed_reason == "third"
    assert full.attempts is not None
    assert [attempt.attempt for attempt in full.attempts] == [3, 2, 1]
    assert [attempt.failed_reason for attempt in full.attempts] == ["third", "second", "first"]
    assert [attempt.will_retry for attempt in full.attempts] == [False, True, True]
    assert {attempt.outcome for attempt in full.attempts} == {TaskAttemptOutcome.FAILED}
    assert {attempt.worker_id for attempt in full.attempts} == {str(hands.worker_id)}
    assert all(attempt.started_at and attempt.finished_at for attempt in full.attempts)


def test_a_task_that_never_ran_has_no_attempts(add: Add) -> None:
    info = add.send(1).unwrap().info(include_attempts=True).unwrap()

    assert info is not None
    assert info.attempts == ()
