"""One task from end to end: sent, stored, run in a child, its result read."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import psycopg
import pytest

from horsies import (
    ContractCode,
    Err,
    Horsies,
    OperationalErrorCode,
    OutcomeCode,
    RetrievalCode,
    TaskError,
    TaskFailed,
    TaskResult,
    TaskSendErrorCode,
)
from horsies.core.errors import ErrorCode, TaskDefinitionError
from tests.e2e.observing import Db, children, row, until_status
from tests.e2e.office import URL, Office, staffed
from tests.support.waiting import eventually
from tests.support.workers import Workplace

README_APP = """\
from horsies import Horsies, TaskError, TaskResult

app = Horsies()


@app.task("add")
def add(x: int, y: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=x + y)
"""

APP = """
app = Horsies(AppConfig.for_database_url(URL))

@app.task("add")
def add(x: int, y: int = 1) -> TaskResult[int, TaskError]:
    return TaskResult(ok=x + y)

@app.task("pid")
def pid() -> TaskResult[int, TaskError]:
    return TaskResult(ok=os.getpid())

@app.task("wait_for")
def wait_for(path: str) -> TaskResult[float, TaskError]:
    while not Path(path).exists():
        time.sleep(0.005)
    return TaskResult(ok=time.time())

@app.task("later")
async def later(seconds: float) -> TaskResult[float, TaskError]:
    await asyncio.sleep(seconds)
    return TaskResult(ok=seconds)

@app.task("later_fails")
async def later_fails() -> TaskResult[float, TaskError]:
    await asyncio.sleep(0)
    raise ValueError("not today")

@app.task("decline")
def decline() -> TaskResult[int, TaskError]:
    return TaskResult(err=TaskError(error_code="CARD_DECLINED", message="the bank said no", data={"try": 2}))
