"""What the dashboard reads: each answer costs the same however many tasks there are.

Lists walk an index from a key and look at so many rows at most; what is counted was counted minute by minute before. Plain
SELECTs, over connections that cannot write and give up after a while: nobody waits for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit
from uuid import UUID

from horsies.config import PostgresConfig
from horsies.storage.database import BY_INDEX, Connection, Database
from horsies.storage.retention import KEYS
from horsies.storage.retention import SQL as RETENTION
from horsies.storage.sights import (
    Act,
    Attempt,
    Busy,
    Child,
    Depth,
    Flow,
    FlowDetail,
    Node,
    Place,
    Queue,
    Slot,
    TaskDetail,
    TaskLine,
    TaskPage,
    Total,
    Wanted,
    Worker,
)
from horsies.storage.statements import statements

SQL = statements("dashboard")
T = TypeVar("T", bound=tuple[Any, ...])

CONNECTIONS = 4
READ_SECONDS = 5
# So many tasks of a queue are counted; of more, the last sounding tells.
MOST_COUNTED = 10_000
# So many tasks a page looks at to find those that fit.
MOST_LOOKED_AT = 20_000
# So many characters of an argument or a result a page shows unasked.
SHOWN = 20_000
MOST_NODES = 2_000


def viewing(config: PostgresConfig) -> Database:
    """A few connections that can only read, and give up by themselves."""
    settings = f"-c statement_timeout={READ_SECONDS}s -c default_transaction_read_only=on -c jit=off"
    return _few(config, "horsies-web", settings)


def acting(config: PostgresConfig) -> Database:
    """A few connections for what viewers do."""
    return _few(config, "horsies-web-actions", f"-c statement_timeout={2 * READ_SECONDS}s")


def _few(config: PostgresConfig, name: str, settings: str) -> Database:
    """Direct ones: a pooler would not take settings. What the URL sets itself, such as a search path, stays."""
    url = urlsplit(config.session_conninfo)
    query = dict(parse_qsl(url.query))
    query["options"] = f"{query.get('options', '')} {settings}".strip()
    few = PostgresConfig(
        database_url=url._replace(query=urlencode(query, quote_via=quote)).geturl(),
        pool_size=CONNECTIONS,
        max_overflow=0,
        pool_timeout=READ_SECONDS,
    )
    return Database(few, name, BY_INDEX)


async def pulse(connection: Connection) -> str:
    """A text that stays the same while nothing changes."""
    row = await (await connection.execute(SQL["pulse"])).fetchone()
    return "" if row is None else str(row[0])


async def recent(connection: Connection, since: datetime, until: datetime) -> list[Slot]:
    return await _all(connection, Slot, "recent", {"since": since, "until": until})


async def minutes(connection: Connection, since: datetime) -> list[Slot]:
    return await _all(connection, Slot, "minutes", {"since": since})


async def depths(connection: Connection, since: datetime) -> list[Depth]:
    return await _all(connection, Depth, "depths", {"since": since})


async def busiest(connection: Connection, since: datetime, limit: int) -> list[Busy]:
    return await _all(connection, Busy, "busiest", {"since": since, "limit": limit})


async def queues(connection: Connection) -> list[Queue]:
    return await _all(connection, Queue, "queues", {"most": MOST_COUNTED})


async def workers(connection: Connection) -> list[Worker]:
    return await _all(connection, Worker, "workers", {})


async def children(connection: Connection) -> list[Child]:
    return await _all(connection, Child, "children", {})


async def codes(connection: Connection) -> list[tuple[str, int]]:
    return [(row[0], row[1]) for row in await _rows(connection, "codes", {})]


async def tasks(
    connection: Connection, wanted: Wanted, place: Place, since: tuple[UUID, datetime], limit: int
) -> TaskPage:
    """A page of tasks from a place on, none sent (or failed) before `since`, given as an id and as a moment."""
    listing = _listing(wanted.status)
    after, moment = since
    values = {**wanted._asdict(), **place._asdict(), "after": after, "since": moment, "most": MOST_LOOKED_AT}
    found = await _all(connection, TaskLine, listing, values | {"limit": limit + 1})
    if len(found) > limit:
        return TaskPage(found[:limit], _after(found[limit - 1]), None)
    for end in await _rows(connection, f"{listing}_end", values):
        return TaskPage(found, Place(end[0], end[1].isoformat()), end[1])
    return TaskPage(found, None, None)


def _listing(status: str | None) -> str:
    if status == "FAILED":
        return "failed_tasks"
    return "live_tasks" if status in ("PENDING", "CLAIMED", "RUNNING") else "tasks"


def _after(task: TaskLine) -> Place:
    return Place(UUID(task.task_id), "infinity" if task.terminal_at is None else task.terminal_at.isoformat())


async def task(connection: Connection, task_id: UUID) -> tuple[TaskLine, TaskDetail] | None:
    width = len(TaskLine._fields)
    for row in await _rows(connection, "task", {"id": task_id, "shown": SHOWN}):
        return TaskLine._make(row[:width]), TaskDetail._make(row[width:])
    return None


async def attempts(connection: Connection, task_id: UUID) -> list[Attempt]:
    """The attempts that were followed by another; the last is the task itself."""
    return await _all(connection, Attempt, "attempts", {"id": task_id})


async def payload(connection: Connection, task_id: UUID, part: str) -> str | None:
    """The `args`, `kwargs` or `result` of a task, whole."""
    for row in await _rows(connection, "payload", {"id": task_id, "part": part}):
        return row[0]
    return None


async def workflows(
    connection: Connection, values: Mapping[str, Any], before: UUID, limit: int
) -> list[Flow]:
    bounds = {"before": before, "most": MOST_LOOKED_AT, "limit": limit}
    return await _all(connection, Flow, "workflows", {**values, **bounds})


async def workflow(connection: Connection, workflow_id: UUID) -> tuple[FlowDetail, list[Node]] | None:
    for row in await _rows(connection, "workflow", {"id": workflow_id}):
        nodes = await _all(connection, Node, "nodes", {"id": workflow_id, "limit": MOST_NODES})
        return FlowDetail._make(row), nodes
    return None


async def actions(connection: Connection, limit: int) -> list[Act]:
    return await _all(connection, Act, "actions", {"limit": limit})


async def totals(connection: Connection) -> list[Total]:
    return await _all(connection, Total, "totals", {})


async def count_finished(connection: Connection, ids: Sequence[UUID] | None, wanted: Wanted) -> int:
    """How many finished tasks a deletion would find."""
    rows = await _rows(connection, "count_finished", {"ids": ids, **wanted._asdict()})
    return int(rows[0][0])


async def count_live(connection: Connection, ids: Sequence[UUID] | None, wanted: Wanted) -> int:
    """How many tasks a cancel would find."""
    rows = await _rows(connection, "count_live", {"ids": ids, **wanted._asdict()})
    return int(rows[0][0])


async def delete_finished(
    connection: Connection, ids: Sequence[UUID] | None, wanted: Wanted, batch: int
) -> int:
    """Delete finished tasks with all that is kept with them, as many as are found at once, in batches; how many."""
    keys = await _rows(connection, "finished", {"ids": ids, **wanted._asdict(), "most": KEYS})
    deleted = 0
    for start in range(0, len(keys), batch):
        found, ended = zip(*keys[start : start + batch], strict=True)
        cursor = await connection.execute(RETENTION["delete"], {"ids": list(found), "ended": list(ended)})
        deleted += cursor.rowcount
    return deleted


async def resend(connection: Connection, task_id: UUID, new_id: UUID, kwargs: str) -> str | None:
    """Send a task like another one with these arguments; its id, None when there is no such task."""
    rows = await _rows(connection, "resend", {"id": task_id, "new_id": new_id, "kwargs": kwargs})
    return rows[0][0] if rows else None


async def _all(connection: Connection, kind: type[T], verb: str, values: Mapping[str, Any]) -> list[T]:
    make: Any = kind
    return [make._make(row) for row in await _rows(connection, verb, values)]


async def _rows(connection: Connection, verb: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    return await (await connection.execute(SQL[verb], values)).fetchall()
