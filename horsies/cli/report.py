"""Tell a user what went wrong.

A known error is shown as it renders itself, with its traceback only at `--loglevel DEBUG`. Anything else is a bug of
ours, and its traceback is what helps to find it. Passwords are masked in both.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable

import click
from psycopg import errors

from horsies import logs
from horsies.check import no_permission
from horsies.errors import HorsiesError, ValidationReport, mask_passwords, use_color


def report(error: Exception) -> None:
    """Write an error to standard error."""
    known = no_permission(error) if isinstance(error, errors.InsufficientPrivilege) else error
    if not isinstance(known, HorsiesError):
        _show_traceback(error)
        click.echo(
            "horsies has a bug: this should not have happened. Please report the lines above.", err=True
        )
        return
    if logs.is_debugging():
        _show_traceback(error)
    color = use_color(os.environ, sys.stderr.isatty())
    click.echo(known.render(color), err=True, color=color)


def raise_all(errors_found: Iterable[HorsiesError]) -> None:
    """Raise what was found, if anything, as one error."""
    found = ValidationReport("command")
    for error in errors_found:
        found.add(error)
    found.raise_if_any()


def _show_traceback(error: Exception) -> None:
    for line in "".join(traceback.format_exception(error)).splitlines():
        click.echo(mask_passwords(line), err=True)
