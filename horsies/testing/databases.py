"""A database for each test, copied from one that has the schema already.

They are created on the server of `HORSIES_TEST_DATABASE_URL`, or else on the embedded one, beside the databases that exist.
The next test removes databases that a killed test left behind on this machine.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, LiteralString, TypeVar
from uuid import uuid4

import psutil
import psycopg
from psycopg import sql

from horsies import embedded
from horsies.config import PostgresConfig, schema_of
from horsies.db.connection import connection_string, open_sync
from horsies.db.migrations import migrate, script
from horsies.db.urls import with_database
from horsies.event_loop import run_sync
from horsies.registry import TaskRegistry

logger = logging.getLogger("horsies.testing")

VARIABLE = "HORSIES_TEST_DATABASE_URL"
PREFIX = "horsies_test"
App = TypeVar("App", bound=TaskRegistry)
Admin = psycopg.Connection[tuple[Any, ...]]


def server_url() -> str:
    """Return the server for test databases: that of the environment variable, or the embedded one, started if need be."""
    return os.environ.get(VARIABLE) or embedded.ensure(announce=logger.warning).url


@contextmanager
def fresh_database(server: str | None = None) -> Generator[str]:
    """Create a database with an empty schema, yield its URL, and drop it afterwards.

    >>> with fresh_database() as url:
    ...     app = Horsies(AppConfig.for_database_url(url))
    """
    url = PostgresConfig(database_url=server or server_url()).conninfo
    name = f"{PREFIX}_{os.getpid()}_{uuid4().hex[:12]}"
    with open_sync(connection_string(url)) as admin:
        template = _template(admin, url)
        _drop_leftovers(admin)
        admin.execute(_ddl("CREATE DATABASE {} TEMPLATE {}", name, template))
        try:
            yield with_database(url, name)
        finally:
            admin.execute(_ddl("DROP DATABASE {} WITH (FORCE)", name))


@contextmanager
def bound(app: App, database_url: str) -> Generator[App]:
    """Connect an app to this database within the block.

    >>> with fresh_database() as url, bound(shop.app, url) as app: ...
    """
    broker = app.get_broker()
    run_sync(broker.move_to(PostgresConfig(database_url=database_url, schema=schema_of(app.config))))
    try:
        yield app
    finally:
        run_sync(broker.move_to(None))


def _template(admin: Admin, url: str) -> str:
    """Return the template database; the first caller creates it. Each version of the schema has its own."""
    schema = hashlib.sha256(script().encode()).hexdigest()[:12]
    name = f"{PREFIX}_template_{schema}"
    if _exists(admin, name):
        return name
    admin.execute("SELECT pg_advisory_lock(7240118061)")
    try:
        if not _exists(admin, name):
            unfinished = f"{name}_{uuid4().hex[:12]}"
            admin.execute(_ddl("CREATE DATABASE {}", unfinished))
            run_sync(migrate(PostgresConfig(database_url=with_database(url, unfinished))))
            admin.execute(_ddl("ALTER DATABASE {} RENAME TO {}", unfinished, name))
    finally:
        admin.execute("SELECT pg_advisory_unlock(7240118061)")
    return name


def _exists(admin: Admin, name: str) -> bool:
    return bool(admin.execute("SELECT FROM pg_database WHERE datname = %s", (name,)).rowcount)


def _drop_leftovers(admin: Admin) -> None:
    """Drop the databases of test processes that are gone. Do nothing on a remote server, where they may be another machine's."""
    if not admin.info.host.startswith(("/", "127.", "localhost", "::1")):
        return
    for (name,) in admin.execute(
        "SELECT datname FROM pg_database WHERE datname ~ %s", (f"^{PREFIX}_[0-9]+_",)
    ):
        process = re.match(rf"{PREFIX}_(\d+)_", name)
        if process and not psutil.pid_exists(int(process[1])):
            admin.execute(_ddl("DROP DATABASE IF EXISTS {} WITH (FORCE)", name))


def _ddl(statement: LiteralString, *names: str) -> sql.Composed:
    return sql.SQL(statement).format(*map(sql.Identifier, names))
