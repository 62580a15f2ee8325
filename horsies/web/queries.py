"""The read side of the dashboard: the queries of its pages, API and metrics, cached and with values redacted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, cast
from uuid import UUID

import msgspec

from horsies.db.connection import Connection
from horsies.db.queries import doctor, inspect, keys, operations, schedules, statistics, steps
from horsies.db.queries.doctor import Finding
from horsies.db.queries.inspect import (
    FIRST_ID,
    FIRST_PAGE,
    MOST_READ,
    Action,
    FullTask,
    PageStart,
    Queue,
    RunningTask,
    Since,
    TaskDetail,
    TaskFilter,
    TaskOrder,
    TaskPage,
    TaskRow,
    Worker,
    WorkerSnapshot,
    WorkflowDetail,
    WorkflowNode,
    WorkflowRow,
)
from horsies.db.queries.keys import Key, KeyTotals
from horsies.db.queries.statistics import (
    EVERYTHING,
    Latencies,
    RateLimit,
    Scope,
    TableSize,
    TaskCounts,
    TaskTotals,
    TimeSlot,
)
from horsies.web.charts import SLOT, Range, floor
from horsies.web.failures import Failures, grouped
from horsies.web.forms import ANY_JSON, Field, form_of
from horsies.web.history import MOST_LINES, MOST_ROWS, History, Stored, history, span_of, stored_step
from horsies.web.lists import TaskList, failed_at
from horsies.web.requests import (
    HttpError,
    not_found,
    parse_by,
    parse_limit,
    parse_order,
    parse_page_number,
    parse_page_start,
    parse_pin,
    parse_range,
    parse_since,
    parse_task_filter,
    parse_window,
    parse_workflow_filter,
)
from horsies.web.schedules import schedule_view
from horsies.web.selection import first_id_at, parse_bulk_filter, selection
from horsies.web.state import DashboardState, one_snapshot

# The maximum age of a cached answer in seconds: of current state, of counts by the minute, and of slow checks.
STATE_SECONDS, COUNTS_SECONDS, CHECKS_SECONDS = 1.0, 10.0, 30.0
MOST_NAMES = 1_000
MOST_SIGNALS = 500
# The number of characters of an argument or a result that a page shows, and of attempts and log lines, the last ones.
SHOWN, ATTEMPTS_SHOWN, LINES_SHOWN = 20_000, 200, 1_000
# Tasks that have just ended may not be committed yet, so the latest slots are read again.
COMMIT_DELAY = timedelta(seconds=15)
KEPT = timedelta(minutes=6)
SORTED_SECONDS = 5.0
# The number of tasks above a pinned page that are counted.
MOST_NEWER = 100
SPARK_STEP, SPARK_STEPS = timedelta(minutes=2), 30
MOST_SNAPSHOTS = 360
FAILURE_PARTS, MOST_GROUPS = 24, 100


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


def _oldest(since: timedelta | None) -> Since:
    """Return how far back a list goes that shows this time."""
    if since is None:
        return inspect.ALL_TIME
    moment = datetime.now(UTC) - since
    return Since(first_id_at(moment), moment)


class Now(NamedTuple):
    """The state of the system at one moment, in one snapshot of the database."""

    queues: list[Queue]
    workers: list[Worker]
    all_suspended: bool
    recent: list[TimeSlot]


class Overview(NamedTuple):
    """The first page: counts over time, queues and workers."""

    history: History
    queues: list[Queue]
    workers: list[Worker]
    all_suspended: bool


class Sparks(NamedTuple):
    """The last hour of a queue in steps of two minutes: waiting tasks, and ended ones."""

    depths: list[float | None]
    ended: list[float | None]


class DashboardQueries:
    """Every query of the dashboard. Answers are cached for a moment and shared by all viewers."""

    def __init__(self, state: DashboardState) -> None:
        self._state = state
        # The tasks that ended in the last minutes, in slots of five seconds, by queue and task.
        self._slots: dict[tuple[datetime, str, str], TimeSlot] = {}
        self._slots_read_at: datetime | None = None

    async def now(self) -> Now:
        """Return queues, workers and the tasks that ended in the last minutes."""

        async def ask(connection: Connection) -> Now:
            async with one_snapshot(connection):
                queues, workers = await inspect.queues(connection), await inspect.workers(connection)
                suspended = await operations.suspensions(connection)
                recent = await self._recent_slots(connection)
                return Now(queues, workers, operations.ALL_QUEUES in suspended, recent)

        return await self._state.cached("now", STATE_SECONDS, ask, 2)

    async def overview(self, query: Mapping[str, str]) -> Overview:
        drawn = await self.history(parse_range(query), EVERYTHING, parse_by(query))
        now = await self.now()
        return Overview(drawn, now.queues, now.workers, now.all_suspended)

    async def history(self, which: Range, scope: Scope, by: str | None) -> History:
        """Return the counts of a time span and of the one before it, of all tasks or of those in a scope."""

        async def ask(connection: Connection) -> Stored:
            since, until = span_of(which, datetime.now(UTC))
            step = stored_step(which).total_seconds()
            async with one_snapshot(connection):
                return Stored(
                    await statistics.counted_until(connection),
                    await statistics.counted_at(connection, since - which.span, until, step),
                    await statistics.steps(connection, scope, since - which.span, until, step),
                    []
                    if by is None
                    else await statistics.parts(connection, by, scope, since, until, step, MOST_LINES),
                    await statistics.pairs(connection, scope, since, until, MOST_ROWS),
                    await statistics.depths_by_queue(connection, scope.queue, since, step),
                )

        stored = await self._state.cached(("history", which.name, scope, by), COUNTS_SECONDS, ask)
        return history(which, scope, by, stored, (await self.now()).recent, datetime.now(UTC))

    async def _recent_slots(self, connection: Connection) -> list[TimeSlot]:
        """Return the slots of the last minutes. Each call reads only what is new."""
        now = datetime.now(UTC)
        since = now - KEPT
        if self._slots_read_at is not None:
            since = max(since, self._slots_read_at - COMMIT_DELAY)
        since = floor(since, SLOT)
        found = await statistics.recent(connection, since, now + COMMIT_DELAY)
        kept = {key: slot for key, slot in self._slots.items() if now - KEPT <= slot.at < since}
        self._slots = kept | {(slot.at, slot.queue_name, slot.task_name): slot for slot in found}
        self._slots_read_at = now
        return list(self._slots.values())

    async def queues(self) -> list[Queue]:
        return (await self.now()).queues

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

    async def rate_limits(self) -> list[RateLimit]:
        return await self._state.cached("rates", STATE_SECONDS, statistics.rate_limits)

    async def tables(self, seconds: float) -> list[TableSize] | None:
        """Return the largest tables, None if that takes longer than `seconds`. A later call returns them."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self._state.cached("tables", CHECKS_SECONDS, statistics.tables)
        return None

    async def key_totals(self) -> KeyTotals:
        return await self._state.cached("key totals", COUNTS_SECONDS, keys.totals)

    async def all_suspended(self) -> bool:
        """Return True if all queues are paused at once."""
        return (await self.now()).all_suspended

    async def workers(self) -> list[Worker]:
        return (await self.now()).workers

    async def sparks(self) -> dict[str, Sparks]:
        """Return the last hour of each queue."""

        async def ask(connection: Connection) -> dict[str, Sparks]:
            end = floor(datetime.now(UTC), SPARK_STEP)
            starts = [end - SPARK_STEP * back for back in range(SPARK_STEPS, 0, -1)]
            step = SPARK_STEP.total_seconds()
            async with one_snapshot(connection):
                depths = await statistics.depths_by_queue(connection, None, starts[0], step)
                ended = await statistics.throughput_by_queue(connection, starts[0], end, step)
            waiting = {(depth.queue_name, floor(depth.at, SPARK_STEP)): depth.pending for depth in depths}
            done = {(slot.queue_name, slot.at): slot.completed + slot.failed for slot in ended}
            names = {name for name, _ in (*waiting, *done)}
            return {
                name: Sparks(
                    [float(waiting.get((name, at), 0)) for at in starts],
                    [float(done.get((name, at), 0)) for at in starts],
                )
                for name in names
            }

        return await self._state.cached("sparks", COUNTS_SECONDS, ask)

    async def worker(self, worker_id: UUID) -> tuple[list[WorkerSnapshot], Latencies]:
        """Return the snapshots of a worker, the newest first, and the times of the tasks that it ended lately."""

        async def ask(connection: Connection) -> tuple[list[WorkerSnapshot], Latencies]:
            async with one_snapshot(connection):
                snapshots = await inspect.worker_snapshots(connection, worker_id, MOST_SNAPSHOTS)
                return snapshots, await statistics.latencies(connection, MOST_READ, worker_id=worker_id)

        return await self._state.cached(("worker", worker_id), COUNTS_SECONDS, ask)

    async def key_times(self, key: str) -> Latencies:
        """Return the times of the tasks of a key that ended lately."""
        return await self._state.cached(
            ("key times", key),
            COUNTS_SECONDS,
            lambda connection: statistics.latencies(connection, MOST_READ, key=key),
        )

    async def failures(self, query: Mapping[str, str]) -> list[Failures]:
        """Return the groups of failures of a time span, the largest first."""
        wanted, which = parse_task_filter(query), parse_range({"range": query.get("range", "24h")})
        step = which.span / FAILURE_PARTS

        async def ask(connection: Connection) -> list[Failures]:
            since = datetime.now(UTC) - which.span
            found = await inspect.failure_groups(
                connection, wanted, since, step.total_seconds(), FAILURE_PARTS
            )
            groups = grouped(found, FAILURE_PARTS)[:MOST_GROUPS]
            redactor = self._state.redactor
            if not redactor:
                return groups
            whole = await inspect.arguments_of_many(connection, [UUID(group.last_id) for group in groups])
            return [
                group._replace(
                    kind=redactor.scrub(
                        group.kind,
                        *whole.get(group.last_id, (None, None)),
                        parameters=self._state.parameters(group.task_name),
                    )
                    or "",
                    keys=[],
                )
                for group in groups
            ]

        key = ("failures", wanted.queue, wanted.name, wanted.code, which.name)
        return await self._state.cached(key, COUNTS_SECONDS, ask)

    async def running_tasks(self) -> list[RunningTask]:
        return await self._state.cached("running", STATE_SECONDS, inspect.running_tasks)

    async def child_of(self, task: TaskDetail) -> ChildView | None:
        """Return the child process that runs a task, if it is known."""
        running = [each for each in await self.running_tasks() if each.worker_id == task.worker_id]
        for worker in await self.workers():
            if worker.worker_id == task.worker_id:
                children = child_views(worker, running)
                return next(
                    (each for each in children if each.task and each.task.task_id == task.task_id), None
                )
        return None

    async def totals(self) -> list[TaskTotals]:
        return await self._state.cached("totals", COUNTS_SECONDS, statistics.totals)

    async def tasks(self, query: Mapping[str, str]) -> TaskList:
        """Return the page of tasks that a query asks for: newest first, or sorted, or those that ended in a time span."""
        order, window = parse_order(query), parse_window(query)
        if order is not None or window is not None:
            return await self._sorted_tasks(query, order or TaskOrder("ended", True), window)
        wanted, start, limit = parse_task_filter(query), parse_page_start(query), parse_limit(query)
        since = parse_since(query)
        pin = parse_pin(query) if start == FIRST_PAGE else None
        page = await self._page(wanted, pin or start, since, limit)
        newer = 0 if pin is None else await self._newer(wanted, pin, since)
        return TaskList(page, newer, None, 1, page.next is not None)

    async def _page(
        self, wanted: TaskFilter, start: PageStart, since: timedelta | None, limit: int
    ) -> TaskPage:
        in_arguments = not self._state.redactor  # a search must not find values that are redacted

        async def ask(connection: Connection) -> TaskPage:
            page = await inspect.tasks(
                connection,
                wanted,
                start,
                _oldest(since),
                limit=limit,
                failed=wanted.status == "FAILED",
                in_arguments=in_arguments,
                with_messages=True,
            )
            return page._replace(tasks=await self._redacted(connection, page.tasks))

        return await self._state.cached(("tasks", wanted, start, since, limit), STATE_SECONDS, ask, 2)

    async def _newer(self, wanted: TaskFilter, pin: PageStart, since: timedelta | None) -> int:
        """Count the matching tasks above a pinned page, `MOST_NEWER` at most."""
        failed, in_arguments = wanted.status == "FAILED", not self._state.redactor

        async def ask(connection: Connection) -> int:
            oldest = _oldest(since)
            if failed:
                seen = (await inspect.tasks(connection, wanted, pin, oldest, limit=1, failed=True)).tasks
                ended = failed_at(seen[0]) if seen else None
                oldest = oldest._replace(since=max(oldest.since, ended or oldest.since))
            else:
                oldest = oldest._replace(after=max(oldest.after, pin.before))
            page = await inspect.tasks(
                connection,
                wanted,
                FIRST_PAGE,
                oldest,
                limit=MOST_NEWER,
                failed=failed,
                in_arguments=in_arguments,
            )
            return len(page.tasks) - (failed and bool(page.tasks) and page.next is None)

        return await self._state.cached(("newer", wanted, pin, since), STATE_SECONDS, ask)

    async def _sorted_tasks(
        self, query: Mapping[str, str], order: TaskOrder, window: tuple[datetime, datetime] | None
    ) -> TaskList:
        wanted, limit, number = parse_task_filter(query), parse_limit(query), parse_page_number(query)
        since, skipped = parse_since(query), (number - 1) * limit
        if window is not None:
            oldest, until = Since(FIRST_ID, window[0]), window[1]
        else:
            oldest, until = _oldest(since), None
        if skipped > MOST_READ:
            raise HttpError(
                400, f"A sorted list ends after {MOST_READ:,} tasks.", "Narrow it down by a filter."
            )
        in_arguments = not self._state.redactor

        async def ask(connection: Connection) -> list[TaskRow]:
            found = await inspect.sorted_tasks(
                connection,
                wanted,
                order,
                oldest,
                until,
                limit=limit + 1,
                skipped=skipped,
                in_arguments=in_arguments,
            )
            return await self._redacted(connection, found)

        key = ("sorted", wanted, order, window, since, limit, number)
        found = await self._state.cached(key, SORTED_SECONDS, ask)
        page = TaskPage(found[:limit], None, None)
        return TaskList(page, 0, order, number, len(found) > limit)

    async def _redacted(self, connection: Connection, found: list[TaskRow]) -> list[TaskRow]:
        """Return the tasks of a list without the values to hide, neither in their arguments nor in messages that quote them."""
        redactor = self._state.redactor
        if not redactor:
            return found
        quoting = [UUID(task.task_id) for task in found if task.message or task.failed_reason]
        whole = await inspect.arguments_of_many(connection, quoting) if quoting else {}
        shown: list[TaskRow] = []
        for task in found:
            kwargs, args = whole.get(task.task_id, (None, None))
            parameters = self._state.parameters(task.task_name)
            message, reason = (
                redactor.scrub(text, kwargs, args, parameters=parameters)
                for text in (task.message, task.failed_reason)
            )
            hidden = redactor.json(task.arguments)
            shown.append(replace(task, arguments=hidden, message=message, failed_reason=reason))
        return shown

    async def count(self, query: Mapping[str, str]) -> dict[str, int]:
        """Count the tasks that match a filter, and those that each bulk action could change."""
        which = selection(parse_bulk_filter(query), None, in_arguments=not self._state.redactor)

        async def ask(connection: Connection) -> dict[str, int]:
            return await operations.count_matching(connection, which)

        return await self._state.cached(("count", *sorted(query.items())), STATE_SECONDS, ask)

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
            "CANCELLED": sum(each.cancelled for each in ended),
            "EXPIRED": sum(each.expired for each in ended),
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
            return [
                schedule_view(row._replace(error=redactor.scrub(row.error, row.definition)), redactor)
                for row in found
            ]

        return await self._state.cached(("schedules", q, after, limit), STATE_SECONDS, ask)

    async def health(self, seconds: float | None = None) -> dict[str, Finding | None] | None:
        """Return the findings of `horsies doctor`, None if the checks take longer than `seconds`.

        The checks go on after a timeout, and a later call returns their findings.
        """
        try:
            async with asyncio.timeout(seconds):
                return await self._state.cached("health", CHECKS_SECONDS, doctor.examine, on_primary=True)
        except TimeoutError:
            return None
