"""The databases on the embedded server: one for each project."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
from psycopg import errors, sql

from horsies.db.urls import with_database
from horsies.embedded.server import data_directory, ensure, refuse_in_production

_log = logging.getLogger("horsies.embedded")
# The database that every server has. All projects used to share it.
SHARED_DATABASE = "postgres"


def database_url(
    name: str, home: Path | None = None, *, announce: Callable[[str], None] = _log.warning
) -> str:
    """Return the URL of a database on the embedded server; start the server and create the database if need be.

    `announce` is called with a line about each of the two.

        connection = psycopg.connect(database_url("horsies_shop_1a2b3c4d"))
    """
    server = ensure(home, announce=announce)
    url = with_database(server.url, name)
    with psycopg.connect(server.url, autocommit=True) as admin:
        if not _exists(admin, name) and _create(admin, name):
            announce(f"horsies: created the database {name} on the embedded PostgreSQL, for this project")
            if admin.execute("SELECT FROM pg_class WHERE relname = 'horsies_tasks'").rowcount:
                announce(
                    f"horsies: the database {SHARED_DATABASE}, which all projects shared before, is kept with its tasks; "
                    f"HORSIES_EMBEDDED_DATABASE={SHARED_DATABASE} uses it"
                )
    return url


def existing_database_url(
    name: str, home: Path | None = None, *, announce: Callable[[str], None] = _log.warning
) -> str | None:
    """Return the URL of a database on the embedded server, None if there is no such database; create nothing.

    The server is started if it has data.
    """
    refuse_in_production()
    if not data_directory(home).exists():
        return None
    server = ensure(home, announce=announce)
    with psycopg.connect(server.url, autocommit=True) as admin:
        return with_database(server.url, name) if _exists(admin, name) else None


def _exists(admin: psycopg.Connection[Any], name: str) -> bool:
    return bool(admin.execute("SELECT FROM pg_database WHERE datname = %s", (name,)).rowcount)


def _create(admin: psycopg.Connection[Any], name: str) -> bool:
    """Create a database; return False if another process has just done so."""
    try:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    except (errors.DuplicateDatabase, errors.UniqueViolation):
        return False
    return True
