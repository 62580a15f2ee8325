"""Every statement of the hot path keeps its plan: the live table is read through the index that was made for it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import AsyncClientCursor

from horsies import PostgresConfig
from horsies.db.connection import connect_worker
from horsies.db.sql import statements
from tests.pg.conftest import quiet_database

PENDING, RUNNING, DAYS = 20_000, 50, 4
WORKER = UUID(int=1)
SINCE = "2000-01-01"
KEY, CLAIM, EXPIRY = "horsies_tasks_live_pkey", "horsies_tasks_live_claim", "horsies_tasks_live_expiry"
KEYED = "horsies_tasks_live_keyed"
PARKED = "horsies_tasks_live_parked"
UNIQUE = "horsies_tasks_live_unique"
# Only the tasks that follow others are in this index: at most one for each that runs.
FOLLOWS = "horsies_tasks_live_follows"
FIRST_COLUMN = {
    UNIQUE: "unique_key",
    CLAIM: "queue_name",
    EXPIRY: "good_until",
    KEYED: "queue_name",
    PARKED: "enqueued_at",
}

_LANE = {"pool": 0, "queue_name": "default", "is_async": False, "rate_key": "", "quota": 100}
_FROM_THE_START = {"priority": 0, "enqueued_at": SINCE, "id": str(UUID(int=0))}
_ID = str(UUID(int=7))
_FAILURE = {"id": _ID, "claim_seq": 1, "result": "1", "delay_seconds": 1.0, "on_failure": "add"}
_STEP = {
    "task_id": _ID,
    "claim_seq": 1,
    "name": "a",
    "kind": "step",
    "attempt": 1,
    "seconds": 0.1,
    "result": "1",
}
VALUES: Mapping[str, Any] = {
    "completed": json.dumps({f"{_ID}/1": "1"}),
    "starts": json.dumps({f"{_ID}/1": 1}),
    "failures": json.dumps([_FAILURE]),
    "calls": json.dumps({f"{_ID}/1": True}),
    "lanes": json.dumps([_LANE | _FROM_THE_START]),
    "pools": json.dumps([{"pool": 0, "room": 100, "idle": 1, "pids": [1], "seconds": 1.0}]),
    "caps": json.dumps([{"queue_name": "default", "max_tasks": 5, "in_use": 0, "recorded": 0}]),
    "rates": ["add"],
    "pids": [1, 2],
    "batches": '[{"rate_key":"batch=add","linger":1}]',
    "queues": ["default", "other"],
    "ended_steps": json.dumps([_STEP]),
    "tasks": json.dumps([_STEP]),
    "parks": json.dumps(
        [{"id": _ID, "claim_seq": 1, "attempt": 1, "step": {"name": "rest", "kind": "sleep", "seconds": 1}}]
    ),
    "timeout": "1",
    "task_id": _ID,
    "claim_seq": "1",
    "shown": 100,
    "limit": 100,
    "batch": 100,
    "worker_id": WORKER,
    "hostname": "host",
    "process_name": "hands",
    "left_out": json.dumps({"default": ["new"]}),
    "run_times": json.dumps({"add": 0.001}),
    "may_stay_unflushed": "t",
    "names": ["new"],
    "result": "1",
    "cancelled": "1",
    "status": "RUNNING",
    "grace_seconds": 1.0,
    "keep": json.dumps([_FAILURE]),
    "ids": [UUID(int=7), UUID(int=8)],
    "id": UUID(int=7),
    "since": SINCE,
    "requeue": True,
    "fail": True,
    "claimed_seconds": 1.0,
    "quarantine_seconds": 1.0,
    "key_lanes": json.dumps([{"queue_name": "default", "is_async": False, "room": 10, "after": ""}]),
    "steps": 100,
    "rate_keys": ["key=a"],
    "key": "a",
    "most": 100,
    "read": 100,
    "busiest": False,
}

_SEND = "INSERT INTO horsies_tasks_live (task_name) SELECT 'add' FROM generate_series(1, %s)"
_FILL = f"""
SELECT horsies_prepare_history(1);
INSERT INTO horsies_tasks_live (task_name, queue_name, priority, kwargs, enqueued_at, good_until)
SELECT 'add', 'default', 100, '{{}}', now(), CASE WHEN n % 20 = 0 THEN now() + interval '1 day' END
  FROM generate_series(1, {PENDING}) AS n;
UPDATE horsies_tasks_live
   SET status = 'RUNNING', claimed_by_worker_id = '{WORKER}', claim_seq = 1, started_at = now()
 WHERE id IN (SELECT id FROM horsies_tasks_live ORDER BY id LIMIT {RUNNING});
