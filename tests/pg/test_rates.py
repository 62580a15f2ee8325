"""A task with a rate limit starts as often as that allows in the whole cluster, and holds up nobody while it waits."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from horsies import CustomQueueConfig, Horsies, QueueMode, TaskError, TaskResult
from horsies.db.queries.tasks import Lane, PoolRoom
from horsies.db.queries.workers import Definition
from tests.pg.hands import START, Hands

Db = psycopg.Connection[dict[str, Any]]
# Slow enough that no other start falls due while a test runs.
SECONDS = 1_000.0


def limit(db: Db, key: str = "call", *, seconds: float = SECONDS, burst: int = 1) -> None:
    db.execute(
        "INSERT INTO horsies_rates (rate_key, seconds, burst) VALUES (%s, %s, %s)"
        " ON CONFLICT (rate_key) DO UPDATE SET seconds = excluded.seconds, burst = excluded.burst",
        (key, seconds, burst),
    )


def pass_time(db: Db, seconds: float) -> None:
    """For all limits it is as if so much time went by."""
    db.execute("UPDATE horsies_rates SET spent_until = spent_until - make_interval(secs => %s)", (seconds,))


def insert(
    db: Db, number: int = 1, *, key: str = "call", queue: str = "default", priority: int = 100, age: float = 0
) -> None:
    db.execute(
        "INSERT INTO horsies_tasks (task_name, rate_key, queue_name, priority, enqueued_at)"
        " SELECT coalesce(nullif(%(key)s, ''), 'free'), %(key)s, %(queue)s, %(priority)s, now() - make_interval(secs => %(age)s)"
        "   FROM generate_series(1, %(number)s)",
        {"key": key, "queue": queue, "priority": priority, "age": age, "number": number},
    )


def started(hands: Hands, *queues: str, keys: tuple[str, ...] = ("call",), room: int = 50) -> list[str]:
    """Claim what may start now; the names of what did."""
    claimed = hands.claim(*queues, limit=room, pids=list(range(1, room + 1)), rates=keys)
    assert all(task.pid is not None for task in claimed)
    return [task.task_name for task in claimed]


@pytest.mark.parametrize("burst", [1, 3])
def test_after_a_quiet_time_a_burst_starts_at_once_and_then_one_at_a_time(
    hands: Hands, db: Db, burst: int
) -> None:
    limit(db, burst=burst)
    insert(db, 20)

    assert len(started(hands)) == burst
    assert started(hands) == []
    for _ in range(3):
        pass_time(db, SECONDS * 0.9)
        assert started(hands) == []
        pass_time(db, SECONDS * 0.1)
        assert len(started(hands)) == 1
    pass_time(db, 2 * SECONDS)
    assert len(started(hands)) == min(2, burst)
    pass_time(db, 100 * SECONDS)
    assert len(started(hands)) == burst


def test_a_part_of_an_interval_that_has_gone_by_is_not_lost(hands: Hands, db: Db) -> None:
    limit(db, burst=3)
    insert(db, 20)
    started(hands)

    pass_time(db, 1.5 * SECONDS)
    assert len(started(hands)) == 1
    pass_time(db, 0.5 * SECONDS)
    assert len(started(hands)) == 1


def test_only_what_was_started_is_used_up(hands: Hands, db: Db) -> None:
    limit(db, burst=3)
    insert(db, 2)

    assert len(started(hands)) == 2
    insert(db, 5)
    assert len(started(hands, room=0)) == 0
    assert len(started(hands)) == 1


def test_a_task_that_would_wait_in_the_worker_is_not_taken(hands: Hands, db: Db) -> None:
    limit(db, burst=5)
    insert(db, 5)
    insert(db, 5, key="")

    ahead = hands.claim(limit=10, pids=[1, 2], rates=["call"])

    assert [(task.task_name, task.pid) for task in ahead] == [
        ("free", pid) for pid in (1, 2, None, None, None)
    ]
    assert started(hands) == ["call"] * 5


def test_one_limit_holds_for_all_sessions(hire: Callable[[], Hands], db: Db) -> None:
    limit(db, burst=7)
    insert(db, 50)
    workers = [hire() for _ in range(3)]

    def claim(hands: Hands) -> int:
        return sum(len(started(hands, room=2)) for _ in range(10))

    with ThreadPoolExecutor(3) as threads:
        assert sum(threads.map(claim, workers)) == 7
    pass_time(db, 2 * SECONDS)
    with ThreadPoolExecutor(3) as threads:
        assert sum(threads.map(claim, workers)) == 2


def test_one_limit_holds_for_all_queues_and_both_kinds(hands: Hands, db: Db) -> None:
    limit(db, burst=2)
    insert(db, 5, queue="a")
    insert(db, 5, queue="b")
    db.execute("UPDATE horsies_tasks SET is_async = true WHERE queue_name = 'b'")
    insert(db, 5, queue="b")
    lanes = [
        Lane(int(is_async), queue, is_async, key, 9, *START)
        for queue in ("a", "b")
        for is_async in (False, True)
        for key in ("", "call")
    ]
    pools = [PoolRoom(pool, 9, 9, list(range(1, 10))) for pool in (0, 1)]

    _, claimed, *_ = hands.settle_and_claim([], lanes, pools, rates=["call"])

    assert len(claimed) == 2


def test_each_task_has_a_limit_of_its_own(hands: Hands, db: Db) -> None:
    limit(db, "call", burst=1)
    limit(db, "mail", burst=2)
    insert(db, 5, key="call")
    insert(db, 5, key="mail")

    assert sorted(started(hands, keys=("call", "mail"))) == ["call", "mail", "mail"]


def test_those_that_must_wait_hold_up_nobody_in_their_queue(hands: Hands, db: Db) -> None:
    limit(db)
    insert(db, 300, priority=1, age=60)
    insert(db, 2, key="", priority=100)

    assert sorted(started(hands, room=3)) == ["call", "free", "free"]
    insert(db, 2, key="", priority=100)
    assert started(hands, room=3) == ["free", "free"]


def test_within_a_limit_the_order_is_priority_then_time(hands: Hands, db: Db) -> None:
    limit(db, burst=4)
    for priority, age in ((50, 1), (100, 900), (1, 5), (1, 60)):
        insert(db, priority=priority, age=age)

    claimed = hands.claim(limit=3, pids=[1, 2, 3], rates=["call"])

    assert [task.priority for task in claimed] == [1, 1, 50]
    assert claimed[0].enqueued_at < claimed[1].enqueued_at
    assert [task.priority for task in hands.claim(pids=[1], rates=["call"])] == [100]


def test_a_lifted_limit_lets_everything_through(hands: Hands, db: Db) -> None:
    limit(db)
    insert(db, 40)
    assert len(started(hands)) == 1

    limit(db, seconds=0)

    assert len(started(hands)) == 39


def test_the_next_start_is_due_when_the_limit_allows_it(hands: Hands, db: Db) -> None:
    limit(db, burst=2)
    assert hands.next_due(rates=["call"]) is None
    insert(db, 3)
    soon = hands.next_due(
        rates=["call"]
    )  # it may start now, and if someone else has it, there is more to come
    assert soon is not None
    assert 0 < soon <= 1
    assert len(started(hands)) == 2

    near(hands.next_due(rates=["call"]), SECONDS)
    pass_time(db, SECONDS - 300)
    near(hands.next_due(rates=["call"]), 300)
    assert hands.next_due("other", rates=["call"]) is None
    pass_time(db, 300)
    assert len(started(hands)) == 1
    assert hands.next_due(rates=["call"]) is None  # nobody waits


def near(seconds: float | None, expected: float) -> None:
    assert seconds is not None
    assert expected - 60 < seconds <= expected


def test_waiting_for_a_limit_and_for_a_time_the_nearer_one_counts(hands: Hands, db: Db) -> None:
    limit(db)
    insert(db, 2)
    started(hands)
    insert(db, key="", age=-400)
    near(hands.next_due(rates=["call"]), 400)

    pass_time(db, SECONDS - 200)
    near(hands.next_due(rates=["call"]), 200)


# --- who says what the limit is


def define(rate_seconds: float | None = None, rate_burst: int | None = None) -> Definition:
    key = "" if rate_seconds is None else "call"
    return Definition("call", "default", 100, False, 0, None, None, key, rate_seconds, rate_burst)


def test_workers_say_what_the_limit_is_and_lift_it_when_the_task_has_none(
    hire: Callable[[], Hands], db: Db
) -> None:
    stored = "SELECT rate_key, seconds, burst FROM horsies_rates"
    for rate, expected in (
        ((0.5, 2), {"rate_key": "call", "seconds": 0.5, "burst": 2}),
        ((4.0, 1), {"rate_key": "call", "seconds": 4.0, "burst": 1}),
        ((None, None), {"rate_key": "call", "seconds": 0.0, "burst": 1}),
        ((4.0, 1), {"rate_key": "call", "seconds": 4.0, "burst": 1}),
    ):
        hire().register(waiting=False, definitions=[define(*rate)])

        assert db.execute(stored).fetchall() == [expected]


def test_a_worker_that_starts_does_not_give_the_others_another_burst(
    hire: Callable[[], Hands], db: Db
) -> None:
    first = hire()
    first.register(waiting=False, definitions=[define(SECONDS, 3)])
    insert(db, 20)
    assert len(started(first)) == 3

    second = hire()
    second.register(waiting=False, definitions=[define(SECONDS, 3)])

    assert started(second) == []


def test_a_task_keeps_its_limit_however_it_is_sent(
    make_app: Callable[..., Horsies], hands: Hands, db: Db
) -> None:
    queues = [CustomQueueConfig(name=name, max_concurrency=None) for name in ("default", "b")]
    app = make_app(queue_mode=QueueMode.CUSTOM, custom_queues=queues)

    @app.task("call", rate_limit="1/h", queue_name="default")
    def call(x: int = 0) -> TaskResult[int, TaskError]:
        return TaskResult(ok=x)

    @app.task("free", queue_name="default")
    def free() -> TaskResult[int, TaskError]:
        return TaskResult(ok=1)

    hands.register(waiting=False, definitions=[define(3600.0, 1)])

    call.send(1).unwrap()
    call.send_many([(2,), (3,)]).unwrap()
    call.with_options(queue_name="b").send(4).unwrap()
    call.with_options(idempotency_key="once").send(5).unwrap()
    call.schedule(1, 6).unwrap()
    free.send().unwrap()
    db.execute("SELECT horsies_send('call'), horsies_send('call', queue_name => 'b'), horsies_send('free')")

    sent = db.execute(
        "SELECT task_name, rate_key, count(*) AS tasks FROM horsies_tasks GROUP BY 1, 2"
    ).fetchall()
    assert sorted((row["task_name"], row["rate_key"], row["tasks"]) for row in sent) == [
        ("call", "call", 8),
        ("free", "", 2),
    ]


def test_a_task_that_is_tried_again_stands_in_its_line_again(hands: Hands, db: Db) -> None:
    limit(db)
    insert(db)
    (task,) = hands.claim(pids=[1], rates=["call"])

    assert hands.fail([task], delay_seconds=0) == {task.id: True}

    assert started(hands) == []
    pass_time(db, SECONDS)
    assert started(hands) == ["call"]
