"""Expected run times: a name is judged by its slow tail, and a slow run is forgotten slowly."""

from __future__ import annotations

import pytest

from horsies.worker.run_times import AHEAD_SECONDS, MAX_NAMES, RUNS_TO_KNOW, RunTimes


def _after(*runs: float) -> RunTimes:
    times = RunTimes()
    for seconds in runs:
        times.ran("task", seconds)
    return times


def test_a_name_is_unknown_until_it_has_run_a_few_times() -> None:
    assert not _after(*[0.001] * (RUNS_TO_KNOW - 1)).short
    assert _after(*[0.001] * RUNS_TO_KNOW).short == {"task": 0.001}


def test_a_name_with_one_slow_run_among_its_first_is_not_short() -> None:
    assert not _after(0.001, 5.0, *[0.001] * (RUNS_TO_KNOW - 2)).short


def _share_of_short(slow_in_hundred: int) -> float:
    """Return how often a name is short of whose runs so many in a hundred take five seconds."""
    times = _after(*[0.001] * 50)
    verdicts = list[bool]()
    for run in range(5_000):
        times.ran("task", 5.0 if run * slow_in_hundred % 100 < slow_in_hundred else 0.001)
        verdicts.append("task" in times.short)
    return sum(verdicts[1_000:]) / 4_000


def test_one_slow_run_in_a_hundred_leaves_a_name_short_and_one_in_ten_does_not() -> None:
    assert _share_of_short(1) == 1.0
    assert _share_of_short(10) == 0.0


def test_a_name_that_becomes_long_is_known_after_a_handful_of_runs() -> None:
    times = _after(*[0.001] * 50)
    runs = 0
    while times.short:
        times.ran("task", 5.0)
        runs += 1
    assert 2 <= runs <= 8


def test_a_name_that_was_long_is_forgotten_after_two_hundred_short_runs() -> None:
    times = _after(*[5.0] * 50)
    runs = 0
    while not times.short:
        times.ran("task", 0.001)
        runs += 1
    assert 150 < runs < 250


@pytest.mark.parametrize(("seconds", "is_short"), [(AHEAD_SECONDS, True), (AHEAD_SECONDS * 1.01, False)])
def test_a_short_task_runs_for_16_ms_at_most(seconds: float, is_short: bool) -> None:
    assert bool(_after(*[seconds] * RUNS_TO_KNOW).short) is is_short


def test_the_typical_run_time_follows_the_tasks_that_run_now() -> None:
    times = _after(*[0.001] * 100)
    assert times.typical == pytest.approx(0.001, rel=0.05)
    for _ in range(100):
        times.ran("long", 1.0)
    assert times.typical == pytest.approx(AHEAD_SECONDS, rel=0.01)


def test_only_the_names_that_ran_last_are_remembered() -> None:
    times = _after(*[0.001] * RUNS_TO_KNOW)
    for number in range(MAX_NAMES):
        times.ran(f"other {number}", 0.001)
    assert "task" not in times.short
    times.ran("task", 0.001)
    assert "task" not in times.short
