"""What is measured. Each measurement stands beside the limit that it is compared with, taken in the same run."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from uuid import uuid4

import psycopg

from bench import sql_only
from bench.app import moment, noop
from bench.figures import Figure, at_least
from bench.harness import NO_RECYCLING, PREFETCH, STRICT, Bench, rate
from horsies.db.ids import new_ids

PRODUCERS = 16


def drains(bench: Bench, count: int) -> Iterator[Figure]:
    """Empty a queue of no-op tasks: with default settings, with tuned ones, strictly one at a time, and by SQL alone."""
    default = _drain(bench, count)
    ahead = _drain(bench, count, *PREFETCH)
    tuned = _drain(bench, count, *PREFETCH, *NO_RECYCLING)
    kept = _drain(bench, count, *NO_RECYCLING)
    exact = _drain(bench, count, "--max-tasks-per-child", "100")
    yield _compared("drain, default settings", default, tuned, "tuned", 0.8)
    yield from _costs(default)
    yield Figure("  updates that write no index", 100 * default.hot, "%")
    yield _compared("drain, prefetch 1000", ahead, tuned, "tuned")
    yield from _costs(ahead)
    limit = _sql_alone(bench, count)
    what = "drain, prefetch 1000, no recycling: tuned"
    yield at_least(what, tuned.rate, "tasks/s", tuned.rate / limit, "SQL alone", 0.5)
    yield Figure("SQL alone, the same statements, two connections", limit, "tasks/s")
    yield Figure("drain, default but no recycling", kept.rate, "tasks/s")
    yield _compared("  recycling as by default", default, kept, "no recycling", 0.85)
    yield _compared("  after exactly 100 tasks", exact, kept, "no recycling", 0.85)

    commit = sql_only.commit_seconds(bench, 300)
    yield Figure("a small commit, there and back", commit * 1000, "ms")
    strict = _drain(bench, max(500, count // 10), *STRICT)
    yield at_least("drain, strict", strict.rate, "tasks/s", strict.rate * commit / 2, "2 ÷ commit", 0.45)
    yield Figure("  transactions per task", strict.transactions, "")
    yield Figure("  WAL per task", strict.wal_bytes, "bytes")


def _sql_alone(bench: Bench, count: int) -> float:
    """Return the rate of the worker's own statements on as many tasks."""
    bench.empty()
    noop.send_many([(n,) for n in range(count)]).unwrap()
    bench.settle_statistics()
    return sql_only.drain(bench)


@dataclass(frozen=True, slots=True)
class _Drained:
    """Tasks per second, what each of them cost the server, and the share of updates that wrote no index."""

    rate: float
    transactions: float
    wal_bytes: float
    hot: float


def _compared(what: str, drained: _Drained, other: _Drained, of: str, least: float | None = None) -> Figure:
    """Return a rate beside another one of the same run."""
    ratio = drained.rate / other.rate
    if least is None:
        return Figure(what, drained.rate, "tasks/s", ratio, of)
    return at_least(what, drained.rate, "tasks/s", ratio, of, least)


def _costs(drained: _Drained) -> Iterator[Figure]:
    """What each task cost the server, in commits and in bytes."""
    transactions, wal_bytes = drained.transactions, drained.wal_bytes
    yield Figure("  transactions per task", transactions, "", target="≤ 0.1", met=transactions <= 0.1)
    yield Figure("  WAL per task", wal_bytes, "bytes", target="≤ 2,048", met=wal_bytes <= 2048)


def _drain(bench: Bench, count: int, *flags: str) -> _Drained:
    bench.empty()
    noop.send_many([(n,) for n in range(count)]).unwrap()
    bench.settle_statistics()
    before = bench.counters()
    with bench.worker("--processes", "2", *flags):
        bench.wait_until("SELECT NOT EXISTS (SELECT FROM horsies_tasks_live)")
    after = bench.counters()
    seconds = float(
        bench.value(
            "SELECT extract(epoch FROM max(completed_at) - min(started_at)) FROM horsies_tasks WHERE NOT live"
        )
    )
    return _Drained(
        rate=count / seconds,
        transactions=(after.transactions - before.transactions) / count,
        wal_bytes=(after.wal_bytes - before.wal_bytes) / count,
        hot=(after.hot_updates - before.hot_updates) / max(1, after.updates - before.updates),
    )


