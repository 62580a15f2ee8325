"""Children are replaced after their share of tasks, one by one, and no task notices."""

from __future__ import annotations

from itertools import groupby

from horsies import TaskResult
from tests.e2e.observing import children
from tests.e2e.office import Office, staffed
from tests.support.waiting import eventually
from tests.support.workers import Workplace

APP = """
app = Horsies(AppConfig.for_database_url(URL, prefetch_buffer=8, claim_lease_ms=10_000))
seen = []

@app.task("pid")
def pid() -> TaskResult[int, TaskError]:
    seen.append(1)
    return TaskResult(ok=os.getpid())

@app.task("calls")
def calls() -> TaskResult[int, TaskError]:
    seen.append(1)
    return TaskResult(ok=len(seen))
"""


def _pids(office: Office, count: int) -> list[int]:
    handles = [office.tasks.pid.send().unwrap() for _ in range(count)]
    return [handle.get(30_000).ok_value for handle in handles]


def test_a_child_is_replaced_after_its_share_of_tasks(workplace: Workplace) -> None:
    office = staffed(workplace, APP, "--processes=1", "--max-tasks-per-child=3")

    pids = _pids(office, 12)

    assert [len(list(run)) for _, run in groupby(pids)] == [3, 3, 3, 3]
    eventually(lambda: len(children(office.worker.pid)) == 2, what="a child and a spare")


def test_with_0_a_child_is_never_replaced(workplace: Workplace) -> None:
    office = staffed(workplace, APP, "--processes=1", "--max-tasks-per-child=0")

    assert len(set(_pids(office, 250))) == 1


def test_by_default_a_child_runs_a_hundred_tasks(workplace: Workplace) -> None:
    office = staffed(workplace, APP, "--processes=1")

    assert [len(list(run)) for _, run in groupby(_pids(office, 250))] == [100, 100, 50]


def test_with_1_each_task_has_a_fresh_process(workplace: Workplace) -> None:
    office = staffed(workplace, APP, "--processes=2", "--max-tasks-per-child=1")

    assert len(set(_pids(office, 20))) == 20
    handles = [office.tasks.calls.send().unwrap() for _ in range(4)]
    assert [handle.get(20_000) for handle in handles] == [TaskResult(ok=1)] * 4


def test_the_tasks_of_a_busy_pool_all_succeed_while_it_is_replaced(workplace: Workplace) -> None:
    office = staffed(workplace, APP, "--processes=4", "--max-tasks-per-child=5")

    handles = office.tasks.pid.send_many([()] * 400).unwrap()
    pids = [handle.get(60_000).ok_value for handle in handles]

    assert max(pids.count(pid) for pid in set(pids)) == 5
    eventually(lambda: len(children(office.worker.pid)) == 5, what="four children and a spare")
