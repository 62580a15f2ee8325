"""Very many tasks go another way into the database than a few, and nobody can tell."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from horsies import Horsies, TaskError, TaskResult, TaskSendErrorCode, log_context
from horsies.db.insert import ROWS_PER_STATEMENT
from horsies.task import Sender, Task
from tests.pg.conftest import Add, define_add
from tests.support.proxy import Proxy

Db = psycopg.Connection[dict[str, Any]]
MANY = ROWS_PER_STATEMENT + 1
SOON = datetime(2100, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
ODD = [
    "",
    "\\",
    "\\N",
    "\\.",
    "a\tb",
    "a\nb\r\n",
    '"',
    "{,}",
    "%s",
    "ünï\u2028✓",
    "\\\\t",
    "NULL",
    "x" * 5_000,
]

OPTIONS: list[dict[str, Any]] = [
    {},
    {"eta": SOON, "priority": 7},
    {"good_until": SOON + timedelta(hours=1), "timeout_ms": 1_234},
    {"tags": ['a "b"', "c\\d", "e\tf\ng", "{,}", "NULL"]},
]


def count(db: Db) -> int:
    row = db.execute("SELECT count(*) AS n FROM horsies_tasks").fetchone()
    assert row is not None
    return row["n"]


@pytest.fixture
def echo(app: Horsies) -> Task[..., str]:
    @app.task("tab\there \\ and there", idempotent=True)
    def echo(text: str, more: dict[str, str]) -> TaskResult[str, TaskError]:
        return TaskResult(ok=text + str(more))

    return echo


def stored(db: Db) -> list[dict[str, Any]]:
    """All rows in order, without what differs from send to send, and none of them after."""
    rows = db.execute("SELECT *, enqueued_at = sent_at AS at_once FROM horsies_tasks ORDER BY id").fetchall()
    for row in rows:
        if row["at_once"]:
            del row["enqueued_at"]
        del row["id"], row["sent_at"]
    db.execute("DELETE FROM horsies_tasks")
    return rows


def one_by_one(sender: Sender[..., str], calls: list[Any]) -> None:
    for call in calls:
        sender.send(*call).unwrap()


WAYS: dict[str, tuple[int, Callable[[Sender[..., str], list[Any]], object]]] = {
    "copied": (MANY, lambda sender, calls: sender.send_many(calls).unwrap()),
    "copied by a loop": (MANY, lambda sender, calls: asyncio.run(sender.send_many_async(calls)).unwrap()),
    "one by one": (40, one_by_one),
}


@pytest.mark.parametrize("options", [*OPTIONS, {"delay_seconds": 0.0}])
@pytest.mark.parametrize("way", WAYS)
def test_a_row_says_the_same_whichever_way_it_came(
    echo: Task[..., str], db: Db, options: dict[str, Any], way: str
) -> None:
    sender = echo.with_options(**options)
    number, send = WAYS[way]
    calls = [(ODD[n % len(ODD)], {ODD[n % 7]: ODD[-1 - n % 5]}) for n in range(number)]
    for first in range(0, number, 100):
        sender.send_many(calls[first : first + 100]).unwrap()
    expected = stored(db)

    send(sender, calls)

    assert len(expected) == number
    assert stored(db) == expected


def test_handles_of_very_many_are_in_the_order_of_the_calls(add: Add, db: Db) -> None:
    handles = add.send_many((n,) for n in range(MANY)).unwrap()

    rows = db.execute("SELECT id, kwargs FROM horsies_tasks ORDER BY id").fetchall()
    assert [handle.task_id for handle in handles] == [str(row["id"]) for row in rows]
    assert [json.loads(row["kwargs"])["x"] for row in rows] == list(range(MANY))


def test_one_bad_call_at_the_end_of_very_many_leaves_nothing_and_harms_nothing(add: Add, db: Db) -> None:
    calls: list[Any] = [*((n,) for n in range(4 * MANY)), ("two",)]

    error = add.send_many(calls).unwrap_err()

    assert error.code is TaskSendErrorCode.VALIDATION_FAILED
    assert "'x'" in error.message
    assert count(db) == 0
    add.send_many(calls[:-1]).unwrap()
    assert count(db) == 4 * MANY


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("fault", ["lose_reply", "lose_statement"])
def test_very_many_are_stored_once_whatever_is_lost_on_the_way(
    make_app: Callable[..., Horsies], proxy: Proxy, db: Db, is_async: bool, fault: str
) -> None:
    add = define_add(make_app(url=proxy.url, resend_on_transient_err=True))
    asyncio.run(add.send_many_async([])) if is_async else add.send_many([])
    getattr(proxy, fault)()

    calls = [(n,) for n in range(3 * MANY)]
    handles = (asyncio.run(add.send_many_async(calls)) if is_async else add.send_many(calls)).unwrap()

    assert proxy.lost == 1
    rows = db.execute("SELECT id FROM horsies_tasks ORDER BY id").fetchall()
    assert [handle.task_id for handle in handles] == [str(row["id"]) for row in rows]


class Tripwire(Mapping[str, int]):
    """The arguments of a call, which break the line when they are read."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    def __iter__(self) -> Iterator[str]:
        return iter(["x"])

    def __len__(self) -> int:
        return 1

    def __getitem__(self, name: str) -> int:
        self._proxy.cut()
        return -1


def test_a_line_that_breaks_half_way_loses_nothing(
    make_app: Callable[..., Horsies], proxy: Proxy, db: Db
) -> None:
    add = define_add(make_app(url=proxy.url, resend_on_transient_err=True))
    add.send_many([]).unwrap()
    calls: list[Any] = [*((n,) for n in range(2 * MANY)), Tripwire(proxy), *((n,) for n in range(2 * MANY))]

    handles = add.send_many(calls).unwrap()

    rows = db.execute("SELECT id FROM horsies_tasks ORDER BY id").fetchall()
    assert [handle.task_id for handle in handles] == [str(row["id"]) for row in rows]
    assert len(rows) == 4 * MANY + 1


def test_a_line_that_breaks_is_an_error_when_the_app_does_not_send_again(
    make_app: Callable[..., Horsies], proxy: Proxy, db: Db
) -> None:
    add = define_add(make_app(url=proxy.url))
    add.send_many([]).unwrap()
    proxy.lose_statement()

    error = add.send_many([(n,) for n in range(MANY)]).unwrap_err()

    assert (error.code, error.retryable) == (TaskSendErrorCode.ENQUEUE_FAILED, True)
    assert count(db) == 0


def test_what_travels_with_a_task_travels_with_each_of_very_many(add: Add, db: Db) -> None:
    with log_context(request_id="7f3a"):
        add.send_many([(n,) for n in range(MANY)]).unwrap()

    rows = db.execute("SELECT DISTINCT task_options FROM horsies_tasks").fetchall()
    assert len(rows) == 1
    assert "7f3a" in rows[0]["task_options"]


@pytest.mark.parametrize("kind", ["unique", "delayed"])
def test_very_many_with_a_key_or_a_delay_keep_it(app: Horsies, db: Db, kind: str) -> None:
    add = define_add(app, unique="args" if kind == "unique" else None)
    sender = add if kind == "unique" else add.with_options(delay_seconds=3_600)

    sender.send_many([(n % MANY,) for n in range(MANY + 5)]).unwrap()

    late = "count(*) FILTER (WHERE enqueued_at = sent_at + interval '1 hour') AS late"
    row = db.execute(f"SELECT count(unique_key) AS keyed, {late} FROM horsies_tasks").fetchone()
    assert row == ({"keyed": MANY, "late": 0} if kind == "unique" else {"keyed": 0, "late": MANY + 5})
