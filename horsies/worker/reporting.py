"""What a task says while it runs, on its way from the child to the worker: how far it is, and what it logs.

Each word goes out at once, so that it is not lost when the child is killed. In a flood the last ones of each half second
do, and the rest is dropped; a task that says nothing pays nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Container
from datetime import UTC, datetime

from horsies.running import LOGGERS, CurrentTask, current_line
from horsies.storage.notes import LINES_KEPT
from horsies.worker import wire
from horsies.worker.system import own_pid

WINDOW_SECONDS = 0.5
# So many words of a run go out in each of those.
WORDS_IN_WINDOW = 100
MAX_LINE = 2_000
MAX_MESSAGE = 500
# Half a surrogate pair cannot be sent, and a NUL cannot be stored.
_UNFIT = {0: "\ufffd", **dict.fromkeys(range(0xD800, 0xE000), "\ufffd")}


# What a run says, it says under this lock; a signal handler of the task's may log in the middle of a line.
_lock = threading.RLock()


class Run:
    """One run of a call, as the way for what its code says and asks. Threads of the task may use it, too.

    `send` tells whether it could; `cancelled` has the tickets of calls that are to stop. Most runs say nothing, so nothing
    is made for that beforehand.
    """

    _lines: deque[wire.LogLine] | None = None
    _progress: wire.Progress | None = None
    _next_line = 0
    _window_ends = 0.0
    _words = 0
    _is_over = False

    def __init__(
        self, call: wire.Call, send: Callable[[wire.Progress | wire.Logged], bool], cancelled: Container[int]
    ) -> None:
        self._call = call
        self._send = send
        self._cancelled = cancelled
        self._pid = own_pid()
        self._deadline = None if call.timeout_ms is None else time.time() + call.timeout_ms / 1000

    @property
    def task(self) -> CurrentTask:
        """What the code of the call sees of itself."""
        call = self._call
        deadline = None if self._deadline is None else datetime.fromtimestamp(self._deadline, UTC)
        return CurrentTask(
            call.task_id, call.task_name, call.attempt, call.max_retries, call.queue_name, deadline, self
        )

    def is_cancelled(self) -> bool:
        return self._call.ticket in self._cancelled

    def report(self, done: float, total: float | None, message: str) -> None:
        """Keep the last word on how far the task is, and send it unless too much is sent already."""
        if self._is_listened_to():
            with _lock:
                text = fit(message, MAX_MESSAGE)
                self._progress = wire.Progress(self._call.ticket, done, total, text, time.time())
                self._flush()

    def log(self, at: float, level: str, logger: str, message: str) -> None:
        """The same for a line."""
        if self._is_listened_to():
            with _lock:
                if self._lines is None:
                    self._lines = deque(maxlen=LINES_KEPT)
                text = fit(message, MAX_LINE)
                self._lines.append(wire.LogLine(self._next_line, at, level, fit(logger, MAX_MESSAGE), text))
                self._next_line += 1
                self._flush()

    def end(self) -> None:
        """The last chance to send what was held back; the outcome comes next."""
        if self._lines or self._progress is not None:
            with _lock:
                self._words = 0
                self._flush()
        self._is_over = True

    def _is_listened_to(self) -> bool:
        """Not a thread that outlives its task, nor a process that the task has forked, whose pipe this is not."""
        return not self._is_over and own_pid() == self._pid

    def _flush(self) -> None:
        now = time.monotonic()
        if now >= self._window_ends:
            self._window_ends, self._words = now + WINDOW_SECONDS, 0
        if self._words >= WORDS_IN_WINDOW:
            return
        self._words += 1
        if self._lines and self._send(wire.Logged(self._call.ticket, list(self._lines))):
            self._lines.clear()
        if self._progress is not None and self._send(self._progress):
            self._progress = None


class Capture(logging.Handler):
    """Hands what is logged to the run in whose context it is."""

    def emit(self, record: logging.LogRecord) -> None:
        run = current_line()
        if isinstance(run, Run):
            try:
                message = self.format(record)
            except Exception:  # noqa: BLE001  as in any handler: what cannot be formatted does not fail the task
                self.handleError(record)
                return
            run.log(record.created, record.levelname, record.name, message)
        if (
            record.levelno >= logging.WARNING
            and not _is_heard(record.name)
            and logging.lastResort is not None
        ):
            logging.lastResort.handle(record)  # as if we were not here


CAPTURE = Capture()


def _is_heard(name: str) -> bool:
    """Whether any handler but ours gets what this logger says."""
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        if any(handler is not CAPTURE for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


def listen() -> None:
    """Hear what is logged in this process; a set-up of the user's may have thrown us out, so it is done for each run."""
    if CAPTURE not in logging.root.handlers:
        logging.root.addHandler(CAPTURE)
        tasks = logging.getLogger(LOGGERS)
        if tasks.level == logging.NOTSET:
            tasks.setLevel(logging.INFO)


def fit(text: str, longest: int) -> str:
    """The text as it can be sent and stored; of one that is too long, its beginning."""
    cut = text if len(text) <= longest else text[: longest - 1] + "…"
    return cut if cut.isascii() and "\0" not in cut else cut.translate(_UNFIT)
