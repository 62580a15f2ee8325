"""`horsies scheduler`: run an app's schedules until told to stop."""

from __future__ import annotations

import click

from horsies.check import check
from horsies.cli.options import app_argument, load, locator_of, log_level
from horsies.cli.report import raise_all


@click.command()
@app_argument
@log_level("INFO")
def scheduler(locator: str | None, module: str | None, loglevel: str) -> None:
    """Run the schedules of the app at LOCATOR: package.module:app or path/to/file.py:app.

    Any number of schedulers may run at once. SIGTERM or Ctrl-C ends this one.
    """
    app = load(locator_of(locator, module), loglevel)
    raise_all(check(app))
    app.run_scheduler()
