"""A worker that dies or freezes takes nothing with it: others finish its work, and it cannot spoil theirs."""

from __future__ import annotations

import signal

from horsies import OperationalErrorCode, TaskHandle
from tests.e2e.observing import Db, attempts, children, descendants, is_alive, lines, row, until_status
from tests.e2e.office import Office, staffed
from tests.support.waiting import eventually
from tests.support.workers import RunningWorker, Workplace

APP = """
app = Horsies(AppConfig.for_database_url(URL, prefetch_buffer=2, claim_lease_ms=2_000))

def write(path):
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\\n")

@app.task("wait_for")
def wait_for(path: str) -> TaskResult[int, TaskError]:
    write(f"{path}.runs")
    while not Path(path).exists():
        time.sleep(0.005)
    return TaskResult(ok=os.getpid())

@app.task("once_more", idempotent=True)
def once_more(path: str) -> TaskResult[int, TaskError]:
    write(f"{path}.runs")
    while not Path(path).exists():
        time.sleep(0.005)
    return TaskResult(ok=os.getpid())

@app.task("note")
def note(path: str) -> TaskResult[int, TaskError]:
    write(path)
    return TaskResult(ok=os.getpid())
"""


def _busy(office: Office, db: Db, task: str, gate_name: str) -> tuple[TaskHandle[int], list[TaskHandle[int]]]:
    """A worker of one process with a task that runs and two that it holds."""
    running = getattr(office.tasks, task).send(str(office.gate(gate_name))).unwrap()
    until_status(db, running, "RUNNING")
    held = [office.tasks.note.send(str(office.gate(f"note-{number}"))).unwrap() for number in range(2)]
    for handle in held:
        until_status(db, handle, "CLAIMED")
    return running, held


def test_no_process_outlives_a_killed_worker(workplace: Workplace, db: Db) -> None:
    office = staffed(workplace, APP, "--processes=2")
    handle = office.tasks.wait_for.send(str(office.gate("never"))).unwrap()
    until_status(db, handle, "RUNNING")
    processes = descendants(office.worker.pid)
    assert len(processes) == 4

    office.worker.signal(signal.SIGKILL)
    office.worker.wait()

    eventually(lambda: not any(map(is_alive, processes)), 2, "all its processes being gone")


def test_the_tasks_of_a_killed_worker_end_by_their_policy(workplace: Workplace, db: Db) -> None:
    office = staffed(workplace, APP, "--processes=1")
    running, held = _busy(office, db, "wait_for", "never")
    other = workplace.start("--processes=1")

    office.worker.signal(signal.SIGKILL)

    assert running.get(20_000).err_value.error_code is OperationalErrorCode.WORKER_CRASHED
    assert {handle.get(20_000).ok_value for handle in held} <= children(other.pid)
    assert [len(lines(office.gate(f"note-{number}"))) for number in range(2)] == [1, 1]
    assert [entry["error_code"] for entry in attempts(db, running)] == ["WORKER_CRASHED"]
    assert [entry["outcome"] for entry in attempts(db, held[0])] == ["COMPLETED"]


def test_a_worker_started_later_finds_the_tasks_of_a_killed_one(workplace: Workplace, db: Db) -> None:
    office = staffed(workplace, APP, "--processes=1")
    running, held = _busy(office, db, "once_more", "again")
    processes = descendants(office.worker.pid)
    office.worker.signal(signal.SIGKILL)
    office.worker.wait()

    other = workplace.start("--processes=1")
    # Until then a child of the killed worker may still finish the task and store its result.
    eventually(lambda: not any(map(is_alive, processes)), 10, "all processes of the killed worker being gone")
    office.gate("again").touch()

    assert running.get(20_000).ok_value in children(other.pid)
    assert all(handle.get(20_000).is_ok() for handle in held)
    assert len(lines(office.place.folder / "gate-again.runs")) == 2
    assert row(db, running)["crash_count"] == 1


def test_a_frozen_worker_loses_its_tasks_and_runs_none_of_them_when_it_wakes(
    workplace: Workplace, db: Db
) -> None:
    office = staffed(workplace, APP, "--processes=1")
    running, held = _busy(office, db, "wait_for", "frozen")
    frozen = children(office.worker.pid)
    office.worker.signal(signal.SIGSTOP)
    other = workplace.start("--processes=1")

    assert running.get(20_000).err_value.error_code is OperationalErrorCode.WORKER_CRASHED
    pids = {handle.get(20_000).ok_value for handle in held}
    office.worker.signal(signal.SIGCONT)

    _until_it_serves_again(office, other)
    assert not pids & frozen
    assert [len(lines(office.gate(f"note-{number}"))) for number in range(2)] == [1, 1]
    assert row(db, running)["status"] == "FAILED"


def test_a_result_that_comes_after_the_task_was_given_away_is_dropped(workplace: Workplace, db: Db) -> None:
    office = staffed(workplace, APP, "--processes=1")
    gate = office.gate("late")
    handle = office.tasks.wait_for.send(str(gate)).unwrap()
    until_status(db, handle, "RUNNING")
    office.worker.signal(signal.SIGSTOP)
    other = workplace.start("--processes=1")
    lost = handle.get(20_000)
    before = row(db, handle)

    gate.touch()  # the child, which is not frozen, ends well and says so; nobody listens any more
    office.worker.signal(signal.SIGCONT)

    _until_it_serves_again(office, other)
    assert lost.err_value.error_code is OperationalErrorCode.WORKER_CRASHED
    assert row(db, handle) == before


def _until_it_serves_again(office: Office, other: RunningWorker) -> None:
    """The frozen worker goes on under a new id: with the other one stopped, it is the one that runs tasks."""
    assert other.stop() == 0
    result = office.tasks.note.send(str(office.gate("after"))).unwrap().get(20_000)
    assert result.ok_value in children(office.worker.pid)
