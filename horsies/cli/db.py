"""`horsies db`: the embedded PostgreSQL server, by hand."""

import sys

import click

from horsies import embedded
from horsies.errors import mask_passwords


@click.group()
def db() -> None:
    """The PostgreSQL server that horsies runs when no database is configured."""


@db.command()
def start() -> None:
    """Start the server, unless it runs already."""
    server = embedded.ensure(announce=lambda line: click.echo(line, err=True))
    if not server.started:
        click.echo(_summary(server))


@db.command()
def stop() -> None:
    """Stop the server; its data stays."""
    click.echo("stopped" if embedded.stop() else "not running")


@db.command()
def status() -> None:
    """Say what runs; exit 1 when nothing does."""
    server = embedded.status()
    if server is None:
        click.echo("not running")
        sys.exit(1)
    click.echo(_summary(server))
    click.echo(mask_passwords(server.url))


@db.command()
def url() -> None:
    """Print the URL with its password, starting the server if need be."""
    server = embedded.ensure(announce=lambda line: click.echo(line, err=True))
    click.echo(server.url)


@db.command()
def path() -> None:
    """Print the data directory."""
    click.echo(embedded.data_directory())


def _summary(server: embedded.Server) -> str:
    return f"PostgreSQL {server.version} runs as process {server.pid}; data in {server.data_dir}"
