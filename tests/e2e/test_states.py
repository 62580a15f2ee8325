"""What a worker says of itself is so: its state, what it uses, and which of its tasks have run for long."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.e2e.observing import Db, descendants, row, until_status
from tests.e2e.office import Office, staffed
from tests.support.proxy import Proxy
from tests.support.waiting import eventually
from tests.support.workers import Workplace

# A lease of two seconds, so that a state that is only told with a beat is told soon.
APP = """
app = Horsies(AppConfig(
    broker=PostgresConfig(database_url=URL),
    queue_mode=QueueMode.CUSTOM,
    custom_queues=[
        CustomQueueConfig(name="mail", priority=2, max_concurrency=None),
        CustomQueueConfig(name="bulk", priority=50, max_concurrency=None),
    ],
    prefetch_buffer=PREFETCH,
    claim_lease_ms=2_000,
    recovery=RecoveryConfig(
        worker_state_snapshot_interval_ms=OFTEN, runner_heartbeat_interval_ms=OFTEN, check_interval_ms=OFTEN
    ),
    resilience=WorkerResilienceConfig(db_retry_initial_ms=100, db_retry_max_ms=500),
    retention=RetentionConfig(retention_sweep_interval_s=1),
))

@app.task("wait_for", queue_name="mail")
def wait_for(path: str) -> TaskResult[int, TaskError]:
    while not Path(path).exists():
        time.sleep(0.005)
    return TaskResult(ok=os.getpid())

@app.task("note", queue_name="mail")
def note() -> TaskResult[int, TaskError]:
    return TaskResult(ok=os.getpid())

@app.task("has_loaded", queue_name="mail")
def has_loaded(module: str) -> TaskResult[bool, TaskError]:
    return TaskResult(ok=module in sys.modules)

@app.task("hold_memory", queue_name="mail")
def hold_memory(path: str) -> TaskResult[int, TaskError]:
    held = b"x" * 80_000_000
    while not Path(path).exists():
        time.sleep(0.005)
    return TaskResult(ok=len(held))
