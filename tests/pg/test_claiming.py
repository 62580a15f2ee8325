"""A claim takes the most urgent tasks that are due, each one once, and never more than it was asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from horsies.db.queries.tasks import Claimed
from tests.pg.hands import START, Hands

Db = psycopg.Connection[dict[str, Any]]
QUEUES = ("a", "b", "c")
# Plans nobody would choose, each of which has broken a claim of somebody's: a join that is run again, a scan out of order.
HOSTILE = (
    "enable_nestloop = off; SET enable_mergejoin = on",
    "enable_nestloop = off; SET enable_hashjoin = on",
    "enable_hashjoin = off; SET enable_mergejoin = off",
    "enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_seqscan = on",
    "enable_sort = off; SET enable_material = off;"
    " SELECT set_config(name, 'off', false) FROM pg_settings WHERE name = 'enable_memoize'",  # from PostgreSQL 14 on
    "enable_nestloop = off; SET enable_mergejoin = off; SET enable_hashjoin = on; SET enable_seqscan = on",
)


def insert(db: Db, tasks: list[dict[str, Any]]) -> None:
    """Store tasks with just the columns that matter; ages and times are in seconds from now."""
    db.execute(
        """INSERT INTO horsies_tasks (id, task_name, queue_name, priority, is_async, enqueued_at, good_until)
           SELECT id, 'add', coalesce(queue, 'default'), coalesce(priority, 100), coalesce(is_async, false),
                  now() + make_interval(secs => coalesce(due, 0)), now() + make_interval(secs => good_for)
             FROM json_to_recordset(%s::json) AS task (
                  id uuid, queue text, priority smallint, is_async boolean, due double precision,
                  good_for double precision)""",
        (json.dumps([{"id": str(uuid4())} | task for task in tasks]),),
    )


def keys(claimed: list[Claimed]) -> list[tuple[int, str, str]]:
    return [(task.priority, task.enqueued_at, task.id) for task in claimed]


def test_the_order_is_priority_then_due_time_then_id(hands: Hands, db: Db) -> None:
    low, high = sorted(str(uuid4()) for _ in range(2))
    insert(
        db,
        [
            {"priority": 50, "due": -9, "id": str(uuid4())},
            {"priority": 1, "due": -1, "id": high},
            {"priority": 1, "due": -1, "id": low},
            {"priority": 1, "due": -5},
            {"priority": 100, "due": -99},
        ],
    )

    claimed = hands.claim()

    assert [task.priority for task in claimed] == [1, 1, 1, 50, 100]
    assert [task.id for task in claimed[1:3]] == [low, high]
    assert keys(claimed) == sorted(keys(claimed))


def test_queues_are_served_in_the_order_they_are_asked(hands: Hands, db: Db) -> None:
    insert(
        db, [{"queue": "a", "priority": 1}, {"queue": "b", "priority": 100}, {"queue": "c", "priority": 50}]
    )

    claimed = hands.claim("b", "a", limit=2)

    assert [task.queue_name for task in claimed] == ["b", "a"]


def test_only_what_is_due_and_in_time_and_of_its_kind_is_claimed(hands: Hands, db: Db) -> None:
    insert(
        db,
        [
            {"priority": 1, "due": 3600},
            {"priority": 1, "good_for": -1},
            {"priority": 1, "is_async": True},
            {"priority": 1, "queue": "a"},
            {"priority": 7, "good_for": 3600},
        ],
    )

    assert [task.priority for task in hands.claim()] == [7]
    assert [task.queue_name for task in hands.claim("default", "a", is_async=True)] == ["default"]


def test_a_claim_writes_who_holds_the_task_and_starts_as_many_as_there_are_children(
    hands: Hands, db: Db
) -> None:
    insert(db, [{"priority": n} for n in (1, 2, 3)])

    first, second, third = hands.claim(pids=[11, 12])

    assert [task.pid for task in (first, second, third)] == [11, 12, None]
    rows = db.execute("SELECT * FROM horsies_tasks ORDER BY priority").fetchall()
    assert [row["status"] for row in rows] == ["RUNNING", "RUNNING", "CLAIMED"]
    assert [row["started_at"] is None for row in rows] == [False, False, True]
    assert {row["claimed_by_worker_id"] for row in rows} == {hands.worker_id}
    assert {row["claim_seq"] for row in rows} == {1}
    assert (rows[0]["worker_hostname"], rows[0]["worker_process_name"]) == ("host", "hands")


def test_a_claim_resumes_after_the_key_it_is_given_and_starts_over_without_one(hands: Hands, db: Db) -> None:
    insert(db, [{"priority": n} for n in range(1, 7)])
    seen = hands.claim(limit=3)
    insert(db, [{"priority": 2}])

    assert [task.priority for task in hands.claim(limit=2, after=keys(seen)[-1])] == [4, 5]
    assert [task.priority for task in hands.claim(after=START)] == [2, 6]


def test_two_sessions_never_claim_the_same_task(hire: Callable[[], Hands], db: Db) -> None:
    insert(db, [{"priority": 1 + n % 5} for n in range(600)])
    workers = [hire() for _ in range(4)]

    def drain(hands: Hands) -> list[str]:
        taken: list[str] = []
        while batch := hands.claim(limit=7):
            taken += [task.id for task in batch]
        return taken

    with ThreadPoolExecutor(4) as threads:
        taken = [task_id for batch in threads.map(drain, workers) for task_id in batch]
    # A row that another session had locked just then is passed over, and found by whoever looks again.
    taken += drain(workers[0])

    assert len(taken) == len(set(taken)) == 600


def test_a_task_that_another_session_has_locked_is_passed_over(
    hands: Hands, database_url: str, db: Db
) -> None:
    insert(db, [{"priority": 1}, {"priority": 2}])
    with psycopg.connect(database_url) as other:
        other.execute("SELECT 1 FROM horsies_tasks WHERE priority = 1 FOR UPDATE")

        assert [task.priority for task in hands.claim()] == [2]

    assert [task.priority for task in hands.claim()] == [1]


one_task = st.fixed_dictionaries(
    {
        "queue": st.sampled_from(QUEUES),
        "priority": st.integers(1, 3),
        "due": st.sampled_from([-60, -5, 0, 3600]),
        "good_for": st.sampled_from([None, -1, 3600]),
        "is_async": st.booleans(),
    }
)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tasks=st.lists(one_task, max_size=25),
    order=st.permutations(QUEUES),
    quotas=st.lists(st.integers(0, 6), min_size=3, max_size=3),
    limit=st.integers(0, 10),
    children=st.integers(0, 4),
    setting=st.sampled_from(("jit = off", *HOSTILE)),
)
def test_a_claim_takes_exactly_what_it_was_asked_for_whatever_the_plan(
    hands: Hands,
    db: Db,
    tasks: list[dict[str, Any]],
    order: list[str],
    quotas: list[int],
    limit: int,
    children: int,
    setting: str,
) -> None:
    db.execute("DELETE FROM horsies_tasks")
    for forget in ("RESET ALL", "DISCARD PLANS"):
        hands.execute(forget)
    hands.execute(f"SET {setting}")
    tasks = [{**task, "id": str(uuid4())} for task in tasks]
    insert(db, tasks)

    claimed = hands.claim(*order, limit=limit, quotas=quotas, pids=list(range(1, children + 1)))

    expected: list[str] = []
    for queue, quota in zip(order, quotas, strict=True):
        ready = [
            task
            for task in tasks
            if task["queue"] == queue and not task["is_async"] and task["due"] <= 0 and task["good_for"] != -1
        ]
        ready.sort(key=lambda task: (task["priority"], task["due"], task["id"]))
        expected += [task["id"] for task in ready[:quota]]
    assert [task.id for task in claimed] == expected[:limit]
    assert [task.pid for task in claimed] == [
        n if n <= children else None for n in range(1, len(claimed) + 1)
    ]


@pytest.mark.parametrize("queue", ["größe", "a b", "x" * 100, "ü" * 60, "%s", "'; --", "task_queue_"])
def test_any_name_will_do_for_a_queue(hands: Hands, db: Db, queue: str) -> None:
    insert(db, [{"queue": queue}])

    assert [task.queue_name for task in hands.claim(queue)] == [queue]


def test_the_next_due_time_is_the_nearest_of_all_priorities_and_kinds(hands: Hands, db: Db) -> None:
    assert hands.next_due("default", "a") is None
    insert(db, [{"priority": 1, "due": 900}, {"priority": 1, "due": -5}, {"priority": 50, "due": 600}])
    near(hands.next_due(), 600)
    insert(db, [{"priority": 100, "due": 300, "is_async": True}])
    near(hands.next_due(), 300)
    insert(db, [{"queue": "a", "priority": 7, "due": 200}])
    near(hands.next_due(), 300)
    near(hands.next_due("default", "a"), 200)
    insert(db, [{"due": -5, "good_for": 100}])
    near(hands.next_due(), 100)


def near(seconds: float | None, expected: float) -> None:
    assert seconds is not None
    assert expected - 60 < seconds <= expected


def test_what_runs_past_its_time_is_nothing_to_wake_up_for(hands: Hands, db: Db) -> None:
    insert(db, [{"good_for": 3600}, {"due": 900}])
    hands.run_next(limit=1)
    db.execute("UPDATE horsies_tasks SET good_until = now() - interval '1 minute' WHERE status = 'RUNNING'")

    near(hands.next_due(), 900)


def test_a_task_given_back_is_found_by_a_claim_from_the_beginning(hands: Hands, db: Db) -> None:
    insert(db, [{"priority": n} for n in (1, 2, 3)])
    first, second = hands.claim(limit=2)

    hands.unclaim([first])

    assert [task.priority for task in hands.claim(after=keys([second])[0])] == [3]
    assert [task.id for task in hands.claim()] == [first.id]


def test_what_is_known_of_the_table_is_refreshed_when_it_has_outgrown_that(hands: Hands, db: Db) -> None:
    known = "SELECT reltuples::integer AS rows FROM pg_class WHERE relname = 'horsies_tasks_live'"
    db.execute("VACUUM ANALYZE horsies_tasks_live")
    assert db.execute(known).fetchone() == {"rows": 0}
    db.execute("INSERT INTO horsies_tasks (task_name) SELECT 'noop' FROM generate_series(1, 5000)")

    assert hands.refresh()

    assert db.execute(known).fetchone() == {"rows": 5000}
    assert not hands.refresh()


def test_nobody_waits_for_what_is_known_to_be_refreshed(hands: Hands, db: Db, database_url: str) -> None:
    db.execute("VACUUM ANALYZE horsies_tasks_live")
    db.execute("INSERT INTO horsies_tasks (task_name) SELECT 'noop' FROM generate_series(1, 5000)")
    hands.execute("SET statement_timeout = '5s'")  # what it would wait for is not over by then

    with psycopg.connect(database_url) as vacuum:
        vacuum.execute("LOCK TABLE horsies_tasks_live IN SHARE UPDATE EXCLUSIVE MODE")
        assert not hands.refresh()

    assert hands.refresh()
