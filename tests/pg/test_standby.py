"""A connection to a server that has become a standby is given up; of several hosts, the one that accepts writes is used."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pytest

from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult
from horsies.config import WorkerResilienceConfig
from horsies.db.connection import Database, SyncPool, connect, reconnect_delay
from horsies.db.migrations import migrate
from horsies.db.urls import with_database
from horsies.executor import transactions
from tests.support.proxy import Proxy
from tests.support.replication import Replication, replication
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the replication of the tests needs /proc")
WRITE = b"UPDATE horsies_tasks_live SET priority = priority"


@pytest.fixture(scope="module")
def pair() -> Iterator[Replication]:
    with replication() as pair:
        asyncio.run(migrate(PostgresConfig(database_url=pair.url)))
        pair.catch_up()
        yield pair


@pytest.fixture
def both(pair: Replication) -> str:
    """Both servers, the standby first."""
    login, _, standby = pair.standby_url.partition("@")
    place, _, name = standby.partition("/")
    primary = pair.url.rpartition("@")[2].partition("/")[0]
    return f"{login}@{place},{primary}/{name}"


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2].partition("/")[0])


def test_producers_find_the_server_that_accepts_writes(pair: Replication, both: str) -> None:
    app = Horsies(AppConfig.for_database_url(both))

    @app.task("double")
    def double(number: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=2 * number)

    async def send() -> str:
        return (await double.send_async(2)).unwrap().task_id

    try:
        ids = {double.send(1).unwrap().task_id, asyncio.run(send())}
        ids |= {handle.task_id for handle in double.send_many([(n,) for n in range(3)]).unwrap()}
    finally:
        app.get_broker().close()

    with psycopg.connect(pair.url) as primary:
        found = {str(row[0]) for row in primary.execute("SELECT id FROM horsies_tasks_live").fetchall()}
    assert ids <= found


def test_every_kind_of_connection_finds_it(pair: Replication, both: str) -> None:
    config = PostgresConfig(database_url=both)

    async def ports() -> list[int]:
        async with await connect(config) as first, await connect(config, session=True) as second:
            return [first.info.port, second.info.port]

    found = asyncio.run(ports())
    with closing(transactions._connect(config)) as connection:  # pyright: ignore[reportPrivateUsage]
        found.append(connection.info.port)
    pool = SyncPool(config, "test")
    with pool.connection() as connection:
        found.append(connection.info.port)
    pool.close()

    assert set(found) == {port_of(pair.url)}


def test_a_session_of_sqlalchemy_sends_to_it(pair: Replication) -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    orm = pytest.importorskip("sqlalchemy.orm")
    login, _, standby = pair.standby_url.removeprefix("postgresql://").partition("@")
    primary = pair.url.rpartition("@")[2].partition("/")[0]
    place, _, name = standby.partition("/")
    engine = sqlalchemy.create_engine(
        f"postgresql+psycopg://{login}@/{name}?host={place}&host={primary}&target_session_attrs=read-write"
    )
    app = Horsies(AppConfig.for_database_url(pair.url))

    @app.task("treble")
    def treble(number: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=3 * number)

    with orm.Session(engine) as session, session.begin():
        sent = treble.with_options(conn=session).send(1).unwrap()
    engine.dispose()

    with psycopg.connect(pair.url) as connection:
        assert (
            connection.execute("SELECT FROM horsies_tasks_live WHERE id = %s", (sent.task_id,)).rowcount == 1
        )


def test_a_pool_gives_up_connections_to_a_standby(pair: Replication) -> None:
    config = PostgresConfig(database_url=pair.standby_url)

    async def sessions_after_a_write() -> set[int]:
        database, seen = Database(config, "test"), set[int]()
        async with database.connection() as first, database.connection() as second:
            seen |= {first.info.backend_pid, second.info.backend_pid}
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            async with database.connection() as connection:
                await connection.execute(WRITE)
        async with database.connection() as connection:
            seen &= {connection.info.backend_pid}
        await database.close()
        return seen

    assert asyncio.run(sessions_after_a_write()) == set()


def test_a_pool_of_threads_gives_up_connections_to_a_standby(pair: Replication) -> None:
    pool = SyncPool(PostgresConfig(database_url=pair.standby_url), "test")
    with pool.connection() as first, pool.connection() as second:
        seen = {first.info.backend_pid, second.info.backend_pid}

    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction), pool.connection() as connection:
        connection.execute(WRITE)

    with pool.connection() as connection:
        assert connection.info.backend_pid not in seen
    pool.close()


def test_when_a_connection_is_lost_the_idle_ones_are_not_tried_one_by_one(pair: Replication) -> None:
    with Proxy(pair.url) as proxy:
        pool = SyncPool(PostgresConfig(database_url=proxy.url), "test")
        with pool.connection() as first, pool.connection() as second:
            seen = {first.info.backend_pid, second.info.backend_pid}
        proxy.lose_statement()
        with pytest.raises(psycopg.OperationalError), pool.connection() as connection:
            connection.execute(WRITE)

        with pool.connection() as connection:
            assert connection.info.backend_pid not in seen
        pool.close()


def test_a_transaction_of_a_step_waits_for_a_server(pair: Replication) -> None:
    with Proxy(pair.url) as proxy, ThreadPoolExecutor(1) as pool:
        proxy.refusing = True
        config = PostgresConfig(database_url=proxy.url)
        connecting = pool.submit(transactions._connect, config)  # pyright: ignore[reportPrivateUsage]
        eventually(lambda: proxy.accepted >= 2, what="a second try")
        proxy.refusing = False

        with closing(connecting.result(20)) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_transaction_of_a_step_leaves_a_server_that_has_become_a_standby(
    pair: Replication, both: str
) -> None:
    config = PostgresConfig(database_url=both)
    idle: list[tuple[str, Any]] = transactions._idle  # pyright: ignore[reportPrivateUsage]
    before = psycopg.connect(pair.standby_url, autocommit=True)
    idle.append((config.conninfo, before))

    with transactions._connection(config) as connection:  # pyright: ignore[reportPrivateUsage]
        assert connection.info.port == port_of(pair.url)

    assert before.closed
    while idle:
        idle.pop()[1].close()


def test_a_standby_alone_is_waited_for_and_named(pair: Replication) -> None:
    alone = PostgresConfig(database_url=f"{pair.standby_url}?target_session_attrs=read-write")

    async def failure() -> psycopg.OperationalError:
        with pytest.raises(psycopg.OperationalError) as raised:
            await connect(alone)
        return raised.value

    error = asyncio.run(failure())
    lines: list[str] = []
    log = logging.Logger("test")
    log.addHandler(_Into(lines))

    assert reconnect_delay(error, 0, alone, WorkerResilienceConfig(), log) > 0
    assert "accepts no writes" in lines[0]


class _Into(logging.Handler):
    """Collects messages."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())


def test_a_database_of_tests_can_be_made_through_several_hosts(pair: Replication, both: str) -> None:
    with psycopg.connect(both, target_session_attrs="read-write", autocommit=True) as admin:
        admin.execute("CREATE DATABASE made_through_both")
    made = with_database(both, "made_through_both")

    eventually(lambda: _exists(pair.standby_url, "made_through_both"), what="the standby having the database")

    async def port() -> int:
        async with await connect(PostgresConfig(database_url=made)) as connection:
            return connection.info.port

    assert asyncio.run(port()) == port_of(pair.url)


def _exists(url: str, name: str) -> bool:
    with psycopg.connect(url) as connection:
        return bool(connection.execute("SELECT FROM pg_database WHERE datname = %s", (name,)).rowcount)
