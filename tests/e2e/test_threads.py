"""With threads, a child runs several blocking tasks at once; what ends the child ends them all."""

from __future__ import annotations

import pytest

from horsies import OperationalErrorCode, OutcomeCode, TaskResult
from tests.e2e.observing import Db, is_alive, row, until_status
from tests.e2e.office import Office, staffed
from tests.support.waiting import eventually
from tests.support.workers import Workplace

APP = """
import threading

app = Horsies(AppConfig.for_database_url(URL))

@app.task("where")
def where() -> TaskResult[list[int], TaskError]:
    return TaskResult(ok=[os.getpid(), threading.get_native_id()])

@app.task("meet")
def meet(folder: str, number: int, of: int) -> TaskResult[int, TaskError]:
    (Path(folder) / f"here-{number}").touch()
    while len(list(Path(folder).glob("here-*"))) < of:
        time.sleep(0.005)
    return TaskResult(ok=threading.get_native_id())

@app.task("wait_for")
def wait_for(path: str) -> TaskResult[int, TaskError]:
    while not Path(path).exists():
        time.sleep(0.005)
    return TaskResult(ok=os.getpid())

@app.task("hang", timeout_ms=300)
def hang() -> TaskResult[int, TaskError]:
    time.sleep(600)

@app.task("leave")
def leave() -> TaskResult[int, TaskError]:
    sys.exit(3)

@app.task("heed")
def heed() -> TaskResult[int, TaskError]:
    while not current_task().cancelled():
        time.sleep(0.005)
    return TaskResult(ok=os.getpid())

@app.task("close_everything")
def close_everything() -> TaskResult[int, TaskError]:
    os.closerange(3, 256)
    return TaskResult(ok=1)
"""


@pytest.fixture(scope="module")
def office(shared_workplace: Workplace) -> Office:
    return staffed(shared_workplace, APP, "--processes=1", "--threads=4")


def test_the_slots_of_a_worker_are_its_processes_times_their_threads(office: Office) -> None:
    assert "Concurrency config: processes=4," in office.worker.log


def test_a_child_runs_as_many_tasks_at_once_as_it_has_threads(office: Office, shared_db: Db) -> None:
    folder = office.place.folder / "meeting"
    folder.mkdir()

    handles = office.tasks.meet.send_many([(str(folder), number, 4) for number in range(4)]).unwrap()

    assert len({handle.get(20_000).unwrap() for handle in handles}) == 4
    assert len({row(shared_db, handle)["worker_pid"] for handle in handles}) == 1


def test_no_more_run_at_once_than_there_are_threads(office: Office, shared_db: Db) -> None:
    gate = office.gate("full")
    handles = office.tasks.wait_for.send_many([(str(gate),) for _ in range(6)]).unwrap()
    states = (
        "SELECT status, count(*) AS n FROM horsies_tasks WHERE task_name = 'wait_for' GROUP BY 1 ORDER BY 1"
    )
    full = [{"status": "PENDING", "n": 2}, {"status": "RUNNING", "n": 4}]

    eventually(lambda: shared_db.execute(states).fetchall() == full, what="four running and two waiting")

    gate.touch()
    assert all(handle.get(20_000).is_ok() for handle in handles)


def test_a_task_past_its_limit_takes_its_process_and_the_others_learn_why(
    office: Office, shared_db: Db
) -> None:
    neighbour = office.tasks.wait_for.send(str(office.gate("never"))).unwrap()
    pid = until_status(shared_db, neighbour, "RUNNING")["worker_pid"]

    culprit = office.tasks.hang.send().unwrap()

    assert culprit.get(20_000).err_value.error_code is OutcomeCode.TASK_TIMEOUT
    lost = neighbour.get(20_000).err_value
    assert lost.error_code is OperationalErrorCode.WORKER_CRASHED
    assert culprit.task_id in lost.message
    eventually(lambda: not is_alive(pid), what="their process being gone")
    assert office.tasks.where.send().unwrap().get(20_000).unwrap()[0] != pid


def test_a_task_in_a_thread_is_told_to_stop_and_its_neighbours_are_not(office: Office, shared_db: Db) -> None:
    one, other = office.tasks.heed.send().unwrap(), office.tasks.heed.send().unwrap()
    for handle in (one, other):
        until_status(shared_db, handle, "RUNNING")

    one.cancel().unwrap()

    assert one.get(20_000).err_value.error_code is OutcomeCode.TASK_CANCELLED
    assert row(shared_db, other)["status"] == "RUNNING"
    other.cancel().unwrap()
    assert other.get(20_000).err_value.error_code is OutcomeCode.TASK_CANCELLED


def test_what_a_task_raises_in_its_thread_is_its_own_failure(office: Office) -> None:
    pid, _ = office.tasks.where.send().unwrap().get(20_000).unwrap()

    error = office.tasks.leave.send().unwrap().get(20_000).err_value

    assert (error.error_code, error.message) == (OperationalErrorCode.UNHANDLED_EXCEPTION, "SystemExit: 3")
    assert office.tasks.where.send().unwrap().get(20_000).unwrap()[0] == pid


def test_a_thread_that_cannot_tell_its_outcome_is_a_crash_and_not_a_wait_for_ever(office: Office) -> None:
    error = office.tasks.close_everything.send().unwrap().get(20_000).err_value

    assert error.error_code is OperationalErrorCode.WORKER_CRASHED
    assert office.tasks.where.send().unwrap().get(20_000).is_ok()


def test_a_worn_child_ends_what_it_runs(workplace: Workplace, db: Db) -> None:
    office = staffed(workplace, APP, "--processes=1", "--threads=2", "--max-tasks-per-child=3")
    gate = office.gate("long")
    long = office.tasks.wait_for.send(str(gate)).unwrap()
    pid = until_status(db, long, "RUNNING")["worker_pid"]

    pids = [office.tasks.where.send().unwrap().get(20_000).unwrap()[0] for _ in range(5)]

    assert pids.count(pid) == 3
    gate.touch()
    assert long.get(20_000) == TaskResult(ok=pid)
    eventually(lambda: not is_alive(pid), what="the worn child being gone")


def test_threads_and_a_fresh_process_for_each_task_contradict_each_other(workplace: Workplace) -> None:
    workplace.write("app = Horsies(AppConfig())")

    refused = workplace.run("worker", "app:app", "--threads=2", "--max-tasks-per-child=1")

    assert refused.returncode == 1
    assert "threads is 2 and max_tasks_per_child is 1" in refused.stderr
    assert "error[HRS-" in refused.stderr
