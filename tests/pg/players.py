"""A worker's part in workflows, played by hand, step by step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from psycopg import Rollback

from horsies import PostgresConfig, WorkflowHandle, WorkflowStatus
from horsies.db.connection import connect_worker
from horsies.db.queries import tasks, workflows
from horsies.db.queries.tasks import Claimed, ClaimRequest, Completed, Failure, Lane, PoolRoom
from horsies.worker.claim import NO_LIMIT, START
from horsies.workflow import control, settle

OK = '{"ok":[1,2,3]}'
ERR = '{"err":{"error_code":"BROKEN","message":"it broke","data":null,"exception":null}}'


class Player:
    """A worker's part in workflows, by hand, over one connection after another."""

    def __init__(self, url: str) -> None:
        self.worker_id = uuid4()
        self._url = url
        self._runner = asyncio.Runner()
        self._connection: Any = None

    def _run(self, work: Callable[[Any], Any]) -> Any:
        async def over() -> Any:
            if self._connection is None or self._connection.closed:
                self._connection = await connect_worker(PostgresConfig(database_url=self._url), "player")
            return await work(self._connection)

        return self._runner.run(over())

    def close(self) -> None:
        if self._connection is not None:
            self._runner.run(self._connection.close())
        self._runner.close()

    def _ask(self, limit: int) -> ClaimRequest:
        lines = [Lane(0, "default", False, "", limit, *START)] if limit else []
        room = [PoolRoom(0, limit, limit, [4242] * limit)]
        return ClaimRequest(lines, room, [], [], limit, NO_LIMIT, self.worker_id, "host", "player")

    def claim(self, limit: int = 100) -> list[Claimed]:
        return self._run(lambda connection: tasks.settle_and_claim(connection, [], self._ask(limit)))[1]

    def complete(self, claimed: list[Claimed], limit: int = 100, result: str = OK) -> list[Claimed]:
        done = [Completed(task.id, task.claim_seq, result, task.node) for task in claimed]

        async def step(connection: Any) -> list[Claimed]:
            stepped = await settle.settle_and_claim(connection, done, [], self._ask(limit))
            return await workflows.load_inputs(connection, stepped.claimed)

        return self._run(step)

    def fail(self, claimed: list[Claimed], delay: float | None = None) -> None:
        self._settle(
            [
                Failure(each.id, each.claim_seq, ERR, "BROKEN", "it broke", None, delay, node=each.node)
                for each in claimed
            ]
        )

    def stop(self, claimed: list[Claimed]) -> None:
        """End what was asked to stop."""
        self._settle([tasks.stopped(each) for each in claimed])

    def _settle(self, failures: list[Failure]) -> None:
        async def store(connection: Any) -> None:
            async with connection.transaction():
                await settle.settle(connection, [], failures, None)

        self._run(store)

    def roll_back(self) -> None:
        """Roll back a transaction on the player's connection, as a lost race does."""

        async def roll_back(connection: Any) -> None:
            async with connection.transaction():
                await connection.execute("SELECT 1")
                raise Rollback

        self._run(roll_back)

    def fire(self) -> float | None:
        return self._run(control.fire_timers)

    def release(self) -> None:
        """What a lost reply may have left in our name goes back."""
        self._run(lambda connection: tasks.release(connection, self.worker_id, []))


def play(player: Player, handle: WorkflowHandle[Any], claimed: list[Claimed] | None = None) -> None:
    """Let everything that runs complete, until there is no more."""
    claimed = player.claim() if claimed is None else claimed
    while claimed:
        claimed = player.complete(claimed)
    assert handle.status().unwrap() is WorkflowStatus.COMPLETED
