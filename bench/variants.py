"""Apps that differ from the one measured in what a few measurements need and all others would feel."""

import asyncio
import time

from bench.app import LEASE_MS
from horsies import AppConfig, CustomQueueConfig, Horsies, QueueMode, TaskError, TaskResult, current_task

CAP = 3

looping = Horsies(AppConfig(claim_lease_ms=LEASE_MS))
stepping = Horsies(AppConfig(claim_lease_ms=LEASE_MS))
capped = Horsies(AppConfig(cluster_wide_cap=CAP))
narrow = Horsies(
    AppConfig(
        queue_mode=QueueMode.CUSTOM,
        custom_queues=[CustomQueueConfig(name="narrow", max_concurrency=CAP)],
    )
)


@looping.task("rest")
async def rest(seconds: float) -> TaskResult[None, TaskError]:
    await asyncio.sleep(seconds)
    return TaskResult(ok=None)


@capped.task("capped_noop")
def capped_noop(x: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=x)


@capped.task("capped_span")
def capped_span(seconds: float) -> TaskResult[list[float], TaskError]:
    return TaskResult(ok=_span(seconds))


@narrow.task("narrow_span", queue_name="narrow")
def narrow_span(seconds: float) -> TaskResult[list[float], TaskError]:
    return TaskResult(ok=_span(seconds))


def _same(n: int) -> int:
    return n


@stepping.task("ten_steps")
def ten_steps(count: int) -> int:
    """A task of steps that do nothing."""
    task = current_task()
    return sum(task.step(f"step {n}", _same, n) for n in range(count))


@stepping.task("nap_until")
def nap_until(instant: float) -> float:
    """Sleep until an instant, and return when the task went on."""
    task = current_task()
    task.sleep("nap", max(0.0, instant - time.time()))
    return time.time()


def _span(seconds: float) -> list[float]:
    """When user code started and ended, on the clock that all processes of a machine share."""
    started = time.monotonic()
    time.sleep(seconds)
    return [started, time.monotonic()]
