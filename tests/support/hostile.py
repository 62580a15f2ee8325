"""Rows that no version of horsies would write, in every table that people read.

Anybody with SQL access may write them. Each row is stored as a sound one first; then its columns are replaced one by one
by hostile values of their types, as far as the constraints of the table let that happen.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from psycopg import sql

DEEP = 100_000
LONG = "x" * 1_000_000
DEEP_LIST = "[" * DEEP + "]" * DEEP
DEEP_OBJECT = '{"a":' * DEEP + "1" + "}" * DEEP
TIMES = (
    "infinity", "-infinity", "4713-01-01 BC", "0044-03-15 BC", "294276-12-31 23:59:59+00", "10000-01-01",
    "9999-12-31 23:59:59.999999+00", "9999-12-31 23:59:59-12", "0001-01-01 00:00:00+00", "0001-01-01 00:00:00+14",
    "1850-06-01 12:00:00", "now", None,
)  # fmt: skip
FLOATS = ("NaN", "Infinity", "-Infinity", "1e308", "-1e308", "5e-324", "0", "-1", None)
TEXTS = (
    DEEP_LIST, DEEP_OBJECT, '{"ok":' + DEEP_LIST + "}", '{"err":{"message":"m","data":' + DEEP_LIST + "}}", LONG, "", " ",
    "null", "7", "[]", "not JSON", '{"err":', '{"err":null}', '{"err":7}', '{"err":{"message":7,"exception":[1]}}',
    '{"err":{"error_code":[],"message":"a\\u0000b","exception":{"traceback":"\\u0000"}}}', '{"ok":"\\ud800"}',
    '{"err":{"message":"\\ud800"}}', '{"ok":1e400}', '{"ok":' + "9" * 5000 + "}", '{"ok":NaN}', '{"message":[]}',
    '{"headers":' + DEEP_OBJECT + "}", "a\tb\nc\r\x1b[31m\u202e", "<script>alert(1)</script>", "%s %(id)s {0} {{ 7 }}",
    "\U0001f40e\ufffd\uffff", "ok" * 300, None,
)  # fmt: skip
DOCUMENTS = (
    "[]", "{}", "null", '"x"', "7", "1e308", '[{"pid":1,"started_at":"x","memory_mb":"y"},{"pid":[]},7,null]',
    '{"default":"many","other":1e300,"":null}', '{"default":99999999999}', '[{"pid":1,"started_at":7}]',
    "[" * 2_000 + "]" * 2_000, '{"a":' * 2_000 + "1" + "}" * 2_000, '{"status":"NEW"}', '{"a":"b","b":2147483648}', None,
)  # fmt: skip
VALUES: dict[str, Sequence[str | None]] = {
    "timestamptz": TIMES,
    "float4": FLOATS,
    "float8": FLOATS,
    "text": TEXTS,
    "jsonb": DOCUMENTS,
    "json": DOCUMENTS,
    "int2": ("32767", "-32768", "0", "1", None),
    "int4": ("2147483647", "-2147483648", "0", "1", None),
    "int8": ("9223372036854775807", "-9223372036854775808", "0", "1", None),
    "bool": ("true", "false", None),
    "uuid": ("00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff", None),
    "_text": ("{}", "{NULL}", "{a,NULL,b}", "{{a,b},{c,d}}", '{"",<b>}', None),
    "_int4": ("{}", "{NULL}", "{0,0,7,-1}", "{{1,2},{3,4}}", "{0}", "{1}", None),
    "_int8": ("{}", "{NULL}", "{1,2}", "{{1,2},{3,4}}", "{" + ",".join(["9223372036854775807"] * 16) + "}", None),
    "_uuid": ("{}", "{NULL}", "{00000000-0000-0000-0000-000000000000}", None),
}  # fmt: skip
STATES = (
    "PENDING", "CLAIMED", "RUNNING", "COMPLETED", "FAILED", "CANCELLED", "EXPIRED", "PAUSED", "READY", "ENQUEUED", "SKIPPED",
)  # fmt: skip

# How to store one sound row of each table, and the column that tells it from others. `n` numbers the rows.
TABLES: dict[str, tuple[str, str]] = {
    "horsies_tasks_live": ("id", "INSERT INTO horsies_tasks_live (id, task_name) VALUES (gen_random_uuid(), 't') RETURNING id"),
    "horsies_tasks": (
        "id",
        "INSERT INTO horsies_tasks (id, task_name, live, status, error_code, started_at, terminal_at, failed_at, result)"
        " VALUES (gen_random_uuid(), 't', false, 'FAILED', 'X', now(), now(), now(), '{}') RETURNING id",
    ),
    "horsies_workers": (
        "worker_id",
        "INSERT INTO horsies_workers (worker_id, hostname, pid, queues, processes, lease_expires_at)"
        " VALUES (gen_random_uuid(), 'h', 1, '{default}', 1, now() + interval '1 hour') RETURNING worker_id",
    ),
    "horsies_worker_states": (
        "id",
        "INSERT INTO horsies_worker_states (worker_id, hostname, pid, state, processes, max_claim_batch,"
        " max_claim_per_worker, queues, queue_priorities, queue_max_concurrency, recovery_config, tasks_running,"
        " tasks_claimed, memory_usage_mb, memory_percent, cpu_percent, children_memory_mb, worker_started_at,"
        " current_task_ids) SELECT worker_id, 'h', 1, 'idle', 1, 1, 1, '{default}', '{}', '{\"default\":5}', '{}', 0, 0, 1, 1,"
        " 1, 1, now(), '{}' FROM horsies_workers ORDER BY random() LIMIT 1 RETURNING id",
    ),
    "horsies_heartbeats": (
        "id",
        "INSERT INTO horsies_heartbeats (task_id, sender_id, role, hostname, pid)"
        " SELECT id, 's', 'runner', 'h', 1 FROM horsies_tasks ORDER BY random() LIMIT 1 RETURNING id",
    ),
    "horsies_attempts": (
        "task_id",
        "INSERT INTO horsies_attempts (task_id, claim_seq, attempt, outcome, started_at, finished_at)"
        " SELECT id, 0, 1, 'FAILED', now(), now() FROM horsies_tasks"
        " WHERE id NOT IN (SELECT task_id FROM horsies_attempts) ORDER BY random() LIMIT 1 RETURNING task_id",
    ),
    "horsies_progress": (
        "task_id",
        "INSERT INTO horsies_progress (task_id, claim_seq, done) SELECT id, 0, 1 FROM horsies_tasks"
        " WHERE id NOT IN (SELECT task_id FROM horsies_progress) ORDER BY random() LIMIT 1 RETURNING task_id",
    ),
    "horsies_task_logs": (
        "task_id",
        "INSERT INTO horsies_task_logs (task_id, claim_seq, seq, attempt, at, level, logger, message)"
        " SELECT id, 0, 0, 1, now(), 'INFO', 'l', 'm' FROM horsies_tasks"
        " WHERE id NOT IN (SELECT task_id FROM horsies_task_logs) ORDER BY random() LIMIT 1 RETURNING task_id",
    ),
    "horsies_steps": (
        "task_id",
        "INSERT INTO horsies_steps (task_id, name, kind, claim_seq, attempt, due_at)"
        " SELECT id, 'rest', 'wait', 1, 1, now() FROM horsies_tasks"
        " WHERE id NOT IN (SELECT task_id FROM horsies_steps) ORDER BY random() LIMIT 1 RETURNING task_id",
    ),
    "horsies_signals": (
        "task_id",
        "INSERT INTO horsies_signals (task_id, name, value) SELECT id, 'rest', '1' FROM horsies_tasks"
        " WHERE id NOT IN (SELECT task_id FROM horsies_signals) ORDER BY random() LIMIT 1 RETURNING task_id",
    ),
    "horsies_workflows": (
        "id",
        "INSERT INTO horsies_workflows (id, root_workflow_id, name, status, on_error, definition_key, open_tasks,"
        " started_at, completed_at) SELECT id, id, 'f', 'FAILED', 'FAIL', 'k', 0, now(), now()"
        " FROM (SELECT gen_random_uuid() AS id) AS new RETURNING id",
    ),
    "horsies_workflow_tasks": (
        "node_id",
        "INSERT INTO horsies_workflow_tasks (workflow_id, task_index, task_id, open_deps, status, kind, join_type, node_id,"
        " task_name, started_at, completed_at) SELECT id, (SELECT coalesce(max(task_index) + 1, 0)"
        " FROM horsies_workflow_tasks AS other WHERE other.workflow_id = flow.id AND task_index < 1000), gen_random_uuid(), 0, 'COMPLETED', 'task', 'all',"
        " gen_random_uuid()::text, 't', now(), now() FROM horsies_workflows AS flow ORDER BY random() LIMIT 1 RETURNING node_id",
    ),
    "horsies_schedule_state": (
        "schedule_name",
        "INSERT INTO horsies_schedule_state (schedule_name, definition, config_hash, next_run_at)"
        " VALUES (gen_random_uuid()::text, '{\"task_name\":\"t\",\"pattern\":{\"type\":\"interval\",\"seconds\":5},"
        "\"timezone\":\"UTC\",\"arguments\":{}}', 'h', now()) RETURNING schedule_name",
    ),
    "horsies_suspensions": (
        "queue_name",
        "INSERT INTO horsies_suspensions (queue_name, suspended_by) VALUES (gen_random_uuid()::text, 's') RETURNING queue_name",
    ),
    "horsies_actions": (
        "id", "INSERT INTO horsies_actions (actor, action, subject) VALUES ('a', 'b', 'c') RETURNING id",
    ),
    "horsies_rollups": (
        "task_name",
        "INSERT INTO horsies_rollups SELECT date_trunc('minute', now()) - random() * interval '2 minutes',"
        " CASE WHEN random() < 0.5 THEN '' ELSE 'q' END, gen_random_uuid()::text, 1, 1, 1, 1, 1, 1,"
        " array_fill(1, ARRAY[16]), array_fill(1, ARRAY[16]), 1, 1 RETURNING task_name",
    ),
    "horsies_totals": (
        "task_name",
        "INSERT INTO horsies_totals SELECT 'q', gen_random_uuid()::text, 1, 1, 1, 1, 1, 1,"
        " array_fill(1, ARRAY[16]), array_fill(1, ARRAY[16]) RETURNING task_name",
    ),
    "horsies_depths": (
        "queue_name",
        "INSERT INTO horsies_depths VALUES (date_trunc('minute', now()), gen_random_uuid()::text, 1, 1, 1, 1)"
        " RETURNING queue_name",
    ),
    "horsies_in_flight": (
        "worker_id",
        "INSERT INTO horsies_in_flight (queue_name, worker_id, tasks) SELECT 'default', worker_id, 1 FROM horsies_workers"
        " WHERE worker_id NOT IN (SELECT worker_id FROM horsies_in_flight) ORDER BY random() LIMIT 1 RETURNING worker_id",
    ),
    "horsies_rates": (
        "rate_key",
        "INSERT INTO horsies_rates (rate_key, seconds, burst) VALUES (gen_random_uuid()::text, 1, 1) RETURNING rate_key",
    ),
    "horsies_idempotency_keys": (
        "idempotency_key",
        "INSERT INTO horsies_idempotency_keys (idempotency_key, task_id, enqueue_sha)"
        " VALUES (gen_random_uuid()::text, gen_random_uuid(), 's') RETURNING idempotency_key",
    ),
    "horsies_task_definitions": (
        "task_name",
        "INSERT INTO horsies_task_definitions (task_name, queue_name, priority, max_retries, is_async)"
        " VALUES (gen_random_uuid()::text, 'default', 1, 0, false) RETURNING task_name",
    ),
}  # fmt: skip


class Filled(NamedTuple):
    """Which rows there are, and how many columns of each table hold a hostile value."""

    tasks: list[UUID]
    workflows: list[UUID]
    schedules: list[str]
    changed: dict[str, int]


def fill(url: str, seed: int, rows: int = 12) -> Filled:
    """Store hostile rows in every table that people read."""
    random = Random(seed)
    changed: dict[str, int] = {}
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT setseed(%s)", (seed % 100 / 100,))
        connection.execute("SET session_replication_role = replica")  # a trigger guards what has ended
        for table, (key, insert) in TABLES.items():
            columns = _columns(connection, table)
            changed[table] = 0
            for _ in range(rows):
                row = connection.execute(insert.encode()).fetchone()
                assert row is not None
                changed[table] += _spoil(connection, random, table, key, row[0], columns)
        tasks = [row[0] for row in connection.execute("SELECT id FROM horsies_tasks ORDER BY id")]
        flows = [row[0] for row in connection.execute("SELECT id FROM horsies_workflows ORDER BY id")]
        names = [row[0] for row in connection.execute("SELECT schedule_name FROM horsies_schedule_state")]
    return Filled(tasks, flows, names, changed)


def _columns(connection: psycopg.Connection[Any], table: str) -> list[tuple[str, str]]:
    rows = connection.execute(
        "SELECT attname, typname FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid"
        " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attidentity = '' ORDER BY attnum",
        (table,),
    ).fetchall()
    return [(row[0], row[1]) for row in rows]


def _spoil(
    connection: psycopg.Connection[Any],
    random: Random,
    table: str,
    key: str,
    row: Any,
    columns: Sequence[tuple[str, str]],
) -> int:
    """Replace about half of a row's columns; return how many the table has let us replace."""
    changed = 0
    for name, kind in columns:
        if name in (key, "live", "workflow_id", "root_workflow_id") or random.random() < 0.5:
            continue
        known: Sequence[str | None] = STATES if name == "status" and random.random() < 0.8 else VALUES[kind]
        statement = sql.SQL("UPDATE {} SET {} = %s::text::{} WHERE {} = %s").format(
            sql.Identifier(table), sql.Identifier(name), sql.Identifier(kind), sql.Identifier(key)
        )
        try:
            changed += connection.execute(statement, (random.choice(known), row)).rowcount
        except psycopg.Error:
            continue  # a constraint of the table forbids this one
    return changed
