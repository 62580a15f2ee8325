"""The cost of a page does not grow with the number of tasks, and the dashboard's reading role cannot write."""

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
from horsies.db.connection import connect
from horsies.db.queries import inspect, statistics
from horsies.db.queries.inspect import FIRST_PAGE, PageStart, Queue, TaskFilter, WorkflowNode
from horsies.db.queries.retention import roll_up
from horsies.db.queries.statistics import Depth, TimeSlot
from horsies.event_loop import run_sync
from horsies.web.charts import RANGES, Series, plot, points, quantile
from horsies.web.graph import picture
from horsies.web.state import read_only_database
from horsies.worker.retention import run_retention

Db = psycopg.Connection[dict[str, Any]]
MANY = 20_000
SQL = {**inspect.SQL, **statistics.SQL}
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
    "most": 1_000, "limit": 50, "status": None, "queue": None, "name": None, "code": None, "key": None, "q": None, "in_arguments": True, "id": uuid4(),
    "shown": 100, "until": datetime.now(UTC), "part": "args", "parts": True, "live_only": False, "with_messages": True,
    "ids": [uuid4()], "kind": None, "sort": "run", "sign": -1, "skipped": 0, "step": 60.0, "part_count": 24, "by": "task",
    "worker_id": uuid4(),
}  # fmt: skip


