"""At most so many tasks of a key run at once in the whole cluster, exactly, and keys take turns."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from horsies.db.queries.tasks import Claimed, ConcurrencyCap, Failure
from tests.pg.hands import ERR, Hands

Db = psycopg.Connection[dict[str, Any]]


def limit(
    db: Db, concurrency: int | None = 1, name: str = "task", rate: tuple[float, int] | None = None
) -> None:
    """Store what a worker says of a task when it starts."""
    seconds, burst = rate or (None, None)
    db.execute(
        "INSERT INTO horsies_task_definitions (task_name, queue_name, priority, is_async, max_retries, key_concurrency,"
        " key_seconds, key_burst) VALUES (%s, 'default', 100, false, 0, %s, %s, %s)"
        " ON CONFLICT (task_name) DO UPDATE SET key_concurrency = excluded.key_concurrency,"
        " key_seconds = excluded.key_seconds, key_burst = excluded.key_burst",
        (name, concurrency, seconds, burst),
    )


def insert(
    db: Db,
    key: str | None,
    number: int = 1,
    *,
    name: str = "task",
    queue: str = "default",
    priority: int = 100,
    age: float = 0,
    cost: float | None = None,
) -> None:
    db.execute(
        "INSERT INTO horsies_tasks (task_name, rate_key, queue_name, priority, cost, enqueued_at)"
        " SELECT %(name)s, %(lane)s, %(queue)s, %(priority)s, %(cost)s, now() - make_interval(secs => %(age)s)"
        "   FROM generate_series(1, %(number)s)",
        {
            "name": name,
            "lane": "" if key is None else f"key={key}",
            "queue": queue,
            "priority": priority,
            "age": age,
            "number": number,
            "cost": cost,
        },
    )


def keys(claimed: list[Claimed]) -> list[str]:
    return [task.rate_key.removeprefix("key=") for task in claimed]


def running(db: Db) -> dict[str, int]:
    rows = db.execute(
        "SELECT rate_key, count(*) AS n FROM horsies_tasks_live WHERE status IN ('CLAIMED', 'RUNNING') GROUP BY 1"
    ).fetchall()
    return {row["rate_key"].removeprefix("key="): row["n"] for row in rows}


def slots(db: Db) -> int:
    row = db.execute("SELECT count(*) AS n FROM horsies_key_slots").fetchone()
    assert row is not None
    return row["n"]


@pytest.mark.parametrize("concurrency", [1, 3])
def test_so_many_of_a_key_run_at_once_and_the_next_when_one_ends(
    hands: Hands, db: Db, concurrency: int
) -> None:
    limit(db, concurrency)
    insert(db, "a", 10)
    insert(db, "b", 1)

    claimed = hands.claim_keys()
    assert sorted(keys(claimed)) == ["a"] * concurrency + ["b"]
    assert all(task.pid is not None for task in claimed)
    assert hands.claim_keys() == []

    first = next(task for task in claimed if keys([task]) == ["a"])
    assert keys(hands.claim_keys(completed=[first])) == ["a"]
    assert running(db) == {"a": concurrency, "b": 1}
    assert slots(db) == concurrency + 1


def test_without_a_limit_keys_only_take_turns(hands: Hands, db: Db) -> None:
    limit(db, None)
    insert(db, "big", 100)
    insert(db, "small", 2)
    insert(db, "tiny", 1)

    assert sorted(keys(hands.claim_keys(room=4))) == ["big", "big", "small", "tiny"]


def test_keys_are_served_in_turn_and_around(hands: Hands, db: Db) -> None:
    limit(db, None)
    for key in "abcde":
        insert(db, key, 10)

    first = hands.claim_keys(room=2)
    second = hands.claim_keys(room=2, after="key=b")
    third = hands.claim_keys(room=2, after="key=d")

    assert [keys(some) for some in (first, second, third)] == [["a", "b"], ["c", "d"], ["e", "a"]]


def test_all_others_start_within_one_rotation(hands: Hands, db: Db) -> None:
    limit(db, 2)
    insert(db, "big", 5_000)
    for number in range(100):
        insert(db, f"c{number}")
    after, starts, others = "", 0, set[str]()
    while len(others) < 100:
        claimed = hands.claim_keys(room=8, after=after)
        starts += len(claimed)
        others |= set(keys(claimed)) - {"big"}
        after = [key.rate_key for key in hands.last_answer.walked if key.is_ready][-1]
        hands.complete(claimed)
    assert starts <= 103


def test_within_a_key_the_order_is_priority_then_time(hands: Hands, db: Db) -> None:
    limit(db, 1)
    for priority, age in ((50, 1), (100, 900), (1, 5), (1, 60)):
        insert(db, "a", priority=priority, age=age)
    order: list[tuple[int, str]] = []
    last: list[Claimed] = []
    for _ in range(4):
        last = hands.claim_keys(completed=last)
        order += [(task.priority, task.enqueued_at) for task in last]

    assert order == sorted(order)
    assert [priority for priority, _ in order] == [1, 1, 50, 100]


def test_a_locked_task_is_not_overtaken_within_its_key(hands: Hands, db: Db, database_url: str) -> None:
    limit(db, 5)
    insert(db, "a", age=60)
    insert(db, "a", 2)
    with psycopg.connect(database_url) as other:
        other.execute("SELECT FROM horsies_tasks_live ORDER BY enqueued_at LIMIT 1 FOR UPDATE")
        assert hands.claim_keys() == []
    assert len(hands.claim_keys()) == 3


def test_the_same_key_in_two_queues_is_one_key(hands: Hands, db: Db) -> None:
    limit(db, 2)
    insert(db, "a", 5, queue="x")
    insert(db, "a", 5, queue="y")

    assert len(hands.claim_keys("x", "y")) == 2
    assert hands.claim_keys("y") == []


def test_the_limit_of_the_next_task_counts(hands: Hands, db: Db) -> None:
    limit(db, 1, "alone")
    limit(db, 3, "many")
    insert(db, "a", 2, name="many", age=60)
    insert(db, "a", 1, name="alone", age=30)
    insert(db, "a", 5, name="many")

    first = hands.claim_keys()
    assert [task.task_name for task in first] == ["many", "many"]
    assert hands.claim_keys(completed=first[:1]) == []
    alone = hands.claim_keys(completed=first[1:])
    assert [task.task_name for task in alone] == ["alone"]


def test_a_key_is_never_taken_for_a_rate_and_a_rate_never_for_a_key(hands: Hands, db: Db) -> None:
    limit(db, 1)
    db.execute(
        "INSERT INTO horsies_tasks (task_name, rate_key) VALUES ('call', 'call'), ('key', 'key'), ('z', 'z')"
    )
    insert(db, "call")

    assert keys(hands.claim_keys()) == ["call"]
    assert [task.rate_key for task in hands.claim(pids=[1, 2, 3], rates=["call", "z"])] == ["call", "z"]


@pytest.mark.parametrize("key", ["a'b", "ü", "日本", "%(x)s", "a\tb", "{}", '"', "\\", "~~~", " "])
def test_any_text_can_be_a_key(hands: Hands, db: Db, key: str) -> None:
    limit(db, 1)
    insert(db, key, 2)

    assert keys(hands.claim_keys()) == [key]
    assert hands.claim_keys() == []


# --- what ends or releases a task frees its slot


def end_by(how: str, hands: Hands, db: Db, task: Claimed) -> None:
    match how:
        case "complete":
            hands.complete([task])
        case "fail":
            hands.fail([task])
        case "retry":
            hands.fail([task], delay_seconds=3_600)
        case "snooze":
            hands.snooze([task])
        case "cancel":
            hands.cancel(task.id)
            hands.fail([task])
        case "release":
            db.execute("UPDATE horsies_tasks_live SET priority = 99 WHERE id = %s", (task.id,))
            hands.release()
        case "give back":
            hands.give_back([task])
        case "unknown":
            hands.defer_unknown([task], 3_600)
        case _:
            raise AssertionError(how)


@pytest.mark.parametrize(
    "how", ["complete", "fail", "retry", "snooze", "cancel", "release", "give back", "unknown"]
)
def test_whatever_ends_or_releases_a_task_frees_its_slot(hands: Hands, db: Db, how: str) -> None:
    limit(db, 1)
    insert(db, "a", 3)
    (task,) = hands.claim_keys()
    assert hands.claim_keys() == []

    end_by(how, hands, db, task)

    assert len(hands.claim_keys()) == 1
    assert hands.claim_keys() == []
    assert running(db) == {"a": 1}
    assert slots(db) == 1


def test_a_lost_reply_leaves_no_slot_behind(hands: Hands, db: Db) -> None:
    limit(db, 1)
    insert(db, "a", 2)
    assert len(hands.claim_keys()) == 1  # and nobody has heard of it

    assert hands.release() == 1

    assert len(hands.claim_keys()) == 1
    assert slots(db) == 1


def test_a_request_to_stop_frees_the_slot_only_when_the_task_has_ended(hands: Hands, db: Db) -> None:
    limit(db, 1)
    insert(db, "a", 2)
    (task,) = hands.claim_keys()
    hands.cancel(task.id)

    assert hands.claim_keys() == []
    assert hands.claim_keys(completed=[task]) == []  # it was not settled: it counts until it is
    hands.fail([task])

    assert len(hands.claim_keys()) == 1


def test_the_result_of_a_worker_that_lost_its_claim_frees_nothing(hire: Callable[[], Hands], db: Db) -> None:
    limit(db, 1)
    insert(db, "a", 3)
    first, second = hire(), hire()
    (old,) = first.claim_keys()
    first.give_back([old])
    (new,) = second.claim_keys()

    assert first.claim_keys(completed=[old]) == []
    assert running(db) == {"a": 1}
    assert len(second.claim_keys(completed=[new])) == 1


# --- limits beside limits


def test_a_queue_limit_holds_for_keys_too(hands: Hands, db: Db) -> None:
    hands.register(waiting=False)
    limit(db, 1)
    for key in "abcd":
        insert(db, key, 2)
    cap = ConcurrencyCap("default", 3, 0, 0)

    assert len(hands.claim_keys(caps=[cap])) == 3


def test_a_task_may_have_a_key_and_a_rate(hands: Hands, db: Db) -> None:
    limit(db, 1)
    db.execute("UPDATE horsies_task_definitions SET rate_key = 'task'")
    db.execute("INSERT INTO horsies_rates (rate_key, seconds, burst) VALUES ('task', 1000, 2)")
    for key in "abcd":
        insert(db, key, 2)

    assert len(hands.claim_keys(rates=["task"])) == 2
    assert hands.claim_keys(rates=["task"]) == []


def test_a_task_that_waits_for_an_idle_child_is_not_claimed_ahead(hands: Hands, db: Db) -> None:
    limit(db, None)
    insert(db, None, 3, name="free", age=60)
    insert(db, "a", 3)

    claimed = hands.claim_keys(room=4, unkeyed=True)

    assert len(claimed) == 4
    assert all(task.pid is not None for task in claimed)


# --- rates per key


def pass_time(db: Db, seconds: float) -> None:
    """For all keys it is as if so much time went by."""
    db.execute(
        "UPDATE horsies_keys SET spent_until = spent_until - make_interval(secs => %(s)s),"
        " waits_until = waits_until - make_interval(secs => %(s)s), next_at = next_at - make_interval(secs => %(s)s)",
        {"s": seconds},
    )


def test_each_key_has_a_rate_of_its_own(hands: Hands, db: Db) -> None:
    limit(db, None, rate=(1_000.0, 2))
    for key in "ab":
        insert(db, key, 10)

    assert sorted(keys(hands.claim_keys(room=20))) == ["a", "a", "b", "b"]
    assert hands.claim_keys() == []
    pass_time(db, 1_000)
    assert sorted(keys(hands.claim_keys())) == ["a", "b"]
    pass_time(db, 900)
    assert hands.claim_keys() == []
    pass_time(db, 100)
    assert sorted(keys(hands.claim_keys())) == ["a", "b"]


def test_a_task_uses_up_its_cost(hands: Hands, db: Db) -> None:
    limit(db, None, rate=(100.0, 10))
    insert(db, "a", 1, cost=50, age=60)
    insert(db, "a", 9, cost=1)

    assert len(hands.claim_keys()) == 1  # it may start with what there is, and the key pays for it later
    pass_time(db, 4_050)  # 1,000 s were there
    assert hands.claim_keys() == []
    pass_time(db, 100)
    assert len(hands.claim_keys()) == 1


def test_cheap_tasks_share_one_start(hands: Hands, db: Db) -> None:
    limit(db, None, rate=(100.0, 1))
    insert(db, "a", 20, cost=0.25)

    assert len(hands.claim_keys(room=20)) == 4
    pass_time(db, 50)
    assert len(hands.claim_keys(room=20)) == 2


def test_the_next_start_of_a_key_is_due_when_its_rate_allows_it(hands: Hands, db: Db) -> None:
    limit(db, None, rate=(1_000.0, 1))
    insert(db, "a", 2)
    hands.claim_keys()

    seconds = hands.next_due()

    assert seconds is not None
    assert 900 < seconds <= 1_000


def test_a_delayed_task_with_a_key_is_known(hands: Hands, db: Db) -> None:
    insert(db, "a", age=-500)
    seconds = hands.next_due()
    assert seconds is not None
    assert 400 < seconds <= 500


def test_the_state_of_a_key_is_forgotten_when_it_says_nothing_any_more(hands: Hands, db: Db) -> None:
    limit(db, None, rate=(1_000.0, 1))
    for key in "ab":
        insert(db, key, 1)
    db.execute("INSERT INTO horsies_keys (rate_key, paused_at, paused_by) VALUES ('key=c', now(), 'ann')")
    hands.complete(hands.claim_keys())
    hands.sweep_keys()
    assert db.execute("SELECT count(*) AS n FROM horsies_keys").fetchone() == {"n": 3}

    pass_time(db, 2_000)
    hands.sweep_keys()

    assert db.execute("SELECT rate_key FROM horsies_keys").fetchall() == [{"rate_key": "key=c"}]
    assert slots(db) == 0


@pytest.mark.parametrize("by_rate", [False, True])
def test_a_refused_request_holds_the_whole_lane(hands: Hands, db: Db, by_rate: bool) -> None:
    limit(db, 1)
    if by_rate:
        db.execute("INSERT INTO horsies_rates (rate_key, seconds, burst) VALUES ('call', 0.001, 1)")
        db.execute(
            "INSERT INTO horsies_tasks (task_name, rate_key) VALUES ('call', 'call'), ('call', 'call')"
        )
        claim = lambda: hands.claim(pids=[1], rates=["call"])  # noqa: E731
    else:
        insert(db, "a", 1, age=60)
        insert(db, "a", 1)
        claim = hands.claim_keys
    (task,) = claim()
    refused = Failure(
        task.id, task.claim_seq, ERR, "X", None, delay_seconds=500.0, snoozed=True, holds_lane=True
    )

    assert hands.store([refused]) == {task.id: True}

    assert claim() == []
    found = db.execute("SELECT retry_count, status FROM horsies_tasks WHERE id = %s", (task.id,)).fetchone()
    assert found == {"retry_count": 0, "status": "PENDING"}
    insert(db, "b")
    assert keys(hands.claim_keys()) == ["b"]
    if not by_rate:
        pass_time(db, 500)
        assert [again.id for again in claim()] == [task.id]


def test_a_paused_key_waits_and_holds_up_no_other(hands: Hands, db: Db) -> None:
    limit(db, 1)
    for key in "ab":
        insert(db, key, 2)
    db.execute("INSERT INTO horsies_keys (rate_key, paused_at, paused_by) VALUES ('key=a', now(), 'ann')")

    assert keys(hands.claim_keys()) == ["b"]
    db.execute("UPDATE horsies_keys SET paused_at = NULL")
    assert keys(hands.claim_keys()) == ["a"]


# --- exactness


@pytest.mark.parametrize("concurrency", [1, 2])
def test_the_limit_is_never_exceeded_by_many_sessions_at_once(
    hire: Callable[[], Hands], db: Db, database_url: str, concurrency: int
) -> None:
    limit(db, concurrency)
    for key in range(2):  # in two queues: nothing but the key is common to the claims
        insert(db, str(key), 120)
        insert(db, str(key), 120, queue="other")
    workers = [hire() for _ in range(4)]
    worst: list[int] = []

    def work(hands: Hands) -> int:
        rng, held, done, after = random.Random(str(hands.worker_id)), list[Claimed](), 0, ""
        with psycopg.connect(database_url, autocommit=True) as watching:
            for _ in range(150):
                ended = [task for task in held if rng.random() < 0.6]
                held = [task for task in held if task not in ended]
                if ended and rng.random() < 0.3:
                    hands.fail(ended, delay_seconds=0)
                    ended = []
                queue = rng.choice(["default", "other"])
                claimed = hands.claim_keys(queue, room=3, after=after, completed=ended)
                done += len(ended)
                held += claimed
                after = claimed[-1].rate_key if claimed else ""
                row = watching.execute(
                    "SELECT max(n) FROM (SELECT count(*) AS n FROM horsies_tasks_live WHERE status = 'RUNNING'"
                    " GROUP BY rate_key) AS of_key"
                ).fetchone()
                assert row is not None
                worst.append(row[0] or 0)
        return done

    with ThreadPoolExecutor(4) as threads:
        done = sum(threads.map(work, workers))
    assert done > 50
    assert max(worst) == concurrency
