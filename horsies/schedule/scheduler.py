"""The scheduler: write the schedules from code, wait until one is due, start its runs, and advance it in the same transaction.

Any number of schedulers may run. Each locks the rows of due schedules and skips those that another one has locked, so each
occurrence runs once. The row of a scheduled task is made by the same code as that of any other, so that it has the task's retry
policy, timeout, priority, unique key and rate limit.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from datetime import datetime
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from msgspec.structs import replace
from psycopg import IsolationLevel

from horsies.codec import ArgumentError, encode_json
from horsies.config import PostgresConfig
from horsies.db.connection import (
    TRANSIENT,
    Connection,
    connect,
    hangup_after,
    reconnect_delay,
)
from horsies.db.ids import slot_id
from horsies.db.insert import fetch_on, insert_and_notify, run_plan_async
from horsies.db.listener import Listener
from horsies.db.migrations import migrate
from horsies.db.queries import schedules, tasks, workflows
from horsies.db.queries.schedules import Advance, NewSchedule, ScheduleRow
from horsies.db.queries.tasks import NewTask
from horsies.db.queries.workflows import IdTaken
from horsies.discovery import import_modules
from horsies.durations import unbounded
from horsies.enqueue import InvalidSend, SendRequest, TaskSendOptions
from horsies.errors import ConfigurationError, ErrorCode, HorsiesError, ValidationReport, mask_passwords
from horsies.event_loop import wait_until_set
from horsies.handle import TaskHandle
from horsies.registry import TaskRegistry
from horsies.schedule.model import (
    ScheduleConfig,
    TaskSchedule,
    UnreadableDefinition,
    config_hash,
    decode_definition,
    encode_definition,
)
from horsies.schedule.occurrences import Due, NeverAgain, due, next_run, zone_of
from horsies.workflow.definition import DEFINITIONS
from horsies.workflow.handle import WorkflowHandle
from horsies.workflow.spec import WorkflowSpec, build, workflow_rows

logger = logging.getLogger("horsies.scheduler")

BATCH = 500
RUNS_PER_TRANSACTION = 2_000
POSTPONE_SECONDS = 60.0
RETRY_SECONDS = 1.0
PLANS_CACHED = 20_000


# Start the tasks and workflows of schedules


class UnknownTarget(Exception):
    """A schedule names a task or workflow that this app does not have; the app of another scheduler may have it."""


class Run(NamedTuple):
    """A slot to run now, with an id derived from it."""

    id: UUID
    slot: datetime
    prepared: Any  # from `prepare` of the starter


class TaskStarter:
    """Send the tasks that schedules name."""

    def __init__(self, app: TaskRegistry) -> None:
        self._app = app

    def problems(self, schedule: TaskSchedule) -> list[tuple[str, str]]:
        """Return the reasons why this app cannot run a schedule, each with its remedy."""
        found: list[tuple[str, str]] = []
        if schedule.queue_name is not None and schedule.queue_name not in self._app.get_valid_queue_names():
            names = ", ".join(self._app.get_valid_queue_names())
            found.append((f"queue {schedule.queue_name!r} is not configured", f"use one of: {names}"))
        if schedule.task_name not in self._app.tasks:
            remedy = _suggestion(schedule.task_name or "", self._app.list_tasks())
            return [(f"task {schedule.task_name!r} is not known", remedy), *found]
        try:
            self.arguments(schedule)
        except ArgumentError as error:
            found.append((str(error), "correct args and kwargs, or the annotations of the task"))
        return found

    def arguments(self, schedule: TaskSchedule) -> bytes:
        """Return the arguments of a schedule without problems as a JSON object."""
        signature = self._app.tasks[schedule.task_name or ""].definition.signature
        return signature.encode(tuple(schedule.args), schedule.kwargs)

    def prepare(self, schedule: TaskSchedule, arguments: str) -> NewTask:
        """Prepare the runs of a schedule; raise `UnknownTarget`, or `InvalidSend` if no run can be started."""
        task = self._app.tasks.get(schedule.task_name or "")
        if task is None:
            raise UnknownTarget(f"task {schedule.task_name!r} is not known to this scheduler's app")
        try:
            kwargs = task.definition.signature.decode(None, arguments)
        except ArgumentError as error:
            raise InvalidSend(str(error)) from error
        options = TaskSendOptions(queue_name=schedule.queue_name)
        return SendRequest(task.definition, options, self._app.get_broker()).rows([((), kwargs)])[0]

    async def start(self, connection: Connection, runs: Sequence[Run]) -> list[UUID]:
        """Start runs in the caller's transaction, each at most once, and return the ids of their tasks."""
        # A slot can be due a second time if a clock or a row was set back. It is not run again.
        existing = {task.id for task in await tasks.look(connection, [run.id for run in runs])}
        new_runs = [run for run in runs if run.id not in existing]
        sent = dict[UUID, UUID]()
        if new_runs:
            rows = [replace(run.prepared, id=run.id) for run in new_runs]
            ids = await run_plan_async(insert_and_notify(rows), fetch_on(connection))
            sent = dict(zip((run.id for run in new_runs), ids, strict=True))
            await schedules.set_sent_at(connection, ((run.id, run.slot) for run in new_runs))
        return [sent.get(run.id, run.id) for run in runs]

    async def unfinished(self, connection: Connection, ids: Iterable[UUID]) -> set[UUID]:
        """Return which of these runs have not ended."""
        return await schedules.unfinished(connection, ids)

    def handle(self, prepared: Any, run_id: UUID) -> TaskHandle[Any]:
        """Return a handle to a run."""
        return self._app.handle(run_id, self._app.tasks.get(prepared.task_name))


