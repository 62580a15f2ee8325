"""A slot is run once, by whoever takes its turn, and what cannot be run holds up nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from threading import Barrier, Thread
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import psycopg
import pytest

from horsies import (
    CronSchedule,
    Horsies,
    IntervalSchedule,
    RetryPolicy,
    TaskError,
    TaskResult,
    TaskSchedule,
)
from horsies.scheduler.targets import Run, Starters, TaskStarter
from horsies.storage.database import Connection
from horsies.storage.ids import not_before, slot_id
from tests.pg.clerk import Clerk, every_minute
from tests.pg.conftest import define_add
from tests.pg.hands import Hands

Db = psycopg.Connection[dict[str, Any]]


@pytest.fixture
def hire_clerk(database_url: str, app: Horsies) -> Iterator[Callable[..., Clerk]]:
    """As many schedulers as the test needs, of the app or of another."""
    hired: list[Clerk] = []

    def new(of: Horsies = app) -> Clerk:
        hired.append(Clerk(database_url, of))
        return hired[-1]

    yield new
    for clerk in hired:
        clerk.close()


@pytest.fixture
def clerk(app: Horsies, hire_clerk: Callable[..., Clerk]) -> Clerk:
    define_add(app)
    return hire_clerk()


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


def test_nothing_runs_before_its_slot(clerk: Clerk, db: Db) -> None:
    before = clerk.now()
    clerk.write_down(every_minute())

    assert clerk.take() == 0
    assert sent(db) == []
    assert before + timedelta(seconds=59) <= state(db)["next_run_at"] <= clerk.now() + timedelta(minutes=1)
    pause = clerk.pause_until_due()
    assert pause is not None
    assert 0 < pause <= 60
    assert clerk.pause_until_due(aside=["tick"]) is None


def test_a_slot_is_run_under_its_own_id_and_date(clerk: Clerk, db: Db) -> None:
    clerk.write_down(every_minute())
    put_back(db, 10)
    slot = state(db)["next_run_at"]

    assert clerk.take() == 1

    (task,) = sent(db)
    after = state(db)
    assert (task["id"], task["sent_at"], task["kwargs"]) == (slot_id("tick", slot), slot, '{"x":1}')
    assert task["enqueued_at"] > slot
    assert (after["last_run_at"], after["last_task_id"], after["run_count"]) == (slot, task["id"], 1)
    assert after["next_run_at"] == slot + timedelta(minutes=1)
    assert clerk.take() == 0


def test_an_id_of_a_slot_is_the_same_everywhere_and_tells_its_time() -> None:
    slot = datetime(2026, 11, 16, 3, tzinfo=UTC)

    assert slot_id("nightly", slot) == UUID("01a1e24c-1780-7887-bb90-b7295dc82ba7")
    assert slot_id("nightly", slot.astimezone(ZoneInfo("Asia/Tokyo"))) == slot_id("nightly", slot)
    assert slot_id("nightly", slot) != slot_id("weekly", slot)
    assert slot_id("nightly", slot).version == 7
    assert not_before([slot_id("nightly", slot)]) == slot - timedelta(days=1)


def test_a_run_is_sent_as_its_task_is(make_app: Callable[..., Horsies], hire_clerk: Any, db: Db) -> None:
    app = make_app()
    policy = RetryPolicy.fixed([5, 6], auto_retry_for=["DOWN"])
    options: dict[str, Any] = {"retry_policy": policy, "timeout_ms": 1_234, "priority": 7, "idempotent": True}
    add = define_add(app, unique="args", rate_limit="100/m", **options)
    clerk = hire_clerk(app)
    clerk.write_down(every_minute(kwargs={"x": 1, "y": 2}))
    put_back(db, 10)

    clerk.take()
    add.send(2, 2).unwrap()

    by_schedule, by_hand = sent(db)
    own = {"id", "sent_at", "enqueued_at", "kwargs", "unique_key"}
    assert {key: by_schedule[key] for key in by_schedule.keys() - own} == {
        key: by_hand[key] for key in by_hand.keys() - own
    }
    assert by_schedule["unique_key"] is not None
    assert by_schedule["unique_key"] != by_hand["unique_key"]


def test_a_unique_task_that_lives_stands_for_the_run(
    make_app: Callable[..., Horsies], hire_clerk: Any, db: Db
) -> None:
    app = make_app()
    live = define_add(app, unique="args").send(1).unwrap()
    clerk = hire_clerk(app)
    clerk.write_down(every_minute())
    put_back(db, 10)

    clerk.take()

    assert [str(task["id"]) for task in sent(db)] == [live.task_id]
    assert str(state(db)["last_task_id"]) == live.task_id


def test_a_run_can_be_waited_for_by_its_id(app: Horsies, clerk: Clerk, hands: Hands, db: Db) -> None:
    clerk.write_down(every_minute())
    put_back(db, 86_400 * 3)
    clerk.take()
    hands.complete(hands.run_next())

    result = app.handle(state(db)["last_task_id"], app.tasks["add"]).get(timeout_ms=0)

    assert result == TaskResult(ok=5)


def test_a_run_and_the_move_to_the_next_slot_come_together_or_not_at_all(clerk: Clerk, db: Db) -> None:
    clerk.write_down(every_minute())
    put_back(db, 10)
    slot = state(db)["next_run_at"]
    db.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'not today'; END $$"
    )
    db.execute(
        "CREATE TRIGGER refuse BEFORE UPDATE ON horsies_schedule_state FOR EACH ROW EXECUTE FUNCTION refuse()"
    )

    assert clerk.take() == 0

    assert sent(db) == []
    assert clerk.aside == ["tick"]
    db.execute("DROP TRIGGER refuse ON horsies_schedule_state")
    clerk.look_again("tick")
    assert clerk.take() == 1
    assert [task["id"] for task in sent(db)] == [slot_id("tick", slot)]


def test_a_slot_that_was_run_is_not_run_again_when_clocks_go_back(clerk: Clerk, hands: Hands, db: Db) -> None:
    clerk.write_down(every_minute("ended"), every_minute("lives", kwargs={"x": 2}))
    put_back(db, 30)
    slot = state(db, "ended")["next_run_at"]
    clerk.take()
    hands.complete(hands.run_next(limit=1))

    db.execute("UPDATE horsies_schedule_state SET next_run_at = %s", (slot,))
    assert clerk.take() == 2

    assert sorted(task["id"] for task in sent(db)) == sorted([slot_id("ended", slot), slot_id("lives", slot)])
    assert state(db, "ended")["next_run_at"] == slot + timedelta(minutes=1)


def test_without_catching_up_only_the_latest_slot_is_run(clerk: Clerk, db: Db) -> None:
    clerk.write_down(every_minute())
    put_back(db, 60 * 10_000 + 5)
    first = state(db)["next_run_at"]

    clerk.take()

    (task,) = sent(db)
    assert task["sent_at"] == first + timedelta(minutes=10_000)
    assert state(db)["next_run_at"] == first + timedelta(minutes=10_001)
    assert state(db)["run_count"] == 1


def test_with_catching_up_every_slot_is_run_in_its_order(clerk: Clerk, hands: Hands, db: Db) -> None:
    clerk.write_down(every_minute(catch_up_missed=True))
    put_back(db, 60 * 5 + 5)
    first = state(db)["next_run_at"]

    clerk.take()

    slots = [first + timedelta(minutes=n) for n in range(6)]
    assert [task["sent_at"] for task in sent(db)] == slots
    assert [UUID(task.id) for task in hands.claim()] == [slot_id("tick", slot) for slot in slots]
    assert state(db)["run_count"] == 6


def test_catching_up_goes_by_so_many_at_a_time(clerk: Clerk, db: Db) -> None:
    clerk.write_down(every_minute(catch_up_missed=True, max_catch_up_runs=4), every_minute("other"))
    put_back(db, 60 * 9 + 5)

    clerk.take()
    assert clerk.aside == ["tick"]
    assert state(db)["run_count"] == 4

    clerk.look_again()
    clerk.take()
    clerk.look_again()
    clerk.take()

    assert state(db)["run_count"] == 10
    assert clerk.aside == []
    assert len({task["sent_at"] for task in sent(db)}) == 10


def test_a_slot_is_skipped_while_the_last_run_lives(clerk: Clerk, hands: Hands, db: Db) -> None:
    clerk.write_down(
        every_minute(overlap="skip", catch_up_missed=True), every_minute("other", kwargs={"x": 2})
    )
    put_back(db, 200)
    clerk.take()
    put_back(db, 70)
    slot = state(db)["next_run_at"]

    clerk.take()

    after = state(db)
    assert (after["run_count"], after["skip_count"]) == (1, 1)
    assert after["next_run_at"] == slot + timedelta(minutes=2)
    assert state(db, "other")["run_count"] == 2

    hands.complete(hands.run_next())
    put_back(db, 10)
    clerk.take()

    assert state(db)["run_count"] == 2


@pytest.mark.parametrize("times", [1, 3])
def test_of_many_schedulers_one_takes_each_turn(
    app: Horsies, database_url: str, db: Db, times: int, clerk: Clerk
) -> None:
    names = [f"tick-{n}" for n in range(200)]
    clerk.write_down(*(every_minute(name, catch_up_missed=True, max_catch_up_runs=times) for name in names))
    put_back(db, 60 * (times - 1) + 5)
    barrier, clerks = Barrier(4), [Clerk(database_url, app) for _ in range(4)]

    def work(one: Clerk) -> None:
        one.know(*names)
        barrier.wait()
        one.take()

    threads = [Thread(target=work, args=(one,)) for one in clerks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in clerks:
        one.close()

    assert len(sent(db)) == 200 * times
    counts = db.execute("SELECT DISTINCT run_count FROM horsies_schedule_state").fetchall()
    assert counts == [{"run_count": times}]


# --- what cannot be run


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


# --- the code and the rows


def test_a_schedule_that_only_other_code_has_is_kept_and_not_run(
    clerk: Clerk, hire_clerk: Any, db: Db, caplog: pytest.LogCaptureFixture
) -> None:
    clerk.write_down(every_minute())
    put_back(db, 10)

    newer = hire_clerk()
    newer.write_down(every_minute("other"))
    newer.take()

    assert sent(db) == []
    assert newer.aside == ["tick"]
    assert "'tick' is not in the code any more" in caplog.text
    assert clerk.take() == 1


def test_a_new_pattern_begins_from_now(clerk: Clerk, db: Db, caplog: pytest.LogCaptureFixture) -> None:
    clerk.write_down(every_minute())
    put_back(db, 10)

    clerk.write_down(every_minute(pattern=CronSchedule("0 0 * * *")))

    assert state(db)["next_run_at"] > clerk.now()
    assert "its slots begin anew" in caplog.text
    assert clerk.take() == 0


def test_another_time_zone_begins_from_now_and_other_arguments_do_not(clerk: Clerk, db: Db) -> None:
    clerk.write_down(every_minute())
    put_back(db, 10)
    slot = state(db)["next_run_at"]

    clerk.write_down(every_minute(kwargs={"x": 5}, overlap="skip"))
    assert state(db)["next_run_at"] == slot

    clerk.write_down(every_minute(timezone="Asia/Tokyo"))
    assert state(db)["next_run_at"] > clerk.now()


def test_what_is_switched_off_does_not_run_and_begins_from_now_when_it_is_on_again(
    clerk: Clerk, db: Db
) -> None:
    clerk.write_down(every_minute("never", enabled=False))
    assert db.execute("SELECT FROM horsies_schedule_state").fetchall() == []

    clerk.write_down(every_minute())
    put_back(db, 10)
    clerk.write_down(every_minute(enabled=False))
    assert (state(db)["enabled"], state(db)["next_run_at"]) == (False, None)
    assert clerk.take() == 0

    clerk.write_down(every_minute())
    assert state(db)["next_run_at"] > clerk.now()


def test_writing_down_the_same_again_changes_nothing(clerk: Clerk, db: Db) -> None:
    clerk.write_down(every_minute(), every_minute("other"))
    before = state(db)

    clerk.write_down(every_minute(), every_minute("other"))

    assert state(db) == before


def test_schedulers_that_start_at_once_agree(app: Horsies, database_url: str, clerk: Clerk, db: Db) -> None:
    given = [every_minute(f"tick-{n}") for n in range(50)]
    barrier, failures = Barrier(4), list[BaseException]()

    def start() -> None:
        one = Clerk(database_url, app)
        try:
            barrier.wait()
            one.write_down(*given)
        except BaseException as error:  # noqa: BLE001  the test itself looks at it
            failures.append(error)
        finally:
            one.close()

    threads = [Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    assert len(db.execute("SELECT FROM horsies_schedule_state").fetchall()) == 50


def test_a_name_may_be_any_text(clerk: Clerk, db: Db) -> None:
    names = ["ż" * 255, "'; DROP TABLE horsies_tasks; --", "100 %s {} \n"]
    clerk.write_down(*(every_minute(name) for name in names))
    put_back(db, 5)

    assert clerk.take() == 3
    assert [state(db, name)["run_count"] for name in names] == [1, 1, 1]
