"""The hot path of workflows: end tasks, move their workflows on, and claim what comes next, in two round trips.

It is what `settle` and `exchange` do, in one transaction, with as few messages as can be: what must be known before
anything is decided comes in the first, what was decided goes out with the second. Only a workflow that ends, or something
out of the ordinary, takes more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from horsies.storage import tasks
from horsies.storage.batch import Batch, Rows, prepare, prepared_form
from horsies.storage.database import Connection
from horsies.storage.tasks import Ask, Claimed, Completed, as_json
from horsies.storage.workflows import SQL, Loaded, feed, follow, judged, move, parents
from horsies.workflow.advance import COMPLETED, Changes, Ended, Event, advance

_TYPES = {"ids": "uuid[]", **dict.fromkeys(("completed", "nodes", "flows", "verdicts"), "text")}
PREPARED = {
    name: prepared_form(f"workflow_{name}", SQL[name], _TYPES)
    for name in ("lock", "complete_and_load", "flows", "write", "facts", "conclude")
} | {"exchange": prepared_form("plain_exchange", tasks.SQL["exchange"], tasks.EXCHANGE_TYPES)}


class Stepped(NamedTuple):
    """How many tasks were ended, which are claimed, and in how many seconds the first new timer ends."""

    ended: int
    claimed: list[Claimed]
    timer: float | None


async def step(
    connection: Connection, completed: Sequence[Completed], others: Sequence[Completed], ask: Ask
) -> Stepped:
    """End tasks of workflows, and others, and claim; over a connection that keeps prepared statements."""
    await prepare(connection, PREPARED)
    try:
        return await _step(connection, completed, others, ask)
    except BaseException:
        if not connection.closed:
            await connection.rollback()
        raise


async def _step(
    connection: Connection, completed: Sequence[Completed], others: Sequence[Completed], ask: Ask
) -> Stepped:
    batch = Batch(connection)
    events, loaded = await _open(batch, completed)
    changes = advance(loaded.flows, loaded.nodes, events)
    batch.add(_execute("write"), {"nodes": as_json(changes.nodes), "flows": as_json(changes.flows)})
    timers = await _go_on(batch, loaded, changes)
    starts_fed = any(change.starts and loaded.nodes[change.ref].is_fed for change in changes.nodes)
    if tasks.is_plain(ask):
        batch.add(_execute("exchange"), tasks.exchange_values(others, ask))
        if not starts_fed:
            batch.add(b"COMMIT")
        answers = await batch.run()
        timers += _timer(answers[0])
        count, claimed = tasks.read_exchange(next(rows for rows in answers[::-1] if rows))
    else:
        timers += [timer for rows in await batch.run() for timer in _timer(rows)]
        count, claimed = await tasks.exchange(connection, others, ask)
    claimed = await feed(connection, claimed)
    await connection.commit()
    return Stepped(len(events) + count, claimed, min(timers, default=None))


async def _open(batch: Batch, completed: Sequence[Completed]) -> tuple[list[Event], Loaded]:
    """Wait for our turn, end what returned, and look at what waits for it."""
    ids = {"ids": [UUID(each) for each in {task.node[0] for task in completed if task.node is not None}]}
    batch.add(b"BEGIN")
    batch.add(_execute("lock"), ids)
    batch.add(_execute("complete_and_load"), {"completed": tasks.outcomes(completed)})
    batch.add(_execute("flows"), ids)
    _, _, rows, flows = await batch.run()
    events: list[Event] = [Ended(row[0], row[1], COMPLETED) for row in rows if row[-1]]
    return events, Loaded.of(flows, (row[:-1] for row in rows))


async def _go_on(batch: Batch, loaded: Loaded, changes: Changes) -> list[float]:
    """What a step leads to beyond itself; mostly nothing."""
    timers: list[float] = []
    events: list[Event] = []
    if changes.leads_on:
        timers += [timer for rows in await batch.run() for timer in _timer(rows)]
        events += await follow(batch.connection, changes)
    if changes.over:
        batch.add(_execute("facts"), {"ids": [UUID(flow_id) for flow_id in changes.over]})
        *written, facts = await batch.run()
        timers += [timer for rows in written for timer in _timer(rows)]
        verdicts = judged(facts)
        batch.add(_execute("conclude"), {"verdicts": as_json(verdicts)})
        events += parents(loaded.flows, verdicts)
    if events:
        await batch.run()
        timer = await move(batch.connection, events)
        timers += [] if timer is None else [timer]
    return timers


def _execute(name: str) -> bytes:
    return PREPARED[name][1]


def _timer(rows: Rows) -> list[float]:
    """The seconds that `write` has told, if these are its rows and there is a timer."""
    return [row[0] for row in rows if len(row) == 1 and isinstance(row[0], float)]
