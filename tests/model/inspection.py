"""Compare all that is in the database with the ledger, and each row with what it was before."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg

from tests.model.ledger import LIVE, Ledger, Row

ROWS = b"SELECT tableoid::regclass::text AS part, to_jsonb(task) AS task FROM horsies_tasks AS task"
ATTEMPTS = b"""SELECT task_id, attempt, outcome, will_retry, worker_id FROM horsies_task_attempts
                ORDER BY task_id, attempt"""
IN_FLIGHT = b"SELECT queue_name, worker_id, tasks FROM horsies_in_flight"


class Inspector:
    """Remembers what it has seen: numbers only grow, and what has ended stays."""

    def __init__(self, db: psycopg.Connection[dict[str, Any]]) -> None:
        self._db = db
        self._seen: dict[str, dict[str, Any]] = {}

    def retried_at(self, task_id: str) -> datetime:
        """When a task that failed is due again."""
        found = self._db.execute("SELECT * FROM horsies_tasks_live WHERE id = %s", (task_id,)).fetchone()
        assert found is not None
        assert found["enqueued_at"] == found["next_retry_at"]
        return found["enqueued_at"]

    def forget(self, task_id: str) -> None:
        """What was seen of a task last has been undone."""
        self._seen.pop(task_id, None)

    def inspect(self, ledger: Ledger) -> None:
        found = {row["task"]["id"]: row for row in self._db.execute(ROWS)}
        assert found.keys() == ledger.rows.keys()
        for task_id, row in found.items():
            expected, task = ledger.rows[task_id], row["task"]
            assert (row["part"] == "horsies_tasks_live") == task["live"] == (expected.status in LIVE)
            assert _facts(task) == _expected_facts(expected)
            _check_marks(task)
            if task_id in self._seen:
                _check_change(self._seen[task_id], task)
            self._seen[task_id] = task
        self._check_attempts(ledger)
        held = {(row["queue_name"], row["worker_id"]): row["tasks"] for row in self._db.execute(IN_FLIGHT)}
        assert held == ledger.in_flight

    def _check_attempts(self, ledger: Ledger) -> None:
        found: dict[UUID, list[tuple[Any, ...]]] = {row.id: [] for row in ledger.rows.values()}
        for task_id, *attempt in (row.values() for row in self._db.execute(ATTEMPTS)):
            found[task_id].append(tuple(attempt))
        assert found == {row.id: row.attempts for row in ledger.rows.values()}


def _facts(task: dict[str, Any]) -> tuple[Any, ...]:
    names = ("status", "claim_seq", "claimed_by_worker_id", "retry_count", "crash_count")
    pid = task["worker_pid"] if task["status"] in ("CLAIMED", "RUNNING") else None
    return (*(task[name] for name in names), pid)


def _expected_facts(row: Row) -> tuple[Any, ...]:
    owner = None if row.owner is None else str(row.owner)
    pid = row.pid if row.status in ("CLAIMED", "RUNNING") else None
    return row.status, row.claim_seq, owner, row.retry_count, row.crash_count, pid


def _check_marks(task: dict[str, Any]) -> None:
    """What else a row says goes with its status."""
    status = task["status"]
    ended = status not in LIVE
    was_claimed = task["claimed_by_worker_id"] is not None
    assert was_claimed == (task["claimed_at"] is not None)
    assert was_claimed or status in ("PENDING", "EXPIRED", "CANCELLED")
    if status != "CANCELLED":
        assert (task["started_at"] is not None) == (status in ("RUNNING", "COMPLETED", "FAILED"))
    assert (task["terminal_at"] is not None) == (task["result"] is not None) == ended
    assert (task["completed_at"] is not None) == (status == "COMPLETED")
    assert (task["failed_at"] is not None) == (status == "FAILED")
    assert (task["error_code"] is not None) == (status in ("FAILED", "EXPIRED", "CANCELLED"))
    assert (task["cancel_asked_at"] is None) or status in ("RUNNING", "CANCELLED")


def _check_change(before: dict[str, Any], after: dict[str, Any]) -> None:
    if before["status"] not in LIVE:
        assert after == before
    if before["claimed_by_worker_id"] != after["claimed_by_worker_id"]:
        assert after["claim_seq"] > before["claim_seq"]
    assert after["claim_seq"] >= before["claim_seq"]
    assert after["sent_at"] == before["sent_at"]
