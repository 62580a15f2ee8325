"""Tell what this worker does to tasks: to the hooks of the app, and to the log.

Only what has been committed is told. Hooks run in a thread of their own, so that none of them holds up the worker;
what they do not keep up with is dropped and counted. Where nobody listens, nothing is gathered.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from horsies.events import WORKER_KINDS, Event, Hook, kind_of_failure
from horsies.logs import log_lines
from horsies.registry import TaskRegistry
from horsies.storage.tasks import Claimed, Completed, Expired, Failure

logger = logging.getLogger("horsies.worker")
event_logger = logging.getLogger("horsies.events")

_encode = msgspec.json.Encoder().encode

# So many events wait for their hooks at most.
MOST_WAITING = 10_000
# Events are told in bulk, so that a busy worker is interrupted a few times a second and not by every batch.
GATHER_SECONDS = 0.05
# How long hooks may take for what is left when the worker stops.
LAST_SECONDS = 2.0
COMPLAIN_SECONDS = 10.0


class _Told(NamedTuple):
    """What is to be told: the events are made of it in the thread."""

    at: float
    kind: str
    tasks: Sequence[Claimed | Expired]
    error_code: str | None = None
    message: str | None = None
    will_retry: bool = False


class Herald:
    """Gathers what happens, and tells it; `heard` is whether anybody listens, `dropped` how much was not told."""

    def __init__(self, app: TaskRegistry) -> None:
        hooks = {} if app.config.events == "off" else app.event_hooks
        self._hooks: dict[str, list[Hook]] = {
            kind: [*hooks.get(kind, ()), *hooks.get("*", ())] for kind in WORKER_KINDS
        }
        self._log: Callable[[Sequence[Event]], None] | None = None
        if app.config.events == "log":
            self._log = _log_json if app.config.log_format == "json" else _log_text
        self.heard = self._log is not None or any(self._hooks.values())
        self.dropped = 0
        self._worker_id: Callable[[], str] = str
        self._over: dict[str, Claimed] = {}
        self._asked: set[str] = set()  # to stop: however these end, they are cancelled
        self._waiting: deque[_Told] = deque()
        self._taken = self._told = (
            0  # how many events came in, and how many of them are told; each has one writer
        )
        self._news, self._closing = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, worker_id: Callable[[], str]) -> None:
        """From now on the hooks are called."""
        self._worker_id = worker_id
        if self.heard:
            self._thread = threading.Thread(target=self._run, name="horsies-events", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Tell what is left, as far as the hooks are quick about it."""
        self._closing.set()
        self._news.set()
        if self._thread is not None:
            self._thread.join(LAST_SECONDS)
            if left := self._taken - self._told:
                logger.warning("%d events were not told: the hooks took too long", left)

    # What happens

    def started(self, tasks: Sequence[Claimed]) -> None:
        self._tell(_Told(time.time(), "processing", tasks))

    def asked(self, ids: Iterable[str]) -> None:
        """These are all the tasks that run here and are to stop."""
        self._asked = {*ids, *(task_id for task_id in self._over if task_id in self._asked)}

    def over(self, task: Claimed) -> None:
        """A task has left its child; what has come of it is told when that is written."""
        self._over[task.id] = task

    def completed(self, outcomes: Iterable[Completed], ended: int) -> None:
        tasks = [task for outcome in outcomes if (task := self._over.pop(outcome.id, None))]
        if ended < len(tasks):
            self.dropped += len(tasks)  # some were not ours any more, and nobody knows which
        else:
            now, stopped = time.time(), [task for task in tasks if task.id in self._asked]
            self._tell(_Told(now, "completed", [task for task in tasks if task.id not in self._asked]))
            self._tell(_Told(now, "cancelled", stopped, "TASK_CANCELLED"))

    def failed(self, failures: Iterable[Failure], ours: Mapping[str, bool]) -> None:
        """Attempts have failed; `ours` has those that still were, and whether they are retried."""
        now = time.time()
        for failure in failures:
            task, will_retry = self._over.pop(failure.id, None), ours.get(failure.id)
            if task is None or will_retry is None or failure.snoozed:
                continue  # what snoozes has not failed
            code = "TASK_CANCELLED" if failure.id in self._asked else failure.error_code
            kind = kind_of_failure(code, will_retry)
            self._tell(_Told(now, kind, [task], code, failure.error_message, will_retry))

    def rescued(
        self, tasks: Iterable[Claimed], failures: Iterable[Failure], ours: Mapping[str, bool]
    ) -> None:
        """Tasks of a worker that died have failed."""
        self._over |= {task.id: task for task in tasks}
        self.failed(failures, ours)

    def expired(self, tasks: Sequence[Expired]) -> None:
        self._tell(_Told(time.time(), "expired", tasks, "TASK_EXPIRED"))

    def _tell(self, told: _Told) -> None:
        if not told.tasks or not (self._log or self._hooks[told.kind]):
            return
        if self._taken - self._told + len(told.tasks) > MOST_WAITING:
            self.dropped += len(told.tasks)
            return
        self._taken += len(told.tasks)
        self._waiting.append(told)
        self._news.set()

    # The thread

    def _run(self) -> None:
        complained, complained_at = 0, 0.0
        while True:
            self._news.wait(COMPLAIN_SECONDS)
            self._closing.wait(GATHER_SECONDS)
            self._news.clear()
            while self._waiting:
                self._call(self._waiting.popleft())
            if self.dropped > complained and time.monotonic() - complained_at > COMPLAIN_SECONDS:
                complained, complained_at = self.dropped, time.monotonic()
                logger.warning("%d events were dropped so far: the hooks do not keep up", complained)
            if self._closing.is_set() and not self._waiting:
                return

    def _call(self, told: _Told) -> None:
        at, worker_id = datetime.fromtimestamp(told.at, UTC), self._worker_id()
        events = [
            Event(
                kind=told.kind,
                at=at,
                task_id=task.id,
                task_name=task.task_name,
                queue_name=task.queue_name,
                attempt=task.earlier_attempts + task.retry_count + 1 if isinstance(task, Claimed) else None,
                error_code=told.error_code,
                message=told.message,
                worker_id=worker_id,
                will_retry=told.will_retry,
                workflow_id=task.workflow_id,
            )
            for task in told.tasks
        ]
        for hook in self._hooks[told.kind]:
            _tell_all(hook, events)
        if self._log is not None:
            try:
                self._log(events)
            except Exception:  # a handler of the user's may fail in any way
                logger.exception("%d events could not be logged", len(events))
        self._told += len(told.tasks)


def _tell_all(hook: Hook, events: Sequence[Event]) -> None:
    for event in events:
        try:
            hook(event)
        except Exception:  # whatever a hook of the user does, it is called for the next one
            logger.exception("a hook for %r has failed on task %s", event.kind, event.task_id)


def _log_json(events: Sequence[Event]) -> None:
    """The formatter makes one object of the line and of what it is about."""
    for event in events:
        facts = event.facts()
        if "message" in facts:  # which is the line's own
            facts["error_message"] = facts.pop("message")
        event_logger.info("%s %s", event.kind, event.task_name, extra=facts)


def _log_text(events: Sequence[Event]) -> None:
    log_lines(event_logger, [_encode(event).decode() for event in events])
