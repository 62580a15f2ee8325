"""A statement that carries a large text has more time than others, and its connection none for longer than that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from psycopg import errors

from horsies import PostgresConfig
from horsies.db.connection import Connection, connect_worker, time_to_store


@pytest.fixture
def on_a_worker_connection(database_url: str) -> Callable[[Callable[[Connection], Awaitable[None]]], None]:
    async def use(check: Callable[[Connection], Awaitable[None]]) -> None:
        async with await connect_worker(PostgresConfig(database_url=database_url), "test") as connection:
            await check(connection)

    return lambda check: asyncio.run(use(check))


async def _limit(connection: Connection) -> str:
    row = await (await connection.execute("SHOW statement_timeout")).fetchone()
    assert row is not None
    return row[0]


def test_a_large_text_has_more_time_and_the_next_statement_has_not(on_a_worker_connection) -> None:
    async def check(connection: Connection) -> None:
        async with time_to_store(connection, 48_000_000):
            assert await _limit(connection) == "1min"
        assert await _limit(connection) == "12s"
        async with time_to_store(connection, 1_000_000):
            assert await _limit(connection) == "12s"

    on_a_worker_connection(check)


def test_the_time_is_taken_back_after_an_error_too(on_a_worker_connection) -> None:
    async def check(connection: Connection) -> None:
        with pytest.raises(errors.DivisionByZero):
            async with time_to_store(connection, 48_000_000):
                await connection.execute("SELECT 1 / 0")
        assert await _limit(connection) == "12s"

    on_a_worker_connection(check)