"""

NEVER = 120_000  # milliseconds; longer than any test


def _office(place: Workplace, *arguments: str, every_ms: int = 1_000, prefetch: int = 0) -> Office:
    source = APP.replace("OFTEN", str(every_ms)).replace("PREFETCH", str(prefetch))
    return staffed(place, source, *(arguments or ("--processes=1",)))


def _snapshots(db: Db) -> list[dict[str, Any]]:
    return db.execute("SELECT * FROM horsies_worker_states ORDER BY id").fetchall()


def _until_snapshot(db: Db, after: int = 0, **facts: Any) -> dict[str, Any]:
    """A snapshot later than the one with this id that says so."""

    def found() -> list[dict[str, Any]]:
        later = [entry for entry in _snapshots(db) if entry["id"] > after]
        return [entry for entry in later if all(entry[name] == fact for name, fact in facts.items())]

    return eventually(found, what=f"a snapshot with {facts}")[0]


def _heartbeats(db: Db, task_id: str) -> list[dict[str, Any]]:
    query = "SELECT * FROM horsies_heartbeats WHERE task_id = %s ORDER BY id"
    return db.execute(query, (task_id,)).fetchall()


def _until_state(db: Db, state: str) -> None:
    query = "SELECT state FROM horsies_workers"
    eventually(lambda: db.execute(query).fetchall() == [{"state": state}], what=f"the worker being {state}")


def _memory_mb(*pids: int) -> float:
    """Resident memory as the kernel tells it."""
    page_mb = os.sysconf("SC_PAGE_SIZE") / 1_048_576
    return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page_mb for pid in pids)


def test_a_worker_says_soon_after_its_start_what_it_is(workplace: Workplace, db: Db) -> None:
    office = _office(
        workplace, "--processes=2", "--queues=mail", "--max-claim-batch=7", every_ms=NEVER, prefetch=3
    )

    said = _until_snapshot(db)

    registered = db.execute("SELECT * FROM horsies_workers").fetchone()
    assert said["worker_id"] == registered["worker_id"]
    assert said["worker_started_at"] == registered["started_at"] <= said["snapshot_at"]
    assert (said["hostname"], said["pid"], said["processes"]) == (socket.gethostname(), office.worker.pid, 2)
    assert (said["state"], said["tasks_running"], said["tasks_claimed"]) == ("idle", 0, 0)
    assert (said["max_claim_batch"], said["max_claim_per_worker"], said["cluster_wide_cap"]) == (7, 5, None)
    assert (said["queues"], said["queue_priorities"]) == (["mail"], {"mail": 2})
    assert said["queue_max_concurrency"] == {"mail": None}
    assert said["recovery_config"]["worker_state_snapshot_interval_ms"] == NEVER
    assert 0 < said["memory_percent"] < 100
    assert said["cpu_percent"] > 0
    assert said["current_task_ids"] == []


def test_the_memory_of_the_parent_and_of_its_descendants_are_told_apart(workplace: Workplace, db: Db) -> None:
    office = _office(workplace, "--processes=2")
    gate = office.gate("memory")
    before = _until_snapshot(db, state="idle")
    handle = office.tasks.hold_memory.send(str(gate)).unwrap()
    until_status(db, handle, "RUNNING")

    def agrees() -> bool:
        said = _snapshots(db)[-1]
        return said["children_memory_mb"] == pytest.approx(
            _memory_mb(*descendants(office.worker.pid)), rel=0.05
        ) and said["memory_usage_mb"] == pytest.approx(_memory_mb(office.worker.pid), rel=0.05)

    eventually(
        lambda: _snapshots(db)[-1]["children_memory_mb"] > before["children_memory_mb"] + 70,
        what="the memory",
    )
    eventually(agrees, what="the same figures as the kernel's")
    assert _snapshots(db)[-1]["memory_usage_mb"] < before["memory_usage_mb"] + 40
    gate.touch()


def test_a_snapshot_shows_what_runs_and_what_is_held(workplace: Workplace, db: Db) -> None:
    office = _office(workplace, prefetch=2)
    gate = office.gate("shown")
    running = office.tasks.wait_for.send(str(gate)).unwrap()
    until_status(db, running, "RUNNING")
    held = [office.tasks.note.send().unwrap() for _ in range(2)]
    for handle in held:
        until_status(db, handle, "CLAIMED")

    said = _until_snapshot(db, state="busy", tasks_claimed=2)
    gate.touch()

    assert (said["tasks_running"], list(map(str, said["current_task_ids"]))) == (1, [running.task_id])
    _until_snapshot(db, after=said["id"], state="idle", tasks_running=0, tasks_claimed=0, current_task_ids=[])


def test_a_long_task_gives_signs_of_life_until_it_ends(workplace: Workplace, db: Db) -> None:
    office = _office(workplace, "--processes=2")
    gate = office.gate("long")
    long = office.tasks.wait_for.send(str(gate)).unwrap()
    eventually(lambda: len(_heartbeats(db, long.task_id)) >= 3, what="growing heartbeats")
    short = [office.tasks.note.send().unwrap() for _ in range(10)]
    assert all(handle.get(20_000).is_ok() for handle in short)

    gate.touch()
    pid = long.get(20_000).ok_value
    ended_at = row(db, long)["terminal_at"]
    beats = _heartbeats(db, long.task_id)
    # Another task that lives through beats shows that beats go on without the first.
    other_gate = office.gate("other")
    other = office.tasks.wait_for.send(str(other_gate)).unwrap()
    eventually(lambda: _heartbeats(db, other.task_id), what="a heartbeat of the other task")
    other_gate.touch()

    assert _heartbeats(db, long.task_id) == beats
    assert {(beat["pid"], beat["role"], beat["hostname"]) for beat in beats} == {
        (pid, "runner", socket.gethostname())
    }
    assert {beat["sender_id"] for beat in beats} == {str(row(db, long)["claimed_by_worker_id"])}
    assert all(beat["memory_mb"] > 1 for beat in beats)
    assert all(row(db, long)["started_at"] < beat["sent_at"] < ended_at for beat in beats)
    assert [_heartbeats(db, handle.task_id) for handle in short] == [[]] * 10


def test_a_worker_is_idle_then_busy_then_idle_again(workplace: Workplace, db: Db) -> None:
    office = _office(workplace)
    gate = office.gate("states")
    _until_state(db, "idle")

    handle = office.tasks.wait_for.send(str(gate)).unwrap()
    _until_state(db, "busy")
    gate.touch()

    assert handle.get(20_000).is_ok()
    _until_state(db, "idle")


def test_a_change_is_seen_before_the_next_beat(workplace: Workplace, db: Db) -> None:
    """With a lease of ten minutes there is no beat within this test but the first."""
    source = APP.replace("OFTEN", str(NEVER)).replace("PREFETCH", "0").replace("2_000", "600_000")
    office = staffed(
        workplace,
        source.replace("claim_lease_ms", "max_claim_renew_age_ms=600_000, claim_lease_ms"),
        "--processes=1",
    )
    gate = office.gate("at-once")
    eventually(lambda: db.execute("SELECT FROM horsies_workers WHERE waiting").rowcount, what="it waiting")
    _until_snapshot(db)  # which comes with the first beat
    beats = "SELECT last_beat_at FROM horsies_workers"
    beat = db.execute(beats).fetchone()

    handle = office.tasks.wait_for.send(str(gate)).unwrap()
    _until_state(db, "busy")
    gate.touch()
    assert handle.get(20_000).is_ok()
    _until_state(db, "idle")

    assert db.execute(beats).fetchone() == beat


def test_a_worker_that_is_told_to_stop_drains(workplace: Workplace, db: Db) -> None:
    office = _office(workplace, every_ms=NEVER)
    gate = office.gate("draining")
    handle = office.tasks.wait_for.send(str(gate)).unwrap()
    until_status(db, handle, "RUNNING")
    _until_snapshot(db)

    office.worker.signal(signal.SIGTERM)

    _until_state(db, "draining")
    said = _until_snapshot(db, state="draining")
    assert (said["tasks_running"], list(map(str, said["current_task_ids"]))) == (1, [handle.task_id])
    gate.touch()
    assert office.worker.wait() == 0
    assert [entry["state"] for entry in _snapshots(db)][1:] == ["draining"]
    assert db.execute("SELECT FROM horsies_workers").rowcount == 0


def test_draining_that_begins_while_a_snapshot_is_written_is_told_too(workplace: Workplace, db: Db) -> None:
    with psycopg.connect(workplace.database_url) as hindrance:
        hindrance.execute("LOCK TABLE horsies_worker_states")
        office = _office(workplace, every_ms=NEVER)
        handle = office.tasks.wait_for.send(str(office.gate("in-the-middle"))).unwrap()
        until_status(db, handle, "RUNNING")
        blocked = "SELECT FROM pg_stat_activity WHERE application_name = 'horsies-heartbeat' AND wait_event_type = 'Lock'"
        eventually(lambda: db.execute(blocked).rowcount, what="the first snapshot on its way")

        office.worker.signal(signal.SIGTERM)
        eventually(lambda: "Stopping" in office.worker.log, what="the worker stopping")

    _until_snapshot(db, state="draining")
    office.gate("in-the-middle").touch()
    assert office.worker.wait() == 0


def test_a_worker_that_was_killed_is_dead(workplace: Workplace, db: Db) -> None:
    office = _office(workplace)
    _until_state(db, "idle")

    office.worker.signal(signal.SIGKILL)
    office.worker.wait()
    other = workplace.start("--processes=1")

    state = "SELECT state, waiting FROM horsies_workers WHERE pid = %s"
    dead = [{"state": "dead", "waiting": False}]
    eventually(lambda: db.execute(state, (office.worker.pid,)).fetchall() == dead, what="it being dead")
    assert other.process.poll() is None


def test_children_do_not_load_what_measures_them(workplace: Workplace, db: Db) -> None:
    office = _office(workplace)
    _until_snapshot(db)

    assert office.tasks.has_loaded.send("psutil").unwrap().get(20_000).ok_value is False


def test_a_worker_forgets_what_is_old(workplace: Workplace, db: Db) -> None:
    db.execute(
        "INSERT INTO horsies_heartbeats (task_id, sender_id, role, sent_at, hostname, pid)"
        " SELECT gen_random_uuid(), 'w', 'runner', now() - make_interval(hours => hours), 'host', 1"
        " FROM generate_series(20, 1999) AS hours"
    )

    _office(workplace)

    left = "SELECT count(*) AS rows FROM horsies_heartbeats"
    eventually(lambda: db.execute(left).fetchone()["rows"] == 4, what="only the last day being left")


def test_a_record_that_cannot_be_written_stops_nothing(workplace: Workplace, db: Db) -> None:
    """Somebody holds the tables of the record; the lease and the tasks go on."""
    office = _office(workplace)
    before = _until_snapshot(db)
    with psycopg.connect(workplace.database_url) as hindrance:
        hindrance.execute("LOCK TABLE horsies_worker_states, horsies_heartbeats")
        worker = db.execute("SELECT worker_id, last_beat_at FROM horsies_workers").fetchone()

        assert office.tasks.note.send().unwrap().get(20_000).is_ok()
        later = "SELECT FROM horsies_workers WHERE worker_id = %s AND last_beat_at > %s + interval '4 s'"
        eventually(lambda: db.execute(later, tuple(worker.values())).rowcount, what="the lease being renewed")

    assert _until_snapshot(db, after=before["id"])["worker_id"] == worker["worker_id"]


def test_the_record_goes_on_after_an_outage(workplace: Workplace, db: Db) -> None:
    with Proxy(workplace.database_url) as proxy:
        workplace.env["HORSIES_DATABASE_URL"] = proxy.url
        office = _office(workplace)
        before = _until_snapshot(db)["id"]

        proxy.refusing = True
        proxy.cut()
        eventually(lambda: "Cannot renew the lease" in office.worker.log, what="a beat that failed")
        latest = _snapshots(db)[-1]["id"]
        proxy.refusing = False

        assert _until_snapshot(db, after=max(before, latest))["pid"] == office.worker.pid
        assert office.worker.stop() == 0
    assert "Traceback" not in office.worker.log
