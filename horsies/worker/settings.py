"""What a child must know, handed to it on its command line."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

import msgspec


class ChildKind(StrEnum):
    """How a child runs its calls: one after another, in threads, or on an event loop."""

    SERIAL = "s"
    THREADS = "t"
    ASYNC = "a"


class ChildSettings(msgspec.Struct, frozen=True):
    """Where the app is, and when a child has done enough."""

    locator: str
    imports: list[str]
    sys_path: list[str]
    threads: int
    max_tasks: int
    max_memory_mb: int | None
    # How long children may go on when their worker has died. Well within what is left of its lease then.
    afterlife_seconds: float
    loglevel: str = "INFO"

    def is_worn(self, tasks_done: int, memory_mb: Callable[[], float]) -> bool:
        """Whether a child that has done so many tasks should be replaced; either limit counts. 0 tasks: no limit."""
        if self.max_tasks and tasks_done >= self.max_tasks:
            return True
        return self.max_memory_mb is not None and memory_mb() >= self.max_memory_mb

    def to_argument(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_argument(cls, argument: str) -> ChildSettings:
        return msgspec.json.decode(argument, type=cls)
