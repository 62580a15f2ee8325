"""Sends that arrive while others are being inserted share one INSERT, and stay apart in everything else."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from horsies import Horsies, TaskSendErrorCode, is_err
from horsies.result import TaskSendResult
from tests.pg.conftest import Add, define_add
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

Db = psycopg.Connection[dict[str, Any]]
LOCK = "LOCK TABLE horsies_tasks_live IN ACCESS EXCLUSIVE MODE"


def stored(db: Db) -> list[int]:
    query = "SELECT (kwargs::json ->> 'x')::integer AS x FROM horsies_tasks ORDER BY x"
    return [row["x"] for row in db.execute(query)]


def transactions(db: Db) -> int:
    row = db.execute("SELECT count(DISTINCT sent_at) AS n FROM horsies_tasks").fetchone()
    assert row is not None
    return row["n"]


def blocked(db: Db) -> int:
    query = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return len(db.execute(query).fetchall())


async def send_all(sender: Any, numbers: range) -> list[TaskSendResult[Any]]:
    return await asyncio.gather(*(sender.send_async(n) for n in numbers))


def test_threads_that_send_at_once_share_transactions(add: Add, database_url: str, db: Db) -> None:
    add.send(-1).unwrap()
    with ThreadPoolExecutor(40) as threads:
        with psycopg.connect(database_url) as blocker:
            blocker.execute(LOCK)
            sends = [threads.submit(add.send, n) for n in range(40)]
            eventually(lambda: blocked(db) >= 5, what="four threads and a sender that insert")
            eventually(lambda: threads._work_queue.empty())  # pyright: ignore[reportPrivateUsage]
        handles = [send.result().unwrap() for send in sends]

    ids = {str(row["id"]): row["kwargs"] for row in db.execute("SELECT id, kwargs FROM horsies_tasks")}
    assert [ids[handle.task_id] for handle in handles] == [f'{{"x":{n}}}' for n in range(40)]
    assert transactions(db) < 25


def test_coroutines_that_send_at_once_share_transactions(add: Add, db: Db) -> None:
    add.send(-1).unwrap()

    results = asyncio.run(send_all(add, range(200)))

    assert len({result.unwrap().task_id for result in results}) == 200
    assert stored(db) == list(range(-1, 200))
    assert transactions(db) < 50


def test_one_bad_row_fails_its_own_send_and_no_other(add: Add, db: Db) -> None:
    db.execute("ALTER TABLE horsies_tasks_live ADD CHECK (kwargs NOT IN ('{\"x\":13}', '{\"x\":30}'))")

    results = asyncio.run(send_all(add, range(64)))

    failed = {n: result.err_value for n, result in enumerate(results) if is_err(result)}
    assert list(failed) == [13, 30]
    for n, error in failed.items():
        assert error.code is TaskSendErrorCode.ENQUEUE_FAILED
        assert not error.retryable
        assert error.payload is not None
        assert error.payload.kwargs_json == f'{{"x":{n}}}'
    assert stored(db) == [n for n in range(64) if n not in failed]


def test_an_error_of_every_row_reaches_every_sender(add: Add, db: Db) -> None:
    add.send(-1).unwrap()
    db.execute("ALTER TABLE horsies_tasks_live ADD CHECK (kwargs = '{\"x\":-1}')")

    results = asyncio.run(send_all(add, range(10)))

    assert [result.unwrap_err().payload.kwargs_json for result in results] == [  # pyright: ignore[reportOptionalMemberAccess]
        f'{{"x":{n}}}' for n in range(10)
    ]


def test_a_lost_reply_and_the_retries_make_one_task_of_each_send(
    make_app: Callable[..., Horsies], proxy: Proxy, db: Db
) -> None:
    add = define_add(make_app(url=proxy.url))
    add.send(-1).unwrap()
    proxy.lose_reply(skip=1)
    results = asyncio.run(send_all(add, range(50)))
    failed = [(n, result.err_value) for n, result in enumerate(results) if is_err(result)]

    assert failed
    assert all(error.retryable for _, error in failed)
    for _, error in failed:
        assert add.retry_send(error).unwrap().task_id == error.task_id
    assert stored(db) == list(range(-1, 50))


@pytest.mark.parametrize("fault", ["lose_reply", "lose_statement"])
def test_an_app_that_resends_stores_each_task_once(
    make_app: Callable[..., Horsies], proxy: Proxy, db: Db, fault: str
) -> None:
    add = define_add(make_app(url=proxy.url, resend_on_transient_err=True))
    add.send(-1).unwrap()
    getattr(proxy, fault)(skip=1)

    results = asyncio.run(send_all(add, range(50)))

    assert [result.is_ok() for result in results] == [True] * 50
    assert proxy.lost == 1
    assert stored(db) == list(range(-1, 50))


def test_a_key_that_another_transaction_holds_delays_its_own_send_only(
    make_app: Callable[..., Horsies], database_url: str, db: Db
) -> None:
    once = define_add(make_app(), unique="args")
    once.send(-1).unwrap()

    async def send_while_a_key_is_held() -> list[TaskSendResult[Any]]:
        with psycopg.connect(database_url) as holder:
            once.with_options(conn=holder).send(0).unwrap()
            sends = {n: asyncio.ensure_future(once.send_async(n)) for n in (*range(1, 10), 0, *range(10, 20))}
            waiting = sends.pop(0)
            done, _ = await asyncio.wait(sends.values(), timeout=20)
            assert len(done) == 19
            assert not waiting.done()
        return await asyncio.gather(waiting, *sends.values())

    results = asyncio.run(send_while_a_key_is_held())

    assert all(result.is_ok() for result in results)
    assert stored(db) == list(range(-1, 20))


def test_a_dead_connection_holds_up_only_the_sends_of_its_batch(
    make_app: Callable[..., Horsies], proxy: Proxy, db: Db
) -> None:
    add = define_add(make_app(url=proxy.url))

    async def send_beside_a_dead_connection() -> list[TaskSendResult[Any]]:
        (await add.send_async(-1)).unwrap()
        proxy.strand()
        before = proxy.statements
        stuck = asyncio.ensure_future(add.send_async(0))
        while proxy.statements == before:  # else the next send may join its batch
            await asyncio.sleep(0.01)
        others = [await asyncio.wait_for(add.send_async(n), 20) for n in range(1, 4)]
        assert not stuck.done()
        proxy.cut()
        return [await stuck, *others]

    stuck, *others = asyncio.run(send_beside_a_dead_connection())

    assert stuck.unwrap_err().retryable
    assert all(other.is_ok() for other in others)
    assert stored(db) == [-1, 1, 2, 3]


def test_cancelled_coroutines_leave_the_other_sends_alone(add: Add, database_url: str, db: Db) -> None:
    async def cancel_half() -> list[TaskSendResult[Any]]:
        (await add.send_async(-1)).unwrap()
        with psycopg.connect(database_url) as blocker:
            blocker.execute(LOCK)
            sends = [asyncio.ensure_future(add.send_async(n)) for n in range(20)]
            while not blocked(db):
                await asyncio.sleep(0.01)
            for send in sends[::2]:
                send.cancel()
            await asyncio.wait(sends[::2])
        return await asyncio.gather(*sends[1::2])

    results = asyncio.run(cancel_half())

    assert all(result.is_ok() for result in results)
    assert set(stored(db)) >= {-1, *range(1, 20, 2)}


def test_a_send_that_is_cancelled_before_a_sender_has_taken_it_is_not_stored(
    add: Add, database_url: str, db: Db
) -> None:
    async def cancel_the_last() -> list[TaskSendResult[Any]]:
        (await add.send_async(-1)).unwrap()
        sends: list[asyncio.Future[TaskSendResult[Any]]] = []
        with psycopg.connect(database_url) as blocker:
            blocker.execute(LOCK)
            for senders in range(1, 5):
                sends.append(asyncio.ensure_future(add.send_async(senders)))
                while blocked(db) < senders:
                    await asyncio.sleep(0.01)
            last = asyncio.ensure_future(add.send_async(99))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(last, 0.3)
        return await asyncio.gather(*sends)

    results = asyncio.run(cancel_the_last())

    assert all(result.is_ok() for result in results)
    add.send(5).unwrap()
    assert stored(db) == [-1, 1, 2, 3, 4, 5]


def test_threads_and_coroutines_that_send_beside_a_closing_broker_all_succeed(
    app: Horsies, add: Add, db: Db
) -> None:
    add.send(-1).unwrap()
    with ThreadPoolExecutor(12) as threads:
        sends = [threads.submit(add.send, n) for n in range(300)]
        for _ in range(5):
            app.get_broker().close().unwrap()
        asyncio.run(send_all(add, range(300, 400)))
        app.get_broker().close().unwrap()
        for send in sends:
            send.result().unwrap()

    assert stored(db) == list(range(-1, 400))


SCRIPT = """
import os, signal, sys, threading
import psycopg
from horsies import AppConfig, Horsies, TaskError, TaskResult

