"""What the dashboard reads costs the same however much there is, cannot write, and was counted once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import ClientCursor, errors

from horsies import PostgresConfig, RetentionConfig
from horsies.portal import run_sync
from horsies.storage import dashboard
from horsies.storage.database import connect
from horsies.storage.rollups import roll
from horsies.storage.sights import Depth, Node, Queue, Slot
from horsies.web.graph import levels, picture
from horsies.web.series import RANGES, points, quantile
from horsies.worker.janitor import Janitor

Db = psycopg.Connection[dict[str, Any]]
MANY = 20_000
FILL = f"""
INSERT INTO horsies_tasks_live (task_name, kwargs) SELECT 'add', '{{}}' FROM generate_series(1, {MANY});
INSERT INTO horsies_tasks (task_name, live, status, started_at, terminal_at, error_code)
SELECT 'add', false, CASE WHEN n % 50 = 0 THEN 'FAILED' ELSE 'COMPLETED' END, now(), now(), 'X'
  FROM generate_series(1, {MANY}) AS n;
INSERT INTO horsies_rollups
SELECT date_trunc('minute', now()) - make_interval(mins => n), CASE WHEN q = 0 THEN '' ELSE 'q' || q END,
       CASE WHEN q = 0 THEN '' ELSE 'add' END, 1, 0, 0, 0, 0, 0, '{{}}', '{{}}'
  FROM generate_series(1, 1440) AS n CROSS JOIN generate_series(0, 20) AS q;
