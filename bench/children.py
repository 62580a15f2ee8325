"""What children cost, and what limits of the cluster cost: replacing and recycling, memory, width, caps."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import accumulate, pairwise
from pathlib import Path
from uuid import uuid4

from bench import sql_only
from bench.app import moment, noop, span
from bench.figures import Figure
from bench.harness import Bench
from bench.variants import CAP, capped_noop, capped_span, narrow_span, rest
from horsies.config import CustomQueueConfig, PostgresConfig
from horsies.db.connection import Connection, connect_worker
from horsies.db.queries import tasks, workers
from horsies.db.queries.tasks import Completed, PoolRoom
from horsies.db.queries.workers import Registration
from horsies.worker.claim import Caps, Claimer, Owner

LOOPING, CAPPED, NARROW = "bench.variants:looping", "bench.variants:capped", "bench.variants:narrow"
EMPTY = "SELECT NOT EXISTS (SELECT FROM horsies_tasks_live)"
SPAN_SECONDS = 0.005
QUEUES = 100


def children(bench: Bench, count: int) -> Iterator[Figure]:
    """Replace a child that was killed, recycle one after every task, weigh one, and fill one with async tasks."""
    bench.empty()
    with bench.worker("--processes", "1", loglevel="CRITICAL"):
        bench.wait_for_idle_worker()
        private = _private_mb(bench)
        replaced = _replacement(bench, count) * 1000
    yield Figure("private memory of an idle child", private, "MB", target="≤ 15", met=private <= 15)
    yield Figure("a busy child is killed → next task, p50", replaced, "ms", target="≤ 20", met=replaced <= 20)
    kept, recycled = (_gap(bench, 4 * count, most) * 1000 for most in ("0", "1"))
    yield Figure("end of a task → next task, p50", kept, "ms")
    yield Figure(
        "  in a fresh child",
        recycled,
        "ms",
        recycled / kept,
        "same child",
        "≤ 20 ms",
        recycled <= 20,
    )
    rate = _recycling_rate(bench, 50 * count)
    yield Figure(
        "drain, 2 processes, each task a fresh child", rate, "tasks/s", target="≥ 150", met=rate >= 150
    )
    width = _width_seconds(bench, 1_000)
    yield Figure("1,000 async tasks of 1 s in one child", width, "s", target="≤ 2", met=width <= 2)


def caps(bench: Bench, count: int) -> Iterator[Figure]:
    """Drain within a cap of the cluster, claim from many capped queues, and see that no cap is passed."""
    commit = sql_only.commit_seconds(bench, 300)
    yield Figure("a small commit, there and back", commit * 1000, "ms")
    capped = _capped_rate(bench, 10 * count)
    ratio = capped / (2 / commit)
    yield Figure(
        "drain, 2 processes, cap of the cluster",
        capped,
        "tasks/s",
        ratio,
        "2 ÷ commit",
        "≥ 0.4",
        ratio >= 0.4,
    )
    for what, each in (("no task", 0), ("tasks in each", count)):
        free, within = (seconds * 1000 for seconds in _passes(bench, count, each))
        ratio = within / free
        yield Figure(f"a claim from {QUEUES} queues, {what}, p50", free, "ms")
        yield Figure("  with a cap on each", within, "ms", ratio, "no caps", "≤ 2", ratio <= 2)
    for what, app, send in (
        ("cluster", CAPPED, capped_span.send_many),
        ("queue", NARROW, narrow_span.send_many),
    ):
        most = _overlap(bench, app, lambda send=send: send([(SPAN_SECONDS,)] * 4 * count).unwrap())
        yield Figure(
            f"at once, 2 workers of 2, cap on the {what}", most, "tasks", target=f"≤ {CAP}", met=most <= CAP
        )


# Children


def _replacement(bench: Bench, count: int) -> float:
    """From the kill of the only child, at work, to the start of the task that waits behind it."""
    times: list[float] = []
    for _ in range(count):
        span.send(60.0).unwrap()
        bench.wait_until("SELECT EXISTS (SELECT FROM horsies_tasks_live WHERE status = 'RUNNING')")
        handle = moment.send().unwrap()
        time.sleep(0.1)  # the task is under way, and whatever the last replacement left to do is done
        pid = int(bench.value("SELECT worker_pid FROM horsies_tasks_live WHERE status = 'RUNNING'"))
        killed_at = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        times.append(handle.get(10_000).unwrap() - killed_at)
    return statistics.median(times)


def _gap(bench: Bench, count: int, tasks_per_child: str) -> float:
    """From the end of a task to the start of the next one, in the only child that there is at a time."""
    bench.empty()
    span.send_many([(SPAN_SECONDS,)] * count).unwrap()
    with bench.worker("--processes", "1", "--max-tasks-per-child", tasks_per_child, loglevel="CRITICAL"):
        bench.wait_until(EMPTY)
    return statistics.median(after[0] - before[1] for before, after in pairwise(spans(bench)))


def _recycling_rate(bench: Bench, count: int) -> float:
    bench.empty()
    noop.send_many([(n,) for n in range(count)]).unwrap()
    with bench.worker("--processes", "2", "--max-tasks-per-child", "1", loglevel="CRITICAL"):
        bench.wait_until(EMPTY)
    return count / drain_seconds(bench)


def _private_mb(bench: Bench) -> float:
    """What the child that has run one task holds for itself; what it was forked with and has left alone is shared."""
    noop.send(1).unwrap().get(30_000).unwrap()
    pid = bench.value("SELECT worker_pid FROM horsies_tasks WHERE NOT live")
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    private = [line for line in rollup.splitlines() if line.startswith(("Private_Clean:", "Private_Dirty:"))]
    return sum(int(line.split()[1]) for line in private) / 1024


def _width_seconds(bench: Bench, count: int) -> float:
    """From the start of the first task to the end of the last, each of which sleeps for a second."""
    bench.empty()
    rest.send_many([(1.0,)] * count).unwrap()
    bench.settle_statistics()
    with bench.worker(
        "--processes",
        "1",
        "--async-processes",
        "1",
        "--async-concurrency",
        str(count),
        app=LOOPING,
        loglevel="CRITICAL",
    ):
        bench.wait_until(EMPTY)
    return drain_seconds(bench)


# Caps


def _capped_rate(bench: Bench, count: int) -> float:
    bench.empty()
    capped_noop.send_many([(n,) for n in range(count)]).unwrap()
    bench.settle_statistics()
    with bench.worker("--processes", "2", app=CAPPED, loglevel="CRITICAL"):
        bench.wait_until(EMPTY)
    return count / drain_seconds(bench)


def _overlap(bench: Bench, app: str, send: Callable[[], object]) -> int:
    """How many tasks ran at once at most, by their own account, in two workers that could run four."""
    bench.empty()
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(bench.worker("--processes", "2", app=app, loglevel="CRITICAL"))
        bench.wait_until("SELECT count(*) = 2 FROM horsies_workers WHERE waiting")
        send()
        bench.wait_until(EMPTY)
    return most_at_once(spans(bench))


def most_at_once(spans: Sequence[tuple[float, float]]) -> int:
    """The largest number of spans that share a moment."""
    steps = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    return max(accumulate(step for _, step in steps), default=0)


def _passes(bench: Bench, count: int, tasks_each: int) -> tuple[float, float]:
    """One claim from many queues without caps and with them, in seconds, p50; with tasks, one is taken of each queue."""
    bench.empty()
    return asyncio.run(_timed_passes(bench, count, tasks_each))


async def _timed_passes(bench: Bench, count: int, tasks_each: int) -> tuple[float, float]:
    free, within = _ManyQueues(None), _ManyQueues(CAP)
    async with await connect_worker(PostgresConfig(database_url=bench.url), "bench") as connection:
        for queues in (free, within):
            await queues.prepare(connection, tasks_each)
        bench.settle_statistics()
        times = [  # in turns, so that a slow moment of the machine meets both
            (await free.claim(connection), await within.claim(connection)) for _ in range(count)
        ]
    return statistics.median(time for time, _ in times), statistics.median(time for _, time in times)


class _ManyQueues:
    """A worker of many queues, whose tasks have ended by the next claim."""

    def __init__(self, cap: int | None) -> None:
        self._names = [f"{'free' if cap is None else 'capped'}-{n}" for n in range(QUEUES)]
        queues = [CustomQueueConfig(name=name, max_concurrency=cap) for name in self._names]
        self._owner = Owner(uuid4(), "bench", "bench", 600.0)
        self._claimer = Claimer(queues, {False: 0, True: 0}, max_claim_batch=1)
        self._caps = Caps(None, queues)
        self._room = PoolRoom(0, QUEUES, QUEUES, [1] * QUEUES)
        self._completed: list[Completed] = []

    async def prepare(self, connection: Connection, tasks_each: int) -> None:
        owner = self._owner
        registration = Registration(
            owner.worker_id, owner.hostname, os.getpid(), 1, self._names, owner.lease_seconds
        )
        await workers.register(connection, registration, [])
        await connection.execute(
            """INSERT INTO horsies_tasks_live (task_name, queue_name, kwargs)
               SELECT 'noop', queue_name, '{"x":1}'
                 FROM unnest(%s::text[]) AS queue (queue_name), generate_series(1, %s)""",
            (self._names, tasks_each),
        )

    async def claim(self, connection: Connection) -> float:
        """How long it took."""
        began = time.monotonic()
        caps = self._caps.request([])
        ask = self._claimer.request(self._owner, [self._room], QUEUES, caps, began)
        _, claimed, *_ = await tasks.settle_and_claim(connection, self._completed, ask)
        ended = time.monotonic()
        self._caps.claimed(caps, claimed)
        self._claimer.claimed(claimed, ended - began, ended)
        self._completed = [Completed(task.id, task.claim_seq, '{"ok":1}') for task in claimed]
        return ended - began


# What a run leaves behind


def drain_seconds(bench: Bench) -> float:
    return float(
        bench.value(
            "SELECT extract(epoch FROM max(completed_at) - min(started_at)) FROM horsies_tasks WHERE NOT live"
        )
    )


def spans(bench: Bench) -> list[tuple[float, float]]:
    """When each task ran, by its own account, the first one first."""
    rows = bench.session.execute("SELECT result FROM horsies_tasks WHERE NOT live AND status = 'COMPLETED'")
    results = [json.loads(result)["ok"] for (result,) in rows]
    return sorted((started, ended) for started, ended in results)
