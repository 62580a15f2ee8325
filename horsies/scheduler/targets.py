"""What a schedule starts, in the transaction that moves the schedule on.

A scheduled task is sent as every other: its row is made by the same code, so that it has its retry policy, time limit,
priority, unique key and rate limit. Something else that schedules can start is one more `Starter`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from msgspec.structs import replace

from horsies.codec import ArgumentError, encode_json
from horsies.errors import ConfigurationError, ErrorCode, HorsiesError
from horsies.handle import TaskHandle
from horsies.registry import TaskRegistry
from horsies.schedule.definition import Written
from horsies.schedule.model import TaskSchedule
from horsies.schedule.slots import zone_of
from horsies.sending import Envelope, Refused, TaskSendOptions
from horsies.storage import schedules, tasks, workflows
from horsies.storage.database import Connection
from horsies.storage.store import Rows, Values, carry_out_async, store_and_wake
from horsies.storage.tasks import NewTask
from horsies.workflow.definition import DEFINITIONS
from horsies.workflow.handle import WorkflowHandle
from horsies.workflow.rows import plan
from horsies.workflow.spec import WorkflowSpec, build


class Unknown(Exception):
    """This app does not have what a schedule names; another scheduler's may."""


class Run(NamedTuple):
    """A slot that is to be run now, under an id that is made of it."""

    id: UUID
    slot: datetime
    what: Any  # what the starter has prepared


class Starter(Protocol):
    """Starts what the schedules of one kind name."""

    def problems(self, schedule: TaskSchedule) -> list[tuple[str, str]]:
        """What keeps a schedule from being started here, each with its remedy."""
        ...

    def arguments(self, schedule: TaskSchedule) -> bytes:
        """The arguments of a schedule without problems, as JSON by name."""
        ...

    def prepare(self, written: Written) -> Any:
        """What all runs of a schedule have in common; raises `Unknown`, or `Refused` when no run can be started."""
        ...

    async def start(self, connection: Connection, runs: Sequence[Run]) -> list[UUID]:
        """Start runs in the caller's transaction, each of them once however often it is asked for; gives what runs."""
        ...

    async def living(self, connection: Connection, ids: Iterable[UUID]) -> set[UUID]:
        """Which of the runs that were started have not ended."""
        ...

    def handle(self, what: Any, run_id: UUID) -> TaskHandle[Any] | WorkflowHandle[Any]:
        """A handle to a run of what was prepared."""
        ...


class TaskStarter:
    """Sends tasks."""

    def __init__(self, app: TaskRegistry) -> None:
        self._app = app

    def problems(self, schedule: TaskSchedule) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        if schedule.queue_name is not None and schedule.queue_name not in self._app.get_valid_queue_names():
            names = ", ".join(self._app.get_valid_queue_names())
            found.append((f"queue {schedule.queue_name!r} is not configured", f"use one of: {names}"))
        task = self._app.tasks.get(schedule.task_name or "")
        if task is None:
            remedy = _nearest(schedule.task_name or "", self._app.list_tasks())
            return [(f"task {schedule.task_name!r} is not known", remedy), *found]
        try:
            task.definition.signature.encode(tuple(schedule.args), schedule.kwargs)
        except ArgumentError as error:
            found.append((str(error), "correct args and kwargs, or the annotations of the task"))
        return found

    def arguments(self, schedule: TaskSchedule) -> bytes:
        signature = self._app.tasks[schedule.task_name or ""].definition.signature
        return signature.encode(tuple(schedule.args), schedule.kwargs)

    def prepare(self, written: Written) -> NewTask:
        name = written.schedule.task_name or ""
        task = self._app.tasks.get(name)
        if task is None:
            raise Unknown(f"task {name!r} is not known to this scheduler's app")
        try:
            kwargs = task.definition.signature.decode(None, written.arguments)
        except ArgumentError as error:
            raise Refused(str(error)) from error
        options = TaskSendOptions(queue_name=written.schedule.queue_name)
        return Envelope(task.definition, options, self._app.get_broker()).rows([((), kwargs)], None)[0]

    async def start(self, connection: Connection, runs: Sequence[Run]) -> list[UUID]:
        # A slot that was run before, which takes a clock or a row that was set back, is not run again.
        before = {seen.id for seen in await tasks.look(connection, [run.id for run in runs])}
        fresh = [run for run in runs if run.id not in before]
        sent = dict[UUID, UUID]()
        if fresh:

            async def fetch(sql: bytes, values: Values) -> Rows:
                return await (await connection.execute(sql, values)).fetchall()

            rows = [replace(run.what, id=run.id) for run in fresh]
            ids = await carry_out_async(store_and_wake(rows), fetch)
            sent = dict(zip((run.id for run in fresh), ids, strict=True))
            await schedules.date_runs(connection, ((run.id, run.slot) for run in fresh))
        return [sent.get(run.id, run.id) for run in runs]

    async def living(self, connection: Connection, ids: Iterable[UUID]) -> set[UUID]:
        return await schedules.living(connection, ids)

    def handle(self, what: NewTask, run_id: UUID) -> TaskHandle[Any]:
        return self._app.handle(run_id, self._app.tasks.get(what.task_name))


