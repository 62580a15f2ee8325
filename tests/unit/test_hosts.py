"""Connection strings with several hosts: only a primary will do, and a host that does not answer is tried last."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from horsies import PostgresConfig
from horsies.db import hosts
from horsies.db.connection import connection_string, explain_connection_error, is_refused, retry_pause_ms

THREE = "postgresql://ann:secret@a:1,b:2,c:3/shop"
REFUSED = 'connection to server at "x", port 1 failed: FATAL:  no pg_hba.conf entry for host "y"'
STANDBY = 'connection to server at "x", port 1 failed: session is read-only'


@pytest.fixture(autouse=True)
def orders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "_orders", {})
    monkeypatch.delenv("PGTARGETSESSIONATTRS", raising=False)


def parts(url: str, *names: str) -> list[object]:
    found = conninfo_to_dict(connection_string(url))
    return [found.get(name) for name in names]


def servers(url: str) -> list[object]:
    return parts(url, "host", "port")


def failure(*reasons: str) -> psycopg.OperationalError:
    """Return the error of psycopg for attempts that failed for these reasons."""
    lines = [f"- host: 'h', port: '1', hostaddr: '::1': connection failed: {reason}" for reason in reasons]
    return psycopg.OperationalError(
        "\n".join([reasons[-1], "Multiple connection attempts failed. All failures were:", *lines])
    )


def test_of_several_hosts_only_one_that_accepts_writes_is_taken() -> None:
    assert parts(THREE, "target_session_attrs") == ["read-write"]
    assert parts("postgresql://a:1/shop", "target_session_attrs") == [None]


def test_what_the_url_or_the_environment_says_about_servers_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parts(f"{THREE}?target_session_attrs=any", "target_session_attrs") == ["any"]
    monkeypatch.setenv("PGTARGETSESSIONATTRS", "primary")
    assert parts(THREE, "target_session_attrs") == [None]


def test_one_of_several_hosts_has_less_time_to_answer() -> None:
    assert parts(THREE, "connect_timeout") == [str(hosts.CONNECT_SECONDS)]
    assert parts(f"{THREE}?connect_timeout=7", "connect_timeout") == ["7"]
    assert parts("postgresql://a:1/shop", "connect_timeout") == ["10"]


def test_the_host_that_worked_last_is_tried_first_and_one_that_stopped_answering_last() -> None:
    assert servers(THREE) == ["a,b,c", "1,2,3"]
    hosts.prefer(connection_string(THREE), "b", 2)
    assert servers(THREE) == ["b,a,c", "2,1,3"]
    hosts.avoid(connection_string(THREE), "b", 2)
    assert servers(THREE) == ["a,c,b", "1,3,2"]
    assert servers("postgresql://a:1,b:2/shop") == ["a,b", "1,2"]


def test_an_order_does_not_count_for_other_sessions() -> None:
    hosts.prefer(connection_string(f"{THREE}?target_session_attrs=any"), "c", 3)
    assert servers(THREE) == ["a,b,c", "1,2,3"]
    assert servers(f"{THREE}?target_session_attrs=any") == ["c,a,b", "3,1,2"]


@pytest.mark.parametrize(
    ("url", "host", "port", "expected"),
    [
        ("postgresql:///shop?host=a,b", "b", 5432, ["b,a", None]),
        ("postgresql:///shop?host=a,b&port=7", "b", 7, ["b,a", "7,7"]),
        ("postgresql:///shop?hostaddr=::1,::2&port=7,8", "::2", 8, [None, "8,7"]),
        ("postgresql://[::1]:5,[::2]:6/shop", "::2", 6, ["::2,::1", "6,5"]),
        ("postgresql://a,a:6/shop", "a", 6, ["a,a", "6,"]),
    ],
)
def test_hosts_and_ports_stay_together(url: str, host: str, port: int, expected: list[object]) -> None:
    hosts.prefer(connection_string(url), host, port)
    assert servers(url) == expected


def test_a_url_whose_hosts_and_ports_do_not_match_is_left_to_libpq() -> None:
    assert servers("postgresql:///shop?host=a,b,c&port=1,2") == ["a,b,c", "1,2"]
    assert not hosts.are_several("postgresql://ann@[b,c/shop")


def test_servers_that_refuse_a_login_end_a_worker_only_if_all_of_them_do() -> None:
    assert is_refused(failure(REFUSED, REFUSED))
    assert not is_refused(failure(REFUSED, STANDBY))
    assert not is_refused(failure(STANDBY, REFUSED))


def test_an_error_names_what_each_server_said_and_the_remedy() -> None:
    error = explain_connection_error(failure(STANDBY, STANDBY), PostgresConfig(database_url=THREE))
    assert error.message.count("session is read-only") == 2
    assert "accepts no writes" in error.message
    assert "secret" not in str(error)
    assert "promote" in str(error)


def test_an_error_of_a_standby_behind_a_single_host_says_that_it_is_one() -> None:
    error = psycopg.errors.ReadOnlySqlTransaction("cannot execute INSERT in a read-only transaction")
    explained = explain_connection_error(error, PostgresConfig(database_url="postgresql://a/shop"))
    assert "accepts no writes" in explained.message


def test_pauses_between_tries_are_short_while_another_server_may_take_over() -> None:
    assert retry_pause_ms(PostgresConfig(database_url=THREE), 30_000) == 1_000
    assert retry_pause_ms(PostgresConfig(database_url=THREE), 500) == 500
    assert retry_pause_ms(PostgresConfig(database_url="postgresql://a/shop"), 30_000) == 30_000
