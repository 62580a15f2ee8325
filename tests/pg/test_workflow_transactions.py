"""A workflow that is started in a transaction of the caller's exists exactly when that transaction commits."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
import sqlalchemy

from horsies import (
    AppConfig,
    Flow,
    Horsies,
    PayloadPolicy,
    PostgresConfig,
    SendError,
    SubWorkflowNode,
    TaskError,
    TaskResult,
    WorkflowDefinition,
    WorkflowSpec,
    WorkflowStartErrorCode,
    chain,
    from_node,
    group,
    sleep_node,
    start_workflow,
    start_workflow_async,
)
from horsies.testing import drain
from tests.pg.test_transactional import ASYNC, DJANGO_NEEDS, SYNC, with_driver

Db = psycopg.Connection[dict[str, Any]]


@pytest.fixture
def number(app: Horsies) -> Any:
    @app.task("number")
    def number(n: int = 1) -> TaskResult[int, TaskError]:
        return TaskResult(ok=n)

    return number


@pytest.fixture
def spec(app: Horsies, number: Any) -> WorkflowSpec[int]:
    class Part(WorkflowDefinition[int]):
        name = "part"
        definition_key = "transactions.part"
        only = number.node(node_id="only")(n=2)

        class Meta:
            output = "only"

    one: Any = SubWorkflowNode(Part, node_id="one")
    two = number.node(node_id="two")(n=from_node(one))
    return app.workflow("order", [one, two], output=two, definition_key="transactions.order")


def flows(db: Db) -> list[str]:
    rows = db.execute("SELECT id FROM horsies_workflows WHERE parent_workflow_id IS NULL ORDER BY id")
    return [str(row["id"]) for row in rows]


def nothing(db: Db) -> bool:
    tables = ("horsies_workflows", "horsies_workflow_tasks", "horsies_tasks")
    return not any(db.execute(f"SELECT FROM {table}".encode()).fetchall() for table in tables)


@pytest.mark.parametrize("open_it", SYNC)
def test_commit_starts_the_workflow_and_rollback_leaves_nothing(
    app: Horsies, spec: WorkflowSpec[int], database_url: str, db: Db, open_it: Callable[[str], Any]
) -> None:
    own_id = uuid4()
    with open_it(database_url) as connection:
        spec.start(conn=connection).unwrap()
        spec.start(own_id, conn=connection).unwrap()
        connection.rollback()
        assert nothing(db)

        handles = [spec.start(conn=connection).unwrap(), spec.start(own_id, conn=connection).unwrap()]
        assert spec.start(own_id, conn=connection).unwrap().workflow_id == str(own_id)
        assert nothing(db)
        connection.commit()

    assert flows(db) == sorted(handle.workflow_id for handle in handles)
    drain(app)
    assert [handle.result(timeout=0) for handle in handles] == [2, 2]


@pytest.mark.parametrize("open_it", ASYNC)
def test_commit_starts_the_workflow_and_rollback_leaves_nothing_async(
    app: Horsies, spec: WorkflowSpec[int], database_url: str, db: Db, open_it: Callable[[str], Any]
) -> None:
    async def start(*, commit: bool) -> str:
        async with open_it(database_url) as (connection, transaction):
            handle = (await spec.start_async(conn=connection)).unwrap()
            assert nothing(db)
            await (transaction.commit() if commit else transaction.rollback())
        return handle.workflow_id

    asyncio.run(start(commit=False))
    assert nothing(db)
    started = asyncio.run(start(commit=True))

    assert flows(db) == [started]
    drain(app)
    assert spec.handle(started).result(timeout=0) == 2


def test_the_workers_are_woken_after_the_commit_and_not_before(
    app: Horsies, number: Any, database_url: str, db: Db
) -> None:
    spec: WorkflowSpec[Any] = app.workflow("w", [number.node()()], definition_key="w")
    db.execute('LISTEN "task_queue_default"')
    with psycopg.connect(database_url) as connection:
        spec.start(conn=connection).unwrap()
        assert list(db.notifies(timeout=0.2)) == []
        connection.commit()
        assert [each.channel for each in db.notifies(timeout=5, stop_after=1)] == ["task_queue_default"]

        spec.start(conn=connection).unwrap()
        connection.rollback()
        assert list(db.notifies(timeout=0.2)) == []


def test_every_worker_is_woken_for_a_timer(app: Horsies, database_url: str, db: Db) -> None:
    timed: WorkflowSpec[Any] = app.workflow("w", [sleep_node(60)], definition_key="w")
    db.execute(
        "INSERT INTO horsies_workers (worker_id, queues, lease_expires_at, hostname, pid, processes)"
        " VALUES (%s, %s, now() + interval '1 hour', 'host', 1, 1)",
        (uuid4(), ["timers"]),
    )
    db.execute('LISTEN "task_queue_timers"')
    with psycopg.connect(database_url) as connection:
        timed.start(conn=connection).unwrap()
        connection.commit()

    assert [each.channel for each in db.notifies(timeout=5, stop_after=1)] == ["task_queue_timers"]


def test_a_start_that_fails_raises_so_that_no_transaction_commits_without_its_workflow(
    make_app: Callable[..., Horsies], spec: WorkflowSpec[int], database_url: str, db: Db
) -> None:
    small = make_app(payload=PayloadPolicy(reject_bytes=10, warn_bytes=None))

    @small.task("text")
    def text(t: str) -> TaskResult[str, TaskError]:
        return TaskResult(ok=t)

    large: WorkflowSpec[Any] = small.workflow("large", [text.node()(t="x" * 100)], definition_key="large")
    with psycopg.connect(database_url) as connection:
        with pytest.raises(SendError, match="bytes") as caught:
            large.start(conn=connection)
        assert caught.value.code is WorkflowStartErrorCode.VALIDATION_FAILED
        with pytest.raises(SendError, match="use a UUID"):
            spec.start("no id", conn=connection)
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("SELECT 1/0")

        with pytest.raises(SendError, match="aborted") as caught:
            spec.start(conn=connection)
        assert caught.value.code is WorkflowStartErrorCode.ENQUEUE_FAILED
        assert not caught.value.retryable
        assert isinstance(caught.value.__cause__, psycopg.errors.InFailedSqlTransaction)
    assert nothing(db)


def test_a_connection_of_the_other_kind_is_refused_with_the_right_method(
    spec: WorkflowSpec[int], database_url: str, db: Db
) -> None:
    async def sync_on_async() -> None:
        async with await psycopg.AsyncConnection.connect(database_url) as connection:
            with pytest.raises(SendError, match=r"needs start_async\("):
                spec.start(conn=connection)

    async def async_on_sync() -> None:
        with psycopg.connect(database_url) as connection, pytest.raises(SendError, match=r"needs start\("):
            await spec.start_async(conn=connection)

    asyncio.run(sync_on_async())
    asyncio.run(async_on_sync())
    engine = sqlalchemy.create_engine(with_driver(database_url, "psycopg"))
    for thing in (engine, "conn", 5):
        with pytest.raises(SendError, match="SQLAlchemy Session"):
            spec.start(conn=thing)
    assert nothing(db)


def test_the_id_of_a_workflow_of_another_name_is_refused(
    app: Horsies, number: Any, spec: WorkflowSpec[int], database_url: str, db: Db
) -> None:
    other: WorkflowSpec[Any] = app.workflow("other", [number.node()()], definition_key="other")
    taken = spec.start().unwrap().workflow_id

    error = other.start(taken).unwrap_err()
    assert error.code is WorkflowStartErrorCode.VALIDATION_FAILED
    assert "'order'" in error.message
    assert "'other'" in error.message
    with psycopg.connect(database_url) as connection, pytest.raises(SendError, match="'order'"):
        other.start(taken, conn=connection)

    assert spec.start(taken).unwrap().workflow_id == taken
    assert flows(db) == [taken]


def test_a_workflow_can_be_started_over_a_broker_with_an_id_of_ones_own(
    app: Horsies, number: Any, spec: WorkflowSpec[int], database_url: str, db: Db
) -> None:
    elsewhere = Horsies(AppConfig(broker=PostgresConfig(database_url=database_url)))
    broker, own, third = elsewhere.get_broker(), str(uuid4()), str(uuid4())

    assert start_workflow(spec, broker, workflow_id=own).unwrap().workflow_id == own
    assert asyncio.run(start_workflow_async(spec, broker, workflow_id=third)).unwrap().workflow_id == third
    second = start_workflow(spec).unwrap().workflow_id
    assert flows(db) == sorted([own, second, third])
    flow = start_workflow(chain(number.node(1), number.node()), broker).unwrap().workflow_id
    other = asyncio.run(start_workflow_async(group(number.node(1), number.node(2)))).unwrap().workflow_id
    assert flows(db) == sorted([own, second, third, flow, other])
    misplaced: Any = own
    assert "workflow_id=" in start_workflow(spec, misplaced).unwrap_err().message
    asyncio.run(broker.close_async())


DJANGO = """
import sys
import django
from django.conf import settings
from urllib.parse import urlsplit

