"""Workflows outlive whatever befalls their workers; `python -m tests.faults.workflows` takes longer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import randrange

from tests.faults.conftest import SCALE, SEED
from tests.faults.workflows import Drill, Entry, judge
from tests.support.workers import Workplace

START = datetime(2026, 11, 16, tzinfo=UTC)


def test_workflows_under_fault_after_fault_end_as_their_rules_say(workplace: Workplace) -> None:
    seed = SEED or randrange(1, 10**9)
    drill = Drill(workplace, seed)

    problems = drill.run(10.0 * SCALE)

    assert not problems, f"seed {seed}: {problems[:20]}"
    assert drill.started > 10


def entry(
    index: int, status: str, deps: list[int], *, second: int = 0, tasks: int = 1, join: str = "all"
) -> Entry:
    at = START + timedelta(seconds=second)
    return Entry("flow", index, f"n{index}", "task", status, join, None, False, deps, at, at, tasks)


def test_the_judge_sees_what_cannot_have_come_about() -> None:
    sound = [
        entry(0, "COMPLETED", []),
        entry(1, "FAILED", []),
        entry(2, "SKIPPED", [1], tasks=0),
        entry(3, "COMPLETED", [0], second=1),
        entry(4, "COMPLETED", [0, 1], join="any", second=1),
        entry(6, "SKIPPED", [0], tasks=0)._replace(dropped=True),
    ]
    wrong = {
        "in the end": entry(5, "ENQUEUED", [0]),
        "does not hold": entry(5, "COMPLETED", [1]),
        "join holds": entry(5, "SKIPPED", [0], tasks=0),
        "2 tasks": entry(5, "COMPLETED", [0], second=1, tasks=2),
        "began at": entry(5, "COMPLETED", [3]),
        "was skipped": entry(5, "COMPLETED", [0], second=1)._replace(dropped=True),
    }

    assert judge(sound) == []
    for words, each in wrong.items():
        (problem,) = judge([*sound, each])
        assert words in problem
