"""Logging in with a token: sessions end, guessing is throttled, and the size of a request is limited."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx2 as httpx
import pytest

from horsies.errors import ConfigurationError
from horsies.web import auth, create_dashboard
from horsies.web.auth import COOKIE, MAX_REVOKED, Sessions, Throttle
from tests.web.conftest import BASE, INTENT, calls, get, post

NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"
TOKEN = "a-token-that-is-long-enough"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
WRONG = {"Authorization": "Bearer wrong"}
INSIDE = "/api/openapi.json"


def dashboard(**settings: Any) -> Any:
    return create_dashboard(NOWHERE, **{"token": TOKEN, **settings})


def log_in(token: str = TOKEN, **headers: str) -> Any:
    return "POST", "/login", {"data": {"token": token, "next": "/"}, "headers": headers}


def cookie(answer: httpx.Response) -> str:
    found = re.match(f"{COOKIE}=([^;]*)", answer.headers["set-cookie"])
    assert found is not None
    return found[1]


def with_cookie(value: str, path: str = INSIDE) -> Any:
    return get(path, headers={"Cookie": f"{COOKIE}={value}"})


class Clock:
    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


# Sessions


def test_every_login_has_a_session_of_its_own() -> None:
    app = dashboard()

    first, second = (cookie(calls(app, log_in())[0]) for _ in range(2))

    assert first != second
    assert [each.status_code for each in calls(app, with_cookie(first), with_cookie(second))] == [200, 200]


def test_a_session_ends_after_its_lifetime() -> None:
    clock = Clock()
    sessions = Sessions(TOKEN, timedelta(hours=12), clock)
    issued = sessions.issue()

    assert sessions.check(issued) is not None
    clock.now += 12 * 3600 - 1
    assert sessions.check(issued) is not None
    clock.now += 2
    assert sessions.check(issued) is None


def test_an_expired_cookie_is_refused_by_the_dashboard() -> None:
    long_ago = Sessions(TOKEN, clock=lambda: 1_000_000_000.0).issue()

    assert calls(dashboard(), with_cookie(long_ago))[0].status_code == 401
    assert calls(dashboard(), with_cookie(Sessions(TOKEN).issue()))[0].status_code == 200


@pytest.mark.parametrize("lifetime", [timedelta(0), timedelta(seconds=-1), timedelta(days=366)])
def test_a_lifetime_that_makes_no_sense_is_refused(lifetime: timedelta) -> None:
    with pytest.raises(ConfigurationError, match="session lifetime"):
        dashboard(session_lifetime=lifetime)


def test_another_token_ends_all_sessions() -> None:
    issued = cookie(calls(dashboard(), log_in())[0])

    assert calls(dashboard(token=TOKEN), with_cookie(issued))[0].status_code == 200
    assert calls(dashboard(token=TOKEN + "2"), with_cookie(issued))[0].status_code == 401


def test_a_cookie_that_was_changed_is_no_session() -> None:
    issued = Sessions(TOKEN).issue()
    when, session_id, signature = issued.split(".")
    later = f"{int(when) + 1}.{session_id}.{signature}"
    for forged in (later, f"{when}.{session_id}x.{signature}", issued[:-1], signature, "", "..", "é.é.é"):
        assert Sessions(TOKEN).check(forged) is None


def test_logging_out_ends_the_session_for_whoever_has_the_cookie() -> None:
    app = dashboard()
    mine, other = (cookie(calls(app, log_in())[0]) for _ in range(2))
    out = ("POST", "/logout", {"headers": {**INTENT, "Cookie": f"{COOKIE}={mine}"}})

    (answer,) = calls(app, out)

    assert answer.status_code == 200
    assert cookie(answer) in ("", '""')
    assert "Max-Age=0" in answer.headers["set-cookie"]
    assert [each.status_code for each in calls(app, with_cookie(mine), with_cookie(other))] == [401, 200]


def test_a_page_of_another_site_cannot_log_anybody_out() -> None:
    app = dashboard()
    mine = cookie(calls(app, log_in())[0])
    own = {"Cookie": f"{COOKIE}={mine}"}
    for headers in (
        own,
        {**own, **INTENT, "Origin": "http://evil.example"},
        {**own, **INTENT, "Sec-Fetch-Site": "cross-site"},
    ):
        assert calls(app, ("POST", "/logout", {"headers": headers}))[0].status_code == 403
    assert calls(app, ("GET", "/logout", {"headers": {**own, **INTENT}}))[0].status_code == 405
    assert calls(app, with_cookie(mine))[0].status_code == 200


def test_there_is_a_log_out_button_only_where_there_is_a_session() -> None:
    app = dashboard()
    (by_session,) = calls(app, with_cookie(cookie(calls(app, log_in())[0]), "/api"))
    (by_token,) = calls(app, get("/api", headers=BEARER))
    (local,) = calls(create_dashboard(NOWHERE), get("/api"))

    assert 'id="logout"' in by_session.text
    assert 'id="logout"' not in by_token.text
    assert 'id="logout"' not in local.text


def test_when_too_many_sessions_were_ended_to_remember_all_older_ones_end() -> None:
    clock = Clock()
    sessions = Sessions(TOKEN, clock=clock)
    ended, open_ = sessions.issue(), sessions.issue()
    first = sessions.check(ended)
    assert first is not None
    sessions.revoke(first)
    for number in range(MAX_REVOKED):
        sessions.revoke(first._replace(id=str(number)))

    assert sessions.check(ended) is None
    assert sessions.check(open_) is None
    clock.now += 2
    assert sessions.check(sessions.issue()) is not None


def test_the_cookie_is_for_the_browser_alone_and_for_https_where_that_is_used() -> None:
    def flags(headers: dict[str, str] | None = None, **more: Any) -> set[str]:
        (answer,) = calls(dashboard(), log_in(**(headers or {})), **more)
        return set(answer.headers["set-cookie"].lower().split("; ")[1:])

    assert flags() == {"httponly", "samesite=strict", "path=/"}
    assert "secure" in flags(base="https://localhost")
    assert "secure" in flags({"X-Forwarded-Proto": "https"})
    assert "secure" not in flags({"X-Forwarded-Proto": "https"}, client="10.1.2.3")


# Guessing


def test_wrong_tokens_from_one_address_are_refused_for_longer_and_longer() -> None:
    clock = Clock()
    limits = Throttle(clock)
    seen: list[int] = []
    for _ in range(12):
        limits.failed("192.0.2.1")
        seen.append(limits.blocked_seconds("192.0.2.1"))
        clock.now += seen[-1]

    assert seen == [0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60]
    assert limits.blocked_seconds("192.0.2.1") == 0


def test_an_address_with_a_correct_token_begins_anew() -> None:
    clock = Clock()
    limits = Throttle(clock)
    for _ in range(auth.FREE_FAILURES):
        limits.failed("192.0.2.1")
    limits.succeeded("192.0.2.1")

    assert limits.blocked_seconds("192.0.2.1") == 0
    limits.failed("192.0.2.1")
    assert limits.blocked_seconds("192.0.2.1") == 0


def test_failures_are_forgotten_after_a_while() -> None:
    clock = Clock()
    limits = Throttle(clock)
    for _ in range(20):
        limits.failed("192.0.2.1")
    clock.now += auth.FORGET_SECONDS + 1
    limits.failed("192.0.2.1")

    assert limits.blocked_seconds("192.0.2.1") == 0


def test_all_addresses_of_one_ipv6_network_count_as_one() -> None:
    limits = Throttle(Clock())
    for host in range(auth.FREE_FAILURES):
        limits.failed(f"2001:db8:1:2::{host}")

    assert limits.blocked_seconds("2001:db8:1:2:ffff::1") > 0
    assert limits.blocked_seconds("2001:db8:1:3::1") == 0


def test_while_many_addresses_fail_strangers_are_delayed_and_nobody_is_locked_out() -> None:
    clock = Clock()
    limits = Throttle(clock)
    limits.succeeded("198.51.100.1")
    for number in range(1_000):
        limits.failed(f"10.0.{number // 256}.{number % 256}")

    assert limits.delay_seconds("203.0.113.9") == auth.LONGEST_DELAY_SECONDS
    assert limits.blocked_seconds("203.0.113.9") == 0
    assert limits.delay_seconds("198.51.100.1") == 0
    clock.now += auth.WINDOW_SECONDS + 1
    assert limits.delay_seconds("203.0.113.9") == 0


def test_what_is_remembered_of_addresses_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "MAX_ADDRESSES", 100)
    monkeypatch.setattr(auth, "MAX_KNOWN", 100)
    limits = Throttle(Clock())
    for number in range(1_000):
        address = f"10.0.{number // 256}.{number % 256}"
        limits.succeeded(address)
        limits.failed(address)

    assert max(len(value) for value in vars(limits).values() if hasattr(value, "__len__")) <= 100


@pytest.mark.parametrize("attempt", [log_in("wrong"), get(INSIDE, headers=WRONG)])
def test_after_a_few_wrong_tokens_even_the_right_one_is_refused_from_that_address_alone(attempt: Any) -> None:
    app = dashboard()

    failed = calls(app, *[attempt] * auth.FREE_FAILURES, client="192.0.2.1")
    late = calls(app, attempt, log_in(), get(INSIDE, headers=BEARER), client="192.0.2.1")
    others = calls(app, log_in(), get(INSIDE, headers=BEARER), client="192.0.2.2")

    assert {answer.status_code for answer in failed} <= {401, 403}
    assert [answer.status_code for answer in late] == [429, 429, 429]
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in late)
    assert [answer.status_code for answer in others] == [303, 200]


def test_a_browser_that_is_logged_in_is_not_refused_for_what_others_at_its_address_guess() -> None:
    app = dashboard()
    mine = cookie(calls(app, log_in())[0])

    calls(app, *[log_in("wrong")] * auth.FREE_FAILURES)

    assert calls(app, with_cookie(mine))[0].status_code == 200


def test_behind_a_trusted_proxy_the_clients_of_the_proxy_are_told_apart() -> None:
    app = dashboard()
    guesser = {"X-Forwarded-For": "10.9.9.9, 203.0.113.5"}
    calls(app, *[log_in("wrong", **guesser)] * auth.FREE_FAILURES)

    (same,) = calls(app, log_in(**{"X-Forwarded-For": "10.8.8.8, 203.0.113.5"}))
    (other,) = calls(app, log_in(**{"X-Forwarded-For": "203.0.113.6"}))
    (direct,) = calls(app, log_in())

    assert [same.status_code, other.status_code, direct.status_code] == [429, 303, 303]


def test_a_client_that_is_no_trusted_proxy_cannot_choose_its_address() -> None:
    app = dashboard()
    for number in range(auth.FREE_FAILURES):
        calls(app, log_in("wrong", **{"X-Forwarded-For": f"203.0.113.{number}"}), client="192.0.2.1")

    (answer,) = calls(app, log_in(**{"X-Forwarded-For": "203.0.113.99"}), client="192.0.2.1")

    assert answer.status_code == 429


# How much is read


def read_of_a_long_request(path: str, headers: dict[str, str], chunks: int) -> tuple[int, int]:
    """Send a body in chunks of 1 kB without a length; return the status and the number of chunks read."""
    taken = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal taken
        for _ in range(chunks):
            taken += 1
            yield b"token=" + b"x" * 1_018

    async def make() -> int:
        app = create_dashboard(NOWHERE, token=TOKEN, enable_actions=True)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=BASE) as client:
            answer = await client.post(path, content=body(), headers=headers)
            assert "content-length" not in answer.request.headers
            return answer.status_code

    return asyncio.run(make()), taken


def test_a_login_without_end_is_refused_after_a_few_kilobytes() -> None:
    status, taken = read_of_a_long_request("/login", {}, 10_000)

    assert status == 413
    assert taken < 10


def test_an_action_without_end_is_refused_after_its_bound() -> None:
    status, taken = read_of_a_long_request("/api/tasks/cancel", {**INTENT, **BEARER}, 10_000)

    assert status == 413
    assert taken < 5_000


def test_a_body_that_announces_too_much_is_refused_before_it_is_read() -> None:
    form = {"content": b"token=x", "headers": {"Content-Length": "1000000000"}}
    action = {"content": b"{}", "headers": {"Content-Length": "1000000000", **INTENT, **BEARER}}

    answers = calls(
        dashboard(enable_actions=True), ("POST", "/login", form), ("POST", "/api/tasks/retry", action)
    )

    assert [answer.status_code for answer in answers] == [413, 413]
    assert "4,096 bytes" in answers[0].text


def test_a_form_with_too_many_fields_is_refused() -> None:
    (answer,) = calls(dashboard(), ("POST", "/login", {"content": b"a&" * 2_000}))

    assert answer.status_code == 400


def test_logging_out_without_a_session_needs_no_session() -> None:
    (answer,) = calls(dashboard(), post("/logout", headers={**INTENT, **BEARER}))

    assert answer.status_code == 200
