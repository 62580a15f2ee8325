"""Who gets in, and with which settings the server runs."""

import stat
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from horsies import embedded


@pytest.fixture
def without_password(shared):
    url = urlsplit(shared.url)
    # no password from the environment or from ~/.pgpass either
    return {"user": url.username, "port": url.port, "dbname": "postgres", "passfile": "/dev/null"}


@pytest.fixture(params=["TCP", "socket"])
def door(request, shared):
    return "127.0.0.1" if request.param == "TCP" else str(shared.data_dir.parent / "run")


def test_no_door_opens_without_the_password(door, without_password, monkeypatch):
    monkeypatch.delenv("PGPASSWORD", raising=False)

    with pytest.raises(psycopg.OperationalError, match="no password supplied"):
        psycopg.connect(host=door, **without_password)
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(host=door, password="guess", **without_password)


def test_every_door_opens_with_the_password(door, without_password, shared):
    with psycopg.connect(host=door, password=urlsplit(shared.url).password, **without_password) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_the_password_is_kept_private_and_out_of_sight(shared, shared_home):
    password = urlsplit(shared.url).password
    assert password is not None

    assert stat.S_IMODE((shared_home / "password").stat().st_mode) == 0o600
    assert stat.S_IMODE(shared.data_dir.stat().st_mode) == 0o700
    assert password not in repr(shared)
    assert password not in (shared.data_dir.parent / "server.log").read_text()


def test_the_server_hears_only_this_machine(shared, ask):
    assert ask(shared.url, "SHOW listen_addresses") == "127.0.0.1"


def test_the_secrets_of_the_starter_do_not_reach_the_server(shared):
    environment = Path(f"/proc/{shared.pid}/environ").read_bytes()

    assert b"LC_ALL=C" in environment
    assert b"s3cret" not in environment


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("max_connections", "200"),
        ("TimeZone", "UTC"),
        ("server_encoding", "UTF8"),
        ("shared_buffers", "128MB"),
    ],
)
def test_the_settings_suit_development(shared, ask, setting, value):
    assert ask(shared.url, f"SHOW {setting}") == value


def test_a_callers_settings_hold_and_the_default_keeps_commits_safe(shared, home, ask):
    server = embedded.ensure(home)

    assert ask(server.url, "SHOW fsync") == "on"
    assert ask(shared.url, "SHOW fsync") == "off"
