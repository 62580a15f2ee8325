"""Who is declared dead, and when; what becomes of what it held; and who decides that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from horsies import AppConfig, Horsies, RecoveryConfig
from horsies.db.queries.workers import Rules
from horsies.worker.reaper import rules_of
from horsies.worker.settle import Settler
from tests.pg.conftest import define_add
from tests.pg.hands import Hands

AT_ONCE = Rules(quarantine_seconds=0.0)
EVER = 10 * 365 * 86_400.0


@dataclass
class Ward:
    """A worker that holds one task that it has started and one that it has not, and one that looks after it."""

    patient: Hands
    keeper: Hands
    settler: Settler
    db: psycopg.Connection[Any]

    def silence(self, seconds: float, *, lease_is_over: bool = True) -> None:
        """As if the worker had last been heard of so long ago."""
        self.db.execute(
            "UPDATE horsies_workers SET last_beat_at = now() - make_interval(secs => %s),"
            " lease_expires_at = now() + CASE WHEN %s THEN interval '-1 ms' ELSE interval '1 hour' END"
            " WHERE worker_id = %s",
            (seconds, lease_is_over, self.patient.worker_id),
        )

    def reap(self, rules: Rules = AT_ONCE) -> int:
        return self.keeper.reap(rules, self.settler)

    def statuses(self) -> dict[int, str]:
        """Of the task that was started as 1, of the other one as 2."""
        rows = self.db.execute("SELECT (kwargs::json ->> 'x')::int, status FROM horsies_tasks").fetchall()
        return dict(rows)

    def is_dead(self) -> bool:
        query = "SELECT dead_at IS NOT NULL FROM horsies_workers WHERE worker_id = %s"
        row = self.db.execute(query, (self.patient.worker_id,)).fetchone()
        assert row is not None
        return row[0]


@pytest.fixture
def ward(database_url: str, make_app: Callable[..., Horsies]) -> Iterator[Ward]:
    app = make_app()
    add = define_add(app)
    patient, keeper = Hands(database_url), Hands(database_url)
    patient.register(waiting=False)
    keeper.register(waiting=False)
    for x in (1, 2):
        add.send(x).unwrap()
    assert len(patient.claim(pids=[4242])) == 2
    with psycopg.connect(database_url, autocommit=True) as db:
        yield Ward(patient, keeper, Settler(app), db)
        db.execute("UPDATE horsies_workers SET dead_at = now()")
        keeper.reap(AT_ONCE, Settler(app))  # so that no task stays claimed by a dead worker
    patient.close()
    keeper.close()


def test_a_worker_whose_lease_expired_is_dead_and_its_tasks_are_rescued(
    ward: Ward, caplog: pytest.LogCaptureFixture
) -> None:
    ward.silence(1)

    assert ward.reap() == 2
    assert ward.is_dead()
    assert "is dead: its lease expired" in caplog.text
    assert ward.statuses() == {1: "FAILED", 2: "PENDING"}


def test_a_worker_whose_lease_holds_keeps_its_tasks_however_silent_it_is(ward: Ward) -> None:
    ward.silence(3600, lease_is_over=False)

    assert ward.reap() == 0
    assert not ward.is_dead()
    assert ward.statuses() == {1: "RUNNING", 2: "CLAIMED"}


def test_nobody_is_declared_dead_while_the_server_has_only_just_come_back(ward: Ward) -> None:
    ward.silence(3600)

    assert ward.reap(Rules(quarantine_seconds=EVER)) == 0
    assert not ward.is_dead()
    assert ward.statuses() == {1: "RUNNING", 2: "CLAIMED"}


def test_a_running_task_is_given_up_only_after_its_threshold(ward: Ward) -> None:
    rules = Rules(quarantine_seconds=0.0, running_seconds=300.0)
    ward.silence(290)
    assert ward.reap(rules) == 1
    assert ward.statuses() == {1: "RUNNING", 2: "PENDING"}
    assert not ward.is_dead()

    ward.silence(310)
    assert ward.reap(rules) == 1
    assert ward.statuses() == {1: "FAILED", 2: "PENDING"}


def test_a_claim_goes_back_only_after_its_threshold(ward: Ward) -> None:
    rules = Rules(quarantine_seconds=0.0, claimed_seconds=120.0, running_seconds=300.0)
    ward.silence(110)
    assert ward.reap(rules) == 0
    assert ward.statuses() == {1: "RUNNING", 2: "CLAIMED"}

    ward.silence(130)
    assert ward.reap(rules) == 1
    assert ward.statuses() == {1: "RUNNING", 2: "PENDING"}


def test_a_worker_that_comes_back_before_the_threshold_goes_on(ward: Ward) -> None:
    ward.silence(290)
    ward.reap(Rules(quarantine_seconds=0.0, running_seconds=300.0))

    assert ward.patient.beat().is_alive
    assert ward.reap() == 0
    assert ward.statuses()[1] == "RUNNING"


@pytest.mark.parametrize(
    ("rules", "left"),
    [
        (Rules(0.0, requeue=False), {1: "FAILED", 2: "CLAIMED"}),
        (Rules(0.0, fail=False), {1: "RUNNING", 2: "PENDING"}),
    ],
    ids=["requeue", "fail"],
)
def test_what_is_switched_off_is_left_to_an_operator(ward: Ward, rules: Rules, left: dict[int, str]) -> None:
    ward.silence(1)

    assert ward.reap(rules) == 1
    assert ward.statuses() == left


def test_the_oldest_worker_whose_lease_holds_leads(ward: Ward) -> None:
    assert (ward.patient.beat().leads, ward.keeper.beat().leads) == (True, False)

    ward.silence(1)

    answer = ward.keeper.beat()
    assert (answer.others_are_late, answer.leads) == (True, True)
    assert ward.patient.beat().leads  # it comes back, and with it its place
    assert not ward.keeper.beat().leads


def test_settings_say_when_work_is_lost() -> None:
    assert rules_of(AppConfig()) == Rules(quarantine_seconds=10.0)
    recovery = RecoveryConfig(
        claimed_stale_threshold_ms=120_000,
        running_stale_threshold_ms=300_000,
        crashed_worker_recovery_grace_ms=60_000,
        auto_requeue_stale_claimed=False,
        auto_fail_stale_running=False,
    )
    assert rules_of(AppConfig(recovery=recovery)) == Rules(60.0, 120.0, 300.0, requeue=False, fail=False)
    long_lease = AppConfig(claim_lease_ms=90_000, recovery=recovery)
    assert rules_of(long_lease).quarantine_seconds == 90.0


def test_whoever_cleans_up_does_not_wait_for_a_lock_on_the_tasks(ward: Ward) -> None:
    ward.silence(1)
    ward.keeper.execute("SET statement_timeout = '5s'")  # what it would wait for is not over by then

    with ward.db.transaction():
        ward.db.execute("LOCK TABLE horsies_tasks IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            ward.reap()

    assert ward.reap() == 2
