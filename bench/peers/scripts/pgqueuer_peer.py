"""PgQueuer: asyncpg and uvloop, batches of 200, one process for each worker. It keeps no results."""

# pyright: basic, reportMissingImports=false

from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.core.completion import CompletionWatcher
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.queries import Queries
from protocol import URL, Producer, begun, copies


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

            yield Producer(send=send, bulk=bulk, wait=wait)


async def work() -> None:
    queue = PgQueuer(AsyncpgDriver(await asyncpg.connect(URL)))

    @queue.entrypoint("noop")
    async def noop(job) -> None:
        begun(int(job.payload))

    await queue.run(batch_size=200)


def worker(processes: int) -> None:
    copies(processes, lambda: uvloop.run(work()))
