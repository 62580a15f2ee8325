"""The server drops incomplete requests, and the limit of live streams holds in a burst."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.request import Request, urlopen

import pytest

from horsies.web import create_dashboard, state
from tests.browser.server import dashboard
from tests.support.waiting import eventually
from tests.support.workers import Workplace

NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"
GET = b"GET /api HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
TOKEN = "a-token-that-is-long-enough"
GIVE_UP_SECONDS = 60.0

# What a client sends at once, and what it goes on to send byte by byte.
HALF_OPEN = {
    "nothing at all": (b"", b""),
    "headers that never end": (GET[:-2], b""),
    "headers byte by byte": (GET[:-2], b"X-Slow: " + b"x" * 10_000),
    "a body that never comes": (POST + b"Content-Length: 100\r\n\r\n", b""),
    "a body byte by byte": (POST + b"Content-Length: 10000\r\n\r\n", b"x" * 10_000),
    "chunks that never come": (POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\ntoken", b""),
    "a body that nobody reads": (GET[:-2] + b"Content-Length: 10000\r\n\r\n", b"x" * 10_000),
    "a second request that never ends": (GET + GET[:-2], b"x" * 10_000),
}


@contextmanager
def served(workplace: Workplace) -> Iterator[int]:
    """Run `horsies web` in a process, and yield its port."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    command = [sys.executable, "-m", "horsies", "web", "app:app", "--port", str(port), "--token", TOKEN]
    with subprocess.Popen(
        command, cwd=workplace.folder, env=workplace.env, stdout=subprocess.DEVNULL
    ) as process:
        try:
            eventually(lambda: _is_open(port), what="the dashboard")
            yield port
        finally:
            process.terminate()
            assert process.wait(10) == 0


def _is_open(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def is_dropped(port: int, at_once: bytes, then: bytes) -> bool:
    """Send half a request, continue byte by byte, and return True if the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=GIVE_UP_SECONDS) as client:
        client.sendall(at_once)
        give_up_at = time.monotonic() + GIVE_UP_SECONDS
        while time.monotonic() < give_up_at:
            readable, _, _ = select.select([client], [], [], 0.25)
            try:
                if readable and not client.recv(65_536):
                    return True
                client.sendall(then[:1])
            except ConnectionError:
                return True
            then = then[1:]
    return False


def test_half_open_requests_are_dropped(workplace: Workplace) -> None:
    workplace.write("app = Horsies()")

    with served(workplace) as port, ThreadPoolExecutor(len(HALF_OPEN)) as pool:
        tries = {name: pool.submit(is_dropped, port, *parts) for name, parts in HALF_OPEN.items()}
        dropped = {name: each.result() for name, each in tries.items()}

    assert dropped == dict.fromkeys(HALF_OPEN, True)


def test_a_request_that_came_whole_may_take_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A live stream may last longer than the deadline for a complete request."""
    monkeypatch.setattr("horsies.web.dashboard.REQUEST_SECONDS", 0.2)
    monkeypatch.setattr(state, "KEEP_ALIVE_SECONDS", 1.0)
    with dashboard(NOWHERE) as base, _stream(base) as stream:
        heard = b""
        while b": still here" not in heard:
            received = stream.recv(65_536)
            assert received
            heard += received


def test_the_address_of_a_proxy_is_the_one_that_connects_whatever_it_forwards() -> None:
    with dashboard(NOWHERE, trusted_header="X-User") as base:
        named = {"X-User": "ann", "X-Forwarded-For": "203.0.113.5", "Host": "localhost"}
        with urlopen(Request(f"{base}/api", headers=named)) as answer:
            assert answer.status == 200


@contextmanager
def _stream(base: str) -> Iterator[socket.socket]:
    host, _, port = base.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=GIVE_UP_SECONDS) as client:
        client.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        yield client


def test_a_burst_of_viewers_never_gets_more_streams_than_there_may_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state, "MAX_VIEWERS", 20)
    statuses: list[int] = []

    async def burst() -> None:
        app = create_dashboard(NOWHERE)
        gone = asyncio.Event()

        async def follow() -> None:
            asked = False

            async def receive() -> dict[str, Any]:
                nonlocal asked
                if not asked:
                    asked = True
                    return {"type": "http.request", "body": b"", "more_body": False}
                await gone.wait()
                return {"type": "http.disconnect"}

            async def send(message: Any) -> None:
                if message["type"] == "http.response.start":
                    statuses.append(message["status"])

            await app(_scope(), receive, send)

        for _ in range(2):
            gone.clear()
            viewers = [asyncio.create_task(follow()) for _ in range(200)]
            expected = len(statuses) + 200
            while len(statuses) < expected:
                await asyncio.sleep(0)
            gone.set()
            await asyncio.gather(*viewers)
        await app.close()

    asyncio.run(burst())

    assert sorted(statuses[:200]) == [200] * 20 + [503] * 180
    assert sorted(statuses[200:]) == [200] * 20 + [503] * 180, "the places were given back"


def _scope() -> dict[str, Any]:
    return {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "GET",
        "scheme": "http", "path": "/events", "raw_path": b"/events", "query_string": b"", "root_path": "",
        "headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 40_000), "server": ("127.0.0.1", 8600),
    }  # fmt: skip


def test_two_hundred_connections_share_the_streams_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "MAX_VIEWERS", 20)

    def status(client: socket.socket) -> bytes:
        return client.recv(65_536).split(b" ")[1]

    with dashboard(NOWHERE) as base:
        with contextlib.ExitStack() as opened:
            clients = [opened.enter_context(_stream(base)) for _ in range(200)]
            assert sorted(map(status, clients)) == [b"200"] * 20 + [b"503"] * 180

        def gets_in() -> bool:
            with _stream(base) as client:
                return status(client) == b"200"

        eventually(gets_in, what="a place that was given back")
