"""Durable steps in real workers: whatever dies, a stored step is not called again, and a parked task goes on."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

from horsies import TaskFailed, TaskHandle
from tests.e2e.observing import Db, row
from tests.e2e.office import Office, staffed
from tests.support.waiting import eventually
from tests.support.workers import Workplace

APP = """
import psycopg
from dataclasses import dataclass

app = Horsies(AppConfig.for_database_url(URL, cancel_grace_ms=400, claim_lease_ms=1_500))

def mark(path, word):
    with open(path, "a") as file:
        file.write(word + "\\n")

def pass_gate(path):
    while not Path(path + ".go").exists():
        time.sleep(0.005)

def body(path, word):
    mark(path, word)
    return word

@dataclass
class Order:
    number: int

@app.task("ten")
def ten(count: int = 10) -> int:
    t = current_task()
    return sum(t.step(f"step {n}", int, n) for n in range(count))

@app.task("ten_async")
async def ten_async(count: int = 10) -> int:
    t = current_async_task()
    return sum(await asyncio.gather(*(t.step(f"step {n}", int, n) for n in range(count))))

@app.task("crash")
def crash(path: str) -> str:
    t = current_task()
    first = t.step("first", body, path, "first")
    if len(Path(path).read_text().split()) == 1:
        mark(path, "crash")
        os._exit(3)
    return first + t.step("second", body, path, "second")

@app.task("crash_unstored")
def crash_unstored(path: str) -> str:
    return current_task().step("first", os._exit, 3)

@app.task("crash_always")
def crash_always(path: str) -> None:
    current_task().step("first", body, path, "first")
    mark(path, "crash")
    os._exit(3)

@app.task("gated")
def gated(path: str) -> list[str]:
    t = current_task()
    mark(path, "begun")
    first = t.step("first", body, path, "first")
    pass_gate(path)
    return [first, t.step("second", body, path, "second"), t.step("third", body, path, "third")]

@app.task("gated_async")
async def gated_async(path: str) -> list[str]:
    t = current_async_task()
    mark(path, "begun")
    first = await t.step("first", body, path, "first")
    while not Path(path + ".go").exists():
        await asyncio.sleep(0.005)
    return [first, await t.step("second", body, path, "second"), await t.step("third", body, path, "third")]

@app.task("nap")
def nap(seconds: float) -> int:
    current_task().sleep("rest", seconds)
    return current_task().attempt

@app.task("ask")
def ask(timeout: float | None = None) -> int:
    return current_task().wait_for("order", Order, timeout=timeout).number

@app.task("ask_async")
async def ask_async() -> int:
    return (await current_async_task().wait_for("order", Order)).number

@app.task("double")
def double(n: int) -> int:
    return 2 * n

@app.task("fan_out")
def fan_out(n: int) -> int:
    t = current_task()
    return sum(t.call_many("all", double, range(n))) + t.call("one", double, n)

@app.task("in_threads")
def in_threads(n: int) -> int:
    from concurrent.futures import ThreadPoolExecutor
    from contextvars import copy_context
    t = current_task()
    with ThreadPoolExecutor(8) as pool:
        return sum(pool.map(lambda each: t.step(f"step {each}", int, each), range(n)))

def book(connection, table, word):
    connection.execute(f"INSERT INTO {table} VALUES (%s)", [word])
    return word

@app.task("book_twice", idempotent=True)
def book_twice(table: str) -> list[str]:
    t = current_task()
    return [t.transact("a", book, table, "a"), t.transact("b", book, table, "b")]

async def book_async(connection, table, word):
    await connection.execute(f"INSERT INTO {table} VALUES (%s)", [word])
    return word

@app.task("book_twice_async", idempotent=True)
async def book_twice_async(table: str) -> list[str]:
    t = current_async_task()
    return [await t.transact("a", book_async, table, "a"), await t.transact("b", book, table, "b")]

def wait_and_book(connection, table, path):
    mark(path, str(connection.info.backend_pid))
    pass_gate(path)
    return book(connection, table, "stale")

@app.task("book_slowly")
def book_slowly(table: str, path: str) -> str:
    return current_task().transact("slow", wait_and_book, table, path)

