"""A child that dies takes its own task with it and nothing else."""

from __future__ import annotations

import os
import signal

import pytest

from horsies import OperationalErrorCode, TaskHandle, TaskResult
from tests.e2e.observing import Db, attempts, children, is_alive, lines, row, until_status
from tests.e2e.office import Office, staffed
from tests.support.waiting import eventually
from tests.support.workers import Workplace

APP = """
import ctypes
import subprocess

app = Horsies(AppConfig.for_database_url(URL, claim_lease_ms=10_000, prefetch_buffer=4))

def again(*codes, count=1):
    return RetryPolicy.fixed([1] * count, auto_retry_for=list(codes), jitter=False)

def die(how):
    if how == "exit":
        os._exit(9)
    elif how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "term":
        os.kill(os.getpid(), signal.SIGTERM)
    elif how == "abort":
        os.abort()
    else:
        ctypes.string_at(0)

def note(path):
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\\n")
    return len(Path(path).read_text().splitlines())

@app.task("pid")
def pid() -> TaskResult[int, TaskError]:
    return TaskResult(ok=os.getpid())

@app.task("wait_for")
def wait_for(path: str) -> TaskResult[int, TaskError]:
    Path(f"{path}-begun").touch()
    while not Path(path).exists():
        time.sleep(0.005)
    return TaskResult(ok=os.getpid())

@app.task("record")
def record(path: str) -> TaskResult[int, TaskError]:
    return TaskResult(ok=note(path))

@app.task("no_policy")
def no_policy(path: str, how: str = "exit") -> TaskResult[int, TaskError]:
    note(path)
    die(how)

@app.task("other_policy", retry_policy=again("UNHANDLED_EXCEPTION"))
def other_policy(path: str) -> TaskResult[int, TaskError]:
    note(path)
    die("exit")

@app.task("crash_policy", retry_policy=again("WORKER_CRASHED"))
def crash_policy(path: str) -> TaskResult[int, TaskError]:
    if note(path) == 1:
        die("exit")
    return TaskResult(ok=2)

@app.task("any_policy", retry_policy=again("*"))
def any_policy(path: str) -> TaskResult[int, TaskError]:
    if note(path) == 1:
        die("exit")
    return TaskResult(ok=2)

@app.task("idempotent", idempotent=True)
def idempotent(path: str) -> TaskResult[int, TaskError]:
    if note(path) == 1:
        die("exit")
    return TaskResult(ok=2)

@app.task("deadly", retry_policy=again("WORKER_CRASHED", count=10))
def deadly(path: str) -> TaskResult[int, TaskError]:
    note(path)
    die("kill")

@app.task("deadly_idempotent", idempotent=True)
def deadly_idempotent(path: str) -> TaskResult[int, TaskError]:
    note(path)
    die("kill")

@app.task("leave_a_grandchild")
def leave_a_grandchild(path: str) -> TaskResult[int, TaskError]:
    child = subprocess.Popen(["sleep", "600"])
    Path(path).write_text(f"{child.pid}\\n")
    die("exit")
"""


@pytest.fixture(scope="module")
def office(shared_workplace: Workplace) -> Office:
    return staffed(shared_workplace, APP, "--processes=2", "--prefetch-buffer=0")


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("exit", "exited with code 9"),
        ("kill", "SIGKILL"),
        ("term", "SIGTERM"),
        ("abort", "SIGABRT"),
        ("segfault", "SIGSEGV"),
    ],
)
def test_a_task_whose_process_dies_fails_as_crashed_and_says_how(
    office: Office, shared_db: Db, how: str, told: str
) -> None:
    path = office.gate(f"how-{how}")
    handle = office.tasks.no_policy.send(str(path), how).unwrap()

    error = handle.get(20_000).err_value

    assert error.error_code is OperationalErrorCode.WORKER_CRASHED
    assert told in error.message
    stored = row(shared_db, handle)
    assert (stored["status"], stored["error_code"]) == ("FAILED", "WORKER_CRASHED")
    assert len(lines(path)) == 1
    _still_serves(office)


def _still_serves(office: Office) -> None:
    """The worker is the same process, has all its children, and runs tasks."""
    assert office.tasks.pid.send().unwrap().get(20_000).is_ok()
    assert office.worker.process.poll() is None
    eventually(lambda: len(children(office.worker.pid)) == 3, what="two children and a spare")


