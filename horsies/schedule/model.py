"""A schedule, the schedules of an app, and the JSON in which a schedule's definition is stored."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Literal

import msgspec

from horsies.errors import (
    ErrorCode,
    HorsiesError,
    SettingsReport,
    Span,
    bounded,
    is_storable_text,
    read_timedeltas,
)
from horsies.frozen import dataclass
from horsies.schedule.patterns import SchedulePattern, from_data, is_pattern, to_data

MAX_NAME_LENGTH = 255
Overlap = Literal["allow", "skip"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSchedule:
    """A task, or a workflow by its `definition_key`, and when to run it.

    With `catch_up_missed`, all missed slots are run later, `max_catch_up_runs` at a time; without, only the latest one.
    With `overlap="skip"`, a slot is skipped while the previous run has not ended.

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
        if not is_storable_text(self.name, MAX_NAME_LENGTH):
            report.fault(
                f"name is {self.name!r}", f"use 1 to {MAX_NAME_LENGTH} characters of any text but NUL"
            )
        targets = [target for target in (self.task_name, self.definition_key) if target is not None]
        if len(targets) != 1 or not is_storable_text(targets[0], MAX_NAME_LENGTH):
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
    """The schedules in an app's code, and how often a scheduler polls for schedules made at run time.

    >>> ScheduleConfig(schedules=[TaskSchedule(name="tick", task_name="tick", pattern=IntervalSchedule(seconds=10))])
    """

    enabled: bool = True
    schedules: Sequence[TaskSchedule] = ()
    check_interval_seconds: Span = bounded(1, 1, 60, unit="seconds")

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedules", tuple(self.schedules))
        read_timedeltas(self)
        report = SettingsReport(self, ErrorCode.CONFIG_INVALID_SCHEDULE)
        for name, count in Counter(schedule.name for schedule in self.schedules).items():
            if count > 1:
                report.fault(f"schedules has {name!r} {count} times", "give each schedule a name of its own")
        report.raise_if_any()


MAX_PROBLEM_LENGTH = 1_000


class UnreadableDefinition(Exception):
    """A stored definition cannot be decoded: it was written by hand, or by another version of horsies."""


class _Definition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    task_name: str | None = None
    definition_key: str | None = None
    pattern: dict[str, Any]
    timezone: str
    arguments: msgspec.Raw
    queue_name: str | None = None
    catch_up_missed: bool = False
    max_catch_up_runs: int = 100
    overlap: Overlap = "allow"


def encode_definition(schedule: TaskSchedule, arguments: bytes) -> str:
    """Return the JSON in which a schedule is stored; `enabled` has a column of its own."""
    definition = _Definition(
        task_name=schedule.task_name,
        definition_key=schedule.definition_key,
        pattern=to_data(schedule.pattern),
        timezone=schedule.timezone,
        arguments=msgspec.Raw(arguments),
        queue_name=schedule.queue_name,
        catch_up_missed=schedule.catch_up_missed,
        max_catch_up_runs=schedule.max_catch_up_runs,
        overlap=schedule.overlap,
    )
    return msgspec.json.encode(definition).decode()


def decode_definition(name: str, text: str, *, enabled: bool = True) -> tuple[TaskSchedule, str]:
    """Return a stored schedule and the JSON text of its arguments; raise `UnreadableDefinition` if it is not valid."""
    try:
        found = msgspec.json.decode(text, type=_Definition)
        schedule = TaskSchedule(
            name=name,
            task_name=found.task_name,
            definition_key=found.definition_key,
            pattern=from_data(found.pattern),
            kwargs=msgspec.json.decode(found.arguments, type=dict[str, Any]),
            queue_name=found.queue_name,
            enabled=enabled,
            timezone=found.timezone,
            catch_up_missed=found.catch_up_missed,
            max_catch_up_runs=found.max_catch_up_runs,
            overlap=found.overlap,
        )
    except HorsiesError as error:
        raise UnreadableDefinition(_cut(error.message)) from error
    except RecursionError as error:
        raise UnreadableDefinition("it is nested too deeply") from error
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError) as error:
        raise UnreadableDefinition(_cut(str(error))) from error
    return schedule, bytes(found.arguments).decode()


def _cut(problem: str) -> str:
    """Return the problem, shortened if it quotes a long text."""
    return problem if len(problem) <= MAX_PROBLEM_LENGTH else problem[: MAX_PROBLEM_LENGTH - 1] + "…"


def config_hash(schedule: TaskSchedule) -> str:
    """Return a hash of the pattern and time zone: if it changes, the next slot is computed anew."""
    encoded = msgspec.json.encode([to_data(schedule.pattern), schedule.timezone], order="sorted")
    return hashlib.sha256(encoded).hexdigest()