class WorkflowStarter:
    """Start the workflows that schedules name; its methods do the same as those of `TaskStarter`."""

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
            self.prepare(schedule, self.arguments(schedule))
        except UnknownTarget as problem:
            remedy = _suggestion(schedule.definition_key or "", list(DEFINITIONS))
            found.append((str(problem), f"{remedy}; it is the definition_key of a WorkflowDefinition class"))
        except (InvalidSend, ArgumentError) as problem:
            found.append((str(problem), "correct kwargs, or the definition"))
        return found

    def arguments(self, schedule: TaskSchedule) -> bytes:
        return encode_json(dict(schedule.kwargs))

    def prepare(self, schedule: TaskSchedule, arguments: str | bytes) -> WorkflowSpec[Any]:
        key = schedule.definition_key or ""
        params = json.loads(arguments)
        definition = DEFINITIONS.get(key)
        if definition is None:
            raise UnknownTarget(f"workflow definition {key!r} is not known to this scheduler's app")
        try:
            return build(definition, self._app, params)
        except Exception as error:  # user code runs here
            message = error.message if isinstance(error, HorsiesError) else f"{type(error).__name__}: {error}"
            raise InvalidSend(f"workflow definition {key!r} cannot be built: {message}") from error

    async def start(self, connection: Connection, runs: Sequence[Run]) -> list[UUID]:
        limit = self._app.config.payload.reject_bytes
        for run in runs:
            # A slot that is due a second time is not run again, also if the workflow has another name by now.
            with suppress(IdTaken):
                await workflows.start(connection, workflow_rows(run.prepared, run.id, limit))
        return [run.id for run in runs]

    async def unfinished(self, connection: Connection, ids: Iterable[UUID]) -> set[UUID]:
        return await workflows.living(connection, ids)

    def handle(self, prepared: Any, run_id: UUID) -> WorkflowHandle[Any]:
        return prepared.handle(run_id)


Starter = TaskStarter | WorkflowStarter


class Starters:
    """The starters of an app, for tasks and for workflows."""

    def __init__(self, app: TaskRegistry) -> None:
        self._tasks = TaskStarter(app)
        self._workflows = WorkflowStarter(app)

    def for_schedule(self, schedule: TaskSchedule) -> Starter:
        """Return the starter for the target of a schedule."""
        return self._tasks if schedule.definition_key is None else self._workflows

    def problems(self, schedule: TaskSchedule) -> list[HorsiesError]:
        """Return all reasons why this app cannot run a schedule."""
        found: list[tuple[str, str]] = []
        if zone_of(schedule.timezone) is None:
            remedy = "use a name such as Europe/Berlin or America/New_York; `pip install tzdata` has them all"
            found.append((f"there is no time zone {schedule.timezone!r}", remedy))
        found += self.for_schedule(schedule).problems(schedule)
        return [
            ConfigurationError(
                f"schedule {schedule.name!r}: {problem}",
                code=ErrorCode.CONFIG_INVALID_SCHEDULE,
                help_text=remedy,
            )
            for problem, remedy in found
        ]


