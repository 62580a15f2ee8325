"""A scheduler that a test runs step by step."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from datetime import datetime
from typing import Any, TypeVar

import psycopg
from psycopg import IsolationLevel

from horsies import Horsies, IntervalSchedule, PostgresConfig, TaskSchedule
from horsies.db.connection import connect
from horsies.db.queries import schedules
from horsies.schedule.scheduler import Dispatcher, Starters, sync_schedules

T = TypeVar("T")
Db = psycopg.Connection[dict[str, Any]]


def every_minute(name: str = "tick", **settings: Any) -> TaskSchedule:
    given = {"task_name": "add", "pattern": IntervalSchedule(minutes=1), "kwargs": {"x": 1}, **settings}
    return TaskSchedule(name=name, **given)


class SteppedScheduler:
    """A scheduler without its loop: the test syncs schedules and runs those that are due."""

    def __init__(self, url: str, app: Horsies, starters: Starters | None = None) -> None:
        self._runner = asyncio.Runner()
        self._starters = starters or Starters(app)
        self.connection = self._run(connect(PostgresConfig(database_url=url), name="scheduler"))
        self._run(self.connection.set_isolation_level(IsolationLevel.READ_COMMITTED))
        self._run(schedules.prepare_session(self.connection))
        self.restart_with()

    def close(self) -> None:
        self._run(self.connection.close())
        self._runner.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def restart_with(self, *names: str) -> None:
        """Start over with schedules of these names in the code, without writing them."""
        self._dispatcher = Dispatcher(self._starters, set(names), 60)

    def sync(self, *given: TaskSchedule) -> None:
        """Start over with these schedules in the code, and write them."""
        self.restart_with(*(schedule.name for schedule in given))
        self._run(sync_schedules(self.connection, self._starters, given))

    def run_batch(self) -> int:
        """Run due schedules in one transaction; return how many there were."""
        return self._run(self._dispatcher.run_due(self.connection))

    def run_due(self) -> int:
        """Run schedules until none is due; return how many there were."""
        total = 0
        while count := self.run_batch():
            total += count
        return total

    @property
    def postponed(self) -> list[str]:
        return self._dispatcher.postponed

    def retry_now(self, name: str = "") -> None:
        self._dispatcher.retry_now(name)

    def seconds_until_due(self, exclude: Iterable[str] = ()) -> float | None:
        return self._run(schedules.seconds_until_due(self.connection, exclude))

    def set(self, name: str, value: str) -> None:
        self._run(self.connection.execute(f"SET {name} TO {value}".encode()))

    def setting(self, name: str) -> str:
        async def show() -> str:
            row = await (await self.connection.execute(f"SHOW {name}".encode())).fetchone()
            assert row is not None
            return row[0]

        return self._run(show())

    def now(self) -> datetime:
        return self._run(schedules.now(self.connection))


def state(db: Db, name: str = "tick") -> dict[str, Any]:
    row = db.execute("SELECT * FROM horsies_schedule_state WHERE schedule_name = %s", (name,)).fetchone()
    assert row is not None
    return row


def sent(db: Db) -> list[dict[str, Any]]:
    return db.execute("SELECT * FROM horsies_tasks ORDER BY enqueued_at, id").fetchall()


def put_back(db: Db, seconds: float, name: str | None = None) -> None:
    """Set the next slot of a schedule, or of all, to this long ago."""
    db.execute(
        "UPDATE horsies_schedule_state SET next_run_at = date_trunc('second', now()) - make_interval(secs => %s)"
        " WHERE schedule_name = %s OR %s::text IS NULL",
        (seconds, name, name),
    )
