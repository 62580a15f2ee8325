"""Declare schedules in the code: `@app.schedule`. Every mistake is an error where the schedule is declared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from horsies.durations import Duration
from horsies.errors import ConfigurationError, ErrorCode, ValidationReport
from horsies.registry import TaskRegistry
from horsies.schedule.model import TaskSchedule
from horsies.schedule.patterns import CronSchedule, IntervalSchedule, SchedulePattern, is_pattern
from horsies.schedule.scheduler import Starters
from horsies.task import BaseTask

_EXAMPLES = (
    '@app.schedule("0 8 * * mon"), @app.schedule(every=60) or @app.schedule(DailySchedule(time=time(3, 0)))'
)


def pattern_of(pattern: object, every: Duration | None) -> SchedulePattern:
    """Return the pattern that `@app.schedule` was given as a cron expression, a pattern or an interval."""
    if (pattern is None) == (every is None):
        both = "both a pattern and every" if every is not None else "neither a pattern nor every"
        raise _invalid(f"@app.schedule was given {both}", f"give one of the two: {_EXAMPLES}")
    if every is not None:
        return IntervalSchedule.every(every)
    if isinstance(pattern, str):
        return CronSchedule(pattern)
    if not is_pattern(pattern):
        raise _invalid(f"@app.schedule was given {pattern!r} as its pattern", f"write {_EXAMPLES}")
    return pattern  # pyright: ignore[reportReturnType]  (`is_pattern` has checked it)


def declare(
    app: TaskRegistry, task: object, name: str | None, pattern: SchedulePattern, options: Mapping[str, Any]
) -> None:
    """Add a schedule of a task to the app; raise all of its errors together."""
    if not isinstance(task, BaseTask):
        raise _invalid(
            f"@app.schedule was put above {getattr(task, '__qualname__', task)!r}, which is not a task",
            "write @app.schedule(…) above @app.task(…), not below it",
        )
    if app.tasks.get(task.name) is not task:
        raise _invalid(
            f"@app.schedule was put above task {task.name!r}, which belongs to another app",
            "use @app.schedule of the app that has the task",
        )
    schedule = TaskSchedule(
        name=task.name if name is None else name, task_name=task.name, pattern=pattern, **options
    )
    if schedule in app.declared_schedules:
        return  # the module was imported twice, for instance as __main__ and by its name
    config = app.schedule_config
    if config is not None and any(each.name == schedule.name for each in config.schedules):
        raise _invalid(
            f"there are two schedules named {schedule.name!r}",
            f"give this one a name of its own: @app.schedule(…, name='{schedule.name}-2')",
        )
    report = ValidationReport(f"schedule {schedule.name!r}")
    report.errors += Starters(app).problems(schedule)
    report.raise_if_any()
    app.declared_schedules.append(schedule)


def _invalid(message: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(message, code=ErrorCode.CONFIG_INVALID_SCHEDULE, help_text=remedy)
