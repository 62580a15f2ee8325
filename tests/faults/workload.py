"""What the drills send: the tasks of the app, how many of each, and what their policies allow."""

from __future__ import annotations

import msgspec

from tests.faults.checker import Policy

VARIABLE = "FAULTS_APP"
NARROW, WIDE = "narrow", "wide"
# Tasks with keys are of so many keys, and so many of each may run at once.
KEYS, KEY_LIMIT = 6, 2


def key_of(number: int) -> int:
    """The key of a task; neighbours have different ones."""
    return number % KEYS


def lane_of(key: int) -> str:
    """What a run of the key testifies as its queue, so that its limit is checked like that of a queue."""
    return f"key {key}"


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """How the app is set up; travels in an environment variable."""

    folder: str
    lease_ms: int | None
    prefetch: int | None
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
    "keyed": Policy(3),
    "keyed_beside": Policy(3),
    "failing": Policy(1, frozenset({"NO_LUCK"})),
    "second_time": Policy(3),
}
# In twenty sends.
MIX = (
    *("plain",) * 5,
    *("repeatable",) * 4,
    *("busy",) * 2,
    *("beside",) * 3,
    *("keyed",) * 3,
    "keyed_beside",
    *("failing", "second_time"),
)
