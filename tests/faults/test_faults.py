"""Whatever is killed, cut, frozen, lost or spoiled while tasks are sent and run: no promise is broken.

Each drill prints its seed; `FAULTS_SEED=… pytest tests/faults -k …` draws the same moments and victims again.
`FAULTS_SCALE=10` sends ten times as much, over ten times as long, and lets each fault loose on both shapes of workers.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import pytest

from tests.faults import faults
from tests.faults.conftest import SCALE
from tests.faults.drill import Fault, Verdict
from tests.faults.scene import OwnServer, Plan, Scene

pytestmark = pytest.mark.timeout(180 * SCALE)

CAPPED: dict[str, Any] = {"prefetch": 0, "narrow_cap": 3}
AHEAD: dict[str, Any] = {"prefetch": 16, "narrow_cap": None}
# Short tasks are claimed ahead, as their run times say.
ADAPTIVE: dict[str, Any] = {"prefetch": None, "narrow_cap": None}
# The log writer sleeps, so that nothing but a commit flushes the log.
LAZY = {"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB", "autovacuum": "off"}
# Claims of idempotent tasks are on disk when something else is: with few and long tasks, many are not when the server crashes.
# There are twice as many children as they keep busy: a claim for a child that has just ended a task is on disk with its result.
UNFLUSHED: dict[str, Any] = {
    "prefetch": None,
    "narrow_cap": None,
    "sends": 16,
    "seconds": 8.0,
    "task_ms": 1_000,
    "mix": ("repeatable", "busy", "beside", "keyed"),
}


class Drill(Protocol):
    def __call__(self, plan: Plan, fault: Fault, times: int = 1) -> Verdict: ...


def _strikes(*cases: tuple[Fault, int, dict[str, Any] | None]) -> pytest.MarkDecorator:
    """Faults, how often each strikes, and on which shape of workers; None for the first two."""
    params = [
        pytest.param(fault, times, shape, id=f"{fault.__name__}-{name}")
        for fault, times, only in cases
        for name, shape in {"capped": CAPPED, "ahead": AHEAD, "adaptive": ADAPTIVE}.items()
        if only == shape or (only is None and shape != ADAPTIVE) or SCALE > 1
    ]
    return pytest.mark.parametrize(("fault", "times", "shape"), params)


@_strikes(
    (faults.kill_worker, 2, None),
    (faults.kill_all_processes, 2, AHEAD),
    (faults.kill_child, 12, None),
    (faults.kill_child, 12, ADAPTIVE),
    (faults.freeze_parent, 1, None),
    (faults.freeze_all_processes, 1, None),
)
def test_processes_may_die_or_freeze(
    fault: Fault, times: int, shape: dict[str, Any], plan: Plan, drill: Drill
) -> None:
    drill(replace(plan, **shape), fault, times)


@_strikes(
    (faults.replace_worker, 2, AHEAD),
    (faults.end_sessions, 6, None),
    (faults.end_sessions, 6, ADAPTIVE),
    (faults.cancel_statements, 20, CAPPED),
    (faults.lose_wake_ups, 3, AHEAD),
    (faults.hold_back_vacuum, 1, AHEAD),
    (faults.lock_rows, 30, CAPPED),
    (faults.refuse_writes, 1, AHEAD),
    (faults.hurry, 1, CAPPED),
    (faults.isolate, 1, CAPPED),
    (faults.migrate_too_far, 1, CAPPED),
)
def test_nothing_fails_because_the_database_is_treated_badly(
    fault: Fault, times: int, shape: dict[str, Any], plan: Plan, drill: Drill
) -> None:
    drill(replace(plan, crashes=False, lease_ms=None if shape is CAPPED else 10_000, **shape), fault, times)


@_strikes(
    (faults.cut_connections, 6, AHEAD),
    (faults.swallow_for_a_moment, 1, CAPPED),
    (faults.delay_everything, 1, CAPPED),
    (faults.lose_statement, 20, AHEAD),
    (faults.deafen_listeners, 1, CAPPED),
    (faults.lose_replies_to_workers, 1, None),
)
def test_nothing_fails_because_the_network_does(
    fault: Fault, times: int, shape: dict[str, Any], plan: Plan, drill: Drill
) -> None:
    drill(replace(plan, proxied=True, crashes=False, lease_ms=10_000, **shape), fault, times)


@_strikes((faults.swallow_everything, 1, AHEAD))
def test_nobody_is_taken_for_dead_because_all_were_away_for_longer_than_the_lease(
    fault: Fault, times: int, shape: dict[str, Any], plan: Plan, drill: Drill
) -> None:
    drill(replace(plan, proxied=True, crashes=False, **shape), fault, times)


@_strikes((faults.lock_table, 1, CAPPED), (faults.freeze_child, 1, AHEAD))
def test_a_lease_is_kept_whatever_becomes_of_the_tasks(
    fault: Fault, times: int, shape: dict[str, Any], plan: Plan, drill: Drill
) -> None:
    drill(replace(plan, crashes=False, **shape), fault, times)


@_strikes((faults.partition_worker, 1, AHEAD))
def test_a_worker_may_be_cut_off_for_longer_than_its_lease(
    fault: Fault, times: int, shape: dict[str, Any], plan: Plan, drill: Drill
) -> None:
    drill(replace(plan, proxied=True, **shape), fault, times)


def test_a_send_whose_reply_was_lost_is_one_task_when_it_is_repeated(plan: Plan, drill: Drill) -> None:
    verdict = drill(replace(plan, proxied=True, crashes=False), faults.lose_replies_to_producers)

    assert verdict.resolved > 0
    assert verdict.acknowledged == verdict.sent


@pytest.mark.parametrize(
    "shape", [ADAPTIVE, AHEAD, CAPPED][:SCALE], ids=["adaptive", "ahead", "capped"][:SCALE]
)
def test_the_server_may_crash(shape: dict[str, Any], own_server: OwnServer, plan: Plan, drill: Drill) -> None:
    drill(replace(plan, crashes=False, **shape), partial(faults.crash_server, own_server), 2)


@pytest.mark.parametrize("own_server", [LAZY], indirect=True, ids=["a lazy log writer"])
def test_a_crash_of_the_server_may_undo_claims_that_are_not_flushed(
    own_server: OwnServer, plan: Plan, drill: Drill
) -> None:
    """No stale result is accepted, no result is seen and then gone, and no task is lost."""
    drill(replace(plan, **UNFLUSHED, crashes=False), partial(faults.undo_a_claim, own_server), 2)


@pytest.mark.parametrize("fault", [faults.kill_backend, faults.take_all_connections])
def test_the_server_may_end_or_refuse_every_session(
    fault: Fault, own_server: OwnServer, plan: Plan, drill: Drill
) -> None:
    drill(replace(plan, crashes=False, lease_ms=10_000, **CAPPED), fault, 2)


def test_malformed_rows_fail_alone(plan: Plan, drill: Drill) -> None:
    scenes: set[Scene] = set()

    def insert(scene: Scene) -> None:
        scenes.add(scene)
        faults.insert_malformed_rows(scene)

    drill(replace(plan, crashes=False), insert, 3)

    scene = scenes.pop()
    codes = "SELECT DISTINCT status, task_name, error_code FROM horsies_tasks WHERE id = ANY (%s::uuid[])"
    assert set(scene.execute(codes, (list(scene.strangers),))) == {
        ("FAILED", "plain", "WORKER_SERIALIZATION_ERROR"),
        ("FAILED", "no_such_task", "WORKER_RESOLUTION_ERROR"),
    }
