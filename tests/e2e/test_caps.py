"""Workers together run as much as they may, never more, and leave no capacity unused for long."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from types import ModuleType

import pytest

from tests.e2e.observing import Db, row, until_status
from tests.e2e.office import URL, staffed
from tests.support.waiting import eventually
from tests.support.workers import RunningWorker, Workplace

# With a poll of a minute, what happens within seconds was not found by the poll.
APP = """
POLL = WorkerResilienceConfig(notify_poll_interval_ms=60_000)

def new_app(queues, **settings):
    custom = [CustomQueueConfig(name=name, priority=priority, max_concurrency=most) for name, priority, most in queues]
    return Horsies(AppConfig.for_database_url(
        URL, queue_mode=QueueMode.CUSTOM, custom_queues=custom, resilience=POLL, **settings
    ))

def add_tasks(app):
    for queue in app.config.all_queues:
        @app.task(f"sleep_{queue.name}", queue_name=queue.name)
        def sleep(seconds: float) -> TaskResult[int, TaskError]:
            time.sleep(seconds)
            return TaskResult(ok=os.getpid())

        @app.task(f"wait_{queue.name}", queue_name=queue.name)
        def wait(path: str) -> TaskResult[int, TaskError]:
            while not Path(path).exists():
                time.sleep(0.005)
            return TaskResult(ok=os.getpid())
    return app
"""
ASYNC = """
@app.task("async_a", queue_name="a")
async def async_a(seconds: float) -> TaskResult[int, TaskError]:
    await asyncio.sleep(seconds)
    return TaskResult(ok=os.getpid())
"""


def app_with(queues: Iterable[tuple[str, int, int | None]], settings: str = "") -> str:
    """The source of an app with these queues: names, priorities, limits."""
    return f"{APP}\napp = add_tasks(new_app({list(queues)!r}, {settings}))\n"


def send(tasks: ModuleType, name: str, number: int, argument: object) -> None:
    tasks.app.tasks[name].send_many([(argument,)] * number).unwrap()


def team(place: Workplace, number: int, *arguments: str) -> list[RunningWorker]:
    workers = [place.start(*arguments, ready=False) for _ in range(number)]
    return [worker.wait_until_ready() for worker in workers]


def in_flight(db: Db) -> Counter[str]:
    """How many tasks of each queue are claimed or running now, and of all as ''."""
    found = db.execute("SELECT queue_name FROM horsies_tasks WHERE status IN ('CLAIMED', 'RUNNING')")
    counts = Counter(entry["queue_name"] for entry in found)
    counts[""] = counts.total()
    return counts


def most_seen(db: Db) -> Counter[str]:
    """Look until everything is done; the most that was in flight at any look."""
    seen: Counter[str] = Counter()

    def is_done() -> bool:
        nonlocal seen
        seen |= in_flight(db)
        return db.execute("SELECT FROM horsies_tasks WHERE live LIMIT 1").rowcount == 0

    eventually(is_done, 40, "all tasks being done")
    return seen


def most_recorded(db: Db) -> Counter[str]:
    """The most that ran at any moment by what the tasks' own records say."""
    runs = db.execute("SELECT queue_name, started_at, completed_at FROM horsies_tasks").fetchall()
    most: Counter[str] = Counter()
    for name in {"", *(run["queue_name"] for run in runs)}:
        changes: list[tuple[datetime, int]] = []
        for run in runs:
            if name in ("", run["queue_name"]):
                changes += [(run["started_at"], +1), (run["completed_at"], -1)]
        running = 0
        for _, change in sorted(changes):
            running += change
            most[name] = max(most[name], running)
    return most


def test_a_limit_of_a_queue_holds_for_all_workers_and_is_used_up(workplace: Workplace, db: Db) -> None:
    workplace.write(URL + app_with([("api_calls", 1, 5), ("low", 100, 2)]))
    tasks = workplace.load()
    team(workplace, 2, "--processes=8")

    for queue in ("low", "api_calls"):
        send(tasks, f"sleep_{queue}", 20, 0.2)

    seen, recorded = most_seen(db), most_recorded(db)
    assert (recorded["api_calls"], recorded["low"]) == (5, 2)
    assert seen["api_calls"] <= 5
    assert seen["low"] <= 2


