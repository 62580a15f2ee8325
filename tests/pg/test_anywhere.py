"""Sends and gets work from wherever they are called: a running loop, many threads, before and after a fork."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from horsies import Horsies
from tests.pg.conftest import Add, define_add
from tests.pg.hands import Hands
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

Db = psycopg.Connection[dict[str, Any]]


def count(db: Db) -> int:
    return len(db.execute("SELECT 1 FROM horsies_tasks").fetchall())


def test_sync_calls_work_inside_a_running_loop(add: Add, hands: Hands, db: Db) -> None:
    async def produce() -> list[Any]:
        handles = [add.send(1).unwrap(), add.schedule(0, 2).unwrap(), *add.send_many([(3,)]).unwrap()]
        return [(handle, handle.get(timeout_ms=0), handle.info().unwrap()) for handle in handles]

    told = asyncio.run(produce())

    assert count(db) == 3
    hands.complete(hands.run_next())

    async def collect() -> list[Any]:
        return [handle.get(timeout_ms=5_000).unwrap() for handle, _, _ in told]

    assert asyncio.run(collect()) == [5, 5, 5]


def test_async_calls_leave_the_loop_free(add: Add, hands: Hands, database_url: str) -> None:
    """Every call is held up in the database until the loop has been seen to turn."""
    handle = add.send(1).unwrap()

    async def ticks_during(work: Coroutine[Any, Any, Any], statement: bytes) -> int:
        ticks = 0
        with psycopg.connect(database_url) as blocker:
            blocker.execute(statement)
            running = asyncio.ensure_future(work)
            while ticks < 50:
                await asyncio.sleep(0.001)
                ticks += 1
            assert not running.done()
        await running
        return ticks

    async def all_of_them() -> None:
        lock = b"LOCK TABLE horsies_tasks_live IN ACCESS EXCLUSIVE MODE"
        for work in (
            add.send_async(1),
            add.schedule_async(5, 1),
            add.send_many_async([(1,)]),
            add.with_options(priority=1).send_async(2),
            handle.get_async(timeout_ms=0),
            handle.info_async(include_attempts=True),
        ):
            assert await ticks_during(work, lock) == 50

    asyncio.run(all_of_them())


def test_waiting_async_leaves_the_loop_free(add: Add, hands: Hands) -> None:
    handle = add.send(1).unwrap()

    async def wait() -> int:
        waiting = asyncio.ensure_future(handle.get_async(timeout_ms=10_000))
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert not waiting.done()
        await asyncio.to_thread(lambda: hands.complete(hands.run_next()))
        return (await waiting).unwrap()

    assert asyncio.run(wait()) == 5


def test_one_app_serves_one_loop_after_another(add: Add, db: Db) -> None:
    for n in range(3):
        asyncio.run(add.send_async(n)).unwrap()

    assert count(db) == 3


def test_a_cancelled_call_leaves_the_next_one_unharmed(add: Add, database_url: str, db: Db) -> None:
    add.send(0).unwrap()

    async def cancel_one() -> None:
        with psycopg.connect(database_url) as blocker:
            blocker.execute("LOCK TABLE horsies_tasks_live IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await add.send_async(1)
        (await add.send_async(2)).unwrap()

    asyncio.run(cancel_one())

    kwargs = [row["kwargs"] for row in db.execute("SELECT kwargs FROM horsies_tasks")]
    assert {'{"x":0}', '{"x":2}'} <= set(kwargs)


def test_a_first_call_that_was_given_up_and_failed_leaves_the_next_one_unharmed(
    make_app: Callable[..., Horsies], proxy: Proxy, database_url: str, db: Db
) -> None:
    add = define_add(make_app(url=proxy.url))

    async def give_up() -> None:
        with psycopg.connect(database_url) as blocker:
            blocker.execute("LOCK TABLE horsies_schema_version IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await add.send_async(1)
            proxy.cut()

    asyncio.run(give_up())

    eventually(lambda: add.send(2).is_ok(), what="a send that works again")
    assert count(db) == 1


def test_many_threads_send_at_once_over_a_few_connections(make_app: Callable[..., Horsies], db: Db) -> None:
    add = define_add(make_app(pool={"pool_size": 3, "max_overflow": 0}))
    sessions = (
        "SELECT count(*) AS n FROM pg_stat_activity"
        " WHERE application_name = 'horsies-producer' AND datname = current_database()"
    )
    most = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.01):
            row = db.execute(sessions).fetchone()
            assert row is not None
            most = max(most, row["n"])

    watcher = threading.Thread(target=watch)
    watcher.start()
    with ThreadPoolExecutor(64) as threads:
        results = list(threads.map(add.send, range(1_000)))
    done.set()
    watcher.join()

    assert len({result.unwrap().task_id for result in results}) == count(db) == 1_000
    assert 1 <= most <= 3


FORK = """
import gc, os, sys
import psycopg
from horsies import AppConfig, Horsies, TaskError, TaskResult
from tests.pg.hands import Hands

