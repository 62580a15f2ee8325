"""What a horsies process logs, as lines for people or as JSON for machines.

Only our own loggers speak at the chosen level; everyone else is heard from WARNING on. A handler that the user has
set up is left alone.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any, Literal

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One JSON object a line, with whatever was passed as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """Time, level and message, one below the other."""

    default_msec_format = "%s.%03d"

    def __init__(self) -> None:
        super().__init__("%(asctime)s  %(levelname)-8s  %(message)s")


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
