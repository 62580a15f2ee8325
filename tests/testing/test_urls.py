"""The URL of a test's database leads every driver to that database."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from horsies.config import PostgresConfig
from horsies.db.urls import with_database
from horsies.testing import fresh_database

asyncpg: Any = import_module("asyncpg")  # it has no types
QUERY = "SELECT current_database(), count(*) FROM horsies_tasks"


def by_psycopg(url: str) -> str:
    with psycopg.connect(url) as connection:
        return connection.execute(QUERY).fetchall()[0][0]


def by_asyncpg(url: str) -> str:
    async def ask() -> str:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(QUERY)
        finally:
            await connection.close()

    return asyncio.run(ask())


def by_sqlalchemy(url: str) -> str:
    engine = sqlalchemy.create_engine(url.replace("://", "+psycopg://", 1), poolclass=NullPool)
    with engine.connect() as connection:
        return connection.execute(sqlalchemy.text(QUERY)).scalar_one()


def by_sqlalchemy_with_asyncpg(url: str) -> str:
    async def ask() -> str:
        engine = create_async_engine(url.replace("://", "+asyncpg://", 1), poolclass=NullPool)
        async with engine.connect() as connection:
            return (await connection.execute(sqlalchemy.text(QUERY))).scalar_one()

    return asyncio.run(ask())


DJANGO = f"""
import os
from urllib.parse import unquote, urlsplit
from django.conf import settings
url = urlsplit(os.environ["HORSIES_DATABASE_URL"])
names = dict(USER=unquote(url.username or ""), PASSWORD=unquote(url.password or ""), HOST=url.hostname, PORT=url.port)
engine = "django.db.backends.postgresql"
settings.configure(DATABASES=dict(default=dict(ENGINE=engine, NAME=unquote(url.path[1:]), **names)))
from django.db import connection
with connection.cursor() as cursor:
    cursor.execute("{QUERY}")
    print(cursor.fetchone()[0])
"""


def by_django(url: str) -> str:
    """Read the URL as dj-database-url and django-environ do: the name of the database is the path."""
    env = {**os.environ, "HORSIES_DATABASE_URL": url}
    done = subprocess.run(
        [sys.executable, "-c", DJANGO], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "ask", [by_psycopg, by_asyncpg, by_sqlalchemy, by_sqlalchemy_with_asyncpg, by_django]
)
def test_every_driver_finds_the_database_of_the_test(
    horsies_database_url: str, ask: Callable[[str], str]
) -> None:
    name = urlsplit(horsies_database_url).path[1:]

    assert name.startswith("horsies_test_")
    assert ask(horsies_database_url) == name


def test_a_server_whose_url_names_its_database_as_a_parameter_is_understood(server_url: str) -> None:
    database = urlsplit(server_url).path[1:]
    given = urlsplit(server_url)._replace(path="", query=f"dbname={database}&application_name=tests").geturl()

    with fresh_database(given) as url:
        name = urlsplit(url).path[1:]
        assert "application_name=tests" in url
        assert [by_psycopg(url), by_asyncpg(url.replace("application_name=tests", ""))] == [name, name]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://u:p%40@h/postgres", "postgresql://u:p%40@h/shop"),
        ("postgresql://u:p@h:5433", "postgresql://u:p@h:5433/shop"),
        ("postgresql://h1:1,h2:2/a?target_session_attrs=any", "postgresql://h1:1,h2:2/shop?target_session_attrs=any"),
        ("postgresql://[::1]:5432/a?dbname=b", "postgresql://[::1]:5432/shop"),
        ("postgresql://h?db%6Eame=b&sslmode=require&dbname=c&port=2", "postgresql://h/shop?sslmode=require&port=2"),
        ("postgresql:///a?host=/run/pg", "postgresql:///shop?host=/run/pg"),
        ("postgresql+psycopg://h/a", "postgresql+psycopg://h/shop"),
    ],
)  # fmt: skip
def test_only_the_database_changes(url: str, expected: str) -> None:
    assert with_database(url, "shop") == expected
    parsed: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(PostgresConfig(database_url=expected).conninfo)
    assert parsed["dbname"] == "shop"


def test_a_name_with_strange_letters_arrives_as_it_is() -> None:
    url = with_database("postgresql://h/postgres", "a/b?c&d %é")

    assert psycopg.conninfo.conninfo_to_dict(url)["dbname"] == "a/b?c&d %é"
