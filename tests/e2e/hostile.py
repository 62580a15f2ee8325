"""Rows as nobody should write them: random and handcrafted values for every column of tasks, workflows and nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg import sql

Row = dict[str, Any]

DEEP = 100_000
INT_MAX = 2**31 - 1
SMALL_MAX = 2**15 - 1
TIMES = (
    "-infinity",
    "infinity",
    "0044-03-15 BC",
    "294276-12-31",
    "1900-01-01",
    "now",
    "tomorrow",
    "9999-01-01",
)
TEXTS = (
    "",
    " ",
    "x" * 5_000,
    "\\u0000",
    "add",
    "no such task",
    "'; DROP TABLE horsies_tasks; --",
    "🐴" * 60,
    "\x01\x1b[31m",
)
JSONS = (
    "",
    "null",
    "[]",
    "{}",
    "{",
    '"text"',
    "1e400",
    "NaN",
    '{"x": 1, "y": 1}',
    '{"x": "\\u0000", "y": "\\ud800"}',
    '{"x": {"y": ' * 3,
    "[" * DEEP + "]" * DEEP,
    '{"a":' * DEEP + "1" + "}" * DEEP,
)
OPTIONS = (
    *JSONS,
    '{"on_failure": ""}',
    '{"on_failure": "%s"}' % ("h" * 5_000),
    '{"on_failure": "\\u0000"}',
    '{"on_failure": "add", "retry_policy": {"max_retries": 99999}}',
    '{"retry_policy": {"backoff_strategy": "fixed", "intervals": [1e308], "auto_retry_for": ["*"], "max_retries": 3}}',
    '{"retry_policy": 7, "idempotent": "yes"}',
    '{"headers": %s}' % ("[" * DEEP + "]" * DEEP),
    '{"has_inputs": true}',
    '{"idempotent": true}',
)
INTEGERS = (-INT_MAX - 1, -1, 0, 1, 100, SMALL_MAX, INT_MAX - 1, INT_MAX)
SMALLS = (-SMALL_MAX - 1, -1, 0, 1, 100, SMALL_MAX - 1, SMALL_MAX)
FLOATS = (float("nan"), float("inf"), float("-inf"), -1.0, 0.0, 1e-300, 1e300, 0.01)
STATUSES = ("PENDING", "CLAIMED", "RUNNING", "COMPLETED", "FAILED", "nonsense", "")
NODE_STATUSES = ("PENDING", "READY", "ENQUEUED", "RUNNING", "COMPLETED", "FAILED", "SKIPPED")
FLOW_STATUSES = ("PENDING", "RUNNING", "PAUSED", "COMPLETED", "FAILED", "CANCELLED", "EXPIRED")
POLICIES = (
    *JSONS,
    '{"cases": 7}',
    '{"cases": [{"required_indices": ["a", null, 1e9]}]}',
    '{"cases": [{"required_indices": {}}]}',
    '{"cases": [{}]}',
)
ARGS_FROM = (
    None,
    "{}",
    "[]",
    "7",
    '{"x": 99}',
    '{"x": "a"}',
    '{"x": -1}',
    '{"x": null}',
    '{"x": 0, "y": 0}',
    '"x"',
)
INDICES = ([], [0], [1], [0, 1, 2], [99], [-1], [0, 0, 0], [INT_MAX])


def task(random: Random, ended: Sequence[UUID], owners: Sequence[UUID]) -> Row:
    """Return a row of the live table in which a few columns are hostile."""
    row: Row = {
        "id": random.choice([uuid4(), uuid4(), random.choice(ended)]),
        "task_name": random.choice(["add", "break", "break", "async_add", "unknown"]),
        "kwargs": '{"x":1,"y":1}',
    }
    strange: Row = {
        "sent_at": random.choice(TIMES),
        "enqueued_at": random.choice(TIMES),
        "good_until": random.choice(TIMES),
        "unknown_since": random.choice(TIMES),
        "unknown_until": random.choice(TIMES),
        "next_retry_at": random.choice(TIMES),
        "cancel_asked_at": random.choice(TIMES),
        "claim_seq": random.choice(INTEGERS),
        "timeout_ms": random.choice(INTEGERS),
        "priority": random.choice(SMALLS),
        "retry_count": random.choice(SMALLS),
        "max_retries": random.choice(SMALLS),
        "crash_count": random.choice(SMALLS),
        "earlier_attempts": random.choice(SMALLS),
        "is_async": random.choice([True, False]),
        "awaited": True,
        "task_name": random.choice(TEXTS),
        "args": random.choice(JSONS),
        "kwargs": random.choice(JSONS),
        "task_options": random.choice(OPTIONS),
        "unique_key": random.choice(TEXTS),
        "tags": [random.choice(TEXTS)],
        "rate_key": random.choice(TEXTS),
        "error_code": random.choice(TEXTS),
        "result": random.choice(JSONS),
        "workflow_id": uuid4(),
        "workflow_index": random.choice(INTEGERS),
        "worker_pid": random.choice(INTEGERS),
        "status": random.choice(STATUSES),
        "terminal_at": random.choice(TIMES),
        "started_at": random.choice(TIMES),
        "claimed_at": random.choice(TIMES),
        "completed_at": random.choice(TIMES),
        "failed_at": random.choice(TIMES),
        "queue_name": random.choice(TEXTS),
        "worker_hostname": random.choice(TEXTS),
        "worker_process_name": random.choice(TEXTS),
        "failed_reason": random.choice(TEXTS),
        "cost": random.choice(FLOATS),
        "parked_at": random.choice(TIMES),
        "follows": random.choice(TEXTS),
        "parent_id": random.choice([uuid4(), random.choice(ended)]),
        "parent_step": random.choice(TEXTS),
    }
    for column in random.sample(sorted(strange), random.randint(0, 4)):
        row[column] = strange[column]
    if row.get("status") not in (None, "PENDING"):
        row["claimed_by_worker_id"] = random.choice(owners)
    return row


def workflow(random: Random) -> Iterator[tuple[str, Row]]:
    """Return the rows of a small workflow, in which a few columns are hostile, each with its table."""
    flow_id = uuid4()
    count = random.randint(1, 3)
    flow: Row = {
        "id": flow_id,
        "root_workflow_id": flow_id,
        "open_tasks": count,
        "status": "RUNNING",
        "on_error": "FAIL",
        "name": "hostile",
        "definition_key": "",
    }
    strange: Row = {
        "root_workflow_id": uuid4(),
        "parent_workflow_id": random.choice([flow_id, uuid4()]),
        "parent_task_index": random.choice(INTEGERS),
        "depth": random.choice(INTEGERS),
        "deadline_at": random.choice(TIMES),
        "deadline_seconds": random.choice(FLOATS),
        "output_task_index": random.choice(INTEGERS),
        "open_tasks": random.choice(INTEGERS),
        "awaited": True,
        "gathers": True,
        "status": random.choice(FLOW_STATUSES),
        "on_error": random.choice(["PAUSE", "nonsense", ""]),
        "success_policy": random.choice(POLICIES),
        "sent_at": random.choice(TIMES),
        "started_at": random.choice(TIMES),
        "completed_at": random.choice(TIMES),
        "name": random.choice(TEXTS),
        "definition_key": random.choice(TEXTS),
        "paused_at": random.choice(TIMES),
        "resumed_at": random.choice(TIMES),
        "error": random.choice(JSONS),
        "result": random.choice(JSONS),
    }
    for column in random.sample(sorted(strange), random.randint(0, 2)):
        flow[column] = strange[column]
    if random.random() < 0.9:
        yield "horsies_workflows", flow
    for index in range(count):
        yield from _node(random, flow_id, index, count)


def _node(random: Random, flow_id: UUID, index: int, count: int) -> Iterator[tuple[str, Row]]:
    """Return a node with its task, if it has one; each node waits for the one before it."""
    is_first = index == 0
    node: Row = {
        "workflow_id": flow_id,
        "task_index": index,
        "task_id": uuid4(),
        "open_deps": 0 if is_first else 1,
        "status": "ENQUEUED" if is_first else "PENDING",
        "kind": "task",
        "join_type": "all",
        "node_id": f"node-{index}",
        "task_name": random.choice(["add", "break"]),
        "queue_name": "default",
        "priority": 100,
        "max_retries": 0,
        "task_kwargs": '{"x":1,"y":1}',
        "dependencies": [] if is_first else [index - 1],
        "dependents": [index + 1] if index + 1 < count else [],
    }
    strange: Row = {
        "sub_workflow_id": random.choice([flow_id, uuid4()]),
        "good_until": random.choice(TIMES),
        "seconds": random.choice(FLOATS),
        "min_success": random.choice(INTEGERS),
        "timeout_ms": random.choice(INTEGERS),
        "priority": random.choice(SMALLS),
        "max_retries": random.choice(SMALLS),
        "allow_failed_deps": True,
        "due_at": random.choice(TIMES),
        "open_deps": random.choice([0, 1, 2, INT_MAX]),
        "completed_deps": random.choice(INTEGERS),
        "failed_deps": random.choice(INTEGERS),
        "open_sources": random.choice([0, 1, INT_MAX]),
        "status": random.choice(NODE_STATUSES),
        "kind": random.choice(["workflow", "map", "sleep", "signal"]),
        "join_type": random.choice(["any", "quorum", "nonsense"]),
        "task_name": random.choice(TEXTS),
        "queue_name": random.choice([None, *TEXTS]),
        "rate_key": random.choice([None, *TEXTS]),
        "task_kwargs": random.choice(JSONS),
        "task_options": random.choice(OPTIONS),
        "args_from": random.choice(ARGS_FROM),
        "dependencies": random.choice(INDICES),
        "dependents": random.choice(INDICES),
        "workflow_ctx_from": random.choice(INDICES),
        "result": random.choice(JSONS),
        "task_id": random.choice([None, uuid4()]),
        "workflow_id": uuid4(),
        "task_index": random.choice(INTEGERS),
        "is_async": True,
        "started_at": random.choice(TIMES),
        "completed_at": random.choice(TIMES),
        "node_id": random.choice(TEXTS),
        "sub_definition_key": random.choice(TEXTS),
        "sub_workflow_summary": random.choice(["null", "[]", '{"status": 7}']),
    }
    task_id = node["task_id"]
    for column in random.sample(sorted(strange), random.randint(0, 3)):
        node[column] = strange[column]
    yield "horsies_workflow_tasks", node
    if is_first:
        options = {"task_options": '{"has_inputs": true}'} if node.get("args_from") else {}
        yield (
            "horsies_tasks_live",
            {
                "id": task_id,
                "task_name": random.choice(["add", "break"]),
                "kwargs": '{"x":1,"y":1}',
                "workflow_id": flow_id,
                "workflow_index": index,
                **options,
            },
        )


def store(connection: psycopg.Connection[Any], table: str, row: Row) -> bool:
    """Insert a row by plain SQL; return False if the database refuses it."""
    statement = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
        sql.Identifier(table),
        sql.SQL(", ").join(map(sql.Identifier, row)),
        sql.SQL(", ").join(sql.Placeholder() for _ in row),
    )
    try:
        connection.execute(statement, list(row.values()))
    except (psycopg.DataError, psycopg.IntegrityError, psycopg.errors.StatementTooComplex):
        return False
    return True
