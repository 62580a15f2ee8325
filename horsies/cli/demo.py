"""`horsies demo`: start a database, a worker and a dashboard, send a few tasks, and check their results."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.util import find_spec
from typing import IO, Any, TypeVar

import click
import psycopg
from psycopg import errors, sql

from horsies import embedded
from horsies.cli.demo_app import SumOfSquares, add, app, charge, crash, divide, fetch, spin
from horsies.cli.output import print_table, raise_all
from horsies.cli.signals import restored_handlers
from horsies.config import PostgresConfig, database_url_from
from horsies.db.connection import connection_string, explain_connection_error, open_sync
from horsies.db.urls import with_database
from horsies.errors import DatabaseError, ErrorCode, HorsiesError, how_to_install
from horsies.executor.child import die_with_parent
from horsies.handle import TaskHandle
from horsies.result import (
    BrokerOperationError,
    HandleOperationError,
    Ok,
    Result,
    TaskError,
    TaskInfo,
    TaskResult,
    TaskSendError,
    TaskSendResult,
    WorkflowStartError,
)
from horsies.status import OperationalErrorCode, OutcomeCode, TaskStatus, WorkflowStatus
from horsies.units import counted
from horsies.validation import unreadable_urls

T = TypeVar("T")

DATABASE = "horsies_demo"
LOCATOR = "horsies.cli.demo_app:app"
WORKER = ("worker", LOCATOR, "--processes=2", "--prefetch-buffer=200", "--with-scheduler")
DASHBOARD_PORT = 8600
START_SECONDS = 30
STOP_SECONDS = 15
BATCH = 3_000
CHUNK = 500
RESULT_TIMEOUT_MS = 15_000

COMPLETED, FAILED, EXPIRED = TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.EXPIRED


@dataclass(frozen=True, slots=True)
class Scenario:
    """A task to send, and how it must end."""

    description: str
    send: Callable[[], TaskSendResult[TaskHandle[Any]]]
    status: TaskStatus
    outcome: str  # the value, or the code of the error
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of the task or workflow of a scenario."""

    description: str
    status: str
    attempts: int
    outcome: str
    milliseconds: float
    expected: str | None = None  # set if something else was expected

    def row(self) -> dict[str, str]:
        """Return the cells of the table of outcomes."""
        return {
            "what a task does": self.description,
            "status": self.status,
            "attempts": f"{self.attempts:,}",
            "result or error": self.outcome,
            "ms": f"{self.milliseconds:,.0f}",
        }


SCENARIOS: Sequence[Scenario] = (
    Scenario("adds two numbers", lambda: add.send(2, 3), COMPLETED, "5"),
    Scenario("fails with a code of its own", lambda: charge.send(100), FAILED, "CARD_DECLINED"),
    Scenario(
        "raises an exception", lambda: divide.send(1, 0), FAILED, OperationalErrorCode.UNHANDLED_EXCEPTION
    ),
    Scenario(
        "fails, is retried and succeeds",
        # The retry runs a second after the failure, when the service is up.
        lambda: fetch.send(up_at=datetime.now(UTC) + timedelta(seconds=1)),
        COMPLETED,
        "'fetched'",
        attempts=2,
    ),
    Scenario("runs a second later", lambda: add.schedule(1, 20, 22), COMPLETED, "42"),
    Scenario("runs too long and is stopped", lambda: spin.send(), FAILED, OutcomeCode.TASK_TIMEOUT),
    Scenario("crashes its process", lambda: crash.send(), FAILED, OperationalErrorCode.WORKER_CRASHED),
    Scenario(
        "expires before it is due",
        lambda: add.with_options(
            good_until=datetime.now(UTC) + timedelta(seconds=0.5), delay_seconds=60
        ).send(1, 1),
        EXPIRED,
        OutcomeCode.TASK_EXPIRED,
        attempts=0,
    ),
)


def unwrap(
    result: Result[T, TaskSendError | BrokerOperationError | WorkflowStartError | HandleOperationError],
) -> T:
    """Return the value of a result, or raise its error: the demo ends if the database cannot be reached."""
    if isinstance(result, Ok):
        return result.ok_value
    raise DatabaseError(
        f"the database went away: {result.err_value.message}",
        code=ErrorCode.DATABASE_UNREACHABLE,
        help_text="check that the server runs, then start the demo again",
    )


