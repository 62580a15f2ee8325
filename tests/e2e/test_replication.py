"""On a primary with a synchronous standby, commits may stall: a send is safe when it returns, and no task is lost."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from horsies import PostgresConfig
from horsies.db.migrations import migrate
from tests.e2e.office import URL
from tests.support.replication import Replication, replication
from tests.support.soundness import ailments
from tests.support.waiting import eventually
from tests.support.workers import Workplace

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the standby's pause is read from /proc")

# With a poll of a minute, a task that is started within seconds was not found by the poll.
APP = """
app = Horsies(AppConfig.for_database_url(URL, resilience=WorkerResilienceConfig(notify_poll_interval_ms=60_000)))

@app.task("note")
def note(path: str) -> TaskResult[int, TaskError]:
    with open(path, "a") as file:
        file.write("run\\n")
    return TaskResult(ok=7)
"""
STORED = "SELECT count(*) FROM horsies_tasks"


@pytest.fixture(scope="module")
def pair() -> Iterator[Replication]:
    with replication() as pair:
        asyncio.run(migrate(PostgresConfig(database_url=pair.url)))
        yield pair
        assert ailments(pair.url) == []


@pytest.fixture
def place(tmp_path: Path, pair: Replication) -> Iterator[Workplace]:
    with Workplace(tmp_path, pair.url) as place:
        place.write(URL + APP)
        yield place
        pair.resume()  # a worker that ends must be able to commit


def stored(url: str) -> int:
    """Return how many tasks a server shows; a standby may not have replayed the schema yet."""
    with psycopg.connect(url) as connection:
        try:
            row = connection.execute(STORED).fetchone()
        except psycopg.errors.UndefinedTable:
            return -1
    assert row is not None
    return row[0]


def test_a_send_is_acknowledged_when_the_standby_has_it(place: Workplace, pair: Replication) -> None:
    note: Any = place.load().note
    note.send(str(place.folder / "first")).unwrap()
    eventually(lambda: stored(pair.standby_url) == stored(pair.url), what="the standby having everything")
    before = stored(pair.url)

    with ThreadPoolExecutor(1) as pool:
        pair.pause()
        sending = pool.submit(note.send, str(place.folder / "second"))
        try:
            eventually(
                lambda: pair.stalled_for("horsies-producer"), what="the commit waiting for the standby"
            )
            assert not sending.done()
            assert stored(pair.standby_url) == before
        finally:
            pair.resume()
        sending.result(30).unwrap()

    eventually(lambda: stored(pair.standby_url) == before + 1, what="the standby showing the task")


def test_a_task_whose_commit_stalled_runs_once(place: Workplace, pair: Replication) -> None:
    note: Any = place.load().note
    path = place.folder / "runs"
    worker = place.start("--processes", "1")

    with ThreadPoolExecutor(1) as pool:
        pair.pause()
        sending = pool.submit(note.send, str(path))
        try:
            eventually(
                lambda: pair.stalled_for("horsies-producer") > 1, what="the commit stalling for a second"
            )
            assert not path.exists()
        finally:
            pair.resume()
        handle = sending.result(30).unwrap()

    assert handle.get(timeout_ms=30_000).unwrap() == 7
    assert worker.stop() == 0, worker.log
    assert path.read_text() == "run\n"


def test_tasks_start_without_a_poll_while_every_commit_waits_for_the_standby(
    place: Workplace, pair: Replication
) -> None:
    note: Any = place.load().note
    place.start("--processes", "1")
    pair.delay(0.2)
    try:
        # Each send comes right after a result, when the worker still looks for work by itself and goes to sleep during the commit.
        for number in range(8):
            handle = note.send(str(place.folder / f"note-{number}")).unwrap()
            assert handle.get(timeout_ms=30_000).is_ok(), "the task was not started until the next poll"
    finally:
        pair.delay(0)