def sends(bench: Bench, count: int) -> Iterator[Figure]:
    """Send one by one beside a bare insert of the same row, and in bulk."""
    bench.empty()
    noop.send(0).unwrap()
    insert = "INSERT INTO horsies_tasks_live (id, task_name, kwargs) VALUES (%s, %s, %s)"
    bare: list[float] = []
    ours: list[float] = []
    for _ in range(4):  # in turns, so that a slow moment of the machine meets both
        bare.append(
            rate(
                count,
                lambda: [bench.session.execute(insert, (uuid4(), "noop", '{"x":1}')) for _ in range(count)],
            )
        )
        ours.append(rate(count, lambda: [noop.send(n).unwrap() for n in range(count)]))
    floor, sent = statistics.median(bare), statistics.median(ours)
    yield Figure("bare insert, one by one", floor, "rows/s")
    yield Figure(
        "send, one by one", sent, "tasks/s", sent / floor, "bare insert", "≥ 0.75", sent / floor >= 0.75
    )
    bench.empty()
    copied = rate(count * 50, lambda: _copy(bench, count * 50))
    yield Figure(f"COPY of {count * 50:,}", copied, "rows/s")
    bench.empty()
    bulk = rate(count * 50, lambda: noop.send_many([(n,) for n in range(count * 50)]).unwrap())
    yield Figure(
        f"send_many of {count * 50:,}",
        bulk,
        "tasks/s",
        bulk / copied,
        "COPY",
        "≥ 35,000/s",
        bulk >= 35_000,
    )


def _copy(bench: Bench, count: int) -> None:
    """The fastest way there is to store as many rows."""
    columns = "COPY horsies_tasks_live (id, task_name, kwargs) FROM STDIN"
    with bench.session.cursor() as cursor, cursor.copy(columns) as copy:
        for n, task_id in enumerate(new_ids(count)):
            copy.write_row((task_id, "noop", f'{{"x":{n}}}'))


def latencies(bench: Bench, count: int) -> Iterator[Figure]:
    """From send to the start of user code, and to the result, on an idle worker."""
    floor = _floor(bench, count)
    bench.empty()
    started: list[float] = []
    done: list[float] = []
    with bench.worker("--processes", "2"):
        bench.wait_for_idle_worker()
        for _ in range(count):
            began = time.monotonic()
            handle = moment.send().unwrap()
            started.append(handle.get(10_000).unwrap() - began)
            done.append(time.monotonic() - began)
            time.sleep(0.02)
    start, result = statistics.median(started) * 1000, statistics.median(done) * 1000
    yield Figure("floor: two commits and a notification, p50", floor, "ms")
    yield Figure(
        "idle worker, send → user code, p50",
        start,
        "ms",
        start / floor,
        "floor",
        "≤ 1.6",
        start / floor <= 1.6,
    )
    yield Figure("idle worker, send → result, p50", result, "ms", target="≤ 5.5", met=result <= 5.5)


def _floor(bench: Bench, count: int) -> float:
    """Bare psycopg: a session inserts and notifies; in another process, one wakes up and commits an update."""
    bench.session.execute("CREATE TABLE IF NOT EXISTS bench_floor (n integer PRIMARY KEY, done boolean)")
    context = multiprocessing.get_context("spawn")
    woken: multiprocessing.Queue[float] = context.Queue()
    server = context.Process(target=_serve_floor, args=(bench.url, count, woken))
    server.start()
    woken.get()
    times: list[float] = []
    for n in range(count):
        began = time.monotonic()
        bench.session.execute(
            "WITH new AS (INSERT INTO bench_floor VALUES (%s) RETURNING n) SELECT pg_notify('bench_floor', n::text) FROM new",
            (n,),
        )
        times.append(woken.get() - began)
        time.sleep(0.02)
    server.join()
    bench.session.execute("DROP TABLE bench_floor")
    return statistics.median(times) * 1000


