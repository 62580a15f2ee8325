"""What operators do, and what it costs everyone else: events, a pause, a retry, retention."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta

from bench.app import noop
from bench.children import EMPTY, drain_seconds
from bench.figures import Figure, at_least, at_most
from bench.growth import fill
from bench.harness import ROOT, Bench
from horsies.config import PostgresConfig, RetentionConfig
from horsies.db.connection import Connection, connect
from horsies.db.queries import operations as acts
from horsies.worker.retention import sweep

WORKERS = 3
# A light load: so often a task is sent.
PACE_SECONDS = 0.02
CALM_SECONDS = 15.0
_FAILED = """
INSERT INTO horsies_tasks (task_name, live, status, kwargs, claim_seq, started_at, failed_at, terminal_at, error_code, result)
SELECT 'noop', false, 'FAILED', '{"x":1}', 1, now(), now(), now(), 'BROKEN',
       '{"err":{"error_code":"BROKEN","message":"it broke","data":null,"exception":null}}'
  FROM generate_series(1, %s)
"""
_OLD = """
INSERT INTO horsies_tasks (task_name, live, status, kwargs, claim_seq, started_at, completed_at, terminal_at, result)
SELECT 'noop', false, 'COMPLETED', '{"x":1}', 1, at, at, at, '{"ok":1}'
  FROM (SELECT now() - interval '40 days' + n * interval '1 ms' AS at FROM generate_series(1, %s) AS n) AS days
"""


def events(bench: Bench, count: int) -> Iterator[Figure]:
    """Drain a queue while nobody listens to what happens, and while a hook and a log do."""
    quiet = [_drained(bench, count, "bench.app:app")]
    loud = _drained(bench, count, "bench.loud:app")
    quiet.append(_drained(bench, count, "bench.app:app"))
    rate = statistics.mean(quiet)
    yield Figure("drain, nobody listens", rate, "tasks/s")
    yield at_least("drain, a hook and the log listen", loud, "tasks/s", loud / rate, "nobody", 0.9)


def _drained(bench: Bench, count: int, app: str) -> float:
    bench.empty()
    fill(bench, count)
    bench.settle_statistics()
    with bench.worker("--processes", "2", app=app):
        bench.wait_until(EMPTY)
    return count / drain_seconds(bench)


def operations(bench: Bench, requeued: int, deleted: int) -> Iterator[Figure]:
    yield from _suspension(bench)
    yield from _requeue(bench, requeued)
    yield from _retention(bench, deleted)


def _suspension(bench: Bench) -> Iterator[Figure]:
    """Several busy workers are told to stop: how long after the word the last of them has claimed something."""
    bench.empty()
    fill(bench, 100_000)
    bench.settle_statistics()
    with ExitStack() as stack:
        for _ in range(WORKERS):
            stack.enter_context(bench.worker("--processes", "1"))
        bench.wait_until(f"SELECT count(*) = {WORKERS} FROM horsies_workers WHERE state = 'busy'")
        asyncio.run(_act(bench, acts.suspend))
        bench.wait_until(f"SELECT count(*) = {WORKERS} FROM horsies_workers WHERE state = 'suspended'")
        seconds = bench.value(
            "SELECT greatest(0, extract(epoch FROM max(started_at) - (SELECT suspended_at FROM horsies_suspensions)))"
            " FROM horsies_tasks"
        )
        asyncio.run(_act(bench, acts.resume))
    yield Figure(
        f"pause, {WORKERS} busy workers: the last claim after it",
        1000 * float(seconds),
        "ms",
        target="≤ 1,000",
        met=float(seconds) <= 1,
    )


async def _act(bench: Bench, act: Callable[[Connection, str, str], Awaitable[bool]]) -> None:
    async with await connect(PostgresConfig(database_url=bench.url)) as connection:
        await act(connection, acts.ALL_QUEUES, "bench")


def _requeue(bench: Bench, count: int) -> Iterator[Figure]:
    bench.empty()
    bench.session.execute(_FAILED, (count,))
    bench.session.execute("VACUUM ANALYZE horsies_tasks")
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "horsies", "retry", "--all"],
        cwd=ROOT,
        env={**os.environ, "HORSIES_DATABASE_URL": bench.url},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    seconds = time.perf_counter() - began
    yield Figure(f"retry --all, {count:,} failed tasks", seconds, "s", target="≤ 30", met=seconds <= 30)


def _retention(bench: Bench, count: int) -> Iterator[Figure]:
    """Delete old tasks one by one while others are sent and claimed: how long a task waits for its claim."""
    bench.empty()
    bench.session.execute(_OLD, (count,))
    bench.session.execute("VACUUM ANALYZE horsies_tasks")
    with bench.worker("--processes", "2"):
        bench.wait_for_idle_worker()
        calm = _claim_p99(bench, lambda began: time.monotonic() - began < CALM_SECONDS)
        sweeping = threading.Thread(target=lambda: asyncio.run(_sweep(bench)))
        began = time.perf_counter()
        sweeping.start()
        busy = _claim_p99(bench, lambda _: sweeping.is_alive())
        seconds = time.perf_counter() - began
    yield Figure(f"retention, {count:,} tasks deleted one by one", seconds, "s")
    yield Figure("  a task waits for its claim without it, p99", calm, "ms")
    yield at_most("  and meanwhile, p99", busy, "ms", busy / calm, "without", 2)


async def _sweep(bench: Bench) -> None:
    async with await connect(PostgresConfig(database_url=bench.url)) as connection:
        await sweep(connection, RetentionConfig(terminal_record_retention_hours=720))


def _claim_p99(bench: Bench, goes_on: Callable[[float], bool]) -> float:
    began, since = time.monotonic(), bench.value("SELECT now()")
    while goes_on(began):
        noop.send(1).unwrap()
        time.sleep(PACE_SECONDS)
    bench.wait_until(EMPTY)
    row = bench.session.execute(
        "SELECT percentile_cont(0.99) WITHIN GROUP (ORDER BY extract(epoch FROM started_at - sent_at))"
        "  FROM horsies_tasks WHERE sent_at > %s AND terminal_at > %s",
        (since, since - timedelta(seconds=1)),
    ).fetchone()
    assert row is not None
    return 1000 * float(row[0])
