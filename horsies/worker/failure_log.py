"""Log what becomes of tasks that do not complete, one record for each: a retry, a failure, a cancellation, an expiry.

A record is written when the change is committed, so the log agrees with the database. Values of arguments that the app
redacts, and passwords of URLs, are not logged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from horsies.db.queries.tasks import Claimed, Expired, Failure
from horsies.errors import mask_passwords
from horsies.redaction import Redactor
from horsies.registry import TaskRegistry
from horsies.units import span

logger = logging.getLogger("horsies.worker")


class _Exception(msgspec.Struct):
    traceback: str | None = None


class _Error(msgspec.Struct):
    exception: _Exception | None = None


class _Result(msgspec.Struct):
    """The part of a stored result that holds a traceback."""

    err: _Error | None = None


class FailureLog:
    """Logs a WARNING for each retry, an ERROR with the child's traceback for each failure, else an INFO."""

    def __init__(self, app: TaskRegistry) -> None:
        self._tasks = app.tasks
        self._redactor = Redactor(app.config.redact)
        self._failing: dict[str, Claimed] = {}  # tasks that have left their child and are not settled yet
        self._cancelling: set[str] = set()

    def left_child(self, task: Claimed) -> None:
        """Note a task that did not complete. It is logged when that is committed."""
        self._failing[task.id] = task

    def cancel_requested(self, ids: Iterable[str]) -> None:
        """Note all tasks that run here and for which cancellation was requested."""
        self._cancelling = {*ids, *(self._cancelling & self._failing.keys())}

    def settled(
        self, failures: Iterable[Failure], ours: Mapping[str, bool], tasks: Iterable[Claimed] = ()
    ) -> None:
        """Log the failures that were written; `ours` has their ids, with True for a retry.

        `tasks` are those that did not run here: the tasks of a dead worker.
        """
        for task in tasks:
            self.left_child(task)
        for failure in failures:
            task, will_retry = self._failing.pop(failure.id, None), ours.get(failure.id)
            if will_retry is None or failure.snoozed:
                continue  # it belongs to another worker now, or has not failed
            if failure.asked or failure.id in self._cancelling:
                name, fields = _named(task, failure.id)
                _log(logging.INFO, f"{name} was cancelled", fields)
            elif task is not None:
                self._failed(task, failure, will_retry)

    def _failed(self, task: Claimed, failure: Failure, will_retry: bool) -> None:
        level = logging.WARNING if will_retry else logging.ERROR
        if not logger.isEnabledFor(level):
            return
        name, fields = _named(task, task.id)
        message = self._shown(failure.error_message, task)
        text = f"{name} failed with {failure.error_code or 'an error'}"
        if message:
            text += f": {message}"
        text += f" (attempt {fields['attempt']}"
        fields |= {"error_code": failure.error_code, "error_message": message}
        if will_retry:
            delay = failure.delay_seconds or 0.0
            _log(level, f"{text}; next try in {span(delay)})", fields | {"retry_in_seconds": round(delay, 3)})
        else:
            _log(level, f"{text})", fields, self._shown(_traceback_of(failure.result), task))

    def expired(self, tasks: Iterable[Expired]) -> None:
        """Log tasks that were not started before their expiry."""
        for task in tasks:
            fields = {"task_id": task.id, "task_name": task.task_name, "queue": task.queue_name}
            _log(
                logging.INFO, f"Task {task.task_name} ({task.id}) expired: it was not started in time", fields
            )

    def _shown(self, text: str | None, task: Claimed) -> str | None:
        """Return a text without redacted values and passwords."""
        if not text:
            return text
        if self._redactor:
            known = self._tasks.get(task.task_name)
            names = [] if known is None else list(known.definition.signature.parameters)
            text = self._redactor.scrub(text, task.args, task.kwargs, task.inputs, parameters=names) or ""
        # Line by line: what looks like the start of a URL must not hide all that follows.
        return "\n".join(
            mask_passwords(line) if ":" in line or "=" in line else line for line in text.split("\n")
        )


def _named(task: Claimed | None, task_id: str) -> tuple[str, dict[str, Any]]:
    """Return a task's name and id as text, and the fields of its log record."""
    if task is None:
        return f"Task {task_id}", {"task_id": task_id}
    fields = {
        "task_id": task.id,
        "task_name": task.task_name,
        "attempt": task.earlier_attempts + task.retry_count + 1,
        "queue": task.queue_name,
    }
    return f"Task {task.task_name} ({task.id})", fields


def _traceback_of(result: str) -> str | None:
    """Return the traceback in a stored result. Results that cannot be read have none."""
    try:
        stored = msgspec.json.decode(result, type=_Result)
    except (msgspec.MsgspecError, RecursionError):
        return None
    if stored.err is None or stored.err.exception is None or stored.err.exception.traceback is None:
        return None
    return stored.err.exception.traceback.rstrip()


def _log(level: int, message: str, fields: Mapping[str, Any], traceback: str | None = None) -> None:
    """Log one record with a traceback that is text, because the exception was raised in another process."""
    if not logger.isEnabledFor(level):
        return
    record = logger.makeRecord(logger.name, level, __file__, 0, message, (), None, extra=fields)
    record.exc_text = traceback
    logger.handle(record)
