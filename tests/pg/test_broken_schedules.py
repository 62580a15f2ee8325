"""What cannot be run holds up nothing else, says why, and is left to others who can."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from horsies import (
    Horsies,
    IntervalSchedule,
    TaskError,
    TaskResult,
    TaskSchedule,
)
from horsies.scheduler.targets import Run, Starters, TaskStarter
from horsies.storage.database import Connection
from horsies.storage.ids import slot_id
from tests.pg.clerk import Clerk, Db, every_minute, put_back, sent, state
from tests.pg.conftest import define_add


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
    clerk: Clerk, db: Db, definition: str, complaint: str, moves_on: bool
) -> None:
    clerk.write_down(every_minute("broken"), every_minute())
    put_back(db, 10)
    slot = state(db)["next_run_at"]
    db.execute(
        "UPDATE horsies_schedule_state SET definition = %s WHERE schedule_name = 'broken'", (definition,)
    )

    clerk.take()

    assert [task["id"] for task in sent(db)] == [slot_id("tick", slot)]
    broken = state(db, "broken")
    assert complaint in broken["error"]
    assert broken["error_at"] is not None
    assert (broken["run_count"], broken["skip_count"]) == (0, 0)
    assert (broken["next_run_at"] > slot) == moves_on
    assert clerk.aside == ([] if moves_on else ["broken"])


def test_what_only_this_scheduler_cannot_run_is_left_to_another(
    clerk: Clerk, make_app: Callable[..., Horsies], hire_clerk: Any, db: Db
) -> None:
    newer = make_app()
    define_add(newer)

    @newer.task("new")
    def new() -> TaskResult[int, TaskError]:
        return TaskResult(ok=1)

    other = hire_clerk(newer)
    other.write_down(every_minute(task_name="new", kwargs={}))
    clerk.write_down(every_minute("old"))
    put_back(db, 10, "tick")

    clerk.take()
    assert sent(db) == []
    assert clerk.aside == ["tick"]

    other.take()
    assert [task["task_name"] for task in sent(db)] == ["new"]
    assert state(db)["error"] is None


def test_a_row_that_the_database_refuses_costs_its_own_slot_only(app: Horsies, clerk: Clerk, db: Db) -> None:
    @app.task("cursed")
    def cursed() -> TaskResult[int, TaskError]:
        return TaskResult(ok=1)

    db.execute(
        "ALTER TABLE horsies_tasks_live ADD CONSTRAINT no_curses CHECK (task_name <> 'cursed') NOT VALID"
    )
    clerk.write_down(
        every_minute("a"),
        every_minute("b", task_name="cursed", kwargs={}),
        every_minute("c", kwargs={"x": 2}),
    )
    put_back(db, 10)
    slot = state(db, "b")["next_run_at"]

    clerk.take()

    assert {task["task_name"] for task in sent(db)} == {"add"}
    assert len(sent(db)) == 2
    assert "no_curses" in state(db, "b")["error"]
    assert state(db, "b")["next_run_at"] == slot + timedelta(minutes=1)


def test_a_unique_key_that_somebody_holds_back_keeps_its_own_schedule_waiting_only(
    make_app: Callable[..., Horsies], hire_clerk: Any, db: Db, database_url: str
) -> None:
    app = make_app()
    add = define_add(app, unique="args")
    clerk = hire_clerk(app)
    clerk.write_down(every_minute("held"), every_minute("free", kwargs={"x": 2}))
    put_back(db, 10)
    slot = state(db, "held")["next_run_at"]
    with psycopg.connect(database_url) as theirs:
        add.with_options(conn=theirs).send(1).unwrap()

        clerk.take()

        assert [task["kwargs"] for task in sent(db)] == ['{"x":2}']
        assert clerk.aside == ["held"]
        assert state(db, "held")["next_run_at"] == slot
        theirs.rollback()

    clerk.look_again()
    clerk.take()

    assert state(db, "held")["run_count"] == 1


def test_a_lost_connection_is_no_fault_of_a_schedule(clerk: Clerk, hire_clerk: Any, db: Db) -> None:
    clerk.write_down(every_minute())
    put_back(db, 10)
    clerk.connection.pgconn.finish()

    with pytest.raises(psycopg.OperationalError):
        clerk.take()

    other = hire_clerk()
    other.write_down(every_minute())
    assert other.take() == 1
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

    def of(self, schedule: TaskSchedule) -> TaskStarter:
        return self._starter


def test_a_connection_that_is_lost_while_schedules_are_tried_one_by_one_is_no_fault_of_theirs(
    app: Horsies, clerk: Clerk, database_url: str, db: Db
) -> None:
    clerk.write_down(every_minute(), every_minute("other"))
    put_back(db, 10)
    fragile = Clerk(database_url, app, OneStarter(app, Fragile(app)))
    fragile.know("tick", "other")

    with pytest.raises(psycopg.OperationalError):
        fragile.take()

    assert fragile.aside == []
    fragile.close()
    assert clerk.take() == 2


def test_a_scheduler_that_is_stopped_in_its_turn_loses_it(
    app: Horsies, clerk: Clerk, database_url: str, db: Db
) -> None:
    assert clerk.setting("idle_in_transaction_session_timeout") == "10s"
    clerk.write_down(every_minute())
    put_back(db, 10)
    sleepy = Clerk(database_url, app, OneStarter(app, Sleepy(app)))
    sleepy.know("tick")
    sleepy.set("idle_in_transaction_session_timeout", "'100ms'")

    with pytest.raises(psycopg.OperationalError):
        sleepy.take()

    sleepy.close()
    assert sent(db) == []
    assert clerk.take() == 1


def test_so_many_runs_make_a_transaction_and_no_more(clerk: Clerk, db: Db) -> None:
    names = ["a", "b", "c"]
    pattern = IntervalSchedule(seconds=1)
    clerk.write_down(
        *(every_minute(n, pattern=pattern, catch_up_missed=True, max_catch_up_runs=900) for n in names)
    )
    put_back(db, 900)

    assert clerk.take_once() == 3
    assert sorted(state(db, name)["run_count"] for name in names) == [0, 900, 900]

    clerk.take()
    assert [state(db, name)["run_count"] for name in names] == [900, 900, 900]


def test_what_keeps_a_schedule_from_being_run_is_said_aloud_once(
    clerk: Clerk, db: Db, caplog: pytest.LogCaptureFixture
) -> None:
    clerk.write_down(every_minute())
    put_back(db, 10)
    clerk.know()

    for _ in range(3):
        clerk.take()
        clerk.look_again()

    warnings = [record for record in caplog.records if "'tick' is left alone" in record.message]
    assert [record.levelname for record in warnings if record.levelname == "WARNING"] == ["WARNING"]
