"""With `read_url` pages are read from a replica, which says how far it is behind, and actions go to the primary."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import httpx2 as httpx
import psycopg
import pytest

from horsies import PostgresConfig
from horsies.db.migrations import migrate
from horsies.web import create_dashboard
from tests.support.replication import Replication, replication
from tests.support.waiting import eventually
from tests.web.conftest import calls, get, post

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the replication of the tests needs /proc")

INSERT = (
    "INSERT INTO horsies_tasks_live (task_name, queue_name, kwargs) VALUES ('add', %s, '{}') RETURNING id"
)
PAGES = (
    *("/", "/tasks", "/failures", "/queues", "/keys", "/workers", "/workflows", "/waiting", "/schedules"),
    *("/health", "/metrics", "/api/queues", "/api/tasks"),
)


@pytest.fixture(scope="module")
def pair() -> Iterator[Replication]:
    with replication() as pair:
        asyncio.run(migrate(PostgresConfig(database_url=pair.url)))
        pair.catch_up()
        yield pair


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    return request.node.name[:60]


@pytest.fixture
def paused(pair: Replication) -> Iterator[None]:
    """The replica receives everything and shows none of it."""
    execute(pair.standby_url, "SELECT pg_wal_replay_pause()")
    eventually(lambda: execute(pair.standby_url, "SELECT pg_get_wal_replay_pause_state()") == "paused")
    yield
    execute(pair.standby_url, "SELECT pg_wal_replay_resume()")


def execute(url: str, statement: str, *values: object) -> Any:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(statement.encode(), values).fetchone()
    return None if row is None else row[0]


def dashboard(pair: Replication, read_url: str | None = None) -> Any:
    return create_dashboard(pair.url, enable_actions=True, read_url=read_url or pair.standby_url)


def waiting(answer: httpx.Response, queue: str) -> int:
    """Return how many tasks of a queue an answer of the API shows."""
    return sum(each["queue_name"] == queue for each in answer.json()["tasks"])


def test_every_page_is_shown_from_a_replica(pair: Replication) -> None:
    answers = calls(dashboard(pair), *(get(page) for page in PAGES))

    assert [answer.status_code for answer in answers] == [200] * len(PAGES)
    assert all("x-horsies-replica-lag" in answer.headers for answer in answers)
    assert "Read from a replica, up to date" in answers[-5].text


@pytest.mark.usefixtures("paused")
def test_a_replica_that_is_behind_says_by_how_much(pair: Replication, queue: str) -> None:
    execute(pair.url, INSERT, queue)

    def lag() -> float:
        (answer,) = calls(dashboard(pair), get(f"/api/tasks?queue={queue}"))
        assert waiting(answer, queue) == 0, "the task was not read from the replica"
        return float(answer.headers["x-horsies-replica-lag"])

    eventually(lambda: lag() > 1, what="the replica being behind")
    (page,) = calls(dashboard(pair), get("/tasks"))
    assert "s behind the primary" in page.text


@pytest.mark.usefixtures("paused")
def test_an_action_decides_by_the_primary_and_is_seen_at_once(pair: Replication, queue: str) -> None:
    task_id: UUID = execute(pair.url, INSERT, queue)

    before, done, after = calls(
        dashboard(pair),
        get(f"/api/tasks?queue={queue}"),
        post(f"/api/tasks/{task_id}/cancel"),
        get(f"/api/tasks?queue={queue}"),
    )

    assert waiting(before, queue) == 0
    assert done.status_code == 200, done.text
    assert [each["status"] for each in after.json()["tasks"]] == ["CANCELLED"]


def test_after_an_action_pages_are_read_from_the_replica_again(pair: Replication, queue: str) -> None:
    board = dashboard(pair)
    task_id: UUID = execute(pair.url, INSERT, queue)
    (done,) = calls(board, post(f"/api/tasks/{task_id}/cancel"))
    assert done.status_code == 200, done.text
    pair.catch_up()
    calls(board, get("/api/queues"))

    execute(pair.standby_url, "SELECT pg_wal_replay_pause()")
    try:
        execute(pair.url, INSERT, queue)
        (answer,) = calls(board, get(f"/api/tasks?queue={queue}&status=PENDING"))
    finally:
        execute(pair.standby_url, "SELECT pg_wal_replay_resume()")

    assert waiting(answer, queue) == 0


def test_of_several_hosts_a_replica_is_read_and_the_primary_if_there_is_none(
    pair: Replication, queue: str
) -> None:
    login, _, standby = pair.standby_url.partition("@")
    primary = pair.url.rpartition("@")[2].partition("/")[0]
    both = f"{login}@{primary},{standby}"
    gone = f"{login}@{primary},127.0.0.1:1/postgres"
    execute(pair.standby_url, "SELECT pg_wal_replay_pause()")
    try:
        execute(pair.url, INSERT, queue)
        (from_replica,) = calls(dashboard(pair, both), get(f"/api/tasks?queue={queue}"))
        (from_primary,) = calls(dashboard(pair, gone), get(f"/api/tasks?queue={queue}"))
    finally:
        execute(pair.standby_url, "SELECT pg_wal_replay_resume()")

    assert waiting(from_replica, queue) == 0
    assert waiting(from_primary, queue) == 1


def test_a_dashboard_takes_a_url_that_wants_a_server_that_accepts_writes(pair: Replication) -> None:
    url = f"{pair.url}?target_session_attrs=read-write"

    (answer,) = calls(create_dashboard(url), get("/api/queues"))

    assert answer.status_code == 200, answer.text
