"""The task that runs right now, as its own code sees it.

What it reports goes to whoever runs it over a `Line`, and costs the task no more than a message over a pipe. It is bound
to the context, so that it is the right one in threads and in async tasks side by side.
"""

from __future__ import annotations

import logging
import math
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from datetime import datetime
from typing import NoReturn, Protocol

from horsies.errors import ErrorCode, HorsiesError

# The loggers of tasks are below this one.
LOGGERS = "task"
MAX_SNOOZE_SECONDS = 366 * 86_400


class Snooze(BaseException):
    """Ends a run that is to be repeated later. Not an `Exception`, so that no `except Exception` keeps it."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"snooze for {seconds} s")
        self.seconds = seconds


class Line(Protocol):
    """The way from a task to whoever runs it."""

    @property
    def task(self) -> CurrentTask: ...
    def is_cancelled(self) -> bool: ...
    def report(self, done: float, total: float | None, message: str) -> None: ...


@dataclass(frozen=True, slots=True)
class CurrentTask:
    """The task that runs right now: which one it is, and what it can say and ask.

    `attempt` counts from 1, and begins anew when a failed task is sent through once more. The `deadline` is when its time
    limit ends it, None without one.

    >>> task = current_task()
    >>> for done, page in enumerate(pages):
    ...     if task.cancelled():
    ...         break
    ...     task.report_progress(done, len(pages))
    """

    id: str
    name: str
    attempt: int
    max_retries: int
    queue_name: str
    deadline: datetime | None
    _line: Line = field(repr=False, compare=False)

    @property
    def log(self) -> logging.Logger:
        """A logger of the task's own, from INFO on unless you set it otherwise.

        >>> current_task().log.info("%d rows imported", 12)
        """
        return logging.getLogger(f"{LOGGERS}.{self.name}")

    def cancelled(self) -> bool:
        """Whether the task is asked to stop. It has been cancelled then, whatever it returns."""
        return self._line.is_cancelled()

    def report_progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Say how far the task is. As often as you like: the last word of each half second is kept.

        >>> current_task().report_progress(40, 100, "parsing")
        """
        for name, value in (("done", done), ("total", total)):
            if value is not None and not math.isfinite(value):
                raise ValueError(f"{name} is {value!r}; use a finite number")
        self._line.report(float(done), None if total is None else float(total), str(message))

    def snooze(self, seconds: float) -> NoReturn:
        """End this run, and run the task again after so long. No attempt is spent. It does not return.

        >>> if not is_ready():
        ...     current_task().snooze(60)
        """
        if not 0 <= seconds <= MAX_SNOOZE_SECONDS:
            raise ValueError(f"seconds is {seconds!r}; use 0 to a year")
        raise Snooze(seconds)


# Of most runs nobody asks which task they are: that is made when it is asked for.
_line: ContextVar[Line] = ContextVar("horsies_line")


def current_task() -> CurrentTask:
    """The task in which this code runs; an error outside of one.

    >>> current_task().id
    """
    line = _line.get(None)
    if line is None:
        raise HorsiesError(
            "no task runs here",
            code=ErrorCode.TASK_NOT_RUNNING,
            help_text="call current_task() in the code of a task that a worker runs; a thread of your own needs "
            "contextvars.copy_context().run",
        )
    return line.task


def begin(line: Line) -> Token[Line]:
    """From here on the task of this line runs in this context, until `end`."""
    return _line.set(line)


def end(token: Token[Line]) -> None:
    _line.reset(token)


def current_line() -> Line | None:
    """The line of the task that runs in this context, if one does."""
    return _line.get(None)
