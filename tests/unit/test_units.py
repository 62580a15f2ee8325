"""Durations, times and numbers are formatted by their magnitude, everywhere alike."""

from __future__ import annotations

import doctest
import math
from datetime import UTC, datetime, timedelta

import pytest

from horsies import units
from horsies.durations import EARLIEST, LATEST

NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)


def test_the_examples_of_the_module_hold() -> None:
    assert doctest.testmod(units).failed == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.0086, "8.6 ms"), (0.25, "250 ms"), (0.9996, "1 s"), (1.3, "1.3 s"), (9.96, "10 s"), (42, "42 s"),
     (59.6, "1 min"), (124, "2 min 4 s"), (3_599.7, "1 h"), (7_199, "2 h"),
     (7_500, "2 h 5 min"), (90_000, "1 d 1 h"), (86_400 * 120.3, "120 d"), (-75, "-1 min 15 s"),
     (math.inf, "infinity"), (math.nan, "unknown")],
)  # fmt: skip
def test_durations_have_the_units_of_their_magnitude(seconds: float, text: str) -> None:
    assert units.span(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "now"), (-0.9, "now"), (1, "1 s ago"), (75, "1 min ago"), (-75, "in 1 min"), (90_000, "25 h ago"),
     (200_000, "2 d ago")],
)  # fmt: skip
def test_times_near_now_are_relative_to_it(seconds: float, text: str) -> None:
    assert units.ago(NOW - timedelta(seconds=seconds), NOW) == text


def test_times_that_a_database_may_hold_and_python_may_not_are_named() -> None:
    for name in ("ago", "moment", "exactly", "clock", "time_text"):
        assert getattr(units, name)(LATEST) == "infinity"
        assert getattr(units, name)(EARLIEST) == "-infinity"
    assert units.age(EARLIEST, NOW) == "infinity"
    assert units.age(LATEST, NOW) == "0 s"
