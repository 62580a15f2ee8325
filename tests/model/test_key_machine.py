"""Whatever several workers do to tasks with keys, and in whatever order, each key runs as many as it may and never more."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,  # pyright: ignore[reportUnknownVariableType]
)
from psycopg.rows import dict_row

from horsies.db.queries.tasks import Claimed, stopped
from tests.model.crew import Crewman

EXAMPLES = int(os.environ.get("HORSIES_MODEL_EXAMPLES", "25"))
KEYS = ("a", "b", "c")
QUEUES = ("default", "other")
LIMITS = {"one": 1, "two": 2, "free": None}

someone = st.integers(0, 2)
pick = st.integers(0, 5)

RUNNING = """
SELECT rate_key, count(*) AS tasks FROM horsies_tasks_live WHERE status IN ('CLAIMED', 'RUNNING') GROUP BY 1"""
# The tasks of each key that wait, in their order.
WAITING = """
SELECT rate_key, queue_name, id::text, task_name FROM horsies_tasks_live
 WHERE status = 'PENDING' AND enqueued_at <= now() ORDER BY priority, enqueued_at, id"""
WITHOUT_SLOT = """
SELECT id FROM horsies_tasks_live AS task
 WHERE status IN ('CLAIMED', 'RUNNING')
   AND NOT EXISTS (SELECT FROM horsies_key_slots AS slot WHERE slot.rate_key = task.rate_key
                      AND slot.task_id = task.id AND slot.claim_seq = task.claim_seq)"""


class KeyMachine(RuleBasedStateMachine):
    """Three workers on one database. What may run is computed from the rows themselves."""

    def __init__(self, crew: list[Crewman], db: psycopg.Connection[dict[str, Any]]) -> None:
        super().__init__()
        self._crew, self._db = crew, db
        self._tickets: list[Claimed] = []

    @initialize()
    def begin(self) -> None:
        for table in ("tasks", "attempts", "key_slots", "keys", "workers", "actions", "task_definitions"):
            self._db.execute(f"DELETE FROM horsies_{table}")
        for name, limit in LIMITS.items():
            self._db.execute(
                "INSERT INTO horsies_task_definitions (task_name, queue_name, priority, is_async, max_retries, key_concurrency)"
                " VALUES (%s, 'default', 100, false, 0, %s)",
                (name, limit),
            )
        for crewman in self._crew:
            crewman.sign_on()
        for key in KEYS:
            self.send(key, "two", 3, "default", 50)

    @rule(
        key=st.sampled_from(KEYS),
        name=st.sampled_from(sorted(LIMITS)),
        number=st.integers(1, 3),
        queue=st.sampled_from(QUEUES),
        priority=st.sampled_from([1, 50]),
    )
    def send(self, key: str, name: str, number: int, queue: str, priority: int) -> None:
        self._db.execute(
            "INSERT INTO horsies_tasks (task_name, rate_key, queue_name, priority, task_options)"
            " SELECT %s, %s, %s, %s, '{\"idempotent\":true}' FROM generate_series(1, %s)",
            (name, f"key={key}", queue, priority, number),
        )

    @rule(
        by=someone,
        queue=st.sampled_from(QUEUES),
        ended=st.lists(pick, max_size=2),
        after=st.sampled_from(["", "key=a", "key=b"]),
    )
    def claim(self, by: int, queue: str, ended: list[int], after: str) -> None:
        """With room for everything, every key gets as much of its queue as it may."""
        completed = self._chosen(ended)
        expected = self._startable(queue, {ticket.id for ticket in completed if self._is_current(ticket, by)})

        claimed = self._crew[by].claim_keys(queue, room=50, after=after, completed=completed)

        assert sorted(task.id for task in claimed) == sorted(expected)
        self._tickets += claimed

    def _startable(self, queue: str, ended: set[str]) -> list[str]:
        counts = {row["rate_key"]: row["tasks"] for row in self._db.execute(RUNNING)}
        for row in self._db.execute(
            "SELECT rate_key FROM horsies_tasks_live WHERE id = ANY (%s::uuid[])", (list(ended),)
        ):
            counts[row["rate_key"]] -= 1
        found: list[str] = []
        closed: set[str] = set()
        heads: dict[str, int] = {}
        for row in [row for row in self._db.execute(WAITING) if row["queue_name"] == queue]:
            key, limit = row["rate_key"], LIMITS[row["task_name"]]
            if key in closed:
                continue
            # A claim is made for as many as the first task of the key allows.
            first = heads.setdefault(key, 50 if limit is None else limit - counts.get(key, 0))
            if (limit is not None and counts.get(key, 0) >= limit) or first <= 0:
                closed.add(key)
                continue
            heads[key] = first - 1
            counts[key] = counts.get(key, 0) + 1
            found.append(row["id"])
        return found

    @rule(
        by=someone,
        picks=st.lists(pick, min_size=1, max_size=3),
        delay=st.sampled_from([None, 0, 1800]),
        crashed=st.booleans(),
    )
    def fail(self, by: int, picks: list[int], delay: float | None, crashed: bool) -> None:
        self._crew[by].fail(self._chosen(picks), delay_seconds=delay, crashed=crashed)

    @rule(by=someone, picks=st.lists(pick, min_size=1, max_size=3))
    def complete(self, by: int, picks: list[int]) -> None:
        """By a statement that knows nothing of keys."""
        self._crew[by].settle(self._chosen(picks))

    @rule(by=someone, picks=st.lists(pick, min_size=1, max_size=3))
    def cancel(self, by: int, picks: list[int]) -> None:
        tickets = self._chosen(picks)
        if tickets:
            self._crew[by].cancel(*{ticket.id for ticket in tickets})

    @rule(by=someone, picks=st.lists(pick, min_size=1, max_size=3))
    def stop(self, by: int, picks: list[int]) -> None:
        self._crew[by].store([stopped(ticket) for ticket in self._chosen(picks)])

    @rule(by=someone, picks=st.lists(pick, min_size=1, max_size=3), seconds=st.sampled_from([0, 3_600]))
    def snooze(self, by: int, picks: list[int], seconds: float) -> None:
        self._crew[by].snooze(self._chosen(picks), seconds)

    @rule(by=someone, keep=st.lists(pick, max_size=3))
    def release(self, by: int, keep: list[int]) -> None:
        """The reply of a claim was lost."""
        self._crew[by].release(self._chosen(keep))

    @rule(by=someone, picks=st.lists(pick, min_size=1, max_size=3))
    def give_back(self, by: int, picks: list[int]) -> None:
        self._crew[by].give_back(self._chosen(picks))

    @rule(by=someone, lost=someone)
    def reap(self, by: int, lost: int) -> None:
        if by == lost:
            return
        self._db.execute(
            "UPDATE horsies_workers SET lease_expires_at = now() - interval '1 s' WHERE worker_id = %s",
            (self._crew[lost].worker_id,),
        )
        self._crew[by].rescue(0.0)
        self._crew[lost].sign_on()

    @rule(by=someone)
    def sweep(self, by: int) -> None:
        self._crew[by].sweep_keys()

    @invariant()
    def no_key_runs_more_than_it_may_and_each_running_task_has_a_slot(self) -> None:
        most = max(limit or 0 for limit in LIMITS.values())
        mixed = self._db.execute(
            "SELECT rate_key FROM horsies_tasks_live WHERE status IN ('CLAIMED', 'RUNNING')"
            " GROUP BY rate_key HAVING count(*) > %s AND bool_and(task_name <> 'free')",
            (most,),
        ).fetchall()
        assert mixed == []
        alone = self._db.execute(
            "SELECT rate_key FROM horsies_tasks_live WHERE status IN ('CLAIMED', 'RUNNING')"
            " GROUP BY rate_key HAVING count(*) FILTER (WHERE task_name = 'one') > 1"
        ).fetchall()
        assert alone == []
        assert self._db.execute(WITHOUT_SLOT).fetchall() == []

    def _chosen(self, picks: list[int]) -> list[Claimed]:
        """The tickets picked, the latest ones; some may be of no use any more."""
        chosen = [self._tickets[-1 - place % len(self._tickets)] for place in picks if self._tickets]
        return list({(ticket.id, ticket.claim_seq): ticket for ticket in chosen}.values())

    def _is_current(self, ticket: Claimed, by: int) -> bool:
        """Return True if this worker may complete the task: it holds the claim, and nobody asked to cancel it."""
        row = self._db.execute(
            "SELECT FROM horsies_tasks_live WHERE id = %s AND claim_seq = %s AND claimed_by_worker_id = %s"
            " AND status = 'RUNNING' AND cancel_asked_at IS NULL",
            (ticket.id, ticket.claim_seq, self._crew[by].worker_id),
        ).fetchone()
        return row is not None


@pytest.fixture
def place(database_url: str) -> Iterator[tuple[list[Crewman], psycopg.Connection[dict[str, Any]]]]:
    with ExitStack() as stack:
        crew = [stack.enter_context(closing(Crewman(database_url))) for _ in range(3)]
        connection = psycopg.Connection[dict[str, Any]].connect(
            database_url, autocommit=True, row_factory=dict_row
        )
        yield crew, stack.enter_context(connection)


@pytest.mark.timeout(600 + EXAMPLES)
def test_each_key_runs_as_many_as_it_may_and_never_more(
    place: tuple[list[Crewman], psycopg.Connection[dict[str, Any]]],
) -> None:
    run_state_machine_as_test(
        lambda: KeyMachine(*place),  # pyright: ignore[reportArgumentType]
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=30,
            deadline=None,
            derandomize="HORSIES_MODEL_EXAMPLES" not in os.environ,
            report_multiple_bugs=False,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
