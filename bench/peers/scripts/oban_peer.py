"""Oban for Python: uvloop, fifty tasks at a time in each process, the result recorded. Nobody can wait for a result."""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

import asyncio
from contextlib import asynccontextmanager

import psycopg
import uvloop
from oban import Oban, Record
from oban import worker as oban_worker
from oban.schema import install_sql
from protocol import URL, Producer, begun, copies
from psycopg_pool import AsyncConnectionPool


@oban_worker(queue="default")
class Noop:
    async def process(self, job):
        return Record(begun(job.args["n"]))


def setup() -> None:
    with psycopg.connect(URL) as connection:
        connection.execute(install_sql().encode())


@asynccontextmanager
async def producer():
    pool = AsyncConnectionPool(URL, min_size=4, max_size=16, open=False)
    async with pool, Oban(pool=pool) as oban:

        async def send(n: int):
            await oban.enqueue(Noop.new({"n": n}))

        async def bulk(numbers):
            await oban.enqueue_many([Noop.new({"n": n}) for n in numbers])

        yield Producer(send=send, bulk=bulk)


async def work() -> None:
    pool = AsyncConnectionPool(URL, min_size=4, max_size=16, open=False)
    async with pool, Oban(pool=pool, queues={"default": 50}):
        await asyncio.Event().wait()


def worker(processes: int) -> None:
    copies(processes, lambda: uvloop.run(work()))
