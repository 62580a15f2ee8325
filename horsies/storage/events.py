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
# Of the past, so much is read at a time at first, and twice as much after a stretch in which little happened.
STRETCH = timedelta(minutes=1)


class Wanted(NamedTuple):
    """Which events are meant; None means any. `name` is that of a task, a workflow or a schedule."""

    kinds: Sequence[str] | None = None
    queue: str | None = None
    name: str | None = None
    task: UUID | None = None


class Passage(NamedTuple):
    """Some events, and how far they reach: up to then there are no others."""

    events: list[Event]
    until: datetime | None  # None in the middle of a stretch


async def horizon(connection: Connection) -> datetime:
    """Until when everything that will ever have happened can be read, a fifth of a second ago as a rule."""
    row = await (await connection.execute(SQL["horizon"])).fetchone()
    assert row is not None
    return row[0]


async def read(
    connection: Connection, wanted: Wanted, since: datetime, until: datetime
) -> AsyncGenerator[Passage]:
    """What happened after `since` up to `until`, in order, some at a time; each stretch ends with how far it reaches."""
    stretch = STRETCH
    while since < until:
        end = since + min(stretch, until - since)
        page, count = await _page(connection, wanted, since, end, None), 0
        while len(page) == PAGE:
            yield Passage(page, None)
            count += PAGE
            page = await _page(connection, wanted, since, end, page[-1])
        yield Passage(page, end)
        since, stretch = end, STRETCH if count else 2 * stretch


async def _page(
    connection: Connection, wanted: Wanted, since: datetime, until: datetime, after: Event | None
) -> list[Event]:
    values = wanted._asdict() | {
        "since": since,
        "until": until,
        "after": None if after is None else after.at,
        "subject": None if after is None else after.subject,
        "kind": None if after is None else after.kind,
        "limit": PAGE,
    }
    # Planned each time, for these very moments: which days are read, and how, hangs on them.
    cursor = await connection.execute(SQL["events"], values, prepare=False)
    return [Event(*row) for row in await cursor.fetchall()]


async def position(connection: Connection, sink: str) -> datetime | None:
    """How far a sink has been served; None when it has never been."""
    row = await (await connection.execute(SQL["position"], {"sink": sink})).fetchone()
    return None if row is None else row[0]


async def move(connection: Connection, sink: str, to: datetime) -> None:
    """A sink has accepted everything up to then."""
    await connection.execute(SQL["move"], {"sink": sink, "position": to})
