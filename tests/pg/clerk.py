"""A scheduler's hands without the scheduler: schedules are written down and their turns taken step by step."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from datetime import datetime
from typing import Any, TypeVar

import psycopg
from psycopg import IsolationLevel

from horsies import Horsies, IntervalSchedule, PostgresConfig, TaskSchedule
from horsies.scheduler.roster import write_down
from horsies.scheduler.targets import Starters
from horsies.scheduler.turns import Turns
from horsies.storage import schedules
from horsies.storage.database import connect

T = TypeVar("T")
Db = psycopg.Connection[dict[str, Any]]


def every_minute(name: str = "tick", **settings: Any) -> TaskSchedule:
    given = {"task_name": "add", "pattern": IntervalSchedule(minutes=1), "kwargs": {"x": 1}, **settings}
    return TaskSchedule(name=name, **given)


class Clerk:
    """One session of a scheduler that never sleeps."""

    def __init__(self, url: str, app: Horsies, starters: Starters | None = None) -> None:
        self._runner = asyncio.Runner()
        self._starters = starters or Starters(app)
        self.connection = self._run(connect(PostgresConfig(database_url=url), name="clerk"))
        self._run(self.connection.set_isolation_level(IsolationLevel.READ_COMMITTED))
        self._run(schedules.prepare_session(self.connection))
        self.know()

    def close(self) -> None:
        self._run(self.connection.close())
        self._runner.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def know(self, *names: str) -> None:
        """Start over with schedules of these names in the code."""
        self._turns = Turns(self._starters, set(names), 60)

    def write_down(self, *given: TaskSchedule) -> None:
        """Start over with these schedules in the code."""
        self.know(*(schedule.name for schedule in given))
        self._run(write_down(self.connection, self._starters, given))

    def take_once(self) -> int:
        """Take turns in one transaction; how many there were."""
        return self._run(self._turns.take(self.connection))

    def take(self) -> int:
        """Take turns until none is left; how many there were."""
        taken = 0
        while now := self.take_once():
            taken += now
        return taken

    @property
    def aside(self) -> list[str]:
        return self._turns.aside

    def look_again(self, name: str = "") -> None:
        self._turns.look_again(name)

    def pause_until_due(self, aside: Iterable[str] = ()) -> float | None:
        return self._run(schedules.pause_until_due(self.connection, aside))

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
    """The slots of a schedule came this long ago."""
    db.execute(
        "UPDATE horsies_schedule_state SET next_run_at = date_trunc('second', now()) - make_interval(secs => %s)"
        " WHERE schedule_name = %s OR %s::text IS NULL",
        (seconds, name, name),
    )
