"""Wait until the machine does nothing else, so that a run measures what it measures and not its neighbours."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psutil

# A machine whose processors are busy for no more than this share of the time is idle.
BUSY_SHARE = 0.05
SAMPLE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a machine must have been idle, and how long at most to wait for that."""

    idle_seconds: float
    limit_seconds: float


@dataclass(frozen=True, slots=True)
class Wait:
    """How a wait ended: after so many seconds, with the processors busy for this share of the last ones."""

    seconds: float
    busy: float
    is_idle: bool


def wait_until_idle(patience: Patience, say: Callable[[str], object]) -> Wait:
    """Wait until the machine has been idle for long enough, or until the patience ends; say how busy it is meanwhile."""
    say(
        f"waiting until the machine has been idle for {patience.idle_seconds:.0f} s, "
        f"for {patience.limit_seconds:.0f} s at most …"
    )
    began = time.monotonic()
    ended = judged(_shares(min(SAMPLE_SECONDS, patience.idle_seconds), say), patience)
    ended = Wait(time.monotonic() - began, ended.busy, ended.is_idle)
    if not ended.is_idle:
        say(f"going on although the machine is {100 * ended.busy:.0f} % busy: the report will say so")
    return ended


def judged(shares: Iterator[tuple[float, float]], patience: Patience) -> Wait:
    """Take samples, each of so many seconds and a busy share, until enough of them in a row were idle or patience ends.

    >>> judged(iter([(5.0, 0.9), (5.0, 0.01), (5.0, 0.03)]), Patience(10, 60))
    Wait(seconds=15.0, busy=0.03, is_idle=True)
    >>> judged(iter([(5.0, 0.9), (5.0, 0.01), (5.0, 0.8)]), Patience(10, 15))
    Wait(seconds=15.0, busy=0.8, is_idle=False)
    """
    waited = idle_for = busy = 0.0
    for seconds, busy in shares:
        waited += seconds
        idle_for = idle_for + seconds if busy <= BUSY_SHARE else 0.0
        if idle_for >= patience.idle_seconds or waited >= patience.limit_seconds:
            break
    return Wait(waited, busy, idle_for >= patience.idle_seconds)


def _shares(seconds: float, say: Callable[[str], object]) -> Iterator[tuple[float, float]]:
    """Yield the busy share of all processors, time after time, and say it while it is too high."""
    while True:
        busy = psutil.cpu_percent(seconds) / 100
        if busy > BUSY_SHARE:
            say(f"the machine is {100 * busy:.0f} % busy, load {os.getloadavg()[0]:.1f}")
        yield seconds, busy
