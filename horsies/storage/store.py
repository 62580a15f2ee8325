"""Storing new tasks, told once for every kind of connection.

`store` is a plan: it yields statements and is given their rows. Who carries it out decides whether that happens on our
own connection or the caller's, waiting or awaiting. Parameters are text, and so are the ids in the answers: drivers
differ in what they make of a uuid.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from horsies.storage.tasks import SQL, NewTask, Taken, as_texts, encode_rows

R = TypeVar("R")
Rows = list[tuple[Any, ...]]
Values = Mapping[str, str | None]
Plan = Generator[tuple[bytes, Values], Rows, R]
Fetch = Callable[[bytes, Values], Rows]
FetchAsync = Callable[[bytes, Values], Awaitable[Rows]]

ROWS_PER_STATEMENT = 1_000


class KeyTaken(Exception):
    """An idempotency key was used before for another call."""


class PayloadMismatch(Exception):
    """A task of this id exists, and it is another one."""


def carry_out(plan: Plan[R], fetch: Fetch) -> R:
    rows: Rows | None = None
    while True:
        try:
            sql, values = next(plan) if rows is None else plan.send(rows)
        except StopIteration as end:
            return end.value
        rows = fetch(sql, values)


async def carry_out_async(plan: Plan[R], fetch: FetchAsync) -> R:
    rows: Rows | None = None
    while True:
        try:
            sql, values = next(plan) if rows is None else plan.send(rows)
        except StopIteration as end:
            return end.value
        rows = await fetch(sql, values)


def store(rows: Sequence[NewTask]) -> Plan[list[UUID]]:
    """Store tasks; gives the id for each row, its own or that of the task that holds its key."""
    # In the order of their keys: two sends that want the same keys wait for each other one way round only.
    order = sorted(range(len(rows)), key=lambda place: rows[place].unique_key or "")
    ids = [row.id for row in rows]
    for first in range(0, len(rows), ROWS_PER_STATEMENT):
        places = order[first : first + ROWS_PER_STATEMENT]
        stored = yield from _store_some([rows[place] for place in places])
        for place, task_id in zip(places, stored, strict=True):
            ids[place] = task_id
    return ids


def store_and_wake(rows: Sequence[NewTask]) -> Plan[list[UUID]]:
    """The same in a transaction of the caller's, which may commit long after the insert."""
    ids = yield from store(rows)
    queues = sorted({row.queue_name for row in rows})
    yield SQL["wake"], {"queues": msgspec.json.encode(queues).decode()}
    return ids


def _store_some(rows: Sequence[NewTask]) -> Plan[list[UUID]]:
    if any(row.idempotency_key is not None for row in rows):
        answer = yield SQL["send_keyed"], {"rows": encode_rows(rows)}
    elif len(rows) == 1:
        answer = yield SQL["send_one"], as_texts(rows[0])
    else:
        answer = yield SQL["send"], {"rows": encode_rows(rows)}
    sent = {row[0] for row in answer}
    if len(sent) == len(rows):
        return [row.id for row in rows]
    missing = [row for row in rows if str(row.id) not in sent]
    found = yield SQL["taken"], {"rows": encode_rows(missing)}
    holders = {entry.id: entry for entry in map(Taken._make, found)}
    ids: list[UUID] = []
    for row in rows:
        holder = row.id if str(row.id) in sent else holder_of(row, holders[str(row.id)])
        # None: the task that held the unique key has ended in between
        ids += [holder] if holder is not None else (yield from _store_some([row]))
    return ids


def holder_of(row: NewTask, found: Taken) -> UUID | None:
    """The task that stands for a row that was not stored; None when it is gone again."""
    if row.idempotency_key is not None and found.key_task_id is not None:
        if found.key_sha != row.enqueue_sha:
            raise KeyTaken(
                f"idempotency key {row.idempotency_key!r} was used for another call; use a key of its own for each"
            )
        return UUID(found.key_task_id)
    if found.same_id is not None:
        if not found.is_same:
            raise PayloadMismatch(f"task {row.id} exists with another payload")
        return row.id
    return None if found.unique_task_id is None else UUID(found.unique_task_id)
