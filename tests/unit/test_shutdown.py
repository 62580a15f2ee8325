"""A task that is told to end does, even if it swallows a cancellation."""

from __future__ import annotations

import asyncio

import pytest

from horsies.event_loop import cancel_and_wait
from horsies.worker.worker import describe_drain


def test_a_task_that_loses_a_cancellation_is_cancelled_again() -> None:
    lost = 0

    async def loses_one() -> None:
        nonlocal lost
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                lost += 1
                if lost > 1:
                    raise

    async def run() -> bool:
        task = asyncio.create_task(loses_one())
        await asyncio.sleep(0)
        await cancel_and_wait(task)
        return task.cancelled()

    assert asyncio.run(run())
    assert lost == 2


def test_a_task_that_fails_when_it_is_cancelled_has_ended() -> None:
    async def fails() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RuntimeError("it failed") from None

    async def run() -> str:
        task = asyncio.create_task(fails())
        await asyncio.sleep(0)
        await cancel_and_wait(task)
        return str(task.exception())

    assert asyncio.run(run()) == "it failed"


@pytest.mark.parametrize(
    ("running", "words"),
    [
        (0, "no task is running"),
        (1, "waiting up to 300 s for 1 running task (Ctrl-C again to kill it)"),
        (2, "waiting up to 300 s for 2 running tasks (Ctrl-C again to kill them)"),
    ],
)
def test_a_worker_that_stops_says_what_it_waits_for(running: int, words: str) -> None:
    assert describe_drain(running, 300) == words
