"""Waiting for results: any number of waiters behind one listener, woken and never polling busily."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import psycopg

from horsies import Horsies, PostgresConfig, TaskHandle
from horsies.client import Waiters
from horsies.db.connection import Connection, Database
from horsies.db.queries import tasks
from horsies.status import TASK_TERMINAL_STATES
from tests.pg.conftest import Add, define_add
from tests.pg.hands import Hands
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

Db = psycopg.Connection[dict[str, Any]]
LISTENERS = "SELECT pid FROM pg_stat_activity WHERE application_name = 'horsies-listener' AND datname = current_database()"


def awaited(db: Db) -> int:
    row = db.execute("SELECT count(*) AS n FROM horsies_tasks WHERE awaited").fetchone()
    assert row is not None
    return row["n"]


def listeners(db: Db) -> list[int]:
    return [row["pid"] for row in db.execute(LISTENERS)]


class Waiting:
    """A thread that waits for the result of a handle."""

    def __init__(self, handle: Any, timeout_ms: int | None = 30_000) -> None:
        self.result: Any = None
        self._thread = threading.Thread(target=self._wait, args=(handle, timeout_ms))
        self._thread.start()

    def _wait(self, handle: Any, timeout_ms: int | None) -> None:
        self.result = handle.get(timeout_ms=timeout_ms)

    def join(self) -> Any:
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self.result


async def rows_read(connection: Connection) -> int:
    """Return how many rows of the live table the open transaction has read."""
    cursor = await connection.execute(
        "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'horsies_tasks_live'"
    )
    row = await cursor.fetchone()
    assert row is not None
    return row[0]


def test_waiting_for_many_reads_each_once_though_the_plan_is_from_when_there_was_one(
    add: Add, database_url: str
) -> None:
    async def watch(database: Database, ids: list[UUID]) -> int:
        async with database.connection() as connection, connection.transaction():
            before = await rows_read(connection)
            await tasks.watch(connection, ids)
            return await rows_read(connection) - before

    async def grow() -> int:
        database = Database(PostgresConfig(database_url=database_url), "horsies-producer")
        first = UUID(add.send(1).unwrap().task_id)
        for _ in range(10):  # so that the plan is kept
            await watch(database, [first])
        handles = add.send_many([(n,) for n in range(1_000)]).unwrap()
        read = await watch(database, [UUID(handle.task_id) for handle in handles[:500]])
        await database.close()
        return read

    assert 500 <= asyncio.run(grow()) < 5 * 500


def test_a_thousand_waiters_share_one_listener_and_are_woken_by_one_settle(
    add: Add, hands: Hands, db: Db
) -> None:
    handles = add.send_many([(n,) for n in range(1_000)]).unwrap()

    async def wait_for_all() -> list[Any]:
        waiting = [asyncio.ensure_future(handle.get_async(timeout_ms=30_000)) for handle in handles]
        while awaited(db) < 1_000:
            await asyncio.sleep(0.01)
        assert len(listeners(db)) == 1
        await asyncio.to_thread(lambda: hands.complete(hands.run_next(limit=1_000)))
        return await asyncio.gather(*waiting)

    assert [result.unwrap() for result in asyncio.run(wait_for_all())] == [5] * 1_000


def test_many_waiters_for_one_task_are_all_told(add: Add, hands: Hands, db: Db) -> None:
    handle = add.send(1).unwrap()
    waiters = [Waiting(TaskHandle(handle.task_id, add.broker, int)) for _ in range(8)]
    eventually(lambda: awaited(db) == 1)

    hands.complete(hands.run_next())

    assert [waiter.join().unwrap() for waiter in waiters] == [5] * 8


def test_a_task_is_not_looked_at_again_once_its_end_was_seen(
    add: Add, hands: Hands, database_url: str
) -> None:
    task_id = UUID(add.send(1).unwrap().task_id)
    hands.complete(hands.run_next())
    looks = 0

    async def watch(connection: Connection, ids: Sequence[UUID]) -> list[tasks.TaskState]:
        nonlocal looks
        looks += 1
        seen = await tasks.watch(connection, ids)
        # The notification of the end arrives while the statement that sees the end is under way.
        waiters._on_notify("task_done", str(task_id))  # pyright: ignore[reportPrivateUsage]
        return seen

    async def wait() -> tasks.TaskState | None:
        nonlocal waiters
        database = Database(PostgresConfig(database_url=database_url), "horsies-producer")
        waiters = Waiters(database, "task_done", watch, TASK_TERMINAL_STATES)
        seen = await waiters.wait(task_id, 30)
        for _ in range(3):  # turns of the loop in which another look would begin
            await asyncio.sleep(0)
        await waiters.close()
        await database.close()
        return seen

    waiters: Waiters[tasks.TaskState]
    seen = asyncio.run(wait())

    assert seen is not None
    assert (seen.status, looks) == ("COMPLETED", 1)


def test_waiting_asks_nothing_while_nothing_happens(
    make_app: Callable[..., Horsies], proxy: Proxy, hands: Hands, db: Db
) -> None:
    handles = define_add(make_app(url=proxy.url)).send_many([(n,) for n in range(20)]).unwrap()
    waiters = [Waiting(handle) for handle in handles]
    eventually(lambda: awaited(db) == 20 and listeners(db))
    eventually(lambda: settled(proxy), what="the line being quiet")
    before = proxy.statements

    list(db.notifies(timeout=2))
    # Every waiter may look once in a while, all in one question; the listener may ask whether it is still heard.
    assert proxy.statements - before <= 3

    hands.complete(hands.run_next())
    assert [waiter.join().unwrap() for waiter in waiters] == [5] * 20


def settled(proxy: Proxy) -> bool:
    """Whether a tenth of a second goes by without a statement."""
    before = proxy.statements
    threading.Event().wait(0.1)
    return proxy.statements == before


def test_a_waiter_outlives_its_listener(add: Add, hands: Hands, db: Db) -> None:
    waiter = Waiting(add.send(1).unwrap())
    eventually(lambda: awaited(db) == 1)
    (listener,) = eventually(lambda: listeners(db))

    db.execute("SELECT pg_terminate_backend(%s)", (listener,))
    eventually(lambda: listener not in listeners(db))
    hands.complete(hands.run_next())

    assert waiter.join().unwrap() == 5
    eventually(lambda: len(listeners(db)) == 1, what="a new listener")


def test_a_waiter_outlives_an_outage(
    make_app: Callable[..., Horsies], proxy: Proxy, hands: Hands, db: Db
) -> None:
    waiter = Waiting(define_add(make_app(url=proxy.url)).send(1).unwrap())
    eventually(lambda: awaited(db) == 1 and settled(proxy))

    proxy.refusing = True
    proxy.cut()
    hands.complete(hands.run_next())
    proxy.refusing = False

    assert waiter.join().unwrap() == 5


def test_nobody_can_deafen_the_listener_with_nonsense(add: Add, hands: Hands, db: Db) -> None:
    waiter = Waiting(add.send(1).unwrap())
    eventually(lambda: awaited(db) == 1)
    (listener,) = eventually(lambda: listeners(db))

    for nonsense in ("", "hello", "0" * 36):
        db.execute("SELECT pg_notify('task_done', %s)", (nonsense,))
    hands.complete(hands.run_next())

    assert waiter.join().unwrap() == 5
    assert listeners(db) == [listener]


def test_a_waiter_for_a_locked_task_is_told_in_the_end(
    add: Add, hands: Hands, database_url: str, db: Db
) -> None:
    handle = add.send(1).unwrap()
    held = hands.run_next()
    with psycopg.connect(database_url) as other:
        other.execute("SELECT 1 FROM horsies_tasks FOR UPDATE")
        waiter = Waiting(handle)
        eventually(lambda: listeners(db))
    eventually(lambda: awaited(db) == 1)

    hands.complete(held)

    assert waiter.join().unwrap() == 5


def test_one_waiter_that_gives_up_leaves_the_others_waiting(add: Add, hands: Hands, db: Db) -> None:
    handle = add.send(1).unwrap()
    patient = Waiting(handle)
    hasty = Waiting(TaskHandle(handle.task_id, add.broker, int), timeout_ms=20)

    assert hasty.join().is_err()
    # The other's mark may hold the row at this moment, and a claim passes over what is held.
    hands.complete(eventually(hands.run_next))

    assert patient.join().unwrap() == 5


def test_waiters_and_settles_at_once_all_meet(add: Add, hands: Hands) -> None:
    handles = add.send_many([(n,) for n in range(300)]).unwrap()

    async def race() -> list[Any]:
        waiting = [asyncio.ensure_future(handle.get_async(timeout_ms=30_000)) for handle in handles]
        ended = 0
        while ended < 300:  # a row that is being looked at is passed over, and found again
            ended += await asyncio.to_thread(lambda: hands.complete(hands.run_next(limit=10)))
        return await asyncio.gather(*waiting)

    assert [result.unwrap() for result in asyncio.run(race())] == [5] * 300
