"""A worker sleeps until it is told or until something is due, and never misses a task for it."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from horsies import OutcomeCode, TaskHandle
from tests.e2e.observing import Db, lines, row, sessions, until_status
from tests.e2e.office import URL, Office, staffed
from tests.support.waiting import eventually
from tests.support.workers import Workplace

# With a poll of a minute, what happens within seconds was not found by the poll.
APP = """
app = Horsies(AppConfig.for_database_url(
    URL, resilience=WorkerResilienceConfig(notify_poll_interval_ms=60_000), prefetch_buffer=4, claim_lease_ms=10_000
))

@app.task("note")
def note(path: str = "") -> TaskResult[float, TaskError]:
    if path:
        with open(path, "a") as file:
            file.write("ran\\n")
    return TaskResult(ok=time.time())

@app.task("wait_for")
def wait_for(path: str) -> TaskResult[int, TaskError]:
    while not Path(path).exists():
        time.sleep(0.005)
    return TaskResult(ok=os.getpid())
"""
SOON = timedelta(seconds=5)


@pytest.fixture(scope="module")
def office(shared_workplace: Workplace) -> Office:
    return staffed(shared_workplace, APP, "--processes=1")


def _until_idle(db: Db) -> None:
    query = "SELECT bool_and(waiting) AS waiting FROM horsies_workers WHERE dead_at IS NULL"
    eventually(lambda: db.execute(query).fetchone()["waiting"], what="the worker saying that it waits")


def test_an_idle_worker_is_woken_by_a_send(office: Office, shared_db: Db) -> None:
    for _ in range(5):
        _until_idle(shared_db)
        handle = office.tasks.note.send().unwrap()

        assert handle.get(10_000).is_ok()
        stored = row(shared_db, handle)
        assert stored["started_at"] - stored["enqueued_at"] < SOON


def test_an_idle_worker_is_woken_by_sends_that_share_an_insert(office: Office, shared_db: Db) -> None:
    async def send_all() -> list[TaskHandle[float]]:
        return await asyncio.gather(*(office.tasks.note.delay_async() for _ in range(50)))

    for _ in range(3):
        _until_idle(shared_db)

        handles = asyncio.run(send_all())

        assert all(handle.get(10_000).is_ok() for handle in handles)
        rows = [row(shared_db, handle) for handle in handles]
        assert len({stored["sent_at"] for stored in rows}) < 50
        assert all(stored["started_at"] - stored["enqueued_at"] < SOON for stored in rows)


def test_an_idle_worker_is_woken_by_the_commit_of_a_callers_transaction(
    office: Office, shared_db: Db
) -> None:
    _until_idle(shared_db)
    with psycopg.connect(office.place.database_url) as connection:
        handle = office.tasks.note.with_options(conn=connection).send().unwrap()
        assert shared_db.execute("SELECT FROM horsies_tasks WHERE id = %s", (handle.task_id,)).rowcount == 0

    assert handle.get(10_000).is_ok()


def test_an_idle_worker_asks_the_database_for_nothing_but_its_lease(office: Office, shared_db: Db) -> None:
    _until_idle(shared_db)
    last = (
        "SELECT pid, query, query_start, coalesce(query_start < clock_timestamp() - interval '1 s', true) AS is_over"
        " FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'horsies-worker' ORDER BY pid"
    )
    eventually(
        lambda: all(entry["is_over"] for entry in shared_db.execute(last)), what="the last look being over"
    )
    before = shared_db.execute(last).fetchall()
    assert before

    until = time.monotonic() + 3  # the promise is that nothing happens for a while
    eventually(lambda: time.monotonic() > until)

    assert shared_db.execute(last).fetchall() == before


def test_a_worker_that_has_enough_to_do_does_not_ask_to_be_woken(workplace: Workplace, db: Db) -> None:
    office = staffed(workplace, APP, "--processes=1", "--prefetch-buffer=500")
    _until_idle(db)

    office.tasks.note.send_many([()] * 20_000).unwrap()

    works = (
        "SELECT FROM horsies_workers WHERE NOT waiting AND NOT waiting_async"
        " AND EXISTS (SELECT FROM horsies_tasks_live WHERE status = 'PENDING')"
    )
    eventually(lambda: db.execute(works).rowcount == 1, what="the worker saying that it does not wait")
    _until_idle(db)
    assert db.execute("SELECT FROM horsies_tasks_live").rowcount == 0


def test_a_scheduled_task_starts_when_it_is_due_and_not_before(office: Office, shared_db: Db) -> None:
    _until_idle(shared_db)
    handle = office.tasks.note.schedule(2).unwrap()
    sent = row(shared_db, handle)

    assert handle.get(20_000).is_ok()

    stored = row(shared_db, handle)
    assert sent["enqueued_at"] - sent["sent_at"] == timedelta(seconds=2)
    assert timedelta(0) <= stored["started_at"] - sent["enqueued_at"] < SOON
    assert stored["sent_at"] == sent["sent_at"]


def test_tasks_due_moments_apart_all_start(office: Office, shared_db: Db) -> None:
    """The second of each pair falls due while the worker is busy with the first, or asks when to wake up next."""
    _until_idle(shared_db)
    first = datetime.now(UTC) + timedelta(seconds=1)
    etas = [
        first + timedelta(seconds=0.3 * milliseconds, milliseconds=offset)
        for milliseconds in range(1, 9)
        for offset in (0, milliseconds)
    ]
    handles = [office.tasks.note.with_options(eta=eta).send().unwrap() for eta in etas]

    results = [handle.get(20_000) for handle in handles]

    assert [result.is_ok() for result in results] == [True] * len(etas)


def test_a_nearer_task_is_not_held_up_by_a_farther_one(office: Office, shared_db: Db) -> None:
    far = office.tasks.note.schedule(3_600).unwrap()
    _until_idle(shared_db)
    near = office.tasks.note.schedule(1).unwrap()
    eta = datetime.now(UTC) + timedelta(seconds=1)
    urgent = office.tasks.note.with_options(eta=eta, priority=1).send().unwrap()

    for handle in (near, urgent):
        assert handle.get(20_000).is_ok()
        stored = row(shared_db, handle)
        assert timedelta(0) <= stored["started_at"] - stored["enqueued_at"] < SOON
    assert row(shared_db, far)["status"] == "PENDING"


def test_a_task_whose_time_ran_out_before_a_worker_came_never_runs(workplace: Workplace, db: Db) -> None:
    workplace.write(URL + APP)
    tasks = workplace.load()
    path = workplace.folder / "expired"
    soon = datetime.now(UTC) + timedelta(milliseconds=300)
    handle = tasks.note.with_options(good_until=soon).send(str(path)).unwrap()
    eventually(lambda: datetime.now(UTC) > soon, what="its time running out")

    workplace.start("--processes=1")

    assert handle.get(20_000).err_value.error_code is OutcomeCode.TASK_EXPIRED
    stored = row(db, handle)
    assert (stored["status"], stored["error_code"]) == ("EXPIRED", "TASK_EXPIRED")
    assert lines(path) == []
    assert handle.info(include_attempts=True).unwrap().attempts == ()


def test_a_task_expires_in_time_while_the_worker_sleeps(office: Office, shared_db: Db) -> None:
    _until_idle(shared_db)
    soon = datetime.now(UTC) + timedelta(seconds=1)
    later = soon + timedelta(hours=1)
    handle = office.tasks.note.with_options(good_until=soon, eta=later).send().unwrap()

    stored = until_status(shared_db, handle, "EXPIRED")

    assert stored["terminal_at"] - stored["good_until"] < SOON


def test_a_claimed_task_whose_time_runs_out_before_it_starts_never_runs(workplace: Workplace, db: Db) -> None:
    # A worker that has seen only short tasks would leave it for others while its child is held up: this one is new.
    office = staffed(workplace, APP, "--processes=1")
    gate, path = office.gate("claimed"), office.gate("claimed-and-late")
    blocker = office.tasks.wait_for.send(str(gate)).unwrap()
    until_status(db, blocker, "RUNNING")
    soon = datetime.now(UTC) + timedelta(seconds=3)
    handle = office.tasks.note.with_options(good_until=soon).send(str(path)).unwrap()
    until_status(db, handle, "CLAIMED")
    eventually(lambda: datetime.now(UTC) > soon, what="its time running out")

    gate.touch()

    assert handle.get(20_000).err_value.error_code is OutcomeCode.TASK_EXPIRED
    assert lines(path) == []
    assert row(db, handle)["status"] == "EXPIRED"


def test_without_notifications_tasks_start_within_the_poll(workplace: Workplace, db: Db) -> None:
    source = APP.replace("60_000", "1_000")
    office = staffed(workplace, source, "--processes=1")
    for table in ("horsies_tasks", "horsies_tasks_live"):
        db.execute(f"DROP TRIGGER horsies_tasks_new ON {table}")
    _until_idle(db)

    for _ in range(3):
        assert office.tasks.note.send().unwrap().get(10_000).is_ok()


def test_a_lost_listener_is_replaced_and_wakes_the_worker_again(workplace: Workplace, db: Db) -> None:
    office = staffed(workplace, APP, "--processes=1")
    _until_idle(db)
    (listener,) = [entry["pid"] for entry in sessions(db) if "LISTEN" in entry["query"]]

    db.execute("SELECT pg_terminate_backend(%s)", (listener,))
    handle = office.tasks.note.send().unwrap()

    assert handle.get(20_000).is_ok()
    eventually(lambda: any("LISTEN" in entry["query"] for entry in sessions(db)), what="a listener again")
    _until_idle(db)
    assert office.tasks.note.send().unwrap().get(20_000).is_ok()


def test_a_worker_that_was_not_told_finds_the_task_and_asks_whether_it_is_listened_for(
    workplace: Workplace, db: Db
) -> None:
    office = staffed(workplace, APP.replace("60_000", "1_000"), "--processes=1")
    _until_idle(db)
    db.execute("ALTER TABLE horsies_tasks_live DISABLE TRIGGER horsies_tasks_new")

    mine = "FROM pg_stat_activity WHERE datname = current_database() AND application_name"
    at_rest = f"SELECT now() - max(state_change) > '0.3 s' AS rests {mine} = 'horsies-worker'"
    asked = f"SELECT {mine} = 'horsies-listener' AND query = 'SELECT pg_listening_channels()'"

    eventually(lambda: db.execute(at_rest).fetchone()["rests"], what="the worker waiting to be told")
    until_status(db, office.tasks.note.send().unwrap(), "COMPLETED")

    eventually(lambda: db.execute(asked).rowcount, what="the question")
