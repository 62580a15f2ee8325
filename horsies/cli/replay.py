"""`horsies replay`: run a task again in this process, with its stored steps, and write nothing.

The app's sessions with its database are read-only meanwhile, so a send of the task's own code fails.
"""

from __future__ import annotations

import asyncio
import pdb
import sys
import traceback
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import UUID

import click

from horsies.cli.inspect import no_such_task
from horsies.cli.options import Database, subject_argument
from horsies.cli.output import cut, printable
from horsies.codec import ArgumentError
from horsies.codec.failures import render
from horsies.codec.results import with_plain_codes
from horsies.config import PostgresConfig
from horsies.db.connection import Connection
from horsies.db.queries import inspect, steps
from horsies.db.queries.inspect import TaskDetail
from horsies.db.queries.steps import StepRow
from horsies.db.urls import read_only
from horsies.errors import ConfigurationError, ErrorCode
from horsies.event_loop import run_sync
from horsies.executor.durable import StepPort, Steps
from horsies.executor.protocol import Call, Question, StepReply, StoredStep
from horsies.executor.runner import MAX_RESULT, Run
from horsies.registry import AnyTask, TaskRegistry


class ReplayEnds(BaseException):
    """The run has come to a step that is not carried out here. Not an `Exception`, so that no `except Exception` catches it."""


class ReplayedSteps(Steps):
    """The steps of an earlier run. A step that has not ended is not carried out: the replay ends there."""

    until: str | None = None

    async def _begin(self, name: str, kind: str) -> StoredStep | None:
        stored = await super()._begin(name, kind)
        if name == self.until:
            raise ReplayEnds(f"it has come to step {name!r}")
        if stored is None or stored.result is None:
            raise ReplayEnds(f"step {name!r} has no stored result, and is not carried out")
        click.echo(f"step {name!r}: {printable(cut(with_plain_codes(stored.result)))}")
        return stored


class ReplayedRun(Run):
    """A run whose steps are those of earlier runs."""

    def __init__(self, call: Call, stored: Sequence[StepRow], until: str | None) -> None:
        super().__init__(call, lambda _said: True, ())
        reply = StepReply(0, 0, steps=[StoredStep(row.name, row.kind, row.result) for row in stored])

        def answer(_question: Question) -> Future[StepReply]:
            future: Future[StepReply] = Future()
            future.set_result(reply)
            return future

        self._steps = ReplayedSteps(call, StepPort(answer, None, lambda: None), MAX_RESULT)
        self._steps.until = until


@click.command()
@click.option("--pdb", "debug", is_flag=True, help="Open the debugger where the run ends, unless it returns.")
@click.option("--until", metavar="STEP", help="End when the run comes to this step.")
@subject_argument("task_id", "TASK_ID", ids=True)
def replay(task_id: UUID, debug: bool, until: str | None, database: Database) -> None:
    """Run a task in this process with the same arguments and its stored steps, writing nothing.

    Steps that have ended return their stored results. The run ends at the first other one. The code of the task outside of steps
    runs as in a worker, and so do its effects; but the app's sessions with its database are read-only, so a send fails.
    """
    registry = database.registry
    if registry is None:
        raise ConfigurationError(
            "replay runs the code of the task, and no app is named",
            code=ErrorCode.WORKER_INVALID_LOCATOR,
            help_text=f"name the app: `horsies replay package.module:app {task_id}`",
        )

    async def read(connection: Connection) -> tuple[TaskDetail | None, list[StepRow]]:
        return await inspect.task(connection, task_id, shown=inspect.WHOLE), await steps.steps(
            connection, task_id
        )

    found, stored = database.ask(read)
    if found is None:
        raise no_such_task(task_id)
    task = registry.tasks.get(found.task_name)
    if task is None:
        raise ConfigurationError(
            f"the app has no task {found.task_name!r}",
            code=ErrorCode.TASK_NOT_FOUND,
            help_text="name the app that defines it",
        )
    try:
        kwargs = task.definition.signature.decode(found.args, found.kwargs)
    except ArgumentError as error:
        raise click.ClickException(f"the arguments of the task cannot be read: {error}") from None
    _make_read_only(registry, database.postgres)
    _replay(task, kwargs, ReplayedRun(_call(found), stored, until), debug)


def _make_read_only(registry: TaskRegistry, postgres: PostgresConfig) -> None:
    """Let the app write nothing to its database from now on. A pooler would refuse the setting, so it is passed by."""
    url = read_only(postgres.session_database_url or postgres.database_url)
    run_sync(registry.get_broker().move_to(PostgresConfig(database_url=url, schema=postgres.schema)))


def _call(found: TaskDetail) -> Call:
    return Call(
        ticket=0,
        task_id=found.task_id,
        task_name=found.task_name,
        args=found.args,
        kwargs=found.kwargs,
        queue_name=found.queue_name,
        attempt=found.retry_count + 1,
        max_retries=found.max_retries,
        timeout_ms=None,
        valid_until=0.0,
        claim_seq=2,  # not the first run: it asks for its steps
        task_options=None,
    )


def _replay(task: AnyTask, kwargs: dict[str, Any], run: Run, debug: bool) -> None:
    """Run the function, and print how it ends; exit 1 if it raises."""
    try:
        with run:
            if task.definition.batch is not None:
                run.batch = [run.task_of(run.call)]
                kwargs = {name: [value] for name, value in kwargs.items()}
            value = task.definition.fn(**kwargs)
            if task.definition.is_async:
                value = asyncio.run(value)
    except ReplayEnds as end:
        click.echo(f"the replay ends: {end}")
        if debug:
            pdb.post_mortem(_in_own_code(end.__traceback__))
        return
    except BaseException as error:  # noqa: BLE001  whatever the code of the task raises is shown
        click.echo("".join(traceback.format_exception(error)), err=True)
        if debug:
            pdb.post_mortem(error.__traceback__)
        sys.exit(1)
    click.echo(f"returned {printable(cut(render(value, repr) or ''))}")


def _in_own_code(found: TracebackType | None) -> TracebackType | None:
    """Cut a traceback below its last frame outside of this package: there the debugger opens."""
    package = Path(__file__).parents[1]
    frames: list[TracebackType] = []
    while found is not None:
        frames.append(found)
        found = found.tb_next
    while len(frames) > 1 and Path(frames[-1].tb_frame.f_code.co_filename).is_relative_to(package):
        frames.pop()
    if frames:
        frames[-1].tb_next = None
    return frames[0] if frames else None