def test_the_limit_of_the_cluster_counts_both_kinds_of_task_and_every_spelling_of_the_database(
    workplace: Workplace, db: Db
) -> None:
    workplace.write(URL + app_with([("a", 1, None), ("b", 1, None)], "cluster_wide_cap=3") + ASYNC)
    tasks = workplace.load()
    _, _, where = workplace.database_url.partition("://")
    for spelling in ("postgres", "postgresql+psycopg"):
        workplace.env["HORSIES_DATABASE_URL"] = f"{spelling}://{where}"
        workplace.start("--processes=1", "--async-concurrency=1")

    send(tasks, "sleep_b", 12, 0.1)
    send(tasks, "async_a", 12, 0.1)

    seen, recorded = most_seen(db), most_recorded(db)
    assert recorded[""] == 3
    assert seen[""] <= 3
    ran = db.execute("SELECT count(DISTINCT claimed_by_worker_id) AS workers FROM horsies_tasks").fetchone()
    assert ran == {"workers": 2}


def test_four_limits_hold_at_once(workplace: Workplace, db: Db) -> None:
    queues = [("stripe", 1, 3), ("email", 50, 4), ("reports", 100, 2)]
    workplace.write(URL + app_with(queues, "cluster_wide_cap=6"))
    tasks = workplace.load()
    team(workplace, 2, "--processes=5")

    # The others have work left when the most urgent queue has none.
    for queue, number in (("reports", 16), ("email", 24), ("stripe", 12)):
        send(tasks, f"sleep_{queue}", number, 0.1)

    seen, recorded = most_seen(db), most_recorded(db)
    assert recorded == {"": 6, "stripe": 3, "email": 4, "reports": 2}
    assert seen <= recorded


def test_a_paused_queue_stands_still_and_one_without_a_limit_fills_the_worker(
    workplace: Workplace, db: Db
) -> None:
    office = staffed(workplace, app_with([("paused", 1, 0), ("open", 100, None)]), "--processes=4")
    gate = office.gate("open")

    send(office.tasks, "wait_paused", 3, str(gate))
    send(office.tasks, "wait_open", 9, str(gate))

    eventually(lambda: in_flight(db)["open"] == 4, what="a task in each process")
    gate.touch()
    done = "SELECT queue_name, status, count(*) AS tasks FROM horsies_tasks GROUP BY 1, 2 ORDER BY 1"
    eventually(
        lambda: (
            [tuple(entry.values()) for entry in db.execute(done)]
            == [("open", "COMPLETED", 9), ("paused", "PENDING", 3)]
        ),
        what="the open queue being done",
    )


def until_asleep(db: Db, queue: str) -> None:
    """Until the worker of a queue says that it waits, and no worker looks again by itself."""
    waits = "SELECT FROM horsies_workers WHERE waiting AND %s = ANY (queues)"
    eventually(lambda: db.execute(waits, (queue,)).rowcount == 1, what=f"the worker of {queue} waiting")
    looks = (
        "SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'horsies-worker'"
        " AND query_start > clock_timestamp() - interval '0.5 s'"
    )
    eventually(lambda: db.execute(looks).rowcount == 0, what="the last look being over")


def test_a_worker_that_waits_for_the_limit_starts_when_another_has_finished(
    workplace: Workplace, db: Db
) -> None:
    office = staffed(
        workplace, app_with([("a", 1, None), ("b", 1, None)], "cluster_wide_cap=1"), "--queues=a", "--processes=2"
    )  # fmt: skip
    workplace.start("--queues=b", "--processes=2")
    gate = office.gate("first")
    first = office.tasks.app.tasks["wait_a"].send(str(gate)).unwrap()
    until_status(db, first, "RUNNING")
    second = office.tasks.app.tasks["sleep_b"].send(0).unwrap()
    until_asleep(db, "b")
    assert row(db, second)["status"] == "PENDING"

    gate.touch()

    assert second.get(20_000).is_ok()
    assert row(db, second)["started_at"] >= row(db, first)["completed_at"]


LEASE = "cluster_wide_cap=1, claim_lease_ms=1_500"


def test_a_worker_that_waits_for_the_limit_starts_when_another_has_died(workplace: Workplace, db: Db) -> None:
    office = staffed(
        workplace, app_with([("a", 1, None), ("b", 1, None)], LEASE), "--queues=a", "--processes=1"
    )
    workplace.start("--queues=b", "--processes=1")
    first = office.tasks.app.tasks["wait_a"].send(str(office.gate("never"))).unwrap()
    until_status(db, first, "RUNNING")
    second = office.tasks.app.tasks["sleep_b"].send(0).unwrap()
    until_asleep(db, "b")
    assert row(db, second)["status"] == "PENDING"

    office.worker.signal(signal.SIGKILL)

    assert second.get(20_000).is_ok()
    assert row(db, first)["status"] == "FAILED"


