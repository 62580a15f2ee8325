"""The dashboard called as a server would call it, without a server."""

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

BASE = "http://localhost"
INTENT = {"X-Horsies-Intent": "action"}

Request = tuple[str, str, dict[str, Any]]


def calls(dashboard: Any, *requests: Request, base: str = BASE) -> list[httpx.Response]:
    """Make requests one after the other: method, path, and what else httpx is told."""

    async def make() -> list[httpx.Response]:
        transport = httpx.ASGITransport(dashboard)
        async with httpx.AsyncClient(transport=transport, base_url=base) as client:
            answers = [await client.request(method, path, **more) for method, path, more in requests]
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
    """Calls of a dashboard on this test's database that allows actions; a fresh one each time."""

    def make(*requests: Request, **settings: Any) -> list[httpx.Response]:
        return calls(create_dashboard(database_url, **{"enable_actions": True, **settings}), *requests)

    return make


@pytest.fixture(scope="module")
def quiet_call(server_url: str, template: str) -> Iterator[Callable[..., list[httpx.Response]]]:
    """The same, on one database for a module's tests that store nothing."""
    name = "quiet_web_" + uuid4().hex
    with psycopg.connect(server_url, autocommit=True) as admin:
        admin.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
        )
        url = server_url.rpartition("/")[0] + f"/{name}"
        yield lambda *requests: calls(create_dashboard(url, enable_actions=True), *requests)
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