url = sys.argv[1]
app = Horsies(AppConfig.for_database_url(url))

@app.task("add")
def add(x: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=x)

def send(n):
    add.send(n).unwrap()

def threads(numbers):
    started = [threading.Thread(target=send, args=(n,)) for n in numbers]
    for thread in started:
        thread.start()
    return started

add.send(-1).unwrap()
"""

INTERRUPT = """
with psycopg.connect(url) as blocker:
    blocker.execute("LOCK TABLE horsies_tasks_live IN ACCESS EXCLUSIVE MODE")
    others = threads(range(12))
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        add.send(99)
    except KeyboardInterrupt:
        print("interrupted")
for other in others:
    other.join()
add.send(12).unwrap()
"""

FORK = """

with psycopg.connect(url) as blocker:
    blocker.execute("LOCK TABLE horsies_tasks_live IN ACCESS EXCLUSIVE MODE")
    mine = threads(range(12))
    with psycopg.connect(url, autocommit=True) as watcher:
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        while watcher.execute(query).fetchone()[0] < 5:
            pass
    pid = os.fork()
    if pid == 0:
        for thread in threads(range(12, 24)):
            thread.join()
        os._exit(0)
for thread in mine:
    thread.join()
assert os.waitpid(pid, 0)[1] == 0
"""

EXIT = """
import atexit, asyncio
for thread in threads(range(12)):
    thread.join()

def say_goodbye():
    for thread_less in (12, 13):
        add.send(thread_less).unwrap()
    asyncio.run(add.send_async(14)).unwrap()

atexit.register(say_goodbye)
"""


def run(script: str, url: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-X", "dev"]
    return subprocess.run(
        [*command, "-c", textwrap.dedent(SCRIPT + script), url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_ctrl_c_ends_one_wait_and_the_other_sends_go_on(database_url: str, db: Db) -> None:
    ended = run(INTERRUPT, database_url)

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "interrupted\n", "")
    assert set(stored(db)) - {99} == set(range(-1, 13))


def test_a_child_forked_while_sends_gather_sends_for_itself(database_url: str, db: Db) -> None:
    ended = run(FORK, database_url)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert stored(db) == list(range(-1, 24))


def test_a_process_that_exits_may_still_send(database_url: str, db: Db) -> None:
    ended = run(EXIT, database_url)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert stored(db) == list(range(-1, 15))
