"""A worker that is told to stop lets running tasks end, starts nothing new and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from horsies import OperationalErrorCode, TaskResult
from tests.e2e.observing import Db, descendants, is_alive, lines, row, sessions, until_status
from tests.e2e.office import Office, staffed
from tests.support.waiting import eventually
from tests.support.workers import Workplace

APP = """
app = Horsies(AppConfig.for_database_url(URL, prefetch_buffer=4, claim_lease_ms=10_000))

@app.task("wait_for")
def wait_for(path: str) -> TaskResult[int, TaskError]:
    Path(f"{path}-begun").touch()
    while not Path(path).exists():
        time.sleep(0.005)
    return TaskResult(ok=os.getpid())

@app.task("once_more", idempotent=True)
def once_more(path: str) -> TaskResult[int, TaskError]:
    Path(f"{path}-begun").touch()
    while not Path(path).exists():
        time.sleep(0.005)
    return TaskResult(ok=os.getpid())

@app.task("note")
def note(path: str) -> TaskResult[int, TaskError]:
    with open(path, "a") as file:
        file.write("ran\\n")
    return TaskResult(ok=1)
"""

SECOND_SIGNAL = "the worker was stopped and killed this task, because it was told to stop a second time"


def _is_stopping(office: Office) -> bool:
    return "Stopping" in office.worker.log


def _nothing_is_left(office: Office, db: Db, processes: set[int]) -> None:
    eventually(lambda: not any(map(is_alive, processes)), what="all its processes being gone")
    asyncio.run(office.tasks.app.get_broker().close_async())  # a producer has a listener, too
    eventually(lambda: not sessions(db), what="all its sessions being closed")
    assert db.execute("SELECT FROM horsies_workers").rowcount == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_worker_stops_at_once_with_exit_code_0(
    workplace: Workplace, db: Db, number: signal.Signals
) -> None:
    office = staffed(workplace, APP, "--processes=2")
    processes = descendants(office.worker.pid)

    office.worker.signal(number)

    assert office.worker.wait() == 0
    assert "Traceback" not in office.worker.log
    _nothing_is_left(office, db, processes)


@pytest.mark.parametrize(
    ("number", "to_the_group"), [(signal.SIGTERM, False), (signal.SIGINT, True)], ids=["SIGTERM", "Ctrl-C"]
)
def test_a_running_task_ends_well_and_nothing_new_is_started(
    workplace: Workplace, db: Db, number: signal.Signals, to_the_group: bool
) -> None:
    office = staffed(workplace, APP, "--processes=1")
    processes = descendants(office.worker.pid)
    gate, path = office.gate("running"), office.gate("ran")
    running = office.tasks.wait_for.send(str(gate)).unwrap()
    pid = until_status(db, running, "RUNNING")["worker_pid"]
    held = office.tasks.note.send(str(path)).unwrap()
    until_status(db, held, "CLAIMED")

    if to_the_group:
        os.killpg(office.worker.pid, number)
    else:
        office.worker.signal(number)
    eventually(lambda: _is_stopping(office), what="the worker stopping")
    late = office.tasks.note.send(str(path)).unwrap()
    until_status(db, held, "PENDING")  # given back at once, for others to run
    gate.touch()

    assert office.worker.wait() == 0
    assert running.get(20_000) == TaskResult(ok=pid)
    assert [row(db, handle)["status"] for handle in (held, late)] == ["PENDING", "PENDING"]
    assert lines(path) == []
    _nothing_is_left(office, db, processes)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_a_second_signal_ends_running_tasks_by_their_policy_and_is_named_as_the_cause(
    workplace: Workplace, db: Db, number: signal.Signals
) -> None:
    office = staffed(workplace, APP, "--processes=2", "--prefetch-buffer=0")
    processes = descendants(office.worker.pid)
    lost = office.tasks.wait_for.send(str(office.gate("first"))).unwrap()
    repeatable = office.tasks.once_more.send(str(office.gate("second"))).unwrap()
    for gate in ("first", "second"):  # as long as its code has not begun, a task is given back
        office.until_begun(gate)

    os.killpg(office.worker.pid, number)
    eventually(lambda: _is_stopping(office), what="the worker stopping")
    os.killpg(office.worker.pid, number)

    assert office.worker.wait() == 0
    error = lost.get(20_000).err_value
    assert error.error_code is OperationalErrorCode.WORKER_CRASHED
    assert error.message == f"the task was lost: {SECOND_SIGNAL}"
    assert row(db, lost)["failed_reason"] == error.message
    stored = row(db, repeatable)
    assert (stored["status"], stored["retry_count"]) == ("PENDING", 1)
    (attempt,) = db.execute("SELECT * FROM horsies_attempts").fetchall()
    assert (str(attempt["task_id"]), attempt["failed_reason"]) == (repeatable.task_id, error.message)
    assert "memory" not in office.worker.log
    _nothing_is_left(office, db, processes)


def test_tasks_that_do_not_end_in_the_time_for_it_are_ended(workplace: Workplace, db: Db) -> None:
    office = staffed(workplace, APP, "--processes=1", "--drain-seconds=1")
    processes = descendants(office.worker.pid)
    running = office.tasks.wait_for.send(str(office.gate("never"))).unwrap()
    office.until_begun("never")

    assert office.worker.stop() == 0

    error = running.get(20_000).err_value
    assert error.error_code is OperationalErrorCode.WORKER_CRASHED
    assert error.message == (
        "the task was lost: the worker was stopped and killed this task, which did not end within 1 s (drain_seconds)"
    )
    _nothing_is_left(office, db, processes)


def test_what_one_worker_gives_back_another_runs(workplace: Workplace, db: Db) -> None:
    office = staffed(workplace, APP, "--processes=1")
    gate, path = office.gate("running"), office.gate("ran")
    running = office.tasks.wait_for.send(str(gate)).unwrap()
    until_status(db, running, "RUNNING")
    held = [office.tasks.note.send(str(path)).unwrap() for _ in range(4)]
    for handle in held:
        until_status(db, handle, "CLAIMED")
    workplace.start("--processes=1")

    office.worker.signal(signal.SIGTERM)

    assert [handle.get(20_000) for handle in held] == [TaskResult(ok=1)] * 4
    assert lines(path) == ["ran"] * 4
    gate.touch()
    assert office.worker.wait() == 0
