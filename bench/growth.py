"""Whether the cost of a task stays the same: with what waits, what is kept, queues, workers, and an old snapshot."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import psycopg

from bench import sql_only
from bench.app import noop, span
from bench.children import EMPTY, LOOPING, drain_seconds, spans
from bench.figures import Figure, at_least, at_most
from bench.harness import NO_RECYCLING, PREFETCH, STRICT, Bench
from bench.variants import rest

SLOTS = 4
FLAT = 0.85
_CHUNK = 50_000
# Ids in the order of sending, as the library makes them, on any server.
_FILL = """
INSERT INTO horsies_tasks_live (id, task_name, queue_name, kwargs)
SELECT (lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0')
        || substr(replace(gen_random_uuid()::text, '-', ''), 13))::uuid,
       'noop', CASE WHEN %(queues)s = 1 THEN 'default' ELSE 'queue-' || n %% %(queues)s END, '{"x":1}'
  FROM generate_series(1, %(count)s) AS n
"""
_KEEP = """
INSERT INTO horsies_tasks (task_name, live, status, kwargs, result, claim_seq, started_at, completed_at, terminal_at)
SELECT 'noop', false, 'COMPLETED', '{"x":1}', '{"ok":1}', 1, now(), now(), now() FROM generate_series(1, %s)
"""


def fill(bench: Bench, count: int, queues: int = 1) -> None:
    """Store no-op tasks as if they had been sent."""
    for first in range(0, count, _CHUNK):
        bench.session.execute(_FILL, {"count": min(_CHUNK, count - first), "queues": queues})


def backlog(bench: Bench, depths: Sequence[int], drained: int) -> Iterator[Figure]:
    """Claim, drain and rescue, with more and more tasks waiting."""
    claims: list[tuple[float, float]] = []
    rates: list[float] = []
    for depth in depths:
        bench.empty()
        fill(bench, depth)
        bench.settle_statistics()
        median, slowest = (seconds * 1000 for seconds in sql_only.claims(bench, min(200, depth // 20)))
        claims.append((median, slowest))
        yield at_most(
            f"claim of 10, {depth:,} pending, p50",
            median,
            "ms",
            median / claims[0][0],
            f"{depths[0]:,}",
            1.15,
        )
        yield at_most("  p99", slowest, "ms", slowest / claims[0][1], f"{depths[0]:,}", 1.5)
        if depth >= drained:
            fill(
                bench, depth - bench.value("SELECT count(*) FROM horsies_tasks_live WHERE status = 'PENDING'")
            )
            rates.append(_rate_of_some(bench, drained))
            yield at_least(
                f"drain, {depth:,} pending", rates[-1], "tasks/s", rates[-1] / rates[0], "first", FLAT
            )
    for name, seconds in sql_only.walks(bench).items():
        yield Figure(f"{name}, {depths[-1]:,} pending", seconds * 1000, "ms")


def history(bench: Bench, kept: int, drained: int) -> Iterator[Figure]:
    """Drain with many finished tasks kept, and without."""
    bench.empty()
    empty = _rate(bench, drained)
    bench.empty()
    for first in range(0, kept, _CHUNK):
        bench.session.execute(_KEEP, (min(_CHUNK, kept - first),))
    bench.session.execute("VACUUM ANALYZE horsies_tasks")
    full = _rate(bench, drained)
    yield Figure("drain, nothing kept", empty, "tasks/s")
    yield at_least(f"drain, {kept:,} finished tasks kept", full, "tasks/s", full / empty, "nothing", 0.9)


def queues(bench: Bench, numbers: Sequence[int], drained: int) -> Iterator[Figure]:
    """Drain the same number of tasks from one queue and from many."""
    rates: list[float] = []
    for number in numbers:
        bench.empty()
        os.environ["BENCH_QUEUES"] = str(number)
        rates.append(_rate(bench, drained, queues=number, app="bench.many:app"))
        yield at_least(
            f"drain, {number} {'queue' if number == 1 else 'queues'}",
            rates[-1],
            "tasks/s",
            rates[-1] / rates[0],
            "one",
            FLAT,
        )


def workers(bench: Bench, numbers: Sequence[int], drained: int) -> Iterator[Figure]:
    """Drain with more and more workers of one process each, on the cores that there are."""
    rates: list[float] = []
    for number in numbers:
        bench.empty()
        rates.append(_rate(bench, drained, number=number, processes=1))
        yield at_least(
            f"drain, {number} {'worker' if number == 1 else 'workers'} of one process",
            rates[-1],
            "tasks/s",
            rates[-1] / rates[0],
            "one",
            FLAT,
        )


def snapshot(bench: Bench, seconds: float, drained: int) -> Iterator[Figure]:
    """Work while another session holds an old snapshot, so that vacuum must keep every dead row: at 200 sends a second for
    all that time, and then as fast as it goes for a tenth of it."""
    bench.empty()
    with _at_work(bench):
        free = statistics.median(_round(bench, drained) for _ in range(3))
        steady = _steady(bench, seconds / 10)
        with _old_snapshot(bench):
            _steady(bench, seconds * 0.9)
            slow = _steady(bench, seconds / 10)
            held = [_round(bench, drained)]
            until = time.monotonic() + seconds / 10
            while time.monotonic() < until:
                held.append(_round(bench, drained))
    last = statistics.median(held[-3:])
    yield Figure("200 sends/s, undisturbed", steady, "tasks/s")
    yield at_least(
        f"  after {seconds:.0f} s of an old snapshot", slow, "tasks/s", slow / steady, "before", 0.8
    )
    yield Figure("drain by drain, undisturbed", free, "tasks/s")
    yield at_least("  with the old snapshot, the first", held[0], "tasks/s", held[0] / free, "before", 0.6)
    yield at_least(f"  the last of {len(held)}", last, "tasks/s", last / free, "before", 0.6)


def mixed(bench: Bench, count: int) -> Iterator[Figure]:
    """Tasks of 1 ms, 100 ms and 1 s in one line: how full the slots are, and how late the short ones start."""
    seconds = random.Random(1).choices([0.001, 0.1, 1.0], [80, 15, 5], k=count)
    best = in_turn(seconds, SLOTS)
    ideal = max(start + length for start, length in zip(best, seconds, strict=True))
    for name, flags in (
        ("default settings", ()),
        ("prefetch 16", ("--prefetch-buffer", "16")),
        ("strict", STRICT),
    ):
        bench.empty()
        span.send_many([(length,) for length in seconds]).unwrap()
        bench.settle_statistics()
        with bench.worker("--processes", str(SLOTS), *flags, loglevel="CRITICAL"):
            bench.wait_until(EMPTY, 600)
        ran = spans(bench)
        lasted = max(end for _, end in ran) - ran[0][0]
        late = sorted(began - ran[0][0] - turn for (began, _), turn in zip(ran, sorted(best), strict=True))
        busy = sum(end - began for began, end in ran) / (SLOTS * lasted)
        what = f"1 ms, 100 ms and 1 s mixed, {SLOTS} slots, {name}"
        yield at_least(what, 100 * busy, "% busy", ideal / lasted, "in turn", 0.9)
        yield Figure("  behind its turn, p95", late[int(0.95 * len(late))] * 1000, "ms")


def in_turn(seconds: Sequence[float], slots: int) -> list[float]:
    """When each task would start if it cost nothing to hand the next one to the first free slot.

    >>> in_turn([3.0, 1.0, 1.0], 2)
    [0.0, 0.0, 1.0]
    """
    free = [0.0] * slots
    starts: list[float] = []
    for length in seconds:
        slot = free.index(min(free))
        starts.append(free[slot])
        free[slot] += length
    return starts


def asynchronous(bench: Bench, drained: int) -> Iterator[Figure]:
    """Drain no-op tasks that are `async def`, in one child."""
    for what, flags in (
        ("drain, async tasks, one child", ()),
        ("drain, async tasks, one child, prefetch 1000, no recycling", (*PREFETCH, *NO_RECYCLING)),
    ):
        bench.empty()
        rest.send_many([(0.0,)] * drained).unwrap()
        bench.settle_statistics()
        with bench.worker("--processes", "1", *flags, app=LOOPING, loglevel="CRITICAL"):
            bench.wait_until(EMPTY)
        yield Figure(what, drained / drain_seconds(bench), "tasks/s")


def idling(bench: Bench, number: int, seconds: float) -> Iterator[Figure]:
    """What workers that have nothing to do ask the server for."""
    bench.empty()
    with ExitStack() as stack:
        for _ in range(number):
            stack.enter_context(bench.worker("--processes", "1", loglevel="CRITICAL"))
        bench.wait_until(f"SELECT count(*) = {number} FROM horsies_workers WHERE waiting")
        # The leader counts the day before, once; and a session that idles says after ten seconds what it has done.
        bench.wait_until("SELECT EXISTS (SELECT FROM horsies_rollups)")
        time.sleep(12)
        before = bench.counters()
        time.sleep(seconds)
        after = bench.counters()
    each = (after.transactions - before.transactions) / number / (seconds / 60)
    # Six renewals of the lease, and a look every five seconds.
    yield Figure(f"idle worker, one of {number}", each, "transactions/minute", target="≤ 18", met=each <= 18)
    yield Figure("  a hundred of them, by that", 100 * each / 60, "transactions/s")


# How things are done here


def _rate(
    bench: Bench,
    count: int,
    *,
    queues: int = 1,
    number: int = 1,
    processes: int = 2,
    app: str = "bench.app:app",
) -> float:
    """Start workers, and when all of them wait, give them so many tasks at once."""
    with _at_work(bench, number, processes, app):
        return _round(bench, count, queues)


def _rate_of_some(bench: Bench, count: int) -> float:
    """The rate over the first so many of a backlog; what ends while the worker is stopped does not count."""
    since = bench.value("SELECT clock_timestamp()")
    ended = f"SELECT count(*) >= {count} FROM horsies_tasks WHERE NOT live AND terminal_at >= '{since}'"
    with bench.worker("--processes", "2", loglevel="CRITICAL"):
        bench.wait_until(ended)
    return _rate_since(bench, since, count)


def _rate_since(bench: Bench, since: object, first: int | None = None) -> float:
    """The rate at which tasks have ended since then, all of them or the first so many."""
    row = bench.session.execute(
        """SELECT count(*) / extract(epoch FROM max(completed_at) - min(started_at))
             FROM (SELECT started_at, completed_at FROM horsies_tasks WHERE NOT live AND terminal_at >= %s
                    ORDER BY completed_at LIMIT %s) AS ended""",
        (since, first),
    ).fetchone()
    assert row is not None
    return float(row[0])


@contextmanager
def _at_work(
    bench: Bench, number: int = 1, processes: int = 2, app: str = "bench.app:app"
) -> Generator[None]:
    """Workers that have started and wait: what that takes is measured by none of those who use them."""
    with ExitStack() as stack:
        for _ in range(number):
            stack.enter_context(bench.worker("--processes", str(processes), app=app, loglevel="CRITICAL"))
        bench.wait_until(
            f"SELECT count(*) = {number} FROM horsies_workers WHERE waiting AND lease_expires_at > now()"
        )
        yield


def _round(bench: Bench, count: int, queues: int = 1) -> float:
    """One more drain by the workers that are there."""
    since = bench.value("SELECT clock_timestamp()")
    fill(bench, count, queues)
    # To look whether anything is left means to walk over all that is dead, and would take a core of its own.
    last = bench.value("SELECT id FROM horsies_tasks_live ORDER BY id DESC LIMIT 1")
    bench.wait_until(f"SELECT NOT EXISTS (SELECT FROM horsies_tasks_live WHERE id = '{last}')")
    bench.wait_until(EMPTY)
    return _rate_since(bench, since)


def _steady(bench: Bench, seconds: float) -> float:
    """How many tasks per second end when 200 are sent every second."""
    since = bench.value("SELECT clock_timestamp()")
    began = time.monotonic()
    sent = 0
    while (now := time.monotonic()) < began + seconds:
        if sent < (now - began) * 200:
            noop.send(sent).unwrap()
            sent += 1
        else:
            time.sleep(0.001)
    lasted = time.monotonic() - began
    ended = bench.session.execute(
        "SELECT count(*) FROM horsies_tasks WHERE NOT live AND terminal_at >= %s", (since,)
    ).fetchone()
    assert ended is not None
    bench.wait_until(EMPTY)
    return ended[0] / lasted


@contextmanager
def _old_snapshot(bench: Bench) -> Generator[None]:
    with psycopg.connect(bench.url) as holder:
        holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        holder.execute("SELECT txid_current()")
        yield
