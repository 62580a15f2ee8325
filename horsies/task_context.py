"""The running task, as seen by its own code.

A task reports to the process that runs it through a `TaskChannel`, at the cost of a message over a pipe. The channel is kept
in a context variable, so that it is the right one in threads and in concurrent async tasks.
"""

from __future__ import annotations

import logging
import math
from contextvars import ContextVar, Token
from dataclasses import field
from datetime import datetime, timedelta
from typing import NoReturn, Protocol, cast

from horsies.durations import Duration, in_seconds
from horsies.errors import ErrorCode, HorsiesError
from horsies.frozen import dataclass

# The parent of the loggers of tasks.
LOGGERS = "task"
MAX_SNOOZE_SECONDS = 366 * 86_400


class Snooze(BaseException):
    """Raised to end a run that is to be repeated later. Not an `Exception`, so that no `except Exception` catches it."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"snooze for {seconds} s")
        self.seconds = seconds


class TaskChannel(Protocol):
    """The connection of a running task to the process that runs it."""

    @property
    def task(self) -> CurrentTask: ...
    def is_cancelled(self) -> bool: ...
    def report(self, done: float, total: float | None, message: str) -> None: ...


@dataclass(frozen=True, slots=True)
class CurrentTask:
    """The running task.

    `attempt` counts from 1, and restarts when an operator retries a failed task. `deadline` is when its timeout ends it, None
    without one.

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
    _channel: TaskChannel = field(repr=False, compare=False)

    @property
    def log(self) -> logging.Logger:
        """Return the task's own logger, whose default level is INFO.

        >>> current_task().log.info("%d rows imported", 12)
        """
        return logging.getLogger(f"{LOGGERS}.{self.name}")

    def cancelled(self) -> bool:
        """Return True if the task was asked to stop. It then ends as cancelled, whatever it returns."""
        return self._channel.is_cancelled()

    def report_progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Report the progress of the task. It may be called often: only the last report of each half second is stored.

        >>> current_task().report_progress(40, 100, "parsing")
        """
        for name, value in (("done", done), ("total", total)):
            if value is not None and not math.isfinite(value):
                raise ValueError(f"{name} is {value!r}; use a finite number")
        self._channel.report(float(done), None if total is None else float(total), str(message))

    def snooze(self, seconds: Duration) -> NoReturn:
        """End this run and run the task again after a delay, without using up an attempt. Never returns.

        The delay is in seconds or a timedelta.

        >>> if not is_ready():
        ...     current_task().snooze(60)
        """
        is_duration = isinstance(cast(object, seconds), int | float | timedelta)
        if not is_duration or not 0 <= in_seconds(seconds) <= MAX_SNOOZE_SECONDS:
            raise ValueError(f"seconds is {seconds!r}; use 0 to a year, in seconds or as a timedelta")
        raise Snooze(in_seconds(seconds))


# Holds the channel, not the CurrentTask: that is made on request, because most runs never ask for it.
_channel: ContextVar[TaskChannel] = ContextVar("horsies_channel")


def current_task() -> CurrentTask:
    """Return the task in which this code runs; raise HorsiesError outside of a task.

    >>> current_task().id
    """
    channel = _channel.get(None)
    if channel is None:
        raise HorsiesError(
            "no task runs here",
            code=ErrorCode.TASK_NOT_RUNNING,
            help_text="call current_task() in the code of a task that a worker runs; a thread of your own needs "
            "contextvars.copy_context().run",
        )
    return channel.task


def begin(channel: TaskChannel) -> Token[TaskChannel]:
    """Make the channel's task the current one in this context, until `end`."""
    return _channel.set(channel)


def end(token: Token[TaskChannel]) -> None:
    """Restore the task that was current before `begin`."""
    _channel.reset(token)


def current_channel() -> TaskChannel | None:
    """Return the channel of the task that runs in this context; None outside of a task."""
    return _channel.get(None)
