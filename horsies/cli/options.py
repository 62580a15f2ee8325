"""The arguments and options that several commands take: which app, which database, how much to log."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from horsies import logs
from horsies.check import configured_database, unreadable_urls
from horsies.config import AppConfig, PostgresConfig
from horsies.discovery import load_app
from horsies.errors import HorsiesError, MultipleValidationErrors

if TYPE_CHECKING:
    from horsies.app import Horsies

Command = TypeVar("Command", bound=Callable[..., Any])

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def messages(error: HorsiesError) -> str:
    """What is wrong, for click to put after the name of the flag."""
    found = error.errors if isinstance(error, MultipleValidationErrors) else [error]
    return "; ".join(each.message for each in found)


def app_argument(command: Command) -> Command:
    """LOCATOR, or the same as `-m`."""
    module = click.option("-m", "--module", metavar="LOCATOR", help="The app, given as an option.")
    return click.argument("locator", required=False)(module(command))


def log_level(default: str) -> Callable[[Command], Command]:
    return click.option(
        "--loglevel",
        type=click.Choice(LEVELS, case_sensitive=False),
        default=default,
        show_default=True,
        help="How much to log; DEBUG also shows the traceback of an error.",
    )


def locator_of(locator: str | None, module: str | None) -> str:
    """The app that was asked for, here or by HORSIES_APP."""
    if locator and module and locator != module:
        raise click.UsageError(f"LOCATOR is {locator!r} and --module is {module!r}; give one of the two")
    found = locator or module or os.environ.get("HORSIES_APP")
    if not found:
        raise click.UsageError(
            "no app was named; give LOCATOR as package.module:app or path/to/file.py:app, or set HORSIES_APP"
        )
    return found


def load(locator: str, loglevel: str) -> Horsies:
    """The app of a locator, with logging as it wants it."""
    from horsies.app import Horsies  # workers and all: most commands do without

    logs.set_level(loglevel)
    app = load_app(locator)
    assert isinstance(app, Horsies), "a registry is made as an app"
    logs.configure(loglevel, app.config.log_format)
    return app


def _database(_context: click.Context, _param: click.Parameter, value: str | None) -> PostgresConfig | None:
    if value is None:
        return None
    try:
        config = PostgresConfig(database_url=value)
    except HorsiesError as error:
        raise click.BadParameter(messages(error)) from error
    for problem in unreadable_urls([config.conninfo]):
        raise click.BadParameter(problem.message)
    return config


def database_options(command: Command) -> Command:
    """`--app` and `--database-url`, for commands whose arguments are something else."""
    app = click.option("--app", metavar="LOCATOR", help="The app whose database it is; else HORSIES_APP.")
    url = click.option("--database-url", metavar="URL", callback=_database, help="The database itself.")
    return app(url(command))


def named_database(app: str | None, database_url: PostgresConfig | None) -> PostgresConfig | None:
    """The database that the options, HORSIES_APP or the environment name; None when it is a server of our own."""
    if app and database_url:
        raise click.UsageError("--app and --database-url each name a database; give one of the two")
    if database_url:
        return database_url
    locator = app or os.environ.get("HORSIES_APP")
    return configured_database(load_app(locator).config if locator else AppConfig())
