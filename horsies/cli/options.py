"""Arguments and options that several commands share: the app, the database, the log level and redaction."""

from __future__ import annotations

import asyncio
import functools
import getpass
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

import click
import msgspec
from psycopg import errors

from horsies import embedded, logs
from horsies.cli.locators import HOW_TO_NAME_THE_APP, find_app, require_app
from horsies.client import resolve
from horsies.config import AppConfig, PostgresConfig, configured_database, database_at
from horsies.db.connection import TRANSIENT, Connection, connect, explain_connection_error
from horsies.db.migrations import installed_version
from horsies.db.queries import inspect
from horsies.db.queries.inspect import FullTask, TaskRow
from horsies.discovery import load_app
from horsies.durations import seconds_of
from horsies.errors import EmbeddedError, ErrorCode, HorsiesError, MultipleValidationErrors
from horsies.events import Event
from horsies.redaction import Redactor, names_in
from horsies.validation import schema_problem, unreadable_urls

if TYPE_CHECKING:
    from horsies.app import Horsies
    from horsies.registry import TaskRegistry


T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def messages(error: HorsiesError) -> str:
    """Return the messages of an error for click, which puts them after the name of the option."""
    found = error.errors if isinstance(error, MultipleValidationErrors) else [error]
    return "; ".join(each.message for each in found)


def duration(_context: click.Context, _param: click.Parameter, value: str | None) -> timedelta | None:
    """Parse the value of an option such as 30s, 15m, 12h or 7d."""
    try:
        return None if value is None else timedelta(seconds=seconds_of(value))
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(str(error)) from error


# Earlier ways to name the app; they still work.
_old_app_option = click.option("-m", "--module", "--app", "old_app", metavar="LOCATOR", hidden=True)


def _one_of(locator: str | None, old: str | None) -> str | None:
    if locator and old and locator != old:
        raise click.UsageError(f"LOCATOR is {locator!r} and --app is {old!r}; give one of the two")
    return locator or old


def app_argument(command: Callable[..., T]) -> Callable[..., T]:
    """Add the argument LOCATOR for a command that needs the app; the command takes it as `locator`."""

    @click.argument("locator", required=False)
    @_old_app_option
    @functools.wraps(command)
    def called(*, locator: str | None, old_app: str | None, **values: Any) -> T:
        return command(locator=require_app(_one_of(locator, old_app)), **values)

    return called


def log_level(default: str) -> Callable[[Command], Command]:
    return click.option(
        "--loglevel",
        type=click.Choice(LEVELS, case_sensitive=False),
        default=default,
        show_default=True,
        help="Log from this level on; DEBUG also prints the traceback of an error.",
    )


def load(locator: str, loglevel: str) -> Horsies:
    """Load the app of a locator, and configure logging."""
    from horsies.app import Horsies  # slow to import, and most commands do not need it

    logs.set_level(loglevel)
    app = load_app(locator)
    assert isinstance(app, Horsies), "a registry is made as an app"
    logs.configure(loglevel, app.config.log_format)
    return app


def _database_at(
    _context: click.Context, _param: click.Parameter, value: str | None
) -> PostgresConfig | None:
    if value is None:
        return None
    try:
        config = database_at(value)
    except HorsiesError as error:
        raise click.BadParameter(messages(error)) from error
    for problem in unreadable_urls([config.conninfo]):
        raise click.BadParameter(problem.message)
    return config


