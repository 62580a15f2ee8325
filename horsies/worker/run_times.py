"""Expected run times of tasks, by name. They decide which tasks may be claimed ahead.

A worker claims ahead only what a child is expected to start soon. The mean would not do, because a few very long runs hide in
it or dominate it. So each name is judged by its slow tail: its expected run time is one that 95 of 100 runs stay below. Each
longer run raises it by a factor, and each shorter run lowers it by a twentieth of that factor. So a name that was long is
forgotten slowly, after some two hundred short runs, and one that becomes long is known after a handful.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp

# A child is sent as many calls ahead as it is expected to run in this time.
AHEAD_SECONDS = 0.016
# A run that took longer than expected raises the expectation by this factor, but not above itself; one that took less time
# lowers it. They are in balance if one run in twenty is longer.
SLOWER_FACTOR, FASTER_FACTOR = exp(0.57), exp(-0.03)
# No expectation is shorter than this.
SHORTEST_SECONDS = 1e-5
# A name is known after this many runs.
RUNS_TO_KNOW = 5
# The weight of a run in the run time that is typical of all tasks.
TYPICAL_WEIGHT = 0.1
# So many names are remembered; the one that has not run for longest is forgotten.
MAX_NAMES = 256


@dataclass(slots=True)
class _RunTime:
    """The expected run time of one name, and how often it has run, up to `RUNS_TO_KNOW`."""

    seconds: float
    runs: int = 1

    def ran(self, seconds: float) -> None:
        """Adjust the expectation. The first runs can only raise it."""
        if self.runs < RUNS_TO_KNOW:
            self.runs += 1
            self.seconds = max(self.seconds, seconds)
        elif seconds > self.seconds:
            self.seconds = min(self.seconds * SLOWER_FACTOR, seconds)
        else:
            self.seconds = max(self.seconds * FASTER_FACTOR, SHORTEST_SECONDS)

    @property
    def is_short(self) -> bool:
        return self.runs >= RUNS_TO_KNOW and self.seconds <= AHEAD_SECONDS


class RunTimes:
    """The expected run times of the tasks that have run in this worker's processes."""

    def __init__(self) -> None:
        self._by_name: dict[str, _RunTime] = {}  # the name that ran last is the last
        # The names that may be claimed ahead, with their expected run times in seconds.
        self.short: dict[str, float] = {}
        # The expected run time of the next task, whatever its name. A long or unknown one counts as `AHEAD_SECONDS`.
        self.typical = AHEAD_SECONDS

    def ran(self, name: str, seconds: float) -> None:
        """Note how long a task ran."""
        known = self._by_name.pop(name, None)
        if known is None:
            known = _RunTime(seconds)
            if len(self._by_name) >= MAX_NAMES:
                oldest = next(iter(self._by_name))
                del self._by_name[oldest]
                self.short.pop(oldest, None)
        else:
            known.ran(seconds)
        self._by_name[name] = known
        if known.is_short:
            self.short[name] = known.seconds
        else:
            self.short.pop(name, None)
        self.typical += TYPICAL_WEIGHT * (self.short.get(name, AHEAD_SECONDS) - self.typical)
