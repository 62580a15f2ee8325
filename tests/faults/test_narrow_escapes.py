"""What happened in drills, once, at the worst moment: each of these left a task or a worker behind."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import datetime

import psycopg
import pytest

from tests.e2e.observing import Db, children, lines, row, until_status
from tests.e2e.office import staffed
from tests.support.proxy import Proxy
from tests.support.waiting import eventually
from tests.support.workers import RunningWorker, Workplace

APP = """
app = Horsies(AppConfig.for_database_url(
    URL, SETTINGS resilience=WorkerResilienceConfig(db_retry_initial_ms=100, db_retry_max_ms=500)
))

@app.task("note")
def note(path: str) -> TaskResult[int, TaskError]:
    with open(path, "a") as file:
        file.write("ran\\n")
    return TaskResult(ok=os.getpid())

@app.task("rated", rate_limit="1000/s")
def rated(path: str) -> TaskResult[int, TaskError]:
    return note(path)

@app.task("wait_for")
def wait_for(path: str) -> TaskResult[int, TaskError]:
    while not Path(path).exists():
        time.sleep(0.005)
    return TaskResult(ok=os.getpid())
"""


@pytest.fixture
def proxy(workplace: Workplace) -> Iterator[Proxy]:
    """Workers reach the database through this; the test and its producer do not."""
    with Proxy(workplace.database_url) as proxy:
        workplace.env["HORSIES_DATABASE_URL"] = proxy.url
        yield proxy


def test_a_prefetched_task_whose_start_was_not_confirmed_is_run(
    workplace: Workplace, proxy: Proxy, db: Db
) -> None:
    ahead = APP.replace("SETTINGS", "prefetch_buffer=4, claim_lease_ms=10_000,")
    office = staffed(workplace, ahead, "--processes=1")
    gate, path = office.gate("first"), office.gate("noted")
    first = office.tasks.wait_for.send(str(gate)).unwrap()
    until_status(db, first, "RUNNING")
    second = office.tasks.note.send(str(path)).unwrap()
    until_status(db, second, "CLAIMED")

    proxy.lose_reply(of=b"SET status = 'RUNNING', started_at = now()")
    gate.touch()

    assert second.get(20_000).is_ok()
    assert proxy.lost == 1
    assert lines(path) == ["ran"]


def test_a_claim_that_comes_true_after_its_connection_was_lost_is_given_back(
    workplace: Workplace, proxy: Proxy, db: Db
) -> None:
    office = staffed(workplace, APP.replace("SETTINGS", ""), "--processes=1")
    path = office.gate("noted")
    with psycopg.connect(workplace.database_url) as holder:
        holder.execute("SELECT FROM horsies_rates FOR UPDATE")  # what a claim must lock, too
        handle = office.tasks.rated.send(str(path)).unwrap()
        before = eventually(lambda: _waiting(db), what="the claim waiting")
        proxy.cut()
        eventually(lambda: _waiting(db) - before, what="another claim waiting")

    assert handle.get(20_000).is_ok()
    assert lines(path) == ["ran"]


def _waiting(db: Db) -> set[int]:
    """The workers' sessions that wait for a lock."""
    query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return {session["pid"] for session in db.execute(query).fetchall()}


def test_a_repeated_send_whose_rollback_is_not_confirmed_is_acknowledged(
    workplace: Workplace, db: Db
) -> None:
    with Proxy(workplace.database_url) as proxy:
        office = staffed(workplace, APP.replace("SETTINGS", ""), "--processes=1")
        workplace.database_url = proxy.url
        tasks, path = workplace.load(), office.gate("noted")
        proxy.lose_reply(of=b"INSERT INTO horsies_tasks_live")
        failure = tasks.note.send(str(path)).unwrap_err()
        until_status(db, failure.task_id, "COMPLETED")

        proxy.lose_reply(of=b"ROLLBACK")  # the task has ended, so the second row is taken back
        handle = tasks.note.retry_send(failure).unwrap()

        assert proxy.lost == 2
        assert handle.task_id == failure.task_id
        assert handle.get(20_000).is_ok()
        assert lines(path) == ["ran"]


def test_a_worker_that_was_declared_dead_is_known_under_its_new_name_before_it_claims(
    workplace: Workplace, db: Db
) -> None:
    settings = "cluster_wide_cap=2, claim_lease_ms=1_500,"
    office = staffed(workplace, APP.replace("SETTINGS", settings), "--processes=1")
    other = workplace.start("--processes=1")
    office.worker.signal(signal.SIGSTOP)
    dead = "SELECT 1 FROM horsies_workers WHERE dead_at IS NOT NULL"
    eventually(lambda: db.execute(dead).fetchone(), what="the frozen worker being declared dead")
    assert other.stop() == 0

    with psycopg.connect(workplace.database_url) as holder:
        holder.execute("LOCK horsies_task_definitions")  # which holds up its registration
        office.worker.signal(signal.SIGCONT)
        eventually(lambda: _waiting(db), what="the registration waiting")
        handle = office.tasks.note.send(str(office.gate("noted"))).unwrap()
        waited = "SELECT 1 FROM horsies_tasks WHERE id = %s AND clock_timestamp() > sent_at + interval '1 s'"
        eventually(lambda: db.execute(waited, (handle.task_id,)).fetchone(), what="time for a claim")
        assert row(db, handle)["status"] == "PENDING"

    assert handle.get(20_000).ok_value in children(office.worker.pid)


def test_a_worker_that_was_away_itself_takes_nobody_for_dead(workplace: Workplace, db: Db) -> None:
    office = staffed(workplace, APP.replace("SETTINGS", "claim_lease_ms=4_500,"), "--processes=1")
    gate = office.gate("first")
    handle = office.tasks.wait_for.send(str(gate)).unwrap()
    until_status(db, handle, "RUNNING")
    other = workplace.start("--processes=1")
    both = (office.worker, other)
    for worker in both:
        worker.signal(signal.SIGSTOP)  # as when their machine is paused
    late = "SELECT 1 FROM horsies_workers HAVING count(*) = 2 AND max(lease_expires_at) < now()"
    eventually(lambda: db.execute(late).fetchone(), what="both leases running out")

    other.signal(signal.SIGCONT)
    for _ in range(2):
        before = _last_beat(db, other)
        eventually(lambda before=before: _last_beat(db, other) > before, what="a beat of the other one")
    office.worker.signal(signal.SIGCONT)
    gate.touch()

    assert handle.get(20_000).ok_value in children(office.worker.pid)


def _last_beat(db: Db, worker: RunningWorker) -> datetime:
    found = db.execute("SELECT last_beat_at FROM horsies_workers WHERE pid = %s", (worker.pid,)).fetchone()
    assert found is not None
    return found["last_beat_at"]
