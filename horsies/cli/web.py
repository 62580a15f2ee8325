"""`horsies web`: the dashboard, its JSON API and the metrics."""

from __future__ import annotations

import os
from typing import Any

import click

from horsies.app import Horsies
from horsies.cli.options import database_options, load, log_level, named_database
from horsies.config import PostgresConfig
from horsies.errors import ConfigurationError, ErrorCode


@click.command()
@click.argument("locator", required=False)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8600, show_default=True, help="The port.")
@click.option("--enable-actions", is_flag=True, help="Let viewers change things: retry, pause, delete.")
@click.option("--token", metavar="TOKEN", help="What viewers must know; else HORSIES_WEB_TOKEN.")
@click.option("--trusted-header", metavar="NAME", help="The header in which a proxy says who is there.")
@click.option("--allowed-host", "allowed_hosts", metavar="NAME", multiple=True, help="A name to answer to.")
@log_level("INFO")
@database_options
def web(
    locator: str | None,
    host: str,
    port: int,
    enable_actions: bool,
    token: str | None,
    trusted_header: str | None,
    allowed_hosts: tuple[str, ...],
    loglevel: str,
    app: str | None,
    database_url: PostgresConfig | None,
) -> None:
    """Show what there is and what goes on, in the browser.

    With the app at LOCATOR it can run schedules out of turn and check edited arguments, too.
    """
    if locator and (app or database_url):
        raise click.UsageError("LOCATOR names the database; give it alone, or --app or --database-url")
    source = _source(locator or app or os.environ.get("HORSIES_APP"), database_url, loglevel)
    settings = {
        "enable_actions": enable_actions,
        "token": token or os.environ.get("HORSIES_WEB_TOKEN") or None,
        "trusted_header": trusted_header,
        "allowed_hosts": allowed_hosts or None,
    }
    _serve(source, host, port, settings)


def _source(
    locator: str | None, database_url: PostgresConfig | None, loglevel: str
) -> Horsies | PostgresConfig | None:
    if database_url is not None or locator is None:
        return named_database(None, database_url)
    loaded = load(locator, loglevel)
    loaded.import_task_modules()
    return loaded


def _serve(source: Horsies | PostgresConfig | None, host: str, port: int, settings: dict[str, Any]) -> None:
    try:
        # what they import is part of an extra, and slow to import
        from horsies.web.access import Access, refuse_open_bind
        from horsies.web.dashboard import create_dashboard
        from horsies.web.server import Server
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"the dashboard needs {error.name}, which is not installed",
            code=ErrorCode.EXTRA_NOT_INSTALLED,
            help_text="install it: pip install 'horsies[web]'",
        ) from error
    refuse_open_bind(host, Access(**settings))
    shown = f"[{host}]" if ":" in host else host
    click.echo(f"dashboard at http://{shown}:{port}/  (Ctrl-C to stop)")
    Server(create_dashboard(source, **settings), host, port).run()
