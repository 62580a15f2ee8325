"""Planner settings, ours or a caller's, never make a send compile its plan."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from horsies import Horsies, PostgresConfig
from horsies.db.connection import Database, SyncPool, connect, connect_worker
from horsies.web.state import action_database, read_only_database
from tests.pg.conftest import Add

Db = psycopg.Connection[dict[str, Any]]

SETTINGS = """
SELECT name, setting FROM pg_settings
 WHERE name = 'jit' OR name LIKE 'enable\\_%' AND setting = 'off' AND boot_val = 'on'
"""


def _of_producer(config: PostgresConfig) -> list[tuple[str, str]]:
    database = SyncPool(config, "test")
    try:
        with database.connection() as connection:
            return connection.execute(SETTINGS).fetchall()
    finally:
        database.close()


def _of_pool(make: Callable[[PostgresConfig], Database]) -> Callable[[PostgresConfig], list[tuple[str, str]]]:
    async def look(config: PostgresConfig) -> list[tuple[str, str]]:
        database = make(config)
        try:
            async with database.connection() as connection:
                return await (await connection.execute(SETTINGS)).fetchall()
        finally:
            await database.close()

    return lambda config: asyncio.run(look(config))


def _of_connection(open_one: Callable[..., Any]) -> Callable[[PostgresConfig], list[tuple[str, str]]]:
    async def look(config: PostgresConfig) -> list[tuple[str, str]]:
        async with await open_one(config, name="test") as connection:
            return await (await connection.execute(SETTINGS)).fetchall()

    return lambda config: asyncio.run(look(config))


@pytest.mark.parametrize(
    "settings_of",
    [
        pytest.param(_of_producer, id="producer"),
        pytest.param(_of_pool(lambda config: Database(config, "test")), id="async producer"),
        pytest.param(_of_pool(read_only_database), id="dashboard"),
        pytest.param(_of_pool(action_database), id="dashboard that acts"),
        pytest.param(_of_connection(connect), id="listener"),
        pytest.param(_of_connection(connect_worker), id="worker"),
    ],
)
def test_a_session_that_disables_a_kind_of_scan_compiles_no_plans(
    database_url: str, settings_of: Callable[[PostgresConfig], list[tuple[str, str]]]
) -> None:
    settings = dict(settings_of(PostgresConfig(database_url=database_url)))

    jit = settings.pop("jit")
    assert not settings or jit == "off", f"{sorted(settings)} are off and jit is {jit}"


def test_a_send_on_a_callers_session_compiles_nothing_whatever_its_planner_settings(
    database_url: str, app: Horsies, add: Add
) -> None:
    with psycopg.connect(database_url) as connection:
        if connection.execute("SELECT pg_jit_available()").fetchone() == (False,):
            pytest.skip("this server was built without JIT: HORSIES_TEST_SERVER=system has one that was not")
        connection.execute("LOAD 'auto_explain'")
        for name, value in {
            "auto_explain.log_min_duration": "0",
            "auto_explain.log_nested_statements": "on",
            "auto_explain.log_analyze": "on",
            "auto_explain.log_level": "notice",
            "jit": "on",
            "enable_seqscan": "off",
            "enable_indexscan": "off",
            "enable_bitmapscan": "off",
        }.items():
            connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        plans: list[str] = []
        connection.add_notice_handler(lambda notice: plans.append(notice.message_primary or ""))

        add.with_options(conn=connection).send(1, 2).unwrap()

        assert any(
            "horsies_workers" in plan for plan in plans
        )  # the insert trigger has looked for a worker that waits
        assert not [plan for plan in plans if "JIT:" in plan]
