"""arq: a hundred tasks at a time in each process, a poll every 50 ms, results kept for an hour."""

# pyright: basic, reportMissingImports=false

from contextlib import asynccontextmanager

from arq import create_pool, run_worker
from arq.connections import RedisSettings
from protocol import URL, Producer, begun, copies

SETTINGS = RedisSettings.from_dsn(URL) if URL else RedisSettings()


async def noop(_context: object, n: int) -> int:
    return begun(n)


class WorkerSettings:  # arq reads its settings from a class
    functions = (noop,)
    redis_settings = SETTINGS
    max_jobs = 100
    poll_delay = 0.05


@asynccontextmanager
async def producer():
    redis = await create_pool(SETTINGS)

    async def send(n: int):
        return await redis.enqueue_job("noop", n)

    async def wait(job):
        return await job.result(timeout=30, poll_delay=0.001)

    yield Producer(send=send, wait=wait)
    await redis.aclose()


def worker(processes: int) -> None:
    copies(processes, lambda: run_worker(WorkerSettings))
