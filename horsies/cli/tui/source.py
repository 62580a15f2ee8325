"""What `horsies top` knows and does: one connection, opened anew when it was lost, and three statements a look.

A statement that takes too long is given up, so that watching a busy database does not make it busier.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from horsies.config import PostgresConfig
from horsies.storage import cancelling, monitor, operations
from horsies.storage import tasks as task_rows
from horsies.storage.database import TRANSIENT, Connection, connect
from horsies.storage.monitor import Filter, Payload, QueueState, TaskState, WorkerState
from horsies.storage.operations import ALL_QUEUES, Failed
from horsies.storage.why import why

T = TypeVar("T")

STATEMENT_SECONDS = 5
TASKS_SHOWN = 100


class View(NamedTuple):
    """Everything at a glance."""

    queues: list[QueueState]
    workers: list[WorkerState]
    tasks: list[TaskState]
    is_suspended: bool


class Closeup(NamedTuple):
    """One task in full."""

    task: TaskState
    payload: Payload
    attempts: list[tuple[Any, ...]]
    reasons: list[str]


class Source:
    """Asks the database, one thing at a time."""

    def __init__(self, postgres: PostgresConfig, actor: str) -> None:
        self._postgres = postgres
        self._actor = actor
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()
        self._looks = 0
        self._workers: list[WorkerState] = []
        self._is_suspended = False

    async def look(self, wanted: Filter, *, failures: bool) -> View:
        """How things are. Workers and suspensions change slowly: they take turns."""

        async def work(connection: Connection) -> View:
            if self._looks % 2 == 0:
                self._workers = await monitor.workers(connection)
            else:
                self._is_suspended = ALL_QUEUES in await operations.suspensions(connection)
            self._looks += 1
            queues = await monitor.queues(connection)
            find = monitor.failures if failures else monitor.tasks
            tasks = await find(connection, wanted, TASKS_SHOWN)
            return View(queues, self._workers, tasks, self._is_suspended)

        return await self._ask(work)

    async def look_closely(self, task_id: UUID) -> Closeup | None:
        async def work(connection: Connection) -> Closeup | None:
            found = await monitor.task(connection, task_id)
            if found is None:
                return None
            attempts = await task_rows.attempts(connection, task_id)
            return Closeup(*found, attempts, await why(connection, task_id) or [])

        return await self._ask(work)

    async def retry(self, task_id: UUID) -> str:
        """Send a failed task through once more; says what came of it."""

        async def work(connection: Connection) -> str:
            which = Failed([task_id])
            if not await operations.requeue(connection, which):
                return f"{task_id} was passed over: it has not failed, belongs to a workflow, or another has its unique key"
            await operations.note(connection, self._actor, "requeue", str(which), 1)
            return f"{task_id} is PENDING again"

        return await self._ask(work)

    async def cancel(self, task_id: UUID) -> str:
        """Cancel a task, or ask it to stop; says what came of it."""
        done = await self._ask(lambda connection: cancelling.cancel(connection, [task_id], actor=self._actor))
        if not done:
            return f"there is no task {task_id}"
        if not done[0].cancelled:
            return f"{task_id} is {done[0].status} already"
        return f"{task_id} is {'asked to stop' if done[0].status == 'RUNNING' else 'cancelled'}"

    async def switch(self, queue: QueueState) -> str:
        """Suspend a queue, or resume it; says which."""
        act = operations.resume if queue.suspended else operations.suspend
        await self._ask(lambda connection: act(connection, queue.name, self._actor))
        return f"queue {queue.name} is {'resumed' if queue.suspended else 'suspended'}"

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def _ask(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        async with self._turn:
            if self._connection is None or self._connection.closed:
                self._connection = await connect(self._postgres, session=True, name="horsies-top")
                await self._connection.execute(f"SET statement_timeout = '{STATEMENT_SECONDS}s'".encode())
            try:
                return await work(self._connection)
            except TRANSIENT:
                await self._connection.close()
                raise