def _serve_floor(url: str, count: int, woken: multiprocessing.Queue[float]) -> None:
    """Report when the second commit was through, on the clock that all processes share."""
    connect = psycopg.connect
    with connect(url, autocommit=True) as listener, connect(url, autocommit=True) as session:
        listener.execute("LISTEN bench_floor")
        woken.put(0.0)
        for notify in listener.notifies(stop_after=count):
            session.execute("UPDATE bench_floor SET done = true WHERE n = %s", (int(notify.payload),))
            woken.put(time.monotonic())


def producers(bench: Bench, seconds: float) -> Iterator[Figure]:
    """Sixteen producers beside a busy worker: as it is, without any notification, and with one for every insert. Then
    sixteen threads of one process, whose sends are gathered, beside the same sends on a connection each."""
    rates: dict[str, float] = {}
    for name, prepare in (
        ("silent", "ALTER TABLE horsies_tasks_live DISABLE TRIGGER horsies_tasks_new"),
        ("ours", "ALTER TABLE horsies_tasks_live ENABLE TRIGGER horsies_tasks_new"),
        ("always", _ALWAYS_NOTIFY),
    ):
        bench.empty()
        bench.session.execute(prepare.encode())
        with bench.worker("--processes", "2"):
            bench.wait_until("SELECT EXISTS (SELECT FROM horsies_workers)")
            rates[name] = _produce(bench.url, seconds, 4)
    bench.session.execute("DROP TRIGGER bench_always ON horsies_tasks_live")
    bench.session.execute("DROP FUNCTION bench_always")
    ratio = rates["ours"] / rates["silent"]
    yield Figure("16 producers, busy worker, no notification", rates["silent"], "tasks/s")
    yield Figure("16 producers, busy worker", rates["ours"], "tasks/s", ratio, "none", "≥ 0.5", ratio >= 0.5)
    yield Figure(
        "16 producers, a trigger that always notifies",
        rates["always"],
        "tasks/s",
        rates["always"] / rates["silent"],
        "none",
    )
    gain = rates["ours"] / rates["always"]
    yield at_least(
        "  what not notifying gains", rates["ours"] - rates["always"], "tasks/s", gain, "always", 2.5
    )
    bench.empty()
    alone = _produce(bench.url, seconds, 1, has_connections=True)
    bench.empty()
    together = _produce(bench.url, seconds, 1)
    yield Figure("16 threads of a process, a connection and an INSERT each", alone, "tasks/s")
    yield at_least("16 threads of a process", together, "tasks/s", together / alone, "INSERT each", 2.5)


_ALWAYS_NOTIFY = """
CREATE OR REPLACE FUNCTION bench_always() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_notify('bench_always', ''); RETURN NULL; END $$;
CREATE TRIGGER bench_always AFTER INSERT ON horsies_tasks_live FOR EACH STATEMENT EXECUTE FUNCTION bench_always()
"""


def _produce(url: str, seconds: float, number: int, *, has_connections: bool = False) -> float:
    """Return the single sends per second of so many processes with sixteen threads between them."""
    context = multiprocessing.get_context("spawn")
    sent: multiprocessing.Queue[int] = context.Queue()
    start = context.Barrier(number + 1)
    arguments = (url, seconds, PRODUCERS // number, has_connections, start, sent)
    processes = [context.Process(target=_producer, args=arguments) for _ in range(number)]
    for process in processes:
        process.start()
    start.wait()
    total = sum(sent.get() for _ in processes)
    for process in processes:
        process.join()
    return total / seconds


def _producer(
    url: str,
    seconds: float,
    threads: int,
    has_connections: bool,
    start: threading.Barrier,
    sent: multiprocessing.Queue[int],
) -> None:
    """Send from so many threads, each on a connection of its own if it `has_connections`: those sends are never gathered."""
    os.environ["HORSIES_DATABASE_URL"] = url
    noop.send(0).unwrap()
    counts = [0] * threads

    def send(place: int) -> None:
        with ExitStack() as stack:
            task = noop
            if has_connections:
                connection = stack.enter_context(psycopg.connect(url, autocommit=True))
                task = noop.with_options(conn=connection)
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                task.send(1).unwrap()
                counts[place] += 1

    start.wait()
    senders = [threading.Thread(target=send, args=(place,)) for place in range(threads)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    sent.put(sum(counts))