def _suggestion(name: str, known: Sequence[str]) -> str:
    close = get_close_matches(name, known, n=3)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    return "import the module that defines it: app.discover_tasks([…])"


# Write the schedules from code into the database


async def sync_schedules(connection: Connection, starters: Starters, given: Iterable[TaskSchedule]) -> None:
    """Bring the rows in line with the code; raise if a schedule made at run time has one of the names.

    A new schedule starts with its next slot from now. So does one whose pattern or time zone has changed, which is logged; any
    other change keeps the next slot. A schedule that was removed from the code stays as it is.
    """
    in_code = {schedule.name: schedule for schedule in given}
    async with connection.transaction():
        await schedules.lock(connection)
        stored = {row.name: row for row in await schedules.find(connection, in_code)}
        _raise_if_taken(row.name for row in stored.values() if row.name in in_code and row.source != "code")
        now = await schedules.now(connection)
        changed: list[NewSchedule] = []
        for schedule in in_code.values():
            found = stored.get(schedule.name)
            if found is None and not schedule.enabled:
                continue
            row = new_row(schedule, found, starters, now)
            if found is None or (row.definition, row.config_hash, row.enabled, row.next_run_at) != (
                found.definition,
                found.config_hash,
                found.enabled,
                found.next_run_at,
            ):
                changed.append(row)
        if changed:
            await schedules.upsert(connection, changed)
    for name, row in stored.items():
        if name not in in_code:
            logger.warning("schedule %r is not in the code any more: it is kept, and not run", name)
        elif row.config_hash != config_hash(in_code[name]):
            logger.warning(
                "schedule %r has another pattern or time zone: its next run is computed from now", name
            )


def _raise_if_taken(names: Iterable[str]) -> None:
    report = ValidationReport("schedules")
    for name in names:
        report.add(
            ConfigurationError(
                f"schedule {name!r} is in the code, and one of that name was made at run time",
                code=ErrorCode.CONFIG_INVALID_SCHEDULE,
                help_text=f"give it another name, or run `horsies schedules delete {name!r}`",
            )
        )
    report.raise_if_any()


def new_row(
    schedule: TaskSchedule, stored: ScheduleRow | None, starters: Starters, now: datetime
) -> NewSchedule:
    """Return the row to write for a schedule. The next slot stays unless the pattern or the time zone has changed."""
    new_hash = config_hash(schedule)
    next_run_at = None
    if schedule.enabled and (stored is None or stored.paused_at is None):
        if stored is not None and stored.config_hash == new_hash:
            next_run_at = stored.next_run_at
        if next_run_at is None:
            next_run_at = next_run(schedule.pattern, schedule.timezone, now)
    return NewSchedule(
        schedule_name=schedule.name,
        definition=encode_definition(schedule, starters.for_schedule(schedule).arguments(schedule)),
        config_hash=new_hash,
        enabled=schedule.enabled,
        next_run_at=next_run_at,
    )


# Run the schedules that are due


class Plan(NamedTuple):
    """A schedule prepared to run; with an `error`, its runs cannot be started."""

    schedule: TaskSchedule
    starter: Starter
    prepared: Any
    error: str | None = None


class Decision(NamedTuple):
    """The runs to start for a schedule that is due, and its next slot."""

    row: ScheduleRow
    plan: Plan
    due: Due
    runs: Sequence[Run]

    def advance(self, ids: Mapping[UUID, UUID]) -> Advance:
        """Return the new state of the schedule; `ids` has the id of the started task or workflow for each run."""
        last = self.runs[-1] if self.runs else None
        return Advance(
            schedule_name=self.row.name,
            slot=self.row.slot,
            next_run_at=self.due.next_run_at,
            last_run_at=None if last is None else last.slot,
            last_task_id=None if last is None else ids[last.id],
            runs=len(self.runs),
            skips=0 if self.runs or self.plan.error else len(self.due.slots),
            error=self.plan.error,
        )


