"""The `horsies` command.

A known error is one screen on standard error: what is wrong, where, and the remedy. Exit codes are 0, 1 for a failure
and 2 for a command line that cannot be understood.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, NoReturn

import click

from horsies.cli.check import check
from horsies.cli.db import db
from horsies.cli.demo import demo
from horsies.cli.doctor import doctor
from horsies.cli.events import events
from horsies.cli.health import health
from horsies.cli.inspect import failed, info, show, tasks, why
from horsies.cli.migrate import migrate
from horsies.cli.operate import cancel, purge, requeue, resume, suspend
from horsies.cli.report import report
from horsies.cli.scheduler import scheduler
from horsies.cli.schedules import schedules
from horsies.cli.top import top
from horsies.cli.web import web
from horsies.cli.worker import worker
from horsies.cli.workflows import workflows
from horsies.errors import ErrorCode, HorsiesError

_CLICKS_OWN = (click.ClickException, click.Abort, click.exceptions.Exit, BrokenPipeError)


class _Commands(click.Group):
    """The group in which every error ends."""

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
            report(error)
            ctx.exit(1)


def _refuse(error: click.UsageError, context: click.Context) -> NoReturn:
    """A command line that cannot be understood is an error like any other."""
    command = (error.ctx or context).command_path
    report(
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
@click.version_option(version("horsies"), prog_name="horsies")
@click.pass_context
def horsies(context: click.Context) -> None:
    """A task queue and workflow engine on PostgreSQL alone."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
        context.exit(1)


for _command in (
    worker, scheduler, schedules, workflows, check, migrate, doctor, demo, db, info, tasks, show, failed, why, requeue, cancel,
    suspend, resume, purge, events, health, top, web,
):  # fmt: skip
    horsies.add_command(_command)


def main() -> None:
    """What the `horsies` script runs."""
    horsies(prog_name="horsies")
