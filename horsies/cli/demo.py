"""`horsies demo`: a worker and a dashboard of its own, tasks that end in every way a task can end, a workflow, a schedule.

It keeps to a database of its own on the server it finds, writes nothing into the folder it is run in, and whatever
happens to it takes them with it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib.util import find_spec
from types import FrameType
from typing import IO, Any

import click
import psycopg
from psycopg import errors, sql

from horsies import embedded
from horsies.check import unreadable_urls
from horsies.cli import tour
from horsies.cli.demo_app import add
from horsies.cli.report import raise_all
from horsies.cli.tables import print_table
from horsies.config import PostgresConfig, database_url_from
from horsies.errors import DatabaseError, ErrorCode, HorsiesError
from horsies.storage.database import explain
from horsies.worker.system import die_with_parent

DATABASE = "horsies_demo"
LOCATOR = "horsies.cli.demo_app:app"
_WORKER = ("worker", LOCATOR, "--processes=2", "--prefetch-buffer=200", "--with-scheduler")
DASHBOARD_PORT = 8600
START_SECONDS = 30
STOP_SECONDS = 15
INTERRUPTED = 130


@click.command()
@click.option("--once", is_flag=True, help="End after the tour instead of keeping worker and dashboard.")
def demo(once: bool) -> None:
    """See tasks succeed, fail, retry, run late, time out, crash and expire, a workflow, and the dashboard.

    Runs on the configured server, or on a PostgreSQL of its own, in the database horsies_demo.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    touring = True
    try:
        os.environ["HORSIES_DATABASE_URL"] = _prepare_database()
        with _started(_WORKER) as worker, nullcontext() if once else _dashboard() as address:
            _wait_until_ready(worker)
            broken = _take_tour()
            touring = False
            if broken:
                click.echo(f"The worker said:\n{_said(worker)}", err=True)
            if not once:
                click.echo(address or "The dashboard takes an extra: pip install 'horsies[web]'.")
                click.echo(f"The worker runs on as process {worker.pid}; Ctrl-C stops it.")
                raise _ended(worker, worker.wait())
    except KeyboardInterrupt:
        click.echo("\nStopped." if not touring else "\nInterrupted.", err=True)
        sys.exit(INTERRUPTED if touring else 0)
    sys.exit(1 if broken else 0)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _prepare_database() -> str:
    """The URL of the demo's own database, created if need be, beside whatever else is on the server."""
    url = database_url_from(os.environ) or embedded.ensure(announce=click.echo).url
    server = PostgresConfig(database_url=url)
    raise_all(unreadable_urls([server.conninfo]))
    try:
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            _create_database(connection)
    except psycopg.OperationalError as error:
        raise explain(error, server) from error
    # libpq lets a parameter win over the path, whatever else the URL holds
    return f"{url}{'&' if '?' in url else '?'}dbname={DATABASE}"


def _create_database(connection: psycopg.Connection[Any]) -> None:
    known = connection.execute("SELECT FROM pg_database WHERE datname = %s", (DATABASE,))
    if known.rowcount:
        return
    try:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))
    except (errors.DuplicateDatabase, errors.UniqueViolation):
        pass  # another demo has just created it
    except errors.InsufficientPrivilege as error:
        user = connection.info.user
        raise DatabaseError(
            f"the role {user!r} may not create the database {DATABASE!r}",
            code=ErrorCode.SCHEMA_PERMISSION,
            help_text=f"have someone run CREATE DATABASE {DATABASE} OWNER {user}, or unset HORSIES_DATABASE_URL",
        ) from error


class _Service(subprocess.Popen[bytes]):
    """A process of the demo, and what it logs."""

    def __init__(self, words: Sequence[str], log: IO[bytes]) -> None:
        self.log = log
        super().__init__(
            [sys.executable, "-m", "horsies", *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for us, who stop it in good order
            preexec_fn=partial(die_with_parent, os.getpid()),  # safe: there is no other thread yet
        )


@contextmanager
def _started(words: Sequence[str]) -> Generator[_Service]:
    service = None
    with tempfile.TemporaryFile() as log:
        try:
            service = _Service(words, log)
            yield service
        finally:
            if service is not None:
                _stop(service)


@contextmanager
def _dashboard() -> Generator[str | None]:
    """The dashboard, while the demo lasts; gives where it is, or None if it is not installed."""
    if find_spec("uvicorn") is None or find_spec("starlette") is None or find_spec("jinja2") is None:
        yield None
        return
    port = _free_port(DASHBOARD_PORT)
    with _started(["web", LOCATOR, "--enable-actions", f"--port={port}"]):
        yield f"The dashboard is at http://127.0.0.1:{port}/"


def _free_port(wanted: int) -> int:
    """A port of this machine on which nobody listens: the one that is wanted, if that is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _stop(worker: _Service) -> None:
    worker.terminate()
    try:
        worker.wait(STOP_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        worker.kill()
        worker.wait()


def _wait_until_ready(worker: _Service) -> None:
    click.echo("Starting a worker with 2 processes …")
    first = tour.answered(add.send(0, 0))
    for _ in range(START_SECONDS * 5):
        if first.get(timeout_ms=200).is_ok():
            return
        if worker.poll() is not None:
            break
    raise _ended(worker, worker.poll())


def _said(worker: _Service) -> str:
    worker.log.seek(0)
    return worker.log.read().decode(errors="replace").strip()


def _ended(worker: _Service, code: int | None) -> HorsiesError:
    what = f"was not ready within {START_SECONDS} s" if code is None else f"ended with exit code {code}"
    return HorsiesError(
        f"the worker {what}; it said:\n{_said(worker)}",
        code=ErrorCode.BROKER_INIT_FAILED,
        help_text="see what it said above",
    )


def _take_tour() -> bool:
    """Visit every stop and show what came of it; true when a promise was broken."""
    seen: list[tour.Seen] = []
    for stop in tour.STOPS:
        click.echo(f"A task {stop.what} …")
        seen.append(tour.visit(stop))
    click.echo("A workflow makes numbers, squares each and sums them up …")
    seen.append(tour.workflow())
    click.echo(f"{tour.BULK:,} tasks are sent at once …")
    for news in tour.bulk():
        if isinstance(news, tour.Seen):
            seen.append(news)
        else:
            click.echo(f"  {news:,} done")
    click.echo()
    header = ["what a task does", "status", "attempts", "result or error", "ms"]
    print_table(header, [each.cells for each in seen], right=["attempts", "ms"])
    click.echo()
    for each in seen:
        if each.promise is not None:
            click.echo(f"Not as promised: a task that {each.what} should be {each.promise}.", err=True)
    return any(each.promise is not None for each in seen)
