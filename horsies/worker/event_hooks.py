"""Call the event hooks of the app, and log events, for the tasks of this worker.

Events are committed changes only. Hooks run in a background thread, so that they do not delay the worker; events that come
faster than the hooks return are dropped and counted. Without hooks and event log, nothing is collected.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import product
from typing import NamedTuple

import msgspec

from horsies.db.queries.tasks import Claimed, Completed, Expired, Failure
from horsies.events import WORKER_KINDS, Event, Hook, kind_of_failure
from horsies.keys import key_of_lane
from horsies.logs import log_lines
from horsies.redaction import Redactor
from horsies.registry import TaskRegistry
from horsies.units import counted

logger = logging.getLogger("horsies.worker")
event_logger = logging.getLogger("horsies.events")

_encode = msgspec.json.Encoder().encode

# The maximum number of events that wait for their hooks.
MAX_QUEUED = 10_000
# The thread handles events in bulk, so that it interrupts a busy worker a few times a second and not for every batch.
GATHER_SECONDS = 0.05
# The time that hooks get for the remaining events when the worker stops.
CLOSE_SECONDS = 2.0
WARN_SECONDS = 10.0


class _Batch(NamedTuple):
    """Tasks to which the same thing has happened. The thread creates an event for each."""

    at: float
    kind: str
    tasks: Sequence[Claimed | Expired]
    error_code: str | None = None
    message: str | None = None
    will_retry: bool = False


class EventHooks:
    """Queues events and calls the hooks from a background thread.

    `enabled` is True if there are hooks or an event log; `dropped` counts the events that were dropped.
    """

    def __init__(self, app: TaskRegistry) -> None:
        hooks = {} if app.config.events == "off" else app.event_hooks
        self._redactor = Redactor(app.config.redact)
        self._hooks: dict[str, list[Hook]] = {
            kind: [*hooks.get(kind, ()), *hooks.get("*", ())] for kind in WORKER_KINDS
        }
        self._log: Callable[[Sequence[Event]], None] | None = None
        if app.config.events == "log":
            self._log = _log_json if app.config.log_format == "json" else _log_text
        self.enabled = self._log is not None or any(self._hooks.values())
        self.dropped = 0
        self._worker_id: Callable[[], str] = str
        self._ended: dict[str, Claimed] = {}  # tasks that have left their child and are not settled yet
        self._cancelling: set[str] = set()  # tasks for which cancellation was requested
        self._queue: deque[_Batch] = deque()
        # The number of events that were queued and that were handled. Each counter has a single writer.
        self._queued = self._handled = 0
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, worker_id: Callable[[], str]) -> None:
        """Start the thread that calls the hooks."""
        self._worker_id = worker_id
        if self.enabled:
            self._thread = threading.Thread(target=self._run, name="horsies-events", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Handle the remaining events, if the hooks are quick enough."""
        self._closing.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)
            if left := self._queued - self._handled:
                logger.warning("%s dropped at shutdown: the event hooks are too slow", counted(left, "event"))

    # Events of the worker

    def started(self, tasks: Sequence[Claimed]) -> None:
        """Add events for tasks that were started."""
        self._add(_Batch(time.time(), "processing", tasks))

    def cancel_requested(self, ids: Iterable[str]) -> None:
        """Note all tasks that run here and for which cancellation was requested."""
        self._cancelling = {*ids, *(task_id for task_id in self._ended if task_id in self._cancelling)}

    def left_child(self, task: Claimed) -> None:
        """Note a task that has left its child. Its event is added when its end is committed."""
        if self.enabled:
            self._ended[task.id] = task

    def completed(self, outcomes: Iterable[Completed], ended: int) -> None:
        """Add events for tasks that completed; `ended` is the number of rows that were updated."""
        if not self.enabled:
            return
        tasks = [task for outcome in outcomes if (task := self._ended.pop(outcome.id, None))]
        if ended < len(tasks):
            self.dropped += len(tasks)  # some belong to another worker by now, and it is not known which
        else:
            now, cancelled = time.time(), [task for task in tasks if task.id in self._cancelling]
            self._add(_Batch(now, "completed", [task for task in tasks if task.id not in self._cancelling]))
            self._add(_Batch(now, "cancelled", cancelled, "TASK_CANCELLED"))

    def failed(self, failures: Iterable[Failure], ours: Mapping[str, bool]) -> None:
        """Add events for attempts that failed. `ours` has the tasks that were updated, with True for a retry."""
        now = time.time()
        for failure in failures:
            task, will_retry = self._ended.pop(failure.id, None), ours.get(failure.id)
            if task is None or will_retry is None or failure.snoozed:
                continue  # a snoozed task has not failed
            code = "TASK_CANCELLED" if failure.id in self._cancelling else failure.error_code
            kind = kind_of_failure(code, will_retry)
            self._add(_Batch(now, kind, [task], code, failure.error_message, will_retry))

    def rescued(
        self, tasks: Iterable[Claimed], failures: Iterable[Failure], ours: Mapping[str, bool]
    ) -> None:
        """Add events for tasks of a dead worker that were rescued."""
        for task in tasks:
            self.left_child(task)
        self.failed(failures, ours)

    def expired(self, tasks: Sequence[Expired]) -> None:
        """Add events for tasks that expired."""
        self._add(_Batch(time.time(), "expired", tasks, "TASK_EXPIRED"))

    def _add(self, batch: _Batch) -> None:
        if not batch.tasks or not (self._log or self._hooks[batch.kind]):
            return
        if self._queued - self._handled + len(batch.tasks) > MAX_QUEUED:
            self.dropped += len(batch.tasks)
            return
        self._queued += len(batch.tasks)
        self._queue.append(batch)
        self._wake.set()

    # The thread

    def _run(self) -> None:
        warned, warned_at = 0, 0.0
        while True:
            self._wake.wait(WARN_SECONDS)
            self._closing.wait(GATHER_SECONDS)
            self._wake.clear()
            while self._queue:
                self._handle(self._queue.popleft())
            if self.dropped > warned and time.monotonic() - warned_at > WARN_SECONDS:
                warned, warned_at = self.dropped, time.monotonic()
                logger.warning("%s dropped so far: the event hooks are too slow", counted(warned, "event"))
            if self._closing.is_set() and not self._queue:
                return

    def _handle(self, batch: _Batch) -> None:
        """Call the hooks and write the log for each task of a batch."""
        at, worker_id = datetime.fromtimestamp(batch.at, UTC), self._worker_id()
        events = [
            Event(
                kind=batch.kind,
                at=at,
                task_id=task.id,
                task_name=task.task_name,
                queue_name=task.queue_name,
                attempt=task.earlier_attempts + task.retry_count + 1 if isinstance(task, Claimed) else None,
                error_code=batch.error_code,
                message=self._redacted(batch.message, task),
                worker_id=worker_id,
                will_retry=batch.will_retry,
                workflow_id=task.workflow_id,
                key=key_of_lane(task.rate_key),
            )
            for task in batch.tasks
        ]
        for hook, event in product(self._hooks[batch.kind], events):
            try:
                hook(event)
            except Exception:  # the hook is called for the next event, whatever it raised for this one
                logger.exception("An event hook for %r failed on task %s", event.kind, event.task_id)
        if self._log is not None:
            try:
                self._log(events)
            except Exception:  # a log handler of the user may fail in any way
                logger.exception("Could not log %s", counted(len(events), "event"))
        self._handled += len(batch.tasks)

    def _redacted(self, message: str | None, task: Claimed | Expired) -> str | None:
        """Return the message of an event without the values of arguments that the app redacts."""
        if message is None or not self._redactor or not isinstance(task, Claimed):
            return message
        return self._redactor.scrub(message, task.kwargs, task.args)


def _log_json(events: Sequence[Event]) -> None:
    """Log each event as one line; the JSON formatter adds its fields to the object."""
    for event in events:
        facts = event.facts()
        if "message" in facts:  # the name of the line itself
            facts["error_message"] = facts.pop("message")
        event_logger.info("%s %s", event.kind, event.task_name, extra=facts)


def _log_text(events: Sequence[Event]) -> None:
    log_lines(event_logger, [_encode(event).decode() for event in events])
