"""A worker lists its tasks and limits when it starts, and queues of an app are served by their settings."""

from __future__ import annotations

from tests.e2e.observing import Db, until_status
from tests.e2e.office import URL, staffed
from tests.support.workers import Workplace

APP = """
app = Horsies(AppConfig.for_database_url(
    URL, queues=["mail", Queue("bulk", priority=80, max_concurrency=1)], claim_lease_ms=timedelta(seconds=3)))

@app.task("plain")
def plain() -> TaskResult[str, TaskError]:
    return TaskResult(ok=current_task().queue_name)

@app.task("mailed", queue_name="mail")
def mailed() -> TaskResult[str, TaskError]:
    return TaskResult(ok=current_task().queue_name)

@app.task("bulky", queue_name="bulk")
def bulky() -> TaskResult[str, TaskError]:
    return TaskResult(ok=current_task().queue_name)
"""


def test_a_worker_lists_its_tasks_and_limits_and_serves_all_queues(workplace: Workplace) -> None:
    office = staffed(workplace, APP, "--processes=1")
    tasks = office.tasks

    queues = [task.send().unwrap().get(20_000).ok_value for task in (tasks.plain, tasks.mailed, tasks.bulky)]

    assert queues == ["default", "mail", "bulk"]
    log = office.worker.log
    assert (
        "3 tasks:\n      bulky   queue bulk\n      mailed  queue mail\n      plain   queue default\n" in log
    )
    assert "      queue bulk        priority 80, max_concurrency 1 in the cluster\n" in log
    assert "has no tasks" not in log


def test_a_worker_without_tasks_warns_and_says_how_to_name_modules(workplace: Workplace) -> None:
    workplace.write(URL + "app = Horsies(AppConfig.for_database_url(URL))")

    log = workplace.start("--processes=1").log

    assert "  WARNING   This worker has no tasks" in log
    assert "app.discover_tasks([" in log


def test_a_claimed_task_of_a_worker_that_nobody_knows_goes_back_within_a_lease(
    workplace: Workplace, db: Db
) -> None:
    office = staffed(workplace, APP, "--processes=1")
    query = """
        INSERT INTO horsies_tasks (task_name, status, claimed_by_worker_id, claimed_at, claim_seq)
        VALUES ('plain', 'CLAIMED', gen_random_uuid(), now(), 1) RETURNING id"""
    office.tasks.plain.send().unwrap().get(20_000)  # the worker is at work

    found = db.execute(query.encode()).fetchone()

    assert found is not None
    # The check interval of the settings is 30 seconds.
    until_status(db, found["id"], "COMPLETED", seconds=15)
