"""What the drills send: the tasks of the app, how many of each, and what their policies allow."""

from __future__ import annotations

import msgspec

from tests.faults.checker import Policy

VARIABLE = "FAULTS_APP"
NARROW, WIDE = "narrow", "wide"


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """How the app is set up; travels in an environment variable."""

    folder: str
    lease_ms: int | None
    prefetch: int
    narrow_cap: int | None
    task_ms: int
    session_url: str | None = None  # past the pooler, if there is one
    clock_seconds: float = 0.0  # how far the clock of every process is off
    mix: tuple[str, ...]  # of which tasks the producers draw
    batch: int = 1  # how many they send at once


POLICIES = {
    "plain": Policy(1),
    "repeatable": Policy(3),
    "busy": Policy(3),
    "beside": Policy(3),
    "failing": Policy(1, frozenset({"NO_LUCK"})),
    "second_time": Policy(3),
}
# In twenty sends.
MIX = (
    *("plain",) * 7,
    *("repeatable",) * 5,
    *("busy",) * 3,
    *("beside",) * 3,
    *("failing", "second_time"),
)
