"""A task with a rate limit starts no more often than that in the whole cluster, and costs no slot while it waits."""

from __future__ import annotations

from datetime import datetime
from itertools import combinations

import pytest

from tests.e2e.observing import Db, until_status
from tests.e2e.office import URL, staffed
from tests.support.waiting import eventually
from tests.support.workers import Workplace

# With a poll of a minute, what starts within seconds was not found by the poll.
APP = """
app = Horsies(AppConfig.for_database_url(URL, resilience=WorkerResilienceConfig(notify_poll_interval_ms=60_000)))

@app.task("call", rate_limit="{rate}")
def call(x: int = 0) -> TaskResult[int, TaskError]:
    return TaskResult(ok=x)

@app.task("call_async", rate_limit="{rate}")
async def call_async(x: int = 0) -> TaskResult[int, TaskError]:
    return TaskResult(ok=x)

@app.task("free")
def free() -> TaskResult[int, TaskError]:
    return TaskResult(ok=os.getpid())
"""
# What the database may round a time by, and start early for it.
TOLERANCE = 1e-4


def starts(db: Db, task: str) -> list[datetime]:
    query = "SELECT started_at FROM horsies_tasks WHERE task_name = %s AND status = 'COMPLETED' ORDER BY 1"
    return [entry["started_at"] for entry in db.execute(query, (task,))]


def most_beyond(moments: list[datetime], per_second: float) -> float:
    """By how many starts the busiest of all windows exceeds what the rate alone gives."""
    return max(
        last - first + 1 - (moments[last] - moments[first]).total_seconds() * per_second
        for first, last in combinations(range(len(moments)), 2)
    )


def test_in_no_window_do_two_workers_start_more_than_the_burst_and_the_rate(
    workplace: Workplace, db: Db
) -> None:
    workplace.write(URL + APP.format(rate="20/s"))
    tasks = workplace.load()
    workers = [workplace.start("--processes=2", ready=False) for _ in range(2)]
    for worker in workers:
        worker.wait_until_ready()

    for task in (tasks.call, tasks.call_async):
        task.send_many([(number,) for number in range(30)]).unwrap()

    for name in ("call", "call_async"):
        eventually(lambda name=name: len(starts(db, name)) == 30, 30, f"every {name} being done")
        moments = starts(db, name)
        assert most_beyond(moments, per_second=20) <= 2 + TOLERANCE
        assert moments[1] == moments[0]  # the burst
    owners = db.execute(
        "SELECT count(DISTINCT claimed_by_worker_id) AS workers FROM horsies_tasks"
    ).fetchone()
    assert owners == {"workers": 2}


def test_a_limit_that_allows_the_next_start_at_any_moment_leaves_none_waiting(
    workplace: Workplace, db: Db
) -> None:
    office = staffed(workplace, APP.format(rate="100/s"), "--processes=1")

    handles = office.tasks.call.send_many([(number,) for number in range(200)]).unwrap()

    assert [handle.get(30_000).ok_value for handle in handles] == list(range(200))


def test_those_that_wait_for_the_limit_hold_no_slot(workplace: Workplace, db: Db) -> None:
    office = staffed(workplace, APP.format(rate="5/h"), "--processes=1")
    office.tasks.call.send_many([(number,) for number in range(20)]).unwrap()
    eventually(lambda: len(starts(db, "call")) == 1, what="one of them having run")

    for _ in range(3):
        assert office.tasks.free.send().unwrap().get(20_000).is_ok()

    waiting = db.execute("SELECT DISTINCT status, claimed_at FROM horsies_tasks WHERE live").fetchall()
    assert waiting == [{"status": "PENDING", "claimed_at": None}]
    assert db.execute("SELECT FROM horsies_tasks WHERE live").rowcount == 19


def test_a_limit_that_the_task_no_longer_has_is_lifted_for_those_that_wait(
    workplace: Workplace, db: Db
) -> None:
    office = staffed(workplace, APP.format(rate="1/h"), "--processes=1")
    handles = office.tasks.call.send_many([(number,) for number in range(5)]).unwrap()
    until_status(db, handles[0], "COMPLETED")
    assert office.worker.stop() == 0

    workplace.write(URL + APP.replace(', rate_limit="{rate}"', ""))
    workplace.start("--processes=1")

    assert [handle.get(20_000).ok_value for handle in handles] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("rate", ["10", "0/s", "x/m"])
def test_a_worker_of_an_app_with_a_bad_limit_does_not_start(workplace: Workplace, db: Db, rate: str) -> None:
    workplace.write(URL + APP.format(rate=rate))

    worker = workplace.start(ready=False)

    assert worker.wait() == 1
    assert "HRS-102" in worker.log
    assert f"rate_limit='{rate}'" in worker.log
    assert "Traceback" not in worker.log
