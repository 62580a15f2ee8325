"""The app that is measured."""

import time

from horsies import AppConfig, Horsies, ScheduleConfig, TaskError, TaskResult

app = Horsies(AppConfig(claim_lease_ms=30_000, schedule=ScheduleConfig()))


@app.task("noop")
def noop(x: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=x)


@app.task("moment")
def moment() -> TaskResult[float, TaskError]:
    """When user code started, on the clock that all processes of a machine share."""
    return TaskResult(ok=time.monotonic())


@app.task("span")
def span(seconds: float) -> TaskResult[list[float], TaskError]:
    """When user code started and ended, on the same clock."""
    started = time.monotonic()
    time.sleep(seconds)
    return TaskResult(ok=[started, time.monotonic()])
