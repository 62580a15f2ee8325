"""Run tasks here, one after another, in the test's own process.

A `Hand` is a worker without children: it claims, runs and settles with the code that workers use. What it leaves out is what
takes processes or the clock: time limits, crashes and rate limits.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import socket
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple
from uuid import uuid4

from horsies.codec import decode_result
from horsies.portal import run_async, run_sync
from horsies.registry import TaskRegistry
from horsies.results import TaskError, TaskResult
from horsies.storage import operations, steering, steps, tasks, testing, workflows
from horsies.storage.database import Connection, connect_worker
from horsies.storage.tasks import Claimed, Room
from horsies.testing import schedules
from horsies.worker.claim import Claimer, Owner
from horsies.worker.engine import EXPIRED
from horsies.worker.execution import execute, execute_async
from horsies.worker.pool import call_of
from horsies.worker.reporting import Run
from horsies.worker.settle import Settler
from horsies.worker.wire import Call, Outcome
from horsies.workflow.rows import BUILD

# More than this in one go is a task that sends itself for ever.
LIMIT = 10_000


class Ran(NamedTuple):
    """A run of a task: which, at which attempt, and what it gave."""

    task_id: str
    task_name: str
    attempt: int
    result: TaskResult[Any, TaskError]


def drain(app: TaskRegistry, *, retry_now: bool = False, limit: int = LIMIT) -> list[Ran]:
    """Run everything that is due, schedules too, until nothing is; gives what ran, in order.

    What is due later stays: `travel` brings it nearer. With `retry_now`, retries do not wait for their time.

    >>> add.send(2, 3)
    >>> [ran.result for ran in drain(app)]
    [TaskResult(ok=5)]
    """
    run_sync(schedules.take_turns(app))
    return _drain(app, retry_now, limit)


async def drain_async(app: TaskRegistry, *, retry_now: bool = False, limit: int = LIMIT) -> list[Ran]:
    """As `drain`, with async tasks on the running loop and plain ones in a thread beside it."""
    await run_async(schedules.take_turns(app))
    return await _drain_async(app, retry_now, limit)


@contextmanager
def inline(app: TaskRegistry) -> Generator[None]:
    """While it lasts, what is sent runs at once, here, with its retries; `send` returns when it has ended.

    What has a delay waits, and so does what is sent in a transaction of your own: run it with `drain`.

    >>> with inline(app):
    ...     assert add.send(2, 3).unwrap().get(timeout_ms=0) == TaskResult(ok=5)
    """
    broker = app.get_broker()
    before, broker.inline = broker.inline, _Inline(app)
    try:
        yield
    finally:
        broker.inline = before


class _Inline:
    """What a broker calls when something was sent."""

    def __init__(self, app: TaskRegistry) -> None:
        self._app = app

    def run(self) -> None:
        _drain(self._app, retry_now=True, limit=LIMIT)

    async def run_async(self) -> None:
        await _drain_async(self._app, retry_now=True, limit=LIMIT)


def _drain(app: TaskRegistry, retry_now: bool, limit: int) -> list[Ran]:
    hand, ran = run_sync(Hand.opened(app, retry_now)), list[Ran]()
    try:
        while (task := run_sync(hand.next())) is not None:
            _check(ran, limit)
            ran += hand.ended(task, _execute(app, _call(task)))
    finally:
        run_sync(hand.close())
    return ran


async def _drain_async(app: TaskRegistry, retry_now: bool, limit: int) -> list[Ran]:
    hand, ran = await run_async(Hand.opened(app, retry_now)), list[Ran]()
    try:
        while (task := await run_async(hand.next())) is not None:
            _check(ran, limit)
            call = _call(task)
            ran += hand.ended(task, await execute_async(app, call, _run(call)))
    finally:
        await run_async(hand.close())
    return ran


class Hand:
    """Takes one task at a time; what it came to is written with the next look for work, as workers do it."""

    def __init__(
        self, app: TaskRegistry, connection: Connection, suspended: Sequence[str], retry_now: bool
    ) -> None:
        self._app = app
        self._connection = connection
        self._retry_now = retry_now
        self._settler = Settler(app)
        lease_seconds = app.config.effective_claim_lease_ms / 1000
        self._owner = Owner(uuid4(), socket.gethostname(), "test", lease_seconds)
        self._claimer = Claimer(app.config.queues, {False: 0, True: 0}, 0)
        # No worker has said how often these may start, so nothing holds them back; their lines are read all the same.
        self._claimer.limit_rates([name for name, task in app.tasks.items() if task.definition.rate_key])
        self._claimer.suspend(suspended)

    @classmethod
    async def opened(cls, app: TaskRegistry, retry_now: bool) -> Hand:
        broker = app.get_broker()
        async with broker.connection() as known:  # which makes sure of the schema
            suspended = await operations.suspensions(known)
        connection = await connect_worker(await broker.postgres(), "horsies-testing")
        return cls(app, connection, suspended, retry_now)

    async def close(self) -> None:
        """Give back what was taken and not run, if a test was interrupted there."""
        try:
            await tasks.release(self._connection, self._owner.worker_id, [])
        finally:
            await self._connection.close()

    async def next(self) -> Claimed | None:
        """Write what the last task came to, and take the next that is due; None when nothing is."""
        if failed := self._settler.take_failed():
            async with self._connection.transaction():
                await workflows.settle(self._connection, [], failed)
        task = await self._exchange()
        if task is None:
            await self._keep_time()
            task = await self._exchange()
        return task

    async def _exchange(self) -> Claimed | None:
        completed = self._settler.take_completed()
        of_workflows = [task for task in completed if task.node is not None]
        self._claimer.rewind()
        rooms = [Room(0, 1, 1, [os.getpid()])]
        ask = self._claimer.ask(self._owner, rooms, 1, [], time.monotonic())
        if of_workflows:
            others = [task for task in completed if task.node is None]
            claimed = (await steps.step(self._connection, of_workflows, others, ask)).claimed
        else:
            _, claimed = await tasks.exchange(self._connection, completed, ask)
            claimed = await workflows.feed(self._connection, claimed)
        return claimed[0] if claimed else None

    async def _keep_time(self) -> None:
        """Do what is due by the clock: timers of workflows, and tasks whose time ran out."""
        await steering.fire(self._connection)
        await tasks.expire(self._connection, self._owner.worker_id, EXPIRED)
        await steering.expire(self._connection, self._owner.worker_id, EXPIRED)
        if self._retry_now:
            await testing.hasten(self._connection)

    def ended(self, task: Claimed, outcome: Outcome) -> list[Ran]:
        """Note what a task came to; gives the run, unless it was one of our own."""
        self._settler.ended(task, outcome)
        if task.task_name == BUILD:
            return []
        known = self._app.tasks.get(task.task_name)
        value_type = Any if known is None else known.definition.signature.value_type
        result = decode_result(outcome.result.encode(), value_type)
        return [Ran(task.id, task.task_name, task.retry_count + 1, result)]


def _call(task: Claimed) -> Call:
    return call_of(0, task, task.timeout_ms, time.monotonic())


def _run(call: Call) -> Run:
    """A run whose words on how far it is and whose log lines are not stored: a test sees them where they are said."""
    return Run(call, lambda _said: True, ())


def _execute(app: TaskRegistry, call: Call) -> Outcome:
    """Run a call in this thread; where a loop runs in it already, in another one, so that an async task can have its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return execute(app, call, _run(call))
    with ThreadPoolExecutor(1) as beside:
        return beside.submit(contextvars.copy_context().run, execute, app, call, _run(call)).result()


def _check(ran: Sequence[Ran], limit: int) -> None:
    if len(ran) >= limit:
        last = ", ".join(sorted({each.task_name for each in ran[-10:]}))
        raise AssertionError(f"{limit:,} tasks ran and more are due; the last were of: {last}")
