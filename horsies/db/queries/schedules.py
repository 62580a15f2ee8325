"""Schedules in the database: lock those that are due, advance them to their next slot, and edit them.

Each function is one statement, named as in `schedules.sql`. All times are in UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from psycopg import AsyncCursor
from psycopg.rows import class_row

from horsies.db.connection import Connection
from horsies.db.queries.tasks import as_json
from horsies.db.sql import statements
from horsies.durations import in_zone

SQL = statements("schedules")
CHANNEL = "horsies_schedules"


class ScheduleRow(NamedTuple):
    """A stored schedule, and the time on the database's clock at which it was read."""

    name: str
    source: str
    definition: str
    config_hash: str
    enabled: bool
    paused_at: datetime | None
    next_run_at: datetime | None
    last_run_at: datetime | None
    last_task_id: UUID | None
    run_count: int
    skip_count: int
    error: str | None
    error_at: datetime | None
    now: datetime

    @property
    def slot(self) -> datetime:
        """Return the slot of a schedule that is due."""
        assert self.next_run_at is not None
        return self.next_run_at


class NewSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of a schedule to insert or update."""

    schedule_name: str
    definition: str
    config_hash: str
    enabled: bool
    next_run_at: datetime | None


class Advance(msgspec.Struct, frozen=True, kw_only=True):
    """The next slot of a schedule, and the outcome of the slot that was due."""

    schedule_name: str
    slot: datetime
    next_run_at: datetime
    last_run_at: datetime | None = None
    last_task_id: UUID | None = None
    runs: int = 0
    skips: int = 0
    error: str | None = None


async def prepare_session(connection: Connection) -> None:
    """Set the timeouts of a scheduler's session."""
    await connection.execute(SQL["session"])


async def seconds_until_due(connection: Connection, exclude: Iterable[str]) -> float | None:
    """Return the seconds until the next slot, without the excluded schedules; None if there is no slot."""
    row = await (await connection.execute(SQL["seconds_until_due"], {"except": list(exclude)})).fetchone()
    return None if row is None else row[0]


async def lock_due(
    connection: Connection, exclude: Iterable[str], only: str | None, limit: int
) -> list[ScheduleRow]:
    """Lock and return schedules that are due, without the excluded ones, or only the one of this name."""
    return await _rows(connection, "lock_due", {"except": list(exclude), "only": only, "limit": limit})


async def advance(connection: Connection, advances: Sequence[Advance]) -> int:
    """Advance schedules; return how many rows still had the expected `next_run_at`."""
    return (await connection.execute(SQL["advance"], {"advances": as_json(advances)})).rowcount


async def set_sent_at(connection: Connection, runs: Iterable[tuple[UUID, datetime]]) -> None:
    """Set the `sent_at` of runs to their slots."""
    rows = [{"id": task_id, "slot": slot} for task_id, slot in runs]
    await connection.execute(SQL["set_sent_at"], {"runs": as_json(rows)})


async def record_error(connection: Connection, name: str, error: str) -> None:
    """Record why a schedule cannot be run."""
    await connection.execute(SQL["record_error"], {"name": name, "error": error})


async def unfinished(connection: Connection, ids: Iterable[UUID]) -> set[UUID]:
    """Return which of these tasks have not ended."""
    cursor = await connection.execute(SQL["unfinished"], {"ids": list(ids)})
    return {row[0] for row in await cursor.fetchall()}


async def lock(connection: Connection) -> None:
    """Wait until no other scheduler writes its schedules."""
    await connection.execute(SQL["lock"])


async def now(connection: Connection) -> datetime:
    """Return the time on the database's clock."""
    row = await (await connection.execute(SQL["now"])).fetchone()
    assert row is not None
    return in_zone(row[0], UTC)


async def find(connection: Connection, names: Iterable[str]) -> list[ScheduleRow]:
    """Return the schedules from code, and those with these names."""
    return await _rows(connection, "find", {"names": list(names)})


async def upsert(connection: Connection, rows: Sequence[NewSchedule]) -> None:
    """Insert or update schedules from code."""
    await connection.execute(SQL["upsert"], {"rows": as_json(rows)})


async def create(connection: Connection, row: NewSchedule) -> bool:
    """Insert a schedule made at run time; return False if the name is taken."""
    return (await connection.execute(SQL["create"], msgspec.structs.asdict(row))).rowcount > 0


async def lock_one(connection: Connection, name: str) -> ScheduleRow | None:
    """Lock and return a schedule; None if there is none of this name."""
    return next(iter(await _rows(connection, "lock_one", {"name": name})), None)


async def update(connection: Connection, row: NewSchedule) -> None:
    """Replace the definition and the next slot of a schedule."""
    await connection.execute(SQL["update"], msgspec.structs.asdict(row))


async def pause(connection: Connection, name: str) -> bool:
    """Pause a schedule; return False if there is none of this name."""
    return (await connection.execute(SQL["pause"], {"name": name})).rowcount > 0


async def resume(connection: Connection, name: str, next_run_at: datetime | None) -> None:
    """Resume a schedule at a slot; None for a disabled one."""
    await connection.execute(SQL["resume"], {"name": name, "next_run_at": next_run_at})


async def record_run(connection: Connection, name: str, task_id: UUID) -> None:
    """Record a manual run."""
    await connection.execute(SQL["record_run"], {"name": name, "task_id": task_id})


async def delete(connection: Connection, name: str) -> bool:
    """Delete a schedule; return False if there is none of this name."""
    return (await connection.execute(SQL["delete"], {"name": name})).rowcount > 0


async def listing(
    connection: Connection,
    name: str | None = None,
    *,
    q: str | None = None,
    after: str = "",
    limit: int | None = None,
) -> list[ScheduleRow]:
    """Return the schedule of a name, or a page of those after a name that have `q` in their names."""
    return await _rows(connection, "list", {"name": name, "q": q, "after": after, "limit": limit})


async def _rows(connection: Connection, verb: str, values: dict[str, Any]) -> list[ScheduleRow]:
    async with connection.cursor(row_factory=_schedule_row) as cursor:
        return await (await cursor.execute(SQL[verb], values)).fetchall()


def _schedule_row(cursor: AsyncCursor[Any]) -> Callable[[Sequence[Any]], ScheduleRow]:
    """Make rows with all times in UTC: adding an hour to a local time can give another hour of the wall clock."""
    make = class_row(ScheduleRow)(cursor)
    return lambda values: make(
        [in_zone(value, UTC) if isinstance(value, datetime) else value for value in values]
    )
