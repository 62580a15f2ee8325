"""See what was sent, run tasks and schedules in the test's own process, and move time forward."""

from __future__ import annotations

import asyncio
import contextvars
import os
import socket
import time
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, cast
from uuid import uuid4

import msgspec
from psycopg import IsolationLevel

from horsies.client import Broker, Inline
from horsies.codec import ArgumentError, decode_result
from horsies.config import PostgresConfig
from horsies.db.connection import Connection, connect, connect_worker
from horsies.db.queries import operations, tasks, testing, workflows
from horsies.db.queries.schedules import prepare_session
from horsies.db.queries.tasks import Claimed, Completed, PoolRoom
from horsies.db.queries.testing import Waiting
from horsies.event_loop import background_loop, run_async, run_sync
from horsies.executor.batches import run_call, run_call_async
from horsies.executor.durable import StepPort
from horsies.executor.pool import call_of, tasks_of
from horsies.executor.protocol import (
    BatchOutcome,
    BeginTransaction,
    Call,
    Identity,
    Outcome,
    Question,
    StepReply,
)
from horsies.executor.runner import Run
from horsies.executor.transactions import close_idle
from horsies.registry import AnyTask, TaskRegistry
from horsies.result import TaskError, TaskResult
from horsies.schedule.scheduler import Dispatcher, Starters, sync_schedules
from horsies.worker.batches import BatchClaims, as_calls
from horsies.worker.claim import Claimer, Owner
from horsies.worker.round_trips import EXPIRED
from horsies.worker.settle import Settler
from horsies.worker.steps import answer
from horsies.workflow import control, settle
from horsies.workflow.spec import INTERNAL_TASKS

# A drain that runs more tasks than this has met a task that sends itself for ever.
LIMIT = 10_000


class Ran(NamedTuple):
    """A run of a task: its id and name, the attempt, and the result."""

    task_id: str
    task_name: str
    attempt: int
    result: TaskResult[Any, TaskError]


def drain(app: TaskRegistry, *, retry_now: bool = False, limit: int = LIMIT) -> list[Ran]:
    """Run everything that is due, schedules included, until nothing is; return what ran, in order.

    Tasks that are due later stay: `travel` moves time forward. With `retry_now`, retries run without their delay.

    >>> add.send(2, 3)
    >>> [ran.result for ran in drain(app)]
    [TaskResult(ok=5)]
    """
    run_sync(_store_schedules(app, run_due=True))
    return _drain(app, retry_now, limit)


async def drain_async(app: TaskRegistry, *, retry_now: bool = False, limit: int = LIMIT) -> list[Ran]:
    """Run everything that is due, as `drain` does: async tasks on the running loop, sync ones in a thread."""
    await run_async(_store_schedules(app, run_due=True))
    return await _drain_async(app, retry_now, limit)


@contextmanager
def inline(app: TaskRegistry) -> Generator[None]:
    """Run every task that is sent within this block at once, with its retries; `send` returns when the task has ended.

    Tasks with a delay, and tasks sent in a transaction of your own, wait: run them with `drain`.

    >>> with inline(app):
    ...     assert add.send(2, 3).unwrap().get(timeout_ms=0) == TaskResult(ok=5)
    """
    broker = app.get_broker()
    drain_now = partial(_drain, app, retry_now=True, limit=LIMIT)
    drain_now_async = partial(_drain_async, app, retry_now=True, limit=LIMIT)
    before, broker.inline = broker.inline, Inline(drain_now, drain_now_async)
    try:
        yield
    finally:
        broker.inline = before


def _drain(app: TaskRegistry, retry_now: bool, limit: int) -> list[Ran]:
    worker, ran = run_sync(InProcessWorker.open(app, retry_now)), list[Ran]()
    try:
        while (task := run_sync(worker.next())) is not None:
            _check(ran, limit)
            ran += worker.ended(task, run_in_process(app, worker.run_of(task)))
    finally:
        run_sync(worker.close())
    return ran


