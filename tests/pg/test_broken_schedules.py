"""What cannot be run holds up nothing else, says why, and is left to others who can."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from math import inf
from typing import Any
from uuid import UUID

import psycopg
import pytest

from horsies import (
    CronSchedule,
    Horsies,
    IntervalSchedule,
    TaskError,
    TaskResult,
    TaskSchedule,
)
from horsies.db.connection import Connection
from horsies.db.ids import slot_id
from horsies.schedule.scheduler import Run, Starters, TaskStarter
from tests.pg.conftest import define_add
from tests.pg.stepped_scheduler import Db, SteppedScheduler, every_minute, put_back, sent, state


@pytest.mark.parametrize(
    ("definition", "complaint", "moves_on"),
    [
        ("no JSON at all", "malformed", False),
        ('{"task_name":"add","timezone":"UTC","arguments":{},"pattern":{"kind":"lunar"}}', "lunar", False),
        (
            '{"task_name":"add","timezone":"UTC","arguments":{},"pattern":{"kind":"cron","expression":"0 0 30 2 *"}}',
            "months",
            False,
        ),
        (
            '{"task_name":"gone","timezone":"UTC","arguments":{},"pattern":{"kind":"interval","minutes":1}}',
            "'gone'",
            False,
        ),
        (
            '{"definition_key":"flow","timezone":"UTC","arguments":{},"pattern":{"kind":"interval","minutes":1}}',
            "'flow'",
            False,
        ),
        (
            '{"task_name":"add","timezone":"Mars/Olympus","arguments":{"x":1},"pattern":{"kind":"interval","minutes":1}}',
            "Mars/Olympus",
            False,
        ),
        (
            '{"task_name":"add","timezone":"UTC","arguments":{"x":"one"},"pattern":{"kind":"interval","minutes":1}}',
            "'x'",
            True,
        ),
        (
            '{"task_name":"add","timezone":"UTC","arguments":{"x":1},"queue_name":"nowhere",'
            '"pattern":{"kind":"interval","minutes":1}}',
            "nowhere",
            True,
        ),
    ],
)
def test_a_broken_schedule_says_what_is_wrong_and_the_others_run(
    scheduler: SteppedScheduler, db: Db, definition: str, complaint: str, moves_on: bool
) -> None:
    scheduler.sync(every_minute("broken"), every_minute())
    put_back(db, 10)
    slot = state(db)["next_run_at"]
    db.execute(
        "UPDATE horsies_schedule_state SET definition = %s WHERE schedule_name = 'broken'", (definition,)
    )

    scheduler.run_due()

    assert [task["id"] for task in sent(db)] == [slot_id("tick", slot)]
    broken = state(db, "broken")
    assert complaint in broken["error"]
    assert broken["error_at"] is not None
    assert (broken["run_count"], broken["skip_count"]) == (0, 0)
    assert (broken["next_run_at"] > slot) == moves_on
    assert scheduler.postponed == ([] if moves_on else ["broken"])


@pytest.mark.parametrize("slot", ["-infinity", "0044-03-15 BC", "0001-01-01", "1950-01-01"])
@pytest.mark.parametrize(
    "pattern", [IntervalSchedule(minutes=1), CronSchedule("0 3 * * *")], ids=["interval", "cron"]
)
def test_a_slot_that_is_no_time_to_go_on_from_does_not_stop_the_scheduler(
    scheduler: SteppedScheduler, db: Db, pattern: Any, slot: str
) -> None:
    scheduler.sync(every_minute("broken", pattern=pattern, catch_up_missed=True), every_minute())
    put_back(db, 10)
    db.execute("UPDATE horsies_schedule_state SET next_run_at = %s WHERE schedule_name = 'broken'", (slot,))

    scheduler.run_due()

    assert len(sent(db)) == 1
    assert "pause and resume it" in _error(db, "broken")
    assert scheduler.postponed == ["broken"]


def test_a_slot_that_never_comes_does_not_stop_the_scheduler(scheduler: SteppedScheduler, db: Db) -> None:
    scheduler.sync(every_minute("never"), every_minute())
    put_back(db, 10)
    db.execute("UPDATE horsies_schedule_state SET next_run_at = 'infinity' WHERE schedule_name = 'never'")

    scheduler.run_due()

    assert len(sent(db)) == 1
    assert scheduler.seconds_until_due(["tick"]) == inf


def _error(db: Db, name: str) -> str:
    row = db.execute("SELECT error FROM horsies_schedule_state WHERE schedule_name = %s", (name,)).fetchone()
    assert row is not None
    return str(row["error"])


def test_what_only_this_scheduler_cannot_run_is_left_to_another(
    scheduler: SteppedScheduler, make_app: Callable[..., Horsies], new_scheduler: Any, db: Db
) -> None:
    newer = make_app()
    define_add(newer)

    @newer.task("new")
    def new() -> TaskResult[int, TaskError]:
        return TaskResult(ok=1)

    other = new_scheduler(newer)
    other.sync(every_minute(task_name="new", kwargs={}))
    scheduler.sync(every_minute("old"))
    put_back(db, 10, "tick")

    scheduler.run_due()
    assert sent(db) == []
    assert scheduler.postponed == ["tick"]

    other.run_due()
    assert [task["task_name"] for task in sent(db)] == ["new"]
    assert state(db)["error"] is None


def test_a_row_that_the_database_refuses_costs_its_own_slot_only(
    app: Horsies, scheduler: SteppedScheduler, db: Db
) -> None:
    @app.task("cursed")
    def cursed() -> TaskResult[int, TaskError]:
        return TaskResult(ok=1)

    db.execute(
        "ALTER TABLE horsies_tasks_live ADD CONSTRAINT no_curses CHECK (task_name <> 'cursed') NOT VALID"
    )
    scheduler.sync(
        every_minute("a"),
        every_minute("b", task_name="cursed", kwargs={}),
        every_minute("c", kwargs={"x": 2}),
    )
    put_back(db, 10)
    slot = state(db, "b")["next_run_at"]

    scheduler.run_due()

    assert {task["task_name"] for task in sent(db)} == {"add"}
    assert len(sent(db)) == 2
    assert "no_curses" in state(db, "b")["error"]
    assert state(db, "b")["next_run_at"] == slot + timedelta(minutes=1)


def test_a_unique_key_that_somebody_holds_back_keeps_its_own_schedule_waiting_only(
    make_app: Callable[..., Horsies], new_scheduler: Any, db: Db, database_url: str
) -> None:
    app = make_app()
    add = define_add(app, unique="args")
    scheduler = new_scheduler(app)
    scheduler.sync(every_minute("held"), every_minute("free", kwargs={"x": 2}))
    put_back(db, 10)
    slot = state(db, "held")["next_run_at"]
    with psycopg.connect(database_url) as theirs:
        add.with_options(conn=theirs).send(1).unwrap()

        scheduler.run_due()

        assert [task["kwargs"] for task in sent(db)] == ['{"x":2}']
        assert scheduler.postponed == ["held"]
        assert state(db, "held")["next_run_at"] == slot
        theirs.rollback()

    scheduler.retry_now()
    scheduler.run_due()

    assert state(db, "held")["run_count"] == 1


def test_a_lost_connection_is_no_fault_of_a_schedule(
    scheduler: SteppedScheduler, new_scheduler: Any, db: Db
) -> None:
    scheduler.sync(every_minute())
    put_back(db, 10)
    scheduler.connection.pgconn.finish()

    with pytest.raises(psycopg.OperationalError):
        scheduler.run_due()

    other = new_scheduler()
    other.sync(every_minute())
    assert other.run_due() == 1
    assert state(db)["error"] is None


class Sleepy(TaskStarter):
    """Falls asleep in the middle of a turn."""

    async def start(self, connection: Connection, runs: Sequence[Run]) -> list[UUID]:
        await asyncio.sleep(1)
        return await super().start(connection, runs)


class Fragile(TaskStarter):
    """Fails, and then loses its connection."""

    failed = False

    async def start(self, connection: Connection, runs: Sequence[Run]) -> list[UUID]:
        if self.failed:
            connection.pgconn.finish()
        self.failed = True
        await connection.execute("SELECT 1 / 0")
        return []


class OneStarter(Starters):
    def __init__(self, app: Horsies, starter: TaskStarter) -> None:
        super().__init__(app)
        self._starter = starter

    def for_schedule(self, schedule: TaskSchedule) -> TaskStarter:
        return self._starter


def test_a_connection_that_is_lost_while_schedules_are_tried_one_by_one_is_no_fault_of_theirs(
    app: Horsies, scheduler: SteppedScheduler, database_url: str, db: Db
) -> None:
    scheduler.sync(every_minute(), every_minute("other"))
    put_back(db, 10)
    fragile = SteppedScheduler(database_url, app, OneStarter(app, Fragile(app)))
    fragile.restart_with("tick", "other")

    with pytest.raises(psycopg.OperationalError):
        fragile.run_due()

    assert fragile.postponed == []
    fragile.close()
    assert scheduler.run_due() == 2


def test_a_scheduler_that_is_stopped_in_its_turn_loses_it(
    app: Horsies, scheduler: SteppedScheduler, database_url: str, db: Db
) -> None:
    assert scheduler.setting("idle_in_transaction_session_timeout") == "10s"
    scheduler.sync(every_minute())
    put_back(db, 10)
    sleepy = SteppedScheduler(database_url, app, OneStarter(app, Sleepy(app)))
    sleepy.restart_with("tick")
    sleepy.set("idle_in_transaction_session_timeout", "'100ms'")

    with pytest.raises(psycopg.OperationalError):
        sleepy.run_due()

    sleepy.close()
    assert sent(db) == []
    assert scheduler.run_due() == 1


def test_so_many_runs_make_a_transaction_and_no_more(scheduler: SteppedScheduler, db: Db) -> None:
    names = ["a", "b", "c"]
    pattern = IntervalSchedule(seconds=1)
    scheduler.sync(
        *(every_minute(n, pattern=pattern, catch_up_missed=True, max_catch_up_runs=900) for n in names)
    )
    put_back(db, 900)

    assert scheduler.run_batch() == 3
    assert sorted(state(db, name)["run_count"] for name in names) == [0, 900, 900]

    scheduler.run_due()
    assert [state(db, name)["run_count"] for name in names] == [900, 900, 900]


def test_what_keeps_a_schedule_from_being_run_is_said_aloud_once(
    scheduler: SteppedScheduler, db: Db, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler.sync(every_minute())
    put_back(db, 10)
    scheduler.restart_with()

    for _ in range(3):
        scheduler.run_due()
        scheduler.retry_now()

    warnings = [record for record in caplog.records if "'tick' is postponed" in record.message]
    assert [record.levelname for record in warnings if record.levelname == "WARNING"] == ["WARNING"]