def replica_url(context: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Check the URL of a replica, from the command line or from HORSIES_WEB_READ_URL."""
    config = _database_at(context, param, value or os.environ.get("HORSIES_WEB_READ_URL") or None)
    return None if config is None else config.database_url


class Database:
    """The database of a command: that of `--database-url`, of the app, or of the environment."""

    def __init__(self, app: str | None, url: PostgresConfig | None) -> None:
        if app and url:
            raise click.UsageError(
                f"the app {app!r} (LOCATOR or --app) and --database-url each name a database; give one of the two"
            )
        self.app = app
        self.url = url

    @functools.cached_property
    def locator(self) -> str | None:
        """Return the locator of the app, None for a command that was given a URL or no app."""
        return None if self.url else find_app(self.app)

    @functools.cached_property
    def registry(self) -> TaskRegistry | None:
        """Load the app, if there is one."""
        return None if self.locator is None else load_app(self.locator)

    @property
    def configured(self) -> PostgresConfig | None:
        """Return the database, None for the embedded server."""
        return self.url or configured_database(self._config)

    @property
    def postgres(self) -> PostgresConfig:
        """Return the database; on the embedded server, only one that exists.

        A command that reads creates none: where somebody looks from the wrong folder, an empty one would hide the mistake.
        """
        if (configured := self.configured) is not None:
            return configured
        name = self._config.embedded_database
        assert name is not None, "a configuration without a broker names it"
        url = embedded.existing_database_url(name)
        if url is None:
            raise _no_database(name, self.locator)
        return database_at(url)

    @property
    def created(self) -> PostgresConfig:
        """Return the database; on the embedded server, create it if need be."""
        return self.url or resolve(self._config)

    @property
    def _config(self) -> AppConfig:
        return AppConfig() if self.registry is None else self.registry.config

    def ask(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Run a function with a connection to the database."""
        postgres = self.postgres

        async def connected() -> T:
            async with await connect(postgres, session=True, name="horsies-cli") as connection:
                try:
                    return await work(connection)
                except (errors.UndefinedTable, errors.UndefinedColumn):
                    if problem := schema_problem(await installed_version(connection)):
                        raise problem from None
                    raise

        try:
            return asyncio.run(connected())
        except BrokenPipeError:
            raise  # of standard output, not of the database
        except TRANSIENT as error:
            raise explain_connection_error(error, postgres) from error


def _no_database(name: str, locator: str | None) -> EmbeddedError:
    whose = f"the folder {Path.cwd()}" if locator is None else f"the app {locator}"
    remedy = "a worker, the first task that is sent, or `horsies migrate` creates it"
    return EmbeddedError(
        f"there is no database yet for {whose}: {name} does not exist on the embedded PostgreSQL",
        code=ErrorCode.SCHEMA_BEHIND,
        help_text=remedy
        if locator
        else f"go to the project's folder, or name the app: {HOW_TO_NAME_THE_APP}; {remedy}",
    )


_database_url_option = click.option(
    "--database-url",
    metavar="URL",
    callback=_database_at,
    help="Use this database instead of the app's.",
)


def database_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add LOCATOR and `--database-url`; the command takes them as one argument, `database`."""

    @click.argument("locator", required=False)
    @_old_app_option
    @_database_url_option
    @functools.wraps(command)
    def called(
        *, locator: str | None, old_app: str | None, database_url: PostgresConfig | None, **values: Any
    ) -> T:
        return command(database=Database(_one_of(locator, old_app), database_url), **values)

    return called


def subject_argument(
    name: str, metavar: str, *, ids: bool = False, required: bool = True
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Add `[LOCATOR] METAVAR` and `--database-url`, for a command about tasks or workflows by `ids`, or schedules by name.

    The command takes the subject as `name`: a list if the metavar ends in dots. The first word is the locator if it has a
    colon: an id has none. A name may have one, so a single word is always a name; before one name, any word is the locator.
    """
    many = metavar.endswith("...")

    def split(
        context: click.Context, _param: click.Parameter, words: tuple[str, ...]
    ) -> tuple[str | None, list[Any]]:
        has_app = _begins_with_locator(words, ids, many)
        found = [_uuid(word, metavar, context) if ids else word for word in words[has_app:]]
        if required and not found:
            raise click.MissingParameter(ctx=context, param_hint=f"'{metavar}'", param_type="argument")
        if not many and len(found) > 1:
            raise click.UsageError(f"give one {metavar}, not {len(found)}: {' '.join(words)}", context)
        return (words[0] if has_app else None), found

    usage = f"[LOCATOR] {metavar if required else f'[{metavar}]'}"

    def decorate(command: Callable[..., T]) -> Callable[..., T]:
        @click.argument("words", nargs=-1, callback=split, metavar=usage)
        @_old_app_option
        @_database_url_option
        @functools.wraps(command)
        def called(
            *,
            words: tuple[str | None, list[Any]],
            old_app: str | None,
            database_url: PostgresConfig | None,
            **values: Any,
        ) -> T:
            locator, subjects = words
            values[name] = subjects if many else subjects[0]
            return command(database=Database(_one_of(locator, old_app), database_url), **values)

        return called

    return decorate


def _begins_with_locator(words: Sequence[str], ids: bool, many: bool) -> bool:
    if not words:
        return False
    if ids:
        return ":" in words[0] and not words[0].startswith("urn:uuid:")
    return len(words) > 1 and (":" in words[0] or (not many and len(words) == 2))


def _uuid(word: str, metavar: str, context: click.Context) -> UUID:
    try:
        return click.UUID.convert(word, None, context)
    except click.BadParameter as error:
        hint = f"'{metavar.removesuffix('...')}'"
        raise click.BadParameter(error.message, context, param_hint=hint) from None


def actor() -> str:
    """Return the user and host that are recorded with an operator's action."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


as_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
limit_option = click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=50,
    show_default=True,
    help="The number of tasks to list at most.",
)
redact_option = click.option(
    "--redact",
    metavar="NAME",
    multiple=True,
    help="Hide the values of arguments with this name, like those in HORSIES_REDACT. Repeatable.",
)


def filter_options(command: Command) -> Command:
    """Add `--name`, `--queue` and `--code`."""
    name = click.option("--name", metavar="NAME", help="Only this task.")
    queue = click.option("--queue", metavar="QUEUE", help="Only this queue.")
    code = click.option("--code", metavar="CODE", help="Only failures with this error code.")
    return name(queue(code(command)))


class Redaction:
    """Hides the values of arguments in the output of a command.

    The names of the arguments come from the app's setting, from `--redact` and from HORSIES_REDACT.
    """

    def __init__(self, registry: TaskRegistry | None, names: Sequence[str]) -> None:
        self._registry = registry
        known = () if registry is None else registry.config.redact
        self.redactor = Redactor([*known, *names, *names_in(os.environ)])

    def _parameters(self, task_name: str) -> list[str]:
        """Return the names of a task's parameters in order; none without an app."""
        task = None if self._registry is None else self._registry.tasks.get(task_name)
        return [] if task is None else list(task.definition.signature.parameters)

    def task(self, found: FullTask) -> FullTask:
        """Return a task without the values to hide."""
        return inspect.redact(found, self.redactor, self._parameters(found.task.task_name))

    async def tasks(self, connection: Connection, found: list[TaskRow]) -> list[TaskRow]:
        """Return a list of tasks without the values to hide, neither in their arguments nor in messages that quote them."""
        if not self.redactor:
            return found
        found = [replace(task, arguments=self.redactor.json(task.arguments)) for task in found]
        if not any(task.message or task.failed_reason for task in found):
            return found
        known = await inspect.arguments_of_many(connection, [UUID(task.task_id) for task in found])

        return [
            replace(
                task,
                message=self._scrub(task.message, task.task_name, known.get(task.task_id)),
                failed_reason=self._scrub(task.failed_reason, task.task_name, known.get(task.task_id)),
            )
            for task in found
        ]

    async def events(self, connection: Connection, found: list[Event]) -> list[Event]:
        """Return events whose messages do not quote the values to hide."""
        task_ids = {event.task_id for event in found if event.message and event.task_id}
        if not self.redactor or not task_ids:
            return found
        known = await inspect.arguments_of_many(connection, [UUID(task_id) for task_id in task_ids])
        return [
            msgspec.structs.replace(
                event,
                message=self._scrub(event.message, event.task_name or "", known.get(event.task_id or "")),
            )
            for event in found
        ]

    def _scrub(
        self, text: str | None, task_name: str, arguments: tuple[str | None, str | None] | None
    ) -> str | None:
        return self.redactor.scrub(text, *(arguments or ()), parameters=self._parameters(task_name))
