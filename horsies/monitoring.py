"""Ask about the database, the workers and single tasks, as methods of an app."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

from horsies.db.connection import Connection
from horsies.db.queries import inspect
from horsies.event_loop import run_async, run_sync
from horsies.registry import TaskRegistry
from horsies.result import BrokerResult, TaskError, TaskInfo, TaskResult
from horsies.status import BrokerErrorCode, WorkerState
from horsies.task_info import as_uuid

T = TypeVar("T")


class MonitoredRegistry(TaskRegistry):
    """The questions that an app answers from the database. Each method has an `_async` form."""

    def ping_database(self) -> BrokerResult[float]:
        """Return the milliseconds that a round trip to the database takes, or the error if it cannot be reached.

        >>> app.ping_database().unwrap()
        0.4
        """
        return run_sync(self._ask(_ping))

    async def ping_database_async(self) -> BrokerResult[float]:
        """Do the same as `ping_database` without blocking the event loop."""
        return await run_async(self._ask(_ping))

    def ping_workers(self) -> BrokerResult[list[inspect.Worker]]:
        """Return the workers that are alive: those that have renewed their lease in time.

        >>> [worker.hostname for worker in app.ping_workers().unwrap()]
        """
        return run_sync(self._ask(_alive))

    async def ping_workers_async(self) -> BrokerResult[list[inspect.Worker]]:
        """Do the same as `ping_workers` without blocking the event loop."""
        return await run_async(self._ask(_alive))

    def list_worker_states(self) -> BrokerResult[list[inspect.Worker]]:
        """Return all workers of the last day with their latest state, the living ones first.

        >>> [(worker.worker_id, worker.state) for worker in app.list_worker_states().unwrap()]
        """
        return run_sync(self._ask(inspect.workers))

    async def list_worker_states_async(self) -> BrokerResult[list[inspect.Worker]]:
        """Do the same as `list_worker_states` without blocking the event loop."""
        return await run_async(self._ask(inspect.workers))

    def get_worker_state(self, worker_id: str | UUID) -> BrokerResult[inspect.Worker | None]:
        """Return one worker with its latest state, None if there is none.

        >>> app.get_worker_state(worker_id).unwrap().tasks_running
        """
        return run_sync(self._ask(_one(worker_id)))

    async def get_worker_state_async(self, worker_id: str | UUID) -> BrokerResult[inspect.Worker | None]:
        """Do the same as `get_worker_state` without blocking the event loop."""
        return await run_async(self._ask(_one(worker_id)))

    def get_worker_state_history(
        self, worker_id: str | UUID, limit: int = 100
    ) -> BrokerResult[list[inspect.WorkerSnapshot]]:
        """Return the snapshots of a worker, the newest first.

        >>> [snapshot.cpu_percent for snapshot in app.get_worker_state_history(worker_id).unwrap()]
        """
        return run_sync(self._ask(_history(worker_id, limit)))

    async def get_worker_state_history_async(
        self, worker_id: str | UUID, limit: int = 100
    ) -> BrokerResult[list[inspect.WorkerSnapshot]]:
        """Do the same as `get_worker_state_history` without blocking the event loop."""
        return await run_async(self._ask(_history(worker_id, limit)))

    def get_result(
        self, task_id: str | UUID, timeout_ms: int | timedelta | None = None
    ) -> TaskResult[Any, TaskError]:
        """Return the result of a task by its id, its value as plain JSON; `app.handle(id, task).get()` gives the typed one.

        >>> app.get_result(task_id, timeout_ms=5_000)
        TaskResult(ok=5)
        """
        return self.handle(task_id).get(timeout_ms)

    async def get_result_async(
        self, task_id: str | UUID, timeout_ms: int | timedelta | None = None
    ) -> TaskResult[Any, TaskError]:
        """Do the same as `get_result` without blocking the event loop."""
        return await self.handle(task_id).get_async(timeout_ms)

    def get_task_info(
        self,
        task_id: str | UUID,
        *,
        include_result: bool = False,
        include_failed_reason: bool = False,
        include_attempts: bool = False,
    ) -> BrokerResult[TaskInfo | None]:
        """Return a task by its id as `handle.info` does, None if there is none.

        >>> app.get_task_info(task_id).unwrap().status
        """
        return self.handle(task_id).info(
            include_result=include_result,
            include_failed_reason=include_failed_reason,
            include_attempts=include_attempts,
        )

    async def get_task_info_async(
        self,
        task_id: str | UUID,
        *,
        include_result: bool = False,
        include_failed_reason: bool = False,
        include_attempts: bool = False,
    ) -> BrokerResult[TaskInfo | None]:
        """Do the same as `get_task_info` without blocking the event loop."""
        return await self.handle(task_id).info_async(
            include_result=include_result,
            include_failed_reason=include_failed_reason,
            include_attempts=include_attempts,
        )

    async def _ask(self, query: Callable[[Connection], Awaitable[T]]) -> BrokerResult[T]:
        return await self.get_broker().ask(query, BrokerErrorCode.MONITORING_QUERY_FAILED)


async def _ping(connection: Connection) -> float:
    began = time.perf_counter()
    await connection.execute(b"SELECT")
    return (time.perf_counter() - began) * 1000


async def _alive(connection: Connection) -> list[inspect.Worker]:
    return [worker for worker in await inspect.workers(connection) if worker.state != WorkerState.DEAD]


def _one(worker_id: str | UUID) -> Callable[[Connection], Awaitable[inspect.Worker | None]]:
    async def find(connection: Connection) -> inspect.Worker | None:
        workers = await inspect.workers(connection)
        return next((worker for worker in workers if worker.worker_id == str(as_uuid(worker_id))), None)

    return find


def _history(
    worker_id: str | UUID, limit: int
) -> Callable[[Connection], Awaitable[list[inspect.WorkerSnapshot]]]:
    async def read(connection: Connection) -> list[inspect.WorkerSnapshot]:
        known = as_uuid(worker_id)
        return [] if known is None else await inspect.worker_snapshots(connection, known, limit)

    return read
