"""Durable steps in the process of a test: `drain` runs them, and `travel` brings the time that they wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from horsies import (
    ContractCode,
    Horsies,
    OperationalErrorCode,
    OutcomeCode,
    RetryPolicy,
    SignalTimeout,
    TaskFailed,
    TaskNotFound,
    TaskTimeout,
    WorkflowStatus,
    current_async_task,
    current_task,
    from_node,
)
from horsies.event_loop import run_sync
from horsies.testing import drain, drain_async, travel

app: Any = Horsies()
calls: list[str] = []
again = RetryPolicy.fixed([1, 1, 1], auto_retry_for=["*"], jitter=False)


@dataclass(frozen=True)
class Approval:
    by: str
    limit: int = 10


def charge(amount: int) -> str:
    calls.append("charge")
    return f"card-{amount}"


def fail_first(times: int) -> int:
    calls.append("try")
    if calls.count("try") <= times:
        raise ConnectionError("not yet")
    return calls.count("try")


@app.task("order", retry_policy=again)
def order(amount: int) -> list[str]:
    t = current_task()
    card = t.step("charge", charge, amount)
    calls.append("between")
    if calls.count("between") < 3:
        raise RuntimeError("lost on the way")
    return [card, t.step("ship", charge, amount + 1)]


@app.task("twice")
def twice() -> None:
    t = current_task()
    for number in range(2):
        t.step("same", charge, number)


@app.task("nap")
def nap() -> int:
    current_task().sleep("cool-off", hours=1)
    return current_task().attempt


@app.task("ask")
def ask(timeout: float | None = None) -> str:
    t = current_task()
    try:
        answer = t.wait_for("approved", Approval, timeout=timeout)
    except SignalTimeout as late:
        return f"late: {late.name}"
    return f"{answer.by} {answer.limit}"


@app.task("insist")
def insist() -> str:
    return current_task().wait_for("approved", str, timeout=60)


@app.task("double")
def double(n: int) -> int:
    if n < 0:
        raise ValueError(f"{n} is negative")
    return 2 * n


@app.task("one_call")
def one_call(n: int) -> int:
    return current_task().call("double", double, n)


@app.task("many_calls")
def many_calls(numbers: list[int], lenient: bool = False) -> list[str]:
    t = current_task()
    if lenient:
        return [type(each).__name__ for each in t.call_many("all", double, numbers, return_exceptions=True)]
    return [str(each) for each in t.call_many("all", double, numbers)]


@app.task("stubborn")
def stubborn() -> int:
    t = current_task()
    return t.step("try", fail_first, 2, retry=RetryPolicy.fixed([1, 1], jitter=False, max_delay_seconds=1))


@app.task("hello_async", retry_policy=again)
async def hello_async() -> list[str]:
    t = current_async_task()

    async def greet(name: str) -> str:
        await asyncio.sleep(0)
        calls.append(name)
        return f"hello {name}"

    both = await asyncio.gather(t.step("ann", greet, "ann"), t.step("bob", greet, "bob"))
    plain = await t.step("plain", charge, 3)
    if calls.count("ann") + calls.count("again") < 2:
        calls.append("again")
        raise RuntimeError("once more")
    await t.sleep("rest", 60)
    approval = await t.wait_for("approved", Approval)
    return [*both, plain, approval.by, str(await t.call("double", double, 4))]


@app.task("side_by_side")
async def side_by_side() -> list[str]:
    t = current_async_task()

    async def slow() -> str:
        calls.append("slow")
        await asyncio.sleep(0.1)
        return "slow"

    return list(
        await asyncio.gather(t.wait_for("first", str), t.step("slow", slow), t.wait_for("second", str))
    )


@app.task("swallow")
def swallow() -> str:
    try:
        current_task().sleep("rest", 60)
    except BaseException:  # noqa: BLE001  as careless code does
        calls.append("swallowed")
    return "woken"


@pytest.fixture(autouse=True)
def _bound(horsies_bind: Callable[[Any], Any]) -> None:
    horsies_bind(app)
    calls.clear()


def names(handle: Any) -> list[tuple[str, str, int]]:
    return [(step.name, step.kind, step.attempt) for step in handle.steps()]


def test_a_stored_step_is_not_called_again() -> None:
    handle = order.delay(5)
    drain(app, retry_now=True)
    assert handle.result(timeout=5) == ["card-5", "card-6"]
    assert calls.count("charge") == 2
    assert calls.count("between") == 3
    assert names(handle) == [("charge", "step", 1), ("ship", "step", 3)]
    assert [step.result for step in handle.steps()] == ["card-5", "card-6"]
    assert all(step.ended_at >= step.started_at for step in handle.steps())


def test_a_name_that_is_used_twice_in_one_run_is_an_error() -> None:
    handle = twice.delay()
    drain(app)
    with pytest.raises(TaskFailed) as failed:
        handle.result(timeout=5)
    assert failed.value.code == ContractCode.STEP_NAME_REUSED
    assert "'same'" in failed.value.message


def test_a_stored_result_that_does_not_decode_names_its_step() -> None:
    handle = order.delay(5)
    drain(app)  # the first attempt fails behind its first step
    change(app, "UPDATE horsies_steps SET result = '{\"ok\":7}'")
    drain(app, retry_now=True)
    with pytest.raises(TaskFailed) as failed:
        handle.result(timeout=5)
    assert failed.value.code == ContractCode.STEP_RESULT_MISMATCH
    assert "'charge'" in failed.value.message
    assert failed.value.error.data == {"step": "charge"}


def test_a_stored_step_of_another_kind_names_its_step() -> None:
    handle = order.delay(5)
    drain(app)
    change(app, "UPDATE horsies_steps SET kind = 'wait'")
    drain(app, retry_now=True)
    with pytest.raises(TaskFailed, match="'charge' is of the kind 'wait', not 'step'") as failed:
        handle.result(timeout=5)
    assert failed.value.code == ContractCode.STEP_RESULT_MISMATCH


def change(app: Any, statement: str) -> None:
    postgres = run_sync(app.get_broker().postgres())
    with psycopg.connect(postgres.conninfo, autocommit=True) as connection:
        connection.execute(statement.encode())


def test_stored_steps_that_the_code_no_longer_has_are_ignored() -> None:
    handle = order.delay(5)
    drain(app)
    change(
        app,
        "INSERT INTO horsies_steps (task_id, name, kind, claim_seq, attempt, ended_at, result) "
        "SELECT task_id, 'gone', 'step', 1, 1, now(), 'x' FROM horsies_steps",
    )
    drain(app, retry_now=True)
    assert handle.result(timeout=5) == ["card-5", "card-6"]


def test_a_sleep_spends_no_attempt_and_ends_on_time() -> None:
    handle = nap.delay()
    drain(app)
    assert names(handle) == [("cool-off", "sleep", 1)]
    assert handle.steps()[0].ended_at is None
    travel(app, minutes=59)
    assert drain(app) == []
    travel(app, minutes=2)
    drain(app)
    assert handle.result(timeout=5) == 1
    assert handle.steps()[0].ended_at is not None


def test_a_signal_ends_the_wait_and_its_value_has_its_type() -> None:
    handle = ask.delay()
    drain(app)
    assert handle.signal("approved", Approval("ann", 7)) is True
    assert handle.signal("approved", Approval("bob", 8)) is False
    drain(app)
    assert handle.result(timeout=5) == "ann 7"
    assert handle.signal("approved", Approval("bob", 8)) is False


def test_a_signal_that_comes_early_is_kept() -> None:
    handle = ask.delay()
    assert handle.signal("approved", {"by": "ann"}) is True
    drain(app)
    assert handle.result(timeout=5) == "ann 10"


def test_a_wait_that_timed_out_stays_so() -> None:
    handle = ask.delay(60)
    drain(app)
    travel(app, seconds=61)
    drain(app)
    assert handle.result(timeout=5) == "late: approved"
    assert handle.signal("approved", Approval("ann")) is False
    assert handle.steps()[0].result.error_code == OutcomeCode.SIGNAL_TIMEOUT


def test_an_uncaught_timeout_fails_the_task_with_its_code() -> None:
    handle = insist.delay()
    drain(app)
    travel(app, seconds=61)
    drain(app)
    with pytest.raises(TaskFailed) as failed:
        handle.result(timeout=5)
    assert failed.value.code == OutcomeCode.SIGNAL_TIMEOUT


def test_a_task_without_steps_has_none_and_an_unknown_one_is_an_error() -> None:
    assert double.delay(1).steps() == []
    for unknown in ("0190b5a0-0000-7000-8000-000000000000", "nonsense"):
        with pytest.raises(TaskNotFound):
            app.handle(unknown).steps()


def test_a_signal_needs_a_task() -> None:
    with pytest.raises(TaskNotFound):
        app.handle("0190b5a0-0000-7000-8000-000000000000").signal("approved")
    with pytest.raises(TaskNotFound):
        app.handle("nonsense").signal("approved")
    with pytest.raises(ValueError, match="name of a signal"):
        ask.delay().signal("")


def test_a_call_is_a_task_of_its_own_whose_value_is_returned() -> None:
    handle = one_call.delay(4)
    ran = drain(app)
    assert [each.task_name for each in ran] == ["double", "one_call"]
    assert handle.result(timeout=5) == 8
    assert names(handle) == [("double", "call", 1)]


def test_a_call_raises_the_failure_of_its_task() -> None:
    handle = one_call.delay(-1)
    drain(app)
    with pytest.raises(TaskFailed) as failed:
        handle.result(timeout=5)
    assert "-1 is negative" in failed.value.message


def test_many_calls_return_their_values_in_order() -> None:
    handle = many_calls.delay([3, 1, 2])
    drain(app)
    assert handle.result(timeout=5) == ["6", "2", "4"]


def test_many_calls_can_return_failures_in_their_places() -> None:
    lenient, strict = many_calls.delay([1, -1, 2], lenient=True), many_calls.delay([1, -1, -2])
    none = many_calls.delay([])
    drain(app)
    assert lenient.result(timeout=5) == ["int", "TaskFailed", "int"]
    assert none.result(timeout=5) == []
    with pytest.raises(TaskFailed, match="-1 is negative"):
        strict.result(timeout=5)


def test_a_step_is_repeated_by_its_own_policy() -> None:
    handle = stubborn.delay()
    drain(app)
    assert handle.result(timeout=5) == 3
    assert names(handle) == [("try", "step", 1)]


@pytest.mark.parametrize("how", ["sync", "async"])
def test_async_tasks_have_the_same_steps(how: str) -> None:
    handle = hello_async.delay()

    def run() -> None:
        if how == "sync":
            drain(app, retry_now=True)
        else:
            asyncio.run(drain_async(app, retry_now=True))

    run()
    travel(app, seconds=61)
    run()
    handle.signal("approved", Approval("cid"))
    run()
    assert handle.result(timeout=5) == ["hello ann", "hello bob", "card-3", "cid", "8"]
    assert calls.count("ann") == 1
    assert calls.count("bob") == 1
    assert calls.count("charge") == 1


opened: list[psycopg.AsyncConnection[Any]] = []


@app.task("fails_beside_a_transaction")
async def fails_beside_a_transaction() -> None:
    has_begun = asyncio.Event()

    async def never_ends(connection: psycopg.AsyncConnection[Any]) -> None:
        opened.append(connection)
        has_begun.set()
        await asyncio.Event().wait()

    work = asyncio.create_task(current_async_task().transact("book", never_ends))
    await has_begun.wait()
    raise RuntimeError(f"{work.get_name()} still runs")


def test_a_transaction_that_outlives_its_task_leaves_no_connection_open() -> None:
    handle = fails_beside_a_transaction.delay()

    drain(app)

    with pytest.raises(TaskFailed, match="still runs"):
        handle.result(timeout=5)
    assert [connection.closed for connection in opened] == [True]


def test_a_task_is_parked_when_the_steps_beside_have_ended() -> None:
    handle = side_by_side.delay()
    drain(app)
    assert ("slow", "step", 1) in names(handle)
    handle.signal("second", "two")
    handle.signal("first", "one")
    drain(app)
    assert handle.result(timeout=5) == ["one", "slow", "two"]
    assert calls == ["slow"]


def test_a_task_that_catches_everything_is_parked_all_the_same() -> None:
    handle = swallow.delay()
    drain(app)
    assert calls == ["swallowed"]
    travel(app, seconds=61)
    drain(app)
    assert handle.result(timeout=5) == "woken"
    assert calls == ["swallowed"]


@pytest.mark.parametrize("name", ["", "x" * 256, "a\0b", 7])
def test_a_bad_name_is_an_error_with_the_name(name: Any) -> None:
    @app.task(f"bad_{len(str(name))}")
    def bad() -> None:
        current_task().step(name, charge, 1)

    handle = bad.delay()
    drain(app)
    with pytest.raises(TaskFailed, match="name of a step"):
        handle.result(timeout=5)


def test_a_value_without_a_json_form_names_its_step() -> None:
    @app.task("odd_value")
    def odd_value() -> None:
        current_task().step("odd", object)

    handle = odd_value.delay()
    drain(app)
    with pytest.raises(TaskFailed, match="'odd'") as failed:
        handle.result(timeout=5)
    assert failed.value.code == OperationalErrorCode.WORKER_SERIALIZATION_ERROR


def test_a_cancelled_task_stays_cancelled_while_it_is_parked() -> None:
    handle = nap.delay()
    drain(app)
    assert handle.cancel().unwrap() is True
    travel(app, hours=2)
    assert drain(app) == []
    assert handle.get(timeout_ms=0).err_value.error_code == OutcomeCode.TASK_CANCELLED


def test_an_expiry_does_not_end_a_task_that_has_started_in_time() -> None:
    from datetime import UTC, datetime, timedelta

    handle = nap.with_options(good_until=datetime.now(UTC) + timedelta(minutes=1)).delay()
    drain(app)
    travel(app, hours=2)
    drain(app)
    assert handle.result(timeout=5) == 1


# Parked tasks and the rest


def test_a_node_of_a_workflow_may_be_parked() -> None:
    rest = nap.node()
    twice_as_much = double.node(from_node(rest))
    spec = app.workflow(
        "nights", [rest, twice_as_much], output=twice_as_much, definition_key="testing.nights"
    )
    handle = spec.start().unwrap()
    drain(app)
    travel(app, hours=2)
    drain(app)
    assert handle.get(timeout_ms=0).unwrap() == 2


def test_a_cancelled_workflow_cancels_its_parked_node() -> None:
    rest = nap.node()
    handle = app.workflow("night", [rest], output=rest, definition_key="testing.night").start().unwrap()
    drain(app)
    assert handle.cancel().is_ok()
    travel(app, hours=2)
    assert drain(app) == []
    assert handle.status().unwrap() == WorkflowStatus.CANCELLED


def test_a_workflow_expires_with_its_parked_node() -> None:
    rest = nap.node()
    spec = app.workflow("short", [rest], output=rest, definition_key="testing.short", deadline_seconds=60)
    handle = spec.start().unwrap()
    drain(app)
    travel(app, hours=2)
    assert drain(app) == []
    assert handle.status().unwrap() == WorkflowStatus.EXPIRED


def test_a_parked_task_does_not_hold_its_key() -> None:
    @app.task("keyed_nap", key="tenant", key_concurrency=1)
    def keyed_nap(tenant: str, seconds: float) -> str:
        current_task().sleep("rest", seconds)
        return tenant

    first, second = keyed_nap.delay("ann", 7_200), keyed_nap.delay("ann", 60)
    drain(app)
    travel(app, seconds=61)
    drain(app)
    assert second.result(timeout=0) == "ann"
    with pytest.raises(TaskTimeout):
        first.result(timeout=0)
