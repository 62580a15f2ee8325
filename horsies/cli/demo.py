"""`horsies demo`: a worker of its own, tasks that end in every way a task can end, a workflow and a schedule.

It keeps to a database of its own on the server it finds, writes nothing into the folder it is run in, and whatever
happens to it takes its worker with it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
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
FLAGS = ("--processes=2", "--prefetch-buffer=200", "--with-scheduler")
START_SECONDS = 30
STOP_SECONDS = 15
INTERRUPTED = 130


@click.command()
@click.option("--once", is_flag=True, help="End after the tour instead of keeping the worker.")
def demo(once: bool) -> None:
    """See tasks succeed, fail, retry, run late, time out, crash and expire.

    Runs on the configured server, or on a PostgreSQL of its own, in the database horsies_demo.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    touring = True
    try:
        os.environ["HORSIES_DATABASE_URL"] = _prepare_database()
        with _worker() as worker:
            _wait_until_ready(worker)
            broken = _take_tour()
            touring = False
            if broken:
                click.echo(f"The worker said:\n{_said(worker)}", err=True)
            if not once:
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


class _Worker(subprocess.Popen[bytes]):
    """The demo's worker, and what it logs."""

    def __init__(self, log: IO[bytes]) -> None:
        self.log = log
        super().__init__(
            [sys.executable, "-m", "horsies", "worker", LOCATOR, *FLAGS],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for us, who stop it in good order
            preexec_fn=partial(die_with_parent, os.getpid()),  # safe: there is no other thread yet
        )


@contextmanager
def _worker() -> Generator[_Worker]:
    worker = None
    with tempfile.TemporaryFile() as log:
        try:
            worker = _Worker(log)
            yield worker
        finally:
            if worker is not None:
                _stop(worker)


def _stop(worker: _Worker) -> None:
    worker.terminate()
    try:
        worker.wait(STOP_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        worker.kill()
        worker.wait()


def _wait_until_ready(worker: _Worker) -> None:
    click.echo("Starting a worker with 2 processes …")
    first = tour.answered(add.send(0, 0))
    for _ in range(START_SECONDS * 5):
        if first.get(timeout_ms=200).is_ok():
            return
        if worker.poll() is not None:
            break
    raise _ended(worker, worker.poll())


def _said(worker: _Worker) -> str:
    worker.log.seek(0)
    return worker.log.read().decode(errors="replace").strip()


def _ended(worker: _Worker, code: int | None) -> HorsiesError:
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
