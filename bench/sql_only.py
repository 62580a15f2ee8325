"""The limit: the worker's own statements, driven from one connection as fast as the database answers."""

from __future__ import annotations

import asyncio
import time
from uuid import uuid4

from bench.harness import Bench
from horsies.config import AppConfig, PostgresConfig
from horsies.storage import tasks
from horsies.storage.database import connect_worker
from horsies.storage.tasks import Completed, Room
from horsies.worker.claim import Claimer, Owner

BATCH = 200


def drain(bench: Bench) -> float:
    """Tasks per second when nothing is executed between claim and end."""
    return asyncio.run(_drain(PostgresConfig(database_url=bench.url)))


async def _drain(config: PostgresConfig) -> float:
    claimer = Claimer(AppConfig().queues, {False: 0, True: 0}, 0)
    room = Room(0, BATCH, BATCH, [1] * BATCH)
    owner = Owner(uuid4(), "bench", "bench", 60.0)
    async with await connect_worker(config, "bench") as connection:
        done, completed, began = 0, list[Completed](), time.perf_counter()
        while True:
            now = time.monotonic()
            ended, claimed = await tasks.exchange(
                connection, completed, claimer.ask(owner, [room], BATCH, [], now)
            )
            claimer.claimed(claimed, time.monotonic() - now, time.monotonic())
            done += ended
            completed = [Completed(task.id, task.claim_seq, '{"ok":1}') for task in claimed]
            if not claimed and not claimer.rewind():
                return done / (time.perf_counter() - began)


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
