"""Children are replaced after their share of tasks, one by one, and no task notices."""

from __future__ import annotations

import os
import signal
import time
from itertools import groupby, pairwise
from uuid import uuid4

import msgspec
import pytest

from horsies import OperationalErrorCode, TaskResult
from horsies.executor import protocol
from horsies.executor.protocol import ChildKind
from tests.e2e.observing import Db, children, is_alive, lines, row, until_status
from tests.e2e.office import URL, Office, staffed
from tests.e2e.pipes import child, settings_for
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

@app.task("wait_for")
def wait_for(path: str) -> TaskResult[int, TaskError]:
    Path(f"{path}-begun").touch()
    while not Path(path).exists():
        time.sleep(0.005)
    return TaskResult(ok=os.getpid())

@app.task("staff")
def staff(log: str) -> TaskResult[int, TaskError]:
    parent = os.getppid()
    present = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    with open(log, "a") as file:
        file.write(f"{present}\\n")
    time.sleep(0.01)
    return TaskResult(ok=os.getpid())
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


def test_with_100_a_child_runs_a_hundred_tasks_however_short_they_are(workplace: Workplace) -> None:
    office = staffed(workplace, APP, "--processes=1", "--max-tasks-per-child=100")

    assert [len(list(run)) for _, run in groupby(_pids(office, 250))] == [100, 100, 50]


def test_by_default_a_child_is_replaced_after_a_hundred_tasks(workplace: Workplace) -> None:
    office = staffed(workplace, APP, "--processes=1")
    pids = list[int]()

    def is_replaced() -> bool:
        pids.extend(_pids(office, 50))
        return len(set(pids)) > 2

    eventually(is_replaced, what="two replacements")
    runs = [len(list(run)) for _, run in groupby(pids)]
    assert min(runs[:2]) >= 100


@pytest.mark.parametrize(("min_seconds", "retires"), [(0.0, True), (60.0, False)])
def test_a_child_younger_than_its_least_age_is_not_replaced_for_its_tasks(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch, min_seconds: float, retires: bool
) -> None:
    workplace.write(URL + APP)
    monkeypatch.setenv("HORSIES_DATABASE_URL", workplace.database_url)
    settings = msgspec.structs.replace(settings_for(workplace, max_tasks=2), min_seconds=min_seconds)
    with child(settings, ChildKind.SERIAL) as line:
        assert isinstance(line.hear(), protocol.Hello)
        heard = list[str]()
        for ticket in (1, 2):
            line.say(_call(ticket))
            heard.append(type(line.hear()).__name__)
        line.say(_call(3))
        heard.append(type(line.hear()).__name__)

    assert heard == ["Outcome", "Outcome", "Retiring" if retires else "Outcome"]


def _call(ticket: int) -> protocol.Call:
    until = time.monotonic() + 60
    return protocol.Call(ticket, str(uuid4()), "pid", None, "{}", "default", 1, 0, None, until, 1, None)


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


def test_children_are_replaced_one_by_one_and_never_all_together(workplace: Workplace) -> None:
    office = staffed(workplace, APP, "--processes=4", "--max-tasks-per-child=5", "--prefetch-buffer=0")
    log = workplace.folder / "staff"

    handles = office.tasks.staff.send_many([(str(log),)] * 60).unwrap()
    pids = [handle.get(30_000).ok_value for handle in handles]

    assert len(set(pids)) >= 12
    assert max(map(pids.count, pids)) == 5
    present = [set(map(int, line.split())) for line in lines(log)]
    assert len(present) == 60
    # Whoever is there when a task begins finds one there who was there when the task before it began.
    assert all(now & before for before, now in pairwise(present))
    assert len(set.intersection(*present[:2])) >= 3
    assert not present[0] & present[-1]


@pytest.mark.parametrize("end", ["replaced", "terminated"])
def test_the_end_of_one_child_is_not_noticed_by_its_siblings(workplace: Workplace, db: Db, end: str) -> None:
    office = staffed(workplace, APP, "--processes=4", "--max-tasks-per-child=5", "--prefetch-buffer=0")
    gate = office.gate("siblings")
    siblings = [office.tasks.wait_for.send(str(gate)).unwrap() for _ in range(3)]
    pids = [until_status(db, handle, "RUNNING")["worker_pid"] for handle in siblings]

    gone = _replaced(office) if end == "replaced" else _terminated(office, db)
    eventually(lambda: not is_alive(gone), what="the fourth child being gone")
    others = _pids(office, 12)
    gate.touch()

    assert not {gone, *others} & set(pids)
    assert [handle.get(20_000) for handle in siblings] == [TaskResult(ok=pid) for pid in pids]
    assert [row(db, handle)["claim_seq"] for handle in siblings] == [1, 1, 1]


def _replaced(office: Office) -> int:
    """A child that has done its share, the only one that was free."""
    first, *_, last = _pids(office, 5)
    assert first == last
    return first


def _terminated(office: Office, db: Db) -> int:
    """A child that was ended from outside, and its task with it."""
    handle = office.tasks.wait_for.send(str(office.gate("never"))).unwrap()
    pid = until_status(db, handle, "RUNNING")["worker_pid"]
    office.until_begun("never")  # before, the task would go to another child
    os.kill(pid, signal.SIGTERM)
    error = handle.get(20_000).err_value
    assert error.error_code is OperationalErrorCode.WORKER_CRASHED
    assert "SIGTERM" in error.message
    return pid
