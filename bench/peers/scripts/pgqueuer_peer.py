"""PgQueuer: asyncpg and uvloop, batches of 200 or BENCH_BATCH, one process for each worker. It keeps no results."""

# pyright: basic, reportMissingImports=false

import asyncio
import json
import os
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.core.completion import CompletionWatcher
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.queries import Queries
from protocol import URL, Producer, begun, burn, copies, nap, rest


async def setup() -> None:
    connection = await asyncpg.connect(URL)
    await Queries(AsyncpgDriver(connection)).install()
    await connection.close()


@asynccontextmanager
async def producer():
    async with asyncpg.create_pool(URL, min_size=1, max_size=16) as pool:
        queries = Queries(AsyncpgPoolDriver(pool))
        listening = AsyncpgDriver(await asyncpg.connect(URL))
        debounce = timedelta(milliseconds=2)
        async with CompletionWatcher(listening, queries=Queries(listening), debounce=debounce) as watcher:

            async def send(n: int):
                return (await queries.enqueue("noop", str(n).encode(), 0))[0]

            async def bulk(numbers):
                count = len(numbers)
                await queries.enqueue(["noop"] * count, [str(n).encode() for n in numbers], [0] * count)

            async def wait(job):
                return await watcher.wait_for(job)

            async def work(n: int, load: str, seconds: float):
                await queries.enqueue(load, json.dumps([n, seconds]).encode(), 0)

            yield Producer(send=send, bulk=bulk, wait=wait, work=work)


async def work() -> None:
    queue = PgQueuer(AsyncpgDriver(await asyncpg.connect(URL)))

    @queue.entrypoint("noop")
    async def noop(job) -> None:
        begun(int(job.payload))

    @queue.entrypoint("rest")
    async def _rest(job) -> None:
        await rest(*json.loads(job.payload))

    for load, do in {"burn": burn, "nap": nap}.items():

        @queue.entrypoint(load)
        async def _in_a_thread(job, do=do) -> None:
            await asyncio.to_thread(do, *json.loads(job.payload))

    await queue.run(batch_size=int(os.environ.get("BENCH_BATCH", "200")))


def worker(processes: int) -> None:
    copies(processes, lambda: uvloop.run(work()))