class WorkflowStarter:
    """Starts workflows by their definitions, each built with the arguments of its schedule."""

    def __init__(self, app: TaskRegistry) -> None:
        self._app = app

    def problems(self, schedule: TaskSchedule) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        if schedule.args:
            found.append(
                (f"args is {schedule.args!r}", "a workflow takes its parameters by name: use kwargs")
            )
        if schedule.queue_name is not None:
            remedy = "say it at the nodes of the workflow"
            found.append((f"queue_name is {schedule.queue_name!r}, and a workflow has no queue", remedy))
        try:
            self._build(schedule.definition_key or "", json.loads(self.arguments(schedule)))
        except Unknown as problem:
            found.append((str(problem), _nearest(schedule.definition_key or "", list(DEFINITIONS))))
        except (Refused, ArgumentError) as problem:
            found.append((str(problem), "correct kwargs, or the definition"))
        return found

    def arguments(self, schedule: TaskSchedule) -> bytes:
        return encode_json(dict(schedule.kwargs))

    def prepare(self, written: Written) -> WorkflowSpec[Any]:
        return self._build(written.schedule.definition_key or "", json.loads(written.arguments))

    def _build(self, key: str, params: Mapping[str, Any]) -> WorkflowSpec[Any]:
        definition = DEFINITIONS.get(key)
        if definition is None:
            raise Unknown(f"workflow definition {key!r} is not known to this scheduler's app")
        try:
            return build(definition, self._app, params)
        except Exception as error:  # the user's code runs here, and what it raises is the schedule's problem
            message = error.message if isinstance(error, HorsiesError) else f"{type(error).__name__}: {error}"
            raise Refused(f"workflow definition {key!r} cannot be built: {message}") from error

    async def start(self, connection: Connection, runs: Sequence[Run]) -> list[UUID]:
        limit = self._app.config.payload.reject_bytes
        for run in runs:
            await workflows.start(connection, plan(run.what, run.id, limit))
        return [run.id for run in runs]

    async def living(self, connection: Connection, ids: Iterable[UUID]) -> set[UUID]:
        return await workflows.living(connection, ids)

    def handle(self, what: WorkflowSpec[Any], run_id: UUID) -> WorkflowHandle[Any]:
        return what.handle(run_id)


class Starters:
    """What the schedules of an app can start: tasks and workflows."""

    def __init__(self, app: TaskRegistry) -> None:
        self._tasks = TaskStarter(app)
        self._workflows = WorkflowStarter(app)

    def of(self, schedule: TaskSchedule) -> Starter:
        """Who starts what a schedule names."""
        return self._tasks if schedule.definition_key is None else self._workflows

    def problems(self, schedule: TaskSchedule) -> list[HorsiesError]:
        """Everything that keeps a schedule from being run here."""
        found: list[tuple[str, str]] = []
        if zone_of(schedule.timezone) is None:
            remedy = "use a name such as Europe/Berlin or America/New_York; `pip install tzdata` has them all"
            found.append((f"there is no time zone {schedule.timezone!r}", remedy))
        found += self.of(schedule).problems(schedule)
        return [
            ConfigurationError(
                f"schedule {schedule.name!r}: {problem}",
                code=ErrorCode.CONFIG_INVALID_SCHEDULE,
                help_text=remedy,
            )
            for problem, remedy in found
        ]


def _nearest(name: str, known: Sequence[str]) -> str:
    close = get_close_matches(name, known, n=3)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    return "import the module that defines it: app.discover_tasks([…])"
