"""Expected run times of tasks, by name. They decide which tasks may be claimed ahead.

A worker claims ahead only what a child is expected to start soon. The mean would not do: a name of which one run in a hundred
takes five seconds has a short mean, and everything queued behind that one run would wait. So each name is judged by its slow
tail: a longer run counts thirty times as much as a shorter one. A single slow run is forgotten after a few hundred short ones.
"""

from __future__ import annotations

from dataclasses import dataclass

# A child is sent as many calls ahead as it is expected to run in this time.
AHEAD_SECONDS = 0.016
# The weights of a run that took longer than expected, and of one that took less time.
SLOWER_WEIGHT, FASTER_WEIGHT = 0.3, 0.01
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
        weight = SLOWER_WEIGHT if seconds > self.seconds else FASTER_WEIGHT
        if self.runs < RUNS_TO_KNOW:
            self.runs += 1
            weight = 1.0 if seconds > self.seconds else 0.0
        self.seconds += weight * (seconds - self.seconds)

    @property
    def is_short(self) -> bool:
        return self.runs >= RUNS_TO_KNOW and self.seconds <= AHEAD_SECONDS


class RunTimes:
    """The expected run times of the tasks that have run in this worker's processes."""

    def __init__(self) -> None:
        self._by_name: dict[str, _RunTime] = {}  # the name that ran last is the last
        self.short: dict[
            str, float
        ] = {}  # the names that may be claimed ahead, with their expected run times in seconds
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
