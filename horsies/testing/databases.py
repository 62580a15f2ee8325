"""A database for each test, copied from one that has the schema already.

They are made on the server that `HORSIES_TEST_DATABASE_URL` names, or else on the embedded one, beside whatever is there.
Databases that a killed test left behind on this machine are removed by the next one.
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
from horsies.config import PostgresConfig
from horsies.portal import run_sync
from horsies.registry import TaskRegistry
from horsies.storage.migrate import migrate, script

logger = logging.getLogger("horsies.testing")

VARIABLE = "HORSIES_TEST_DATABASE_URL"
PREFIX = "horsies_test"
App = TypeVar("App", bound=TaskRegistry)
Admin = psycopg.Connection[tuple[Any, ...]]


def server_url() -> str:
    """The server to make databases on: the one that is named for it, or the embedded one, started if need be."""
    return os.environ.get(VARIABLE) or embedded.ensure(announce=logger.warning).url


@contextmanager
def fresh_database(server: str | None = None) -> Generator[str]:
    """A database with the schema and nothing else in it, for as long as you use it; gives its URL.

    >>> with fresh_database() as url:
    ...     app = Horsies(AppConfig.for_database_url(url))
    """
    url = server or server_url()
    name = f"{PREFIX}_{os.getpid()}_{uuid4().hex[:12]}"
    with psycopg.connect(url, autocommit=True) as admin:
        template = _template(admin, url)
        _remove_leftovers(admin)
        admin.execute(_ddl("CREATE DATABASE {} TEMPLATE {}", name, template))
        try:
            yield _on(url, name)
        finally:
            admin.execute(_ddl("DROP DATABASE {} WITH (FORCE)", name))


@contextmanager
def bound(app: App, database_url: str) -> Generator[App]:
    """The app, with everything that it sends and asks for going to this database.

    >>> with fresh_database() as url, bound(shop.app, url) as app: ...
    """
    broker = app.get_broker()
    run_sync(broker.move_to(PostgresConfig(database_url=database_url)))
    try:
        yield app
    finally:
        run_sync(broker.move_to(None))


def _template(admin: Admin, url: str) -> str:
    """The database to copy, made by whoever comes first; another schema has another one."""
    schema = hashlib.sha256(script().encode()).hexdigest()[:12]
    name = f"{PREFIX}_template_{schema}"
    if _exists(admin, name):
        return name
    admin.execute("SELECT pg_advisory_lock(7240118061)")
    try:
        if not _exists(admin, name):
            unfinished = f"{name}_{uuid4().hex[:12]}"
            admin.execute(_ddl("CREATE DATABASE {}", unfinished))
            run_sync(migrate(PostgresConfig(database_url=_on(url, unfinished))))
            admin.execute(_ddl("ALTER DATABASE {} RENAME TO {}", unfinished, name))
    finally:
        admin.execute("SELECT pg_advisory_unlock(7240118061)")
    return name


def _exists(admin: Admin, name: str) -> bool:
    return bool(admin.execute("SELECT FROM pg_database WHERE datname = %s", (name,)).rowcount)


def _remove_leftovers(admin: Admin) -> None:
    """Drop the databases of test processes that are gone; on a server elsewhere they may be another machine's."""
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


def _on(url: str, database: str) -> str:
    """The same server, another database: libpq lets a parameter win over the path, whatever else the URL holds."""
    return f"{url}{'&' if '?' in url else '?'}dbname={database}"
