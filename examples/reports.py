"""Run a report every night at three in the time zone of the shop; this example also runs it once at once.

$ python examples/reports.py
"""

from __future__ import annotations

from datetime import time
from time import sleep

from running import worker

from horsies import (
    AppConfig,
    DailySchedule,
    Horsies,
    RetryPolicy,
    ScheduleConfig,
    TaskError,
    TaskResult,
    TaskSchedule,
)

nightly = TaskSchedule(
    name="nightly-report",
    task_name="reports.sales",
    pattern=DailySchedule(time=time(3, 0)),
    kwargs={"shop": "Oslo"},
    timezone="Europe/Oslo",
    overlap="skip",
)
app = Horsies(AppConfig(schedule=ScheduleConfig(schedules=[nightly])))


@app.task("reports.sales", retry_policy=RetryPolicy.fixed([60, 600], auto_retry_for=["TASK_EXCEPTION"]))
def sales(shop: str) -> TaskResult[str, TaskError]:
    return TaskResult(ok=f"{shop} has sold 3 books")


def main() -> None:
    with worker(__file__, "--with-scheduler"):
        # The scheduler in the worker stores the schedule with its next run when it starts.
        while not (stored := app.schedules.get("nightly-report").unwrap_or(None)):
            sleep(0.1)
        print(f"next at {stored.next_run_at:%H:%M} UTC")
        print(app.schedules.run_now("nightly-report").unwrap().get(timeout_ms=60_000).unwrap())


if __name__ == "__main__":
    main()