def test_a_child_killed_from_outside_is_a_crash_too(office: Office, shared_db: Db) -> None:
    handle = office.tasks.wait_for.send(str(office.gate("outside"))).unwrap()
    pid = until_status(shared_db, handle, "RUNNING")["worker_pid"]
    office.until_begun("outside")  # before, the task would go to another child

    os.kill(pid, signal.SIGTERM)

    assert handle.get(20_000).err_value.error_code is OperationalErrorCode.WORKER_CRASHED
    _still_serves(office)


@pytest.mark.parametrize("task", ["no_policy", "other_policy"])
def test_a_crash_that_no_policy_lists_is_final(office: Office, shared_db: Db, task: str) -> None:
    path = office.gate(f"final-{task}")
    handle = getattr(office.tasks, task).send(str(path)).unwrap()

    assert handle.get(20_000).err_value.error_code is OperationalErrorCode.WORKER_CRASHED

    assert len(lines(path)) == 1
    (attempt,) = attempts(shared_db, handle)
    assert (attempt["outcome"], attempt["error_code"]) == ("FAILED", "WORKER_CRASHED")


@pytest.mark.parametrize("task", ["crash_policy", "any_policy", "idempotent"])
def test_a_crash_that_may_be_repeated_is_retried(office: Office, shared_db: Db, task: str) -> None:
    path = office.gate(f"again-{task}")
    handle = getattr(office.tasks, task).send(str(path)).unwrap()

    assert handle.get(20_000) == TaskResult(ok=2)

    assert len(lines(path)) == 2
    assert [entry["error_code"] for entry in attempts(shared_db, handle)] == ["WORKER_CRASHED", None]


@pytest.mark.parametrize("task", ["deadly", "deadly_idempotent"])
def test_a_task_that_keeps_killing_its_process_is_given_up_after_three(
    office: Office, shared_db: Db, task: str
) -> None:
    path = office.gate(task)
    handle = getattr(office.tasks, task).send(str(path)).unwrap()

    assert handle.get(30_000).err_value.error_code is OperationalErrorCode.WORKER_CRASHED

    assert len(lines(path)) == 3
    assert [entry["will_retry"] for entry in attempts(shared_db, handle)] == [True, True, False]
    _still_serves(office)


def test_siblings_in_flight_do_not_notice(office: Office, shared_db: Db) -> None:
    gate = office.gate("sibling")
    sibling = office.tasks.wait_for.send(str(gate)).unwrap()
    pid = until_status(shared_db, sibling, "RUNNING")["worker_pid"]
    crashing = [
        office.tasks.no_policy.send(str(office.gate("beside")), how).unwrap() for how in ("exit", "segfault")
    ]

    for handle in crashing:
        assert handle.get(20_000).err_value.error_code is OperationalErrorCode.WORKER_CRASHED
    gate.touch()

    assert sibling.get(20_000) == TaskResult(ok=pid)
    assert row(shared_db, sibling)["claim_seq"] == 1


def test_tasks_claimed_ahead_of_a_crash_run_once_each(workplace: Workplace, db: Db) -> None:
    own = staffed(workplace, APP, "--processes=1", "--prefetch-buffer=4")
    blocker = own.tasks.wait_for.send(str(own.gate("never"))).unwrap()
    pid = until_status(db, blocker, "RUNNING")["worker_pid"]
    own.until_begun("never")
    files = [own.place.folder / f"behind-{number}" for number in range(4)]
    behind = [own.tasks.record.send(str(file)).unwrap() for file in files]
    for handle in behind:
        until_status(db, handle, "CLAIMED")

    os.kill(pid, signal.SIGKILL)

    assert blocker.get(20_000).err_value.error_code is OperationalErrorCode.WORKER_CRASHED
    assert [handle.get(20_000) for handle in behind] == [TaskResult(ok=1)] * 4
    assert [len(lines(file)) for file in files] == [1] * 4


def test_what_a_task_started_is_gone_when_its_process_is(office: Office) -> None:
    path = office.gate("grandchild")
    handle: TaskHandle[int] = office.tasks.leave_a_grandchild.send(str(path)).unwrap()

    assert handle.get(20_000).err_value.error_code is OperationalErrorCode.WORKER_CRASHED

    grandchild = int(lines(path)[0])
    eventually(lambda: not is_alive(grandchild), what="the grandchild being gone")
