"""Insert new tasks over any kind of connection.

`insert_tasks` is a plan: a generator that yields statements and receives their rows. The caller decides whether the plan runs
on our own connection or the user's, sync or async. Parameters and ids are text, because drivers differ in how they represent a
uuid. Large batches of one task use COPY, so that the server stores the first rows while the rest is still being encoded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from horsies.db.connection import Connection
from horsies.db.queries.tasks import SQL, NewTask, Taken, as_json, as_texts
from horsies.keys import is_keyed

R = TypeVar("R")
Rows = list[tuple[Any, ...]]
Values = Mapping[str, str | None]
Plan = Generator[tuple[bytes, Values], Rows, R]
Fetch = Callable[[bytes, Values], Rows]
FetchAsync = Callable[[bytes, Values], Awaitable[Rows]]

ROWS_PER_STATEMENT = 1_000


class KeyTaken(Exception):
    """The idempotency key was used before for another call."""


class PayloadMismatch(Exception):
    """A task with this id exists, and its payload is different."""


def run_plan(plan: Plan[R], fetch: Fetch) -> R:
    """Run each statement of a plan with `fetch` and return the plan's result."""
    rows: Rows | None = None
    while True:
        try:
            sql, values = next(plan) if rows is None else plan.send(rows)
        except StopIteration as end:
            return end.value
        rows = fetch(sql, values)


async def run_plan_async(plan: Plan[R], fetch: FetchAsync) -> R:
    """Run each statement of a plan with an async `fetch` and return the plan's result."""
    rows: Rows | None = None
    while True:
        try:
            sql, values = next(plan) if rows is None else plan.send(rows)
        except StopIteration as end:
            return end.value
        rows = await fetch(sql, values)


def fetch_on(connection: Connection) -> FetchAsync:
    """Return a function that runs a statement of a plan on one of our own connections."""

    async def fetch(sql: bytes, values: Values) -> Rows:
        return await (await connection.execute(sql, values)).fetchall()

    return fetch


def insert_tasks(rows: Sequence[NewTask]) -> Plan[list[UUID]]:
    """Insert tasks; return for each row its own id, or the id of the task that already holds its key."""
    # Sorted by unique key, so that two sends with the same keys cannot deadlock.
    order = sorted(range(len(rows)), key=lambda position: rows[position].unique_key or "")
    ids = [row.id for row in rows]
    for first in range(0, len(rows), ROWS_PER_STATEMENT):
        positions = order[first : first + ROWS_PER_STATEMENT]
        for insert, is_debounced in ((_insert_batch, False), (_debounce, True)):
            chosen = [place for place in positions if (rows[place].on_conflict is not None) is is_debounced]
            inserted = (yield from insert([rows[place] for place in chosen])) if chosen else []
            for position, task_id in zip(chosen, inserted, strict=True):
                ids[position] = task_id
    return ids


def insert_and_notify(rows: Sequence[NewTask]) -> Plan[list[UUID]]:
    """Insert tasks in the caller's transaction, and notify workers when it commits, however late that is."""
    ids = yield from insert_tasks(rows)
    queues = sorted({row.queue_name for row in rows})
    yield SQL["wake"], {"queues": msgspec.json.encode(queues).decode()}
    return ids


def _insert_batch(rows: Sequence[NewTask]) -> Plan[list[UUID]]:
    if any(row.idempotency_key is not None for row in rows):
        answer = yield SQL["send_keyed"], {"rows": as_json(rows)}
    elif len(rows) == 1:
        answer = yield SQL["send_one"], as_texts(rows[0])
    else:
        answer = yield SQL["send"], {"rows": as_json(rows)}
    inserted = {row[0] for row in answer}
    if len(inserted) == len(rows):
        return [row.id for row in rows]
    left_out = [row for row in rows if str(row.id) not in inserted]
    found = yield SQL["taken"], {"rows": as_json(left_out)}
    conflicts = {conflict.id: conflict for conflict in map(Taken._make, found)}
    ids: list[UUID] = []
    for row in rows:
        task_id = row.id if str(row.id) in inserted else _existing_task(row, conflicts[str(row.id)])
        # None: the task that held the unique key has ended since, so the row can be inserted now
        ids += [task_id] if task_id is not None else (yield from _insert_batch([row]))
    return ids


def _debounce(rows: Sequence[NewTask]) -> Plan[list[UUID]]:
    """Insert tasks that replace or follow others of their unique keys; return the ids of the tasks that stand for them."""
    answer = yield SQL["debounce"], {"rows": as_json(rows)}
    return [UUID(row[0]) for row in answer]


def _existing_task(row: NewTask, conflict: Taken) -> UUID | None:
    """Return the id of the task that a row conflicts with; None if that task has ended meanwhile."""
    if row.idempotency_key is not None and conflict.key_task_id is not None:
        if conflict.key_sha != row.enqueue_sha:
            raise KeyTaken(
                f"idempotency key {row.idempotency_key!r} was used for another call; use a key of its own for each"
            )
        return UUID(conflict.key_task_id)
    if conflict.same_id is not None:
        if not conflict.is_same:
            raise PayloadMismatch(f"task {row.id} exists with another payload")
        return row.id
    return None if conflict.unique_task_id is None else UUID(conflict.unique_task_id)


COPY = SQL["copy"]
ROWS_PER_WRITE = 1_000
# The columns of the `copy` statement after id, kwargs, rate_key and cost.
SHARED_COLUMNS = (
    "task_name",
    "queue_name",
    "is_async",
    "priority",
    "eta",
    "good_until",
    "timeout_ms",
    "max_retries",
    "task_options",
    "tags",
)


def can_copy(row: NewTask) -> bool:
    """Return True if COPY can insert tasks like this one: COPY checks no keys and computes no delays."""
    return row.unique_key is None and row.idempotency_key is None and row.delay_seconds is None


def copy_batches(rows: Sequence[NewTask]) -> Iterator[Sequence[NewTask]]:
    """Yield rows in batches of the size that one COPY write takes."""
    for first in range(0, len(rows), ROWS_PER_WRITE):
        yield rows[first : first + ROWS_PER_WRITE]


def copy_lines(rows: Sequence[NewTask]) -> str:
    """Return rows in COPY's text format; all columns but id, arguments, key and cost are taken from the first row."""
    texts = as_texts(rows[0])
    texts["eta"] = texts["eta"] or "now"
    shared = "\t".join(_copy_field(texts[name]) for name in SHARED_COLUMNS)
    if not is_keyed(rows[0].rate_key):
        shared = f"{_copy_field(texts['rate_key'])}\t\\N\t{shared}"
        return "".join([f"{row.id}\t{_copy_field(row.kwargs)}\t{shared}\n" for row in rows])
    return "".join(
        [
            f"{row.id}\t{_copy_field(row.kwargs)}\t{_copy_field(row.rate_key)}\t"
            f"{_copy_field(None if row.cost is None else str(row.cost))}\t{shared}\n"
            for row in rows
        ]
    )


def _copy_field(text: str | None) -> str:
    if text is None:
        return r"\N"
    return text.replace("\\", r"\\").replace("\t", r"\t").replace("\n", r"\n").replace("\r", r"\r")
