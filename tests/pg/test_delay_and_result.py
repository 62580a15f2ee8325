"""`delay` gives a handle or raises, `result` gives the value or raises, and a failed `send` is logged once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import psycopg
import pytest

from horsies import (
    Horsies,
    OperationalErrorCode,
    OutcomeCode,
    ResultUnavailable,
    RetrievalCode,
    SendError,
    TaskCancelled,
    TaskError,
    TaskExpired,
    TaskFailed,
    TaskHandle,
    TaskNotFound,
    TaskResult,
    TaskSendErrorCode,
    TaskTimeout,
    chain,
    start_workflow,
)
from horsies.db.ids import new_ids
from tests.pg.conftest import Add, define_add
from tests.pg.hands import ERR, Hands
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

Db = psycopg.Connection[dict[str, Any]]


def stored(db: Db) -> list[dict[str, Any]]:
    return db.execute("SELECT * FROM horsies_tasks ORDER BY id").fetchall()


def send_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "horsies.send"]


def test_delay_stores_the_task_and_result_gives_its_value(add: Add, hands: Hands) -> None:
    handles = [add.delay(2, 3), asyncio.run(add.delay_async(2, y=3)), add.with_options(priority=1).delay(2)]
    hands.complete(hands.run_next())

    assert [handle.result(timeout=10) for handle in handles] == [5, 5, 5]
    assert asyncio.run(handles[0].result_async()) == 5
    fresh = add.broker
    assert (
        asyncio.run(TaskHandle[int](handles[1].task_id, fresh, int).result_async(timedelta(seconds=10))) == 5
    )


def test_a_delay_that_cannot_be_stored_raises(make_app: Callable[..., Horsies], proxy: Proxy, db: Db) -> None:
    add = define_add(make_app(url=proxy.url, resend_on_transient_err=False))
    add.delay(1)
    proxy.refusing = True
    proxy.cut()

    with pytest.raises(SendError) as raised:
        add.delay(2)
    with pytest.raises(SendError, match="ENQUEUE_FAILED"):
        asyncio.run(add.with_options(priority=1).delay_async(2))

    error = raised.value
    assert (error.code, error.retryable) == (TaskSendErrorCode.ENQUEUE_FAILED, True)
    assert isinstance(error, ValueError)
    proxy.refusing = False
    assert error.error is not None
    assert add.retry_send(error.error).unwrap().task_id == error.error.task_id
    assert len(stored(db)) == 2


def test_a_delay_of_wrong_arguments_raises_and_stores_nothing(add: Add, db: Db) -> None:
    wrong: Any = "two"
    with pytest.raises(SendError, match=r"^VALIDATION_FAILED: .*'x'"):
        add.delay(wrong)
    with pytest.raises(SendError, match="VALIDATION_FAILED: priority is 0"):
        add.with_options(priority=0).delay(1)
    assert stored(db) == []


def test_the_result_of_a_failed_task_raises_its_error(add: Add, hands: Hands) -> None:
    handle = add.delay(2)
    hands.fail(hands.run_next())

    with pytest.raises(TaskFailed) as raised:
        handle.result(timeout=10)

    assert raised.value.error == handle.get().unwrap_err()
    assert raised.value.code == "BROKEN"
    assert str(raised.value).splitlines()[0] == f"task 'add' {handle.task_id} failed: BROKEN: it broke"
    with pytest.raises(TaskFailed, match="the task failed: BROKEN: it broke"):
        handle.get().unwrap()


def test_a_task_that_has_not_ended_is_a_timeout_and_nothing_is_lost(add: Add, hands: Hands) -> None:
    handle = add.delay(2)

    for timeout in (0, 0.01, timedelta(milliseconds=10)):
        with pytest.raises(TaskTimeout, match=rf"^task 'add' {handle.task_id} has not ended") as caught:
            handle.result(timeout=timeout)
        assert caught.value.code == RetrievalCode.WAIT_TIMEOUT
        with pytest.raises(TaskTimeout):
            asyncio.run(handle.result_async(timeout))
    with pytest.raises(TaskTimeout, match=r"has not ended within 0.01 s"):
        handle.result(timeout=0.01)

    # A claim passes over the row while the last query of the waiter has it locked.
    hands.complete(eventually(hands.run_next, what="the task being claimed"))
    assert handle.result(timeout=10) == 5


def test_the_error_of_get_says_that_its_timeout_is_in_milliseconds(add: Add) -> None:
    handle = add.delay(2)

    with pytest.raises(TaskTimeout, match=r"has not ended within 10 ms \(timeout_ms is in milliseconds\)"):
        handle.get(10).unwrap()
    with pytest.raises(TaskTimeout, match=r"has not ended within 0\.01 s"):
        handle.get(timedelta(milliseconds=10)).unwrap()
    with pytest.raises(TaskTimeout, match="has not ended: it is PENDING"):
        handle.get(0).unwrap()


def test_a_timeout_that_is_none_is_refused(add: Add) -> None:
    handle = add.delay(2)
    for wrong in ("10", True, float("nan"), [1]):
        with pytest.raises(ValueError, match="use seconds, a timedelta, or None"):
            handle.result(timeout=cast("Any", wrong))
        with pytest.raises(ValueError, match="use milliseconds, a timedelta, or None"):
            handle.get(timeout_ms=cast("Any", wrong))


def test_a_timeout_beyond_all_measure_waits_without_limit(add: Add, hands: Hands) -> None:
    handles = [add.delay(2) for _ in range(3)]
    hands.complete(hands.run_next())
    assert handles[0].result(timeout=10**400) == handles[1].result(timeout=float("inf")) == 5
    assert handles[2].get(timeout_ms=10**400).unwrap() == 5


def test_a_cancelled_task_raises_that_it_was_cancelled(add: Add) -> None:
    handle = add.delay(2)
    handle.cancel().unwrap()

    with pytest.raises(TaskCancelled, match=f"task 'add' {handle.task_id} was cancelled"):
        handle.result(timeout=10)
    with pytest.raises(TaskCancelled):
        handle.get().unwrap()


def test_an_expired_task_raises_that_it_was_too_late(add: Add, hands: Hands) -> None:
    handle = add.with_options(good_until=datetime.now(UTC) - timedelta(seconds=1)).delay(2)
    expired = TaskResult[int, TaskError](err=TaskError(error_code=OutcomeCode.TASK_EXPIRED))
    assert hands.expire(
        f'{{"err":{{"error_code":{{"__builtin_task_code__":"{expired.unwrap_err().error_code}"}}}}}}'
    )

    with pytest.raises(TaskExpired):
        handle.result(timeout=10)


def test_a_task_that_does_not_exist_raises_that(app: Horsies) -> None:
    task_id = str(new_ids(1)[0])
    for timeout in (0, 10):
        with pytest.raises(TaskNotFound, match=f"TASK_NOT_FOUND: there is no task {task_id}"):
            app.handle(task_id).result(timeout=timeout)
    with pytest.raises(TaskNotFound, match="'nonsense' is not a task id"):
        app.handle("nonsense").result()


def test_a_result_that_cannot_be_read_is_no_failure_of_the_task(
    make_app: Callable[..., Horsies], proxy: Proxy, hands: Hands
) -> None:
    handle = define_add(make_app(url=proxy.url)).delay(2)
    hands.complete(hands.run_next())
    proxy.refusing = True
    proxy.cut()

    with pytest.raises(ResultUnavailable) as raised:
        handle.result(timeout=10)
    assert raised.value.code is OperationalErrorCode.BROKER_ERROR
    assert raised.value.__cause__ is not None
    assert not isinstance(raised.value, TaskFailed)

    proxy.refusing = False
    assert handle.result(timeout=10) == 5


def test_errors_of_get_carry_the_id_of_the_task(app: Horsies, add: Add, hands: Hands) -> None:
    pending, cancelled, mistyped = add.delay(1), add.delay(2), add.delay(3)
    cancelled.cancel().unwrap()
    unknown = app.handle(new_ids(1)[0])
    for handle, code in (
        (pending, RetrievalCode.WAIT_TIMEOUT),
        (cancelled, OutcomeCode.TASK_CANCELLED),
        (unknown, RetrievalCode.TASK_NOT_FOUND),
    ):
        error = handle.get(timeout_ms=0).unwrap_err()
        assert (error.error_code, error.data) == (code, {"task_id": handle.task_id})
    hands.complete(hands.run_next(), '{"ok":"five"}')
    error = mistyped.get(timeout_ms=5_000).unwrap_err()
    assert error.error_code is OperationalErrorCode.RESULT_DESERIALIZATION_ERROR
    assert error.data == {"task_id": mistyped.task_id}


def test_delays_and_time_limits_are_seconds_or_timedeltas(add: Add, db: Db) -> None:
    minute = timedelta(minutes=1)
    for options in (
        {"delay": 60},
        {"delay": minute},
        {"delay_seconds": minute},
        {"delay": 60.0},
    ):
        add.with_options(**cast("Any", options)).delay(1)
    add.schedule(minute, 1).unwrap()
    asyncio.run(add.schedule_async(minute, 1)).unwrap()
    rows = stored(db)
    assert [row["enqueued_at"] - row["sent_at"] for row in rows] == [minute] * 6

    for options in (
        {"timeout": 1.5},
        {"timeout": timedelta(seconds=1.5)},
        {"timeout_ms": timedelta(seconds=1.5)},
    ):
        add.with_options(**cast("Any", options)).delay(1)
    assert [row["timeout_ms"] for row in stored(db)[6:]] == [1500] * 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delay": -1}, r"delay is -1; use seconds from 0 to a century, or a timedelta"),
        ({"delay": "5"}, r"delay is '5'; use seconds"),
        ({"delay": timedelta(days=-1)}, r"delay is .*; use seconds"),
        ({"delay": float("nan")}, r"delay is nan; use seconds"),
        ({"delay": 1, "delay_seconds": 1}, r"both delay and delay_seconds are given; use one"),
        ({"delay": 1, "eta": datetime.now(UTC)}, r"both eta and delay are given; use one"),
        ({"timeout": 0.05}, r"timeout is 0.05; use seconds from 0.1 to 2147483, or a timedelta"),
        ({"timeout": "5"}, r"timeout is '5'; use seconds"),
        ({"timeout": 10**400}, r"timeout is 10+; use seconds"),
        ({"timeout": 5, "timeout_ms": 5000}, r"both timeout and timeout_ms are given; use one"),
        (
            {"timeout_ms": timedelta(milliseconds=1)},
            r"timeout_ms is .*; use a whole number .*, or a timedelta",
        ),
    ],
)
def test_a_duration_that_is_none_is_refused_by_name(add: Add, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SendError, match=f"^VALIDATION_FAILED: {message}"):
        add.with_options(**options).delay(1)


def test_a_schedule_delay_that_is_none_is_refused(add: Add) -> None:
    for wrong in (-1, 1.5, "5", True, timedelta(seconds=-1), timedelta.max):
        error = add.schedule(cast("Any", wrong), 1).unwrap_err()
        assert error.message.startswith(f"delay_seconds is {wrong!r}; use a whole number")


@pytest.mark.parametrize(
    "send",
    [
        lambda add: add.send("x"),
        lambda add: asyncio.run(add.send_async("x")),
        lambda add: add.schedule(1, "x"),
        lambda add: asyncio.run(add.schedule_async(1, "x")),
        lambda add: add.send_many([(1,), ("x",)]),
        lambda add: add.send_many([("x",)] * 2_000),
        lambda add: asyncio.run(add.send_many_async([("x",)])),
    ],
)
def test_a_failed_send_is_logged_once_with_its_code(
    add: Add, caplog: pytest.LogCaptureFixture, send: Callable[[Any], Any]
) -> None:
    error = send(add).unwrap_err()

    (line,) = send_lines(caplog)
    assert line == f"task 'add' was not sent: VALIDATION_FAILED: {error.message}"
    assert caplog.records[-1].levelno == logging.ERROR


def test_a_send_that_raises_or_succeeds_logs_nothing(
    add: Add, caplog: pytest.LogCaptureFixture, database_url: str
) -> None:
    add.send(1).unwrap()
    with pytest.raises(SendError):
        add.delay(cast("Any", "x"))
    with psycopg.connect(database_url) as connection, pytest.raises(SendError):
        add.with_options(conn=connection).send("x")
    assert send_lines(caplog) == []


def test_a_retry_that_fails_is_logged(
    make_app: Callable[..., Horsies], proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    add = define_add(make_app(url=proxy.url))
    proxy.refusing = True
    error = add.send(1).unwrap_err()
    caplog.clear()

    add.retry_send(error).unwrap_err()

    (line,) = send_lines(caplog)
    assert line.startswith("task 'add' was not sent: ENQUEUE_FAILED: ")


SECRET = "4111-1111-1111-1111"


def test_the_line_of_a_failed_send_quotes_no_redacted_argument(
    make_app: Callable[..., Horsies], db: Db, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(redact=["card"])

    @app.task("charge")
    def charge(card: str, cents: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=cents)

    db.execute(
        """
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'refused: %', NEW.kwargs; END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON horsies_tasks FOR EACH ROW EXECUTE FUNCTION refuse();
        """
    )
    charge.send(SECRET, cast("Any", SECRET)).unwrap_err()
    charge.send(SECRET, 5).unwrap_err()

    assert len(send_lines(caplog)) == 2
    assert SECRET not in caplog.text
    assert "RaiseException" in send_lines(caplog)[1]


def test_a_failed_start_is_logged_once_with_its_code(
    make_app: Callable[..., Horsies], proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    add = define_add(make_app(url=proxy.url))
    flow = chain(add.node(1), name="sums")
    refused = flow.start("no id").unwrap_err()
    assert send_lines(caplog) == [
        f"workflow 'sums' was not started: VALIDATION_FAILED: {refused.message.partition(': ')[2]}"
    ]
    proxy.refusing = True
    lost = flow.start().unwrap_err()

    for start in (
        flow.start,
        lambda: asyncio.run(flow.start_async()),
        lambda: start_workflow(flow),
        lambda: flow.spec().retry_start(lost),
        lambda: flow.spec().retry_start(refused),
        lambda: start_workflow(flow, cast("Any", "postgresql://ann:s3cret@db/app")),
    ):
        caplog.clear()
        error = start().unwrap_err()
        (line,) = send_lines(caplog)
        assert line.startswith(f"workflow 'sums' was not started: {error.code}: ")
        assert caplog.records[-1].levelno == logging.ERROR
        assert "s3cret" not in caplog.text + error.message


def test_a_start_that_raises_succeeds_or_is_suppressed_logs_no_error(
    add: Add, app: Horsies, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    flow = chain(add.node(1))
    flow.start().unwrap()
    with psycopg.connect(database_url) as connection, pytest.raises(SendError):
        flow.start("no id", conn=connection)
    assert send_lines(caplog) == []

    app.suppress_sends(True)
    flow.start().unwrap_err()

    assert [each.levelno for each in caplog.records if each.name == "horsies.send"] == [logging.WARNING]


def test_the_line_of_a_failed_start_quotes_no_redacted_argument(
    make_app: Callable[..., Horsies], db: Db, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(redact=["card"])

    @app.task("charge")
    def charge(card: str) -> int:
        return 1

    db.execute(
        """
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'refused: %', NEW; END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON horsies_workflow_tasks FOR EACH ROW EXECUTE FUNCTION refuse();
        """
    )
    error = chain(charge.node(SECRET)).start().unwrap_err()

    assert SECRET in error.message
    (line,) = send_lines(caplog)
    assert line.endswith("ENQUEUE_FAILED: RaiseException")
    assert SECRET not in caplog.text


@pytest.mark.parametrize("before", [1, 2_500])
def test_a_wrong_call_among_many_is_named_by_its_place(
    make_app: Callable[..., Horsies], db: Db, before: int, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(redact=["card"])

    @app.task("charge")
    def charge(card: str, cents: int) -> int:
        return cents

    calls: list[Any] = [(SECRET, 1)] * before + [{"card": SECRET, "cents": SECRET}] + [(SECRET, 1)]
    errors = [charge.send_many(calls), asyncio.run(charge.send_many_async(calls))]

    for failed in errors:
        error = failed.unwrap_err()
        assert error.message.startswith(f"call {before} of send_many: argument 'cents' of task 'charge'")
        assert SECRET not in error.message
    assert SECRET not in caplog.text
    assert db.execute("SELECT count(*) AS n FROM horsies_tasks").fetchone() == {"n": 0}
    assert "send_many" not in charge.send(SECRET, cast("Any", "x")).unwrap_err().message


def test_the_line_of_a_failed_send_has_no_password(
    make_app: Callable[..., Horsies], caplog: pytest.LogCaptureFixture
) -> None:
    add = define_add(make_app(url="postgresql://ann:s3cret@127.0.0.1:1/app?connect_timeout=2"))

    add.send(1).unwrap_err()

    (line,) = send_lines(caplog)
    assert "ENQUEUE_FAILED" in line
    assert "refused" in line
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize("wrong", ["ab", b"ab", 5, None, [1, 2], {1}])
def test_an_item_of_send_many_that_is_no_call_is_refused_by_its_index(add: Add, db: Db, wrong: Any) -> None:
    for result in (
        add.send_many([(1,), {"x": 2}, wrong]),
        asyncio.run(add.send_many_async([(1,), {"x": 2}, wrong])),
        add.send_many([*[(1,)] * 2, wrong, *[(1,)] * 2_000]),
    ):
        error = result.unwrap_err()
        assert error.code is TaskSendErrorCode.VALIDATION_FAILED
        assert error.message.startswith(f"call 2 of send_many is {wrong!r}; pass its arguments as a dict")
    assert stored(db) == []


@pytest.mark.parametrize("wrong", ["ab", {"x": 1}, 5, None])
def test_calls_that_are_no_list_are_refused(add: Add, wrong: Any) -> None:
    for result in (add.send_many(wrong), asyncio.run(add.send_many_async(wrong))):
        assert "send_many takes a list of calls, not a " in result.unwrap_err().message


def test_an_error_that_is_stored_has_the_id_of_its_task_in_the_text(app: Horsies, hands: Hands) -> None:
    add = define_add(app)
    handle = add.delay(1)
    hands.fail(hands.run_next())
    assert "BROKEN" in ERR
    with pytest.raises(TaskFailed, match=f"task {handle.task_id} failed: BROKEN"):
        app.handle(handle.task_id).result(timeout=10)
