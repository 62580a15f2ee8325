"""`horsies health`: whether a worker on this host claims and beats in time, for probes that run a command."""

from __future__ import annotations

import socket
import sys

import click

from horsies.cli.database import ask
from horsies.cli.inspect import as_json_option
from horsies.cli.options import database_options, named_database
from horsies.cli.tables import print_json
from horsies.config import PostgresConfig
from horsies.storage.health import judge, workers_of


@click.command()
@click.option("--host", metavar="HOST", help="The host to look at.  [default: this one]")
@as_json_option
@database_options
def health(host: str | None, as_json: bool, app: str | None, database_url: PostgresConfig | None) -> None:
    """Exit with 0 when a worker on this host claims and beats in time, else with 1 and the reason."""
    name = host or socket.gethostname()
    workers = ask(named_database(app, database_url), lambda connection: workers_of(connection, name))
    verdict = judge(workers, name)
    if as_json:
        print_json({**verdict._asdict(), "host": name, "workers": [worker._asdict() for worker in workers]})
    else:
        click.echo(verdict.reason, err=not verdict.ok)
    sys.exit(0 if verdict.ok else 1)
