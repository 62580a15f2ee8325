"""A task that runs past its limit is ended, whatever it is doing, and nobody else is."""

from __future__ import annotations

import pytest

from horsies import OutcomeCode, TaskResult
from tests.e2e.observing import Db, attempts, children, is_alive, lines, row, until_status
from tests.e2e.office import Office, staffed
from tests.support.waiting import eventually
from tests.support.workers import Workplace

APP = """
import ctypes
import subprocess

app = Horsies(AppConfig.for_database_url(URL))

@app.task("pid")
def pid() -> TaskResult[int, TaskError]:
    return TaskResult(ok=os.getpid())

@app.task("wait_for")
def wait_for(path: str) -> TaskResult[int, TaskError]:
    while not Path(path).exists():
        time.sleep(0.005)
    return TaskResult(ok=os.getpid())

@app.task("spin", timeout_ms=300)
def spin() -> TaskResult[int, TaskError]:
    while True:
        pass

@app.task("sleep", timeout_ms=300)
def sleep() -> TaskResult[int, TaskError]:
    time.sleep(600)

@app.task("deaf", timeout_ms=300)
def deaf() -> TaskResult[int, TaskError]:
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    ctypes.PyDLL(None).sleep(600)  # holds the interpreter, so that no Python code of the process can run either

@app.task("catch_all", timeout_ms=300)
def catch_all() -> TaskResult[int, TaskError]:
    while True:
        try:
            time.sleep(600)
        except BaseException:
            pass

@app.task("leave_a_grandchild", timeout_ms=1_000)
def leave_a_grandchild(path: str) -> TaskResult[int, TaskError]:
    child = subprocess.Popen(["sleep", "600"])
    Path(path).write_text(f"{child.pid}\\n")
    child.wait()

@app.task("once", timeout_ms=300, retry_policy=RetryPolicy.fixed([1], auto_retry_for=["TASK_TIMEOUT"], jitter=False))
def once(path: str) -> TaskResult[int, TaskError]:
    with open(path, "a") as file:
        file.write("tried\\n")
    if len(Path(path).read_text().splitlines()) == 1:
        time.sleep(600)
    return TaskResult(ok=2)

@app.task("quick", timeout_ms=60_000)
def quick() -> TaskResult[int, TaskError]:
    return TaskResult(ok=1)
"""


@pytest.fixture(scope="module")
def office(shared_workplace: Workplace) -> Office:
    return staffed(shared_workplace, APP, "--processes=2")


@pytest.mark.parametrize("task", ["spin", "sleep", "deaf", "catch_all"])
def test_a_task_is_ended_at_its_limit_whatever_it_does(office: Office, shared_db: Db, task: str) -> None:
    handle = getattr(office.tasks, task).send().unwrap()

    error = handle.get(20_000).err_value

    assert error.error_code is OutcomeCode.TASK_TIMEOUT
    assert "300 ms" in error.message
    stored = row(shared_db, handle)
    assert (stored["status"], stored["error_code"]) == ("FAILED", "TASK_TIMEOUT")
    assert (stored["failed_at"] - stored["started_at"]).total_seconds() >= 0.3
    (attempt,) = attempts(shared_db, handle)
    assert (attempt["outcome"], attempt["error_code"]) == ("FAILED", "TASK_TIMEOUT")
    eventually(lambda: not is_alive(stored["worker_pid"]), what="its process being gone")


def test_a_sibling_does_not_notice_and_the_slot_is_used_again(office: Office, shared_db: Db) -> None:
    gate = office.gate("sibling")
    sibling = office.tasks.wait_for.send(str(gate)).unwrap()
    pid = until_status(shared_db, sibling, "RUNNING")["worker_pid"]

    # The sibling holds one of the two slots: these can only run one after the other in the second one.
    for handle in [office.tasks.spin.send().unwrap() for _ in range(3)]:
        assert handle.get(20_000).err_value.error_code is OutcomeCode.TASK_TIMEOUT
    other = office.tasks.pid.send().unwrap().get(20_000).ok_value
    gate.touch()

    assert sibling.get(20_000) == TaskResult(ok=pid)
    assert other != pid
    eventually(lambda: len(children(office.worker.pid)) == 3, what="two children and a spare")


def test_what_the_task_started_is_gone_with_it(office: Office) -> None:
    path = office.gate("grandchild")

    error = office.tasks.leave_a_grandchild.send(str(path)).unwrap().get(20_000).err_value

    assert error.error_code is OutcomeCode.TASK_TIMEOUT
    grandchild = int(lines(path)[0])
    eventually(lambda: not is_alive(grandchild), what="the grandchild being gone")


def test_a_timeout_that_is_listed_is_retried(office: Office, shared_db: Db) -> None:
    handle = office.tasks.once.send(str(office.gate("once"))).unwrap()

    assert handle.get(20_000) == TaskResult(ok=2)
    assert [entry["error_code"] for entry in attempts(shared_db, handle)] == ["TASK_TIMEOUT", None]


def test_the_limit_of_one_send_goes_before_that_of_the_task(office: Office) -> None:
    error = office.tasks.sleep.with_options(timeout_ms=100).send().unwrap().get(20_000).err_value

    assert error.error_code is OutcomeCode.TASK_TIMEOUT
    assert "100 ms" in error.message


def test_a_limit_does_not_outlive_its_task(office: Office, shared_db: Db) -> None:
    gate = office.gate("after-the-limit")
    assert office.tasks.quick.with_options(timeout_ms=500).send().unwrap().get(20_000) == TaskResult(ok=1)
    unlimited = [office.tasks.wait_for.send(str(gate)).unwrap() for _ in range(2)]
    for handle in unlimited:
        until_status(shared_db, handle, "RUNNING")

    ran = "SELECT now() - %s > interval '700 ms' AS longer"
    started = row(shared_db, unlimited[1])["started_at"]
    eventually(
        lambda: shared_db.execute(ran, (started,)).fetchone()["longer"], what="the old limit having passed"
    )
    gate.touch()

    assert all(handle.get(20_000).is_ok() for handle in unlimited)


def test_an_app_can_set_a_limit_for_all_its_tasks(workplace: Workplace) -> None:
    own = staffed(
        workplace, APP.replace("for_database_url(URL)", "for_database_url(URL, default_task_timeout_ms=300)")
    )

    error = own.tasks.wait_for.send(str(own.gate("never"))).unwrap().get(20_000).err_value

    assert error.error_code is OutcomeCode.TASK_TIMEOUT
    assert "300 ms" in error.message


def test_waiting_in_a_worker_does_not_count_against_the_limit(workplace: Workplace, db: Db) -> None:
    config = "for_database_url(URL, prefetch_buffer=4, claim_lease_ms=10_000)"
    own = staffed(workplace, APP.replace("for_database_url(URL)", config), "--processes=1")
    gate = own.gate("blocker")
    blocker = own.tasks.wait_for.send(str(gate)).unwrap()
    until_status(db, blocker, "RUNNING")
    behind = own.tasks.quick.with_options(timeout_ms=100).send().unwrap()
    claimed = until_status(db, behind, "CLAIMED")["claimed_at"]

    waited = "SELECT now() - %s > interval '300 ms' AS longer"
    eventually(lambda: db.execute(waited, (claimed,)).fetchone()["longer"], what="its limit having passed")
    gate.touch()

    assert behind.get(20_000) == TaskResult(ok=1)
