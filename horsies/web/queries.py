"""The read side of the dashboard: the queries of its pages, API and metrics, cached and with values redacted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple, cast
from uuid import UUID

import msgspec

from horsies.db.connection import Connection
from horsies.db.queries import doctor, inspect, keys, operations, schedules, statistics, steps
from horsies.db.queries.doctor import Finding
from horsies.db.queries.inspect import (
    Action,
    FullTask,
    Queue,
    RunningTask,
    Since,
    TaskPage,
    Worker,
    WorkflowDetail,
    WorkflowNode,
    WorkflowRow,
)
from horsies.db.queries.keys import Key, KeyTotals
from horsies.db.queries.statistics import TaskCounts, TaskTotals, TimeSlot
from horsies.schedule.api import info_from_row
from horsies.schedule.model import TaskSchedule
from horsies.schedule.occurrences import NeverAgain, upcoming, zone_of
from horsies.schedule.patterns import describe
from horsies.web.charts import SLOT, Point, Range, floor, points
from horsies.web.forms import ANY_JSON, Field, form_of
from horsies.web.requests import (
    not_found,
    parse_limit,
    parse_page_start,
    parse_range,
    parse_since,
    parse_task_filter,
    parse_workflow_filter,
)
from horsies.web.state import DashboardState

# The maximum age of a cached answer in seconds: of current state, of counts by the minute, and of slow checks.
STATE_SECONDS, COUNTS_SECONDS, CHECKS_SECONDS = 1.0, 10.0, 30.0
BUSIEST, MOST_NAMES = 12, 1_000
UPCOMING = 5
MOST_SIGNALS = 500
# The number of characters of an argument or a result that a page shows, and of attempts and log lines, the last ones.
SHOWN, ATTEMPTS_SHOWN, LINES_SHOWN = 20_000, 200, 1_000
# Tasks that have just ended may not be committed yet, so the latest slots are read again.
COMMIT_DELAY = timedelta(seconds=15)
KEPT = timedelta(minutes=6)


class ChildView(NamedTuple):
    """A child process of a worker and the task it runs, if any; None where a value is not known."""

    pid: int | None
    memory_mb: float | None
    started_at: datetime | None
    task: RunningTask | None


class _ChildSnapshot(msgspec.Struct):
    """A child process in the latest snapshot of its worker."""

    pid: int
    memory_mb: float | None = None
    started_at: datetime | None = None


def child_views(worker: Worker, tasks: Sequence[RunningTask]) -> list[ChildView]:
    """Return the child processes of a worker: one entry for each running task, then the idle children.

    Anybody may have written the worker's row, so invalid entries in its snapshot are left out.
    """
    children: Any = worker.children
    known: dict[int | None, _ChildSnapshot] = {}
    for child in cast("list[Any]", children) if isinstance(children, list) else []:
        with suppress(msgspec.ValidationError):
            snapshot = msgspec.convert(child, _ChildSnapshot)
            known[snapshot.pid] = snapshot

    def view(pid: int | None, task: RunningTask | None) -> ChildView:
        child = known.get(pid, _ChildSnapshot(0))
        memory = child.memory_mb if task is None or task.memory_mb is None else task.memory_mb
        return ChildView(pid, memory, child.started_at, task)

    busy = {task.pid for task in tasks}
    idle = [] if worker.state == "dead" else [view(pid, None) for pid in known if pid not in busy]
    return [*(view(task.pid, task) for task in tasks), *idle]


class SignalView(NamedTuple):
    """A signal that a node of a workflow or a durable task waits for, with the fields of its form."""

    signal: str
    workflow_id: str | None
    task_id: str | None
    name: str  # of the workflow or the task
    status: str
    task_index: int | None
    node_id: str | None
    started_at: datetime | None
    due_at: datetime | None
    takers: list[list[str]]
    fields: tuple[Field, ...]

    @property
    def key(self) -> str:
        return f"{self.workflow_id or self.task_id}-{self.signal if self.task_index is None else self.task_index}"

    @property
    def page(self) -> str:
        """Return the path of the page on which the wait is shown."""
        return (
            f"/tasks/{self.task_id}"
            if self.task_id
            else f"/workflows/{self.workflow_id}?node={self.task_index}"
        )

    @property
    def call(self) -> str:
        """Return the path of the call that answers the signal."""
        return (
            f"/api/tasks/{self.task_id}/signal"
            if self.task_id
            else f"/api/workflows/{self.workflow_id}/signal"
        )


class Overview(NamedTuple):
    """The first page: charts, queues, workers and the most frequent tasks."""

    range: Range
    points: list[Point]
    queues: list[Queue]
    workers: list[Worker]
    busiest: list[TaskCounts]
    all_suspended: bool


class DashboardQueries:
    """Every query of the dashboard. Answers are cached for a moment and shared by all viewers."""

    def __init__(self, state: DashboardState) -> None:
        self._state = state
        # The tasks that ended in the last minutes, in slots of five seconds.
        self._slots: dict[datetime, TimeSlot] = {}
        self._slots_read_at: datetime | None = None

    async def overview(self, query: Mapping[str, str]) -> Overview:
        which, state = parse_range(query), self._state
        since = datetime.now(UTC) - which.span - which.step
        recent = await state.cached("recent", STATE_SECONDS, self._recent_slots)
        minutes = await state.cached(
            ("minutes", which.name), COUNTS_SECONDS, lambda connection: statistics.minutes(connection, since)
        )
        depths = await state.cached(
            ("depths", which.name), COUNTS_SECONDS, lambda connection: statistics.depths(connection, since)
        )
        busiest = await state.cached(
            ("busiest", which.name),
            COUNTS_SECONDS,
            lambda connection: statistics.busiest(connection, since, BUSIEST),
        )
        queues, workers, all_suspended = await self.queues(), await self.workers(), await self.all_suspended()
        drawn = points(which, minutes, recent, depths, datetime.now(UTC))
        return Overview(which, drawn, queues, workers, busiest, all_suspended)

    async def _recent_slots(self, connection: Connection) -> list[TimeSlot]:
        """Return the slots of the last minutes. Each call reads only what is new."""
        now = datetime.now(UTC)
        since = now - KEPT
        if self._slots_read_at is not None:
            since = max(since, self._slots_read_at - COMMIT_DELAY)
        since = floor(since, SLOT)
        found = await statistics.recent(connection, since, now + COMMIT_DELAY)
        kept = {at: slot for at, slot in self._slots.items() if now - KEPT <= at < since}
        self._slots = kept | {slot.at: slot for slot in found}
        self._slots_read_at = now
        return list(self._slots.values())

    async def queues(self) -> list[Queue]:
        return await self._state.cached("queues", STATE_SECONDS, inspect.queues)

    async def keys(self, query: Mapping[str, str]) -> list[Key]:
        """Return the keys that wait longest, or the one that `key` names."""
        limit, name = parse_limit(query), query.get("key")
        if name is not None:
            return [
                await self._state.cached(
                    ("key", name), STATE_SECONDS, lambda connection: keys.key(connection, name)
                )
            ]
        return await self._state.cached(
            ("keys", limit), STATE_SECONDS, lambda connection: keys.keys(connection, limit)
        )

    async def key_totals(self) -> KeyTotals:
        return await self._state.cached("key totals", COUNTS_SECONDS, keys.totals)

    async def all_suspended(self) -> bool:
        """Return True if all queues are paused at once."""
        suspended = await self._state.cached("suspensions", STATE_SECONDS, operations.suspensions)
        return operations.ALL_QUEUES in suspended

    async def workers(self) -> list[Worker]:
        return await self._state.cached("workers", STATE_SECONDS, inspect.workers)

    async def running_tasks(self) -> list[RunningTask]:
        return await self._state.cached("running", STATE_SECONDS, inspect.running_tasks)

    async def totals(self) -> list[TaskTotals]:
        return await self._state.cached("totals", COUNTS_SECONDS, statistics.totals)

    async def tasks(self, query: Mapping[str, str]) -> TaskPage:
        wanted, start, limit = parse_task_filter(query), parse_page_start(query), parse_limit(query)
        since, oldest = parse_since(query), inspect.ALL_TIME
        if since is not None:
            moment = datetime.now(UTC) - since
            oldest = Since(UUID(int=max(0, int(moment.timestamp() * 1000)) << 80), moment)
        redactor = self._state.redactor
        failed = wanted.status == "FAILED"

        async def ask(connection: Connection) -> TaskPage:
            # A search must not find values that are redacted.
            page = await inspect.tasks(
                connection, wanted, start, oldest, limit=limit, failed=failed, in_arguments=not redactor
            )
            shown = [replace(task, arguments=redactor.json(task.arguments)) for task in page.tasks]
            return page._replace(tasks=shown)

        return await self._state.cached(("tasks", wanted, start, since, limit), STATE_SECONDS, ask, 2)

    async def days(self) -> dict[str, dict[str, int]]:
        """Return how many tasks completed and failed within a day, by queue."""
        found: dict[str, dict[str, int]] = {}
        for each in await self._ended():
            day = found.setdefault(each.queue_name, {"completed": 0, "failed": 0})
            day["completed"] += each.completed
            day["failed"] += each.failed
        return found

    async def facets(self) -> dict[str, dict[str, int]]:
        """Return the values to filter tasks by, with counts: of live tasks now, of ended ones within a day."""
        codes = await self._state.cached("codes", COUNTS_SECONDS, statistics.error_codes)
        queues, ended = await self.queues(), await self._ended()
        statuses = {
            "PENDING": sum(queue.waiting + queue.scheduled for queue in queues),
            "CLAIMED": sum(queue.claimed for queue in queues),
            "RUNNING": sum(queue.running for queue in queues),
            "COMPLETED": sum(each.completed for each in ended),
            "FAILED": sum(each.failed for each in ended),
            "CANCELLED": 0,
            "EXPIRED": 0,
        }
        by_name: Counter[str] = Counter()
        by_queue = Counter(
            {queue.name: queue.pending + queue.scheduled + queue.claimed + queue.running for queue in queues}
        )
        for each in ended:
            count = each.completed + each.failed + each.other
            by_queue[each.queue_name] += count
            by_name[each.task_name] += count
        return {"statuses": statuses, "queues": by_queue, "names": by_name, "codes": dict(codes)}

    async def _ended(self) -> list[TaskCounts]:
        async def ask(connection: Connection) -> list[TaskCounts]:
            return await statistics.busiest(connection, datetime.now(UTC) - timedelta(days=1), MOST_NAMES)

        return await self._state.cached("ended", COUNTS_SECONDS, ask)

    async def task(self, task_id: UUID) -> FullTask:
        async def ask(connection: Connection) -> FullTask | None:
            found = await inspect.full_task(
                connection, task_id, shown=SHOWN, attempts_shown=ATTEMPTS_SHOWN, with_reasons=False
            )
            if found is None:
                return None
            reasons = await inspect.why(connection, task_id) if found.task.terminal_at is None else None
            shown = found._replace(reasons=reasons or [], logs=found.logs[-LINES_SHOWN:])
            return inspect.redact(shown, self._state.redactor, self._state.parameters(found.task.task_name))

        found = await self._state.cached(("task", task_id), STATE_SECONDS, ask, 5)
        if found is None:
            raise not_found(f"task {task_id}")
        return found

    async def payload(self, task_id: UUID, part: str) -> str:
        """Return the whole "args", "kwargs" or "result" of a task. It can be large, so it is not cached."""
        state, redactor = self._state, self._state.redactor
        text = await state.query(lambda connection: inspect.payload(connection, task_id, part))
        if text is None:
            raise not_found(f"{part} of task {task_id}")
        if not redactor:
            return text
        found = await state.query(lambda connection: inspect.arguments(connection, task_id))
        task_name, args, kwargs = found or ("", None, None)
        parameters = state.parameters(task_name)
        if part == "result":
            return redactor.result(text, kwargs, args, parameters=parameters) or ""
        return redactor.json(text, parameters if part == "args" else ()) or ""

    async def workflows(self, query: Mapping[str, str]) -> list[WorkflowRow]:
        values, limit = parse_workflow_filter(query), parse_limit(query)
        before = parse_page_start(query).before

        async def ask(connection: Connection) -> list[WorkflowRow]:
            found = await inspect.workflows(connection, values, before, limit)
            return [flow._replace(error=self._state.redactor.json(flow.error)) for flow in found]

        return await self._state.cached(("workflows", *values.values(), before, limit), STATE_SECONDS, ask)

    async def workflow(self, workflow_id: UUID) -> tuple[WorkflowDetail, list[WorkflowNode]]:
        found = await self._state.cached(
            ("workflow", workflow_id),
            STATE_SECONDS,
            lambda connection: inspect.workflow(connection, workflow_id),
            2,
        )
        if found is None:
            raise not_found(f"workflow {workflow_id}")
        flow, nodes = found
        return flow._replace(error=self._state.redactor.json(flow.error)), nodes

    def definitions(self) -> list[dict[str, Any]]:
        """Return the tasks of the app with their parameters; none if the dashboard was started without the app."""
        return [
            {
                "name": name,
                "parameters": [
                    {"name": parameter.name, "required": parameter.default is parameter.empty}
                    for parameter in task.definition.signature.parameters.values()
                ],
            }
            for name, task in sorted(self._state.app.tasks.items())
        ]

    async def signals(self) -> list[SignalView]:
        """Return the signals that workflows and durable tasks wait for, with their forms."""

        async def ask(connection: Connection) -> list[SignalView]:
            nodes = await inspect.signals(connection, MOST_SIGNALS)
            parked = await steps.waits(connection, inspect.MOST_READ, MOST_SIGNALS)
            of_nodes = [
                SignalView(
                    node.signal, node.workflow_id, None, node.workflow_name, node.workflow_status, node.task_index,
                    node.node_id, node.started_at, node.due_at, node.takers, self._form(node.takers),
                )
                for node in nodes
            ]  # fmt: skip
            # The type is in the code of the task, and not in the database.
            of_tasks = [
                SignalView(
                    wait.name, None, wait.task_id, wait.task_name, "PENDING", None, None, wait.started_at, wait.due_at, [],
                    ANY_JSON,
                )
                for wait in parked
            ]  # fmt: skip
            return of_nodes + of_tasks

        return await self._state.cached("signals", STATE_SECONDS, ask, 2)

    def _form(self, takers: list[list[str]]) -> tuple[Field, ...]:
        annotation = self._state.value_type(takers)
        return ANY_JSON if annotation is None else form_of(annotation)

    async def actions(self, limit: int) -> list[Action]:
        return await self._state.cached(
            ("actions", limit), STATE_SECONDS, lambda connection: inspect.actions(connection, limit)
        )

    async def schedules(self, q: str | None, after: str, limit: int) -> list[dict[str, Any]]:
        async def ask(connection: Connection) -> list[dict[str, Any]]:
            found = await schedules.listing(connection, q=q, after=after, limit=limit)
            redactor = self._state.redactor
            return [_schedule(row._replace(error=redactor.scrub(row.error, row.definition))) for row in found]

        return await self._state.cached(("schedules", q, after, limit), STATE_SECONDS, ask)

    async def health(self, seconds: float | None = None) -> dict[str, Finding | None] | None:
        """Return the findings of `horsies doctor`, None if the checks take longer than `seconds`.

        The checks go on after a timeout, and a later call returns their findings.
        """
        try:
            async with asyncio.timeout(seconds):
                return await self._state.cached("health", CHECKS_SECONDS, doctor.examine)
        except TimeoutError:
            return None


def _schedule(row: schedules.ScheduleRow) -> dict[str, Any]:
    """Return a schedule as the API and the page show it: the task or workflow it runs, and when."""
    info = info_from_row(row)
    schedule = info.schedule
    return {
        "name": info.name,
        "source": info.source,
        "state": "paused" if info.paused_at is not None else "active" if info.enabled else "disabled",
        "runs": "?" if schedule is None else schedule.task_name or schedule.definition_key or "?",
        "when": "?" if schedule is None else describe(schedule.pattern),
        "timezone": "?" if schedule is None else schedule.timezone,
        "next_runs": _next_runs(schedule, info.next_run_at),
        "last_run_at": info.last_run_at,
        "last_task_id": info.last_task_id,
        "run_count": info.run_count,
        "skip_count": info.skip_count,
        "error": info.error,
    }


def _next_runs(schedule: TaskSchedule | None, first: datetime | None) -> list[datetime]:
    """Return the next slots of a schedule, none if it is paused or disabled."""
    if schedule is None or first is None or zone_of(schedule.timezone) is None:
        return []
    slots = [first]
    with suppress(NeverAgain):
        for slot in islice(upcoming(schedule.pattern, schedule.timezone, first), UPCOMING - 1):
            slots.append(slot)
    return slots
