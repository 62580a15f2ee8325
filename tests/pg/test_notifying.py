"""Sleeping workers are woken, once for each queue, and nobody else is disturbed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import sql

from horsies import CustomQueueConfig, Horsies, QueueMode
from horsies.db.queries.tasks import queue_channel
from tests.pg.conftest import Add, define_add
from tests.pg.hands import Hands

Db = psycopg.Connection[dict[str, Any]]
LONG_QUEUE = "naïve-" + "q" * 90


def listen(db: Db, *channels: str) -> None:
    for channel in channels:
        db.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))


def heard(db: Db) -> list[tuple[str, str]]:
    """Everything notified so far: notifications come in the order of their commits, so ours comes last."""
    listen(db, "end_of_test")
    db.execute("NOTIFY end_of_test")
    found: list[tuple[str, str]] = []
    for notification in db.notifies(timeout=10):
        if notification.channel == "end_of_test":
            return found
        found.append((notification.channel, notification.payload))
    raise AssertionError("our own notification did not arrive")


@pytest.fixture
def sender(make_app: Callable[..., Horsies]) -> Add:
    queues = [CustomQueueConfig(name=name) for name in ("a", "b", LONG_QUEUE[:60])]
    return define_add(make_app(queue_mode=QueueMode.CUSTOM, custom_queues=queues), queue_name="a")


def test_nobody_is_notified_while_no_worker_sleeps(add: Add, hands: Hands, db: Db) -> None:
    listen(db, "task_new", "task_queue_default")
    hands.register(waiting=False)

    add.send(1).unwrap()

    assert heard(db) == []


def test_a_sleeping_worker_is_told_the_queue_and_the_task(add: Add, hands: Hands, db: Db) -> None:
    listen(db, "task_new", "task_queue_default")
    hands.register(waiting=True)

    handle = add.send(1).unwrap()

    assert sorted(heard(db)) == [("task_new", handle.task_id), ("task_queue_default", handle.task_id)]


def test_a_row_inserted_by_hand_wakes_a_sleeping_worker_too(hands: Hands, db: Db) -> None:
    listen(db, "task_queue_default")
    hands.register(waiting=True)

    db.execute("INSERT INTO horsies_tasks (task_name) VALUES ('add')")

    assert len(heard(db)) == 1


def test_a_dead_worker_is_not_called(add: Add, hands: Hands, db: Db) -> None:
    listen(db, "task_new", "task_queue_default")
    hands.register(waiting=True)
    db.execute("UPDATE horsies_workers SET lease_expires_at = now() - interval '1 s'")

    add.send(1).unwrap()

    assert heard(db) == []


def test_each_queue_that_a_statement_touched_is_notified_once(sender: Add, hands: Hands, db: Db) -> None:
    listen(db, "task_queue_a", "task_queue_b", "task_queue_c")
    hands.register("a", "b", waiting=True)

    db.execute(
        "INSERT INTO horsies_tasks (task_name, queue_name)"
        " SELECT 'add', queue FROM unnest(ARRAY['a', 'b', 'c']) AS queue, generate_series(1, 50)"
    )
    sender.send_many([(n,) for n in range(50)]).unwrap()

    assert [channel for channel, _ in heard(db)] == ["task_queue_a", "task_queue_b", "task_queue_a"]


def test_a_worker_of_another_queue_sleeps_on(sender: Add, hands: Hands, db: Db) -> None:
    listen(db, "task_new", "task_queue_a", "task_queue_b")
    hands.register("b", waiting=True)

    sender.send(1).unwrap()

    assert heard(db) == []


@pytest.mark.parametrize(
    "queue", ["a", "with space", "Ünï", LONG_QUEUE, "x" * 100, "ü" * 27, "x" * 52, "x" * 53, '"; --']
)
def test_the_channel_of_any_queue_is_the_same_in_python_and_in_the_database(
    hands: Hands, db: Db, queue: str
) -> None:
    channel = queue_channel(queue)
    assert len(channel.encode()) < 64
    listen(db, channel)
    hands.register(queue, waiting=True)

    db.execute("INSERT INTO horsies_tasks (task_name, queue_name) VALUES ('add', %s)", (queue,))

    assert [heard_on for heard_on, _ in heard(db)] == [channel]


def test_a_task_that_is_to_be_tried_again_wakes_a_sleeping_worker(
    hire: Callable[[], Hands], add: Add, db: Db
) -> None:
    busy, asleep = hire(), hire()
    add.send_many([(n,) for n in range(3)]).unwrap()
    held = busy.run_next()
    listen(db, "task_queue_default")
    busy.fail(held[:1], delay_seconds=0)
    assert heard(db) == []
    asleep.register(waiting=True)

    busy.fail(held[1:], delay_seconds=0)

    assert heard(db) == [("task_queue_default", "")]


@pytest.mark.parametrize("how", ["release", "unclaim"])
def test_what_is_given_back_wakes_the_workers_of_its_queue(add: Add, hands: Hands, db: Db, how: str) -> None:
    add.send_many([(1,), (2,)]).unwrap()
    held = hands.claim()
    listen(db, "task_queue_default")

    if how == "release":
        hands.release()
    else:
        hands.unclaim(held)

    assert heard(db) == [("task_queue_default", "")]


@pytest.mark.parametrize("end", ["complete", "fail", "expire"])
def test_the_end_of_a_task_is_notified_when_somebody_waits_for_it(
    add: Add, hands: Hands, db: Db, end: str
) -> None:
    handles = add.send_many([(1,), (2,)]).unwrap()
    db.execute("UPDATE horsies_tasks SET awaited = true WHERE id = %s", (handles[0].task_id,))
    listen(db, "task_done")

    match end:
        case "complete":
            hands.complete(hands.run_next())
        case "fail":
            hands.fail(hands.run_next())
        case _:
            db.execute("UPDATE horsies_tasks SET good_until = now() - interval '1 s'")
            hands.expire()

    assert heard(db) == [("task_done", handles[0].task_id)]
