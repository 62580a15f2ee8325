"""What keys cost: a claim as keys grow, drains with and beside tasks with keys, and how soon a new key gets its turn."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import time
from collections.abc import Iterator
from uuid import UUID, uuid4

from bench.app import noop
from bench.batch_app import batched_noop
from bench.figures import Figure, at_least
from bench.harness import Bench
from bench.keyed_app import keyed_async, keyed_moment, keyed_noop, unkeyed_async, unkeyed_noop
from bench.peers.environments import Missing
from bench.steps import dbos
from horsies.config import PostgresConfig
from horsies.db.connection import connect_worker
from horsies.db.queries import tasks, workers
from horsies.db.queries.tasks import NO_LIMIT, ClaimRequest, Completed, KeyLane, Lane, PoolRoom
from horsies.db.queries.workers import Definition

# A claim is for so many idle children.
ROOM = 16
CLAIMS, WARM_UP = 90, 2
# A session that claims so many tasks a trip, and so many trips.
MANY, TRIPS = 100, 60
# DBOS walks all partitions at each poll: so many workflows, for so many seconds.
DBOS_WORKFLOWS, DBOS_SECONDS = 5_000, 30
RUN_SECONDS = 0.01
APP = "bench.keyed_app:keyed"
BATCH_APP = "bench.batch_app:batching"
_START = (0, "2000-01-01", str(UUID(int=0)))
_FILL = """
INSERT INTO horsies_tasks_live (task_name, rate_key, kwargs, max_retries)
SELECT 'keyed_noop', 'key=' || md5(n::text), '{"key":1}', 0
  FROM generate_series(1, %(keys)s) AS n, generate_series(1, %(each)s) AS again
"""

# What others do: number the waiting tasks of each key, and take the first of each that its limit leaves.
_WINDOW = """
WITH place AS (
    SELECT id, rate_key, row_number() OVER (PARTITION BY rate_key ORDER BY priority, enqueued_at, id) AS number
      FROM horsies_tasks_live WHERE queue_name = 'default' AND status = 'PENDING' AND enqueued_at <= now()
), running AS (
    SELECT rate_key, count(*) AS tasks FROM horsies_tasks_live WHERE status = 'RUNNING' GROUP BY rate_key
), chosen AS (
    SELECT task.id FROM horsies_tasks_live AS task
     WHERE task.id = ANY (ARRAY (SELECT place.id FROM place LEFT JOIN running USING (rate_key)
                                  WHERE place.number <= 1 - coalesce(running.tasks, 0) ORDER BY place.number, place.id LIMIT %(room)s))
       AND status = 'PENDING' FOR UPDATE SKIP LOCKED
)
UPDATE horsies_tasks_live AS task
   SET status = 'RUNNING', claimed_at = now(), started_at = now(), claim_seq = claim_seq + 1,
       claimed_by_worker_id = '00000000-0000-0000-0000-000000000001'
  FROM chosen WHERE task.id = chosen.id RETURNING task.id
