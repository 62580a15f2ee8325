"""The children of a worker, at work or not, put together of what it last said of them and of the tasks that run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from horsies.storage.sights import Child, Worker


class Seat(NamedTuple):
    """A child process: what it runs, if anything, what it holds, and since when it is there; as far as that is known."""

    pid: int | None
    memory_mb: float | None
    started_at: datetime | None
    task: Child | None


def seats(worker: Worker, tasks: Sequence[Child]) -> list[Seat]:
    """Those at work first, a row for each task, then the idle ones."""
    known = {child["pid"]: child for child in worker.children}

    def seat(pid: int | None, task: Child | None) -> Seat:
        child = known.get(pid, {})
        since = child.get("started_at")
        memory = child.get("memory_mb") if task is None or task.memory_mb is None else task.memory_mb
        return Seat(pid, memory, None if since is None else datetime.fromisoformat(since), task)

    busy = {task.pid for task in tasks}
    idle = [] if worker.state == "dead" else [seat(pid, None) for pid in known if pid not in busy]
    return [*(seat(task.pid, task) for task in tasks), *idle]
