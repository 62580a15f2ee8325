"""A slot is run once, by whoever takes its turn, and what cannot be run holds up nothing else."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from threading import Barrier, Thread
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from horsies import (
    Horsies,
    RetryPolicy,
    TaskResult,
)
from horsies.db.ids import not_before, slot_id
from tests.pg.conftest import define_add
from tests.pg.hands import Hands
from tests.pg.stepped_scheduler import Db, SteppedScheduler, every_minute, put_back, sent, state


def test_nothing_runs_before_its_slot(scheduler: SteppedScheduler, db: Db) -> None:
    before = scheduler.now()
    scheduler.sync(every_minute())

    assert scheduler.run_due() == 0
    assert sent(db) == []
    assert (
        before + timedelta(seconds=59) <= state(db)["next_run_at"] <= scheduler.now() + timedelta(minutes=1)
    )
    pause = scheduler.seconds_until_due()
    assert pause is not None
    assert 0 < pause <= 60
    assert scheduler.seconds_until_due(exclude=["tick"]) is None


def test_a_slot_is_run_under_its_own_id_and_date(scheduler: SteppedScheduler, db: Db) -> None:
    scheduler.sync(every_minute())
    put_back(db, 10)
    slot = state(db)["next_run_at"]

    assert scheduler.run_due() == 1

    (task,) = sent(db)
    after = state(db)
    assert (task["id"], task["sent_at"], task["kwargs"]) == (slot_id("tick", slot), slot, '{"x":1}')
    assert task["enqueued_at"] > slot
    assert (after["last_run_at"], after["last_task_id"], after["run_count"]) == (slot, task["id"], 1)
    assert after["next_run_at"] == slot + timedelta(minutes=1)
    assert scheduler.run_due() == 0


def test_an_id_of_a_slot_is_the_same_everywhere_and_tells_its_time() -> None:
    slot = datetime(2026, 11, 16, 3, tzinfo=UTC)

    assert slot_id("nightly", slot) == UUID("01a1e24c-1780-7887-bb90-b7295dc82ba7")
    assert slot_id("nightly", slot.astimezone(ZoneInfo("Asia/Tokyo"))) == slot_id("nightly", slot)
    assert slot_id("nightly", slot) != slot_id("weekly", slot)
    assert slot_id("nightly", slot).version == 7
    assert not_before([slot_id("nightly", slot)]) == slot - timedelta(days=1)


def test_a_run_is_sent_as_its_task_is(make_app: Callable[..., Horsies], new_scheduler: Any, db: Db) -> None:
    app = make_app()
    policy = RetryPolicy.fixed([5, 6], auto_retry_for=["DOWN"])
    options: dict[str, Any] = {"retry_policy": policy, "timeout_ms": 1_234, "priority": 7, "idempotent": True}
    add = define_add(app, unique="args", rate_limit="100/m", **options)
    scheduler = new_scheduler(app)
    scheduler.sync(every_minute(kwargs={"x": 1, "y": 2}))
    put_back(db, 10)

    scheduler.run_due()
    add.send(2, 2).unwrap()

    by_schedule, by_hand = sent(db)
    own = {"id", "sent_at", "enqueued_at", "kwargs", "unique_key"}
    assert {key: by_schedule[key] for key in by_schedule.keys() - own} == {
        key: by_hand[key] for key in by_hand.keys() - own
    }
    assert by_schedule["unique_key"] is not None
    assert by_schedule["unique_key"] != by_hand["unique_key"]


def test_a_run_has_the_key_and_the_cost_of_its_task(
    make_app: Callable[..., Horsies], new_scheduler: Any, db: Db
) -> None:
    app = make_app()
    define_add(app, key="x", key_rate="60/m", cost="y")
    scheduler = new_scheduler(app)
    scheduler.sync(every_minute(kwargs={"x": 7, "y": 2}))
    put_back(db, 10)

    scheduler.run_due()

    assert [(task["rate_key"], task["cost"]) for task in sent(db)] == [("key=7", 2.0)]


def test_a_run_of_a_debounced_task_replaces_the_one_that_waits(
    make_app: Callable[..., Horsies], new_scheduler: Any, db: Db
) -> None:
    app = make_app()
    waiting = define_add(app, unique=lambda x, y=0: str(x), on_conflict="last").send(1, 2).unwrap()

    @app.task("other")
    def other(x: int) -> int:
        return x

    scheduler = new_scheduler(app)
    scheduler.sync(every_minute(kwargs={"x": 1, "y": 3}), every_minute("beside", task_name="other"))
    put_back(db, 10)

    scheduler.run_due()

    replaced, beside = sorted(sent(db), key=lambda task: task["task_name"])
    assert (str(replaced["id"]), replaced["kwargs"]) == (waiting.task_id, '{"x":1,"y":3}')
    assert (beside["task_name"], beside["unique_key"]) == ("other", None)


def test_a_unique_task_that_lives_stands_for_the_run(
    make_app: Callable[..., Horsies], new_scheduler: Any, db: Db
) -> None:
    app = make_app()
    live = define_add(app, unique="args").send(1).unwrap()
    scheduler = new_scheduler(app)
    scheduler.sync(every_minute())
    put_back(db, 10)

    scheduler.run_due()

    assert [str(task["id"]) for task in sent(db)] == [live.task_id]
    assert str(state(db)["last_task_id"]) == live.task_id


def test_a_run_can_be_waited_for_by_its_id(
    app: Horsies, scheduler: SteppedScheduler, hands: Hands, db: Db
) -> None:
    scheduler.sync(every_minute())
    put_back(db, 86_400 * 3)
    scheduler.run_due()
    hands.complete(hands.run_next())

    result = app.handle(state(db)["last_task_id"], app.tasks["add"]).get(timeout_ms=0)

    assert result == TaskResult(ok=5)


def test_a_run_and_the_move_to_the_next_slot_come_together_or_not_at_all(
    scheduler: SteppedScheduler, db: Db
) -> None:
    scheduler.sync(every_minute())
    put_back(db, 10)
    slot = state(db)["next_run_at"]
    db.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'not today'; END $$"
    )
    db.execute(
        "CREATE TRIGGER refuse BEFORE UPDATE ON horsies_schedule_state FOR EACH ROW EXECUTE FUNCTION refuse()"
    )

    assert scheduler.run_due() == 0

    assert sent(db) == []
    assert scheduler.postponed == ["tick"]
    db.execute("DROP TRIGGER refuse ON horsies_schedule_state")
    scheduler.retry_now("tick")
    assert scheduler.run_due() == 1
    assert [task["id"] for task in sent(db)] == [slot_id("tick", slot)]


def test_a_slot_that_was_run_is_not_run_again_when_clocks_go_back(
    scheduler: SteppedScheduler, hands: Hands, db: Db
) -> None:
    scheduler.sync(every_minute("ended"), every_minute("lives", kwargs={"x": 2}))
    put_back(db, 30)
    slot = state(db, "ended")["next_run_at"]
    scheduler.run_due()
    hands.complete(hands.run_next(limit=1))

    db.execute("UPDATE horsies_schedule_state SET next_run_at = %s", (slot,))
    assert scheduler.run_due() == 2

    assert sorted(task["id"] for task in sent(db)) == sorted([slot_id("ended", slot), slot_id("lives", slot)])
    assert state(db, "ended")["next_run_at"] == slot + timedelta(minutes=1)


def test_without_catching_up_only_the_latest_slot_is_run(scheduler: SteppedScheduler, db: Db) -> None:
    scheduler.sync(every_minute())
    put_back(db, 60 * 10_000 + 5)
    first = state(db)["next_run_at"]

    scheduler.run_due()

    (task,) = sent(db)
    assert task["sent_at"] == first + timedelta(minutes=10_000)
    assert state(db)["next_run_at"] == first + timedelta(minutes=10_001)
    assert state(db)["run_count"] == 1


def test_with_catching_up_every_slot_is_run_in_its_order(
    scheduler: SteppedScheduler, hands: Hands, db: Db
) -> None:
    scheduler.sync(every_minute(catch_up_missed=True))
    put_back(db, 60 * 5 + 5)
    first = state(db)["next_run_at"]

    scheduler.run_due()

    slots = [first + timedelta(minutes=n) for n in range(6)]
    assert [task["sent_at"] for task in sent(db)] == slots
    assert [UUID(task.id) for task in hands.claim()] == [slot_id("tick", slot) for slot in slots]
    assert state(db)["run_count"] == 6


def test_catching_up_goes_by_so_many_at_a_time(scheduler: SteppedScheduler, db: Db) -> None:
    scheduler.sync(every_minute(catch_up_missed=True, max_catch_up_runs=4), every_minute("other"))
    put_back(db, 60 * 9 + 5)

    scheduler.run_due()
    assert scheduler.postponed == ["tick"]
    assert state(db)["run_count"] == 4

    scheduler.retry_now()
    scheduler.run_due()
    scheduler.retry_now()
    scheduler.run_due()

    assert state(db)["run_count"] == 10
    assert scheduler.postponed == []
    assert len({task["sent_at"] for task in sent(db)}) == 10


def test_a_slot_is_skipped_while_the_last_run_lives(
    scheduler: SteppedScheduler, hands: Hands, db: Db
) -> None:
    scheduler.sync(every_minute(overlap="skip", catch_up_missed=True), every_minute("other", kwargs={"x": 2}))
    put_back(db, 200)
    scheduler.run_due()
    put_back(db, 70)
    slot = state(db)["next_run_at"]

    scheduler.run_due()

    after = state(db)
    assert (after["run_count"], after["skip_count"]) == (1, 1)
    assert after["next_run_at"] == slot + timedelta(minutes=2)
    assert state(db, "other")["run_count"] == 2

    hands.complete(hands.run_next())
    put_back(db, 10)
    scheduler.run_due()

    assert state(db)["run_count"] == 2


@pytest.mark.parametrize("times", [1, 3])
def test_of_many_schedulers_one_takes_each_turn(
    app: Horsies, database_url: str, db: Db, times: int, scheduler: SteppedScheduler
) -> None:
    names = [f"tick-{n}" for n in range(200)]
    scheduler.sync(*(every_minute(name, catch_up_missed=True, max_catch_up_runs=times) for name in names))
    put_back(db, 60 * (times - 1) + 5)
    barrier, clerks = Barrier(4), [SteppedScheduler(database_url, app) for _ in range(4)]

    def work(one: SteppedScheduler) -> None:
        one.restart_with(*names)
        barrier.wait()
        one.run_due()

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
