"""How long the dashboard's screens take with a great many tasks, and what open dashboards cost the database."""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from collections.abc import Iterator

import httpx2 as httpx

from bench.figures import Figure, at_most
from bench.harness import Bench
from horsies.config import PostgresConfig
from horsies.db.connection import connect
from horsies.db.queries.retention import roll_up
from horsies.web import create_dashboard

PATHS = (
    "/", "/?range=24h", "/tasks", "/tasks?status=FAILED", "/tasks?status=PENDING", "/tasks?name=none", "/tasks?q=987654",
    "/?range=24h&by=task", "/tasks?sort=-run", "/tasks/{id}", "/queues", "/queues/queue-1?range=24h", "/names/task-1?range=24h",
    "/failures", "/workers", "/workflows", "/schedules", "/health", "/metrics",
)  # fmt: skip
PAINT_MS, TRANSACTIONS_PER_SECOND, WEIGHT_KB = 300, 20, 200
VIEWERS, ROUNDS = 50, 5
_CHUNK = 50_000
# The files that a page and its scripts name.
_FILES = re.compile(r'(?:href|src)="(/static/[^"]+)"|from "\./([^"]+)"')
# Spread over a day, ids in the order of sending, one in a hundred failed.
_KEEP = """
INSERT INTO horsies_tasks (id, task_name, queue_name, live, status, kwargs, result, error_code, claim_seq, sent_at,
                           enqueued_at, started_at, terminal_at)
SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0')
        || substr(replace(gen_random_uuid()::text, '-', ''), 13))::uuid,
       'task-' || n %% 20, 'queue-' || n %% 5, false, CASE WHEN n %% 100 = 0 THEN 'FAILED' ELSE 'COMPLETED' END,
       '{"x":' || n || '}', '{"ok":1}', CASE WHEN n %% 100 = 0 THEN 'BROKEN' END, 1, at, at, at, at
  FROM (SELECT n, now() - interval '1 day' * (1 - n::double precision / %(total)s) AS at
          FROM generate_series(%(first)s::integer, %(last)s::integer) AS n) AS spread
"""
_WAIT = """
INSERT INTO horsies_tasks_live (id, task_name, queue_name, kwargs)
SELECT (lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0')
        || substr(replace(gen_random_uuid()::text, '-', ''), 13))::uuid, 'task-1', 'queue-1', '{"x":1}'
  FROM generate_series(%(first)s::integer, %(last)s::integer)
"""


def dashboard(bench: Bench, kept: int, seconds: float) -> Iterator[Figure]:
    """First paint of every screen, and fifty viewers, with so many tasks, a tenth of them waiting."""
    bench.empty()
    for statement, count in ((_KEEP, kept - kept // 10), (_WAIT, kept // 10)):
        for first in range(1, count + 1, _CHUNK):
            values = {"first": first, "last": min(first + _CHUNK - 1, count), "total": count}
            bench.session.execute(statement.encode(), values)
    bench.session.execute("VACUUM ANALYZE")
    asyncio.run(_count(bench.url))
    task_id = bench.value("SELECT id FROM horsies_tasks_history WHERE status = 'FAILED' LIMIT 1")
    for path in PATHS:
        wanted = path.replace("{id}", str(task_id))
        took = asyncio.run(_paint(bench.url, wanted))
        median = statistics.median(took) * 1000
        yield at_most(
            f"first paint of {path}, {kept:,} tasks", median, "ms", median / PAINT_MS, "300 ms", 1.0
        )
        yield Figure("  the slowest", max(took) * 1000, "ms")
    before, began = bench.counters().transactions, time.monotonic()
    asyncio.run(_watch(bench.url, str(task_id), seconds))
    asked = (bench.counters().transactions - before) / (time.monotonic() - began)
    name = f"transactions of {VIEWERS} open dashboards"
    yield at_most(name, asked, "/s", asked / TRANSACTIONS_PER_SECOND, "20/s", 1.0)
    heaviest = max(
        (asyncio.run(_weigh(bench.url, path.replace("{id}", str(task_id)))), path)
        for path in PATHS
        if path != "/metrics"
    )
    name = f"weight of the heaviest page, {heaviest[1]}, with its files"
    yield at_most(name, heaviest[0] / 1000, "kB", heaviest[0] / 1000 / WEIGHT_KB, "200 kB", 1.0)


async def _count(url: str) -> None:
    async with await connect(PostgresConfig(database_url=url)) as connection:
        await roll_up(connection)


async def _paint(url: str, path: str) -> list[float]:
    """Each time with a dashboard that knows nothing yet and has no connection."""
    took: list[float] = []
    for _ in range(ROUNDS):
        app = create_dashboard(url)
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://localhost"
        ) as client:
            began = time.perf_counter()
            answer = await client.get(path)
            took.append(time.perf_counter() - began)
            assert answer.status_code == 200, (path, answer.status_code)
        await app.close()
    return took


async def _weigh(url: str, path: str) -> int:
    """Return the bytes of a page with all the files that it loads, as a browser without a cache receives them."""
    app = create_dashboard(url)
    found: dict[str, int] = {}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        wanted = [path]
        while wanted:
            address = wanted.pop()
            answer = await client.get(address)
            assert answer.status_code == 200, (address, answer.status_code)
            found[address.partition("?v=")[0]] = len(answer.content)
            files = (
                _FILES.findall(answer.text)
                if address.endswith(".js") or address == path or "?v=" in address
                else []
            )
            for name in (first or f"/static/{second}" for first, second in files):
                if name.partition("?v=")[0] not in found:
                    wanted.append(name)
    await app.close()
    return sum(found.values())


async def _watch(url: str, task_id: str, seconds: float) -> None:
    """Viewers on different screens, all of which ask again every second: as if something changed all the time."""
    app = create_dashboard(url)
    screens = [path.replace("{id}", task_id) for path in PATHS if path != "/metrics"]
    until = time.monotonic() + seconds

    async def view(number: int) -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            while time.monotonic() < until:
                await client.get(screens[number % len(screens)], headers={"X-Horsies-Fragment": "1"})
                await asyncio.sleep(1)

    await asyncio.gather(*(view(number) for number in range(VIEWERS)))
    await app.close()
