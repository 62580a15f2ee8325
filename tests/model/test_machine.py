"""The protocol keeps its promises in every state that it can get into, and would not without any one of its guards."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields, replace

import pytest

from tests.model.explore import explore
from tests.model.machine import Guards, World

WORLDS = [
    World(),
    World(slots=1, crash_retry=True),
    World(workers=3, slots=1, retries=0, max_crashes=1),
]
# Half a minute each.
LARGE_WORLDS = [
    World(crash_retry=True),
    World(workers=3, slots=1, crash_retry=True, retries=0),
]


def _name(world: World) -> str:
    crashes = "crashes are retried" if world.crash_retry else "crashes are final"
    return f"{world.workers} workers, {world.slots} slots, {crashes}"


SMALL = World(slots=1)
RETRIED = World(slots=1, crash_retry=True)
# For each guard what comes of it when it is missing, and where.
NEEDS = {
    "claim_only_pending": (SMALL, "two workers own the task"),
    "start_is_fenced": (SMALL, "a stale worker's word was taken"),
    "start_only_claimed": (SMALL, "what had ended was changed"),
    "outcome_is_fenced": (SMALL, "a stale worker's word was taken"),
    "outcome_only_running": (SMALL, "what had ended was changed"),
    "number_changes_with_owner": (SMALL, "a stale worker's word was taken"),
    "release_only_own": (SMALL, "the task was begun by a worker that had lost it"),
    "release_keeps_what_is_held": (SMALL, "two workers own the task"),
    "held_is_told_by_number": (World(), "the task is in limbo"),
    "refused_start_is_recounted": (SMALL, "the task is in limbo"),
    "lost_reply_is_recounted": (SMALL, "the task is in limbo"),
    "begin_only_within_lease": (RETRIED, "the task was begun by a worker that had lost it"),
    "dead_go_on_under_another_name": (SMALL, "two workers own the task"),
    "bury_only_after_lease": (SMALL, "the task was begun after its end"),
    "rescue_only_from_the_dead": (SMALL, "two workers own the task"),
    "rescue_at_all": (SMALL, "the task is in limbo"),
    "started_is_not_rerun_blindly": (SMALL, "the task was begun twice"),
    "crashes_are_limited": (RETRIED, "the task crashes for ever"),
}


@pytest.mark.parametrize(
    "world", WORLDS + LARGE_WORLDS if "HORSIES_MODEL_EXAMPLES" in os.environ else WORLDS, ids=_name
)
def test_nothing_is_wrong_in_any_state(world: World, record_property: Callable[[str, object], None]) -> None:
    report = explore(world)

    assert report.problem is None, str(report)
    assert report.states > 5_000
    record_property("states", report.states)


@pytest.mark.parametrize("guard", [field.name for field in fields(Guards)])
def test_no_guard_can_be_left_out(guard: str) -> None:
    world, problem = NEEDS[guard]

    report = explore(replace(world, guards=Guards(**{guard: False})))

    assert report.problem == problem, str(report)
    assert report.trace
