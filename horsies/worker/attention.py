"""When to look for work by oneself, and when to sleep until told.

A notification makes its sender wait in line with all other senders, so a worker asks for them only when it sleeps.
While work keeps coming it looks by itself after short pauses; when several looks found nothing it says that it waits,
and looks a few times more, because a task may have been sent just before that was known. It does the same when it was
woken and found nothing: the task may be locked for a moment by someone who asks for its result. A waiting worker that is
woken again and again goes back to looking by itself. What a poll finds, after all that, should have been told: whether we
still hear what we are told is then worth a question.
"""

from __future__ import annotations

from collections import deque
from itertools import repeat

SEARCH_PAUSES = (0.001, 0.002, 0.004)
CONFIRM_PAUSES = (0.001, 0.005, 0.02, 0.08)
BUSY_FINDS = 10
BUSY_SECONDS = 0.03
# Who looks by itself for so long, without a rest, says so: as long as others believe that it waits, they wake it.
AWAKE_SECONDS = 0.02


class Attention:
    """Decides only; the caller looks, and tells the database whether the worker waits."""

    def __init__(self) -> None:
        self.waiting = False
        self._misses = 0
        self._woken = self._due = False
        self.untold = 0  # how often something was found that nobody had told us of
        self._finds: deque[float] = deque(maxlen=BUSY_FINDS)
        self._awake_since = 0.0

    def looked(self, found: int, now: float) -> None:
        """Note what a look for work, with room to take more, has found."""
        if not self.waiting:
            self._misses = 0 if found else self._misses + 1
            if self._misses >= len(SEARCH_PAUSES):
                self.waiting, self._misses = True, 0
        elif not found:
            self._misses = 0 if self._woken else self._misses + 1
        else:
            self._finds.extend(repeat(now, min(found, BUSY_FINDS)))
            if len(self._finds) == BUSY_FINDS and now - self._finds[0] < BUSY_SECONDS:
                self.search()
        self._woken = self._due = False

    def found(self) -> None:
        """A look has found something."""
        if self.pause() is None and not self._woken and not self._due:
            self.untold += 1

    def notified(self) -> None:
        """A notification came: the next look should find something."""
        self._woken = True

    def was_due(self) -> None:
        """Something has become due that was known of."""
        self._due = True

    def search(self) -> None:
        """Look by oneself from now on: there is work, or no room for any."""
        self.waiting, self._misses = False, 0
        self._finds.clear()

    def is_woken_in_vain(self, said_waiting: bool, now: float) -> bool:
        """Whether the worker has looked by itself for some time, and others believe that it waits."""
        if self.waiting or not said_waiting:
            self._awake_since = now
        return now - self._awake_since > AWAKE_SECONDS

    def pause(self) -> float | None:
        """Seconds until the next look by oneself; None when news will come."""
        if not self.waiting:
            return SEARCH_PAUSES[self._misses]
        return CONFIRM_PAUSES[self._misses] if self._misses < len(CONFIRM_PAUSES) else None