@app.task("gated_transact", idempotent=True)
def gated_transact(path: str) -> list[str]:
    t = current_task()
    mark(path, "begun")
    first = t.transact("first", mark_and_return, path, "first")
    pass_gate(path)
    return [first, t.transact("second", mark_and_return, path, "second"), t.transact("third", mark_and_return, path, "third")]

def mark_and_return(_connection, path, word):
    mark(path, word)
    return word
"""


@pytest.fixture(scope="module")
def office(shared_workplace: Workplace) -> Office:
    return staffed(shared_workplace, APP, "--processes", "4", "--async-processes", "1")


def words(path: Any) -> list[str]:
    return path.read_text().split() if path.exists() else []


@pytest.mark.parametrize("name", ["ten", "ten_async", "in_threads"])
def test_a_task_with_steps_ends_with_all_of_them_stored(office: Office, name: str) -> None:
    handles = [getattr(office.tasks, name).delay(10) for _ in range(20)]
    assert [handle.result(timeout=20) for handle in handles] == [45] * 20
    steps = handles[0].steps()
    assert sorted((step.name, step.kind, step.attempt, step.result) for step in steps) == [
        (f"step {n}", "step", 1, n) for n in range(10)
    ]


@pytest.mark.parametrize("name", ["ten", "ten_async"])
def test_steps_work_in_threads_of_a_child(workplace: Workplace, name: str) -> None:
    office = staffed(workplace, APP, "--processes", "1", "--threads", "4")
    handles = [getattr(office.tasks, name).delay(10) for _ in range(20)]
    assert [handle.result(timeout=20) for handle in handles] == [45] * 20


def test_a_crashed_task_goes_on_behind_its_stored_steps(office: Office) -> None:
    path = office.gate("crash")
    assert office.tasks.crash.delay(str(path)).result(timeout=20) == "firstsecond"
    assert words(path) == ["first", "crash", "second"]


def test_a_crash_before_the_first_stored_step_follows_the_policy_of_the_task(office: Office) -> None:
    with pytest.raises(TaskFailed, match="WORKER_CRASHED"):
        office.tasks.crash_unstored.delay("").result(timeout=20)


def test_a_task_that_crashes_again_and_again_fails(office: Office) -> None:
    path = office.gate("always")
    with pytest.raises(TaskFailed, match="WORKER_CRASHED"):
        office.tasks.crash_always.delay(str(path)).result(timeout=20)
    assert words(path) == ["first", "crash", "crash", "crash"]


@pytest.mark.parametrize("name", ["gated", "gated_async"])
def test_a_worker_that_stops_parks_a_task_at_its_next_step(workplace: Workplace, db: Db, name: str) -> None:
    office = staffed(workplace, APP, "--processes", "1")
    path = office.gate("stop")
    handle = getattr(office.tasks, name).delay(str(path))
    eventually(lambda: "first" in words(path), what="the first step")
    eventually(lambda: len(handle.steps()) == 1, what="the first step being stored")
    office.worker.signal(signal.SIGTERM)
    eventually(lambda: "Stopping" in office.worker.log, what="the worker stopping")
    (path.parent / (path.name + ".go")).touch()
    assert office.worker.wait() == 0
    found = row(db, handle.task_id)
    assert (found["status"], found["retry_count"], found["parked_at"]) == ("PENDING", 0, None)
    assert [step.name for step in handle.steps()] == ["first", "second"]
    workplace.start("--processes", "1")
    assert handle.result(timeout=20) == ["first", "second", "third"]
    assert words(path) == ["begun", "first", "second", "begun", "third"]


def test_a_worker_that_stops_parks_a_task_before_its_next_transaction(workplace: Workplace, db: Db) -> None:
    office = staffed(workplace, APP, "--processes", "1")
    path = office.gate("stop")
    handle = office.tasks.gated_transact.delay(str(path))
    eventually(lambda: len(handle.steps()) == 1, what="the first step being stored")
    office.worker.signal(signal.SIGTERM)
    eventually(lambda: "Stopping" in office.worker.log, what="the worker stopping")
    (path.parent / (path.name + ".go")).touch()
    assert office.worker.wait() == 0
    found = row(db, handle.task_id)
    assert (found["status"], found["retry_count"], found["parked_at"]) == ("PENDING", 0, None)
    assert words(path) == ["begun", "first"]
    workplace.start("--processes", "1")
    assert handle.result(timeout=20) == ["first", "second", "third"]
    assert words(path) == ["begun", "first", "begun", "second", "third"]


def test_a_sleep_ends_on_time_and_holds_no_process(office: Office) -> None:
    began = time.monotonic()
    handles = [office.tasks.nap.delay(1.0) for _ in range(40)]  # ten times as many as there are processes
    assert [handle.result(timeout=20) for handle in handles] == [1] * 40
    assert 1.0 <= time.monotonic() - began < 4.0


@pytest.mark.parametrize("name", ["ask", "ask_async"])
def test_a_signal_wakes_a_parked_task_at_once(office: Office, shared_db: Db, name: str) -> None:
    handle = getattr(office.tasks, name).delay()
    eventually(lambda: row(shared_db, handle.task_id)["parked_at"] is not None, what="the task being parked")
    handle.signal("order", {"number": 7})
    began = time.monotonic()
    assert handle.result(timeout=20) == 7
    assert time.monotonic() - began < 1.0


def test_signals_race_with_waits_and_none_is_lost(office: Office) -> None:
    for number in range(100):
        handle = office.tasks.ask.delay()
        time.sleep(0.0002 * number)  # from before its start to after it was parked
        assert handle.signal("order", {"number": number}) is True
        assert handle.result(timeout=20) == number


def test_called_tasks_run_while_their_caller_is_parked(workplace: Workplace) -> None:
    office = staffed(
        workplace, APP, "--processes", "1"
    )  # one process: a caller that held it would wait for ever
    handles = [office.tasks.fan_out.delay(20) for _ in range(3)]
    assert [handle.result(timeout=30) for handle in handles] == [2 * 190 + 40] * 3


@pytest.mark.parametrize("name", ["book_twice", "book_twice_async"])
def test_an_effect_is_committed_together_with_its_step(office: Office, shared_db: Db, name: str) -> None:
    shared_db.execute(f"CREATE TABLE {name} (word text)".encode())
    handle = getattr(office.tasks, name).delay(name)
    assert handle.result(timeout=20) == ["a", "b"]
    rows = shared_db.execute(f"SELECT word FROM {name} ORDER BY word".encode()).fetchall()
    assert [each["word"] for each in rows] == ["a", "b"]
    assert [step.kind for step in handle.steps()] == ["transact", "transact"]


def test_an_attempt_that_has_lost_its_claim_commits_nothing(office: Office, shared_db: Db) -> None:
    shared_db.execute("CREATE TABLE stale (word text)")
    path = office.gate("stale")
    handle = office.tasks.book_slowly.delay("stale", str(path))
    eventually(lambda: words(path), what="the transaction being open")
    # The lock keeps others from taking the task over while the transaction runs.
    locked = shared_db.execute(
        "SELECT id FROM horsies_tasks_live WHERE id = %s FOR UPDATE SKIP LOCKED", [handle.task_id]
    )
    assert locked.fetchall() == []
    # Its session is ended, as by a restart of the server, and the task is taken over before it could begin another one.
    shared_db.execute("SELECT pg_terminate_backend(%s)", [int(words(path)[0])])
    eventually(lambda: take_over(shared_db, handle), what="the task being taken over")
    (path.parent / (path.name + ".go")).touch()
    eventually(lambda: "stale result" in office.worker.log, what="the stale outcome being dropped")
    assert shared_db.execute("SELECT count(*) AS rows FROM stale").fetchone() == {"rows": 0}
    assert handle.steps() == []
    shared_db.execute("DELETE FROM horsies_tasks_live WHERE id = %s", [handle.task_id])


def take_over(db: Db, handle: TaskHandle[Any]) -> bool:
    updated = db.execute(
        "UPDATE horsies_tasks_live SET claim_seq = claim_seq + 1 WHERE id = %s AND status = 'RUNNING'",
        [handle.task_id],
    )
    return updated.rowcount == 1