INSERT INTO horsies_workers (worker_id, hostname, pid, processes, queues, lease_expires_at)
VALUES ('{WORKER}', 'host', 1, 1, '{{default}}', now() + interval '1 day');
INSERT INTO horsies_tasks (task_name, live, status, started_at, completed_at, terminal_at, result)
SELECT 'add', false, 'COMPLETED', now(), now(), now() - make_interval(days => n % {DAYS}), '1'
  FROM generate_series(1, {PENDING}) AS n;
"""


@pytest.fixture(scope="module")
def busy_url(quiet_url: str) -> Iterator[str]:
    """A database with a backlog, tasks at work for workers that there are not, and history, which the planner knows."""
    with psycopg.connect(quiet_url, autocommit=True) as connection:
        connection.execute(_FILL.encode())
        connection.execute("VACUUM ANALYZE horsies_tasks")
        yield quiet_url
        connection.execute("TRUNCATE horsies_tasks")


@pytest.mark.parametrize(
    ("noun", "verb", "indexes"),
    [
        ("tasks", "settle_and_claim", {KEY, CLAIM}),
        ("tasks", "settle_and_claim_for_idle", {KEY, CLAIM}),
        ("tasks", "settle_and_claim_within", {KEY, CLAIM}),
        ("tasks", "lock_keys", {KEY, CLAIM}),
        ("tasks", "settle_and_claim_keyed", {KEY, CLAIM}),
        ("tasks", "wake_for_keys", {CLAIM}),
        ("tasks", "batch_is_ready", {CLAIM}),
        ("tasks", "claim_batches", {KEY, CLAIM}),
        ("keys", "key", {KEY, CLAIM, f"{CLAIM}, from its start"}),
        ("tasks", "start", {KEY}),
        ("tasks", "fail", {KEY}),
        ("tasks", "give_back", {KEY}),
        ("tasks", "held", {KEY}),
        ("tasks", "defer_unknown", {KEY}),
        ("cancellation", "cancel", {KEY}),
        ("tasks", "expire", {KEY, EXPIRY}),
        # The first row by expiry is one step into that index.
        (
            "tasks",
            "next_due",
            {CLAIM, KEYED, UNIQUE, *(f"{index}, from its start" for index in (EXPIRY, PARKED, FOLLOWS))},
        ),
        ("steps", "store", {KEY}),
        ("steps", "load", {KEY}),
        ("steps", "lock_to_park", {KEY}),
        ("steps", "park", {KEY}),
        ("steps", "wake_due", {KEY, PARKED}),
        ("steps", "fence", {KEY}),
        ("tasks", "watch", {KEY}),
        ("tasks", "look", {KEY}),
        ("inspect", "task", {KEY}),
    ],
)
def test_the_live_table_is_read_through_its_indexes(
    busy_url: str, noun: str, verb: str, indexes: set[str]
) -> None:
    scans = _scans(busy_url, noun, verb)

    assert {way for table, way in scans if table == "horsies_tasks_live"} == indexes


BY_KEY = [
    ("tasks", "start"),
    ("tasks", "fail"),
    ("tasks", "give_back"),
    ("tasks", "defer_unknown"),
    ("tasks", "watch"),
    ("steps", "store"),
    ("steps", "load"),
    ("steps", "park"),
    ("cancellation", "cancel"),
    ("workflows", "complete"),
    ("workflows", "complete_and_load"),
]
CLAIMS = [
    ("tasks", "settle_and_claim"),
    ("tasks", "settle_and_claim_for_idle"),
    ("tasks", "settle_and_claim_within"),
    ("tasks", "lock_keys"),
    ("tasks", "settle_and_claim_keyed"),
]


@pytest.mark.parametrize("known", [0, 1, 30, 3_000])
@pytest.mark.parametrize(("noun", "verb"), [*CLAIMS, *BY_KEY])
def test_no_plan_walks_the_live_table_whatever_was_known_of_it(
    quiet_url: str, noun: str, verb: str, known: int
) -> None:
    """A plan may be made when there is next to nothing, or when nothing runs, and is then kept."""
    with psycopg.connect(quiet_url, autocommit=True) as connection:
        connection.execute(_SEND, (known,))
        connection.execute("VACUUM ANALYZE horsies_tasks_live")
        try:
            scans = _scans(quiet_url, noun, verb)
        finally:
            connection.execute("TRUNCATE horsies_tasks")

    ways = {way for table, way in scans if table == "horsies_tasks_live"}
    assert ways
    assert not {way for way in ways if way not in (KEY, CLAIM, EXPIRY)}


@pytest.fixture(scope="module")
def bloated_url(server_url: str, template: str) -> Iterator[str]:
    """A database whose live table is empty and full of dead rows, which an old snapshot keeps from being taken away."""
    for url in quiet_database(server_url, template):
        with psycopg.connect(url, autocommit=True) as connection, psycopg.connect(url) as reader:
            reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            reader.execute("SELECT count(*) FROM horsies_tasks")
            connection.execute(_SEND, (PENDING,))
            connection.execute("DELETE FROM horsies_tasks_live")
            connection.execute("VACUUM ANALYZE horsies_tasks_live")
            yield url


@pytest.mark.parametrize(("noun", "verb"), [*CLAIMS, *BY_KEY])
def test_a_task_is_found_by_its_key_and_not_by_walking_all_that_is_dead(
    bloated_url: str, noun: str, verb: str
) -> None:
    """The index for claims ends in the key, and is left to claims."""
    scans = _scans(bloated_url, noun, verb)

    ways = {way for table, way in scans if table == "horsies_tasks_live"}
    assert ways == ({KEY, CLAIM} if (noun, verb) in CLAIMS else {KEY})


@pytest.mark.parametrize(
    ("noun", "verb"),
    [
        ("tasks", "finished"),
        ("tasks", "watch"),
        ("tasks", "look"),
        ("tasks", "count_settled_by"),
        ("inspect", "task"),
        ("inspect", "attempts"),
    ],
)
def test_history_is_looked_up_by_key(busy_url: str, noun: str, verb: str) -> None:
    scans = {
        scan
        for scan in _scans(busy_url, noun, verb)
        if scan[0] not in ("horsies_tasks_live", "horsies_attempts")
    }

    assert len(scans) > DAYS
    assert scans == {(table, f"{table}_pkey") for table, _ in scans}


@pytest.mark.parametrize(
    "verb",
    [
        "settle_and_claim",
        "settle_and_claim_for_idle",
        "settle_and_claim_within",
        "start",
        "fail",
        "give_back",
    ],
)
def test_what_a_busy_worker_says_never_reads_history(busy_url: str, verb: str) -> None:
    tables = {table for table, _ in _scans(busy_url, "tasks", verb)}

    assert {table for table in tables if table.startswith("horsies_tasks")} == {"horsies_tasks_live"}


@pytest.mark.parametrize(
    ("noun", "verb", "way"),
    [("tasks", "release", "Seq Scan"), ("workers", "orphans", f"{KEY}, from its start")],
)
def test_what_a_worker_held_is_found_without_an_index(busy_url: str, noun: str, verb: str, way: str) -> None:
    """An index on the owner would be written by every claim. Both are said only when a worker comes, goes or dies."""
    scans = _scans(busy_url, noun, verb)

    assert {way for table, way in scans if table == "horsies_tasks_live"} == {way}


def _scans(url: str, noun: str, verb: str) -> set[tuple[str, str]]:
    """How a statement reads each table, whatever its parameters: the table, and the index or else the way."""
    plan = asyncio.run(_plan(url, statements(noun)[verb].decode()))
    return {
        (node["Relation Name"], _way(node))
        for node in _nodes(plan)
        if "Relation Name" in node and "Scan" in node["Node Type"]
    }


async def _plan(url: str, statement: str) -> dict[str, Any]:
    """As a worker's connection makes it once and keeps it."""
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement)))
    for place, name in enumerate(names, 1):
        statement = statement.replace(f"%({name})s", f"${place}")
    async with await connect_worker(PostgresConfig(database_url=url), "plans") as connection:
        await connection.execute(f"PREPARE explained AS {statement}".encode())
        cursor = AsyncClientCursor(connection)
        marks = ", ".join(f"%({name})s" for name in names)
        await cursor.execute(f"EXPLAIN (FORMAT JSON) EXECUTE explained ({marks})".encode(), VALUES)
        row = await cursor.fetchone()
    assert row is not None
    return row[0][0]["Plan"]


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


def _way(node: dict[str, Any]) -> str:
    """An index helps when its first column is known; else it is walked from its start."""
    if "Index Name" not in node:
        return node["Node Type"]
    name = node["Index Name"]
    column = FIRST_COLUMN.get(name, "task_id" if name == "horsies_attempts_pkey" else "id")
    return name if f"({column} " in node.get("Index Cond", "") else f"{name}, from its start"
