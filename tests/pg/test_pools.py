"""Pools of connections: a connection that nobody can use any more is closed."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from horsies import PostgresConfig
from horsies.db.connection import Database
from tests.support.waiting import eventually

SESSIONS = (
    "SELECT count(*) AS n FROM pg_stat_activity WHERE application_name = %s AND datname = current_database()"
)
AT_WORK = SESSIONS + " AND query LIKE '%%pg_sleep%%' AND state = 'active'"


def count(db: psycopg.Connection[dict[str, Any]], statement: str, name: str) -> int:
    row = db.execute(statement.encode(), [name]).fetchone()
    assert row is not None
    return row["n"]


def test_a_borrower_that_is_cancelled_while_it_connects_leaves_no_session_behind(
    db: psycopg.Connection[dict[str, Any]], database_url: str
) -> None:
    name = "cancelled-borrower"

    async def scenario() -> None:
        pool = Database(PostgresConfig(database_url=database_url), name, b"SELECT pg_sleep(60)")

        async def borrow() -> None:
            async with pool.connection():
                pass

        task = asyncio.create_task(borrow())
        await asyncio.to_thread(eventually, lambda: count(db, AT_WORK, name) == 1)
        task.cancel()
        # The traceback keeps the connection from being collected as garbage, which would close it, too.
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await task
        await asyncio.to_thread(eventually, lambda: count(db, SESSIONS, name) == 0)
        assert cancelled.tb is not None
        await pool.close()

    asyncio.run(scenario())