def test_a_worker_that_was_taken_for_dead_goes_on_within_the_limit(workplace: Workplace, db: Db) -> None:
    office = staffed(workplace, app_with([("a", 1, 2), ("b", 1, None)], LEASE), "--queues=a", "--processes=1")
    workplace.start("--queues=b", "--processes=1")
    held = office.tasks.app.tasks["wait_a"].send(str(office.gate("never"))).unwrap()
    until_status(db, held, "RUNNING")
    office.worker.signal(signal.SIGSTOP)
    until_status(db, held, "FAILED")

    office.worker.signal(signal.SIGCONT)

    eventually(lambda: "goes on under a new id" in office.worker.log, what="the worker noticing")
    assert office.tasks.app.tasks["sleep_a"].send(0).unwrap().get(20_000).is_ok(), office.worker.log
    assert office.worker.process.poll() is None
    assert office.worker.stop() == 0


@pytest.mark.parametrize(("batch", "largest"), [(0, 8), (4, 4)])
def test_one_claim_takes_no_more_of_a_queue_than_a_batch(
    workplace: Workplace, db: Db, batch: int, largest: int
) -> None:
    workplace.write(URL + app_with([("a", 1, None)]))
    send(workplace.load(), "wait_a", 12, str(workplace.folder / "never"))

    workplace.start("--processes=8", f"--max-claim-batch={batch}")

    eventually(lambda: in_flight(db)["a"] == 8, what="a task in each process")
    claims = Counter(entry["claimed_at"] for entry in db.execute("SELECT claimed_at FROM horsies_tasks"))
    del claims[None]
    assert max(claims.values()) == largest


def test_a_worker_holds_no_more_unstarted_tasks_than_it_may(workplace: Workplace, db: Db) -> None:
    source = app_with([("a", 1, None)], "prefetch_buffer=9, claim_lease_ms=10_000")
    office = staffed(workplace, source, "--processes=1", "--max-claim-per-worker=2")
    gate = office.gate("first")
    first = office.tasks.app.tasks["wait_a"].send(str(gate)).unwrap()
    until_status(db, first, "RUNNING")
    send(office.tasks, "sleep_a", 12, 0.05)
    eventually(lambda: in_flight(db)["a"] == 3, what="two tasks held")

    gate.touch()

    assert most_seen(db)["a"] == 3


def test_a_worker_may_have_limits_and_priorities_of_its_own(workplace: Workplace, db: Db) -> None:
    workplace.write(URL + app_with([("a", 1, 5), ("b", 100, 5)]))
    workplace.write(
        """
from app import app
if __name__ == "__main__":
    app.run_worker(WorkerConfig(
        processes=3, app_locator="app:app",
        queue_max_concurrency={"a": None, "b": 2}, queue_priorities={"a": 50, "b": 2},
    ))
""",
        name="script.py",
    )
    tasks = workplace.load()
    gate = workplace.folder / "gate"
    for name in ("wait_a", "wait_b"):
        send(tasks, name, 3, str(gate))
    with subprocess.Popen([sys.executable, "script.py"], cwd=workplace.folder, env=workplace.env) as process:
        try:
            eventually(lambda: in_flight(db)[""] == 3, what="a task in each process")
            assert in_flight(db) == {"": 3, "a": 1, "b": 2}
            gate.touch()
            most_seen(db)
            process.terminate()
            assert process.wait(20) == 0
        finally:
            process.kill()
    assert most_recorded(db)["b"] == 2


def test_a_short_queue_is_not_starved_by_a_long_one_of_the_same_priority(
    workplace: Workplace, db: Db
) -> None:
    workplace.write(URL + app_with([("many", 50, None), ("few", 50, None)]))
    tasks = workplace.load()
    send(tasks, "sleep_many", 400, 0)
    send(tasks, "sleep_few", 5, 0)

    workplace.start("--processes=2")

    most_seen(db)
    order = "SELECT queue_name FROM horsies_tasks ORDER BY started_at"
    ended = [entry["queue_name"] for entry in db.execute(order)]
    assert "few" not in ended[60:]


def test_a_worker_logs_its_limits_when_it_starts(workplace: Workplace) -> None:
    office = staffed(
        workplace, "app = Horsies(AppConfig.for_database_url(URL, cluster_wide_cap=20))", "--processes=4"
    )

    logged = [line for line in office.worker.log.splitlines() if "Concurrency config" in line]

    expected = (
        "Concurrency config: processes=4, cluster_wide_cap=20, max_claim_per_worker=4, max_claim_batch=0"
    )
    assert len(logged) == 1
    assert logged[0].endswith(expected)
