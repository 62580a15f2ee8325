"""`horsies migrate`: create or upgrade the schema, or say what would have to be done."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from typing import Any, TypeVar

import click

from horsies.broker import resolve
from horsies.check import schema_problem
from horsies.cli.options import database_options, named_database
from horsies.config import AppConfig, PostgresConfig
from horsies.storage import migrate as schema
from horsies.storage.database import TRANSIENT, connect, explain

T = TypeVar("T")

# As PostgreSQL takes it without quotes, and so short that the names of the roles fit.
_PREFIX = re.compile(r"[a-z_][a-z0-9_]{0,49}")


def _role_prefix(_context: click.Context, _param: click.Parameter, value: str) -> str:
    if _PREFIX.fullmatch(value) is None:
        raise click.BadParameter(
            f"{value!r} is none; use 1 to 50 lower-case letters, digits and underscores, no digit first"
        )
    return value


@click.command()
@click.option("--sql", is_flag=True, help="Print the SQL that is missing instead of running it.")
@click.option("--check", "check_only", is_flag=True, help="Change nothing; exit 1 if the schema is behind.")
@click.option("--roles", is_flag=True, help="Print the SQL for roles with no more rights than they need.")
@click.option(
    "--prefix",
    metavar="TEXT",
    default="horsies_",
    show_default=True,
    callback=_role_prefix,
    help="What the names of these roles begin with.",
)
@database_options
def migrate(
    sql: bool,
    check_only: bool,
    roles: bool,
    prefix: str,
    app: str | None,
    database_url: PostgresConfig | None,
) -> None:
    """Create or upgrade the schema in the database.

    With --sql and no database named, the whole schema is printed. What --roles prints is the same for all databases.
    """
    if sql + check_only + roles > 1:
        raise click.UsageError("--sql, --check and --roles exclude each other")
    if roles:
        click.echo(schema.roles_script(prefix), nl=False)
        return
    named = named_database(app, database_url)
    if sql:
        click.echo(schema.script(after=0 if named is None else _run(_version(named), named)), nl=False)
        return
    postgres = named or resolve(AppConfig())
    if check_only:
        problem = schema_problem(_run(_version(postgres), postgres))
        if problem is not None:
            raise problem
        click.echo(f"the schema has version {schema.LATEST}")
        return
    applied = _run(schema.migrate(postgres), postgres)
    done = f"migrations applied: {applied}" if applied else "nothing to do"
    click.echo(f"{done}; the schema has version {schema.LATEST}")


async def _version(postgres: PostgresConfig) -> int:
    async with await connect(postgres, session=True, name="horsies-migrate") as connection:
        return await schema.installed_version(connection)


def _run(work: Coroutine[Any, Any, T], postgres: PostgresConfig) -> T:
    try:
        return asyncio.run(work)
    except TRANSIENT as error:
        raise explain(error, postgres) from error