async def _drain_async(app: TaskRegistry, retry_now: bool, limit: int) -> list[Ran]:
    worker, ran = await run_async(InProcessWorker.open(app, retry_now)), list[Ran]()
    try:
        while (task := await run_async(worker.next())) is not None:
            _check(ran, limit)
            ran += worker.ended(task, await run_call_async(app, worker.run_of(task)))
    finally:
        await close_idle()
        await run_async(worker.close())
    return ran


class InProcessWorker:
    """A worker that holds one task at a time. As in a real worker, an outcome is written together with the next claim."""

    def __init__(
        self,
        app: TaskRegistry,
        postgres: PostgresConfig,
        connection: Connection,
        suspended: Sequence[str],
        retry_now: bool,
    ) -> None:
        self._app = app
        self._connection = connection
        self._retry_now = retry_now
        self._settler = Settler(app)
        lease_seconds = app.config.effective_claim_lease_ms / 1000
        self._owner = Owner(uuid4(), socket.gethostname(), "test", lease_seconds)
        self._identity = Identity(postgres, str(self._owner.worker_id))
        self._claimer = Claimer(app.config.all_queues, {False: 0, True: 0}, 0)
        # No worker has registered these rate limits, so they do not apply; but their lanes must be claimed from.
        self._batches = BatchClaims(app.tasks, self._claimer, {False: 0, True: 0})
        self._claimer.limit_rates([name for name, task in app.tasks.items() if task.definition.rate_limit])
        self._claimer.suspend(suspended)

    @classmethod
    async def open(cls, app: TaskRegistry, retry_now: bool) -> InProcessWorker:
        broker = app.get_broker()
        async with broker.connection() as known:  # which creates the schema if need be
            suspended = await operations.suspensions(known)
        postgres = await broker.postgres()
        connection = await connect_worker(postgres, "horsies-testing")
        return cls(app, postgres, connection, suspended, retry_now)

    async def close(self) -> None:
        """Release a task that was claimed and not run, if a test was interrupted."""
        try:
            await tasks.release(self._connection, self._owner.worker_id, [])
        finally:
            await self._connection.close()

    async def next(self) -> Claimed | None:
        """Settle the last task, and claim the next one that is due; None if none is."""
        if failed := self._settler.take_failed():
            async with self._connection.transaction():
                await settle.settle(self._connection, [], failed, self._owner.worker_id)
        task = await self._settle_and_claim()
        task = task or await self._claim_batch()
        if task is None:
            await self._run_timers()
            task = await self._settle_and_claim() or await self._claim_batch()
        return task

    async def _claim_batch(self) -> Claimed | None:
        """Claim the next batch, without waiting for more members; None if there is none."""
        lanes = [msgspec.structs.replace(lane, linger=0.0) for lane in self._batches.lanes(0)]
        if not lanes:
            return None
        claimed = await tasks.claim_batches(self._connection, lanes, [os.getpid()], self._owner.columns)
        calls = as_calls(await workflows.load_inputs(self._connection, claimed))
        return calls[0] if calls else None

    async def _settle_and_claim(self) -> Claimed | None:
        completed = self._settler.take_completed()
        self._claimer.keys.has_tasks_with_keys = True
        claimed = await self._claim_once(completed)
        while not claimed and self._claimer.keys.is_unfinished:
            claimed = await self._claim_once([])
        return claimed[0] if claimed else None

    async def _claim_once(self, completed: list[Completed]) -> list[Claimed]:
        of_workflows = [task for task in completed if task.node is not None]
        self._claimer.rewind()
        self._claimer.keys.look_soon(0.0)
        rooms = [PoolRoom(0, 1, 1, [os.getpid()])]
        ask = self._claimer.request(self._owner, rooms, 1, [], time.monotonic())
        if of_workflows:
            others = [task for task in completed if task.node is None]
            answer = await settle.settle_and_claim(self._connection, of_workflows, others, ask)
        else:
            answer = await tasks.settle_and_claim(self._connection, completed, ask)
        self._claimer.keys.walked(answer.walked, answer.claimed, 0.0, 0.0)
        return await workflows.load_inputs(self._connection, answer.claimed)

    async def _run_timers(self) -> None:
        """Fire timers of workflows, and expire tasks."""
        await control.fire_timers(self._connection)
        await tasks.expire(self._connection, self._owner.worker_id, EXPIRED)
        await control.expire(self._connection, self._owner.worker_id, EXPIRED)
        if self._retry_now:
            await testing.retry_now(self._connection)

    def run_of(self, task: Claimed) -> Run:
        """Return a run whose steps are stored, and whose progress and log lines are not."""
        return Run(self.call_of(task), lambda _said: True, (), self.port_of(task))

    def call_of(self, task: Claimed) -> Call:
        """Return the call of a claimed task."""
        return call_of(0, task, task.timeout_ms, time.monotonic())

    def port_of(self, task: Claimed) -> StepPort:
        """Return the way in which a run of this task stores its steps."""

        async def answer_one(question: Question) -> StepReply:
            if isinstance(question, BeginTransaction):
                return StepReply(question.ticket, question.number)
            (reply,) = await answer(self._connection, [(question, task)], self._owner.worker_id)
            return reply

        def ask(question: Question) -> Future[StepReply]:
            return background_loop().submit(answer_one(question))

        return StepPort(ask, None, lambda: self._identity)

    def crashed(self, task: Claimed, message: str) -> None:
        """Settle a task as one whose process has died."""
        self._settler.failed.append(self._settler.crash(task, message))

    async def travel_to_next(self) -> bool:
        """Move time forward until a task is due; return False if none waits for a time."""
        seconds = await testing.seconds_until_due(self._connection)
        if seconds is not None:
            await testing.travel(self._connection, max(0.0, seconds) + 0.001)
        return seconds is not None

    def ended(self, call: Claimed, outcome: Outcome | BatchOutcome) -> list[Ran]:
        """Keep the outcomes of a call until they are settled; return the runs, without internal tasks and parked ones."""
        outcomes = outcome.outcomes if isinstance(outcome, BatchOutcome) else [outcome]
        ended = zip(tasks_of(call), outcomes, strict=True)
        return [ran for task, each in ended for ran in self._ended(task, each)]

    def _ended(self, task: Claimed, outcome: Outcome) -> list[Ran]:
        self._settler.ended(task, outcome)
        if outcome.park is not None:
            return []
        if task.task_name in INTERNAL_TASKS:
            return []
        known = self._app.tasks.get(task.task_name)
        value_type = Any if known is None else known.definition.signature.value_type
        result = decode_result(outcome.result.encode(), value_type)
        return [Ran(task.id, task.task_name, task.retry_count + 1, result)]


