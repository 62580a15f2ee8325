"""Workers with different code share a queue: each task is run by a worker that knows it, and none is held up."""

from __future__ import annotations

import os
import signal
from types import ModuleType
from typing import NamedTuple

from tests.e2e.observing import Db, row, until_status
from tests.e2e.office import URL
from tests.support.waiting import eventually
from tests.support.workers import RunningWorker, Workplace

OLD = (
    URL
    + """
GRACE = int(os.environ["GRACE"])
app = Horsies(AppConfig.for_database_url(URL, claim_lease_ms=1_500, unknown_task_grace_seconds=timedelta(seconds=GRACE)))

@app.task("both")
def both(x: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=x)
"""
)
NEW = (
    OLD
    + """
@app.task("new")
def new(x: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=os.getppid())

@app.task("block")
def block(path: str) -> TaskResult[int, TaskError]:
    while not Path(path).exists():
        time.sleep(0.01)
    return TaskResult(ok=1)
"""
)


class Rolling(NamedTuple):
    """A deploy that is under way: `old.py` has the code of before, `app.py` the code of now."""

    place: Workplace
    old: RunningWorker
    tasks: ModuleType


def deployed(workplace: Workplace, grace_seconds: int = 3) -> Rolling:
    os.environ["GRACE"] = workplace.env["GRACE"] = str(grace_seconds)
    workplace.write(NEW)
    workplace.write(OLD, "old.py")
    tasks = workplace.load()
    return Rolling(workplace, workplace.start("--processes=2", locator="old:app"), tasks)


def errors(worker: RunningWorker, name: str) -> list[str]:
    return [
        line
        for line in worker.log.splitlines()
        if f"  ERROR     This worker does not know task '{name}'" in line
    ]


def test_a_worker_leaves_tasks_it_does_not_know_to_one_that_does(workplace: Workplace) -> None:
    rolling = deployed(workplace)
    rolling.place.start("--processes=2")
    tasks = rolling.tasks

    handles = [tasks.new.send(n).unwrap() for n in range(40)]
    handles += [tasks.both.send(n).unwrap() for n in range(40)]

    assert all(handle.get(20_000).is_ok() for handle in handles)


def test_a_task_waits_while_the_worker_that_knows_it_is_busy_and_holds_nobody_up(
    workplace: Workplace, db: Db
) -> None:
    rolling = deployed(workplace)
    knowing = rolling.place.start("--processes=1")
    tasks, gate = rolling.tasks, rolling.place.folder / "gate"
    busy = tasks.block.send(str(gate)).unwrap()
    until_status(db, busy, "RUNNING")
    waiting = [tasks.new.send(n).unwrap() for n in range(5)]
    eventually(lambda: errors(rolling.old, "new"), what="the old worker meeting them")

    # For longer than the grace period, the old worker goes on with all it knows.
    sent_at = row(db, waiting[0])["sent_at"]
    while db.execute("SELECT now() - %s < interval '4 s' AS early", (sent_at,)).fetchone() == {"early": True}:
        both = tasks.both.send(1).unwrap()
        assert both.get(10_000).is_ok()
    assert {row(db, each)["status"] for each in waiting} == {"PENDING"}
    seqs = [row(db, each)["claim_seq"] for each in waiting]

    why = rolling.place.run("why", waiting[0].task_id, "--database-url", rolling.place.database_url).stdout
    assert "Of the 2 workers that serve its queue, 1 knows a task new" in why
    gate.touch()
    assert all(each.get(20_000).is_ok() for each in waiting)
    # The old worker has met each of them at most a few times: it does not claim them again and again.
    assert max(seqs) <= 4
    assert len(errors(rolling.old, "new")) == 1
    assert "It is left to a live worker that does" in errors(rolling.old, "new")[0]
    assert errors(knowing, "new") == []


def test_a_task_that_nobody_knows_fails_when_the_grace_period_is_over(workplace: Workplace, db: Db) -> None:
    rolling = deployed(workplace)
    handle = rolling.tasks.new.send(1).unwrap()
    eventually(lambda: errors(rolling.old, "new"), what="an error line at once")
    assert row(db, handle)["status"] in ("PENDING", "RUNNING")

    ended = until_status(db, handle, "FAILED")

    assert ended["error_code"] == "WORKER_RESOLUTION_ERROR"
    assert (ended["failed_at"] - ended["sent_at"]).total_seconds() >= 3
    assert len(errors(rolling.old, "new")) == 1


def test_a_task_that_nobody_knows_runs_as_soon_as_a_worker_comes_that_knows_it(workplace: Workplace) -> None:
    rolling = deployed(workplace, grace_seconds=120)
    handle = rolling.tasks.new.send(1).unwrap()
    eventually(lambda: errors(rolling.old, "new"), what="the old worker meeting it")
    why = rolling.place.run("why", handle.task_id, "--database-url", rolling.place.database_url).stdout
    assert "does not know a task new" in why
    assert "Otherwise it fails with WORKER_RESOLUTION_ERROR" in why

    rolling.place.start("--processes=1")

    assert handle.get(20_000).is_ok()


def test_when_the_last_worker_that_knows_a_task_dies_the_grace_period_starts(
    workplace: Workplace, db: Db
) -> None:
    rolling = deployed(workplace)
    knowing = rolling.place.start("--processes=1")
    tasks, gate = rolling.tasks, rolling.place.folder / "gate"
    busy = tasks.block.send(str(gate)).unwrap()
    until_status(db, busy, "RUNNING")
    handle = tasks.new.send(1).unwrap()
    eventually(lambda: errors(rolling.old, "new"), what="the old worker meeting it")

    knowing.signal(signal.SIGKILL)
    knowing.wait()

    ended = until_status(db, handle, "FAILED")
    assert ended["error_code"] == "WORKER_RESOLUTION_ERROR"
    assert len(errors(rolling.old, "new")) == 2  # left to another worker at first, then known to none
