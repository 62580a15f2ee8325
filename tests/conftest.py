"""A real PostgreSQL for every test: one server for the run, one database for each test, cloned from a template."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from horsies import PostgresConfig
from horsies.db.migrations import migrate
from tests.support import servers
from tests.support.servers import drop_database, named
from tests.support.soundness import ailments
from tests.support.workers import Workplace

HOME_VARIABLE = "HORSIES_TEST_SERVER_HOME"
MEMORY_NEEDED = 4 * 1024**3
# Fast rather than safe, for servers that end with the run.
SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "on",
    "max_connections": "300",
    "full_page_writes": "off",
}

# Not SIGALRM: pytest-timeout uses it, and gives it up when a test fails.
WATCHED_SIGNALS = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2
)  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    # A shell that runs a command in the background lets it ignore Ctrl-C, and the programs of the tests would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # xdist workers inherit the variable, so that all share the server of this run.
    if HOME_VARIABLE not in os.environ:
        home = Path(tempfile.mkdtemp(prefix="horsies-tests-", dir=_memory()))
        home.chmod(0o755)  # so that the server can live there, whoever it runs as
        if servers.choice() != "embedded":  # which the first test that needs it starts
            _acquire(home)
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
        if (home / "url").exists() and not servers.is_ours(servers.choice()):
            with psycopg.connect((home / "url").read_text(), autocommit=True) as admin:
                for name in (_template(home), f"{_template(home)}_new"):
                    admin.execute(sql.SQL("DROP DATABASE IF EXISTS {}").format(sql.Identifier(name)))
        servers.release(servers.choice(), home)
        shutil.rmtree(home)


def _acquire(home: Path) -> None:
    """Start or join the chosen server once for all processes, which read its URL from a private file."""
    try:
        url = servers.acquire(servers.choice(), home, SETTINGS)
    except servers.ServerUnavailable as error:
        shutil.rmtree(home)
        pytest.exit(str(error), returncode=pytest.ExitCode.USAGE_ERROR)
    (home / "url").touch(mode=0o600)
    (home / "url").write_text(url)


def _template(home: Path) -> str:
    """Return the name of this run's template database. Other runs may share the server."""
    return home.name.replace("-", "_") + "_template"


@pytest.fixture(autouse=True)
def _leaks_are_found_where_they_happen() -> Iterator[None]:
    """Fail the test that leaves an unclosed resource, a signal handler or an open pipe, and not a later one."""
    gc.freeze()  # what is older than the test need not be looked at again
    handlers, pipes = _signal_handlers(), _open_pipes()
    yield
    gc.collect()
    # A signal handler keeps all that it refers to, where no garbage collection finds it.
    changed = {number: found for number, found in _signal_handlers().items() if found != handlers[number]}
    for number in changed:
        signal.signal(number, handlers[number] or signal.SIG_DFL)  # None: it was not set by Python
    left = _open_pipes() - pipes
    assert not changed, f"the test leaves signal handlers behind: {changed}"
    assert not left, f"the test leaves open pipes behind: {left}"


def _signal_handlers() -> dict[signal.Signals, Any]:
    return {number: signal.getsignal(number) for number in WATCHED_SIGNALS}


def _open_pipes() -> set[tuple[int, int]]:
    """Return the inode and the descriptor of each end of a pipe that this process has open."""
    ends: set[tuple[int, int]] = set()
    for name in os.listdir("/dev/fd"):  # noqa: PTH208  paths would cost more than the look itself
        with suppress(OSError):  # the descriptor of the folder itself, or another thread has closed it
            status = os.fstat(int(name))
            if stat.S_ISFIFO(status.st_mode):
                ends.add((status.st_ino, int(name)))
    return ends


@pytest.fixture(scope="session")
def server_url() -> str:
    """The maintenance database of this run's server."""
    home = Path(os.environ[HOME_VARIABLE])
    if (home / "url").exists():
        return (home / "url").read_text()
    return servers.acquire(servers.choice(), home, SETTINGS)


@pytest.fixture(scope="session")
def role_maker(server_url: str) -> str:
    """The server's URL for tests that create roles, which skip where its user is no superuser."""
    if not servers.is_superuser(server_url):
        pytest.skip(f"creates roles, and the user of {servers.CHOICE_VARIABLE} is no superuser")
    return server_url


@pytest.fixture(scope="session")
def template(server_url: str) -> str:
    """A database with the schema, made once for all test processes."""
    name = _template(Path(os.environ[HOME_VARIABLE]))
    with psycopg.connect(server_url, autocommit=True) as admin:
        admin.execute("SELECT pg_advisory_lock(1)")
        exists = admin.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone()
        if exists is None:
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(f"{name}_new")))
            url = named(server_url, f"{name}_new")
            asyncio.run(migrate(PostgresConfig(database_url=url)))
            with psycopg.connect(url, autocommit=True) as owner:
                owner.execute(
                    "REVOKE CREATE ON SCHEMA public FROM PUBLIC"
                )  # which has it before PostgreSQL 15
            admin.execute(
                sql.SQL("ALTER DATABASE {} RENAME TO {}").format(
                    sql.Identifier(f"{name}_new"), sql.Identifier(name)
                )
            )
    return name


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
            yield named(server_url, name)
        finally:
            drop_database(admin, name)


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