"""


def keys(bench: Bench, count: int, sizes: tuple[int, ...], latencies: int) -> Iterator[Figure]:
    yield from _claims(bench, sizes)
    yield from _sessions(bench)
    yield from _windows(bench, sizes)
    yield from _of_dbos(bench)
    yield from _drains(bench, count)
    yield from _beside(
        bench, 2 * count, waiting=max(sizes) // 10
    )  # short drains differ by more than what is looked for
    yield from _turns(bench, latencies, backlog=max(sizes) // 10)


def _claims(bench: Bench, sizes: tuple[int, ...]) -> Iterator[Figure]:
    """One session settles what it claimed last and claims the next tasks, as a worker does, until half of the keys are served."""
    for each in (1, 100):
        first: float | None = None
        for number in sizes:
            if number * each > max(sizes):
                continue  # more rows than fit into the time there is
            times: list[float] = []
            while len(times) < CLAIMS:
                bench.empty()
                bench.session.execute("TRUNCATE horsies_key_slots, horsies_keys")
                bench.session.execute(_FILL, {"keys": number, "each": each})
                bench.settle_statistics()
                claims = min(CLAIMS, max(3, number * each // ROOM // 2)) + WARM_UP
                times += asyncio.run(_round_trips(bench.url, claims))[WARM_UP:]
            cost = statistics.median(times) * 1000
            first = first or cost
            what = (
                f"settle and claim {ROOM} of {number:,} keys with {each} task{'s' if each > 1 else ''} each"
            )
            is_flat = 0.75 <= cost / first <= 1.25
            yield Figure(what, cost, "ms", cost / first, f"{sizes[0]:,} keys", "0.75–1.25", is_flat)


def _sessions(bench: Bench) -> Iterator[Figure]:
    """What one session settles and claims in a second, with and without keys, of which one task runs at a time."""
    rates: dict[bool, float] = {}
    for keyed in (False, True):
        bench.empty()
        bench.session.execute("TRUNCATE horsies_key_slots, horsies_keys")
        bench.session.execute(_FILL, {"keys": 10_000, "each": 1})
        if not keyed:
            bench.session.execute("UPDATE horsies_tasks_live SET rate_key = ''")
        bench.settle_statistics()
        times = asyncio.run(_round_trips(bench.url, TRIPS + WARM_UP, MANY, keyed=keyed))[WARM_UP:]
        rates[keyed] = MANY / statistics.median(times)
    yield Figure(f"one session, {MANY} tasks a trip, without keys", rates[False], "tasks/s")
    share = rates[True] / rates[False]
    yield at_least("  of 10,000 keys, limit 1", rates[True], "tasks/s", share, "without keys", 0.4)


def _windows(bench: Bench, sizes: tuple[int, ...]) -> Iterator[Figure]:
    """The same claim by a window over all waiting tasks."""
    for number in sizes[:4]:
        bench.empty()
        bench.session.execute(_FILL, {"keys": number, "each": 1})
        bench.settle_statistics()
        times: list[float] = []
        for _ in range(5):
            began = time.perf_counter()
            bench.session.execute(_WINDOW, {"room": ROOM})
            times.append(time.perf_counter() - began)
        yield Figure(
            f"claim {ROOM} of {number:,} keys by a window over all waiting tasks",
            statistics.median(times) * 1000,
            "ms",
        )


def _of_dbos(bench: Bench) -> Iterator[Figure]:
    for partitions in (100, DBOS_WORKFLOWS):
        try:
            rate = dbos(bench, "dbos_keys.py", DBOS_WORKFLOWS, partitions, DBOS_SECONDS)
        except (Missing, subprocess.SubprocessError) as problem:
            print(f"DBOS could not be measured: {problem}")
            return
        yield Figure(
            f"DBOS 3.4, {DBOS_WORKFLOWS:,} workflows of {partitions:,} partitions, limit 1", rate, "tasks/s"
        )


async def _round_trips(url: str, count: int, room: int = ROOM, *, keyed: bool = True) -> list[float]:
    """Return the seconds of each of so many round trips, each for so many tasks."""
    definition = Definition("keyed_noop", "default", 100, False, 0, None, None, key_concurrency=1)
    worker_id, after, ended, times = uuid4(), "", list[Completed](), list[float]()
    place: tuple[int, str, str] = _START
    async with await connect_worker(PostgresConfig(database_url=url), "bench") as connection:
        registration = workers.Registration(worker_id, "bench", 1, ROOM, ["default"], 600)
        await workers.register(connection, registration, [definition])
        for _ in range(count):
            request = ClaimRequest(
                [Lane(0, "default", False, None if keyed else "", room, *place)],
                [PoolRoom(0, room, room, list(range(1, room + 1)))],
                [],
                [],
                room,
                NO_LIMIT,
                worker_id,
                "bench",
                "bench",
                key_lanes=[KeyLane("default", False, room, after)] if keyed else [],
            )
            began = time.perf_counter()
            answer = await tasks.settle_and_claim(connection, ended, request)
            times.append(time.perf_counter() - began)
            ended = [
                Completed(task.id, task.claim_seq, '{"ok":1}', rate_key=task.rate_key)
                for task in answer.claimed
            ]
            after = answer.claimed[-1].rate_key if answer.claimed else ""
            if not keyed and answer.claimed:
                last = answer.claimed[-1]
                place = (last.priority, str(last.enqueued_at), last.id)
        await tasks.release(connection, worker_id, [])
        await workers.deregister(connection, worker_id)
    return times


def _drain(bench: Bench, count: int, *flags: str, app: str = APP) -> float:
    """Return the tasks per second of what is in the queue."""
    bench.settle_statistics()
    with bench.worker("--processes", "2", "--max-tasks-per-child", "0", *flags, app=app):
        bench.wait_until(
            "SELECT NOT EXISTS (SELECT FROM horsies_tasks_live WHERE task_name <> 'keyed_moment')", 240
        )
    seconds = bench.value(
        "SELECT extract(epoch FROM max(completed_at) - min(started_at)) FROM horsies_tasks"
        " WHERE NOT live AND task_name <> 'keyed_moment'"
    )
    return count / float(seconds)


def _drains(bench: Bench, count: int) -> Iterator[Figure]:
    """Ten thousand keys that run one task at a time each, beside the same tasks without keys."""
    number = min(count, 10_000)
    bench.empty()
    unkeyed_noop.send_many([(n,) for n in range(count)]).unwrap()
    default = _drain(bench, count)
    yield Figure("drain without keys, 2 processes, claimed ahead", default, "tasks/s")
    few = max(500, count // 5)
    bench.empty()
    unkeyed_noop.send_many([(n,) for n in range(few)]).unwrap()
    strict = _drain(bench, few, "--prefetch-buffer", "0")
    yield Figure(
        "drain without keys, 2 processes, strict", strict, "tasks/s", strict / default, "claimed ahead"
    )
    bench.empty()
    keyed_noop.send_many([(n % number,) for n in range(few)]).unwrap()
    with_keys = _drain(bench, few)
    yield at_least(
        f"drain of {number:,} keys, limit 1", with_keys, "tasks/s", with_keys / default, "claimed ahead", 0.4
    )
    yield at_least("  the same, beside strict", with_keys, "tasks/s", with_keys / strict, "strict", 0.4)
    bench.empty()
    unkeyed_async.send_many([(n,) for n in range(count)]).unwrap()
    loops = _drain(bench, count)
    yield Figure("drain of async tasks without keys, 100 at once", loops, "tasks/s")
    bench.empty()
    keyed_async.send_many([(n % number,) for n in range(count)]).unwrap()
    with_keys = _drain(bench, count)
    yield at_least(
        f"drain of async tasks of {number:,} keys, limit 1",
        with_keys,
        "tasks/s",
        with_keys / loops,
        "without keys",
        0.4,
    )
    bench.empty()
    batched_noop.send_many([(n,) for n in range(count)]).unwrap()
    batched = _drain(bench, count, app=BATCH_APP)
    yield at_least("drain in batches of 100", batched, "tasks/s", batched / default, "claimed ahead", 1.0)


def _beside(bench: Bench, count: int, waiting: int) -> Iterator[Figure]:
    """The feature unused; and tasks without keys beside many with keys that have to wait."""
    rates: dict[str, list[float]] = {"unused": [], "known": [], "one": [], "many": []}
    for _ in range(3):  # in turns, so that a slow moment of the machine meets all
        for name, app in (("unused", "bench.app:app"), ("known", APP), ("one", APP), ("many", APP)):
            bench.empty()
            bench.session.execute("TRUNCATE horsies_key_slots, horsies_keys")
            if name in ("one", "many"):
                lane = "'key=big'" if name == "one" else "'key=' || n % 1000"
                bench.session.execute(
                    "INSERT INTO horsies_tasks_live (task_name, rate_key, kwargs)"
                    f" SELECT 'keyed_moment', {lane}, '{{}}' FROM generate_series(1, {waiting}) AS n".encode()
                )
                bench.session.execute(
                    "INSERT INTO horsies_keys (rate_key, paused_at, paused_by)"
                    " SELECT DISTINCT rate_key, now(), 'bench' FROM horsies_tasks_live"
                )
            task = noop if name == "unused" else unkeyed_noop
            task.send_many([(n,) for n in range(count)]).unwrap()
            rates[name].append(_drain(bench, count, app=app))
    unused = statistics.median(rates["unused"])
    yield Figure("drain without keys, no task with keys known", unused, "tasks/s")
    for name, what, least in (
        ("known", "  tasks with keys known, none sent", 0.97),
        ("one", f"  beside {waiting:,} waiting tasks of one key", 0.9),
        ("many", f"  beside {waiting:,} waiting tasks of 1,000 keys", 0.9),
    ):
        value = statistics.median(rates[name])
        yield at_least(what, value, "tasks/s", value / unused, "none known", least)
    bench.session.execute("TRUNCATE horsies_keys")


def _turns(bench: Bench, count: int, backlog: int) -> Iterator[Figure]:
    """From the send of a new key's first task to its start, beside a key with a long backlog and others with one each."""
    bench.empty()
    keyed_moment.send_many([("big", RUN_SECONDS)] * backlog).unwrap()
    keyed_moment.send_many([(f"other{n}", RUN_SECONDS) for n in range(1_000)]).unwrap()
    bench.settle_statistics()
    with bench.worker("--processes", "2", "--max-tasks-per-child", "0", app=APP):
        bench.wait_until(
            "SELECT NOT EXISTS (SELECT FROM horsies_tasks_live WHERE rate_key <> 'key=big')", 120
        )
        done = bench.value("SELECT count(*) FROM horsies_tasks WHERE NOT live AND rate_key = 'key=big'")
        yield Figure(
            "1,000 keys with one task each beside a backlog: tasks of the backlog run meanwhile",
            float(done),
            "",
        )
        late: list[float] = []
        for n in range(count):
            began = time.monotonic()
            late.append(keyed_moment.send(f"new{n}", RUN_SECONDS).unwrap().get(30_000).unwrap() - began)
    late.sort()
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        value = 1000 * late[min(count - 1, int(share * count))]
        most = 50 + 1000 * RUN_SECONDS
        yield Figure(
            f"  send → start of a new key, {name}", value, "ms", target=f"≤ {most:g}", met=value <= most
        )
