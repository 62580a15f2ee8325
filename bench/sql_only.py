"""The worker's own statements, driven as fast as the database answers: the limit, and their cost."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from uuid import uuid4

from psycopg import errors

from bench.harness import Bench
from horsies.config import AppConfig, PostgresConfig
from horsies.db.connection import connect_worker
from horsies.db.queries import tasks, workers
from horsies.db.queries.tasks import Completed, PoolRoom
from horsies.db.queries.workers import Rules
from horsies.worker.claim import Claimer, Owner

BATCH = 200
# As many as a worker has, and as there are cores here.
CONNECTIONS = 2


def drain(bench: Bench) -> float:
    """Tasks per second when nothing is executed between claim and end."""
    return asyncio.run(_drain(PostgresConfig(database_url=bench.url)))


async def _drain(config: PostgresConfig) -> float:
    began = time.perf_counter()
    done = await asyncio.gather(*(_drain_some(config) for _ in range(CONNECTIONS)))
    return sum(done) / (time.perf_counter() - began)


async def _drain_some(config: PostgresConfig) -> int:
    done = 0
    async for ended, _ in _exchanges(config, BATCH):
        done += ended
    return done


def claims(bench: Bench, count: int) -> tuple[float, float]:
    """How long it takes to end ten tasks and claim ten others, so often: the median and the slowest hundredth."""
    return asyncio.run(_claims(PostgresConfig(database_url=bench.url), count))


async def _claims(config: PostgresConfig, count: int) -> tuple[float, float]:
    times: list[float] = []
    async for _, seconds in _exchanges(config, 10):
        times.append(seconds)
        if len(times) == count + 5:
            break
    cuts = statistics.quantiles(times[5:], n=100, method="inclusive")  # the first ones make the plan
    return cuts[49], cuts[98]


async def _exchanges(config: PostgresConfig, batch: int) -> AsyncGenerator[tuple[int, float]]:
    """Claim as many until there are none, ending what the last claim gave: how many were ended, in how long."""
    claimer = Claimer(AppConfig().all_queues, {False: 0, True: 0}, 0)
    room = PoolRoom(0, batch, batch, [1] * batch)
    owner = Owner(uuid4(), "bench", "bench", 60.0)
    async with await connect_worker(config, "bench") as connection:
        completed: list[Completed] = []
        while True:
            now = time.monotonic()
            try:
                ended, claimed, *_ = await tasks.settle_and_claim(
                    connection, completed, claimer.request(owner, [room], batch, [], now)
                )
            except errors.SerializationFailure:
                continue  # a row was moved to history while we locked it: a worker asks again, too
            took = time.monotonic() - now
            claimer.claimed(claimed, took, now + took)
            completed = [Completed(task.id, task.claim_seq, '{"ok":1}') for task in claimed]
            yield ended, took
            if not claimed and not claimer.rewind():
                return


def walks(bench: Bench) -> dict[str, float]:
    """How long the statements take, in seconds, that look for a worker's tasks without an index, and the next due time."""
    return asyncio.run(_walks(PostgresConfig(database_url=bench.url)))


async def _walks(config: PostgresConfig) -> dict[str, float]:
    async with await connect_worker(config, "bench") as connection:
        asked: dict[str, Callable[[], Awaitable[object]]] = {
            "next_due": lambda: tasks.next_due(connection, ["default"], [], {}),
            "orphans": lambda: workers.orphans(connection, Rules(60.0)),
            "release": lambda: tasks.release(connection, uuid4(), []),
        }
        times: dict[str, float] = {}
        for name, ask in asked.items():
            await ask()
            began = time.perf_counter()
            await ask()
            times[name] = time.perf_counter() - began
        return times


async def _commit_seconds(config: PostgresConfig, times: int) -> float:
    async with await connect_worker(config, "bench") as connection:
        await connection.execute("CREATE TABLE IF NOT EXISTS bench_commit (n integer)")
        began = time.perf_counter()
        for _ in range(times):
            await connection.execute("INSERT INTO bench_commit VALUES (1)")
        seconds = (time.perf_counter() - began) / times
        await connection.execute("DROP TABLE bench_commit")
        return seconds


def commit_seconds(bench: Bench, times: int) -> float:
    """How long a small commit takes, from here and back."""
    return asyncio.run(_commit_seconds(PostgresConfig(database_url=bench.url), times))
