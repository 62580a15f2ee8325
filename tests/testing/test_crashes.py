"""`crash_test` finds the step whose effect a crash repeats or loses, and passes functions that survive every crash."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from horsies import Horsies, RetryPolicy, SignalTimeout, TaskFailure, current_async_task, current_task
from horsies.event_loop import run_sync
from horsies.testing import CrashTestFailed, crash_test

app: Any = Horsies()
charged: list[str] = []
notes: list[str] = []


def charge(order: str) -> str:
    charged.append(order)
    return f"card {uuid4()}"


def charge_once(order: str) -> str:
    """Charge as a service does that knows idempotency keys."""
    if order not in charged:
        charged.append(order)
    return f"card {uuid4()}"


def book(connection: Any, order: str) -> str:
    connection.execute("INSERT INTO bookings VALUES (%s)", [order])
    return order


async def book_async(connection: Any, order: str) -> str:
    await connection.execute("INSERT INTO bookings VALUES (%s)", [order])
    return order


@app.task("double", idempotent=True)
def double(n: int) -> int:
    notes.append(f"doubled {n}")
    return 2 * n


@app.task("safe", idempotent=True)
def safe(order: str) -> int:
    t = current_task()
    t.step("charge", charge_once, order)
    t.transact("book", book, order)
    t.sleep("rest", days=300)
    try:
        t.wait_for("approved", str, timeout=60)
    except SignalTimeout:
        t.step("note", charge_once, "late")
    return t.call("double", double, 2) + sum(t.call_many("more", double, [3, 4]))


@app.task("safe_async", idempotent=True)
async def safe_async(order: str) -> str:
    t = current_async_task()
    await asyncio.gather(t.step("charge", charge_once, order), t.transact("book", book_async, order))
    return await t.wait_for("approved", str)


@app.task("careless", idempotent=True)
def careless(order: str) -> None:
    t = current_task()
    t.step("look", charge_once, order)
    t.step("charge", charge, order)
    t.step("thank", charge_once, order)


@app.task("careless_async", idempotent=True)
async def careless_async(order: str) -> None:
    t = current_async_task()
    has_looked = asyncio.Event()

    async def look() -> None:
        await t.step("look", charge_once, "look")
        has_looked.set()

    async def charge_after_the_look(order: str) -> None:
        await has_looked.wait()
        charge(order)

    await asyncio.gather(look(), t.step("charge", charge_after_the_look, order))


@app.task("outside", idempotent=True)
def outside(order: str) -> None:
    t = current_task()
    t.step("charge", charge_once, order)
    notes.append("between")
    t.step("thank", charge_once, order)


@app.task("forgetful", idempotent=True)
def forgetful(order: str) -> None:
    t = current_task()

    def mark() -> bool:
        is_new = order not in notes
        notes.append(order)
        return is_new

    if t.step("mark", mark):
        t.step("charge", charge_once, order)


@app.task("fragile")
def fragile(order: str) -> None:
    current_task().step("charge", charge_once, order)


@app.task("declined", retry_policy=RetryPolicy.fixed([1], auto_retry_for=["WORKER_CRASHED"]))
def declined(order: str) -> None:
    current_task().step("charge", charge_once, order)
    raise TaskFailure("DECLINED", "always")


@app.task("stepless")
def stepless() -> int:
    return 1


@pytest.fixture(autouse=True)
def database(horsies_bind: Callable[[Any], Any]) -> Any:
    horsies_bind(app)
    charged.clear()
    notes.clear()
    with psycopg.connect(run_sync(app.get_broker().postgres()).conninfo, autocommit=True) as connection:
        connection.execute("CREATE TABLE bookings (name text)")
        yield connection


@pytest.fixture
def everything(database: Any) -> Callable[[], object]:
    """Return a check that returns all effects, and removes them."""

    def check() -> object:
        rows = database.execute("DELETE FROM bookings RETURNING name").fetchall()
        seen = {"charged": list(charged), "booked": [row[0] for row in rows], "notes": sorted(notes)}
        charged.clear()
        notes.clear()
        return seen

    return check


def test_a_function_that_survives_every_crash_passes(everything: Callable[[], object]) -> None:
    crash_test(safe, "a", check=everything)
    crash_test(safe_async, "a", check=everything, signals={"approved": "yes"})
    crash_test(declined, "a", check=everything)


@pytest.mark.parametrize("task", [careless, careless_async])
def test_a_step_whose_effect_happens_twice_is_named(everything: Callable[[], object], task: Any) -> None:
    with pytest.raises(CrashTestFailed, match="the effect of step 'charge' happened twice") as failed:
        crash_test(task, "a", check=everything)
    assert failed.value.step == "charge"
    assert failed.value.kill == (
        "in step 'charge', after its function had returned and before its value was stored"
    )
    assert isinstance(failed.value, AssertionError)
    expected, seen = (pick(each, "charged") for each in (failed.value.expected, failed.value.seen))
    assert len(seen) == len(expected) + 1


def test_an_effect_outside_of_all_steps_is_found(everything: Callable[[], object]) -> None:
    with pytest.raises(CrashTestFailed, match="twice at step 'thank', outside of all steps") as failed:
        crash_test(outside, "a", check=everything)
    assert failed.value.kill == "before step 'thank'"


def test_an_effect_that_never_happens_is_found(everything: Callable[[], object]) -> None:
    with pytest.raises(CrashTestFailed, match="never happened") as failed:
        crash_test(forgetful, "a", check=lambda: pick(everything(), "charged"))
    assert failed.value.step == "mark"
    assert (failed.value.expected, failed.value.seen) == (["a"], [])


def pick(seen: Any, name: str) -> list[str]:
    return seen[name]


def test_a_task_that_is_not_run_again_after_a_crash_is_found() -> None:
    with pytest.raises(CrashTestFailed, match=r"failed with WORKER_CRASHED.*idempotent=True") as failed:
        crash_test(fragile, "a")
    assert failed.value.step == "charge"


def test_a_check_that_does_not_clean_up_is_an_error_of_the_test() -> None:
    with pytest.raises(ValueError, match="two undisturbed runs of task 'careless' differ"):
        crash_test(careless, "a", check=lambda: list(charged))


def test_a_signal_that_is_missing_is_named() -> None:
    with pytest.raises(ValueError, match=r"waits in step 'approved'.*signals="):
        crash_test(safe_async, "a")


def test_a_task_without_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="'stepless' has begun no step"):
        crash_test(stepless)


def test_it_works_beside_a_running_loop(everything: Callable[[], object]) -> None:
    async def test() -> None:
        crash_test(safe, "a", check=everything)
        with pytest.raises(CrashTestFailed):
            crash_test(careless_async, "a", check=everything)

    asyncio.run(test())
