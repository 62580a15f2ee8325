"""Count what ended, minute by minute, so that the dashboard and the metrics never count tasks themselves.

Each minute is counted once, by whoever has the turn, and added to totals that only grow.
"""

from __future__ import annotations

from horsies.storage.database import Connection
from horsies.storage.statements import statements

SQL = statements("rollups")

# So many minutes are counted in one statement.
MOST_MINUTES = 60


async def roll(connection: Connection) -> int:
    """Count the minutes that are over, and sound the queues; gives back how many minutes were new."""
    total, counted = 0, MOST_MINUTES
    await connection.execute(SQL["summarize"])
    while counted == MOST_MINUTES:
        counted = await _roll_once(connection)
        total += counted
    await connection.execute(SQL["sound"])
    await connection.execute(SQL["forget"])
    return total


async def _roll_once(connection: Connection) -> int:
    async with connection.transaction():
        turn = await (await connection.execute(SQL["turn"])).fetchone()
        if turn is None or not turn[0]:
            return 0
        row = await (await connection.execute(SQL["roll"])).fetchone()
    return 0 if row is None else int(row[0])
