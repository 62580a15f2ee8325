"""Call the dashboard as an ASGI app, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import httpx2 as httpx
import psycopg
import pytest
from psycopg import sql

from horsies.web import create_dashboard
from horsies.web.dashboard import Dashboard
from tests.support.servers import drop_database, named

BASE = "http://localhost"
INTENT = {"X-Horsies-Intent": "action"}

Request = tuple[str, str, dict[str, Any]]


def calls(
    dashboard: Any, *requests: Request, base: str = BASE, client: str | None = "127.0.0.1"
) -> list[httpx.Response]:
    """Make requests one after the other: method, path, httpx arguments. A client of None stands for a Unix socket."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        on_socket = {"client": None, "server": ("/run/dashboard.sock", None)} if client is None else {}
        await dashboard({**scope, **on_socket}, receive, send)

    async def make() -> list[httpx.Response]:
        transport = httpx.ASGITransport(serve, client=(client or "", 40_000))
        async with httpx.AsyncClient(transport=transport, base_url=base) as session:
            answers = [await session.request(method, path, **more) for method, path, more in requests]
        if isinstance(dashboard, Dashboard):
            await dashboard.close()
        return answers

    return asyncio.run(make())


def get(path: str, **more: Any) -> Request:
    return "GET", path, more


def post(path: str, json: Any = None, headers: dict[str, str] = INTENT) -> Request:
    return "POST", path, {"json": {} if json is None else json, "headers": headers}


@pytest.fixture
def call(database_url: str) -> Callable[..., list[httpx.Response]]:
    """Call a new dashboard with actions enabled, on this test's database."""

    def make(*requests: Request, **settings: Any) -> list[httpx.Response]:
        return calls(create_dashboard(database_url, **{"enable_actions": True, **settings}), *requests)

    return make


@pytest.fixture(scope="module")
def quiet_call(server_url: str, template: str) -> Iterator[Callable[..., list[httpx.Response]]]:
    """Call a new dashboard, on one database for all tests of a module that store nothing."""
    name = "quiet_web_" + uuid4().hex
    with psycopg.connect(server_url, autocommit=True) as admin:
        admin.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
        )
        url = named(server_url, name)
        yield lambda *requests: calls(create_dashboard(url, enable_actions=True), *requests)
        drop_database(admin, name)