url = urlsplit(sys.argv[1])
settings.configure(DATABASES={"default": {
    "ENGINE": "django.db.backends.postgresql", "NAME": url.path[1:], "USER": url.username,
    "PASSWORD": url.password, "HOST": url.hostname, "PORT": url.port,
}})
django.setup()
from django.db import connection, transaction
from horsies import AppConfig, Horsies, TaskError, TaskResult

app = Horsies(AppConfig.for_database_url(sys.argv[1]))

@app.task("number")
def number() -> TaskResult[int, TaskError]:
    return TaskResult(ok=1)

spec = app.workflow("w", [number.node()()], definition_key="w")
try:
    with transaction.atomic():
        spec.start(conn=connection)
        raise LookupError
except LookupError:
    pass
with transaction.atomic():
    print(spec.start(conn=connection).unwrap().workflow_id)
"""


def test_a_django_transaction_carries_its_workflows(database_url: str, db: Db) -> None:
    if db.info.server_version < DJANGO_NEEDS:
        pytest.skip("Django refuses servers before PostgreSQL 14")
    script = [sys.executable, "-W", "error", "-c", textwrap.dedent(DJANGO), database_url]

    run = subprocess.run(script, capture_output=True, text=True, timeout=60, check=False)

    assert run.returncode == 0, run.stderr
    assert flows(db) == [str(UUID(run.stdout.strip()))]


def test_a_part_that_is_built_as_a_chain_runs_with_known_and_with_later_parameters(
    app: Horsies, number: Any
) -> None:
    class Steps(WorkflowDefinition[int]):
        definition_key = "transactions.steps"

        @classmethod
        def build_with(  # pyright: ignore[reportIncompatibleMethodOverride]
            cls, app: Any, *, n: int
        ) -> Flow[int]:
            return chain(number.node(n), number.node())

    known: Any = SubWorkflowNode(Steps, kwargs={"n": 3})
    first = number.node(4)
    later: Any = SubWorkflowNode(Steps, args_from={"n": first}, waits_for=[first])
    handle = app.workflow("both", [known, first, later], definition_key="transactions.both").start().unwrap()
    drain(app)

    assert [handle.result_for(node).unwrap() for node in (known, later)] == [3, 4]