"""


@pytest.fixture(scope="module")
def office(shared_workplace: Workplace) -> Office:
    return staffed(shared_workplace, APP, "--processes=2")


def test_the_app_of_the_readme_runs_and_gives_its_result(workplace: Workplace) -> None:
    (workplace.folder / "app.py").write_text(README_APP)
    tasks = workplace.load()
    workplace.start()

    result = tasks.add.send(2, 3).unwrap().get(timeout_ms=20_000)

    assert result == TaskResult(ok=5)
    assert repr(result) == "TaskResult(ok=5)"


@pytest.mark.parametrize(("args", "kwargs"), [((2, 3), {}), ((2,), {"y": 3}), ((), {"x": 2, "y": 3})])
def test_arguments_may_be_given_by_position_and_by_name(
    office: Office, args: tuple[int, ...], kwargs: dict[str, int]
) -> None:
    assert office.tasks.add.send(*args, **kwargs).unwrap().get(20_000) == TaskResult(ok=5)


def test_an_async_task_runs_like_any_other(office: Office) -> None:
    assert office.tasks.later.send(0.01).unwrap().get(20_000) == TaskResult(ok=0.01)


def test_an_exception_of_an_async_task_is_its_outcome(office: Office) -> None:
    error = office.tasks.later_fails.send().unwrap().get(20_000).err_value

    assert (error.error_code, error.message) == ("UNHANDLED_EXCEPTION", "ValueError: not today")


def test_a_backlog_of_one_kind_does_not_hold_up_the_other(workplace: Workplace) -> None:
    workplace.write(URL + APP)
    tasks = workplace.load()
    tasks.add.send_many([(n, 1) for n in range(300)]).unwrap()
    last = tasks.add.send(2, 3).unwrap()
    handle = tasks.later.send(0.0).unwrap()
    workplace.start("--processes=1")

    assert handle.get(20_000).is_ok()
    assert last.get(0).is_err()


def test_a_task_that_nobody_runs_stays_pending(workplace: Workplace, db: Db) -> None:
    workplace.write(URL + APP)

    handle = workplace.load().add.send(2, y=3).unwrap()

    stored = row(db, handle)
    assert (stored["status"], stored["task_name"], stored["queue_name"]) == ("PENDING", "add", "default")
    assert handle.get(timeout_ms=0).err_value.error_code is RetrievalCode.WAIT_TIMEOUT


def test_user_code_runs_in_a_child_and_not_in_the_worker(office: Office) -> None:
    pid = office.tasks.pid.send().unwrap().get(20_000).ok_value

    assert pid != office.worker.pid
    assert pid in children(office.worker.pid)


def test_a_returned_value_ends_the_task_completed(office: Office, shared_db: Db) -> None:
    handle = office.tasks.add.send(1).unwrap()

    handle.get(20_000)

    stored = row(shared_db, handle)
    assert stored["status"] == "COMPLETED"
    assert stored["sent_at"] <= stored["claimed_at"] <= stored["started_at"] <= stored["completed_at"]
    assert (stored["failed_at"], stored["error_code"]) == (None, None)


def test_a_returned_error_ends_the_task_failed_with_its_own_code(office: Office, shared_db: Db) -> None:
    handle = office.tasks.decline.send().unwrap()

    error = handle.get(20_000).err_value

    assert (error.error_code, error.message, error.data) == ("CARD_DECLINED", "the bank said no", {"try": 2})
    stored = row(shared_db, handle)
    assert (stored["status"], stored["error_code"]) == ("FAILED", "CARD_DECLINED")
    assert stored["failed_at"] is not None
    assert stored["completed_at"] is None


def test_info_tells_where_a_task_has_been(office: Office) -> None:
    handle = office.tasks.pid.send().unwrap()
    pid = handle.get(20_000).ok_value

    info = handle.info(include_result=True, include_attempts=True).unwrap()

    assert (info.status, info.worker_pid, info.result) == ("COMPLETED", pid, TaskResult(ok=pid))
    (attempt,) = info.attempts
    assert (attempt.attempt, attempt.outcome, attempt.will_retry) == (1, "COMPLETED", False)


def test_a_waiter_is_woken_by_the_end_of_the_task(office: Office, shared_db: Db) -> None:
    gate = office.gate("waiter")
    handle = office.tasks.wait_for.send(str(gate)).unwrap()
    answers: list[tuple[TaskResult[float, TaskError], float]] = []
    waiter = threading.Thread(target=lambda: answers.append((handle.get(20_000), time.time())))
    waiter.start()
    until_status(shared_db, handle, "RUNNING")
    eventually(lambda: row(shared_db, handle)["awaited"], what="the task being awaited")

    gate.touch()
    waiter.join(20)

    ((result, answered_at),) = answers
    # The waiter's own poll comes 5 s after it began to wait, which was just now.
    assert answered_at - result.ok_value < 2.5


def test_listeners_hear_of_the_task_when_it_is_new_and_when_it_is_done(office: Office, shared_db: Db) -> None:
    waiting = "SELECT bool_and(waiting) AS waiting FROM horsies_workers"
    eventually(lambda: shared_db.execute(waiting).fetchone()["waiting"], what="the worker being idle")
    gate = office.gate("listener")
    with psycopg.connect(office.place.database_url, autocommit=True) as listener:
        listener.execute("LISTEN task_new")
        listener.execute("LISTEN task_done")

        handle = office.tasks.wait_for.send(str(gate)).unwrap()
        waiter = threading.Thread(target=handle.get, args=(20_000,))
        waiter.start()
        eventually(lambda: row(shared_db, handle)["awaited"], what="the task being awaited")
        gate.touch()
        waiter.join(20)

        heard = {(news.channel, news.payload) for news in listener.notifies(timeout=10, stop_after=2)}
    assert heard == {("task_new", handle.task_id), ("task_done", handle.task_id)}


def test_a_final_answer_is_asked_for_once(office: Office, shared_db: Db) -> None:
    handle = office.tasks.add.send(2, 3).unwrap()
    first = handle.get(20_000)
    seen = _producer_statements(shared_db)
    assert seen

    assert handle.get(20_000) == first
    assert _producer_statements(shared_db) == seen


def _producer_statements(db: Db) -> list[dict[str, Any]]:
    """The last statement of each producer session, with its time."""
    return db.execute(
        "SELECT pid, query, query_start, state_change FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'horsies-producer' ORDER BY pid"
    ).fetchall()


def test_sending_and_waiting_do_not_block_a_running_loop(office: Office) -> None:
    gate = office.gate("loop")

    async def tick_until(done: asyncio.Event) -> int:
        ticks = 0
        while not done.is_set():
            await asyncio.sleep(0)
            ticks += 1
            if ticks == 100:  # were the loop blocked by the wait, the gate would never open
                gate.touch()
        return ticks

    async def produce() -> tuple[TaskResult[float, TaskError], int]:
        done = asyncio.Event()
        ticking = asyncio.create_task(tick_until(done))
        handle = (await office.tasks.wait_for.send_async(str(gate))).unwrap()
        result = await handle.get_async(20_000)
        done.set()
        return result, await ticking

    result, ticks = asyncio.run(produce())

    assert result.is_ok()
    assert ticks > 100


def test_sync_calls_inside_a_running_loop_work(office: Office) -> None:
    async def produce() -> TaskResult[int, TaskError]:
        return office.tasks.add.send(2, 3).unwrap().get(20_000)

    assert asyncio.run(produce()) == TaskResult(ok=5)


@pytest.mark.parametrize(
    "send",
    [
        lambda tasks: tasks.add.with_options(queue_name="nowhere").send(1),
        lambda tasks: tasks.add.send("one"),
        lambda tasks: tasks.add.send(object()),
        lambda tasks: tasks.add.send(),
        lambda tasks: tasks.add.send(1, z=2),
    ],
    ids=["unknown queue", "wrong type", "unserialisable", "missing", "unknown argument"],
)
def test_what_is_wrong_with_a_send_is_told_before_any_row_exists(
    workplace: Workplace, db: Db, send: Any
) -> None:
    workplace.write(URL + APP)

    refused = send(workplace.load())

    assert isinstance(refused, Err)
    assert refused.err_value.code is TaskSendErrorCode.VALIDATION_FAILED
    assert db.execute("SELECT count(*) AS rows FROM horsies_tasks").fetchone() == {"rows": 0}


def test_a_function_that_does_not_say_what_it_returns_is_refused_where_it_is_defined() -> None:
    app = Horsies()

    with pytest.raises(TaskDefinitionError) as unannotated:
        app.task("one")(lambda: 1)
    with pytest.raises(TaskDefinitionError) as wrong:

        @app.task("two")
        def two() -> TaskResult[int, str]:
            return TaskResult(ok=2)

    assert unannotated.value.code is ErrorCode.TASK_NO_RETURN_TYPE
    assert "def add(x: int, y: int) -> int:" in str(unannotated.value.help_text)
    assert wrong.value.code is ErrorCode.TASK_INVALID_RETURN_TYPE
    assert app.list_tasks() == []


def test_the_errors_of_a_task_and_of_the_library_cannot_be_confused(office: Office) -> None:
    own = office.tasks.decline.send().unwrap().get(20_000).err_value
    ours = office.tasks.app.handle("0" * 32).get(20_000).err_value

    library = OperationalErrorCode | ContractCode | RetrievalCode | OutcomeCode
    assert not isinstance(own.error_code, library)
    assert isinstance(ours.error_code, library)
    with pytest.raises(ValueError, match="reserved"):
        TaskError(error_code="TASK_TIMEOUT")


def test_delay_and_result_give_the_value_or_raise_what_the_worker_saw(office: Office) -> None:
    assert office.tasks.add.delay(2, 3).result(timeout=20) == 5

    handle = office.tasks.later_fails.delay()
    with pytest.raises(TaskFailed) as raised:
        handle.result(timeout=20)

    text = str(raised.value)
    assert text.startswith(f"task 'later_fails' {handle.task_id} failed: UNHANDLED_EXCEPTION: ")
    assert 'raise ValueError("not today")' in text
    assert text.endswith("  ValueError: not today")
    with pytest.raises(TaskFailed, match="CARD_DECLINED: the bank said no") as declined:
        asyncio.run(office.tasks.decline.delay().result_async(timeout=20))
    assert declined.value.error.data == {"try": 2}
