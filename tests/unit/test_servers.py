"""The server of a test run is the one that was asked for, or the run says how to get it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.beside import verdict
from tests.support import fetch, servers
from tests.support.servers import ServerUnavailable, acquire, named


@pytest.mark.parametrize("nonsense", ["sytem", "localhost", "mysql://localhost/db"])
def test_an_unknown_server_is_refused_with_the_choices(nonsense: str, tmp_path: Path) -> None:
    with pytest.raises(ServerUnavailable, match="neither embedded, system, a major version such as 13, nor"):
        acquire(nonsense, tmp_path, {})


def test_a_version_that_was_not_fetched_is_refused_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "FETCHED", tmp_path / ".servers")

    with pytest.raises(ServerUnavailable, match="run `make servers`"):
        acquire("13", tmp_path / "home", {})


def test_a_server_that_does_not_answer_is_refused_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(ServerUnavailable, match="does not answer") as refusal:
        acquire("postgresql://ann:s3cret@127.0.0.1:1/postgres", tmp_path, {})

    assert "s3cret" not in str(refusal.value)


def test_a_url_with_a_query_is_refused_with_another_way(tmp_path: Path) -> None:
    with pytest.raises(ServerUnavailable, match="PGSSLMODE"):
        acquire("postgresql://ann@127.0.0.1:1/postgres?sslmode=require", tmp_path, {})


def test_a_system_without_postgresql_is_refused_with_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ServerUnavailable, match="apt-get install postgresql"):
        acquire("system", tmp_path, {})


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://ann:s3cret@db:5432/postgres", "postgresql://ann:s3cret@db:5432/app"),
        ("postgresql://ann@db", "postgresql://ann@db/app"),
        ("postgresql://db/postgres?sslrootcert=/etc/ca.pem", "postgresql://db/app?sslrootcert=/etc/ca.pem"),
    ],
)
def test_another_database_of_a_server_keeps_everything_else(url: str, expected: str) -> None:
    assert named(url, "app") == expected


def test_every_pinned_server_is_pinned_by_its_contents() -> None:
    assert all(pin.version.startswith(f"{major}.") for major, pin in fetch.PINS.items())
    assert all(len(bytes.fromhex(pin.sha256)) == 32 for pin in fetch.PINS.values())


@pytest.mark.parametrize(
    ("ratio", "unit", "said"),
    [
        (1.4, "ms", ""),
        (2.0, "ms", "SLOWER"),
        (0.5, "ms", "faster"),
        (2.0, "tasks/s", "faster"),
        (0.5, "tasks/s", "SLOWER"),
        (1.6, "bytes", "MORE"),
        (0.6, "bytes", "less"),
    ],
)
def test_a_row_that_is_off_by_more_than_half_is_flagged(ratio: float, unit: str, said: str) -> None:
    assert verdict(ratio, unit) == said
