"""A real PostgreSQL for every test: one server for the run, one database for each test, cloned from a template."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from horsies import PostgresConfig, embedded
from horsies.storage.migrate import migrate
from tests.support.soundness import ailments
from tests.support.workers import Workplace

HOME_VARIABLE = "HORSIES_TEST_SERVER_HOME"
TEMPLATE = "horsies_template"
MEMORY_NEEDED = 4 * 1024**3


def pytest_configure(config: pytest.Config) -> None:
    # xdist workers inherit the variable, so that all share the server of this run.
    if HOME_VARIABLE not in os.environ:
        home = Path(tempfile.mkdtemp(prefix="horsies-tests-", dir=_memory()))
        home.chmod(0o755)  # so that the server can live there, whoever it runs as
        os.environ[HOME_VARIABLE] = str(home)
        config.stash[_starter] = True
    config.addinivalue_line("markers", "breaks_invariants: leaves its database as no worker would")


_starter = pytest.StashKey[bool]()


def _memory() -> Path | None:
    """A file system in memory with room for the server, if there is one: a database for each test is many files."""
    memory = Path("/dev/shm")
    is_fit = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > MEMORY_NEEDED
    return memory if is_fit else None


def pytest_unconfigure(config: pytest.Config) -> None:
    if config.stash.get(_starter, False):
        home = Path(os.environ.pop(HOME_VARIABLE))
        embedded.stop(home, remove=True)
        shutil.rmtree(home)


@pytest.fixture(scope="session")
def server_url() -> str:
    """The maintenance database of this run's server."""
    settings = {
        "fsync": "off",
        "synchronous_commit": "on",
        "max_connections": "300",
        "full_page_writes": "off",
    }
    return embedded.ensure(Path(os.environ[HOME_VARIABLE]), settings=settings, announce=lambda _: None).url


@pytest.fixture(scope="session")
def template(server_url: str) -> str:
    """A database with the schema, made once for all test processes."""
    with psycopg.connect(server_url, autocommit=True) as admin:
        admin.execute("SELECT pg_advisory_lock(1)")
        exists = admin.execute("SELECT 1 FROM pg_database WHERE datname = %s", (TEMPLATE,)).fetchone()
        if exists is None:
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(f"{TEMPLATE}_new")))
            url = _named(server_url, f"{TEMPLATE}_new")
            asyncio.run(migrate(PostgresConfig(database_url=url)))
            admin.execute(
                sql.SQL("ALTER DATABASE {} RENAME TO {}").format(
                    sql.Identifier(f"{TEMPLATE}_new"), sql.Identifier(TEMPLATE)
                )
            )
    return TEMPLATE


@pytest.fixture
def database_url(server_url: str, template: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database of this test's own, with the schema in it. Whatever the test did, it must be sound in the end."""
    with _database(server_url, template) as url:
        yield url
        if request.node.get_closest_marker("breaks_invariants") is None:
            assert ailments(url) == []


@pytest.fixture
def empty_database_url(server_url: str) -> Iterator[str]:
    """A database of this test's own with nothing in it."""
    with _database(server_url, "template1") as url:
        yield url


@contextmanager
def _database(server_url: str, template: str) -> Iterator[str]:
    name = f"test_{uuid4().hex}"
    with psycopg.connect(server_url, autocommit=True) as admin:
        admin.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
        )
        try:
            yield _named(server_url, name)
        finally:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _named(url: str, database: str) -> str:
    return url.rpartition("/")[0] + f"/{database}"


@pytest.fixture
def db(database_url: str) -> Iterator[psycopg.Connection[dict[str, Any]]]:
    """A plain session on this test's database, to look at what is stored; rows are dicts."""
    with psycopg.connect(database_url, autocommit=True, row_factory=psycopg.rows.dict_row) as connection:
        yield connection


@pytest.fixture
def workplace(tmp_path: Path, database_url: str) -> Iterator[Workplace]:
    """A folder with an app of the test's own, and workers started in it as users start them."""
    with Workplace(tmp_path, database_url) as place:
        yield place
