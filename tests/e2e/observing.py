"""What a test can see of workers from outside: their processes, their sessions, their rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg

from horsies import TaskHandle
from tests.support.waiting import eventually

Db = psycopg.Connection[dict[str, Any]]

CHILD = "horsies-child"
FORK_SERVER = "horsies-forksrv"


def is_alive(pid: int) -> bool:
    """Whether a process exists and is more than an entry that nobody has collected yet."""
    try:
        return _stat(pid)[0] != "Z"
    except OSError:
        return False


def descendants(pid: int, name: str | None = None) -> set[int]:
    """The living processes below one; with a name, those called so."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = _stat(int(entry.name))
        except OSError:
            continue
        if state != "Z":
            parents[int(entry.name)] = parent
    found: set[int] = set()
    generation = {pid}
    while generation:
        generation = {child for child, parent in parents.items() if parent in generation}
        found |= generation
    return {child for child in found if name is None or _name(child) == name}


def children(pid: int) -> set[int]:
    """The processes of a worker that run tasks, or stand ready to."""
    return descendants(pid, CHILD)


def _stat(pid: int) -> tuple[str, int]:
    """A process's state and parent, which follow its name in brackets."""
    state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[:2]
    return state, int(parent)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def row(db: Db, task: TaskHandle[Any] | str | UUID) -> dict[str, Any]:
    """A task as it is stored."""
    task_id = task.task_id if isinstance(task, TaskHandle) else str(task)
    found = db.execute("SELECT * FROM horsies_tasks WHERE id = %s", (task_id,)).fetchone()
    assert found is not None, f"there is no task {task_id}"
    return found


def attempts(db: Db, task: TaskHandle[Any]) -> list[dict[str, Any]]:
    """The attempts of a task, first one first."""
    query = "SELECT * FROM horsies_task_attempts WHERE task_id = %s ORDER BY attempt, finished_at"
    return db.execute(query, (task.task_id,)).fetchall()


def until_status(
    db: Db, task: TaskHandle[Any] | str | UUID, *wanted: str, seconds: float = 20
) -> dict[str, Any]:
    """The task's row, once it has one of these states."""
    wish = f"the task being {' or '.join(wanted)}"
    try:
        eventually(lambda: row(db, task)["status"] in wanted, seconds, wish)
    except AssertionError as error:
        raise AssertionError(f"{error}; its row is {row(db, task)}") from None
    return row(db, task)


def sessions(db: Db) -> list[dict[str, Any]]:
    """The sessions of workers on this database; the test's own and its producer's are left out."""
    return db.execute(
        "SELECT pid, application_name, query FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name IN ('horsies-worker', 'horsies-heartbeat', 'horsies-listener')"
    ).fetchall()


def lines(path: Path) -> list[str]:
    """What tasks have written to a file so far."""
    return path.read_text().splitlines() if path.exists() else []
