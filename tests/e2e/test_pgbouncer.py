"""Producers work through a PgBouncer in transaction mode, which may give every transaction another session."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from horsies.web import create_dashboard
from tests.e2e.office import Office, staffed
from tests.support.pooler import PGBOUNCER, PgBouncer, pgbouncer
from tests.support.workers import Workplace
from tests.web.conftest import calls, get

pytestmark = pytest.mark.skipif(
    PGBOUNCER is None, reason="pgbouncer is not installed (Debian: apt-get install pgbouncer)"
)

APP = """
app = Horsies(AppConfig(broker=PostgresConfig(
    database_url=os.environ["POOLER_URL"], session_database_url=URL, pgbouncer_transaction_mode=True)))

@app.task("add")
def add(x: int, y: int = 1) -> TaskResult[int, TaskError]:
    return TaskResult(ok=x + y)

@app.task("total")
def total(a: TaskResult[int, TaskError], b: TaskResult[int, TaskError]) -> TaskResult[int, TaskError]:
    return TaskResult(ok=a.unwrap() + b.unwrap())
"""

Connect = Callable[[str], AbstractContextManager[Any]]


@pytest.fixture(scope="module")
def pooler(shared_workplace: Workplace) -> Iterator[PgBouncer]:
    with pgbouncer(shared_workplace.database_url) as pooler:
        yield pooler


@pytest.fixture(scope="module")
def office(shared_workplace: Workplace, pooler: PgBouncer) -> Iterator[Office]:
    """An app whose producers go through the pooler, with a worker that goes past it."""
    shared_workplace.env["POOLER_URL"] = os.environ["POOLER_URL"] = pooler.url
    yield staffed(shared_workplace, APP, "--processes", "2")
    del os.environ["POOLER_URL"]


@pytest.fixture
def passed(pooler: PgBouncer) -> Callable[[], int]:
    """Return a function that counts the pooler's transactions since the test began."""
    before = pooler.transactions()
    return lambda: pooler.transactions() - before


def test_many_threads_send_and_get_their_results(office: Office, passed: Callable[[], int]) -> None:
    def call(n: int) -> int:
        return office.tasks.add.send(n).unwrap().get(timeout_ms=30_000).unwrap()

    with ThreadPoolExecutor(12) as pool:  # three times the sessions that the pooler has
        assert list(pool.map(call, range(60))) == [n + 1 for n in range(60)]
    assert passed() >= 12  # concurrent sends and looks at results share transactions


def test_many_tasks_are_sent_at_once(office: Office, passed: Callable[[], int]) -> None:
    handles = office.tasks.add.send_many([(n,) for n in range(50)]).unwrap()

    assert [handle.get(timeout_ms=30_000).unwrap() for handle in handles] == [n + 1 for n in range(50)]
    assert passed() >= 1


def psycopg_connection(url: str) -> AbstractContextManager[Any]:
    return psycopg.connect(url, prepare_threshold=None)


def sqlalchemy_session(url: str) -> AbstractContextManager[Any]:
    engine = sqlalchemy.create_engine(
        url.replace("postgresql://", "postgresql+psycopg://", 1),
        poolclass=NullPool,
        connect_args={"prepare_threshold": None},
    )
    return Session(engine)


@pytest.mark.parametrize("connect", [psycopg_connection, sqlalchemy_session])
def test_a_task_sent_in_a_transaction_exists_if_it_commits(
    connect: Connect, office: Office, pooler: PgBouncer, passed: Callable[[], int], shared_db: Any
) -> None:
    with connect(pooler.url) as connection:
        kept: list[Any] = []
        for n in range(
            8
        ):  # psycopg prepares a statement that it sees for the sixth time, unless it is told not to
            send = office.tasks.add.with_options(conn=connection).send
            undone = send(n).unwrap()
            connection.rollback()
            kept.append(send(n).unwrap())
            connection.commit()
            row = shared_db.execute("SELECT FROM horsies_tasks WHERE id = %s", (undone.task_id,))
            assert row.rowcount == 0

    assert [handle.get(timeout_ms=30_000).unwrap() for handle in kept] == [n + 1 for n in range(8)]
    assert passed() >= 16


def test_a_workflow_runs_to_its_end(office: Office, passed: Callable[[], int]) -> None:
    tasks = office.tasks
    left, right = tasks.add.node()(x=1), tasks.add.node()(x=2)
    both = tasks.total.node(args_from={"a": left, "b": right}, waits_for=[left, right])()
    spec = tasks.app.workflow("sum", [left, right, both], output=both, definition_key="test.sum")

    assert spec.start().unwrap().get(timeout_ms=30_000).unwrap() == 5
    assert passed() >= 1


PAGES = ("/", "/tasks", "/queues", "/workers", "/schedules", "/workflows", "/health", "/api")


def test_the_dashboard_of_the_app_shows_its_pages(office: Office) -> None:
    handle = office.tasks.add.send(1).unwrap()
    handle.get(timeout_ms=30_000).unwrap()
    paths = (*PAGES, f"/tasks/{handle.task_id}")

    answers = calls(create_dashboard(office.tasks.app), *(get(path) for path in paths))

    assert {path: answer.status_code for path, answer in zip(paths, answers, strict=True)} == dict.fromkeys(
        paths, 200
    )
    assert handle.task_id in answers[-1].text


def test_the_commands_work_with_the_app(office: Office, shared_workplace: Workplace) -> None:
    done = shared_workplace.run("check", "app:app", "--live")

    assert done.returncode == 0, done.stdout + done.stderr
