"""The schedules of the code and their rows: what is new begins from now, and what is the same stays."""

from __future__ import annotations

from threading import Barrier, Thread
from typing import Any

import psycopg
import pytest

from horsies import (
    CronSchedule,
    Horsies,
)
from horsies.db.queries.schedules import SQL
from tests.pg.stepped_scheduler import Db, SteppedScheduler, every_minute, put_back, sent, state


def test_a_schedule_that_only_other_code_has_is_kept_and_not_run(
    scheduler: SteppedScheduler, new_scheduler: Any, db: Db, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler.sync(every_minute())
    put_back(db, 10)

    newer = new_scheduler()
    newer.sync(every_minute("other"))
    newer.run_due()

    assert sent(db) == []
    assert newer.postponed == ["tick"]
    assert "'tick' is not in the code any more" in caplog.text
    assert scheduler.run_due() == 1


def test_a_new_pattern_begins_from_now(
    scheduler: SteppedScheduler, db: Db, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler.sync(every_minute())
    put_back(db, 10)

    scheduler.sync(every_minute(pattern=CronSchedule("0 0 * * *")))

    assert state(db)["next_run_at"] > scheduler.now()
    assert "its next run is computed from now" in caplog.text
    assert scheduler.run_due() == 0


def test_another_time_zone_begins_from_now_and_other_arguments_do_not(
    scheduler: SteppedScheduler, db: Db
) -> None:
    scheduler.sync(every_minute())
    put_back(db, 10)
    slot = state(db)["next_run_at"]

    scheduler.sync(every_minute(kwargs={"x": 5}, overlap="skip"))
    assert state(db)["next_run_at"] == slot

    scheduler.sync(every_minute(timezone="Asia/Tokyo"))
    assert state(db)["next_run_at"] > scheduler.now()


def test_what_is_switched_off_does_not_run_and_begins_from_now_when_it_is_on_again(
    scheduler: SteppedScheduler, db: Db
) -> None:
    scheduler.sync(every_minute("never", enabled=False))
    assert db.execute("SELECT FROM horsies_schedule_state").fetchall() == []

    scheduler.sync(every_minute())
    put_back(db, 10)
    scheduler.sync(every_minute(enabled=False))
    assert (state(db)["enabled"], state(db)["next_run_at"]) == (False, None)
    assert scheduler.run_due() == 0

    scheduler.sync(every_minute())
    assert state(db)["next_run_at"] > scheduler.now()


def test_writing_down_the_same_again_changes_nothing(scheduler: SteppedScheduler, db: Db) -> None:
    scheduler.sync(every_minute(), every_minute("other"))
    before = state(db)

    scheduler.sync(every_minute(), every_minute("other"))

    assert state(db) == before


def test_schedulers_that_start_at_once_agree(
    app: Horsies, database_url: str, scheduler: SteppedScheduler, db: Db
) -> None:
    given = [every_minute(f"tick-{n}") for n in range(50)]
    barrier, failures = Barrier(4), list[BaseException]()

    def start() -> None:
        one = SteppedScheduler(database_url, app)
        try:
            barrier.wait()
            one.sync(*given)
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


def test_schedulers_write_their_schedules_down_one_after_the_other(
    scheduler: SteppedScheduler, db: Db
) -> None:
    with db.transaction():
        db.execute(SQL["lock"])

        with pytest.raises(psycopg.errors.LockNotAvailable):
            scheduler.sync(every_minute())

    scheduler.sync(every_minute())


def test_a_name_may_be_any_text(scheduler: SteppedScheduler, db: Db) -> None:
    names = ["ż" * 255, "'; DROP TABLE horsies_tasks; --", "100 %s {} \n"]
    scheduler.sync(*(every_minute(name) for name in names))
    put_back(db, 5)

    assert scheduler.run_due() == 3
    assert [state(db, name)["run_count"] for name in names] == [1, 1, 1]
