"""A child that holds too much memory is replaced after the task that made it so, and no task notices."""

from __future__ import annotations

import re
from itertools import groupby

import psutil
import pytest

from horsies import TaskHandle, TaskResult
from tests.e2e.observing import Db, children, is_alive, row, until_status
from tests.e2e.office import URL, Office, staffed
from tests.support.waiting import eventually
from tests.support.workers import Workplace

APP = """
app = Horsies(AppConfig.for_database_url(URL, prefetch_buffer=8, claim_lease_ms=10_000))
kept = []

def fill(megabytes):
    return b"x" * (megabytes * 1_048_576)  # written, so that it is really there

@app.task("keep")
def keep(megabytes: int) -> TaskResult[int, TaskError]:
    kept.append(fill(megabytes))
    return TaskResult(ok=os.getpid())

@app.task("use")
def use(megabytes: int) -> TaskResult[int, TaskError]:
    fill(megabytes)
    return TaskResult(ok=os.getpid())

@app.task("keep_and_wait")
def keep_and_wait(megabytes: int, path: str) -> TaskResult[int, TaskError]:
    kept.append(fill(megabytes))
    while not Path(path).exists():
        time.sleep(0.005)
    return TaskResult(ok=os.getpid())
"""

# A child starts with far less than the limit, and a task that keeps this much goes over it.
LIMIT_MB, MUCH_MB = 300, 320
LIMIT = f"--max-memory-per-child-mb={LIMIT_MB}"


@pytest.fixture(scope="module")
def office(shared_workplace: Workplace) -> Office:
    """Two children with a limit on memory only; each task is sent to a child that has nothing else to do."""
    return staffed(
        shared_workplace, APP, "--processes=2", LIMIT, "--max-tasks-per-child=0", "--prefetch-buffer=0"
    )


def _keep(office: Office, *megabytes: int) -> list[int]:
    """The pids of tasks that run one after the other."""
    return [office.tasks.keep.send(size).unwrap().get(20_000).ok_value for size in megabytes]


def _running(office: Office, db: Db, megabytes: int, gate: str) -> tuple[TaskHandle[int], int]:
    handle = office.tasks.keep_and_wait.send(megabytes, str(office.gate(gate))).unwrap()
    return handle, until_status(db, handle, "RUNNING")["worker_pid"]


def test_the_task_that_goes_over_the_limit_ends_well_and_its_child_is_replaced(
    office: Office, shared_db: Db
) -> None:
    sibling, sibling_pid = _running(office, shared_db, 1, "sibling")

    grown = _keep(office, 100, 100, 100, 100, 100, 100)
    office.gate("sibling").touch()

    # What a child has from the start counts too: the third task at the latest goes over the limit.
    assert [len(list(run)) for _, run in groupby(grown)] in ([3, 3], [2, 2, 2])
    assert sibling_pid not in grown
    eventually(lambda: not is_alive(grown[0]), what="the child that had grown being gone")
    assert sibling.get(20_000) == TaskResult(ok=sibling_pid)
    assert row(shared_db, sibling)["claim_seq"] == 1
    eventually(lambda: len(children(office.worker.pid)) == 3, what="two children and a spare")


def test_a_task_is_not_interrupted_however_much_it_holds(office: Office, shared_db: Db) -> None:
    handle, pid = _running(office, shared_db, MUCH_MB, "holding")
    holder = psutil.Process(pid)
    eventually(
        lambda: holder.memory_info().rss > LIMIT_MB * 1_048_576, what="the task holding more than the limit"
    )

    others = _keep(office, *[1] * 20)  # the worker goes on meanwhile, and does not end it
    assert is_alive(pid)
    office.gate("holding").touch()

    assert handle.get(20_000) == TaskResult(ok=pid)
    assert pid not in others
    assert row(shared_db, handle)["claim_seq"] == 1
    eventually(lambda: not is_alive(pid), what="its child being replaced afterwards")


def test_memory_that_a_task_has_given_back_does_not_count(office: Office, shared_db: Db) -> None:
    _, sibling_pid = _running(office, shared_db, 1, "beside")
    (before,) = _keep(office, 1)

    assert office.tasks.use.send(MUCH_MB).unwrap().get(20_000) == TaskResult(ok=before)

    assert _keep(office, 1) == [before]
    office.gate("beside").touch()
    assert before != sibling_pid


def test_without_a_limit_on_tasks_only_memory_counts(workplace: Workplace) -> None:
    own = staffed(workplace, APP, "--processes=1", LIMIT, "--max-tasks-per-child=0")

    small = own.tasks.use.send_many([(0,)] * 250).unwrap()
    pids = {handle.get(30_000).ok_value for handle in small}

    assert len(pids) == 1
    last, fresh = _keep(own, MUCH_MB, 1)
    assert {last} == pids
    assert fresh != last


def test_whichever_limit_is_reached_first_counts(workplace: Workplace) -> None:
    own = staffed(workplace, APP, "--processes=1", LIMIT, "--max-tasks-per-child=3")

    pids = _keep(own, 1, 1, 1, MUCH_MB, 1, MUCH_MB, 1, 1, 1, 1)

    assert [len(list(run)) for _, run in groupby(pids)] == [3, 1, 2, 3, 1]


def test_tasks_behind_one_that_goes_over_the_limit_run_elsewhere(workplace: Workplace, db: Db) -> None:
    own = staffed(workplace, APP, "--processes=2", LIMIT)

    sizes = [MUCH_MB if number % 10 == 5 else 0 for number in range(60)]
    handles = own.tasks.keep.send_many([(size,) for size in sizes]).unwrap()
    pids = [handle.get(30_000).ok_value for handle in handles]

    grown = [pid for pid, size in zip(pids, sizes, strict=True) if size]
    assert len(set(grown)) == 6
    assert {row(db, handle)["status"] for handle in handles} == {"COMPLETED"}
    eventually(lambda: not any(map(is_alive, grown)), what="all children that had grown being gone")


def test_a_threshold_that_a_fresh_child_is_over_is_refused_with_both_numbers(
    workplace: Workplace, db: Db
) -> None:
    workplace.write(URL + APP)

    refused = workplace.run("worker", "app:app", "--processes=1", "--max-memory-per-child-mb=10")

    assert refused.returncode == 1
    assert "error[HRS-" in refused.stderr
    assert re.search(r"max_memory_per_child_mb is 10 MB, but a child uses (\d+) MB", refused.stderr)
    assert db.execute("SELECT count(*) AS n FROM horsies_workers").fetchone() == {"n": 0}


def test_a_threshold_with_little_to_spare_is_warned_of(workplace: Workplace) -> None:
    workplace.write(URL + APP)
    refused = workplace.run("worker", "app:app", "--processes=1", "--max-memory-per-child-mb=10")
    taken = re.search(r"child uses (\d+) MB", refused.stderr)
    assert taken is not None
    baseline = int(taken[1])

    tight = workplace.start("--processes=1", f"--max-memory-per-child-mb={int(baseline * 1.12)}")
    ample = workplace.start("--processes=1", f"--max-memory-per-child-mb={baseline * 2}")

    assert "little is left" in tight.log
    assert "little is left" not in ample.log
