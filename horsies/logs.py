"""Logging of horsies processes, as text lines or as JSON.

The chosen level applies to the `horsies` loggers only; all others log from WARNING on. A handler that the user has set up keeps
its format and level. A record that is logged while a task runs names the task.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from select import PIPE_BUF
from typing import Any, Literal, TypeGuard

from horsies.middleware import current_log_context, worker_id
from horsies.task_context import current_channel

# Characters that end a line or move the cursor, except line feed and tab.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


# The fields of a record that is logged while a task runs.
TASK_FIELDS = ("task_id", "task_name", "attempt", "queue", "worker_id")
_NO_TASK = dict.fromkeys(TASK_FIELDS, "")


def task_context() -> dict[str, Any]:
    """Return the fields of the running task, if any, and the values of `log_context`."""
    context, channel = dict(current_log_context()), current_channel()
    if channel is not None:
        task = channel.batch[0] if channel.batch else channel.task
        values = (task.id, task.name, task.attempt, task.queue_name, worker_id())
        context |= zip(TASK_FIELDS, values, strict=True)
    return context


class TaskContext(logging.Filter):
    """Add the running task to each record of a handler: `%(task_id)s` in a format is empty outside of a task.

    A worker and its child processes add it to all existing handlers when they start. Values passed as `extra` win.

    >>> handler.addFilter(TaskContext())
    """

    def filter(self, record: logging.LogRecord) -> bool:
        vars(record).update({**_NO_TASK, **task_context(), **vars(record)})
        return True


class JsonFormatter(logging.Formatter):
    """Format a record as one JSON object per line, with the values passed as `extra`."""

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
        elif record.exc_text:  # an exception of another process
            line["exception"] = record.exc_text
        return json.dumps(line, default=str, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """Format a record as time, level and message.

    Further lines of a record are indented and control characters are escaped, so that a task's name or error message cannot
    forge a log line.
    """

    default_msec_format = "%s.%03d"

    def __init__(self) -> None:
        super().__init__("%(asctime)s  %(levelname)-8s  %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return _escaped(super().format(record))


def _escaped(text: str) -> str:
    """Return text with control characters escaped and further lines indented."""
    if text.isprintable():
        return text
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text).replace("\n", "\n    ")


def log_lines(logger: logging.Logger, lines: Sequence[str]) -> None:
    """Log many messages at INFO; a handler with our own format writes them in batches.

    Making, formatting and writing a record for each message takes ten times as long.
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
            _write_batch(handler, _record(logger, ""), lines)
        else:
            for line in lines:
                handler.handle(_record(logger, line))


def _record(logger: logging.Logger, message: str) -> logging.LogRecord:
    return logging.LogRecord(logger.name, logging.INFO, __file__, 0, message, None, None)


def _handlers_of(logger: logging.Logger) -> Iterator[logging.Handler]:
    """Yield the handlers that receive the records of a logger."""
    current: logging.Logger | None = logger
    while current is not None:
        yield from current.handlers
        current = current.parent if current.propagate else None


def _is_ours(handler: logging.Handler) -> TypeGuard[logging.StreamHandler[Any]]:
    """Return True if a handler only writes our own text format to a stream."""
    return (
        type(handler) in (logging.StreamHandler, logging.FileHandler)
        and getattr(handler, "stream", None) is not None  # a file may be opened by its first record
        and type(handler.formatter) is TextFormatter
        and all(type(each) is TaskContext for each in handler.filters)
    )


def _write_batch(handler: logging.StreamHandler[Any], blank: logging.LogRecord, lines: Sequence[str]) -> None:
    head = handler.format(blank)
    written = [f"{head}{_escaped(line)}{handler.terminator}" for line in lines]
    handler.acquire()
    try:
        for text in _pipe_sized(written):
            handler.stream.write(text)
            handler.flush()
    except Exception:  # noqa: BLE001  as in any handler: a failed write must not stop the caller
        handler.handleError(blank)
    finally:
        handler.release()


def _pipe_sized(lines: Iterable[str]) -> Iterator[str]:
    """Join lines up to PIPE_BUF bytes, which a pipe takes without mixing in the output of other processes."""
    batch, size = list[str](), 0
    for line in lines:
        more = len(line.encode("utf-8", "replace"))
        if batch and size + more > PIPE_BUF:
            yield "".join(batch)
            batch, size = [], 0
        batch.append(line)
        size += more
    yield "".join(batch)


def set_level(level: str) -> None:
    """Set the level of the `horsies` loggers; at DEBUG, expected errors are logged with their traceback."""
    logging.getLogger("horsies").setLevel(level)


def is_debugging() -> bool:
    """Return True if the `horsies` loggers log at DEBUG."""
    return logging.getLogger("horsies").isEnabledFor(logging.DEBUG)


def configure(level: str, log_format: Literal["text", "json"]) -> None:
    """Log to standard error; call it after the user's modules are imported, so that their own logging set-up takes precedence."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    own_logger, root = logging.getLogger("horsies"), logging.getLogger()
    own_logger.handlers[:] = [handler]
    own_logger.propagate = False
    set_level(level)
    if not root.handlers:
        root.addHandler(handler)
    # All handlers that exist now name the running task; handlers that are added later do not.
    loggers = [root, *(logging.getLogger(name) for name in list(logging.root.manager.loggerDict))]
    for handler in {handler for logger in loggers for handler in logger.handlers}:
        if not any(isinstance(each, TaskContext) for each in handler.filters):
            handler.addFilter(TaskContext())