url = sys.argv[1]
app = Horsies(AppConfig.for_database_url(url))

@app.task("add")
def add(x: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=x)

def sessions() -> set[int]:
    with psycopg.connect(url) as connection:
        query = "SELECT pid FROM pg_stat_activity WHERE application_name = 'horsies-producer'"
        return {pid for (pid,) in connection.execute(query + " AND datname = current_database()")}

def settle() -> None:
    hands = Hands(url)
    hands.complete(hands.run_next())
    hands.close()

def work() -> None:
    handle = add.send(1).unwrap()
    settle()
    assert handle.get(timeout_ms=10_000).unwrap() == 5
    assert handle.info().unwrap().status == "COMPLETED"

work()
mine = sessions()
assert mine
waiting = add.send(2).unwrap()
children = []
for how in ("exit", "return"):
    pid = os.fork()
    if pid == 0:
        gc.collect()
        assert app.handle(waiting.task_id, add).get(timeout_ms=0).is_err()
        for _ in range(2):
            gc.collect()
            add.send(3).unwrap()
        if how == "exit":
            os._exit(0)
        sys.exit(0)
    children.append(pid)
assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0]
gc.collect()
assert mine <= sessions()
settle()
assert waiting.get(timeout_ms=10_000).unwrap() == 5
work()
assert mine <= sessions()
print("done")
"""


def test_parent_and_child_of_a_fork_both_send_and_get(database_url: str, db: Db) -> None:
    script = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(FORK)]

    run = subprocess.run([*script, database_url], capture_output=True, text=True, timeout=60, check=False)

    assert (run.returncode, run.stdout, run.stderr) == (0, "done\n", "")
    assert count(db) == 7


EXIT = """
import sys
from horsies import AppConfig, Horsies, TaskError, TaskResult

app = Horsies(AppConfig.for_database_url(sys.argv[1]))

@app.task("add")
def add(x: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=x)

handle = add.send(1).unwrap()
assert handle.get(timeout_ms=50).is_err()
"""


def test_a_producer_ends_without_a_word_and_leaves_no_session(database_url: str, db: Db) -> None:
    script = [sys.executable, "-W", "error", "-X", "dev", "-c", textwrap.dedent(EXIT), database_url]

    run = subprocess.run(script, capture_output=True, text=True, timeout=60, check=False)

    assert (run.returncode, run.stderr) == (0, "")
    query = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'horsies-%'"
    assert db.execute(query).fetchall() == []


def test_closing_the_broker_frees_who_waits_and_the_next_call_opens_it_again(add: Add, db: Db) -> None:
    handle = add.send(1).unwrap()
    broker = add._broker  # pyright: ignore[reportPrivateUsage]

    async def close_while_waiting() -> str:
        waiting = asyncio.ensure_future(handle.get_async())
        while not db.execute("SELECT 1 FROM horsies_tasks WHERE awaited").fetchall():
            await asyncio.sleep(0.01)
        await broker.close_async()
        return str((await asyncio.wait_for(waiting, 10)).unwrap_err().error_code)

    assert asyncio.run(close_while_waiting()) == "BROKER_ERROR"
    assert add.send(2).is_ok()


def test_a_pool_without_a_free_connection_says_so(
    make_app: Callable[..., Horsies], database_url: str, db: Db
) -> None:
    add = define_add(make_app(pool={"pool_size": 1, "max_overflow": 0, "pool_timeout": 1}))
    add.send(0).unwrap()

    def blocked() -> bool:
        query = (
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return bool(db.execute(query).fetchall())

    async def two_at_once() -> Any:
        with psycopg.connect(database_url) as blocker:
            blocker.execute("LOCK TABLE horsies_tasks_live IN ACCESS EXCLUSIVE MODE")
            first = asyncio.ensure_future(add.send_async(1))
            while not blocked():
                await asyncio.sleep(0.01)
            second = await add.send_async(2)
        (await first).unwrap()
        return second.unwrap_err()

    error = asyncio.run(two_at_once())

    assert error.retryable
    assert "within 1 s" in error.message