def decide(row: ScheduleRow, plan: Plan, unfinished: Set[UUID]) -> Decision:
    """Decide what to run of a schedule that is due; `unfinished` has the previous runs that have not ended."""
    if (infinite := unbounded(row.slot)) is not None:
        raise NeverAgain(f"its next slot is {infinite}")
    schedule = plan.schedule
    may_overlap = schedule.overlap == "allow"
    found = due(
        schedule.pattern,
        schedule.timezone,
        row.slot,
        row.now,
        catch_up=schedule.catch_up_missed and may_overlap,
        most=schedule.max_catch_up_runs,
    )
    if plan.error is not None or (not may_overlap and row.last_task_id in unfinished):
        return Decision(row, plan, found, [])
    return Decision(
        row, plan, found, [Run(slot_id(row.name, slot), slot, plan.prepared) for slot in found.slots]
    )


class Dispatcher:
    """Run the schedules that are due.

    `in_code` has the names of the schedules in this app's code: a schedule that only other code has is not run here.
    """

    def __init__(self, starters: Starters, in_code: Set[str], catch_up_pause_seconds: float) -> None:
        self._starters = starters
        self._in_code = in_code
        self._catch_up_pause_seconds = catch_up_pause_seconds
        self._postponed_until: dict[str, float] = {}
        self._logged: set[tuple[str, str]] = set()
        # Preparing a plan takes longer than everything else here, and most definitions never change.
        self._plan_of = lru_cache(maxsize=PLANS_CACHED)(self._prepare)

    @property
    def postponed(self) -> list[str]:
        """Return the names of the schedules that are not to be tried at the moment."""
        now = time.monotonic()
        self._postponed_until = {name: until for name, until in self._postponed_until.items() if until > now}
        return list(self._postponed_until)

    def retry_now(self, name: str) -> None:
        """Try a postponed schedule again because it has changed; without a name, all of them."""
        if name:
            self._postponed_until.pop(name, None)
        else:
            self._postponed_until.clear()

    async def run_due(self, connection: Connection) -> int:
        """Run a batch of due schedules; return how many there were.

        If their common transaction fails, each schedule is tried in one of its own.
        """
        try:
            return await self._run_batch(connection)
        except psycopg.Error as error:
            logger.warning("could not run schedules together (%s); one by one", type(error).__name__)
        count = 0
        for row in await schedules.lock_due(connection, self.postponed, None, BATCH):
            count += await self._run_one(connection, row.name)
        return count

    async def _run_one(self, connection: Connection, name: str) -> int:
        """Run one schedule by itself. A transient error keeps its slot for later; another error skips the slot."""
        try:
            return await self._run_batch(connection, only=name)
        except psycopg.Error as error:
            _raise_if_lost(connection, error)
            if isinstance(error, TRANSIENT):
                self._postpone(name, RETRY_SECONDS, f"it could not be run now ({type(error).__name__})")
                return 0
            problem = mask_passwords(str(error)) or type(error).__name__
        try:
            return await self._run_batch(connection, only=name, skip_with=problem)
        except psycopg.Error as error:
            _raise_if_lost(connection, error)
            self._postpone(name, POSTPONE_SECONDS, mask_passwords(str(error)))
            return 0

    async def _run_batch(
        self, connection: Connection, only: str | None = None, skip_with: str | None = None
    ) -> int:
        """Run due schedules in one transaction; with `skip_with`, skip their slots and record this error."""
        async with connection.transaction():
            rows = await schedules.lock_due(connection, self.postponed, only, BATCH)
            plans = [(row, plan) for row in rows if (plan := await self._plan(connection, row))]
            if skip_with is not None:
                plans = [(row, plan._replace(error=skip_with)) for row, plan in plans]
            unfinished = await self._unfinished(connection, plans)
            decided = [await self._decide(connection, row, plan, unfinished) for row, plan in plans]
            decisions = list(_limit_runs(RUNS_PER_TRANSACTION, filter(None, decided)))
            ids = await self._start(connection, decisions)
            advances = [decision.advance(ids) for decision in decisions]
            if await schedules.advance(connection, advances) != len(advances):
                raise AssertionError("another session has changed the next slot of a locked schedule")
        for decision in decisions:
            self._after_commit(decision)
        return len(rows)

    async def _plan(self, connection: Connection, row: ScheduleRow) -> Plan | None:
        """Return the plan of a schedule; record an error and return None if this app cannot run it."""
        if row.source == "code" and row.name not in self._in_code:
            self._postpone(
                row.name, POSTPONE_SECONDS, "it is not in the code of this app; it is kept, and not run"
            )
            return None
        try:
            return self._plan_of(row.name, row.definition)
        except (UnreadableDefinition, UnknownTarget) as error:
            await self._record_error(connection, row.name, str(error))
            return None

    async def _decide(
        self, connection: Connection, row: ScheduleRow, plan: Plan, unfinished: Set[UUID]
    ) -> Decision | None:
        """Decide what to run; record an error and return None if there is no slot after the stored one."""
        try:
            return decide(row, plan, unfinished)
        except (NeverAgain, OverflowError, ValueError) as error:
            problem = f"it cannot be run from {row.slot} on: {error}; pause and resume it"
            await self._record_error(connection, row.name, problem)
            return None

    async def _record_error(self, connection: Connection, name: str, problem: str) -> None:
        self._postpone(name, POSTPONE_SECONDS, problem)
        await schedules.record_error(connection, name, problem)

    def _prepare(self, name: str, definition: str) -> Plan:
        schedule, arguments = decode_definition(name, definition)
        if zone_of(schedule.timezone) is None:
            raise UnknownTarget(f"there is no time zone {schedule.timezone!r} on this machine")
        starter = self._starters.for_schedule(schedule)
        try:
            return Plan(schedule, starter, starter.prepare(schedule, arguments))
        except InvalidSend as error:
            return Plan(schedule, starter, None, str(error))

    async def _unfinished(
        self, connection: Connection, plans: Iterable[tuple[ScheduleRow, Plan]]
    ) -> set[UUID]:
        """Return the previous runs that have not ended, of the schedules that must not overlap."""
        previous: dict[Starter, list[UUID]] = {}
        for row, plan in plans:
            if plan.schedule.overlap == "skip" and row.last_task_id is not None:
                previous.setdefault(plan.starter, []).append(row.last_task_id)
        found: set[UUID] = set()
        for starter, ids in previous.items():
            found |= await starter.unfinished(connection, ids)
        return found

    async def _start(self, connection: Connection, decisions: Sequence[Decision]) -> dict[UUID, UUID]:
        """Start all runs, one statement per starter; return the id of the task or workflow for each run."""
        by_starter: dict[Starter, list[Run]] = {}
        for decision in decisions:
            by_starter.setdefault(decision.plan.starter, []).extend(decision.runs)
        ids: dict[UUID, UUID] = {}
        for starter, runs in by_starter.items():
            started = await starter.start(connection, runs) if runs else []
            ids.update(zip((run.id for run in runs), started, strict=True))
        return ids

    def _after_commit(self, decision: Decision) -> None:
        """Log slots that were not run, and pause between the batches of a long catch-up."""
        name, slot, error = decision.row.name, decision.due.slots[-1], decision.plan.error
        if error is not None:
            logger.error("schedule %r: the slot of %s was not run: %s", name, slot, error)
        elif not decision.runs:
            logger.info("schedule %r: the slot of %s was skipped, the last run has not ended", name, slot)
        elif decision.due.next_run_at <= decision.row.now:  # more slots are due than `max_catch_up_runs`
            self._postponed_until[name] = time.monotonic() + self._catch_up_pause_seconds

    def _postpone(self, name: str, seconds: float, reason: str) -> None:
        """Do not try a schedule for a while; a reason is logged as a warning only the first time."""
        level = logging.DEBUG if (name, reason) in self._logged else logging.WARNING
        self._logged.add((name, reason))
        logger.log(level, "schedule %r is postponed for %g s: %s", name, seconds, reason)
        self._postponed_until[name] = time.monotonic() + seconds


