"""Derive events from the rows of tasks, attempts, workflows and schedules.

No event is stored, so events cost nothing to keep and none is lost in a crash. A reader that continues where it stopped sees
each event once: it never reads past the time up to which every transaction has ended.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from psycopg.rows import kwargs_row

from horsies.codec.results import error_of
from horsies.db.connection import Connection
from horsies.db.sql import statements
from horsies.events import Event

SQL = statements("events")

# The number of events that are held in memory at a time.
BATCH = 1_000
# The smallest difference between two times.
TICK = timedelta(microseconds=1)


class EventFilter(NamedTuple):
    """The events to read; None means any. `name` is that of a task, a workflow or a schedule."""

    kinds: Sequence[str] | None = None
    queue: str | None = None
    name: str | None = None
    task: UUID | None = None
    key: str | None = None


class EventBatch(NamedTuple):
    """Some events, and the time up to which there are no others."""

    events: list[Event]
    until: datetime


async def horizon(connection: Connection) -> datetime:
    """Return the time up to which no event can be added any more, as a rule a fifth of a second ago."""
    row = await (await connection.execute(SQL["horizon"])).fetchone()
    assert row is not None
    return row[0]


async def read(
    connection: Connection, wanted: EventFilter, since: datetime, until: datetime
) -> AsyncGenerator[EventBatch]:
    """Read the events after `since` up to `until` in order, a batch at a time. The connection must keep its session.

    The server keeps the rows that are not fetched yet outside of any transaction, so that a slow consumer blocks nobody.
    """
    values = wanted._asdict() | {"since": since, "until": until}
    async with connection.cursor("horsies_events", row_factory=kwargs_row(_event), withhold=True) as cursor:
        await cursor.execute(SQL["events"], values)
        while len(batch := await cursor.fetchmany(BATCH)) == BATCH:
            yield EventBatch(
                batch, batch[-1].at - TICK
            )  # there may be more events at the time of the last one
        yield EventBatch(batch, until)


def _event(*, message: str | None, stored: str | None, **columns: Any) -> Event:
    """Make an event of a row. The message of the stored error, if there is one, replaces the recorded reason."""
    stored_message, _ = error_of(stored)
    return Event(message=message if stored_message is None else stored_message, **columns)


async def position(connection: Connection, sink: str) -> datetime | None:
    """Return the time up to which a sink has accepted all events, None if it has never received any."""
    row = await (await connection.execute(SQL["position"], {"sink": sink})).fetchone()
    return None if row is None else row[0]


async def save_position(connection: Connection, sink: str, to: datetime) -> None:
    """Store that a sink has accepted all events up to a time."""
    await connection.execute(SQL["save_position"], {"sink": sink, "position": to})
