"""The `horsies` command.

A known error is printed to standard error on one screen: what is wrong, where, and the remedy. `EXIT_CODES` lists the exit
codes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

import click

from horsies.errors import ErrorCode, HorsiesError

# The module of each command, by the purpose of the command. A module is imported when one of its commands is called.
PURPOSES: Mapping[str, Mapping[str, str]] = {
    "Run": {"worker": "services", "scheduler": "services", "web": "services"},
    "Look": {
        "info": "inspect",
        "tasks": "inspect",
        "failed": "inspect",
        "show": "inspect",
        "why": "inspect",
        "keys": "inspect",
        "events": "events",
        "top": "inspect",
        "health": "diagnose",
        "doctor": "diagnose",
    },
    "Act": {
        "retry": "operate",
        "signal": "operate",
        "cancel": "operate",
        "pause": "operate",
        "resume": "operate",
        "purge": "operate",
        "schedules": "schedules",
        "workflows": "workflows",
    },
    "Develop": {
        "dev": "dev",
        "check": "diagnose",
        "replay": "replay",
        "crashtest": "crashtest",
        "explain": "diagnose",
        "demo": "demo",
        "get-docs": "documentation",
    },
    "Set up": {"migrate": "db", "db": "db"},
}
COMMANDS = {name: module for commands in PURPOSES.values() for name, module in commands.items()}
# Earlier names of commands; they still work, and the help does not list them.
ALIASES = {"requeue": "retry", "suspend": "pause"}

EXIT_CODES = {
    0: "success",
    1: "a failure, or a check that found a problem",
    2: "an invalid command line",
    130: "interrupted by Ctrl-C",
    141: "the reader of the output has gone, such as head",
}
_EPILOG = "Exit codes: " + "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items()) + "."


class CommandGroup(click.Group):
    """A group whose help shows the first sentence of each command in full: click cuts it to one line.

    Without a command, the group prints its help and exits 1.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments up to the command."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help())
            ctx.exit(1)
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        self.write_commands(ctx, formatter, "Commands", self.list_commands(ctx))

    def write_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter, title: str, names: list[str]
    ) -> None:
        """Write the names of commands with their first sentences, aligned with those of all other commands."""
        width = max(map(len, self.list_commands(ctx)))
        rows = [
            (f"{name:<{width}}", command.get_short_help_str(limit=10_000))
            for name in names
            if (command := self.get_command(ctx, name)) is not None
        ]
        with formatter.section(title):
            formatter.write_dl(rows)


class _Commands(CommandGroup):
    """Imports a command when it is called, and reports its errors."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  as click calls it
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for purpose, commands in PURPOSES.items():
            self.write_commands(ctx, formatter, purpose, list(commands))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        name = ALIASES.get(cmd_name, cmd_name)
        if name not in COMMANDS:
            return None
        return getattr(import_module(f"horsies.cli.{COMMANDS[name]}"), name.replace("-", "_"))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if close := get_close_matches(args[0], [*COMMANDS, *ALIASES], 1):
                meant = ALIASES.get(close[0], close[0])
                message = f"No such command {args[0]!r}. Did you mean {meant!r}?"
                raise click.UsageError(message, ctx) from None
            raise error from None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            _refuse_invalid_text(args, ctx)
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            _refuse(error, ctx)
        except BrokenPipeError:
            _end_without_reader(ctx)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            _refuse(error, ctx)
        except KeyboardInterrupt:
            click.echo("\nInterrupted.", err=True)
            ctx.exit(130)
        except BrokenPipeError:
            _end_without_reader(ctx)
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise  # handled by click
        except Exception as error:  # noqa: BLE001  every error is reported to the user
            _report(error)
            ctx.exit(1)


def _refuse_invalid_text(args: list[str], context: click.Context) -> None:
    """Refuse arguments that PostgreSQL cannot store as text: with a NUL, or with bytes that are not UTF-8."""
    for word in args:
        problem = "a NUL character" if "\0" in word else None
        if any("\ud800" <= character <= "\udfff" for character in word):
            problem = "bytes that are not UTF-8"
        if problem is not None:
            shown = ascii(word if len(word) <= 60 else word[:59] + "…")
            raise click.UsageError(f"the argument {shown} has {problem} in it", context)


def _end_without_reader(context: click.Context) -> NoReturn:
    """End without a word when nobody reads the output any more, with the exit code of programs that SIGPIPE ends."""
    # What is still buffered goes nowhere; otherwise Python complains about it when it ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    context.exit(141)


def _report(error: Exception) -> None:
    from horsies.cli.output import report  # imports psycopg, which is slow

    report(error)


def _refuse(error: click.UsageError, context: click.Context) -> NoReturn:
    """Report an invalid command line like any other error, and exit."""
    command = (error.ctx or context).command_path
    if error.ctx is None and context.invoked_subcommand is not None:
        command = f"{command} {context.invoked_subcommand}"
    _report(
        HorsiesError(
            error.format_message(), code=ErrorCode.CLI_INVALID_ARGS, help_text=f"see `{command} --help`"
        )
    )
    context.exit(error.exit_code)


@click.group(
    cls=_Commands,
    epilog=_EPILOG,
    subcommand_metavar="COMMAND ...",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="horsies", prog_name="horsies")
def horsies() -> None:
    """Run background tasks, schedules and workflows on PostgreSQL.

    Commands find the app by the argument LOCATOR (package.module:app or path/to/file.py:app), by HORSIES_APP, or by
    `app = "package.module:app"` under [tool.horsies] in the nearest pyproject.toml, in this order. Commands that need only the
    database also take --database-url. `horsies COMMAND --help` describes a command.
    """


def main() -> None:
    """Run the `horsies` command."""
    horsies(prog_name="horsies")