def run_scenario(scenario: Scenario) -> Outcome:
    """Send the task of a scenario, wait for its end, and compare it with what is expected."""
    started = time.perf_counter()
    handle = unwrap(scenario.send())
    result = handle.get(timeout_ms=RESULT_TIMEOUT_MS)
    milliseconds = (time.perf_counter() - started) * 1000
    info = unwrap(handle.info(include_attempts=True))
    return compare(scenario, info, result, milliseconds)


def run_workflow() -> Outcome:
    """Start the workflow, wait for its end, and count its nodes."""
    started = time.perf_counter()
    handle = unwrap(SumOfSquares.build(app).start())
    result = handle.get(timeout_ms=RESULT_TIMEOUT_MS)
    milliseconds = (time.perf_counter() - started) * 1000
    status = unwrap(handle.status())
    outcome = repr(result.ok_value) if result.is_ok() else str(result.err_value.error_code)
    is_expected = (status, outcome) == (WorkflowStatus.COMPLETED, "30")
    expected = None if is_expected else "COMPLETED with 30"
    nodes = len(unwrap(handle.tasks()))
    return Outcome("is a workflow that squares and sums", str(status), nodes, outcome, milliseconds, expected)


def compare(
    scenario: Scenario, info: TaskInfo | None, result: TaskResult[Any, TaskError], milliseconds: float
) -> Outcome:
    """Return the outcome of a scenario, with what was expected if that is something else."""
    status = "unknown" if info is None else str(info.status)
    attempts = 0 if info is None else len(info.attempts or ())
    outcome = repr(result.ok_value) if result.is_ok() else str(result.err_value.error_code)
    is_expected = (status, attempts, outcome) == (scenario.status, scenario.attempts, scenario.outcome)
    attempted = counted(scenario.attempts, "attempt")
    expected = None if is_expected else f"{scenario.status} after {attempted} with {scenario.outcome}"
    return Outcome(scenario.description, status, attempts, outcome, milliseconds, expected)


def run_batch() -> Outcome:
    """Send many tasks in one call, print how many have ended so far, and check every sum."""
    started = time.perf_counter()
    handles = unwrap(add.send_many([(number, 1) for number in range(BATCH)]))
    stored = time.perf_counter()
    right, wrong = 0, None
    while right < BATCH and wrong is None:
        results = asyncio.run(_results(handles[right : right + CHUNK]))
        sums = range(right + 1, right + 1 + len(results))
        pairs = zip(results, sums, strict=True)
        wrong = next((got for got, value in pairs if got != TaskResult(ok=value)), None)
        right += len(results) if wrong is None else results.index(wrong)
        click.echo(f"  {right:,} done")
    ended = time.perf_counter()
    rates = f"sent at {BATCH / (stored - started):,.0f}/s, done at {right / (ended - started):,.0f}/s"
    milliseconds = (ended - started) * 1000
    status = COMPLETED if wrong is None else FAILED
    expected = None if wrong is None else f"COMPLETED; number {right + 1:,} gave {wrong}"
    return Outcome(f"is one of {BATCH:,} sent at once", status, right, rates, milliseconds, expected)


async def _results(handles: Sequence[TaskHandle[int]]) -> list[TaskResult[int, TaskError]]:
    return await asyncio.gather(*(handle.get_async(timeout_ms=RESULT_TIMEOUT_MS) for handle in handles))


