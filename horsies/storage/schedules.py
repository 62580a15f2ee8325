"""Schedules in the database: which are due, what has come of a slot, and what people say of them.

Each function is one statement, named as in `sql/schedules.sql`. Moments are in UTC on their way in and out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from horsies.storage.database import Connection
from horsies.storage.statements import statements
from horsies.storage.tasks import as_json

SQL = statements("schedules")
CHANNEL = "horsies_schedules"


class Turn(NamedTuple):
    """A schedule whose slot has come, in our hands until the end of the transaction."""

    name: str
    source: str
    definition: str
    slot: datetime
    last_task_id: UUID | None
    now: datetime


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """Where a schedule stands after a slot, and what was made of that."""

    schedule_name: str
    slot: datetime
    next_run_at: datetime
    last_run_at: datetime | None = None
    last_task_id: UUID | None = None
    runs: int = 0
    skips: int = 0
    error: str | None = None


class Known(NamedTuple):
    """A schedule as it is written down, at a moment of the database's clock."""

    name: str
    source: str
    definition: str
    config_hash: str
    enabled: bool
    is_paused: bool
    next_run_at: datetime | None
    now: datetime


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What the code says of a schedule."""

    schedule_name: str
    definition: str
    config_hash: str
    enabled: bool
    next_run_at: datetime | None


class Listed(NamedTuple):
    """A schedule with its record."""

    name: str
    source: str
    definition: str
    enabled: bool
    paused_at: datetime | None
    next_run_at: datetime | None
    last_run_at: datetime | None
    last_task_id: UUID | None
    run_count: int
    skip_count: int
    error: str | None
    error_at: datetime | None


async def prepare_session(connection: Connection) -> None:
    await connection.execute(SQL["session"])


async def pause_until_due(connection: Connection, aside: Iterable[str]) -> float | None:
    """Seconds until a slot, leaving out some schedules; None when there is none at all."""
    row = await (await connection.execute(SQL["pause_until_due"], {"aside": list(aside)})).fetchone()
    return None if row is None else row[0]


async def due(connection: Connection, aside: Iterable[str], only: str | None, limit: int) -> list[Turn]:
    """Take schedules that are due, leaving out some, or one of them only."""
    values = {"aside": list(aside), "only": only, "limit": limit}
    return [Turn._make(_in_utc(row)) for row in await _fetch(connection, "due", values)]


async def move_on(connection: Connection, moved: Sequence[Moved]) -> int:
    """Move schedules on; tells how many were where they were thought to be."""
    return (await connection.execute(SQL["move_on"], {"moved": as_json(moved)})).rowcount


async def date_runs(connection: Connection, runs: Iterable[tuple[UUID, datetime]]) -> None:
    rows = [{"id": task_id, "slot": slot} for task_id, slot in runs]
    await connection.execute(SQL["date_runs"], {"runs": as_json(rows)})


async def complain(connection: Connection, name: str, error: str) -> None:
    await connection.execute(SQL["complain"], {"name": name, "error": error})


async def living(connection: Connection, ids: Iterable[UUID]) -> set[UUID]:
    return {row[0] for row in await _fetch(connection, "living", {"ids": list(ids)})}


async def lock(connection: Connection) -> None:
    await connection.execute(SQL["lock"])


async def now(connection: Connection) -> datetime:
    """What the database's clock says."""
    return _in_utc((await _fetch(connection, "now", {}))[0])[0]


async def known(connection: Connection, names: Iterable[str]) -> list[Known]:
    rows = await _fetch(connection, "known", {"names": list(names)})
    return [Known._make(_in_utc(row)) for row in rows]


async def write_down(connection: Connection, said: Sequence[Said]) -> None:
    await connection.execute(SQL["write_down"], {"rows": as_json(said)})


async def create(connection: Connection, said: Said) -> bool:
    """Whether there was no schedule of this name."""
    values = {
        "name": said.schedule_name,
        "definition": said.definition,
        "config_hash": said.config_hash,
        "enabled": said.enabled,
        "next_run_at": said.next_run_at,
    }
    return bool(await _fetch(connection, "create", values))


async def hold(connection: Connection, name: str) -> Known | None:
    rows = await _fetch(connection, "hold", {"name": name})
    return Known._make(_in_utc(rows[0])) if rows else None


async def change(connection: Connection, said: Said) -> None:
    values = {
        "name": said.schedule_name,
        "definition": said.definition,
        "config_hash": said.config_hash,
        "enabled": said.enabled,
        "next_run_at": said.next_run_at,
    }
    await connection.execute(SQL["change"], values)


async def pause(connection: Connection, name: str) -> bool:
    return bool(await _fetch(connection, "pause", {"name": name}))


async def resume(connection: Connection, name: str, next_run_at: datetime | None) -> None:
    await connection.execute(SQL["resume"], {"name": name, "next_run_at": next_run_at})


async def ran(connection: Connection, name: str, task_id: UUID) -> None:
    await connection.execute(SQL["ran"], {"name": name, "task_id": task_id})


async def delete(connection: Connection, name: str) -> bool:
    return bool(await _fetch(connection, "delete", {"name": name}))


async def listing(
    connection: Connection,
    name: str | None = None,
    *,
    q: str | None = None,
    after: str = "",
    limit: int | None = None,
) -> list[Listed]:
    """One of them, or those after a name whose names have `q` in them, so many or all."""
    rows = await _fetch(connection, "list", {"name": name, "q": q, "after": after, "limit": limit})
    return [Listed._make(_in_utc(row)) for row in rows]


async def _fetch(connection: Connection, verb: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
    return await (await connection.execute(SQL[verb], values)).fetchall()


def _in_utc(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same moments; in a session's own zone, an hour later would be another wall clock's hour."""
    return tuple(value.astimezone(UTC) if isinstance(value, datetime) else value for value in row)
