"""A bar that shows how far long work has come, on a terminal only."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

# Less than this is over before a bar could be read.
WORTH_A_BAR = 5_000


@contextmanager
def progress(total: int, what: str) -> Generator[Callable[[int], None]]:
    """Tell by the function given how many more are done."""
    if total < WORTH_A_BAR or not sys.stderr.isatty():
        yield lambda _more: None
        return
    from rich.console import Console  # takes a tenth of a second to import
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total)
        yield lambda more: bar.update(task, advance=more)
