"""An app with as many queues as BENCH_QUEUES says."""

import os

from bench.app import LEASE_MS
from horsies import AppConfig, CustomQueueConfig, Horsies, QueueMode, TaskError, TaskResult

NUMBER = int(os.environ.get("BENCH_QUEUES", "1"))
NAMES = ["default"] if NUMBER == 1 else [f"queue-{n}" for n in range(NUMBER)]
app = Horsies(
    AppConfig(
        claim_lease_ms=LEASE_MS,
        queue_mode=QueueMode.CUSTOM,
        custom_queues=[CustomQueueConfig(name=name, max_concurrency=None) for name in NAMES],
    )
)


@app.task("noop", queue_name=NAMES[0])
def noop(x: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=x)
