"""Write down the schedules that the code has, when a scheduler starts.

A new one begins with its next slot from now. One whose pattern or time zone has changed does, too, and that is logged;
everything else about a schedule can change without moving its slots. One that is not in the code any more stays as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime

from horsies.errors import ConfigurationError, ErrorCode, HorsiesError, ValidationReport
from horsies.schedule.definition import config_hash, write
from horsies.schedule.model import TaskSchedule
from horsies.schedule.slots import next_run
from horsies.scheduler.targets import Starters
from horsies.storage import schedules
from horsies.storage.database import Connection
from horsies.storage.schedules import Known, Said

logger = logging.getLogger("horsies.scheduler")


async def write_down(connection: Connection, starters: Starters, given: Iterable[TaskSchedule]) -> None:
    """Bring the rows in line with the code; raises when one of the names is taken by a schedule made at run time."""
    ours = {schedule.name: schedule for schedule in given}
    async with connection.transaction():
        await schedules.lock(connection)
        known = {row.name: row for row in await schedules.known(connection, ours)}
        _refuse_taken(row for name, row in known.items() if name in ours and row.source != "code")
        now = await schedules.now(connection)
        said = [
            statement(schedule, known.get(schedule.name), starters, now)
            for schedule in ours.values()
            if schedule.enabled or schedule.name in known
        ]
        said = [row for row in said if not _is_known(row, known.get(row.schedule_name))]
        if said:
            await schedules.write_down(connection, said)
    _tell(known, ours)


def statement(schedule: TaskSchedule, known: Known | None, starters: Starters, now: datetime) -> Said:
    """What is to be written down of a schedule. Slots stay where they are unless the pattern or the zone is another."""
    new_hash = config_hash(schedule)
    runs = schedule.enabled and not (known is not None and known.is_paused)
    next_run_at = None
    if known is not None and known.config_hash == new_hash and runs:
        next_run_at = known.next_run_at
    if next_run_at is None and runs:
        next_run_at = next_run(schedule.pattern, schedule.timezone, now)
    return Said(
        schedule_name=schedule.name,
        definition=write(schedule, starters.of(schedule).arguments(schedule)),
        config_hash=new_hash,
        enabled=schedule.enabled,
        next_run_at=next_run_at,
    )


def _is_known(said: Said, known: Known | None) -> bool:
    return known is not None and (said.definition, said.config_hash, said.enabled, said.next_run_at) == (
        known.definition,
        known.config_hash,
        known.enabled,
        known.next_run_at,
    )


def _refuse_taken(taken: Iterable[Known]) -> None:
    report = ValidationReport("schedules")
    for row in taken:
        error: HorsiesError = ConfigurationError(
            f"schedule {row.name!r} is in the code, and one of that name was made at run time",
            code=ErrorCode.CONFIG_INVALID_SCHEDULE,
            help_text=f"give it another name, or run `horsies schedules delete {row.name!r}`",
        )
        report.add(error)
    report.raise_if_any()


def _tell(known: Mapping[str, Known], ours: Mapping[str, TaskSchedule]) -> None:
    for name, row in known.items():
        if name not in ours:
            logger.warning("schedule %r is not in the code any more: it is kept, and not run", name)
        elif row.config_hash != config_hash(ours[name]):
            logger.warning(
                "schedule %r has another pattern or time zone: its slots begin anew from now", name
            )