@click.command()
@click.option(
    "--once",
    is_flag=True,
    help="Exit after the tasks have ended instead of keeping the worker and the dashboard.",
)
@restored_handlers(signal.SIGTERM, signal.SIGHUP)
def demo(once: bool) -> None:
    """Run example tasks that succeed, fail, retry, run late, time out, crash and expire, and a workflow.

    The demo uses the database horsies_demo on the configured server, or on the embedded PostgreSQL.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    is_running = True
    try:
        os.environ["HORSIES_DATABASE_URL"] = _prepare_database()
        with (
            tempfile.TemporaryFile() as log,
            _started(WORKER, log) as worker,
            nullcontext() if once else _dashboard() as address,
        ):
            _wait_until_ready(worker, log)
            broken = _run_scenarios()
            is_running = False
            if broken:
                click.echo(f"Output of the worker:\n{_output(log)}", err=True)
            if not once:
                click.echo(address)
                click.echo(f"The worker keeps running as process {worker.pid}; Ctrl-C stops it.")
                raise _worker_error(worker.wait(), log)
    except KeyboardInterrupt:
        click.echo("\nInterrupted." if is_running else "\nStopped.", err=True)
        sys.exit(130 if is_running else 0)
    sys.exit(1 if broken else 0)


def _prepare_database() -> str:
    """Return the URL of the database horsies_demo, and create it if it does not exist."""
    url = database_url_from(os.environ) or embedded.ensure(announce=click.echo).url
    server = PostgresConfig(database_url=url)
    raise_all(unreadable_urls([server.conninfo]))
    try:
        with open_sync(connection_string(server.conninfo)) as connection:
            _create_database(connection)
    except psycopg.OperationalError as error:
        raise explain_connection_error(error, server) from error
    return with_database(url, DATABASE)


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
            help_text=f"ask an administrator to run CREATE DATABASE {DATABASE} OWNER {user}, or unset HORSIES_DATABASE_URL",
        ) from error


@contextmanager
def _started(words: Sequence[str], output: IO[bytes] | int) -> Generator[subprocess.Popen[bytes]]:
    """Run a `horsies` command in the background, and stop it in the end."""
    service = subprocess.Popen(
        [sys.executable, "-m", "horsies", *words],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,  # Ctrl-C reaches this process only, which then stops the service
        preexec_fn=partial(die_with_parent, os.getpid()),  # safe: there is no other thread yet
    )
    try:
        yield service
    finally:
        service.terminate()
        try:
            service.wait(STOP_SECONDS)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            service.kill()
            service.wait()


@contextmanager
def _dashboard() -> Generator[str]:
    """Run the dashboard; yield a line with its address, or with what is missing."""
    missing = [name for name in ("uvicorn", "starlette", "jinja2") if find_spec(name) is None]
    if missing:
        yield f"There is no dashboard without {', '.join(missing)}: {how_to_install('web')}"
        return
    port = _free_port(DASHBOARD_PORT)
    with _started(["web", LOCATOR, "--enable-actions", f"--port={port}"], subprocess.DEVNULL):
        yield f"The dashboard is at http://127.0.0.1:{port}/"


def _free_port(wanted: int) -> int:
    """Return the wanted port if it is free, else any free port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_until_ready(worker: subprocess.Popen[bytes], log: IO[bytes]) -> None:
    click.echo("Starting a worker with 2 processes …")
    first = unwrap(add.send(0, 0))
    for _ in range(START_SECONDS * 5):
        if first.get(timeout_ms=200).is_ok():
            return
        if worker.poll() is not None:
            break
    raise _worker_error(worker.poll(), log)


def _output(log: IO[bytes]) -> str:
    log.seek(0)
    return log.read().decode(errors="replace").strip()


def _worker_error(code: int | None, log: IO[bytes]) -> HorsiesError:
    what = f"was not ready within {START_SECONDS} s" if code is None else f"ended with exit code {code}"
    return HorsiesError(
        f"the worker {what}; its output:\n{_output(log)}",
        code=ErrorCode.BROKER_INIT_FAILED,
        help_text="see the output of the worker above",
    )


def _run_scenarios() -> bool:
    """Run every scenario and print its outcome; return True if one was not as expected."""
    outcomes: list[Outcome] = []
    for scenario in SCENARIOS:
        click.echo(f"A task {scenario.description} …")
        outcomes.append(run_scenario(scenario))
    click.echo("A workflow makes numbers, squares each and sums them up …")
    outcomes.append(run_workflow())
    click.echo(f"{BATCH:,} tasks are sent at once …")
    outcomes.append(run_batch())
    click.echo()
    print_table([outcome.row() for outcome in outcomes], right=["attempts", "ms"])
    click.echo()
    unexpected = [outcome for outcome in outcomes if outcome.expected is not None]
    for outcome in unexpected:
        click.echo(f"Unexpected: a task that {outcome.description} should be {outcome.expected}.", err=True)
    return bool(unexpected)
