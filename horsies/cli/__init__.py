"""The `horsies` command.

A known error is one screen on standard error: what is wrong, where, and the remedy. Exit codes are 0, 1 for a failure
and 2 for a command line that cannot be understood.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

import click

from horsies.errors import ErrorCode, HorsiesError

_CLICKS_OWN = (click.ClickException, click.Abort, click.exceptions.Exit, BrokenPipeError)


# Where each command is defined, in the order in which help shows them. A command imports what it needs when it is called.
COMMANDS = {
    "worker": "worker",
    "scheduler": "scheduler",
    "dev": "dev",
    "check": "check",
    "info": "inspect",
    "tasks": "inspect",
    "show": "inspect",
    "why": "inspect",
    "failed": "inspect",
    "requeue": "operate",
    "cancel": "operate",
    "suspend": "operate",
    "resume": "operate",
    "purge": "operate",
    "events": "events",
    "top": "top",
    "web": "web",
    "health": "health",
    "schedules": "schedules",
    "workflows": "workflows",
    "migrate": "migrate",
    "doctor": "doctor",
    "explain": "explain",
    "db": "db",
    "demo": "demo",
}


class _Commands(click.Group):
    """The group in which every error ends, and whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  as click calls it
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        return getattr(import_module(f"horsies.cli.{COMMANDS[cmd_name]}"), cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if close := get_close_matches(args[0], COMMANDS, 1):
                meant = f"{error.format_message()} Did you mean {close[0]!r}?"
                raise click.UsageError(meant, ctx) from None
            raise

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            _refuse(error, ctx)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            _refuse(error, ctx)
        except _CLICKS_OWN:
            raise
        except Exception as error:  # noqa: BLE001  whatever it is, a user is told about it
            _report(error)
            ctx.exit(1)


def _report(error: Exception) -> None:
    from horsies.cli.report import report  # knows the database's errors, which take long to import

    report(error)


def _refuse(error: click.UsageError, context: click.Context) -> NoReturn:
    """A command line that cannot be understood is an error like any other."""
    command = (error.ctx or context).command_path
    _report(
        HorsiesError(
            error.format_message(), code=ErrorCode.CLI_INVALID_ARGS, help_text=f"see `{command} --help`"
        )
    )
    context.exit(error.exit_code)


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="horsies", prog_name="horsies")
@click.pass_context
def horsies(context: click.Context) -> None:
    """A task queue and workflow engine on PostgreSQL alone."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
        context.exit(1)


def main() -> None:
    """What the `horsies` script runs."""
    horsies(prog_name="horsies")
