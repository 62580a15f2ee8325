"""A database with roles and a login for each of them, whose owner is no superuser."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
from psycopg import sql

from horsies import PostgresConfig
from horsies.db.migrations import migrate, roles_script
from tests.support.servers import named

ROLES = ("producer", "worker", "scheduler", "viewer", "operator")


@dataclass(frozen=True, slots=True)
class House:
    """A database whose owner has made the roles, and a login for each of them."""

    owner_url: str
    prefix: str

    def url(self, role: str) -> str:
        return f"postgresql://{self.prefix}{role}_login:s3cret@{self.owner_url.rpartition('@')[2]}"

    def connect(self, role: str) -> psycopg.Connection[Any]:
        return psycopg.connect(self.url(role))

    def owner(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.owner_url, autocommit=True)


def new_house(server_url: str) -> Iterator[House]:
    """Made as on servers before 15, where everybody may create in the schema public."""
    prefix = f"test_{uuid4().hex[:12]}_"
    house = House(f"postgresql://{prefix}owner:s3cret@{urlsplit(server_url).netloc.rpartition('@')[2]}/{prefix}db", prefix)  # fmt: skip
    with psycopg.connect(server_url, autocommit=True) as admin:
        run(admin, "CREATE ROLE {} LOGIN CREATEROLE PASSWORD 's3cret'", f"{prefix}owner")
        run(admin, "CREATE DATABASE {} OWNER {}", f"{prefix}db", f"{prefix}owner")
        try:
            with psycopg.connect(named(server_url, f"{prefix}db"), autocommit=True) as inside:
                # from PostgreSQL 15 on, the database's owner may say who creates in the schema
                run(inside, "ALTER SCHEMA public OWNER TO {}", f"{prefix}owner")
            asyncio.run(migrate(PostgresConfig(database_url=house.owner_url)))
            with house.owner() as owner:
                owner.execute("GRANT CREATE ON SCHEMA public TO PUBLIC")
                owner.execute(roles_script(prefix).encode())
            for role in ROLES:
                names = f"{prefix}{role}_login", f"{prefix}{role}"
                run(admin, "CREATE ROLE {} LOGIN PASSWORD 's3cret' IN ROLE {}", *names)
            yield house
        finally:
            run(admin, "DROP DATABASE {} WITH (FORCE)", f"{prefix}db")
            drop_roles(admin, prefix)


def run(connection: psycopg.Connection[Any], statement: str, *names: str) -> None:
    connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))  # pyright: ignore[reportArgumentType]


def drop_roles(admin: psycopg.Connection[Any], prefix: str) -> None:
    """The owner last: the others were granted by it."""
    names = admin.execute("SELECT rolname FROM pg_roles WHERE starts_with(rolname, %s)", (prefix,)).fetchall()
    for (name,) in sorted(names, key=lambda row: row[0].endswith("_owner")):
        run(admin, "DROP ROLE {}", name)
