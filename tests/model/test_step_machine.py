"""Whatever happens to a durable function, and in whatever order, its steps are what a model in Python says.

The statements run on a real database. Attempts that have lost their claim go on with what they know.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from typing import Any, TypeVar
from uuid import uuid4

import msgspec
import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,  # pyright: ignore[reportUnknownVariableType]
)
from psycopg.rows import dict_row

from horsies import PostgresConfig
from horsies.db.connection import Connection, connect_worker
from horsies.db.ids import new_ids
from horsies.db.queries import steps
from horsies.db.queries.steps import EndedStep
from horsies.db.queries.tasks import CANCELLED, CANCELLED_CODE, Failure, NewTask
from horsies.workflow import control
from horsies.workflow.settle import settle

EXAMPLES = int(os.environ.get("HORSIES_MODEL_EXAMPLES", "25"))
T = TypeVar("T")
WORKER = uuid4()
BODIES, SLEEPS, WAITS, CALLS = ("a", "b"), ("nap",), ("yes", "no"), ("one", "two")
KINDS = {**dict.fromkeys(SLEEPS, "sleep"), **dict.fromkeys(WAITS, "wait"), **dict.fromkeys(CALLS, "calls")}
CHILDREN = 2

attempt = st.integers(0, 3)
value = st.integers(0, 99)


class StepMachine(RuleBasedStateMachine):
    """One task, its attempts of now and before, and what the model knows of it."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, worker: Connection, db: psycopg.Connection[dict[str, Any]]
    ) -> None:
        super().__init__()
        self._loop, self._worker, self._db = loop, worker, db

    @initialize()
    def begin(self) -> None:
        for table in ("horsies_tasks", "horsies_steps", "horsies_signals", "effects"):
            self._db.execute(f"DELETE FROM {table}".encode())
        row = self._db.execute(
            "INSERT INTO horsies_tasks (task_name) VALUES ('saga') RETURNING id::text"
        ).fetchone()
        assert row is not None
        self._id: str = row["id"]
        self._number = 0  # the claim_seq
        self._runs = False
        self._parked: str | None = None
        self._numbers: list[int] = []  # of all attempts
        self._stored: dict[str, str] = {}
        self._signals: dict[str, str] = {}
        self._open_calls: dict[str, int] = {}
        self._effects: list[str] = []

    def _ask(self, work: Awaitable[T]) -> T:
        return self._loop.run_until_complete(work)

    def _hold(self, which: int) -> tuple[int, bool]:
        """Return the number of an attempt, and True if it still has its claim. The first is the latest."""
        if which >= len(self._numbers):
            return self._number - 1 if not self._runs else -1, False
        number = self._numbers[-1 - which]
        return number, self._runs and number == self._number

    # Claims

    @rule()
    def claim(self) -> None:
        taken = self._db.execute(
            "UPDATE horsies_tasks_live SET status = 'RUNNING', claim_seq = claim_seq + 1, started_at = now(),"
            " claimed_at = now(), claimed_by_worker_id = %s"
            " WHERE id = %s AND status = 'PENDING' AND parked_at IS NULL AND enqueued_at <= clock_timestamp()",
            (WORKER, self._id),
        ).rowcount
        assert taken == (not self._runs and self._parked is None)
        if taken:
            self._number += 1
            self._numbers.append(self._number)
            self._runs = True

    @precondition(lambda self: self._runs)
    @rule()
    def take_over(self) -> None:
        """As the reaper does, when the worker was silent for too long."""
        self._db.execute(
            "UPDATE horsies_tasks_live SET status = 'PENDING', claim_seq = claim_seq + 1, started_at = NULL,"
            " claimed_at = NULL, claimed_by_worker_id = NULL WHERE id = %s",
            (self._id,),
        )
        self._number += 1
        self._runs = False

    # Steps

    @rule(which=attempt, name=st.sampled_from(BODIES), result=value)
    def store(self, which: int, name: str, result: int) -> None:
        number, is_current = self._hold(which)
        ended = EndedStep(self._id, number, name, "step", 1, 0.1, f'{{"ok":{result}}}')
        held = self._ask(steps.store(self._worker, [ended], WORKER))
        assert ((self._id, number) in held) == is_current
        if is_current:
            self._stored.setdefault(name, ended.result)

    @rule(which=attempt, name=st.sampled_from(BODIES), result=value)
    def transact(self, which: int, name: str, result: int) -> None:
        number, is_current = self._hold(which)
        values = {
            "task_id": self._id,
            "claim_seq": str(number),
            "worker_id": str(WORKER),
            "name": name,
            "attempt": "1",
        }
        try:
            with self._db.transaction():
                fenced = self._db.execute(steps.SQL["fence"], values).fetchall()
                assert bool(fenced) == is_current
                if fenced:
                    self._db.execute("INSERT INTO effects VALUES (%s)", (name,))
                    stored = {**values, "result": f'{{"ok":{result}}}'}
                    self._db.execute(steps.SQL["store_in_transaction"], stored)
        except psycopg.errors.UniqueViolation:
            assert name in self._stored
            return
        if is_current:
            self._stored[name] = f'{{"ok":{result}}}'
            self._effects.append(name)

    @rule(which=attempt)
    def load(self, which: int) -> None:
        number, is_current = self._hold(which)
        rows = self._ask(steps.load(self._worker, [(self._id, number)], WORKER))
        assert bool(rows) == is_current
        if is_current:
            assert {row.name: row.result for row in rows if row.has_ended and row.name} == self._stored

    # Parking

    @rule(which=attempt, name=st.sampled_from(sorted(KINDS)), seconds=st.sampled_from([None, 60.0]))
    def park(self, which: int, name: str, seconds: float | None) -> None:
        number, is_current = self._hold(which)
        kind = KINDS[name]
        calls = None
        if kind == "calls":
            calls = [
                NewTask(
                    id=each, task_name="double", queue_name="default", priority=100, kwargs="{}", is_async=False, max_retries=0
                )
                for each in new_ids(CHILDREN)
            ]  # fmt: skip
        wanted = {
            "name": name,
            "kind": kind,
            "seconds": 60.0 if kind == "sleep" else seconds if kind == "wait" else None,
            "calls": calls,
        }
        park = Failure(
            self._id,
            number,
            CANCELLED,
            CANCELLED_CODE,
            None,
            delay_seconds=0.0,
            snoozed=True,
            park=msgspec.json.encode(wanted).decode(),
            attempt=1,
        )

        async def write() -> bool:
            async with self._worker.transaction():
                return self._id in (await settle(self._worker, [], [park], WORKER)).failed

        assert self._ask(write()) == is_current
        if not is_current:
            return
        self._number += 1
        self._runs = False
        if kind == "wait" and name in self._signals:
            self._stored.setdefault(name, f'{{"ok":{self._signals[name]}}}')
        if kind == "calls":
            self._open_calls.setdefault(name, CHILDREN)
        if name not in self._stored and self._open_calls.get(name, 1) > 0:
            self._parked = name

    @rule(name=st.sampled_from(WAITS), result=value)
    def signal(self, name: str, result: int) -> None:
        row = self._db.execute(
            "SELECT horsies_signal(%s, %s, %s) AS taken", (self._id, name, str(result))
        ).fetchone()
        assert row is not None
        assert row["taken"] == (name not in self._stored and name not in self._signals)
        if not row["taken"]:
            return
        self._signals[name] = str(result)
        if self._parked == name:
            self._stored[name] = f'{{"ok":{result}}}'
            self._parked = None

    @rule()
    def wake_due(self) -> None:
        """A minute passes."""
        self._db.execute(
            "UPDATE horsies_tasks_live SET enqueued_at = enqueued_at - interval '61 s'"
            " WHERE parked_at IS NOT NULL AND enqueued_at < '9999-01-01'"
        )
        due = self._db.execute(
            "SELECT count(*) AS tasks FROM horsies_tasks_live WHERE parked_at IS NOT NULL AND enqueued_at < '9999-01-01'"
        ).fetchone()
        self._ask(control.fire_timers(self._worker))
        if due == {"tasks": 1} and self._parked is not None:
            is_sleep = KINDS[self._parked] == "sleep"
            self._stored[self._parked] = '{"ok":null}' if is_sleep else steps.SIGNAL_TIMEOUT
            self._parked = None

    @rule(name=st.sampled_from(CALLS))
    def end_called_task(self, name: str) -> None:
        ended = self._db.execute(
            "UPDATE horsies_tasks SET live = false, status = 'COMPLETED', result = '{\"ok\":1}', started_at = now(),"
            " completed_at = now(), terminal_at = clock_timestamp()"
            " WHERE live AND id = (SELECT id FROM horsies_tasks_live WHERE parent_id = %s AND parent_step = %s LIMIT 1)",
            (self._id, name),
        ).rowcount
        assert ended == (self._open_calls.get(name, 0) > 0)
        if ended:
            self._open_calls[name] -= 1
            if self._open_calls[name] == 0 and self._parked == name:
                self._parked = None

    # What always holds

    @invariant()
    def steps_are_as_the_model_says(self) -> None:
        rows = self._db.execute(
            "SELECT name, result FROM horsies_steps WHERE ended_at IS NOT NULL"
        ).fetchall()
        assert {row["name"]: row["result"] for row in rows} == self._stored

    @invariant()
    def the_task_is_parked_as_the_model_says(self) -> None:
        row = self._db.execute(
            "SELECT status, parked_at IS NOT NULL AS is_parked, claim_seq, retry_count FROM horsies_tasks_live WHERE id = %s",
            (self._id,),
        ).fetchone()
        assert row == {
            "status": "RUNNING" if self._runs else "PENDING",
            "is_parked": self._parked is not None,
            "claim_seq": self._number,
            "retry_count": 0,
        }

    @invariant()
    def effects_exist_once(self) -> None:
        rows = self._db.execute("SELECT name FROM effects ORDER BY name").fetchall()
        assert [row["name"] for row in rows] == sorted(self._effects)
        assert len(set(self._effects)) == len(self._effects)

    @invariant()
    def each_call_was_sent_once(self) -> None:
        rows = self._db.execute(
            "SELECT parent_step AS step, count(*) AS tasks FROM horsies_tasks WHERE parent_id IS NOT NULL GROUP BY 1"
        ).fetchall()
        assert {row["step"]: row["tasks"] for row in rows} == dict.fromkeys(self._open_calls, CHILDREN)


@pytest.mark.timeout(600 + EXAMPLES)
def test_steps_are_what_the_model_says_whatever_happens(database_url: str) -> None:
    loop = asyncio.new_event_loop()
    worker = loop.run_until_complete(connect_worker(PostgresConfig(database_url=database_url), "model"))
    try:
        with psycopg.Connection[dict[str, Any]].connect(
            database_url, autocommit=True, row_factory=dict_row
        ) as db:
            db.execute("CREATE TABLE effects (name text)")
            run_state_machine_as_test(
                lambda: StepMachine(loop, worker, db),  # pyright: ignore[reportArgumentType]
                settings=settings(
                    max_examples=EXAMPLES,
                    stateful_step_count=40,
                    deadline=None,
                    derandomize="HORSIES_MODEL_EXAMPLES" not in os.environ,
                    suppress_health_check=[HealthCheck.too_slow],
                    phases=[Phase.generate, Phase.shrink],
                ),
            )
    finally:
        loop.run_until_complete(worker.close())
        loop.close()
