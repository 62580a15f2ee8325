"""`horsies top`: queues, workers and tasks at a glance, and what can be done about them, in the terminal."""

from __future__ import annotations

from importlib.util import find_spec

import click

from horsies.broker import resolve
from horsies.cli.database import actor, ask
from horsies.cli.options import database_options, named_database
from horsies.config import AppConfig, PostgresConfig
from horsies.errors import ConfigurationError, ErrorCode
from horsies.storage import operations


@click.command()
@database_options
def top(app: str | None, database_url: PostgresConfig | None) -> None:
    """Queues, workers and tasks at a glance, each second anew; keys retry, cancel and pause."""
    if find_spec("textual") is None:
        raise ConfigurationError(
            "`horsies top` draws with textual, which is not installed",
            code=ErrorCode.EXTRA_NOT_INSTALLED,
            help_text="pip install 'horsies[tui]'; `horsies info --watch` needs nothing more",
        )
    postgres = named_database(app, database_url) or resolve(AppConfig())
    ask(
        postgres, operations.suspensions
    )  # what is wrong with the database is said before the screen is taken
    # textual takes a third of a second to import, and is an extra
    from horsies.cli.tui.board import Board

    Board(postgres, actor()).run()