PAGES = (
    "tasks", "tasks_end", "failed_tasks", "failed_tasks_end", "failures_by_queue", "error_codes", "task", "attempts",
    "payload", "queues", "running_tasks", "workflows", "nodes", "sorted_tasks", "sorted_failures", "failure_groups",
    "latencies",
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


@pytest.mark.parametrize("verb", ["queues", "running_tasks"])
def test_the_first_tasks_of_a_deep_queue_are_read_in_the_order_of_an_index(db: Db, verb: str) -> None:
    db.execute("INSERT INTO horsies_tasks_live (task_name) SELECT 'add' FROM generate_series(1, %s)", (MANY,))
    db.execute("VACUUM ANALYZE horsies_tasks_live")

    with db.transaction():
        db.execute(inspect.IN_INDEX_ORDER)
        plan = _plan(db, verb, most=inspect.MOST_COUNTED)

    ways = {(kind, index) for kind, table, index in _scans(plan) if table == "horsies_tasks_live"}
    by_key = ("Index Scan", "horsies_tasks_live_pkey")
    assert ways - {by_key} <= {
        (kind, f"horsies_tasks_live_{index}")
        for kind in ("Index Scan", "Index Only Scan")
        for index in ("claim", "parked", "follows")
    }
    assert ways


def test_a_list_of_failures_reads_nothing_of_the_backlog(db: Db) -> None:
    db.execute("INSERT INTO horsies_tasks_live (task_name) SELECT 'add' FROM generate_series(1, %s)", (MANY,))
    db.execute("VACUUM ANALYZE horsies_tasks_live")

    for verb in ("failed_tasks", "failed_tasks_end"):
        scans = _scans(_plan(db, verb))
        assert [index for _, table, index in scans if table == "horsies_tasks_live"] == [
            "horsies_tasks_live_failed"
        ]


def test_a_failed_task_that_stayed_in_the_live_table_is_listed(database_url: str, db: Db) -> None:
    stuck = uuid4()
    db.execute("INSERT INTO horsies_tasks_live (id, task_name) VALUES (%s, 'add')", (stuck,))
    db.execute(
        "UPDATE horsies_tasks_live SET status = 'FAILED', claimed_by_worker_id = gen_random_uuid(), failed_at = now(),"
        " error_code = 'POISONED_ROW'"
    )
    db.execute(
        "INSERT INTO horsies_tasks (id, task_name, live, status, failed_at, terminal_at)"
        " SELECT gen_random_uuid(), 'add', false, 'FAILED', at, at"
        "   FROM generate_series(now() - interval '3 min', now() + interval '2 min', interval '1 min') AS at"
    )

    async def pages() -> list[str]:
        found: list[str] = []
        start: PageStart | None = FIRST_PAGE
        async with await connect(PostgresConfig(database_url=database_url)) as connection:
            while start is not None:
                page = await inspect.tasks(connection, TaskFilter(), start, limit=2, failed=True)
                found += [task.task_id for task in page.tasks]
                start = page.next
        return found

    found = run_sync(pages())
    assert len(found) == len(set(found)) == 7
    assert found.index(str(stuck)) in (2, 3)


def _large(db: Db) -> set[str]:
    rows = db.execute(
        "SELECT relname FROM pg_class WHERE relname LIKE 'horsies_tasks%' AND reltuples > 1000"
    ).fetchall()
    assert len(rows) >= 2
    return {row["relname"] for row in rows}


def _plan(db: Db, verb: str, **others: Any) -> dict[str, Any]:
    cursor = ClientCursor(db)
    values = VALUES | ({"since": datetime.now(UTC) - timedelta(hours=1)} if verb == "minutes" else {})
    cursor.execute(b"EXPLAIN (FORMAT JSON) " + SQL[verb], values | others)
    row: Any = cursor.fetchone()
    return row["QUERY PLAN"][0]["Plan"]


def _scans(node: dict[str, Any]) -> Iterator[tuple[str, str, str | None]]:
    if "Scan" in node["Node Type"]:
        yield node["Node Type"], node.get("Relation Name", ""), node.get("Index Name")
    for child in node.get("Plans", ()):
        yield from _scans(child)


def test_a_viewers_connection_cannot_write_and_gives_up_by_itself(database_url: str) -> None:
    async def look() -> tuple[Any, ...] | None:
        database = read_only_database(
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
            return await roll_up(connection)

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
            run_retention(postgres, RetentionConfig(), lambda: leads, count_seconds=0.01)
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
    deep = inspect.MOST_COUNTED + 50
    db.execute("INSERT INTO horsies_tasks_live (task_name) SELECT 'add' FROM generate_series(1, %s)", (deep,))

    async def ask() -> list[Queue]:
        async with await connect(PostgresConfig(database_url=database_url)) as connection:
            before = await inspect.queues(connection)
            await roll_up(connection)
            return [*before, *await inspect.queues(connection)]

    assert [(queue.is_deep, queue.sounded) for queue in run_sync(ask())] == [(True, None), (True, deep)]


def test_what_no_minute_was_counted_of_comes_from_the_latest_slots() -> None:
    now = datetime(2026, 1, 1, 12, 0, 30, tzinfo=UTC)
    counted = [
        TimeSlot(now.replace(second=0) - timedelta(minutes=m), 60, 0, 0, None, None) for m in range(59, 2, -1)
    ]
    recent = [TimeSlot(now - timedelta(seconds=s), 1, 1, 0, None, None) for s in range(300, 0, -5)]

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
    assert quantile(histogram, 0.5) == pytest.approx(0.755)
    assert quantile(histogram, 1.0) == 1800
    assert quantile(histogram, 1.0, 7_200.0) == 7_200


def test_no_quantile_exceeds_the_longest_time() -> None:
    between_10_and_30_s = [0] * 11 + [1] + [0] * 4
    many = [40] * 11 + [60] + [0] * 4

    assert [quantile(between_10_and_30_s, share, 12.0) for share in (0.5, 0.95, 0.99)] == [12, 12, 12]
    found = [quantile(many, share, 12.0) or 0 for share in (0.5, 0.9, 0.95, 0.99, 1.0)]
    assert found == sorted(found)
    assert found[-1] == 12
    # Anybody may have written the rows, so the longest time may be below a bucket that has a time.
    assert quantile(between_10_and_30_s, 0.5, 3.0) == 10


def test_a_plot_marks_a_value_between_two_gaps_with_a_dot() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    starts = [start + timedelta(minutes=n) for n in range(6)]

    drawn = plot("Run times", "s", starts, [Series("run", "warm", [None, 1.0, None, 0.5, 1.0, None])])
    unbroken = plot("Run times", "s", starts, [Series("run", "warm", [1.0] * 6)])

    assert [dots for *_, dots in drawn["paths"]] == ["M200.0 0.0h0.1"]
    assert [dots for *_, dots in unbroken["paths"]] == [""]


def test_a_node_stands_to_the_right_of_all_that_it_waits_for() -> None:
    def node(index: int, *before: int) -> WorkflowNode:
        return WorkflowNode(
            index, f"n{index}", "task", "add", "PENDING", None, None, list(before), None, None, None
        )

    nodes = [node(0), node(1), node(2, 0, 1), node(3, 0), node(4, 2, 3), node(5, 99)]
    drawn = picture(nodes)

    columns = sorted({box.x for box in drawn.boxes})
    assert [columns.index(box.x) for box in sorted(drawn.boxes)] == [0, 0, 1, 1, 2, 0]
    assert len({(box.x, box.y) for box in drawn.boxes}) == len(nodes)
    assert len(drawn.edges) == 5
