"""An app loaded as producer, with a worker that serves it."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from tests.support.waiting import eventually
from tests.support.workers import RunningWorker, Workplace

# What most apps here begin with. The URL is taken when the app is made, so that several apps can be loaded at once.
URL = 'URL = os.environ["HORSIES_DATABASE_URL"]\n'


class Office(NamedTuple):
    tasks: ModuleType
    worker: RunningWorker
    place: Workplace

    def gate(self, name: str) -> Path:
        """A file that does not exist yet, for a task to wait for."""
        return self.place.folder / f"gate-{name}"

    def until_begun(self, name: str) -> None:
        """Wait until the code of a task has begun: it creates a file beside its gate. A row says RUNNING before that."""
        eventually(self.gate(f"{name}-begun").exists, what="the task having begun")


def staffed(place: Workplace, source: str, *arguments: str) -> Office:
    """Write the app, load it here, and start a worker for it."""
    place.write(URL + source)
    return Office(place.load(), place.start(*arguments), place)