"""
VALUES: dict[str, Any] = {
    "before": UUID(int=1 << 127), "after": UUID(int=0), "ended": "infinity", "since": datetime(2020, 1, 1, tzinfo=UTC),
    "most": 1_000, "limit": 50, "status": None, "queue": None, "name": None, "code": None, "q": None, "id": uuid4(),
    "shown": 100, "until": datetime.now(UTC), "part": "args", "parts": True,
}  # fmt: skip


PAGES = (
    "tasks", "tasks_end", "live_tasks", "live_tasks_end", "failed_tasks", "failed_tasks_end", "codes", "task", "attempts",
    "payload", "queues", "children", "workflows", "nodes",
)  # fmt: skip
MEANT = {
    "failed_tasks": "terminal_at_id_idx", "tasks": "_pkey", "queues": "horsies_tasks_live_claim",
    "minutes": "horsies_rollups_minutes",
}  # fmt: skip


def test_no_page_walks_through_all_tasks(db: Db) -> None:
    db.execute(FILL.encode())
    db.execute("VACUUM ANALYZE")
    large = _large(db)

    for verb in PAGES:
        walked = [
            table for kind, table, _ in _scans(_plan(db, verb)) if kind == "Seq Scan" and table in large
        ]
        assert (verb, walked) == (verb, [])
    for verb, index in MEANT.items():
        indexes = [name for _, _, name in _scans(_plan(db, verb)) if name]
        assert any(name.endswith(index) for name in indexes), (verb, indexes)


def _large(db: Db) -> set[str]:
    rows = db.execute(
        "SELECT relname FROM pg_class WHERE relname LIKE 'horsies_tasks%' AND reltuples > 1000"
    ).fetchall()
    assert len(rows) >= 2
    return {row["relname"] for row in rows}


def _plan(db: Db, verb: str) -> dict[str, Any]:
    cursor = ClientCursor(db)
    values = VALUES | ({"since": datetime.now(UTC) - timedelta(hours=1)} if verb == "minutes" else {})
    cursor.execute(b"EXPLAIN (FORMAT JSON) " + dashboard.SQL[verb], values)
    row: Any = cursor.fetchone()
    return row["QUERY PLAN"][0]["Plan"]


def _scans(node: dict[str, Any]) -> Iterator[tuple[str, str, str | None]]:
    if "Scan" in node["Node Type"]:
        yield node["Node Type"], node.get("Relation Name", ""), node.get("Index Name")
    for child in node.get("Plans", ()):
        yield from _scans(child)


def test_a_viewers_connection_cannot_write_and_gives_up_by_itself(database_url: str) -> None:
    async def look() -> tuple[Any, ...] | None:
        database = dashboard.viewing(
            PostgresConfig(database_url=f"{database_url}?options=-csearch_path%3Dpublic")
        )
        async with database.connection() as connection:
            with pytest.raises(errors.ReadOnlySqlTransaction):
                await connection.execute("INSERT INTO horsies_tasks (task_name) VALUES ('x')")
            settings = "SELECT current_setting('statement_timeout'), current_setting('search_path')"
            row = await (await connection.execute(settings)).fetchone()
        await database.close()
        return row

    assert asyncio.run(look()) == ("5s", "public")


def test_each_minute_is_counted_once_whoever_counts(database_url: str, db: Db) -> None:
    db.execute(
        "INSERT INTO horsies_tasks (task_name, live, status, enqueued_at, started_at, terminal_at)"
        " SELECT 'add', false, 'COMPLETED', at - interval '3 s', at - interval '2 s', at"
        "   FROM generate_series(1, 10) AS n,"
        "        LATERAL (SELECT date_trunc('minute', now()) - make_interval(mins => n * 20, secs => -7) AS at) AS moment"
    )

    async def count() -> int:
        async with await connect(PostgresConfig(database_url=database_url)) as connection:
            return await roll(connection)

    async def at_once() -> list[int]:
        return await asyncio.gather(*(count() for _ in range(3)))

    counted = sum(run_sync(at_once())) + run_sync(count())

    minutes = db.execute(
        "SELECT count(*), sum(completed) FROM horsies_rollups WHERE queue_name = ''"
    ).fetchone()
    total = db.execute("SELECT completed, run_ms, wait_ms, runs FROM horsies_totals").fetchone()
    assert minutes == {"count": counted, "sum": 10}
    assert 1438 <= counted <= 1442
    assert total == {"completed": 10, "run_ms": 20_000, "wait_ms": 10_000, "runs": [0] * 8 + [10] + [0] * 7}


def test_the_leading_worker_counts_and_nobody_else(database_url: str, db: Db) -> None:
    postgres = PostgresConfig(database_url=database_url)

    async def keep_house(leads: bool, seconds: float) -> int:
        housework = asyncio.create_task(
            Janitor(postgres, RetentionConfig(), lambda: leads, count_seconds=0.01).run()
        )
        try:
            async with asyncio.timeout(seconds):
                while not (counted := db.execute("SELECT count(*) FROM horsies_rollups").fetchone()["count"]):
                    await asyncio.sleep(0.02)
                return counted
        except TimeoutError:
            return 0
        finally:
            housework.cancel()
            await asyncio.gather(housework, return_exceptions=True)

    assert asyncio.run(keep_house(leads=False, seconds=0.2)) == 0
    assert asyncio.run(keep_house(leads=True, seconds=20)) > 0


def test_a_backlog_too_deep_to_count_is_told_from_the_last_sounding(database_url: str, db: Db) -> None:
    deep = dashboard.MOST_COUNTED + 50
    db.execute("INSERT INTO horsies_tasks_live (task_name) SELECT 'add' FROM generate_series(1, %s)", (deep,))

    async def ask() -> list[Queue]:
        async with await connect(PostgresConfig(database_url=database_url)) as connection:
            before = await dashboard.queues(connection)
            await roll(connection)
            return [*before, *await dashboard.queues(connection)]

    assert [(queue.is_deep, queue.sounded) for queue in run_sync(ask())] == [(True, None), (True, deep)]


def test_what_no_minute_was_counted_of_comes_from_the_latest_slots() -> None:
    now = datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC)
    counted = [
        Slot(now.replace(second=0) - timedelta(minutes=m), 60, 0, 0, None, None) for m in range(59, 2, -1)
    ]
    recent = [Slot(now - timedelta(seconds=s), 1, 1, 0, None, None) for s in range(300, 0, -5)]

    sounded = [Depth(now - timedelta(minutes=m, seconds=5), m, 1) for m in range(9, 0, -1)]

    drawn = points(RANGES["1h"], counted, recent, sounded, now)

    assert [point.pending for point in drawn[-10:]] == [None, *range(9, 0, -1)]
    assert [point.pending for point in points(RANGES["5m"], counted, recent, sounded, now)][::12] == [
        5,
        4,
        3,
        2,
        1,
    ]
    assert [point.completed for point in drawn] == [0] + [60] * 57 + [12, 12]
    assert drawn[-1].failed == 12
    assert [point.completed for point in points(RANGES["5m"], counted, recent, [], now)] == [1] * 60


def test_a_quantile_lies_between_the_bounds_of_its_histogram() -> None:
    histogram = [0] * 16
    histogram[7], histogram[15] = 100, 1

    assert quantile([0] * 16, 0.5) is None
    assert quantile(histogram, 0.5) == pytest.approx(0.7525)
    assert quantile(histogram, 1.0) == 1800


def test_a_node_stands_to_the_right_of_all_that_it_waits_for() -> None:
    def node(index: int, *before: int) -> Node:
        return Node(index, f"n{index}", "task", "add", "PENDING", None, None, list(before), None, None, None)

    nodes = [node(0), node(1), node(2, 0, 1), node(3, 0), node(4, 2, 3), node(5, 99)]
    drawn = picture(nodes)

    assert levels(nodes) == {0: 0, 1: 0, 2: 1, 3: 1, 4: 2, 5: 0}
    assert len({(box.x, box.y) for box in drawn.boxes}) == len(nodes)
    assert len(drawn.edges) == 5
