"""What the pages and the API tell, put together from answers that are shared and kept for a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from horsies.schedule.definition import Unreadable, read
from horsies.schedule.model import TaskSchedule
from horsies.schedule.patterns import describe
from horsies.schedule.slots import NeverAgain, upcoming, zone_of
from horsies.storage import dashboard, doctor, notes, operations, schedules
from horsies.storage.database import Connection
from horsies.storage.doctor import Finding
from horsies.storage.notes import TaskLogLine, TaskProgress
from horsies.storage.sights import (
    Act,
    Attempt,
    Busy,
    Child,
    Flow,
    FlowDetail,
    Node,
    Place,
    Queue,
    Slot,
    TaskDetail,
    TaskLine,
    TaskPage,
    Wanted,
    Worker,
)
from horsies.storage.why import why
from horsies.web.desk import Desk
from horsies.web.series import RANGES, SLOT, Point, Range, points

# How old an answer may be, in seconds: what moves, what is counted by the minute, what takes long to find out.
SOON, SELDOM, RARELY = 1.0, 10.0, 30.0
BUSIEST, MOST_NAMES = 12, 1_000
UPCOMING = 5
# So many lines of a task's log a page shows, the last ones.
LINES = 1_000
# What has just ended may not be committed yet, so the latest slots are read again.
SETTLING = timedelta(seconds=15)
KEPT = timedelta(minutes=6)


class Overview(NamedTuple):
    """How things go."""

    range: Range
    points: list[Point]
    queues: list[Queue]
    workers: list[Worker]
    busiest: list[Busy]
    all_suspended: bool


class Queues(NamedTuple):
    queues: list[Queue]
    all_suspended: bool


class Day(NamedTuple):
    """What ended in a queue within a day."""

    completed: int
    failed: int


class Facets(NamedTuple):
    """What tasks can be chosen by, with how many there are: live ones now, ended ones within a day."""

    statuses: dict[str, int]
    queues: dict[str, int]
    names: dict[str, int]
    codes: dict[str, int]


class FullTask(NamedTuple):
    task: TaskLine
    detail: TaskDetail
    attempts: list[Attempt]
    reasons: list[str]
    progress: TaskProgress | None
    logs: list[TaskLogLine]


class Schedule(NamedTuple):
    """A schedule, what it runs and when."""

    name: str
    source: str
    state: str
    runs: str
    when: str
    timezone: str
    next_runs: list[datetime]
    last_run_at: datetime | None
    last_task_id: str | None
    run_count: int
    skip_count: int
    error: str | None


class Recent:
    """What ended in the last minutes, five seconds at a time: read once, then only what is new."""

    def __init__(self) -> None:
        self._slots: dict[datetime, Slot] = {}
        self._read_until: datetime | None = None

    async def read(self, connection: Connection) -> list[Slot]:
        now = datetime.now(UTC)
        since = now - KEPT
        if self._read_until is not None:
            since = max(since, self._read_until - SETTLING)
        since -= timedelta(seconds=since.timestamp() % SLOT.total_seconds())
        found = await dashboard.recent(connection, since, now + SETTLING)
        kept = {at: slot for at, slot in self._slots.items() if now - KEPT <= at < since}
        self._slots = kept | {slot.at: slot for slot in found}
        self._read_until = now
        return list(self._slots.values())


class Reading:
    """Every question a viewer can ask."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._recent = Recent()

    async def overview(self, name: str) -> Overview:
        which, desk = RANGES[name], self._desk
        since = datetime.now(UTC) - which.span - which.step
        recent = await desk.read("recent", SOON, self._recent.read)
        minutes = await desk.read(
            ("minutes", name), SELDOM, lambda connection: dashboard.minutes(connection, since)
        )
        depths = await desk.read(
            ("depths", name), SELDOM, lambda connection: dashboard.depths(connection, since)
        )
        busiest = await desk.read(
            ("busiest", name), SELDOM, lambda connection: dashboard.busiest(connection, since, BUSIEST)
        )
        queues = await self.queues()
        drawn = points(which, minutes, recent, depths, datetime.now(UTC))
        return Overview(which, drawn, queues.queues, await self.workers(), busiest, queues.all_suspended)

    async def queues(self) -> Queues:
        async def ask(connection: Connection) -> Queues:
            suspended = operations.ALL_QUEUES in await operations.suspensions(connection)
            return Queues(await dashboard.queues(connection), suspended)

        return await self._desk.read("queues", SOON, ask, 2)

    async def workers(self) -> list[Worker]:
        return await self._desk.read("workers", SOON, dashboard.workers)

    async def children(self) -> list[Child]:
        return await self._desk.read("children", SOON, dashboard.children)

    async def tasks(self, wanted: Wanted, place: Place, since: timedelta | None, limit: int) -> TaskPage:
        oldest = _oldest(since, datetime.now(UTC))

        async def ask(connection: Connection) -> TaskPage:
            return await dashboard.tasks(connection, wanted, place, oldest, limit)

        return await self._desk.read(("tasks", wanted, place, since, limit), SOON, ask, 2)

    async def days(self) -> dict[str, Day]:
        """What ended within a day, by queue."""
        found: dict[str, Day] = {}
        for each in await self._ended():
            before = found.get(each.queue_name, Day(0, 0))
            found[each.queue_name] = Day(before.completed + each.completed, before.failed + each.failed)
        return found

    async def facets(self) -> Facets:
        codes = await self._desk.read("codes", SELDOM, dashboard.codes)
        return facets((await self.queues()).queues, await self._ended(), codes)

    async def _ended(self) -> list[Busy]:
        async def ask(connection: Connection) -> list[Busy]:
            return await dashboard.busiest(connection, datetime.now(UTC) - timedelta(days=1), MOST_NAMES)

        return await self._desk.read("ended", SELDOM, ask)

    async def task(self, task_id: UUID) -> FullTask | None:
        async def ask(connection: Connection) -> FullTask | None:
            found = await dashboard.task(connection, task_id)
            if found is None:
                return None
            earlier = await dashboard.attempts(connection, task_id)
            task, detail = found
            reasons = await why(connection, task_id) if task.terminal_at is None else None
            progress = await notes.progress(connection, task_id)
            logs = await notes.log_lines(connection, task_id)
            attempts = [*_last_attempt(task, detail), *earlier]
            return FullTask(task, detail, attempts, reasons or [], progress, logs[-LINES:])

        return await self._desk.read(("task", task_id), SOON, ask, 5)

    async def workflows(self, values: Mapping[str, Any], before: UUID, limit: int) -> list[Flow]:
        async def ask(connection: Connection) -> list[Flow]:
            return await dashboard.workflows(connection, values, before, limit)

        return await self._desk.read(("workflows", *values.values(), before, limit), SOON, ask)

    async def workflow(self, workflow_id: UUID) -> tuple[FlowDetail, list[Node]] | None:
        async def ask(connection: Connection) -> tuple[FlowDetail, list[Node]] | None:
            return await dashboard.workflow(connection, workflow_id)

        return await self._desk.read(("workflow", workflow_id), SOON, ask, 2)

    async def acts(self, limit: int) -> list[Act]:
        async def ask(connection: Connection) -> list[Act]:
            return await dashboard.actions(connection, limit)

        return await self._desk.read(("acts", limit), SOON, ask)

    async def schedules(self, q: str | None, after: str, limit: int) -> list[Schedule]:
        async def ask(connection: Connection) -> list[Schedule]:
            found = await schedules.listing(connection, q=q, after=after, limit=limit)
            return [_described(row) for row in found]

        return await self._desk.read(("schedules", q, after, limit), SOON, ask)

    async def health(self, patience: float | None = None) -> dict[str, Finding | None] | None:
        """What the doctor finds; None when that takes longer than one has patience for: ask again a little later."""
        try:
            async with asyncio.timeout(patience):
                return await self._desk.read("health", RARELY, doctor.examine)
        except TimeoutError:
            return None


