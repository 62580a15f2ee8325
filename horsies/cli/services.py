"""`horsies worker`, `scheduler` and `web`: run the tasks, the schedules or the dashboard until stopped by a signal."""

from __future__ import annotations

import csv
import os
from datetime import timedelta
from typing import Any

import click

from horsies.cli.options import (
    Database,
    app_argument,
    database_options,
    duration,
    load,
    log_level,
    messages,
    redact_option,
    replica_url,
)
from horsies.cli.output import raise_all
from horsies.config import WorkerConfig
from horsies.errors import ConfigurationError, ErrorCode, HorsiesError, how_to_install
from horsies.validation import check


def _queues(_context: click.Context, _param: click.Parameter, value: str | None) -> list[str] | None:
    """Parse names that are separated by commas; a name with a comma is written in double quotes."""
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
@click.option(
    "--processes", type=_FROM_1, help="Run this many processes.  [default: the number of usable CPUs]"
)
@click.option("--threads", type=_FROM_1, help="Run this many tasks at once in each process, in threads.")
@click.option("--async-processes", type=_FROM_1, help="Run async tasks in this many processes.")
@click.option("--async-concurrency", type=_FROM_1, help="Run this many async tasks at once in each of them.")
@click.option("--queues", metavar="A,B", callback=_queues, help="Serve only these queues.")
@click.option(
    "--prefetch-buffer",
    type=_FROM_0,
    help="Claim this many tasks more than there are free processes; 0: none.  [default: short tasks that will start within 16 ms]",
)
@click.option(
    "--max-claim-batch", type=_FROM_0, help="Claim at most this many tasks of a queue at a time; 0: no limit."
)
@click.option(
    "--max-claim-per-worker",
    type=_FROM_0,
    help="Hold at most this many tasks; 0: processes plus prefetch buffer.",
)
@click.option(
    "--max-tasks-per-child",
    type=_FROM_0,
    help="Replace a process after this many tasks; 0: never.  [default: after 100 tasks and 1 s]",
)
@click.option("--max-memory-per-child-mb", type=_FROM_1, help="Replace a process that uses this much memory.")
@click.option("--with-scheduler", is_flag=True, default=None, help="Run the app's schedules too.")
@click.option("--drain-seconds", type=_FROM_0, help="Wait this long for running tasks after a signal.")
@click.option(
    "--health-port",
    type=click.IntRange(1, 65_535),
    help="Serve health probes on this port: /live and /ready.",
)
@click.option("--health-host", metavar="HOST", help="Serve them on this address.  [default: all]")
@click.option(
    "--start-method",
    type=click.Choice(["forkserver", "fork", "spawn"]),
    help="Start processes with this method.",
)
@log_level("INFO")
def worker(locator: str, loglevel: str, **flags: Any) -> None:
    """Run the tasks of the app.

    LOCATOR names the app as package.module:app or path/to/file.py:app; the default is HORSIES_APP, then pyproject.toml. SIGTERM or Ctrl-C stops the worker after its running tasks; a second signal kills them.
    """
    app = load(locator, loglevel)
    given = {name: value for name, value in flags.items() if value is not None}
    raise_all(check(app, schedules=bool(flags["with_scheduler"])))
    app.run_worker(WorkerConfig(app_locator=locator, loglevel=loglevel, **given))


@click.command()
@app_argument
@log_level("INFO")
def scheduler(locator: str, loglevel: str) -> None:
    """Run the schedules of the app.

    LOCATOR names the app as package.module:app or path/to/file.py:app; the default is HORSIES_APP, then pyproject.toml. Any number of schedulers may run at once. SIGTERM or Ctrl-C stops this one.
    """
    app = load(locator, loglevel)
    raise_all(check(app))
    app.run_scheduler()


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Listen on this address.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8600,
    show_default=True,
    help="Listen on this port; 0 takes a free one.",
)
@click.option("--enable-actions", is_flag=True, help="Allow viewers to retry, pause and delete.")
@click.option("--token", metavar="TOKEN", help="Require this token from viewers; else HORSIES_WEB_TOKEN.")
@click.option(
    "--trusted-header", metavar="NAME", help="Read the name of the viewer from this header of a proxy."
)
@click.option(
    "--trusted-proxy",
    "trusted_proxies",
    metavar="ADDRESS",
    multiple=True,
    help="Accept the trusted header from this IP address or network; loopback by default. Repeatable.",
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    metavar="NAME",
    multiple=True,
    help="Answer requests for this host name. Repeatable.",
)
@click.option(
    "--session-lifetime",
    metavar="DURATION",
    default="12h",
    show_default=True,
    callback=duration,
    help="Log a browser out after this time, such as 30m, 12h or 7d.",
)
@click.option(
    "--read-url",
    metavar="URL",
    callback=replica_url,
    help="Read from this replica, and act on the primary; else HORSIES_WEB_READ_URL.",
)
@redact_option
@log_level("INFO")
@database_options
def web(
    host: str,
    port: int,
    enable_actions: bool,
    token: str | None,
    trusted_header: str | None,
    trusted_proxies: tuple[str, ...],
    allowed_hosts: tuple[str, ...],
    session_lifetime: timedelta,
    read_url: str | None,
    redact: tuple[str, ...],
    loglevel: str,
    database: Database,
) -> None:
    """Serve the dashboard, its JSON API and the metrics.

    With an app, named by LOCATOR, HORSIES_APP or pyproject.toml, the dashboard can also run schedules at once and validate
    edited arguments. Ctrl-C or SIGTERM stops it.
    """
    if database.locator is not None:
        source = load(database.locator, loglevel)
        source.import_task_modules()
    else:
        source = database.postgres
    try:
        # part of an extra, and slow to import
        from horsies.web.auth import refuse_open_bind
        from horsies.web.dashboard import Server, create_dashboard, listen
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"the dashboard needs {error.name}, which is not installed",
            code=ErrorCode.EXTRA_NOT_INSTALLED,
            help_text=how_to_install("web"),
        ) from error
    dashboard = create_dashboard(
        source,
        enable_actions=enable_actions,
        token=token or os.environ.get("HORSIES_WEB_TOKEN") or None,
        trusted_header=trusted_header,
        trusted_proxies=trusted_proxies or None,
        allowed_hosts=allowed_hosts or None,
        session_lifetime=session_lifetime,
        redact=redact,
        read_url=read_url,
    )
    refuse_open_bind(host, dashboard.access)
    sockets = listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    click.echo(f"dashboard at http://{shown}:{sockets[0].getsockname()[1]}/  (Ctrl-C to stop)")
    Server(dashboard, host, port).run(sockets)
