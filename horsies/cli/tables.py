"""What commands print: tables for people, aligned, one row a line, and JSON for programs."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence

import click
import msgspec

from horsies.errors import use_color

WIDE_ENOUGH = 10_000


def print_table(header: Sequence[str], rows: Collection[Sequence[str]], right: Collection[str] = ()) -> None:
    """Print rows under a header; the columns named in `right` are aligned to the right."""
    # rich takes a tenth of a second to import, which only a command that prints a table should pay
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for name in header:
        table.add_column(name, justify="right" if name in right else "left")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    on_terminal = sys.stdout.isatty()
    color = use_color(os.environ, on_terminal)
    # in a file nothing is folded to a terminal's width
    Console(force_terminal=color, no_color=not color, width=None if on_terminal else WIDE_ENOUGH).print(table)


def print_json(document: object) -> None:
    """Print one JSON document."""
    click.echo(msgspec.json.format(msgspec.json.encode(document)))


def printable(text: str) -> str:
    """The text with line ends, control and other unprintable characters escaped: names may hold anything."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
