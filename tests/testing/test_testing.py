"""What tests of users rely on: real rows, run here, at the time they say."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from urllib.parse import urlsplit

import psycopg
import pytest

from horsies import Horsies, TaskStatus, WorkflowStatus
from horsies.testing import Ran, assert_enqueued, drain, drain_async, enqueued, fresh_database, inline, travel
from tests.testing import shop
from tests.testing.shop import Order

ORDER = Order(7, Decimal("12.50"))


def test_what_is_sent_waits_until_it_is_drained_and_is_then_recorded_as_by_a_worker(app: Horsies) -> None:
    handle = shop.send_mail.send("ann@example.org", ORDER).unwrap()

    [waiting] = enqueued(app)
    assert (waiting.task_name, waiting.queue_name, waiting.kwargs["order"]) == ("shop.mail", "mail", ORDER)
    [ran] = drain(app)

    assert (ran.task_id, ran.attempt, ran.result.unwrap()) == (handle.task_id, 1, ORDER.total)
    assert handle.get(timeout_ms=0).unwrap() == ORDER.total
    info = handle.info(include_attempts=True).unwrap()
    assert info is not None
    assert (info.status, info.worker_pid) == (TaskStatus.COMPLETED, os.getpid())
    assert enqueued(app) == drain(app) == []


def test_every_test_has_a_database_of_its_own_and_a_suspended_queue_stays(
    app: Horsies, horsies_database_url: str
) -> None:
    assert enqueued(app) == []
    assert os.environ["HORSIES_DATABASE_URL"] == horsies_database_url
    shop.numbers.send().unwrap()
    with psycopg.connect(horsies_database_url) as connection:
        assert connection.execute("SELECT task_name FROM horsies_tasks").fetchall() == [("shop.numbers",)]
        connection.execute(
            "INSERT INTO horsies_suspensions (queue_name, suspended_by) VALUES ('bulk', 'ann')"
        )
    assert drain(app) == []
    assert_enqueued(shop.numbers, count=1)


def test_an_assertion_about_what_waits_fails_when_it_should(app: Horsies) -> None:
    shop.send_mail.send("ann@example.org", ORDER).unwrap()
    shop.send_mail.send("bob@example.org", ORDER).unwrap()

    assert len(assert_enqueued(shop.send_mail, kwargs={"order": ORDER}, queue="mail", count=2)) == 2
    assert_enqueued(shop.send_mail, kwargs={"to": "bob@example.org"})
    assert_enqueued(shop.numbers, count=0)
    for wrong in (
        {"count": 1},
        {"queue": "bulk"},
        {"kwargs": {"to": "eve@example.org"}},
        {"kwargs": {"order": Order(8, ORDER.total)}},
    ):
        with pytest.raises(AssertionError, match=r"waiting tasks of this name:\n  shop\.mail in mail with"):
            assert_enqueued(shop.send_mail, **wrong)


def test_a_retry_waits_for_its_time_and_time_can_be_skipped(app: Horsies) -> None:
    handle = shop.flaky.send(fails=2).unwrap()

    def ran() -> list[Ran]:
        """Run what is due, but for the nightly report, which may come due on the way."""
        return [each for each in drain(app) if each.task_name != "shop.report"]

    assert [each.result.is_err() for each in ran()] == [True]
    assert ran() == []
    travel(app, minutes=2)
    assert [each.attempt for each in ran()] == [2]
    travel(app, minutes=4)
    assert [each.result.unwrap() for each in ran()] == [3]
    info = handle.info(include_attempts=True).unwrap()
    assert info is not None
    assert [attempt.attempt for attempt in info.attempts or ()] == [3, 2, 1]


def test_delays_expiry_and_schedules_come_nearer_by_as_much_as_was_travelled(app: Horsies) -> None:
    shop.send_mail.schedule(7_200, "late@example.org", ORDER).unwrap()
    until = datetime.now(UTC) + timedelta(hours=1)
    expiring = shop.report.with_options(good_until=until, delay_seconds=3_700).send().unwrap()

    travel(app, hours=1, minutes=59)
    assert [ran.task_name for ran in drain(app) if ran.task_name != "shop.report"] == []
    assert expiring.get(timeout_ms=0).unwrap_err().error_code == "TASK_EXPIRED"
    travel(app, timedelta(minutes=1), minutes=1)
    assert "late@example.org" in (drain(app) and shop.seen)
    travel(app, days=1)
    assert [ran.task_name for ran in drain(app)] == ["shop.report"]
    with pytest.raises(ValueError, match="cannot go back in time"):
        travel(app, hours=-1)
    with pytest.raises(ValueError, match="cannot go back in time"):
        travel(app, timedelta(seconds=-1))
    with pytest.raises(
        ValueError, match=r"given 5; use a timedelta, or name the unit: travel\(app, seconds=1\)"
    ):
        travel(app, 5)  # pyright: ignore[reportArgumentType]


def test_inline_tasks_run_as_they_are_sent_with_their_retries_and_what_they_send(
    app: Horsies, horsies_database_url: str
) -> None:
    with inline(app):
        assert shop.flaky.send(fails=2).unwrap().get(timeout_ms=0).unwrap() == 3
        assert shop.parent.send().unwrap().get(timeout_ms=0).unwrap() == 3
        assert shop.flaky.schedule(5, fails=0).is_ok()
        with psycopg.connect(horsies_database_url) as connection:
            handle = shop.numbers.with_options(conn=connection).send().unwrap()
        assert shop.send_mail.send("ann@example.org", "no order").is_err()

    assert [task.task_name for task in enqueued(app)] == ["shop.flaky", "shop.numbers"]
    assert [ran.task_id for ran in drain(app)] == [handle.task_id]
    shop.numbers.send().unwrap()
    assert_enqueued(shop.numbers, count=1)


def test_a_workflow_runs_to_its_end_its_sleep_skipped_and_its_rates_ignored(app: Horsies) -> None:
    handle = shop.count_up(pause=3_600).start().unwrap()

    assert [ran.task_name for ran in drain(app)] == ["shop.numbers"]
    assert handle.status().unwrap() is WorkflowStatus.RUNNING
    travel(app, hours=1)
    drain(app)
    assert handle.get(timeout_ms=0).unwrap() == 12
    with inline(app):
        assert shop.count_up(pause=0.001).start().unwrap().get(timeout_ms=0).unwrap() == 12


def test_in_an_async_test_async_tasks_run_on_its_own_loop(app: Horsies) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def note_loop(x: int) -> object:
        loops.append(asyncio.get_running_loop())
        return await original(x)

    definition = shop.double.definition
    original = definition.fn
    object.__setattr__(definition, "fn", note_loop)

    async def test() -> None:
        (await shop.double.send_async(1)).unwrap()
        assert [ran.result.unwrap() for ran in await drain_async(app)] == [2]
        with inline(app):
            assert (await shop.double.send_async(2)).unwrap().get(timeout_ms=0).unwrap() == 4
        shop.double.send(3).unwrap()
        assert [ran.result.unwrap() for ran in drain(app)] == [6]
        assert [loop is asyncio.get_running_loop() for loop in loops] == [True, True, False]

    try:
        asyncio.run(test())
    finally:
        object.__setattr__(definition, "fn", original)


def test_a_task_that_sends_itself_for_ever_is_found_out(app: Horsies) -> None:
    shop.again.send().unwrap()

    with pytest.raises(AssertionError, match=r"5 tasks ran and more are due; the last were of: shop\.again"):
        drain(app, limit=5)
    assert len(enqueued(app)) == 1


def test_a_database_that_a_killed_test_left_behind_is_removed(server_url: str) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    left = f"horsies_test_{process.pid}_0123"
    with psycopg.connect(server_url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {left}")  # type: ignore[call-overload]
        with fresh_database(server_url) as url:
            there = [name for (name,) in admin.execute("SELECT datname FROM pg_database")]
            assert left not in there
        own = urlsplit(url).path.removeprefix("/")
        assert own in there
        assert not admin.execute("SELECT FROM pg_database WHERE datname = %s", (own,)).rowcount


def test_the_plugin_brings_nothing_along_until_a_fixture_is_asked_for() -> None:
    script = (
        "import horsies.pytest_plugin, sys; print([m for m in ('psycopg', 'msgspec') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "[]\n"
