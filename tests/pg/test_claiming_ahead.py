"""A worker that gives run times claims one task for each idle child, and ahead only short tasks that nobody else waits for."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from horsies import AppConfig, Horsies
from horsies.db.queries.tasks import ConcurrencyCap, Lane, PoolRoom, SettledAndClaimed
from horsies.worker.claim import START
from tests.pg.hands import Hands

RUN_TIMES = {"short": 0.002, "longer": 0.008}
PLAIN = Lane(0, "default", False, "", 100, *START)


@pytest.fixture
def app(database_url: str) -> Horsies:
    app = Horsies(AppConfig.for_database_url(database_url))
    for name in ("short", "longer", "unknown"):
        app.task(name)(_returns_nothing)
    return app


def _returns_nothing() -> None:
    pass


def _send(app: Horsies, *names: str, **options: Any) -> None:
    for name in names:
        app.tasks[name].with_options(**options).send().unwrap()


def _claim(hands: Hands, idle: int, room: int = 10, seconds: float = 1.0, **more: Any) -> SettledAndClaimed:
    pools = [PoolRoom(0, room, idle, list(range(1, room + 1)), seconds)]
    lanes = more.pop("lanes", [PLAIN])
    return hands.settle_and_claim([], lanes, pools, run_times=json.dumps(RUN_TIMES), **more)


def _names(answer: SettledAndClaimed) -> list[str]:
    return [task.task_name for task in answer.claimed]


def test_short_tasks_are_claimed_ahead(app: Horsies, hands: Hands) -> None:
    _send(app, *["short"] * 4)
    answer = _claim(hands, idle=1)
    assert (len(answer.claimed), answer.left) == (4, 0)
    assert [task.pid for task in answer.claimed] == [1, 2, 3, 4]


def test_short_tasks_are_claimed_ahead_when_no_child_is_idle(app: Horsies, hands: Hands) -> None:
    _send(app, *["short"] * 4)
    assert len(_claim(hands, idle=0).claimed) == 4


@pytest.mark.parametrize("idle", [0, 1, 2, 3])
def test_unknown_and_long_tasks_are_claimed_one_for_each_idle_child(
    app: Horsies, hands: Hands, idle: int
) -> None:
    _send(app, *["unknown"] * 3)
    answer = _claim(hands, idle=idle)
    assert (len(answer.claimed), answer.left) == (idle, 3 - idle)


def test_nothing_is_claimed_ahead_behind_a_task_that_is_not_short(app: Horsies, hands: Hands) -> None:
    _send(app, "short", "short", "unknown", "short")
    assert _names(_claim(hands, idle=1)) == ["short", "short"]
    assert _names(_claim(hands, idle=1)) == ["unknown"]
    assert _names(_claim(hands, idle=0)) == ["short"]


def test_tasks_are_claimed_ahead_for_the_given_seconds_and_not_more(app: Horsies, hands: Hands) -> None:
    _send(app, "short", *["longer"] * 4)
    answer = _claim(hands, idle=1, seconds=0.017)
    assert (_names(answer), answer.left) == (["short", "longer", "longer"], 2)


def test_a_task_with_an_expiry_is_not_claimed_ahead(app: Horsies, hands: Hands) -> None:
    _send(app, "short")
    _send(app, "short", good_until=datetime.now(UTC) + timedelta(hours=1))
    answer = _claim(hands, idle=1)
    assert (len(answer.claimed), answer.left) == (1, 1)
    assert len(_claim(hands, idle=1).claimed) == 1


@pytest.mark.parametrize("caps", [("default",), ("",)], ids=["queue", "cluster"])
def test_a_task_within_a_concurrency_cap_is_not_claimed_ahead(
    app: Horsies, hands: Hands, caps: tuple[str]
) -> None:
    _send(app, *["short"] * 3)
    hands.register("default", waiting=False)
    answer = _claim(hands, idle=1, caps=[ConcurrencyCap(name, 10, 0, 0) for name in caps])
    assert (len(answer.claimed), answer.left) == (1, 2)


def test_a_cap_of_another_queue_does_not_matter(app: Horsies, hands: Hands) -> None:
    _send(app, *["short"] * 3)
    hands.register("default", waiting=False)
    assert len(_claim(hands, idle=1, caps=[ConcurrencyCap("other", 10, 0, 0)]).claimed) == 3


def test_an_async_task_is_not_claimed_ahead(app: Horsies, hands: Hands, db: Any) -> None:
    _send(app, *["short"] * 3)
    db.execute("UPDATE horsies_tasks_live SET is_async = true")
    lane = Lane(0, "default", True, "", 100, *START)
    answer = _claim(hands, idle=1, lanes=[lane])
    assert (len(answer.claimed), answer.left) == (1, 2)


@pytest.mark.parametrize(
    ("queues", "waiting", "lease", "is_hungry"),
    [
        (["default"], True, "1 minute", True),
        (["other"], True, "1 minute", False),
        (["default"], False, "1 minute", False),
        (["default"], True, "-1 second", False),
    ],
)
def test_nothing_is_claimed_ahead_while_another_worker_of_the_queue_waits(
    app: Horsies, hands: Hands, db: Any, queues: list[str], waiting: bool, lease: str, is_hungry: bool
) -> None:
    _send(app, *["short"] * 3)
    db.execute(
        """INSERT INTO horsies_workers (worker_id, hostname, pid, lease_expires_at, waiting, processes, queues)
           VALUES (%s, 'other', 1, now() + %s::interval, %s, 1, %s)""",
        (uuid4(), lease, waiting, queues),
    )
    answer = _claim(hands, idle=1)
    assert (len(answer.claimed), answer.left) == ((1, 2) if is_hungry else (3, 0))


def test_without_run_times_the_room_decides(app: Horsies, hands: Hands) -> None:
    _send(app, *["unknown"] * 3)
    answer = hands.settle_and_claim([], [PLAIN], [PoolRoom(0, 10, 1, [1, 2])])
    assert ([task.pid for task in answer.claimed], answer.left) == ([1, 2, None], 0)
