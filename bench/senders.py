"""Concurrent sends of one process, beside the same sends without batches: each an INSERT of its own over a pool."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Awaitable, Callable, Iterator

from bench.app import app, noop
from bench.figures import Figure, at_least, at_most
from bench.harness import Bench
from horsies.config import PostgresConfig
from horsies.db.connection import SyncPool
from horsies.db.ids import new_ids
from horsies.db.insert import Rows, Values, insert_tasks, run_plan
from horsies.db.queries.tasks import NewTask
from horsies.event_loop import run_async

THREADS = 16
COROUTINES = 64


def senders(bench: Bench, seconds: float) -> Iterator[Figure]:
    """Send from one thread, 16 threads and 64 coroutines, with batches and without."""
    bench.empty()
    noop.send(0).unwrap()
    pool = SyncPool(PostgresConfig(database_url=bench.url), "bench")

    def alone() -> None:
        with pool.connection() as connection:

            def fetch(sql: bytes, values: Values) -> Rows:
                return connection.execute(sql, values).fetchall()

            run_plan(insert_tasks([_row()]), fetch)

    def gathered() -> None:
        noop.send(1).unwrap()

    async def alone_async() -> None:
        await run_async(app.get_broker().insert_async([_row()]))

    async def gathered_async() -> None:
        (await noop.send_async(1)).unwrap()

    try:
        before, after = _in_turns(
            lambda: _latency(alone, seconds / 4), lambda: _latency(gathered, seconds / 4)
        )
        yield at_most("a lone send, p50", after * 1000, "ms", after / before, "without batches", 1.15)
        for what, slow, fast, least in (
            (
                f"{THREADS} threads of one process",
                lambda: _by_threads(alone, seconds / 4),
                lambda: _by_threads(gathered, seconds / 4),
                2.5,
            ),
            (
                f"{COROUTINES} coroutines of one loop",
                lambda: asyncio.run(_by_coroutines(alone_async, seconds / 4)),
                lambda: asyncio.run(_by_coroutines(gathered_async, seconds / 4)),
                2.5,
            ),
        ):
            bench.empty()
            before, after = _in_turns(slow, fast)
            yield Figure(f"{what}, without batches", before, "tasks/s")
            yield at_least(what, after, "tasks/s", after / before, "without", least)
    finally:
        pool.close()


def _row() -> NewTask:
    return NewTask(
        id=new_ids(1)[0],
        task_name="noop",
        queue_name="default",
        priority=100,
        kwargs='{"x":1}',
        is_async=False,
        max_retries=0,
    )


def _in_turns(one: Callable[[], float], other: Callable[[], float]) -> tuple[float, float]:
    """Return the medians of two measurements, taken in turns, so that a slow moment of the machine meets both."""
    figures = [(one(), other()) for _ in range(4)]
    return statistics.median(first for first, _ in figures), statistics.median(last for _, last in figures)


def _latency(send: Callable[[], None], seconds: float) -> float:
    """Return the median seconds of a send in one thread."""
    times: list[float] = []
    deadline = time.perf_counter() + seconds
    while (began := time.perf_counter()) < deadline:
        send()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _by_threads(send: Callable[[], None], seconds: float) -> float:
    """Return how many sends a second the threads make."""
    counts = [0] * THREADS
    deadline = time.monotonic() + seconds

    def work(place: int) -> None:
        while time.monotonic() < deadline:
            send()
            counts[place] += 1

    threads = [threading.Thread(target=work, args=(place,)) for place in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds


async def _by_coroutines(send: Callable[[], Awaitable[None]], seconds: float) -> float:
    """Return how many sends a second the coroutines make."""
    sent = 0
    deadline = time.monotonic() + seconds

    async def work() -> None:
        nonlocal sent
        while time.monotonic() < deadline:
            await send()
            sent += 1

    await asyncio.gather(*(work() for _ in range(COROUTINES)))
    return sent / seconds
