"""The app of `horsies demo`: one task for each way in which a task can end."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from horsies import Horsies, RetryPolicy, TaskError, TaskResult

app = Horsies()


@app.task("add")
def add(x: int, y: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=x + y)


@app.task("charge")
def charge(amount: int) -> TaskResult[str, TaskError]:
    return TaskResult(err=TaskError(error_code="CARD_DECLINED", message=f"the bank will not pay {amount}"))


@app.task("divide")
def divide(x: int, y: int) -> TaskResult[float, TaskError]:
    return TaskResult(ok=x / y)


@app.task("fetch", retry_policy=RetryPolicy.fixed([1], auto_retry_for=["SERVICE_DOWN"], jitter=False))
def fetch(up_at: datetime) -> TaskResult[str, TaskError]:
    """Fails as long as the service that it needs is down."""
    if datetime.now(UTC) < up_at:
        return TaskResult(err=TaskError(error_code="SERVICE_DOWN", message="nobody answers"))
    return TaskResult(ok="fetched")


@app.task("spin", timeout_ms=500)
def spin() -> TaskResult[None, TaskError]:
    while True:
        pass


@app.task("crash")
def crash() -> TaskResult[None, TaskError]:
    os._exit(3)
