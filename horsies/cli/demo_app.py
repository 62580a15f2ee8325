"""The app of `horsies demo`: one task for each way a task can end, a workflow, and a schedule."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from horsies import (
    AppConfig,
    Horsies,
    IntervalSchedule,
    RetryPolicy,
    ScheduleConfig,
    TaskError,
    TaskResult,
    TaskSchedule,
    WorkflowDefinition,
    from_node,
    map_node,
)

app = Horsies(
    AppConfig(
        schedule=ScheduleConfig(
            schedules=[
                TaskSchedule(
                    name="every-two-seconds",
                    task_name="add",
                    pattern=IntervalSchedule(seconds=2),
                    kwargs={"x": 1, "y": 1},
                )
            ]
        )
    )
)


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
    """Fail until the service that it needs is up."""
    if datetime.now(UTC) < up_at:
        return TaskResult(err=TaskError(error_code="SERVICE_DOWN", message="the service does not answer"))
    return TaskResult(ok="fetched")


@app.task("spin", timeout_ms=500)
def spin() -> TaskResult[None, TaskError]:
    while True:
        pass


@app.task("crash")
def crash() -> TaskResult[None, TaskError]:
    os._exit(3)


@app.task("numbers")
def numbers(upto: int) -> TaskResult[list[int], TaskError]:
    return TaskResult(ok=list(range(1, upto + 1)))


@app.task("square")
def square(number: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=number * number)


@app.task("total")
def total(of: TaskResult[list[int], TaskError]) -> TaskResult[int, TaskError]:
    return TaskResult(ok=sum(of.unwrap()))


class SumOfSquares(WorkflowDefinition[int]):
    """List numbers, square them in parallel, and add them up."""

    name = "sum-of-squares"
    definition_key = "horsies.demo.sum-of-squares.v1"

    made = numbers.node()(upto=4)
    squared = map_node(square, over=made)
    summed = total.node()(of=from_node(squared))

    class Meta:
        output = "summed"