def run_in_process(app: TaskRegistry, run: Run) -> Outcome | BatchOutcome:
    """Run a call in this thread, or in another one if a loop runs in this one, so that an async task can have its own loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run_call(app, run)
    with ThreadPoolExecutor(1) as beside:
        return beside.submit(contextvars.copy_context().run, run_call, app, run).result()


def _check(ran: Sequence[Ran], limit: int) -> None:
    if len(ran) >= limit:
        last = ", ".join(sorted({each.task_name for each in ran[-10:]}))
        raise AssertionError(f"{limit:,} tasks ran and more are due; the last were of: {last}")


async def _store_schedules(app: TaskRegistry, *, run_due: bool) -> None:
    """Store the schedules of the code, which can become due from then on; run those that are due if asked to."""
    config = app.schedule_config
    if config is None or not config.enabled:
        return
    starters = Starters(app)
    postgres = await app.get_broker().postgres()
    async with await connect(postgres, session=True, name="horsies-testing") as connection:
        # The settings of a scheduler's session
        await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
        await prepare_session(connection)
        await sync_schedules(connection, starters, config.schedules)
        if run_due:
            names = {schedule.name for schedule in config.schedules}
            dispatcher = Dispatcher(starters, names, config.check_interval_seconds)
            while await dispatcher.run_due(connection):
                pass


def travel(
    app: TaskRegistry,
    span: timedelta | None = None,
    *,
    days: float = 0,
    hours: float = 0,
    minutes: float = 0,
    seconds: float = 0,
) -> None:
    """Move time forward: everything that waits for its time becomes due that much earlier. `drain` runs it.

    The span is a `timedelta`, or named numbers, or their sum.

    >>> remind.schedule(7_200, "ann")
    >>> travel(app, hours=2)
    >>> [ran] = drain(app)
    """
    if not isinstance(cast(object, span), timedelta | None):
        raise ValueError(
            f"travel was given {span!r}; use a timedelta, or name the unit: travel(app, seconds=1)"
        )
    whole = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds) + (span or timedelta(0))
    if whole < timedelta(0):
        raise ValueError(f"travel cannot go back in time, by {-whole}")
    run_sync(_travel(app, whole.total_seconds()))


async def _travel(app: TaskRegistry, seconds: float) -> None:
    await _store_schedules(app, run_due=False)
    async with app.get_broker().connection() as connection:
        await testing.travel(connection, seconds)


# What was sent


class Enqueued(NamedTuple):
    """A task that was sent and not started, with its arguments decoded as the task will get them."""

    task_id: str
    task_name: str
    queue_name: str
    priority: int
    kwargs: dict[str, Any]
    due_at: datetime
    retry_count: int
    tags: list[str]


def enqueued(app: TaskRegistry, *, queue: str | None = None) -> list[Enqueued]:
    """Return the tasks that were sent and not started, due or not, the oldest first.

    >>> [task.task_name for task in enqueued(app, queue="mail")]
    ['send_mail']
    """
    rows = run_sync(_waiting(app.get_broker(), None, queue))
    return [_decoded(row, app.tasks.get(row.task_name)) for row in rows]


def assert_enqueued(
    task: AnyTask,
    *,
    kwargs: Mapping[str, Any] | None = None,
    queue: str | None = None,
    count: int | None = None,
) -> list[Enqueued]:
    """Assert that this task was sent and not started, with at least these arguments and in this queue; return the matches.

    With `count` there must be exactly that many, 0 for none; without it, one or more.

    >>> assert_enqueued(send_mail, kwargs={"to": "ann@example.org"}, queue="mail", count=1)
    """
    waiting = [_decoded(row, task) for row in run_sync(_waiting(task.broker, task.name, None))]
    found = [
        each
        for each in waiting
        if queue in (None, each.queue_name) and dict(kwargs or {}).items() <= each.kwargs.items()
    ]
    if len(found) == count or (count is None and found):
        return found
    expected = f"{'at least 1' if count is None else count} of task {task.name!r}"
    expected += "" if kwargs is None else f" with {dict(kwargs)!r}"
    expected += "" if queue is None else f" in queue {queue!r}"
    seen = "".join(f"\n  {each.task_name} in {each.queue_name} with {each.kwargs!r}" for each in waiting)
    raise AssertionError(
        f"expected {expected} to wait, found {len(found)}; waiting tasks of this name:{seen or ' none'}"
    )


async def _waiting(broker: Broker, name: str | None, queue: str | None) -> list[Waiting]:
    async with broker.connection() as connection:
        return await testing.waiting(connection, name, queue)


def _decoded(row: Waiting, task: AnyTask | None) -> Enqueued:
    kwargs = _kwargs(row, task)
    return Enqueued(
        row.id, row.task_name, row.queue_name, row.priority, kwargs, row.due_at, row.retry_count, row.tags
    )


def _kwargs(row: Waiting, task: AnyTask | None) -> dict[str, Any]:
    """Decode the arguments by their annotations; as plain JSON if some will come from other nodes of a workflow."""
    try:
        if task is not None:
            return task.definition.signature.decode(row.args, row.kwargs)
    except ArgumentError:
        pass
    try:
        return msgspec.json.decode(row.kwargs or "{}", type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        return {}
