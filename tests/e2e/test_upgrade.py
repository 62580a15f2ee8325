"""The next release upgrades the schema of a database that is in use: nothing is lost, and nothing runs twice."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import horsies
from horsies import TaskNode
from horsies.db.migrations import LATEST
from tests.e2e.observing import Db, children, lines, row, sessions, until_status
from tests.e2e.office import URL, Office, staffed
from tests.support.waiting import eventually
from tests.support.workers import Workplace

APP = """
app = Horsies(AppConfig.for_database_url(URL, schedule=ScheduleConfig(schedules=[
    TaskSchedule(name="tick", task_name="tick", pattern=IntervalSchedule(seconds=1), catch_up_missed=True)])))
DIARY = Path(__file__).parent / "diary"

def write(what):
    diary = os.open(DIARY, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(diary, f"{what}\\n".encode())
    os.close(diary)

@app.task("tick")
def tick() -> None:
    pass

@app.task("note")
def note(what: str) -> str:
    write(what)
    return what

@app.task("note_one_by_one", key="what", key_concurrency=1)
def note_one_by_one(what: str, number: int) -> int:
    write(f"{what} {number}")
    return number

@app.task("note_once", unique="args")
def note_once(what: str) -> str:
    write(what)
    return what

@app.task("wait_for")
def wait_for(what: str, gate: str) -> str:
    write(what)
    while not Path(gate).exists():
        time.sleep(0.005)
    return what

@app.task("join")
def join(first: TaskResult[str, TaskError], second: str) -> TaskResult[str, TaskError]:
    write(second)
    return TaskResult(ok=f"{first.unwrap()}, {second}")
"""


@pytest.fixture
def next_release(workplace: Workplace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
    """The same workplace with the next release: a copy of the package with one more migration, which changes nothing."""
    folder = tmp_path_factory.mktemp("next")
    package = folder / "horsies"
    shutil.copytree(Path(horsies.__file__).parent, package)
    (package / "db" / "schema" / f"{LATEST + 1:04}_nothing.sql").write_text("SELECT 1;\n")
    with Workplace(workplace.folder, workplace.database_url) as place:
        place.env["PYTHONPATH"] = str(folder)
        yield place


def migrate(place: Workplace) -> None:
    done = place.run("migrate")
    assert f"migrations applied: 1; the schema has version {LATEST + 1}" in done.stdout, done.stderr


def version_of_the_schema(db: Db) -> int:
    found = db.execute("SELECT max(version) AS version FROM horsies_schema_version").fetchone()
    assert found is not None
    return found["version"]


class Load:
    """Send tasks in batches and wait for their results until the block ends. It fails if one of them gets no result."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self._over = threading.Event()
        self._threads = ThreadPoolExecutor(1)
        self.served = 0

    def __enter__(self) -> Load:
        self._done = self._threads.submit(self._send)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._threads.shutdown()
        self._done.result()

    def until_served(self, more: int) -> None:
        """Wait until so many more tasks have a result."""
        wanted = self.served + more
        eventually(lambda: self.served >= wanted or self._done.done(), 60, f"{more} more results under load")

    def _send(self) -> None:
        while not self._over.is_set():
            names = [f"load-{self.served + number}" for number in range(20)]
            handles = [self._office.tasks.note.send(name).unwrap() for name in names]
            assert [handle.result(timeout=60) for handle in handles] == names
            self.served += len(names)


def assert_each_ran_once(office: Office, names: Iterable[str]) -> None:
    """Compare what the tasks themselves have written down with what was sent."""
    assert Counter(lines(office.place.folder / "diary")) == Counter(names)


def ticks(db: Db) -> list[datetime]:
    rows = db.execute(
        "SELECT sent_at FROM horsies_tasks WHERE task_name = 'tick' ORDER BY sent_at"
    ).fetchall()
    return [row["sent_at"] for row in rows]


def assert_every_second_once(slots: list[datetime]) -> None:
    assert slots == [slots[0] + timedelta(seconds=number) for number in range(len(slots))]


def test_a_worker_goes_on_under_load_while_the_next_release_migrates(
    workplace: Workplace, next_release: Workplace, db: Db
) -> None:
    office = staffed(workplace, APP, "--processes=2", "--with-scheduler")
    running = office.tasks.wait_for.send("running", str(office.gate("running"))).unwrap()
    until_status(db, running, "RUNNING")

    with Load(office) as load:
        load.until_served(20)
        migrate(next_release)
        load.until_served(40)
    # New children and new connections of the running worker do not look at the version again.
    [child, *_] = children(office.worker.pid) - {row(db, running)["worker_pid"]}
    os.kill(child, signal.SIGKILL)
    for session in sessions(db):
        db.execute("SELECT pg_terminate_backend(%s)", (session["pid"],))
    with Load(office) as more:
        more.until_served(40)
    seen = len(ticks(db))
    eventually(lambda: len(ticks(db)) > seen, what="a run of the schedule after the migration")
    office.gate("running").touch()

    assert running.result(timeout=20) == "running"
    assert office.worker.stop() == 0, office.worker.log
    names = [f"load-{number}" for part in (load, more) for number in range(part.served)]
    assert_each_ran_once(office, ["running", *names])
    assert_every_second_once(ticks(db))


def test_a_worker_of_the_next_release_finishes_what_the_last_one_leaves(
    workplace: Workplace, next_release: Workplace, db: Db
) -> None:
    office = staffed(workplace, APP, "--processes=2", "--with-scheduler")
    tasks, gate = office.tasks, str(office.gate("all"))
    first = TaskNode(fn=tasks.wait_for, kwargs={"what": "first", "gate": gate}, node_id="first")
    second = TaskNode(
        fn=tasks.join,
        kwargs={"second": "second"},
        waits_for=[first],
        args_from={"first": first},
        node_id="second",
    )
    spec = tasks.app.workflow("both", [first, second], output=second, definition_key="upgrade.both.v1")
    running = tasks.wait_for.send("running", gate).unwrap()
    workflow = spec.start().unwrap()
    # Both processes are busy now, so everything else waits.
    eventually(lambda: Counter(lines(workplace.folder / "diary")) == Counter(["running", "first"]))
    notes = [tasks.note.send(f"note-{number}").unwrap() for number in range(50)]
    keyed = [tasks.note_one_by_one.send(f"key-{number % 3}", number).unwrap() for number in range(9)]
    unique = tasks.note_once.send("unique").unwrap()
    paying = tasks.note.with_options(idempotency_key="order-17")
    paid = paying.send("paid").unwrap()
    delayed = tasks.note.schedule(3600, "delayed").unwrap()
    due = row(db, delayed)["enqueued_at"]
    assert tasks.note_once.send("unique").unwrap().task_id == unique.task_id

    next_release.start("--processes=2", "--with-scheduler")
    assert version_of_the_schema(db) == LATEST + 1

    assert [note.result(timeout=60) for note in notes] == [f"note-{number}" for number in range(50)]
    assert [each.result(timeout=60) for each in keyed] == [*range(9)]
    assert unique.result(timeout=60) == "unique"
    assert paid.result(timeout=60) == "paid"
    assert paying.send("paid").unwrap().task_id == paid.task_id
    assert [row(db, task)["status"] for task in (running, delayed)] == ["RUNNING", "PENDING"]
    assert row(db, delayed)["enqueued_at"] == due

    office.worker.signal(signal.SIGTERM)
    eventually(lambda: "Stopping" in office.worker.log, what="the worker of the last release stopping")
    Path(gate).touch()
    assert office.worker.wait() == 0
    assert running.result(timeout=20) == "running"
    assert workflow.get(60_000).unwrap() == "first, second"
    db.execute("UPDATE horsies_tasks SET enqueued_at = now() WHERE id = %s", (delayed.task_id,))
    assert tasks.note.send("last").unwrap().result(timeout=20) == "last"  # wakes up the worker
    assert delayed.result(timeout=60) == "delayed"
    seen = len(ticks(db))
    eventually(lambda: len(ticks(db)) > seen, what="a run of the schedule by the next release")

    keys = [f"key-{number % 3} {number}" for number in range(9)]
    single = ["running", "first", "second", "unique", "paid", "delayed", "last"]
    assert_each_ran_once(office, [*(f"note-{number}" for number in range(50)), *keys, *single])
    assert_every_second_once(ticks(db))


def test_a_worker_of_the_last_release_does_not_start_after_the_migration(
    workplace: Workplace, next_release: Workplace
) -> None:
    workplace.write(URL + APP)
    migrate(next_release)

    refused = workplace.run("worker", "app:app", "--processes=1", seconds=90)

    assert refused.returncode == 1
    assert (
        f"the database has schema version {LATEST + 1}, this horsies knows {LATEST} at most" in refused.stderr
    )
    assert "HRS-410" in refused.stderr
