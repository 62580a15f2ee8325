"""Read what happened from what the rows say.

No event is written anywhere, so none costs anything to keep, and none is lost in a crash. Whoever reads on from where it
stopped sees each event once: a moment is only passed when no transaction can add to it any more.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from horsies.events import Event
from horsies.storage.database import Connection
from horsies.storage.statements import statements

SQL = statements("events")

# So many events are held at a time.
PAGE = 1_000
# The least that two moments differ by.
TICK = timedelta(microseconds=1)


class Wanted(NamedTuple):
    """Which events are meant; None means any. `name` is that of a task, a workflow or a schedule."""

    kinds: Sequence[str] | None = None
    queue: str | None = None
    name: str | None = None
    task: UUID | None = None


class Passage(NamedTuple):
    """Some events, and how far they reach: up to then, there are no others."""

    events: list[Event]
    until: datetime


async def horizon(connection: Connection) -> datetime:
    """Until when everything that will ever have happened can be read, a fifth of a second ago as a rule."""
    row = await (await connection.execute(SQL["horizon"])).fetchone()
    assert row is not None
    return row[0]


async def read(
    connection: Connection, wanted: Wanted, since: datetime, until: datetime
) -> AsyncGenerator[Passage]:
    """What happened after `since` up to `until`, in order, some at a time; the connection must keep its session.

    The server keeps what is not fetched yet, outside of any transaction: whoever passes events on may take its time.
    """
    values = wanted._asdict() | {"since": since, "until": until}
    async with connection.cursor("horsies_events", withhold=True) as cursor:
        await cursor.execute(SQL["events"], values)
        while len(page := [Event(*row) for row in await cursor.fetchmany(PAGE)]) == PAGE:
            yield Passage(page, page[-1].at - TICK)  # at that very moment there may be more
        yield Passage(page, until)


async def position(connection: Connection, sink: str) -> datetime | None:
    """How far a sink has been served; None when it has never been."""
    row = await (await connection.execute(SQL["position"], {"sink": sink})).fetchone()
    return None if row is None else row[0]


async def move(connection: Connection, sink: str, to: datetime) -> None:
    """A sink has accepted everything up to then."""
    await connection.execute(SQL["move"], {"sink": sink, "position": to})
