"""An app as a project would have it, with one of everything that a test may want to skip."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import time
from decimal import Decimal

from horsies import (
    AppConfig,
    CustomQueueConfig,
    DailySchedule,
    Horsies,
    QueueMode,
    RetryPolicy,
    ScheduleConfig,
    TaskError,
    TaskResult,
    TaskSchedule,
    WorkflowSpec,
    from_node,
    map_node,
    sleep_node,
)

app = Horsies(
    AppConfig(
        queue_mode=QueueMode.CUSTOM,
        custom_queues=[CustomQueueConfig(name="mail"), CustomQueueConfig(name="bulk")],
        schedule=ScheduleConfig(
            schedules=[
                TaskSchedule(name="nightly", task_name="shop.report", pattern=DailySchedule(time=time(3, 0)))
            ]
        ),
    )
)
seen: list[str] = []


@dataclass(frozen=True)
class Order:
    number: int
    total: Decimal


@app.task("shop.mail", queue_name="mail")
def send_mail(to: str, order: Order) -> TaskResult[Decimal, TaskError]:
    seen.append(to)
    return TaskResult(ok=order.total)


@app.task("shop.report", queue_name="bulk")
def report() -> TaskResult[str, TaskError]:
    return TaskResult(ok="printed")


@app.task(
    "shop.flaky",
    queue_name="bulk",
    retry_policy=RetryPolicy.fixed([60, 120], auto_retry_for=["BUSY"]),
)
def flaky(fails: int) -> TaskResult[int, TaskError]:
    seen.append("flaky")
    if seen.count("flaky") <= fails:
        return TaskResult(err=TaskError(error_code="BUSY", message="try again"))
    return TaskResult(ok=seen.count("flaky"))


@app.task("shop.double", queue_name="bulk", rate_limit="1/h")
async def double(x: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=2 * x)


@app.task("shop.numbers", queue_name="bulk")
def numbers() -> TaskResult[list[int], TaskError]:
    return TaskResult(ok=[1, 2, 3])


@app.task("shop.add_up", queue_name="bulk")
def add_up(parts: TaskResult[list[int], TaskError]) -> TaskResult[int, TaskError]:
    return TaskResult(ok=sum(parts.unwrap()))


@app.task("shop.again", queue_name="bulk")
def again() -> TaskResult[None, TaskError]:
    again.send()
    return TaskResult(ok=None)


@app.task("shop.parent", queue_name="bulk")
def parent() -> TaskResult[int, TaskError]:
    return TaskResult(ok=numbers.send().unwrap().get(timeout_ms=0).unwrap()[-1])


def count_up(pause: float) -> WorkflowSpec[int]:
    """Numbers, each doubled after a pause, added up."""
    source = numbers.node(node_id="source")()
    rest = sleep_node(pause, waits_for=[source], node_id="rest")
    doubled = map_node(double, over=source, waits_for=[rest], node_id="doubled")
    total = add_up.node(node_id="total")(parts=from_node(doubled))
    return app.workflow("count", [source, rest, doubled, total], output=total, definition_key="shop.count.v1")