def facets(queues: Sequence[Queue], ended: Sequence[Busy], codes: Sequence[tuple[str, int]]) -> Facets:
    """Live counts and those of a day, by what tasks can be chosen by."""
    statuses = {
        "PENDING": sum(queue.waiting + queue.scheduled for queue in queues),
        "CLAIMED": sum(queue.claimed for queue in queues),
        "RUNNING": sum(queue.running for queue in queues),
        "COMPLETED": sum(each.completed for each in ended),
        "FAILED": sum(each.failed for each in ended),
        "CANCELLED": 0,
        "EXPIRED": 0,
    }
    by_queue = {
        queue.name: queue.pending + queue.scheduled + queue.claimed + queue.running for queue in queues
    }
    by_name: dict[str, int] = {}
    for each in ended:
        count = each.completed + each.failed + each.other
        by_queue[each.queue_name] = by_queue.get(each.queue_name, 0) + count
        by_name[each.task_name] = by_name.get(each.task_name, 0) + count
    return Facets(statuses, by_queue, by_name, dict(codes))


def _oldest(since: timedelta | None, now: datetime) -> tuple[UUID, datetime]:
    """The lowest id that a task of this time can have, and the moment itself."""
    if since is None:
        return UUID(int=0), datetime(2000, 1, 1, tzinfo=UTC)
    moment = now - since
    return UUID(int=int(moment.timestamp() * 1000) << 80), moment


