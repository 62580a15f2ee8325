"""A schedule as it is written down in the database, and read again by whoever runs it.

Arguments are JSON as the task's own signature writes it, so that a scheduler can run what another process has made.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import msgspec

from horsies.errors import HorsiesError
from horsies.schedule.model import Overlap, TaskSchedule
from horsies.schedule.patterns import from_data, to_data


class Unreadable(Exception):
    """A definition that somebody has written by hand, or a version of ours that is not this one."""


class Written(NamedTuple):
    """A schedule that was read: its arguments are plain JSON values, and the text that they came as."""

    schedule: TaskSchedule
    arguments: str


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


def write(schedule: TaskSchedule, arguments: bytes) -> str:
    """What is stored of a schedule; whether it is enabled, its row says."""
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


def read(name: str, text: str, *, enabled: bool = True) -> Written:
    """The schedule that a row holds; raises `Unreadable`."""
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
        raise Unreadable(error.message) from error
    except (msgspec.DecodeError, ValueError) as error:
        raise Unreadable(str(error)) from error
    return Written(schedule, bytes(found.arguments).decode())


def config_hash(schedule: TaskSchedule) -> str:
    """What tells whether a schedule's slots are others than before: its pattern and its time zone."""
    said = msgspec.json.encode([to_data(schedule.pattern), schedule.timezone], order="sorted")
    return hashlib.sha256(said).hexdigest()
