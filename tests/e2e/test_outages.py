"""The database goes away and comes back: the worker stays, and no result is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from horsies import TaskResult
from tests.e2e.observing import Db, children, lines, row, sessions, until_status
from tests.e2e.office import URL, Office, staffed
from tests.support.proxy import Proxy
from tests.support.waiting import eventually
from tests.support.workers import Workplace

APP = """
app = Horsies(AppConfig.for_database_url(
    URL, resilience=WorkerResilienceConfig(db_retry_initial_ms=100, db_retry_max_ms=500)
))

@app.task("note")
def note(path: str) -> TaskResult[int, TaskError]:
    with open(path, "a") as file:
        file.write("ran\\n")
    return TaskResult(ok=os.getpid())

@app.task("wait_for")
def wait_for(path: str) -> TaskResult[int, TaskError]:
    Path(f"{path}-begun-{os.getpid()}").touch()
    with open(f"{path}.runs", "a") as file:
        file.write("ran\\n")
    while not Path(path).exists():
        time.sleep(0.005)
    return TaskResult(ok=os.getpid())
"""


UNDO_CLAIM = """UPDATE horsies_tasks_live
   SET status = 'PENDING', claim_seq = claim_seq - 1, claimed_by_worker_id = NULL, claimed_at = NULL, started_at = NULL,
       worker_pid = NULL
 WHERE id = %s"""


@pytest.fixture
def proxy(workplace: Workplace) -> Iterator[Proxy]:
    """Workers reach the database through this; the test and its producer do not."""
    with Proxy(workplace.database_url) as proxy:
        workplace.env["HORSIES_DATABASE_URL"] = proxy.url
        yield proxy


def _cut_off(proxy: Proxy) -> None:
    proxy.refusing = True
    proxy.cut()


def test_a_worker_started_while_the_database_is_away_waits_and_comes_up(
    workplace: Workplace, proxy: Proxy, db: Db
) -> None:
    workplace.write(URL + APP)
    path = workplace.folder / "ran"
    handle = workplace.load().note.send(str(path)).unwrap()
    proxy.refusing = True
    worker = workplace.start("--processes=1", ready=False)
    eventually(lambda: worker.log.count("cannot reach PostgreSQL") >= 2, what="two tries to reach it")
    assert worker.process.poll() is None

    proxy.refusing = False

    assert handle.get(20_000).is_ok()
    assert lines(path) == ["ran"]


def test_an_idle_worker_outlives_an_outage(workplace: Workplace, proxy: Proxy, db: Db) -> None:
    office = staffed(workplace, APP, "--processes=1")
    assert office.tasks.note.send(str(office.gate("before"))).unwrap().get(20_000).is_ok()

    _cut_off(proxy)
    eventually(lambda: office.worker.log.count("cannot reach PostgreSQL") >= 2, what="two tries to reach it")
    handle = office.tasks.note.send(str(office.gate("meanwhile"))).unwrap()
    proxy.refusing = False

    assert handle.get(20_000).ok_value in children(office.worker.pid)
    assert office.worker.process.poll() is None


def test_a_result_that_came_during_an_outage_is_stored_after_it(
    workplace: Workplace, proxy: Proxy, db: Db
) -> None:
    office = staffed(workplace, APP, "--processes=1")
    gate = office.gate("outage")
    handle = office.tasks.wait_for.send(str(gate)).unwrap()
    pid = until_status(db, handle, "RUNNING")["worker_pid"]

    _cut_off(proxy)
    gate.touch()
    eventually(lambda: office.worker.log.count("cannot reach PostgreSQL") >= 2, what="two tries to reach it")
    assert row(db, handle)["status"] == "RUNNING"
    proxy.refusing = False

    assert handle.get(20_000) == TaskResult(ok=pid)
    assert len(lines(office.place.folder / f"{gate.name}.runs")) == 1


def test_tasks_outlive_the_end_of_every_session_of_their_worker(workplace: Workplace, db: Db) -> None:
    office = staffed(workplace, APP, "--processes=2")
    gate = office.gate("sessions")
    handles = [office.tasks.wait_for.send(str(gate)).unwrap() for _ in range(2)]
    pids = [until_status(db, handle, "RUNNING")["worker_pid"] for handle in handles]
    for pid in pids:  # as long as its code has not begun, a task is given back
        eventually(office.gate(f"sessions-begun-{pid}").exists, what="the task having begun")

    for _ in range(3):
        ended = [session["pid"] for session in sessions(db)]
        db.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS pid", (ended,))
        eventually(lambda ended=ended: _is_back(db, ended), what="the heart beating again")
    gate.touch()

    assert [handle.get(20_000) for handle in handles] == [TaskResult(ok=pid) for pid in pids]
    assert [row(db, handle)["claim_seq"] for handle in handles] == [1, 1]
    assert office.worker.process.poll() is None


def _is_back(db: Db, ended: list[int]) -> bool:
    """Whether the lease is renewed over a new session; the others are opened again when they are needed."""
    beating = {
        session["pid"] for session in sessions(db) if session["application_name"] == "horsies-heartbeat"
    }
    return bool(beating) and not beating & set(ended)


def test_no_task_is_lost_or_run_twice_while_sessions_keep_dying(workplace: Workplace, db: Db) -> None:
    office: Office = staffed(workplace, APP, "--processes=2")
    path = office.gate("many")
    handles = office.tasks.note.send_many([(str(path),)] * 300).unwrap()
    left = "SELECT count(*) AS tasks FROM horsies_tasks WHERE live"

    for _ in range(5):
        before = db.execute(left).fetchone()["tasks"]
        db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'horsies-worker' AND datname = current_database()"
        )
        eventually(
            lambda before=before: db.execute(left).fetchone()["tasks"] < before or before == 0,
            what="progress",
        )

    assert all(handle.get(30_000).is_ok() for handle in handles)
    assert len(lines(path)) == 300


def test_a_worker_that_may_not_wait_for_ever_gives_up(workplace: Workplace, proxy: Proxy) -> None:
    workplace.write(URL + APP.replace("db_retry_max_ms=500", "db_retry_max_ms=500, db_retry_max_attempts=2"))
    proxy.refusing = True

    worker = workplace.start("--processes=1", ready=False)

    assert worker.wait() == 1
    assert "cannot reach PostgreSQL" in worker.log
    assert "Traceback" not in worker.log


def test_connections_over_which_nothing_passes_any_more_are_given_up(
    workplace: Workplace, proxy: Proxy, db: Db
) -> None:
    office = staffed(workplace, APP, "--processes=1")
    gate = office.gate("during")
    during = office.tasks.wait_for.send(str(gate)).unwrap()
    eventually(lambda: list(office.place.folder.glob("gate-during-begun-*")), 20, "the task having begun")
    owner = row(db, during)["claimed_by_worker_id"]

    proxy.strand()
    gate.touch()

    assert during.get(60_000).is_ok()
    assert row(db, during)["claimed_by_worker_id"] == owner
    after = office.tasks.note.send(str(office.gate("after"))).unwrap()
    assert after.get(20_000).is_ok()
    assert "declared dead" not in office.worker.log


HASTY = """
app = Horsies(AppConfig.for_database_url(
    URL,
    claim_lease_ms=3_000,
    resilience=WorkerResilienceConfig(db_retry_initial_ms=100, db_retry_max_ms=500),
    recovery=RecoveryConfig(crashed_worker_recovery_grace_ms=0),
))
""" + APP.partition("))\n")[2]


def test_whoever_comes_back_first_from_an_outage_takes_nobody_else_for_dead(
    workplace: Workplace, db: Db
) -> None:
    with Proxy(workplace.database_url) as first, Proxy(workplace.database_url) as second:
        workplace.env["HORSIES_DATABASE_URL"] = first.url
        office = staffed(workplace, HASTY, "--processes=1")
        workplace.env["HORSIES_DATABASE_URL"] = second.url
        gate = office.gate("long")
        handle = office.tasks.wait_for.send(str(gate)).unwrap()
        until_status(db, handle, "RUNNING")
        other = workplace.start("--processes=1")
        for proxy in (first, second):
            _cut_off(proxy)
        eventually(lambda: _leases_are_over(db), 20, "both leases having run out")

        second.refusing = False
        eventually(lambda: _beats(db, other.pid), 20, "the other worker being back")
        first.refusing = False
        gate.touch()

        assert handle.get(20_000).is_ok()
        assert lines(office.place.folder / "gate-long.runs") == ["ran"]
        assert "declared dead" not in office.worker.log


def _leases_are_over(db: Db) -> bool:
    found = db.execute("SELECT bool_and(lease_expires_at < now()) AS over FROM horsies_workers").fetchone()
    return bool(found and found["over"])


def _beats(db: Db, pid: int) -> bool:
    query = "SELECT lease_expires_at > now() AS holds FROM horsies_workers WHERE pid = %s"
    found = db.execute(query, (pid,)).fetchone()
    return bool(found and found["holds"])


def test_a_task_whose_claim_the_database_has_lost_runs_again_and_only_that_run_is_stored(
    workplace: Workplace, proxy: Proxy, db: Db
) -> None:
    """A crash of the server can undo a claim that was not flushed, and so can a failover."""
    office = staffed(workplace, APP, "--processes=2")
    gate = office.gate("undone")
    handle = office.tasks.wait_for.send(str(gate)).unwrap()
    first = until_status(db, handle, "RUNNING")
    eventually(lambda: len(lines(Path(f"{gate}.runs"))) == 1, what="the first run")
    _cut_off(proxy)
    eventually(lambda: not sessions(db), what="the end of the sessions of the worker")

    db.execute(UNDO_CLAIM, (handle.task_id,))
    proxy.refusing = False

    eventually(lambda: len(lines(Path(f"{gate}.runs"))) == 2, what="the second run")
    gate.touch()
    result = handle.get(30_000).unwrap()
    stored = row(db, handle)
    assert "The database has lost the claims of 1 task" in office.worker.log
    assert stored["claim_seq"] == first["claim_seq"]
    assert result == stored["worker_pid"] != first["worker_pid"]


def test_a_result_that_the_database_has_lost_is_stored_again_and_the_task_does_not_run_twice(
    workplace: Workplace, proxy: Proxy, db: Db
) -> None:
    """A failover to an asynchronous standby can undo the end of a task."""
    office = staffed(workplace, APP, "--processes=1")
    gate = office.gate("ended")
    handle = office.tasks.wait_for.send(str(gate)).unwrap()
    until_status(db, handle, "RUNNING")
    db.execute("CREATE TABLE before_the_end AS SELECT * FROM horsies_tasks WHERE id = %s", (handle.task_id,))
    gate.touch()
    ended = until_status(db, handle, "COMPLETED")
    _cut_off(proxy)
    eventually(lambda: not sessions(db), what="the end of the sessions of the worker")

    with db.transaction():
        db.execute("SET LOCAL session_replication_role = replica")  # else what has ended cannot be changed
        db.execute("DELETE FROM horsies_tasks WHERE id = %s", (handle.task_id,))
        db.execute("DELETE FROM horsies_attempts WHERE task_id = %s", (handle.task_id,))
        db.execute("INSERT INTO horsies_tasks SELECT * FROM before_the_end")
    assert row(db, handle)["status"] == "RUNNING"
    proxy.refusing = False

    assert until_status(db, handle, "COMPLETED")["result"] == ended["result"]
    assert lines(Path(f"{gate}.runs")) == ["ran"]
    assert "The database has lost the outcomes of 1 task" in office.worker.log
