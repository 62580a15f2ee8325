"""Ask the database something from a command, and say plainly when it cannot be asked."""

from __future__ import annotations

import asyncio
import getpass
import socket
from collections.abc import Awaitable, Callable
from typing import TypeVar

from psycopg import errors

from horsies.broker import resolve
from horsies.check import schema_problem
from horsies.config import AppConfig, PostgresConfig
from horsies.storage.database import TRANSIENT, Connection, connect, explain
from horsies.storage.migrate import installed_version

T = TypeVar("T")


def ask(named: PostgresConfig | None, work: Callable[[Connection], Awaitable[T]]) -> T:
    """Carry something out over one connection to the database named, or to the server of our own."""
    postgres = named or resolve(AppConfig())
    try:
        return asyncio.run(_ask(postgres, work))
    except TRANSIENT as error:
        raise explain(error, postgres) from error


async def _ask(postgres: PostgresConfig, work: Callable[[Connection], Awaitable[T]]) -> T:
    async with await connect(postgres, session=True, name="horsies-cli") as connection:
        try:
            return await work(connection)
        except (errors.UndefinedTable, errors.UndefinedColumn):
            problem = schema_problem(await installed_version(connection))
            if problem is None:
                raise
            raise problem from None


def actor() -> str:
    """Who acts, as it goes on record."""
    return f"{getpass.getuser()}@{socket.gethostname()}"
