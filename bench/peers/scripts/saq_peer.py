"""SAQ on Redis: twenty tasks at a time in each process, results stored."""

# pyright: basic, reportMissingImports=false

import asyncio
from contextlib import asynccontextmanager, suppress

from protocol import URL, Producer, begun, copies
from saq import Queue, Worker


async def noop(_context: object, *, n: int) -> int:
    return begun(n)


@asynccontextmanager
async def producer():
    queue = Queue.from_url(URL)
    await queue.connect()

    async def send(n: int):
        return await queue.enqueue("noop", n=n)

    async def wait(job):
        """A job that ends between the look and the subscription is not noticed, so the wait is begun anew."""
        while not job.completed:
            with suppress(asyncio.TimeoutError):
                await job.refresh(until_complete=0.25)

    yield Producer(send=send, wait=wait)
    await queue.disconnect()


async def work() -> None:
    await Worker(Queue.from_url(URL), functions=[("noop", noop)], concurrency=20).start()


def worker(processes: int) -> None:
    copies(processes, lambda: asyncio.run(work()))