def _raise_if_lost(connection: Connection, error: Exception) -> None:
    """Raise OperationalError if the connection is lost: no schedule is to blame, whatever error the server gave."""
    if connection.closed:
        raise psycopg.OperationalError("the connection was lost while schedules were run") from error


def _limit_runs(most: int, decisions: Iterable[Decision]) -> Iterable[Decision]:
    """Yield at least one decision, and as many as fit into a transaction; the other schedules stay due."""
    runs = 0
    for decision in decisions:
        if runs and runs + len(decision.runs) > most:
            return
        runs += len(decision.runs)
        yield decision


# How long to wait for another scheduler that is running a slot which is due.
LOCKED_SECONDS = 0.05


class Scheduler:
    """Run an app's schedules until it is stopped.

    >>> await Scheduler(app).run(postgres)
    """

    def __init__(self, app: TaskRegistry) -> None:
        self._app = app
        import_modules(app, app.task_modules)  # they may declare schedules
        self._config = config_of(app)
        self._starters = Starters(app)
        names = {schedule.name for schedule in self._config.schedules}
        self._dispatcher = Dispatcher(self._starters, names, self._config.check_interval_seconds)
        self._wake = asyncio.Event()
        self._stopping = False
        self._is_set_up = False

    def stop(self) -> None:
        """Stop after the transaction that is running."""
        self._stopping = True
        self._wake.set()

    async def run(self, postgres: PostgresConfig) -> None:
        """Run schedules until stopped, and reconnect after a lost connection; raise if the database cannot be reached."""
        listener = Listener(
            postgres,
            [schedules.CHANNEL],
            on_notify=self._on_notify,
            on_connected=lambda: self._on_notify("", ""),
        )
        attempt = 0
        try:
            while not self._stopping:
                try:
                    await self._set_up(postgres, listener)
                    async with await connect(postgres, session=True, name="horsies-scheduler") as connection:
                        attempt = 0
                        await self._work(connection)
                except TRANSIENT as error:
                    await self._wait_or_raise(error, attempt, postgres)
                    attempt += 1
        finally:
            await listener.close()

    async def _set_up(self, postgres: PostgresConfig, listener: Listener) -> None:
        """Migrate the database and write the schedules from code, once."""
        if self._is_set_up:
            return
        await migrate(postgres)
        async with await connect(postgres, session=True, name="horsies-scheduler") as connection:
            await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
            await sync_schedules(connection, self._starters, self._config.schedules)
        listener.start()
        self._is_set_up = True
        declared = len(self._config.schedules)
        noun = "schedule" if declared == 1 else "schedules"
        logger.info("Scheduler started: %d %s in the code", declared, noun)

    async def _work(self, connection: Connection) -> None:
        # A session that has waited for a lock must see what its previous holder wrote, whatever the database's default is.
        await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
        await schedules.prepare_session(connection)
        while not self._stopping:
            self._wake.clear()
            with hangup_after(connection):
                seconds = await schedules.seconds_until_due(connection, self._dispatcher.postponed)
            if seconds is not None and seconds <= 0:
                with hangup_after(connection):
                    count = await self._dispatcher.run_due(connection)
                if count:
                    continue
                seconds = LOCKED_SECONDS
            await self._sleep(seconds)

    async def _sleep(self, seconds: float | None) -> None:
        longest = float(self._config.check_interval_seconds)
        await wait_until_set(self._wake, longest if seconds is None else min(seconds, longest))

    def _on_notify(self, _channel: str, name: str) -> None:
        self._dispatcher.retry_now(name)
        self._wake.set()

    async def _wait_or_raise(self, error: BaseException, attempt: int, postgres: PostgresConfig) -> None:
        """Wait before the next attempt to reach the database; raise if another attempt would not help."""
        seconds = reconnect_delay(error, attempt, postgres, self._app.config.resilience, logger)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._stopping:
                    self._wake.clear()
                    await self._wake.wait()


def config_of(app: TaskRegistry) -> ScheduleConfig:
    """Return the app's schedules; raise if it has none, or has them switched off."""
    config = app.schedule_config
    if config is None or not config.enabled:
        what = "has no schedule" if config is None else "has its schedules switched off"
        raise ConfigurationError(
            f"the app {what}, and a scheduler was to be started",
            code=ErrorCode.CONFIG_INVALID_SCHEDULE,
            help_text="put @app.schedule(…) above a task, or set AppConfig(schedule=ScheduleConfig(schedules=[…])); "
            "the list may be empty when all are made at run time",
        )
    return config
