"""What a horsies process logs, as lines for people or as JSON for machines.

Only our own loggers speak at the chosen level; everyone else is heard from WARNING on. A handler that the user has
set up keeps its format and level. What is logged while a task runs says which task that is.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from select import PIPE_BUF
from typing import Any, Literal, TypeGuard

from horsies.context import caller_context, worker_id
from horsies.running import current_line

# Everything that ends a line or moves the cursor, but for the line feed and the tab.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


# What a line that is logged while a task runs knows of the task.
TASK_FIELDS = ("task_id", "task_name", "attempt", "queue", "worker_id")
_OUTSIDE = dict.fromkeys(TASK_FIELDS, "")


def task_context() -> dict[str, Any]:
    """The task that runs here, and what `log_context` says; empty when none runs and nothing was said."""
    said, line = dict(caller_context()), current_line()
    if line is not None:
        task = line.task
        known = (task.id, task.name, task.attempt, task.queue_name, worker_id())
        said |= zip(TASK_FIELDS, known, strict=True)
    return said


class TaskContext(logging.Filter):
    """Adds the running task to each record of a handler: `%(task_id)s` in a format is empty outside of a task.

    A worker and its children put it on every handler there is when they start. What a call passes as `extra` wins.

    >>> handler.addFilter(TaskContext())
    """

    def filter(self, record: logging.LogRecord) -> bool:
        vars(record).update({**_OUTSIDE, **task_context(), **vars(record)})
        return True


class JsonFormatter(logging.Formatter):
    """One JSON object a line, with whatever was passed as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {
            name: value
            for name, value in vars(record).items()
            if name not in _STANDARD and not (value == "" and name in TASK_FIELDS)
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """Time, level and message, one below the other.

    Only a record begins at the margin: its further lines are indented, and control characters are written out. So what
    a task is called or says in an error looks like no other line of the log.
    """

    default_msec_format = "%s.%03d"

    def __init__(self) -> None:
        super().__init__("%(asctime)s  %(levelname)-8s  %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return _fit(super().format(record))


def _fit(text: str) -> str:
    """As it may stand in the log."""
    return text if text.isprintable() else _CONTROL.sub(_written_out, text).replace("\n", "\n    ")


def _written_out(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]


def log_lines(logger: logging.Logger, lines: Sequence[str]) -> None:
    """Log each of these lines, which know best what they are about; a handler of our own kind writes many at once.

    A record for each, made, formatted and written by itself, takes ten times as long.
    """
    if logger.disabled or not logger.isEnabledFor(logging.INFO):
        return
    if logger.filters:
        for line in lines:
            logger.handle(_record(logger, line))
        return
    for handler in _handlers_of(logger):
        if handler.level > logging.INFO:
            continue
        if _is_ours(handler):
            _write_together(handler, _record(logger, ""), lines)
        else:
            for line in lines:
                handler.handle(_record(logger, line))


def _record(logger: logging.Logger, message: str) -> logging.LogRecord:
    return logging.LogRecord(logger.name, logging.INFO, __file__, 0, message, None, None)


def _handlers_of(logger: logging.Logger) -> Iterator[logging.Handler]:
    """Those that get what a logger says."""
    at: logging.Logger | None = logger
    while at is not None:
        yield from at.handlers
        at = at.parent if at.propagate else None


def _is_ours(handler: logging.Handler) -> TypeGuard[logging.StreamHandler[Any]]:
    """Whether a handler does nothing but to write text as we would."""
    return (
        type(handler) in (logging.StreamHandler, logging.FileHandler)
        and getattr(handler, "stream", None) is not None  # a file may be opened by its first record
        and type(handler.formatter) is TextFormatter
        and all(type(each) is TaskContext for each in handler.filters)
    )


def _write_together(
    handler: logging.StreamHandler[Any], blank: logging.LogRecord, lines: Sequence[str]
) -> None:
    head = handler.format(blank)
    written = [f"{head}{_fit(line)}{handler.terminator}" for line in lines]
    handler.acquire()
    try:
        for text in _in_portions(written):
            handler.stream.write(text)
            handler.flush()
    except Exception:  # noqa: BLE001  as in any handler: what cannot be written stops nobody
        handler.handleError(blank)
    finally:
        handler.release()


def _in_portions(lines: Iterable[str]) -> Iterator[str]:
    """As much as other processes that write to the same pipe cannot get in between."""
    portion, size = list[str](), 0
    for line in lines:
        more = len(line.encode("utf-8", "replace"))
        if portion and size + more > PIPE_BUF:
            yield "".join(portion)
            portion, size = [], 0
        portion.append(line)
        size += more
    yield "".join(portion)


def set_level(level: str) -> None:
    """How much our own loggers say; at DEBUG, known errors are shown with their traceback."""
    logging.getLogger("horsies").setLevel(level)


def is_debugging() -> bool:
    return logging.getLogger("horsies").isEnabledFor(logging.DEBUG)


def configure(level: str, log_format: Literal["text", "json"]) -> None:
    """Log to standard error; call it once the user's modules are imported, so that their own set-up comes first."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    ours, root = logging.getLogger("horsies"), logging.getLogger()
    ours.handlers[:] = [handler]
    ours.propagate = False
    set_level(level)
    if not root.handlers:
        root.addHandler(handler)
    _add_task_context()


def _add_task_context() -> None:
    """Have every handler tell which task runs; those that are added later are given the filter by who adds them."""
    loggers = [
        logging.getLogger(),
        *(logging.getLogger(name) for name in list(logging.root.manager.loggerDict)),
    ]
    for handler in {handler for logger in loggers for handler in logger.handlers}:
        if not any(isinstance(each, TaskContext) for each in handler.filters):
            handler.addFilter(TaskContext())
