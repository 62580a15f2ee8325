"""A task that is sent in a transaction of the caller's exists exactly when that transaction commits."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from typing import Any, cast
from uuid import UUID

import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from horsies import Horsies, SendError, TaskError, TaskResult, TaskSendErrorCode
from tests.pg.conftest import Add, define_add

Db = psycopg.Connection[dict[str, Any]]
asyncpg: Any = import_module("asyncpg")  # it has no types


def ids(db: Db) -> list[UUID]:
    return [row["id"] for row in db.execute("SELECT id FROM horsies_tasks ORDER BY id")]


def with_driver(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://", 1)


@contextmanager
def psycopg_plain(url: str) -> Generator[psycopg.Connection[Any]]:
    with psycopg.connect(url) as connection:
        yield connection


@contextmanager
def psycopg_with_dict_rows(url: str) -> Generator[psycopg.Connection[Any]]:
    connect: Any = psycopg.connect
    with connect(url, row_factory=dict_row) as connection:
        yield connection


@contextmanager
def psycopg_with_raw_cursors(url: str) -> Generator[psycopg.Connection[Any]]:
    with psycopg.connect(url, cursor_factory=psycopg.RawCursor) as connection:
        yield connection


@contextmanager
def sqlalchemy_connection(url: str) -> Generator[sqlalchemy.Connection]:
    engine = sqlalchemy.create_engine(with_driver(url, "psycopg"), poolclass=NullPool)
    with engine.connect() as connection:
        yield connection


@contextmanager
def sqlalchemy_session(url: str) -> Generator[Session]:
    engine = sqlalchemy.create_engine(with_driver(url, "psycopg"), poolclass=NullPool)
    with Session(engine) as session:
        yield session


@contextmanager
def sqlalchemy_scoped_session(url: str) -> Generator[scoped_session[Session]]:
    engine = sqlalchemy.create_engine(with_driver(url, "psycopg"), poolclass=NullPool)
    session = scoped_session(sessionmaker(engine))
    yield session
    session.remove()


@asynccontextmanager
async def psycopg_async(url: str) -> AsyncGenerator[tuple[Any, Any]]:
    connect: Any = psycopg.AsyncConnection.connect
    async with await connect(url, row_factory=dict_row) as connection:
        yield connection, connection


@asynccontextmanager
async def _sqlalchemy_async_session(url: str, driver: str) -> AsyncGenerator[tuple[Any, Any]]:
    engine = create_async_engine(with_driver(url, driver), poolclass=NullPool)
    async with AsyncSession(engine) as session:
        yield session, session


def sqlalchemy_async_psycopg(url: str) -> Any:
    return _sqlalchemy_async_session(url, "psycopg")


def sqlalchemy_async_asyncpg(url: str) -> Any:
    return _sqlalchemy_async_session(url, "asyncpg")


@asynccontextmanager
async def sqlalchemy_async_connection(url: str) -> AsyncGenerator[tuple[Any, Any]]:
    engine = create_async_engine(with_driver(url, "asyncpg"), poolclass=NullPool)
    async with engine.connect() as connection:
        yield connection, connection


@asynccontextmanager
async def asyncpg_plain(url: str) -> AsyncGenerator[tuple[Any, Any]]:
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    yield connection, transaction
    await connection.close()


@asynccontextmanager
async def asyncpg_from_a_pool(url: str) -> AsyncGenerator[tuple[Any, Any]]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        yield connection, transaction


SYNC: list[Callable[[str], Any]] = [
    psycopg_plain,
    psycopg_with_dict_rows,
    psycopg_with_raw_cursors,
    sqlalchemy_connection,
    sqlalchemy_session,
    sqlalchemy_scoped_session,
]
ASYNC: list[Callable[[str], Any]] = [
    psycopg_async,
    sqlalchemy_async_psycopg,
    sqlalchemy_async_asyncpg,
    sqlalchemy_async_connection,
    asyncpg_plain,
    asyncpg_from_a_pool,
]


@pytest.mark.parametrize("open_it", SYNC)
def test_commit_makes_the_task_exist_and_rollback_leaves_nothing(
    app: Horsies, database_url: str, db: Db, open_it: Callable[[str], Any]
) -> None:
    add = define_add(app)
    once = define_once(app)
    with open_it(database_url) as connection:
        sender = add.with_options(conn=connection)
        sender.send(1).unwrap()
        once.with_options(conn=connection).send(1).unwrap()
        add.with_options(conn=connection, idempotency_key="k").send(1).unwrap()
        connection.rollback()
        assert ids(db) == []

        handles = [
            sender.send(2).unwrap(),
            sender.schedule(5, 3).unwrap(),
            *sender.send_many([(4,)]).unwrap(),
        ]
        handles.append(once.with_options(conn=connection).send(1).unwrap())
        assert once.with_options(conn=connection).send(1).unwrap().task_id == handles[-1].task_id
        handles.append(add.with_options(conn=connection, idempotency_key="k").send(2).unwrap())
        assert ids(db) == []
        connection.commit()

    assert ids(db) == sorted(UUID(handle.task_id) for handle in handles)


@pytest.mark.parametrize("open_it", ASYNC)
def test_commit_makes_the_task_exist_and_rollback_leaves_nothing_async(
    app: Horsies, database_url: str, db: Db, open_it: Callable[[str], Any]
) -> None:
    add, once = define_add(app), define_once(app)

    async def roll_back() -> None:
        async with open_it(database_url) as (connection, transaction):
            (await add.with_options(conn=connection).send_async(1)).unwrap()
            (await once.with_options(conn=connection).send_async(1)).unwrap()
            (await add.with_options(conn=connection, idempotency_key="k").send_async(1)).unwrap()
            await transaction.rollback()

    async def commit() -> list[str]:
        async with open_it(database_url) as (connection, transaction):
            sender = add.with_options(conn=connection)
            handles = [(await sender.send_async(2)).unwrap(), (await sender.schedule_async(5, 3)).unwrap()]
            handles += (await sender.send_many_async([(4,)])).unwrap()
            handles.append((await once.with_options(conn=connection).send_async(1)).unwrap())
            again = (await once.with_options(conn=connection).send_async(1)).unwrap()
            assert again.task_id == handles[-1].task_id
            assert ids(db) == []
            await transaction.commit()
        return [handle.task_id for handle in handles]

    asyncio.run(roll_back())
    assert ids(db) == []
    assert db.execute("SELECT * FROM horsies_idempotency_keys").fetchall() == []
    sent = asyncio.run(commit())

    assert ids(db) == sorted(map(UUID, sent))


def define_once(app: Horsies) -> Any:
    @app.task("once", unique="args")
    def once(x: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=x)

    return once


def test_the_workers_of_the_queue_are_woken_after_the_commit_and_not_before(
    add: Add, database_url: str, db: Db
) -> None:
    db.execute('LISTEN "task_queue_default"')
    with psycopg.connect(database_url) as connection:
        add.with_options(conn=connection).send(1).unwrap()
        assert list(db.notifies(timeout=0.2)) == []
        connection.commit()

        (notification,) = db.notifies(timeout=5, stop_after=1)
        assert notification.channel == "task_queue_default"

        add.with_options(conn=connection).send(2).unwrap()
        connection.rollback()
        assert list(db.notifies(timeout=0.2)) == []


SYNC_SENDS: dict[str, Callable[[Any], object]] = {
    "send": lambda sender: sender.send(1),
    "delay": lambda sender: sender.delay(1),
    "schedule": lambda sender: sender.schedule(60, 1),
    "send_many": lambda sender: sender.send_many([(1,), (2,)]),
}
ASYNC_SENDS: dict[str, Callable[[Any], Any]] = {
    "send_async": lambda sender: sender.send_async(1),
    "delay_async": lambda sender: sender.delay_async(1),
    "schedule_async": lambda sender: sender.schedule_async(60, 1),
    "send_many_async": lambda sender: sender.send_many_async([(1,), (2,)]),
}


@pytest.mark.parametrize("method", SYNC_SENDS)
def test_a_transaction_does_not_commit_without_its_task(
    add: Add, database_url: str, db: Db, method: str
) -> None:
    with psycopg.connect(database_url) as connection:
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("SELECT 1/0")

        with pytest.raises(SendError) as raised:
            SYNC_SENDS[method](add.with_options(conn=connection))

        assert raised.value.code is TaskSendErrorCode.ENQUEUE_FAILED
        assert not raised.value.retryable
        assert isinstance(raised.value.__cause__, psycopg.errors.InFailedSqlTransaction)
        error = raised.value.error
        assert error is not None
        assert add.retry_send(error).unwrap_err().code is TaskSendErrorCode.VALIDATION_FAILED
    assert ids(db) == []


@pytest.mark.parametrize("method", ASYNC_SENDS)
def test_a_transaction_does_not_commit_without_its_task_async(
    add: Add, database_url: str, db: Db, method: str
) -> None:
    async def send() -> None:
        async with await psycopg.AsyncConnection.connect(database_url) as connection:
            with pytest.raises(psycopg.errors.DivisionByZero):
                await connection.execute("SELECT 1/0")
            with pytest.raises(SendError, match="ENQUEUE_FAILED"):
                await ASYNC_SENDS[method](add.with_options(conn=connection))

    asyncio.run(send())
    assert ids(db) == []


def test_a_call_that_cannot_be_encoded_raises_in_a_transaction_too(
    add: Add, database_url: str, db: Db
) -> None:
    with psycopg.connect(database_url) as connection:
        with pytest.raises(SendError, match=r"VALIDATION_FAILED: .*'x'"):
            add.with_options(conn=connection).send("one")
        with pytest.raises(SendError, match="VALIDATION_FAILED: call 1 of send_many is 'ab'"):
            add.with_options(conn=connection).send_many([(1,), cast("Any", "ab")])
        with pytest.raises(SendError, match="VALIDATION_FAILED: priority is 0"):
            add.with_options(conn=connection, priority=0).send(1)
    assert ids(db) == []


def test_a_connection_of_the_other_kind_is_refused_with_the_right_method(
    add: Add, database_url: str, db: Db
) -> None:
    async def send_sync_on_async() -> None:
        async with await psycopg.AsyncConnection.connect(database_url) as connection:
            add.with_options(conn=connection).send(1)

    async def send_async_on_sync() -> None:
        with psycopg.connect(database_url) as connection:
            await add.with_options(conn=connection).send_async(1)

    with pytest.raises(SendError, match=r"send_async\("):
        asyncio.run(send_sync_on_async())
    with pytest.raises(SendError, match=r"needs send\("):
        asyncio.run(send_async_on_sync())
    assert ids(db) == []


def test_what_is_no_connection_is_refused_with_what_is_one(add: Add, database_url: str) -> None:
    engine = sqlalchemy.create_engine(with_driver(database_url, "psycopg"))
    with psycopg.connect(database_url) as connection, connection.cursor() as cursor:
        for thing in (engine, cursor, "conn", 5, object()):
            with pytest.raises(SendError) as sync_error:
                add.with_options(conn=thing).send(1)
            with pytest.raises(SendError) as async_error:
                asyncio.run(add.with_options(conn=thing).send_async(1))
            for error in (sync_error.value, async_error.value):
                assert error.code is TaskSendErrorCode.VALIDATION_FAILED
                assert type(thing).__name__ in error.message
                assert "SQLAlchemy Session" in error.message


DJANGO_NEEDS = 14_00_00
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
from django.db import connection, connections, transaction
from horsies import AppConfig, Horsies, TaskError, TaskResult

app = Horsies(AppConfig.for_database_url(sys.argv[1]))

@app.task("add", unique="args")
def add(x: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=x)

try:
    with transaction.atomic():
        add.with_options(conn=connection).send(1).unwrap()
        raise LookupError
except LookupError:
    pass
with transaction.atomic():
    first = add.with_options(conn=connection).send(2).unwrap()
    assert add.with_options(conn=connection).send(2).unwrap().task_id == first.task_id
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM horsies_tasks")
        assert cursor.fetchone() == (1,)
with transaction.atomic():
    second = add.with_options(conn=connections["default"]).send(3).unwrap()
print(first.task_id, second.task_id)
"""


def test_a_django_transaction_carries_its_tasks(database_url: str, db: Db) -> None:
    if db.info.server_version < DJANGO_NEEDS:
        pytest.skip("Django refuses servers before PostgreSQL 14")
    script = [sys.executable, "-W", "error", "-c", textwrap.dedent(DJANGO), database_url]

    run = subprocess.run(script, capture_output=True, text=True, timeout=60, check=False)

    assert run.returncode == 0, run.stderr
    assert ids(db) == sorted(map(UUID, run.stdout.split()))
