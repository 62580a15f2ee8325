"""`transact` in the sessions of SQLAlchemy, and beside a schema of its own."""

from __future__ import annotations

import pytest

from tests.e2e.observing import Db
from tests.e2e.office import Office, staffed
from tests.support.workers import Workplace

APP = """
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

app = Horsies(AppConfig(broker=PostgresConfig(database_url=URL, schema=None)))
DRIVER = URL.replace("postgresql://", "postgresql+psycopg://")
Session = sessionmaker(create_engine(DRIVER))
AsyncSession = async_sessionmaker(create_async_engine(DRIVER))

def book(session, word):
    session.execute(text("INSERT INTO effects VALUES (:word)"), {"word": word})
    if word == "bad":
        raise ValueError("no room")
    return word

async def book_async(session, word):
    await session.execute(text("INSERT INTO effects VALUES (:word)"), {"word": word})
    if word == "bad":
        raise ValueError("no room")
    return word

def commit(session):
    session.commit()

def plain(connection, word):
    connection.execute("INSERT INTO effects VALUES (%s)", [word])
    return word

def plain_commit(connection):
    connection.commit()

@app.task("sync")
def sync(word: str) -> str:
    return current_task().transact("book", book, word, session=Session)

@app.task("asynchronous")
async def asynchronous(word: str) -> str:
    t = current_async_task()
    first = await t.transact("book", book_async, word, session=AsyncSession)
    return first + " " + await t.transact("plainly", book, word + " too", session=Session)

@app.task("on_psycopg")
def on_psycopg(word: str) -> str:
    return current_task().transact("book", plain, word)

@app.task("commits")
def commits(how: str) -> str:
    t = current_task()
    try:
        t.transact("book", commit, session=Session) if how == "session" else t.transact("book", plain_commit)
    except Exception as error:
        return type(error).__name__
    return "committed"

@app.task("strange")
def strange() -> None:
    current_task().transact("book", book, "x", session=lambda: open(os.devnull))
"""


@pytest.fixture(scope="module")
def office(shared_workplace: Workplace) -> Office:
    return staffed(shared_workplace, APP, "--processes", "2", "--async-processes", "1")


@pytest.fixture
def effects(shared_db: Db) -> Db:
    shared_db.execute("DROP TABLE IF EXISTS effects")
    shared_db.execute("CREATE TABLE effects (word text)")
    return shared_db


def words(db: Db) -> list[str]:
    return [row["word"] for row in db.execute("SELECT word FROM effects ORDER BY word").fetchall()]


def test_a_session_of_sqlalchemy_commits_with_its_step(office: Office, effects: Db) -> None:
    handle = office.tasks.sync.delay("good")
    assert handle.result(timeout=20) == "good"
    assert [(step.name, step.kind, step.result) for step in handle.steps()] == [("book", "transact", "good")]
    assert office.tasks.asynchronous.delay("fine").result(timeout=20) == "fine fine too"
    assert words(effects) == ["fine", "fine too", "good"]


@pytest.mark.parametrize("name", ["sync", "asynchronous"])
def test_an_error_rolls_the_effect_back_and_stores_nothing(office: Office, effects: Db, name: str) -> None:
    handle = getattr(office.tasks, name).delay("bad")
    assert handle.get(timeout_ms=20_000).is_err()
    assert handle.steps() == []
    assert words(effects) == []


@pytest.mark.parametrize("how", ["session", "connection"])
def test_a_function_cannot_commit_before_its_step(office: Office, effects: Db, how: str) -> None:
    assert office.tasks.commits.delay(how).result(timeout=20) != "committed"


def test_something_else_than_a_session_is_an_error(office: Office) -> None:
    result = office.tasks.strange.delay().get(timeout_ms=20_000)
    assert "begin" in result.err_value.message or "session" in result.err_value.message


def test_the_tables_may_be_in_a_schema_of_their_own(workplace: Workplace, db: Db) -> None:
    """The session of a function has the search path of its user, and finds the tables of horsies all the same."""
    db.execute("CREATE TABLE effects (word text)")
    placed = staffed(workplace, APP.replace("schema=None", 'schema="jobs"'), "--processes", "1")
    assert placed.tasks.sync.delay("session").result(timeout=20) == "session"
    assert placed.tasks.on_psycopg.delay("psycopg").result(timeout=20) == "psycopg"
    assert words(db) == ["psycopg", "session"]
    row = db.execute("SELECT count(*) AS steps FROM jobs.horsies_steps").fetchone()
    assert row == {"steps": 2}
