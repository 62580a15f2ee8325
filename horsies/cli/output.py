"""Output of commands: aligned tables for people, JSON for programs, progress bars and error reports."""

from __future__ import annotations

import os
import shutil
import sys
import traceback
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager

import click
import msgspec
from psycopg import errors

from horsies import logs
from horsies.errors import HorsiesError, ValidationReport, mask_passwords, use_color
from horsies.validation import no_permission

# The width of a table that is not printed to a terminal, so that its rows are not wrapped.
FILE_WIDTH = 10_000
# Longer texts in a table are cut. Names have 255 characters at most.
LONGEST_CELL = 500
MESSAGE_WIDTH = 60
# Below this number a progress bar is not worth showing.
MIN_PROGRESS = 5_000


def print_table(
    rows: Sequence[Mapping[str, str]],
    right: Collection[str] = (),
    longest: int = LONGEST_CELL,
    drop: Sequence[str] = (),
) -> None:
    """Print rows of cells by the name of their column, or nothing if there are no rows.

    Align the columns in `right` to the right, and cut cells longer than `longest`. On a terminal that is too narrow, leave
    out the columns in `drop`, in this order, and name them below the table.
    """
    # rich takes a tenth of a second to import
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return
    on_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if on_terminal else FILE_WIDTH
    shown = [{name: printable(cut(cell, longest)) for name, cell in row.items()} for row in rows]
    names = fitting_columns(shown, list(rows[0]), drop, width, gap=3)
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for name in names:
        table.add_column(name, justify="right" if name in right else "left")
    for row in shown:
        table.add_row(*(Text(row[name]) for name in names))
    color = use_color(os.environ, on_terminal)
    console = Console(force_terminal=color, no_color=not color, width=width)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        click.echo(line.rstrip(), color=color)
    if left_out := [name for name in rows[0] if name not in names]:
        click.echo(f"not shown at {width} columns: {', '.join(left_out)}; --json has all", err=True)


def fitting_columns(
    rows: Sequence[Mapping[str, str]], names: Sequence[str], drop: Sequence[str], width: int, gap: int
) -> list[str]:
    """Return the columns to show in a width: all, or without the first of `drop` so that the others are not cut.

    >>> rows = [{"task": "send_mail", "error": "SMTP_DOWN"}]
    >>> fitting_columns(rows, ["task", "error"], ["error"], 20, 3), fitting_columns(rows, ["task", "error"], ["error"], 40, 3)
    (['task'], ['task', 'error'])
    """
    widths = {
        name: max(len(name), *(len(row[name]) for row in rows)) + gap if rows else len(name) + gap
        for name in names
    }
    shown = list(names)
    for name in drop:
        if sum(widths[each] for each in shown) <= width:
            break
        if name in shown:
            shown.remove(name)
    return shown


def print_fields(fields: Mapping[str, str], longest: int = LONGEST_CELL) -> None:
    """Print names and their values, a line each, with the values aligned; cut values longer than `longest`."""
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        click.echo(f"{name:<{width}}   {printable(cut(value, longest))}".rstrip())


def print_text(title: str, text: str) -> None:
    """Print a text of several lines below its title, indented."""
    click.echo(title)
    for line in text.splitlines():
        click.echo(f"  {printable(line)}".rstrip())


def print_json(document: object) -> None:
    """Print one JSON document."""
    click.echo(msgspec.json.format(msgspec.json.encode(document)))


def cut(text: str, longest: int = LONGEST_CELL) -> str:
    """Return the text, cut with an ellipsis if it is too long."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def first_line(text: str | None) -> str:
    """Return the first line of a message, cut to the width of its column."""
    return cut((text or "").partition("\n")[0], MESSAGE_WIDTH)


def printable(text: str) -> str:
    """Return the text with unprintable characters escaped: a name may hold line ends and control characters."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


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
    """Raise all errors as one, if there are any."""
    found = ValidationReport("command")
    for error in errors_found:
        found.add(error)
    found.raise_if_any()


def _show_traceback(error: Exception) -> None:
    for line in "".join(traceback.format_exception(error)).splitlines():
        click.echo(mask_passwords(line), err=True)


@contextmanager
def progress(total: int, what: str) -> Generator[Callable[[int], None]]:
    """Show a progress bar; call the yielded function with the number of items that were done since its last call."""
    if total < MIN_PROGRESS or not sys.stderr.isatty():
        yield lambda _more: None
        return
    from rich.console import Console  # takes a tenth of a second to import
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total)
        yield lambda more: bar.update(task, advance=more)
