"""The app of the drills: tasks that testify when they begin and end. The environment says how it is set up."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import msgspec

from horsies import (
    AppConfig,
    CustomQueueConfig,
    Horsies,
    PostgresConfig,
    QueueMode,
    RecoveryConfig,
    RetryPolicy,
    TaskError,
    TaskResult,
    WorkerResilienceConfig,
)
from tests.faults.testimony import TASKS, Witness, now, token
from tests.faults.workload import KEY_LIMIT, NARROW, VARIABLE, WIDE, Setup, key_of, lane_of

setup = msgspec.json.decode(os.environ[VARIABLE], type=Setup)
folder = Path(setup.folder)
witness = Witness(folder, TASKS)
Returned = TaskResult[str, TaskError]


def _shift_clock(seconds: float) -> None:
    """What time it is, for all of this process but the clock that only counts."""
    real, real_ns = time.time, time.time_ns
    time.time = lambda: real() + seconds
    time.time_ns = lambda: real_ns() + int(seconds * 1e9)


def _broker() -> PostgresConfig | None:
    """Nothing to say about the database, unless there is a pooler in front of it."""
    if setup.session_url is None:
        return None
    return PostgresConfig(
        database_url=os.environ["HORSIES_DATABASE_URL"],
        session_database_url=setup.session_url,
        pgbouncer_transaction_mode=True,
    )


if setup.clock_seconds:
    _shift_clock(setup.clock_seconds)

app = Horsies(
    AppConfig(
        unknown_task_grace_seconds=1,
        broker=_broker(),
        queue_mode=QueueMode.CUSTOM,
        custom_queues=[
            CustomQueueConfig(name=WIDE, priority=10, max_concurrency=None),
            CustomQueueConfig(name=NARROW, priority=5, max_concurrency=setup.narrow_cap),
        ],
        prefetch_buffer=setup.prefetch,
        claim_lease_ms=setup.lease_ms,
        resilience=WorkerResilienceConfig(
            db_retry_initial_ms=100, db_retry_max_ms=500, notify_poll_interval_ms=1_000
        ),
        recovery=RecoveryConfig(check_interval_ms=2_000),
    )
)


def seconds(number: int) -> float:
    """How long a task takes: anything up to the most, the same at every run."""
    return number * 7919 % 1000 / 1000 * setup.task_ms / 1000


def begin(number: int, task: str, queue: str) -> int:
    return witness.say("start", number=number, task=task, queue=queue)


def end(number: int, began: int) -> str:
    witness.say("end", number=number, began=began)
    return token(number, os.getpid(), began)


@app.task("plain", queue_name=WIDE)
def plain(number: int) -> Returned:
    """Never begun a second time, whatever happens."""
    began = begin(number, "plain", WIDE)
    time.sleep(seconds(number))
    return TaskResult(ok=end(number, began))


@app.task("repeatable", queue_name=NARROW, idempotent=True)
def repeatable(number: int) -> Returned:
    """Run again when its process dies."""
    began = begin(number, "repeatable", NARROW)
    time.sleep(seconds(number))
    return TaskResult(ok=end(number, began))


@app.task("busy", queue_name=WIDE, idempotent=True)
def busy(number: int) -> Returned:
    """As `repeatable`, and keeps the processor busy."""
    began = begin(number, "busy", WIDE)
    until = now() + int(seconds(number) * 5e8)
    while now() < until:
        pass
    return TaskResult(ok=end(number, began))


@app.task("beside", queue_name=WIDE, idempotent=True)
async def beside(number: int) -> Returned:
    """Runs beside others."""
    began = begin(number, "beside", WIDE)
    try:
        await asyncio.sleep(seconds(number))
    except asyncio.CancelledError:
        witness.say("stop", number=number, began=began)
        raise
    return TaskResult(ok=end(number, began))


@app.task("keyed", queue_name=WIDE, idempotent=True, key=key_of, key_concurrency=KEY_LIMIT)
def keyed(number: int) -> Returned:
    """Runs beside few others of its key."""
    began = begin(number, "keyed", lane_of(key_of(number)))
    time.sleep(seconds(number))
    return TaskResult(ok=end(number, began))


@app.task("keyed_beside", queue_name=WIDE, idempotent=True, key=key_of, key_concurrency=KEY_LIMIT)
async def keyed_beside(number: int) -> Returned:
    """As `keyed`, in the process of others; both kinds count together."""
    began = begin(number, "keyed_beside", lane_of(key_of(number)))
    await asyncio.sleep(seconds(number))
    return TaskResult(ok=end(number, began))


@app.task("failing", queue_name=WIDE)
def failing(number: int) -> Returned:
    began = begin(number, "failing", WIDE)
    end(number, began)
    return TaskResult(err=TaskError(error_code="NO_LUCK", message="this task always fails"))


@app.task(
    "second_time",
    queue_name=WIDE,
    retry_policy=RetryPolicy.fixed([1, 1], auto_retry_for=["NOT_YET"], jitter=False),
)
def second_time(number: int) -> Returned:
    """Fails once and is retried by its policy."""
    began = begin(number, "second_time", WIDE)
    value = end(number, began)
    try:
        (folder / f"tried-{number}").touch(exist_ok=False)
    except FileExistsError:
        return TaskResult(ok=value)
    return TaskResult(err=TaskError(error_code="NOT_YET", message="the first run fails"))


TASK_OF: dict[str, Any] = {
    task.name: task for task in (plain, repeatable, busy, beside, keyed, keyed_beside, failing, second_time)
}
