"""Durable functions: what a step costs, beside DBOS in the same run; what parked tasks cost, and how fast they wake up."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator

from bench.app import noop
from bench.children import drain_seconds
from bench.figures import Figure, at_least
from bench.harness import ROOT, Bench
from bench.peers.environments import Missing, python_environment
from bench.variants import nap_until, ten_steps
from tests.support.servers import named

STEPS = 10
EMPTY = "SELECT NOT EXISTS (SELECT FROM horsies_tasks_live)"
APP = "bench.variants:stepping"
STEADY = ("--max-tasks-per-child", "0")
DBOS = ("dbos==3.4.0", "psycopg[binary]")


def steps(bench: Bench, count: int, parked: int, woken: int) -> Iterator[Figure]:
    """Run tasks of ten steps in one child and in eight, as workflows of DBOS, and park and wake tasks."""
    one, one_commits = _drained(bench, count, 1)
    eight, eight_commits = _drained(bench, 4 * count, 8)
    yield Figure(f"tasks of {STEPS} steps, 1 process", one, "steps/s")
    yield Figure("  commits per step", one_commits, "", target="≤ 1.2", met=one_commits <= 1.2)
    yield Figure(f"tasks of {STEPS} steps, 8 processes", eight, "steps/s")
    yield Figure("  commits per step", eight_commits, "", target="≤ 0.3", met=eight_commits <= 0.3)
    try:
        theirs = _dbos(bench, count)
        yield Figure("DBOS 3.4, workflows of 10 steps, 8 at once", theirs, "steps/s")
        yield at_least("  horsies, 8 processes", eight, "steps/s", eight / theirs, "DBOS", 3)
    except Missing as problem:
        print(f"DBOS could not be measured: {problem}")
    yield from _parked(bench, 100 * count, parked)
    late = _woken(bench, woken)
    yield Figure(f"{woken:,} tasks wake at one instant, the last", late, "s", target="≤ 1", met=late <= 1)


def _clear(bench: Bench) -> None:
    bench.empty()
    bench.session.execute("TRUNCATE horsies_steps, horsies_signals")


def _drained(bench: Bench, count: int, processes: int) -> tuple[float, float]:
    """Return the steps per second, and the commits per step, of a worker that drains tasks with steps."""
    _clear(bench)
    with bench.worker("--processes", str(processes), *STEADY, app=APP):
        bench.wait_for_idle_worker()
        ten_steps.send(STEPS).unwrap().get(30_000).unwrap()
    _clear(bench)
    ten_steps.send_many([(STEPS,)] * count).unwrap()
    before = bench.counters()
    with bench.worker("--processes", str(processes), *STEADY, app=APP):
        bench.wait_until(EMPTY)
    after = bench.counters()
    stored = int(bench.value("SELECT count(*) FROM horsies_steps"))
    assert stored == count * STEPS
    return stored / drain_seconds(bench), (after.transactions - before.transactions) / stored


def _dbos(bench: Bench, count: int) -> float:
    """Return the steps per second of DBOS."""
    return dbos(bench, "dbos_steps.py", count, STEPS)


def dbos(bench: Bench, script: str, *given: int) -> float:
    """Return what a script for DBOS prints, on the same server, in a database of its own."""
    python = python_environment("dbos", DBOS, (3, 11))
    bench.session.execute("DROP DATABASE IF EXISTS bench_dbos WITH (FORCE)")
    bench.session.execute("CREATE DATABASE bench_dbos")
    try:
        ran = subprocess.run(
            [python, ROOT / "bench" / "peers" / "scripts" / script, *map(str, given)],
            env={**os.environ, "BENCH_DBOS_URL": named(bench.url, "bench_dbos")},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if ran.returncode:
            raise Missing(ran.stderr.strip().splitlines()[-1] if ran.stderr.strip() else "it failed")
        return float(json.loads(ran.stdout.strip().splitlines()[-1]))
    finally:
        bench.session.execute("DROP DATABASE IF EXISTS bench_dbos WITH (FORCE)")


def _parked(bench: Bench, count: int, parked: int) -> Iterator[Figure]:
    """Drain tasks without steps, alone and beside many parked tasks, in turns."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(3):
        for beside in (False, True):
            _clear(bench)
            if beside:
                bench.session.execute(
                    "INSERT INTO horsies_tasks_live (task_name, parked_at, enqueued_at)"
                    " SELECT 'nap_until', now(), now() + interval '1 day' FROM generate_series(1, %s)",
                    (parked,),
                )
                bench.session.execute(
                    "INSERT INTO horsies_steps (task_id, name, kind, claim_seq, attempt, due_at)"
                    " SELECT id, 'nap', 'sleep', 1, 1, enqueued_at FROM horsies_tasks_live"
                )
            noop.send_many([(n,) for n in range(count)]).unwrap()
            bench.settle_statistics()
            with bench.worker("--processes", "2", *STEADY):
                bench.wait_until("SELECT NOT EXISTS (SELECT FROM horsies_tasks_live WHERE parked_at IS NULL)")
            rates[beside].append(count / drain_seconds(bench))
    alone, beside_them = (max(rates[beside]) for beside in (False, True))
    yield Figure("drain of tasks without steps, 2 processes", alone, "tasks/s")
    yield at_least(
        f"  beside {parked:,} parked tasks", beside_them, "tasks/s", beside_them / alone, "alone", 0.97
    )


def _woken(bench: Bench, count: int) -> float:
    """Return how long after their common instant the last of many parked tasks goes on."""
    _clear(bench)
    with bench.worker("--processes", "4", *STEADY, app=APP):
        bench.wait_for_idle_worker()
        instant = time.time() + 5 + count / 200
        nap_until.send_many([(instant,)] * count).unwrap()
        bench.wait_until(f"SELECT count(*) = {count} FROM horsies_tasks_live WHERE parked_at IS NOT NULL")
        if time.time() > instant:
            raise TimeoutError("the tasks took too long to be parked")
        bench.wait_until(EMPTY)
    rows = bench.session.execute("SELECT result FROM horsies_tasks WHERE NOT live").fetchall()
    return max(json.loads(result)["ok"] for (result,) in rows) - instant
