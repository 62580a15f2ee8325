"""Tasks with keys, and one without: apps whose tasks have no keys do not pay for them, and are measured apart."""

import asyncio
import time

from horsies import AppConfig, Horsies, TaskError, TaskResult

keyed = Horsies(AppConfig(claim_lease_ms=30_000))


@keyed.task("keyed_noop", key="key", key_concurrency=1)
def keyed_noop(key: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=key)


@keyed.task("keyed_async", key="key", key_concurrency=1)
async def keyed_async(key: int) -> TaskResult[int, TaskError]:
    await asyncio.sleep(0)
    return TaskResult(ok=key)


@keyed.task("keyed_moment", key="key", key_concurrency=1)
def keyed_moment(key: str, seconds: float) -> TaskResult[float, TaskError]:
    """When user code started, on the clock that all processes of a machine share."""
    started = time.monotonic()
    time.sleep(seconds)
    return TaskResult(ok=started)


@keyed.task("unkeyed_noop")
def unkeyed_noop(x: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=x)


@keyed.task("unkeyed_async")
async def unkeyed_async(x: int) -> TaskResult[int, TaskError]:
    await asyncio.sleep(0)
    return TaskResult(ok=x)