def _last_attempt(task: TaskLine, detail: TaskDetail) -> list[Attempt]:
    """The attempt that is under way or was the last is the task's own row."""
    if task.started_at is None:
        return []
    message, traceback = error_of(detail.result)
    return [
        Attempt(
            task.attempts,
            task.status,
            task.started_at,
            task.terminal_at,
            task.error_code,
            message,
            detail.failed_reason,
            detail.worker_hostname,
            detail.worker_pid,
            None,
            traceback,
        )
    ]


class _Exception(msgspec.Struct):
    traceback: str | None = None


class _Error(msgspec.Struct):
    message: str | None = None
    exception: _Exception | None = None


class _Outcome(msgspec.Struct):
    err: _Error | None = None


def error_of(result: str | None) -> tuple[str | None, str | None]:
    """The message and the traceback in a stored result; anyone may have written that row, so there may be none."""
    try:
        error = msgspec.json.decode(result or "{}", type=_Outcome).err
    except msgspec.DecodeError:
        return None, None
    if error is None:
        return None, None
    return error.message, error.exception and error.exception.traceback


def _described(row: schedules.Listed) -> Schedule:
    error, schedule = row.error, None
    try:
        schedule = read(row.name, row.definition, enabled=row.enabled).schedule
    except Unreadable as problem:
        error = error or str(problem)
    state = "paused" if row.paused_at is not None else "active" if row.enabled else "disabled"
    return Schedule(
        row.name,
        row.source,
        state,
        "?" if schedule is None else schedule.task_name or schedule.definition_key or "?",
        "?" if schedule is None else describe(schedule.pattern),
        "?" if schedule is None else schedule.timezone,
        _next_runs(schedule, row.next_run_at),
        row.last_run_at,
        None if row.last_task_id is None else str(row.last_task_id),
        row.run_count,
        row.skip_count,
        error,
    )


def _next_runs(schedule: TaskSchedule | None, first: datetime | None) -> list[datetime]:
    """The slots that come next; none for a schedule that stands still."""
    if schedule is None or first is None or zone_of(schedule.timezone) is None:
        return []
    slots = [first]
    with suppress(NeverAgain):
        for slot in islice(upcoming(schedule.pattern, schedule.timezone, first), UPCOMING - 1):
            slots.append(slot)
    return slots
