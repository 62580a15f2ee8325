"""Let time pass for what waits, and for nothing else: no clock is changed.

Delays, retries, expiry, schedules, and the sleeps, deadlines and patience of workflows are brought nearer in the database.
Code that asks for the time is told the real one, and a send with a delay after the journey waits for all of it.
"""

from __future__ import annotations

from datetime import timedelta

from horsies.portal import run_sync
from horsies.registry import TaskRegistry
from horsies.storage import testing
from horsies.testing.schedules import write_down


def travel(
    app: TaskRegistry,
    *,
    days: float = 0,
    hours: float = 0,
    minutes: float = 0,
    seconds: float = 0,
) -> None:
    """Bring whatever waits for its time so much nearer; `drain` runs what is due by then.

    >>> remind.schedule(7_200, "ann")
    >>> travel(app, hours=2)
    >>> [ran] = drain(app)
    """
    span = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    if span < timedelta(0):
        raise ValueError(f"travel was asked to go {-span} back; time passes forwards only")
    run_sync(_travel(app, span.total_seconds()))


async def _travel(app: TaskRegistry, seconds: float) -> None:
    await write_down(app)
    async with app.get_broker().connection() as connection:
        await testing.travel(connection, seconds)
