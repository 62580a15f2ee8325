"""Authentication and permission to act. None of these requests needs a database: they are refused before it is asked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

import horsies.web
from horsies.errors import ConfigurationError, ErrorCode
from horsies.web import create_dashboard
from horsies.web.api import CALLS
from horsies.web.auth import Access, refuse_open_bind
from tests.web.conftest import INTENT, calls, get, post

NOWHERE = "postgresql://nobody:s3cret@127.0.0.1:1/nothing"
TOKEN = "a-token-that-is-long-enough"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
HOME = Path(horsies.web.__file__).parent


def dashboard(**settings: Any) -> Any:
    return create_dashboard(NOWHERE, **settings)


def statuses(app: Any, *requests: Any, base: str = "http://localhost") -> list[int]:
    return [answer.status_code for answer in calls(app, *requests, base=base)]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "ops.example.com"])
def test_other_machines_are_let_in_only_with_a_token_or_a_trusted_header(host: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        refuse_open_bind(host, Access())

    assert refusal.value.code is ErrorCode.WEB_UNPROTECTED
    assert host in str(refusal.value)
    refuse_open_bind(host, Access(token=TOKEN))
    refuse_open_bind(host, Access(trusted_header="X-User"))
    for loopback in ("127.0.0.1", "::1", "localhost"):
        refuse_open_bind(loopback, Access())


def test_a_token_that_can_be_guessed_is_refused() -> None:
    with pytest.raises(ConfigurationError) as refusal:
        dashboard(token="short")

    assert refusal.value.code is ErrorCode.WEB_UNPROTECTED
    assert "short" not in str(refusal.value).split("= help")[0]


def test_a_page_of_another_name_on_this_machine_gets_nothing() -> None:
    """DNS rebinding: a foreign name that resolves to this machine would let its pages read ours."""
    for base in ("http://evil.example", "http://evil.example:8600", "http://127.0.0.1.evil.example"):
        assert statuses(dashboard(), get("/static/base.css"), get("/api"), base=base) == [421, 421]
    for base in ("http://localhost:8600", "http://127.0.0.1:8600", "http://[::1]:8600"):
        assert statuses(dashboard(), get("/api"), base=base) == [200]
    assert statuses(dashboard(allowed_hosts=["ops.example"]), get("/api"), base="http://ops.example") == [200]


def test_with_a_token_nobody_gets_in_without_it() -> None:
    app = dashboard(token=TOKEN)
    paths = ("/api/tasks", "/api/openapi.json", "/metrics", "/events")

    assert statuses(app, *(get(path) for path in paths)) == [401] * len(paths)
    assert statuses(app, get("/api/openapi.json", headers={"Authorization": "Bearer wrong"})) == [401]
    assert statuses(app, get("/api/openapi.json", headers=BEARER)) == [200]
    (sent_away,) = calls(app, get("/tasks"))
    assert sent_away.status_code == 303
    assert sent_away.headers["location"] == "/login?next=/tasks"


def test_signing_in_leaves_a_browser_with_something_else_than_the_token() -> None:
    def sign_in(token: str, where: str, **headers: str) -> Any:
        form = {"token": token, "next": where}
        return "POST", "/login", {"data": form, "headers": headers}

    wrong, elsewhere, right, inside = calls(
        dashboard(token=TOKEN),
        sign_in("wrong", "/"),
        sign_in(TOKEN, "/", Origin="http://evil.example"),
        sign_in(TOKEN, "//evil.example"),
        get("/api/openapi.json"),
    )

    assert (wrong.status_code, elsewhere.status_code, right.status_code, inside.status_code) == (
        403,
        403,
        303,
        200,
    )
    assert right.headers["location"] == "/"
    cookie = right.headers["set-cookie"]
    assert TOKEN not in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie


@pytest.mark.parametrize("client", ["10.1.2.3", "2001:db8::1", "::ffff:10.1.2.3", "testclient"])
def test_without_a_token_only_clients_of_this_machine_are_served_whatever_name_they_call(client: str) -> None:
    paths = ("/api", "/static/base.css", "/login", "/api/tasks", "/metrics", "/events")

    answers = calls(dashboard(), *(get(path) for path in paths), client=client)

    assert [answer.status_code for answer in answers] == [403] * len(paths)
    assert "its own machine only" in answers[0].json()["error"]["message"]
    assert "token" in answers[0].json()["error"]["help"]
    named = dashboard(allowed_hosts=["ops.example"])
    assert [
        each.status_code for each in calls(named, get("/api"), client=client, base="http://ops.example")
    ] == [403]
    forwarded = get("/api", headers={"X-Forwarded-For": "127.0.0.1"})
    assert [each.status_code for each in calls(dashboard(), forwarded, client=client)] == [403]


@pytest.mark.parametrize("client", ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1", None])
def test_clients_of_this_machine_are_served_over_loopback_and_unix_sockets(client: str | None) -> None:
    assert [each.status_code for each in calls(dashboard(), get("/api"), client=client)] == [200]


def test_without_a_token_a_proxy_on_this_machine_does_not_let_other_machines_in() -> None:
    through, local = ({"X-Forwarded-For": address} for address in ("203.0.113.5", "127.0.0.1"))

    assert statuses(dashboard(), get("/api", headers=through), get("/api", headers=local)) == [403, 200]


@pytest.mark.parametrize("client", ["10.1.2.3", "2001:db8::1", "testclient"])
def test_a_trusted_header_is_refused_from_anybody_but_a_trusted_proxy(client: str) -> None:
    named = {"X-User": "ann"}
    app = dashboard(trusted_header="X-User", token=TOKEN)

    for path in ("/api", "/login", "/static/base.css", "/api/tasks"):
        (answer,) = calls(app, get(path, headers=named | BEARER), client=client)
        assert answer.status_code == 403
        assert client in answer.text or client == "testclient"
        assert "--trusted-proxy" in answer.json()["error"]["help"]
    assert [each.status_code for each in calls(app, get("/api", headers=BEARER), client=client)] == [200]


def test_trusted_proxies_are_addresses_or_networks_and_replace_loopback() -> None:
    app = dashboard(trusted_header="X-User", trusted_proxies=["10.1.0.0/16", "2001:db8::5"])

    def status(client: str | None) -> int:
        (answer,) = calls(app, get("/api", headers={"X-User": "ann"}), client=client)
        return answer.status_code

    assert [status(each) for each in ("10.1.2.3", "::ffff:10.1.2.3", "2001:db8::5")] == [200] * 3
    assert [status(each) for each in ("10.2.0.1", "2001:db8::6", "127.0.0.1", "::1", None)] == [403] * 5
    for local in ("127.0.0.1", "::1", None):
        (answer,) = calls(
            dashboard(trusted_header="X-User"), get("/api", headers={"X-User": "ann"}), client=local
        )
        assert answer.status_code == 200


@pytest.mark.parametrize("proxy", ["proxy.example", "10.0.0.5/24", ""])
def test_a_trusted_proxy_that_is_no_address_is_refused(proxy: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        dashboard(trusted_header="X-User", trusted_proxies=[proxy])

    assert repr(proxy) in str(refusal.value)


def test_a_trusted_header_that_is_there_twice_is_refused() -> None:
    app = dashboard(trusted_header="X-User")
    twice = [("X-User", "ann"), ("x-user", "mallory")]

    (answer,) = calls(app, get("/api", headers=twice))

    assert answer.status_code == 400
    assert "2 times" in answer.json()["error"]["message"]


def test_a_trusted_header_says_who_is_there() -> None:
    app = dashboard(trusted_header="X-User")

    assert statuses(app, get("/api/openapi.json"), get("/tasks")) == [401, 401]
    assert statuses(app, get("/api/openapi.json", headers={"X-User": "ann"})) == [200]
    assert statuses(app, get("/api/openapi.json", headers={"X-User": " "})) == [401]


def test_every_action_needs_to_be_enabled_and_meant() -> None:
    somebody = "00000000-0000-0000-0000-000000000000"
    paths = [re.sub(r"{\w+}", somebody, call.path) for call in CALLS if call.method == "POST"]
    foreign = {**INTENT, "Origin": "http://evil.example"}
    cross_site = {**INTENT, "Sec-Fetch-Site": "cross-site"}

    assert len(paths) > 10
    assert statuses(dashboard(), *(post(path) for path in paths)) == [403] * len(paths)
    for headers in ({}, foreign, cross_site):
        meant = [post(path, headers=headers) for path in paths]
        assert statuses(dashboard(enable_actions=True), *meant) == [403] * len(paths)


def test_a_browser_is_told_to_run_nothing_but_our_files() -> None:
    for answer in calls(
        dashboard(), get("/api"), get("/static/main.js"), get("/no/such/page"), get("/tasks")
    ):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
    for template in HOME.glob("templates/*.html"):
        text = re.sub(r"{%.*?%}|{{.*?}}", "x", template.read_text(), flags=re.DOTALL)
        assert not re.search(r"\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)|<style", text), template
        assert not re.search(r"\|\s*safe|autoescape", template.read_text()), template
        assert "//" not in text, f"{template} names another host"


def test_what_is_wrong_is_said_without_a_stack_trace() -> None:
    page, json, metrics = calls(dashboard(), get("/tasks"), get("/api/tasks"), get("/metrics"))

    assert [page.status_code, json.status_code, metrics.status_code] == [503, 503, 503]
    assert "The database cannot be reached." in page.text
    assert json.json()["error"]["message"] == "The database cannot be reached."
    for answer in (page, json, metrics):
        assert "Traceback" not in answer.text
        assert "s3cret" not in answer.text


def test_it_can_be_mounted_anywhere() -> None:
    host = Starlette(routes=[Mount("/ops/horsies", dashboard())])

    page, style = calls(host, get("/ops/horsies/api"), get("/ops/horsies/static/base.css"))

    assert page.status_code == 200
    assert style.status_code == 200
    links = re.findall(r'(?:href|src|action)="(/[^"]*)"', page.text)
    assert len(links) > 10
    assert all(link.startswith("/ops/horsies/") for link in links)
