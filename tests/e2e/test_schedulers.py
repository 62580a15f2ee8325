"""Schedulers as users start them: alone, in a worker, several at once; stopped, killed and cut off."""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg

from tests.support.proxy import Proxy
from tests.support.waiting import eventually
from tests.support.workers import Workplace

Db = psycopg.Connection[dict[str, Any]]

APP = """
app = Horsies(AppConfig(schedule=ScheduleConfig(schedules=[
    TaskSchedule(name="tick", task_name="add", pattern=IntervalSchedule(seconds=1), kwargs={"x": 1},
                 catch_up_missed=True),
    TaskSchedule(name="noon", task_name="add", pattern=DailySchedule(time=datetime(2026, 1, 1, 12).time()), args=(5,)),
])))

@app.task("add")
def add(x: int, y: int = 0) -> TaskResult[int, TaskError]:
    return TaskResult(ok=x + y)
"""


def runs(db: Db) -> list[Any]:
    rows = db.execute("SELECT sent_at FROM horsies_tasks ORDER BY sent_at").fetchall()
    return [row["sent_at"] for row in rows]


def have_run(db: Db, count: int) -> Callable[[], bool]:
    return lambda: len(runs(db)) >= count


def assert_every_second_once(slots: list[Any]) -> None:
    assert slots == [slots[0] + timedelta(seconds=n) for n in range(len(slots))]


def test_a_scheduler_runs_slots_until_it_is_stopped(workplace: Workplace, db: Db) -> None:
    workplace.write(APP)
    scheduler = workplace.start(command="scheduler")

    eventually(have_run(db, 2), what="two runs")
    scheduler.signal(signal.SIGTERM)

    assert scheduler.wait() == 0
    assert_every_second_once(runs(db))
    assert "Traceback" not in scheduler.log


def test_a_worker_may_be_its_own_scheduler(workplace: Workplace, db: Db) -> None:
    workplace.write(APP)
    worker = workplace.start("--processes=1", "--with-scheduler")

    eventually(
        lambda: db.execute("SELECT FROM horsies_tasks WHERE status = 'COMPLETED' LIMIT 1").fetchall(),
        what="a run that has ended",
    )

    assert worker.stop() == 0, worker.log
    assert "Traceback" not in worker.log


def test_a_worker_without_a_scheduler_runs_no_schedules(workplace: Workplace, db: Db) -> None:
    workplace.write(APP)
    worker = workplace.start("--processes=1")

    assert worker.stop() == 0, worker.log
    assert db.execute("SELECT FROM horsies_schedule_state").fetchall() == []


def test_a_scheduler_that_is_killed_leaves_its_slots_to_the_next(workplace: Workplace, db: Db) -> None:
    workplace.write(APP)
    first = workplace.start(command="scheduler")
    eventually(have_run(db, 1), what="a run")
    first.signal(signal.SIGKILL)
    first.wait()
    left_at = len(runs(db))

    workplace.start(command="scheduler")

    eventually(have_run(db, left_at + 2), what="runs of the next scheduler")
    assert_every_second_once(runs(db))


def test_a_scheduler_bears_a_server_that_throws_it_out(workplace: Workplace, db: Db) -> None:
    workplace.write(APP)
    scheduler = workplace.start(command="scheduler")
    eventually(have_run(db, 1), what="a run")

    db.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name LIKE 'horsies-%'"
    )
    seen = len(runs(db))

    eventually(have_run(db, seen + 2), what="runs over the next connection")
    scheduler.signal(signal.SIGTERM)
    assert scheduler.wait() == 0
    assert_every_second_once(runs(db))


def test_a_schedule_made_by_somebody_else_is_run_at_once(workplace: Workplace, db: Db) -> None:
    workplace.write(
        APP.replace("schedules=[", "check_interval_seconds=60, schedules=[").replace("seconds=1)", "hours=1)")
    )
    workplace.start(command="scheduler")

    db.execute(
        "INSERT INTO horsies_schedule_state (schedule_name, definition, config_hash, next_run_at) VALUES ('mine',"
        ' \'{"task_name":"add","timezone":"UTC","arguments":{"x":7},"pattern":{"kind":"interval","hours":1}}\','
        " '', date_trunc('second', now()))"
    )
    db.execute("NOTIFY horsies_schedules")

    eventually(have_run(db, 1), seconds=10, what="the run of a new schedule")


def test_a_connection_over_which_nothing_passes_any_more_is_given_up(workplace: Workplace, db: Db) -> None:
    workplace.write(APP)
    with Proxy(workplace.database_url) as proxy:
        workplace.env["HORSIES_DATABASE_URL"] = proxy.url
        scheduler = workplace.start(command="scheduler")
        eventually(have_run(db, 1), what="a run")

        proxy.strand()
        seen = len(runs(db))

        eventually(have_run(db, seen + 2), seconds=40, what="runs over the next connection")
        assert "closing the connection" in scheduler.log
    assert_every_second_once(runs(db))


DECLARED = """
from datetime import timedelta

app = Horsies()

@app.schedule(every=timedelta(seconds=1), kwargs={"x": 1}, catch_up_missed=True)
@app.schedule("0 12 * * mon", name="noon", args=(5,), timezone="Europe/Berlin")
@app.task("add")
def add(x: int, y: int = 0) -> TaskResult[int, TaskError]:
    return TaskResult(ok=x + y)
"""


def test_schedules_that_are_declared_above_a_task_are_run_checked_and_listed(
    workplace: Workplace, db: Db
) -> None:
    workplace.write(DECLARED)
    scheduler = workplace.start(command="scheduler")

    eventually(have_run(db, 2), what="two runs")
    scheduler.signal(signal.SIGTERM)

    assert scheduler.wait() == 0
    assert_every_second_once(runs(db))
    listed = workplace.run("schedules", "list", "--app", "app:app").stdout
    assert "add" in listed
    assert "Mondays at 12:00" in listed
    assert "Europe/Berlin" in listed
    assert "2 schedules" in listed
    assert workplace.run("check", "app:app").returncode == 0
    deleted = workplace.run("schedules", "delete", "noon", "--app", "app:app")
    assert deleted.returncode == 1
    assert "is in the code" in deleted.stderr


def test_a_declared_schedule_in_a_module_that_is_discovered_is_run(workplace: Workplace, db: Db) -> None:
    workplace.write("app = Horsies()\napp.discover_tasks(['later'])\n")
    workplace.write(
        "from app import app\n"
        "@app.schedule(every=1)\n"
        '@app.task("tick")\n'
        "def tick() -> TaskResult[None, TaskError]:\n"
        "    return TaskResult(ok=None)\n",
        "later.py",
    )
    worker = workplace.start("--processes=1", "--with-scheduler")

    eventually(have_run(db, 2), what="two runs")

    assert worker.stop() == 0
