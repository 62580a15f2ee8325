"""Batches in the process of a test: `drain` runs them as a worker does, without waiting for more members."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from horsies import (
    ContractCode,
    Horsies,
    HorsiesError,
    OperationalErrorCode,
    RetryPolicy,
    TaskError,
    TaskFailed,
    TaskFailure,
    TaskResult,
    current_batch,
    current_task,
)
from horsies.event_loop import run_sync
from horsies.middleware import Middleware, RunContext
from horsies.testing import drain, drain_async, inline

app: Any = Horsies()
calls: list[list[Any]] = []
again = RetryPolicy.fixed([60], auto_retry_for=["BROKEN"], jitter=False)


@app.task("double", batch=3, linger=3_600)
def double(numbers: list[int]) -> list[int]:
    calls.append(numbers)
    return [2 * number for number in numbers]


@app.task("double_async", batch=3, linger=3_600)
async def double_async(numbers: list[int]) -> list[int]:
    calls.append(numbers)
    await asyncio.sleep(0)
    return [2 * number for number in numbers]


@app.task("broken", batch=3, retry_policy=again)
def broken(numbers: list[int]) -> list[int]:
    calls.append(numbers)
    if 2 in numbers:
        raise TaskFailure("BROKEN", "there is a two")
    return numbers


@app.task("short", batch=3)
def short(numbers: list[int]) -> list[int]:
    return numbers[1:]


@app.task("mistyped", batch=3)
def mistyped(numbers: list[int]) -> list[TaskResult[int, TaskError]]:
    wrong: Any = "two"
    return [TaskResult(ok=wrong if number == 2 else number) for number in numbers]


@app.task("later", batch=3)
def later(numbers: list[int]) -> list[int]:
    calls.append(numbers)
    if len(calls) == 1:
        current_batch()[0].snooze(0)
    return numbers


@app.task("alone", batch=3)
def alone(numbers: list[int]) -> list[str]:
    with pytest.raises(HorsiesError, match="a batch of tasks runs here"):
        current_task()
    with pytest.raises(HorsiesError, match="steps cannot be stored here"):
        current_batch()[0].step("charge", int)
    return [task.id for task in current_batch()]


@pytest.fixture(autouse=True)
def _bound(horsies_bind: Callable[[Any], Any]) -> None:
    horsies_bind(app)
    calls.clear()


def send(task: Any, *numbers: int) -> list[Any]:
    return task.send_many([(number,) for number in numbers]).unwrap()


def execute(statement: str) -> None:
    postgres = run_sync(app.get_broker().postgres())
    with psycopg.connect(postgres.conninfo, autocommit=True) as connection:
        connection.execute(statement.encode())


def test_members_run_in_as_few_calls_as_fit() -> None:
    handles = send(double, 1, 2, 3, 4)

    ran = drain(app)

    assert calls == [[1, 2, 3], [4]]
    assert [(each.task_id, each.result.ok) for each in ran] == [
        (handle.task_id, 2 * number) for number, handle in enumerate(handles, 1)
    ]


def test_async_batches_run_on_the_loop_of_the_test() -> None:
    handles = send(double_async, 1, 2, 3)

    asyncio.run(drain_async(app))

    assert calls == [[1, 2, 3]]
    assert [handle.result(timeout=0) for handle in handles] == [2, 4, 6]


def test_a_send_in_an_inline_block_is_a_batch_of_one() -> None:
    with inline(app):
        handle = double.delay(5)

    assert calls == [[5]]
    assert handle.result(timeout=0) == 10


def test_when_the_function_raises_each_member_is_retried_by_itself() -> None:
    one, two, three = send(broken, 1, 2, 3)

    drain(app, retry_now=True)

    first, *others = calls
    assert first == [1, 2, 3]
    assert sorted(others) == [[1], [2], [3]]
    assert [one.result(timeout=0), three.result(timeout=0)] == [1, 3]
    with pytest.raises(TaskFailed) as failed:
        two.result(timeout=0)
    assert failed.value.code == "BROKEN"


def test_when_the_number_of_results_is_wrong_all_members_fail() -> None:
    handles = send(short, 1, 2)

    drain(app)

    for handle in handles:
        error = handle.get(timeout_ms=0).err_value
        assert error.error_code == OperationalErrorCode.TASK_EXCEPTION
        assert "returned 1 results for a batch of 2" in error.message


def test_a_result_of_the_wrong_type_fails_its_member_alone() -> None:
    one, two = send(mistyped, 1, 2)

    drain(app)

    assert one.result(timeout=0) == 1
    assert two.get(timeout_ms=0).err_value.error_code == ContractCode.RETURN_TYPE_MISMATCH


def test_a_member_whose_arguments_cannot_be_read_fails_and_the_others_run() -> None:
    one, two, three = send(double, 1, 2, 3)
    execute(f"UPDATE horsies_tasks_live SET kwargs = '{{\"numbers\":\"x\"}}' WHERE id = '{two.task_id}'")

    drain(app)

    assert calls == [[1, 3]]
    assert [one.result(timeout=0), three.result(timeout=0)] == [2, 6]
    assert two.get(timeout_ms=0).err_value.error_code == OperationalErrorCode.WORKER_SERIALIZATION_ERROR


def test_a_batch_that_snoozes_stays_one() -> None:
    send(later, 1, 2, 3)

    drain(app)

    assert calls == [[1, 2, 3], [1, 2, 3]]


def test_there_is_no_current_task_in_a_batch_and_there_are_no_steps() -> None:
    handles = send(alone, 1, 2)

    drain(app)

    assert [handle.result(timeout=0) for handle in handles] == [handle.task_id for handle in handles]


def test_outside_of_a_batch_there_is_none() -> None:
    with pytest.raises(HorsiesError, match="no batch runs here"):
        current_batch()


def test_middleware_sees_each_member(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, str | None]] = []

    class Watching(Middleware):
        @contextmanager
        def running(self, task: RunContext) -> Generator[None]:
            yield
            seen.append((task.task_id, task.code))

    app.middleware.append(Watching())
    try:
        handles = send(broken, 1, 2)
        drain(app)
    finally:
        app.middleware.pop()

    assert sorted(seen) == sorted((handle.task_id, "BROKEN") for handle in handles)
