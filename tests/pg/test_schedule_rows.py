"""Schedules made, changed and stopped while everything runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from horsies import (
    AppConfig,
    CronSchedule,
    Horsies,
    PostgresConfig,
    ScheduleConfig,
    ScheduleErrorCode,
    TaskResult,
)
from tests.pg.conftest import Add, define_add
from tests.pg.hands import Hands
from tests.pg.stepped_scheduler import SteppedScheduler, every_minute

Db = psycopg.Connection[dict[str, Any]]
FAR = CronSchedule("0 0 1 1 *")


@pytest.fixture(autouse=True)
def _add(add: Add) -> None:
    """All apps here know the task."""


@pytest.fixture
def scheduler(database_url: str, app: Horsies) -> Iterator[SteppedScheduler]:
    scheduler = SteppedScheduler(database_url, app)
    yield scheduler
    scheduler.close()


def test_a_schedule_made_at_run_time_is_run(app: Horsies, scheduler: SteppedScheduler, db: Db) -> None:
    made = app.schedules.create(
        every_minute(timezone="Asia/Tokyo", overlap="skip", queue_name="default")
    ).unwrap()

    assert (made.name, made.source, made.enabled, made.run_count) == ("tick", "runtime", True, 0)
    assert made.schedule == every_minute(timezone="Asia/Tokyo", overlap="skip", queue_name="default")
    assert made.next_run_at is not None
    assert timedelta(0) < made.next_run_at - scheduler.now() <= timedelta(minutes=1)

    db.execute("UPDATE horsies_schedule_state SET next_run_at = now() - interval '5 s'")
    scheduler.run_due()

    info = app.schedules.get("tick").unwrap()
    assert info.run_count == 1
    assert info.last_task_id is not None
    assert app.handle(info.last_task_id).info().unwrap() is not None


def test_what_could_not_be_run_is_refused_with_all_that_is_wrong(app: Horsies, db: Db) -> None:
    wrong = every_minute(task_name="ad", timezone="Mars/Olympus", queue_name="mail")

    for answer in (app.schedules.create(wrong), app.schedules.update(wrong)):
        error = answer.unwrap_err()
        assert error.code is ScheduleErrorCode.INVALID
        assert len(error.errors) == 3
        assert {each.code for each in error.errors} == {"HRS-205"}
        assert "Mars/Olympus" in error.message
    assert app.schedules.create(every_minute(kwargs={"z": 1})).unwrap_err().code is ScheduleErrorCode.INVALID
    assert db.execute("SELECT FROM horsies_schedule_state").fetchall() == []


def test_a_name_is_given_once(app: Horsies) -> None:
    app.schedules.create(every_minute()).unwrap()

    assert app.schedules.create(every_minute(pattern=FAR)).unwrap_err().code is ScheduleErrorCode.EXISTS


def test_an_update_moves_slots_only_when_the_pattern_is_another(app: Horsies) -> None:
    before = app.schedules.create(every_minute()).unwrap()

    other = app.schedules.update(every_minute(kwargs={"x": 9}, overlap="skip")).unwrap()
    assert other.next_run_at == before.next_run_at
    assert other.schedule is not None
    assert other.schedule.kwargs == {"x": 9}

    moved = app.schedules.update(replace(other.schedule, pattern=FAR)).unwrap()
    assert moved.next_run_at is not None
    assert (moved.next_run_at.month, moved.next_run_at.day) == (1, 1)
    off = app.schedules.update(every_minute(enabled=False)).unwrap()
    assert (off.enabled, off.next_run_at) == (False, None)


def test_a_pause_lasts_until_it_is_ended_and_is_not_made_up_for(
    app: Horsies, scheduler: SteppedScheduler, db: Db
) -> None:
    scheduler.sync(every_minute(catch_up_missed=True))
    db.execute("UPDATE horsies_schedule_state SET next_run_at = now() - interval '1 hour'")

    paused = app.schedules.pause("tick").unwrap()
    again = app.schedules.pause("tick").unwrap()
    assert paused.paused_at == again.paused_at is not None
    assert paused.next_run_at is None
    scheduler.sync(every_minute(catch_up_missed=True, kwargs={"x": 2}))
    scheduler.sync(every_minute(catch_up_missed=True, pattern=CronSchedule("* * * * *")))
    assert scheduler.run_due() == 0
    assert app.schedules.get("tick").unwrap().paused_at == paused.paused_at

    resumed = app.schedules.resume("tick").unwrap()
    assert resumed.paused_at is None
    assert resumed.next_run_at is not None
    assert resumed.next_run_at > scheduler.now()
    assert app.schedules.resume("tick").unwrap() == resumed


def test_a_schedule_that_is_deleted_is_gone_and_its_runs_are_not(
    app: Horsies, scheduler: SteppedScheduler, db: Db
) -> None:
    app.schedules.create(every_minute()).unwrap()
    handle = app.schedules.run_now("tick").unwrap()

    app.schedules.delete("tick").unwrap()

    assert app.schedules.list().unwrap() == []
    assert handle.info().unwrap() is not None
    assert app.schedules.create(every_minute()).unwrap().run_count == 0


def test_a_run_out_of_turn_leaves_the_slots_alone(
    app: Horsies, hands: Hands, scheduler: SteppedScheduler, db: Db
) -> None:
    before = app.schedules.create(every_minute(overlap="skip")).unwrap()
    app.schedules.pause("tick").unwrap()
    first = app.schedules.run_now("tick").unwrap()
    app.schedules.resume("tick").unwrap()

    after = app.schedules.get("tick").unwrap()
    assert before.next_run_at is not None
    assert after.next_run_at is not None
    assert after.next_run_at - before.next_run_at <= timedelta(seconds=60)
    assert (after.last_task_id, after.run_count) == (first.task_id, 1)
    db.execute("UPDATE horsies_schedule_state SET next_run_at = now() - interval '5 s'")
    scheduler.run_due()
    assert app.schedules.get("tick").unwrap().skip_count == 1

    hands.complete(hands.run_next())
    assert first.get(timeout_ms=0) == TaskResult(ok=5)
    assert app.schedules.run_now("tick").unwrap().task_id != first.task_id


def test_what_the_code_has_is_changed_in_the_code(
    make_app: Callable[..., Horsies], scheduler: SteppedScheduler
) -> None:
    scheduler.sync(every_minute())
    app = make_app(schedule=ScheduleConfig(schedules=[every_minute(), every_minute("unseen")]))
    define_add(app)

    assert app.schedules.update(every_minute()).unwrap_err().code is ScheduleErrorCode.IN_CODE
    assert app.schedules.delete("tick").unwrap_err().code is ScheduleErrorCode.IN_CODE
    assert app.schedules.create(every_minute("unseen")).unwrap_err().code is ScheduleErrorCode.EXISTS
    assert app.schedules.pause("tick").is_ok()


def test_what_no_code_has_any_more_can_be_deleted(app: Horsies, scheduler: SteppedScheduler) -> None:
    scheduler.sync(every_minute())

    assert app.schedules.delete("tick").is_ok()


@pytest.mark.parametrize("verb", ["pause", "resume", "delete", "run_now", "get"])
def test_what_does_not_exist_is_not_found(app: Horsies, verb: str) -> None:
    error = getattr(app.schedules, verb)("nothing").unwrap_err()

    assert error.code is ScheduleErrorCode.NOT_FOUND
    assert "'nothing'" in error.message


def test_what_cannot_be_read_is_listed_with_its_error(app: Horsies, db: Db) -> None:
    app.schedules.create(every_minute()).unwrap()
    db.execute("UPDATE horsies_schedule_state SET definition = '{}', next_run_at = NULL")

    (info,) = app.schedules.list().unwrap()

    assert info.schedule is None
    assert info.error
    for verb in ("resume", "run_now"):
        assert getattr(app.schedules, verb)("tick").unwrap_err().code is ScheduleErrorCode.INVALID
    assert app.schedules.delete("tick").is_ok()


def test_a_database_that_is_away_is_an_error_that_may_be_tried_again() -> None:
    nowhere = Horsies(AppConfig(broker=PostgresConfig(database_url="postgresql://ann:s3cret@127.0.0.1:1/x")))

    error = nowhere.schedules.list().unwrap_err()

    assert (error.code, error.retryable) == (ScheduleErrorCode.DB_OPERATION_FAILED, True)
    assert "s3cret" not in repr(error)


def test_each_verb_has_an_async_twin(app: Horsies) -> None:
    async def all_of_them() -> list[Any]:
        there = app.schedules
        return [
            await there.create_async(every_minute()),
            await there.update_async(every_minute(overlap="skip")),
            await there.get_async("tick"),
            await there.list_async(),
            await there.pause_async("tick"),
            await there.resume_async("tick"),
            await there.run_now_async("tick"),
            await there.delete_async("tick"),
        ]

    assert [answer.is_ok() for answer in asyncio.run(all_of_them())] == [True] * 8


def test_every_change_tells_those_who_sleep(app: Horsies, db: Db) -> None:
    db.execute("LISTEN horsies_schedules")

    app.schedules.create(every_minute()).unwrap()
    app.schedules.update(every_minute(overlap="skip")).unwrap()
    app.schedules.pause("tick").unwrap()
    app.schedules.resume("tick").unwrap()
    app.schedules.delete("tick").unwrap()

    heard = [notify.payload for notify in db.notifies(timeout=5, stop_after=5)]
    assert heard == ["tick"] * 5


def test_moments_are_in_utc(app: Horsies, database_url: str) -> None:
    strange = Horsies(
        AppConfig(
            broker=PostgresConfig(database_url=f"{database_url}?options=-c%20timezone%3DAmerica/New_York")
        )
    )
    define_add(strange)

    info = strange.schedules.create(every_minute()).unwrap()

    assert info.next_run_at is not None
    assert info.next_run_at.tzinfo is UTC
    assert abs(info.next_run_at - datetime.now(UTC)) < timedelta(minutes=5)
    asyncio.run(strange.get_broker().close_async())
