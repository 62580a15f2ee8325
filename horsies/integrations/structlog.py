"""structlog: events say which task they belong to, and what was bound where the task was sent.

>>> structlog.configure(processors=[add_task_context, structlog.processors.JSONRenderer()])
>>> instrument(app)
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from structlog.contextvars import bound_contextvars, get_contextvars
from structlog.typing import EventDict, WrappedLogger

from horsies.context import Running, Sending, Watcher, part
from horsies.logs import task_context
from horsies.registry import TaskRegistry

_HEADER = "structlog"


def add_task_context(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """A processor: adds the task that runs, and what `log_context` says; what the event has itself stays.

    >>> structlog.configure(processors=[add_task_context, structlog.dev.ConsoleRenderer()])
    """
    return {**task_context(), **event}


def instrument(app: TaskRegistry) -> None:
    """Carry what is bound with `structlog.contextvars` to the tasks that are sent, and bind it while they run.

    >>> structlog.contextvars.bind_contextvars(request_id="7f3a")
    >>> add.send(2, 3)
    """
    if not any(isinstance(watcher, _Carrier) for watcher in app.watchers):
        app.watchers.append(_Carrier())


class _Carrier(Watcher):
    @contextmanager
    def sending(self, sent: Sending) -> Generator[None]:
        if bound := get_contextvars():
            sent.headers[_HEADER] = bound
        yield

    @contextmanager
    def running(self, task: Running) -> Generator[None]:
        with bound_contextvars(**part(task.headers, _HEADER)):
            yield
