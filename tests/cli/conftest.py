"""Commands as users run them, and what their errors look like."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from horsies.cli.signals import restored_handlers

SCREEN_LINES = 24


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> Iterator[None]:
    """What is started from here can be interrupted, even if we were started in the background, deaf to Ctrl-C."""
    with restored_handlers(signal.SIGINT):
        signal.signal(signal.SIGINT, signal.default_int_handler)
        yield


def refused(result: subprocess.CompletedProcess[str], code: str, *words: str) -> None:
    """The command failed with this error, said so on one screen, and named these things."""
    assert result.returncode == 1, result.stderr
    assert f"error[{code}]" in result.stderr
    assert "= help:" in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.splitlines()) <= SCREEN_LINES
    for word in words:
        assert word in result.stderr


def misused(result: subprocess.CompletedProcess[str], *words: str) -> None:
    """The command line could not be understood, for a reason that names these things."""
    assert result.returncode == 2, result.stderr
    assert result.stderr.startswith("error[HRS-206]: "), result.stderr
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr


@pytest.fixture
def deaf_port() -> Iterator[int]:
    """A port of this machine on which nobody listens, nor can for as long as the test runs."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
def stranger(role_maker: str, empty_database_url: str) -> Iterator[str]:
    """The URL of an empty database for a role that may log in and nothing else."""
    name = psycopg.conninfo.conninfo_to_dict(empty_database_url)["dbname"]
    role = f"stranger_{name}"
    host = empty_database_url.rpartition("@")[2]
    with psycopg.connect(empty_database_url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 's3cret'").format(sql.Identifier(role)))
        try:
            yield f"postgresql://{role}:s3cret@{host}"
        finally:
            admin.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(role)))
