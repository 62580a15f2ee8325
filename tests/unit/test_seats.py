"""A worker's children are shown once each, at work or idle."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from horsies.db.queries.inspect import RunningTask, Worker
from horsies.web.queries import child_views

SINCE = datetime(2030, 1, 1, tzinfo=UTC)


def worker(*children: dict[str, Any], state: str = "busy") -> Worker:
    return Worker("w", "host", 1, state, [], 2, SINCE, SINCE, None, None, None, None, list(children))


def child(pid: int, memory_mb: float) -> dict[str, Any]:
    return {"pid": pid, "memory_mb": memory_mb, "started_at": "2030-01-01T00:00:00Z"}


def task(pid: int | None, memory_mb: float | None = None) -> RunningTask:
    return RunningTask("t", "add", "default", "w", pid, SINCE, memory_mb)


def test_those_at_work_come_first_and_the_others_are_idle() -> None:
    found = child_views(worker(child(7, 20.0), child(8, 30.0)), [task(8)])

    assert [(view.pid, view.memory_mb, view.started_at, view.task is None) for view in found] == [
        (8, 30.0, SINCE, False),
        (7, 20.0, SINCE, True),
    ]


def test_what_a_task_was_last_seen_with_counts_and_a_child_of_which_nothing_was_said_is_shown_too() -> None:
    found = child_views(worker(child(8, 30.0)), [task(8, 55.0), task(9)])

    assert [(view.pid, view.memory_mb) for view in found] == [(8, 55.0), (9, None)]


def test_a_dead_worker_has_no_idle_children() -> None:
    assert child_views(worker(child(7, 20.0), state="dead"), []) == []
