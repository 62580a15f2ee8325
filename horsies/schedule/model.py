"""What runs when: one schedule, and the schedules of an app.

What can be seen from a schedule alone is checked when it is made. Whether its task, queue and time zone exist and its
arguments fit, a check of the app says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from horsies.errors import ErrorCode, SettingsReport, bounded
from horsies.schedule.patterns import SchedulePattern, is_pattern

MAX_NAME_LENGTH = 255
Overlap = Literal["allow", "skip"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSchedule:
    """A task, or a workflow by its `definition_key`, and when to run it.

    With `catch_up_missed`, slots that were missed are run later, `max_catch_up_runs` at a time; without, only the latest
    one. With `overlap="skip"` a slot is passed over while the run before it has not ended.

    >>> TaskSchedule(name="nightly", task_name="clean_up", pattern=DailySchedule(time=time(3, 0)), timezone="Europe/Paris")
    """

    name: str
    task_name: str | None = None
    definition_key: str | None = None
    pattern: SchedulePattern
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    queue_name: str | None = None
    enabled: bool = True
    timezone: str = "UTC"
    catch_up_missed: bool = False
    max_catch_up_runs: int = bounded(100, 1, 10_000)
    overlap: Overlap = "allow"

    def __post_init__(self) -> None:
        report = SettingsReport(self, ErrorCode.CONFIG_INVALID_SCHEDULE)
        if not _is_name(self.name):
            report.fault(
                f"name is {self.name!r}", f"use 1 to {MAX_NAME_LENGTH} characters of any text but NUL"
            )
        targets = [target for target in (self.task_name, self.definition_key) if target is not None]
        if len(targets) != 1 or not _is_name(targets[0]):
            problem = f"task_name is {self.task_name!r} and definition_key is {self.definition_key!r}"
            report.fault(f"schedule {self.name!r}: {problem}", "name one of the two")
        if not is_pattern(self.pattern):
            remedy = 'use a pattern, such as IntervalSchedule(minutes=5) or CronSchedule("*/5 * * * *")'
            report.fault(f"schedule {self.name!r}: pattern is {self.pattern!r}", remedy)
        report.choice("overlap", self.overlap, "allow", "skip")
        object.__setattr__(self, "args", tuple(self.args))
        object.__setattr__(self, "kwargs", dict(self.kwargs))
        report.raise_if_any()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfig:
    """The schedules that an app has in its code, and how often a scheduler looks for those made elsewhere.

    >>> ScheduleConfig(schedules=[TaskSchedule(name="tick", task_name="tick", pattern=IntervalSchedule(seconds=10))])
    """

    enabled: bool = True
    schedules: Sequence[TaskSchedule] = ()
    check_interval_seconds: int = bounded(1, 1, 60)

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedules", tuple(self.schedules))
        report = SettingsReport(self, ErrorCode.CONFIG_INVALID_SCHEDULE)
        for name, count in Counter(schedule.name for schedule in self.schedules).items():
            if count > 1:
                report.fault(f"schedules has {name!r} {count} times", "give each schedule a name of its own")
        report.raise_if_any()


def _is_name(name: object) -> bool:
    """Whether the database can keep this: a NUL and half a surrogate pair are no characters to it."""
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME_LENGTH:
        return False
    return not any(character == "\0" or "\ud800" <= character <= "\udfff" for character in name)
