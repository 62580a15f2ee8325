"""`horsies worker`: run an app's tasks until told to stop."""

from __future__ import annotations

import csv
from typing import Any

import click

from horsies.check import check
from horsies.cli.options import app_argument, load, locator_of, log_level, messages
from horsies.cli.report import raise_all
from horsies.config import WorkerConfig
from horsies.errors import HorsiesError


def _names(_context: click.Context, _param: click.Parameter, value: str | None) -> list[str] | None:
    """Names with commas between them; one that has a comma itself is written in double quotes."""
    if value is None:
        return None
    try:
        names = [name for row in csv.reader([value], skipinitialspace=True, strict=True) for name in row]
        WorkerConfig(queues=names)
    except csv.Error as error:
        raise click.BadParameter(f"{value!r} cannot be read: {error}") from error
    except HorsiesError as error:
        raise click.BadParameter(messages(error)) from error
    return names


_FROM_0, _FROM_1 = click.IntRange(min=0), click.IntRange(min=1)


@click.command()
@app_argument
@click.option("--processes", type=_FROM_1, help="How many tasks run at once.  [default: the number of CPUs]")
@click.option("--threads", type=_FROM_1, help="How many tasks each process runs at once, in threads.")
@click.option("--async-processes", type=_FROM_1, help="How many processes run async tasks.")
@click.option("--async-concurrency", type=_FROM_1, help="How many async tasks each of them runs at once.")
@click.option("--queues", metavar="A,B", callback=_names, help="Serve these queues only.")
@click.option("--prefetch-buffer", type=_FROM_0, help="How many more to claim ahead of a free process.")
@click.option("--max-claim-batch", type=_FROM_0, help="At most so many of one queue in a claim; 0: no limit.")
@click.option("--max-claim-per-worker", type=_FROM_0, help="At most so many claimed; 0: what has room.")
@click.option("--max-tasks-per-child", type=_FROM_0, help="Replace a process after so many tasks; 0: never.")
@click.option("--max-memory-per-child-mb", type=_FROM_1, help="Replace a process that holds so much.")
@click.option("--with-scheduler", is_flag=True, default=None, help="Run the app's schedules, too.")
@click.option("--drain-seconds", type=_FROM_0, help="How long running tasks may take to end after a stop.")
@click.option("--health-port", type=click.IntRange(1, 65_535), help="Answer probes: GET /live and /ready.")
@click.option("--health-host", metavar="HOST", help="The address to answer them at.  [default: all]")
@click.option(
    "--start-method", type=click.Choice(["forkserver", "fork", "spawn"]), help="How processes are made."
)
@log_level("INFO")
def worker(locator: str | None, module: str | None, loglevel: str, **flags: Any) -> None:
    """Run the tasks of the app at LOCATOR: package.module:app or path/to/file.py:app.

    SIGTERM or Ctrl-C lets running tasks end; once more ends them at once.
    """
    where = locator_of(locator, module)
    app = load(where, loglevel)
    given = {name: value for name, value in flags.items() if value is not None}
    raise_all(check(app, schedules=bool(flags["with_scheduler"])))
    app.run_worker(WorkerConfig(app_locator=where, loglevel=loglevel, **given))
