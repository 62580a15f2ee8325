"""What tasks say while they run: how far they are, and what they log. It is kept beside their rows, for people to read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import msgspec

from horsies.storage.database import Connection
from horsies.storage.statements import statements
from horsies.storage.tasks import as_json

SQL = statements("notes")

# So many lines of each run are kept, the last ones.
LINES_KEPT = 200


class TaskProgress(NamedTuple):
    """How far a task is, as it last said."""

    done: float
    total: float | None
    message: str
    at: datetime


class TaskLogLine(NamedTuple):
    """A line that a task has logged. They are numbered from 0 on in each run: a gap tells how many are not kept."""

    attempt: int
    seq: int
    at: datetime
    level: str
    logger: str
    message: str


class Report(msgspec.Struct, frozen=True):
    """A task's word on how far it is, about to be stored."""

    task_id: str
    claim_seq: int
    done: float
    total: float | None
    message: str
    at: datetime


class Line(msgspec.Struct, frozen=True):
    """A line that is about to be stored."""

    task_id: str
    claim_seq: int
    seq: int
    attempt: int
    at: datetime
    level: str
    logger: str
    message: str


async def write(connection: Connection, reports: Sequence[Report], lines: Sequence[Line]) -> None:
    """Store what was said since the last time; at most one report of each task."""
    if reports:
        await connection.execute(SQL["report"], {"reports": as_json(reports)})
    if lines:
        await connection.execute(SQL["log"], {"lines": as_json(lines), "keep": LINES_KEPT})


async def progress(connection: Connection, task_id: UUID) -> TaskProgress | None:
    """What a task has last said of how far it is, None if it never did."""
    row = await (await connection.execute(SQL["progress"], {"id": task_id})).fetchone()
    return None if row is None else TaskProgress._make(row)


async def log_lines(connection: Connection, task_id: UUID) -> list[TaskLogLine]:
    """What a task has logged, in all of its runs, first line first."""
    rows = await (await connection.execute(SQL["lines"], {"id": task_id})).fetchall()
    return [TaskLogLine._make(row) for row in rows]
