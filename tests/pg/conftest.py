"""Apps, tasks and a worker's hands on the database of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult
from horsies.task import Task
from tests.pg.hands import Hands
from tests.pg.players import Player
from tests.pg.stepped_scheduler import SteppedScheduler
from tests.support.proxy import Proxy
from tests.support.servers import drop_database, named
from tests.support.soundness import ailments

Add = Task[..., int]


def define_add(app: Horsies, **options: Any) -> Add:
    """The task that most tests send."""

    @app.task("add", **options)
    def add(x: int, y: int = 0) -> TaskResult[int, TaskError]:
        return TaskResult(ok=x + y)

    return add


def new_apps(database_url: str) -> Iterator[Callable[..., Horsies]]:
    """Makes apps on a database, or on another by `url`, and closes them in the end."""
    apps: list[Horsies] = []

    def make(*, url: str = database_url, pool: dict[str, Any] | None = None, **settings: Any) -> Horsies:
        app = Horsies(AppConfig(broker=PostgresConfig(database_url=url, **pool or {}), **settings))
        apps.append(app)
        return app

    yield make

    async def close() -> None:
        for app in apps:
            await app.get_broker().close_async()

    asyncio.run(close())


@pytest.fixture
def make_app(database_url: str) -> Iterator[Callable[..., Horsies]]:
    yield from new_apps(database_url)


@pytest.fixture(scope="module")
def quiet_url(server_url: str, template: str) -> Iterator[str]:
    """One database for a module whose tests store nothing."""
    yield from quiet_database(server_url, template)


def quiet_database(server_url: str, template: str) -> Iterator[str]:
    """A database in which everything must be in order at the end."""
    name = f"quiet_{uuid4().hex}"
    with psycopg.connect(server_url, autocommit=True) as admin:
        admin.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
        )
        url = named(server_url, name)
        yield url
        assert ailments(url) == []
        drop_database(admin, name)


@pytest.fixture
def app(make_app: Callable[..., Horsies]) -> Horsies:
    return make_app()


@pytest.fixture
def add(app: Horsies) -> Add:
    return define_add(app)


@pytest.fixture
def hire(database_url: str) -> Iterator[Callable[[], Hands]]:
    """As many workers' hands as the test needs."""
    started: list[Hands] = []

    def new() -> Hands:
        started.append(Hands(database_url))
        return started[-1]

    yield new
    for hands in started:
        hands.close()


@pytest.fixture
def hands(hire: Callable[[], Hands]) -> Hands:
    return hire()


@pytest.fixture
def proxy(database_url: str) -> Iterator[Proxy]:
    with Proxy(database_url) as proxy:
        yield proxy


@pytest.fixture
def hire_player(database_url: str) -> Iterator[Callable[..., Player]]:
    players: list[Player] = []

    def hire(url: str = database_url) -> Player:
        players.append(Player(url))
        return players[-1]

    yield hire
    for player in players:
        player.close()


@pytest.fixture
def player(hire_player: Callable[..., Player]) -> Player:
    return hire_player()


@pytest.fixture
def new_scheduler(database_url: str, app: Horsies) -> Iterator[Callable[..., SteppedScheduler]]:
    """As many schedulers as the test needs, of the app or of another."""
    started: list[SteppedScheduler] = []

    def new(of: Horsies = app) -> SteppedScheduler:
        started.append(SteppedScheduler(database_url, of))
        return started[-1]

    yield new
    for scheduler in started:
        scheduler.close()


@pytest.fixture
def scheduler(app: Horsies, new_scheduler: Callable[..., SteppedScheduler]) -> SteppedScheduler:
    define_add(app)
    return new_scheduler()
