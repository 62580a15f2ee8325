"""`horsies db` controls the embedded PostgreSQL server, `horsies migrate` creates and upgrades the schema."""

from __future__ import annotations

import asyncio
import re
import sys

import click

from horsies import embedded
from horsies.cli import CommandGroup
from horsies.cli.options import Database, database_options
from horsies.config import AppConfig, configured_database, schema_of
from horsies.db import migrations as schema
from horsies.db.connection import TRANSIENT, explain_connection_error
from horsies.db.hosts import are_several
from horsies.db.urls import with_database
from horsies.errors import ConfigurationError, ErrorCode, mask_passwords
from horsies.validation import schema_problem


@click.group(cls=CommandGroup)
def db() -> None:
    """Control the PostgreSQL server that horsies runs when no database is configured."""


def _refuse_several_hosts() -> None:
    """Raise if the environment names replicated servers: the embedded server is another one."""
    configured = configured_database(AppConfig())
    if configured is not None and are_several(configured.conninfo):
        shown = mask_passwords(configured.conninfo)
        raise ConfigurationError(
            f"the environment names several PostgreSQL servers, and the embedded one is none of them: {shown}",
            code=ErrorCode.BROKER_INVALID_URL,
            help_text="control those servers with their own tools; for the embedded server, unset HORSIES_DATABASE_URL and DATABASE_URL",
        )


@db.command()
def start() -> None:
    """Start the server if it is not running."""
    _refuse_several_hosts()
    server = embedded.ensure(announce=lambda line: click.echo(line, err=True))
    if not server.started:
        click.echo(_summary(server))


@db.command()
def stop() -> None:
    """Stop the server and keep its data."""
    click.echo("stopped" if embedded.stop() else "not running")


@db.command()
def status() -> None:
    """Show the running server; exit 1 if there is none."""
    server = embedded.status()
    if server is None:
        click.echo("not running")
        sys.exit(1)
    click.echo(_summary(server))
    click.echo(mask_passwords(with_database(server.url, _own_database())))


@db.command()
def url() -> None:
    """Print the URL of this project's database, with its password; start the server if it is not running."""
    _refuse_several_hosts()
    click.echo(embedded.database_url(_own_database(), announce=lambda line: click.echo(line, err=True)))


@db.command()
def path() -> None:
    """Print the data directory."""
    click.echo(embedded.data_directory())


def _own_database() -> str:
    """Return the name of the database of the project in the working directory."""
    name = AppConfig().embedded_database
    assert name is not None, "a configuration without a broker names it"
    return name


def _summary(server: embedded.Server) -> str:
    return f"PostgreSQL {server.version} runs as process {server.pid}; data in {server.data_dir}"


# A name that PostgreSQL accepts without quotes, short enough for the names of the roles to fit into 63 bytes.
_PREFIX = re.compile(r"[a-z_][a-z0-9_]{0,49}")


def _role_prefix(_context: click.Context, _param: click.Parameter, value: str) -> str:
    if _PREFIX.fullmatch(value) is None:
        raise click.BadParameter(
            f"{value!r} is not a valid prefix; use 1 to 50 lower-case letters, digits and underscores, not starting "
            "with a digit"
        )
    return value


@click.command()
@click.option("--sql", is_flag=True, help="Print the missing migrations as SQL instead of running them.")
@click.option(
    "--check", "check_only", is_flag=True, help="Change nothing; exit 1 if the schema is not up to date."
)
@click.option("--roles", is_flag=True, help="Print the SQL that creates least-privilege roles.")
@click.option(
    "--prefix",
    metavar="TEXT",
    default="horsies_",
    show_default=True,
    callback=_role_prefix,
    help="Begin the names of these roles with this text.",
)
@database_options
def migrate(sql: bool, check_only: bool, roles: bool, prefix: str, database: Database) -> None:
    """Create or upgrade the schema in the database.

    Without a configured database, --sql prints the whole schema. The output of --roles is the same for every database,
    except for the name of the schema that the app or HORSIES_SCHEMA sets.
    """
    if sql + check_only + roles > 1:
        raise click.UsageError("--sql, --check and --roles exclude each other")
    configured = database.configured
    place = schema_of(AppConfig(broker=configured))
    if roles:
        click.echo(schema.roles_script(prefix, place), nl=False)
        return
    if sql:
        version = 0 if configured is None else database.ask(schema.installed_version)
        problem = schema_problem(version)
        if problem is not None and version > schema.LATEST:
            raise problem
        click.echo(schema.script(version, place), nl=False)
        return
    if check_only:
        problem = schema_problem(database.ask(schema.installed_version))
        if problem is not None:
            raise problem
        click.echo(f"the schema has version {schema.LATEST}")
        return
    postgres = database.created
    try:
        applied = asyncio.run(schema.migrate(postgres))
    except TRANSIENT as error:
        raise explain_connection_error(error, postgres) from error
    done = f"migrations applied: {applied}" if applied else "nothing to do"
    click.echo(f"{done}; the schema has version {schema.LATEST}")
