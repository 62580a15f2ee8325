"""structlog: add the running task to events, and the context variables that were bound where the task was sent.

>>> structlog.configure(processors=[add_task_context, structlog.processors.JSONRenderer()])
>>> instrument(app)
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from structlog.contextvars import bound_contextvars, get_contextvars
from structlog.typing import EventDict, WrappedLogger

from horsies.logs import task_context
from horsies.middleware import Middleware, RunContext, SendContext, header_dict
from horsies.registry import TaskRegistry

_HEADER = "structlog"


def add_task_context(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Add the running task and the values of `log_context` to an event; the event's own values win. A structlog processor.

    >>> structlog.configure(processors=[add_task_context, structlog.dev.ConsoleRenderer()])
    """
    return {**task_context(), **event}


def instrument(app: TaskRegistry) -> None:
    """Send the values bound with `structlog.contextvars` along with tasks, and bind them while the tasks run.

    >>> structlog.contextvars.bind_contextvars(request_id="7f3a")
    >>> add.send(2, 3)
    """
    if not any(isinstance(each, _ContextVars) for each in app.middleware):
        app.middleware.append(_ContextVars())


class _ContextVars(Middleware):
    @contextmanager
    def sending(self, sent: SendContext) -> Generator[None]:
        if bound := get_contextvars():
            sent.headers[_HEADER] = bound
        yield

    @contextmanager
    def running(self, task: RunContext) -> Generator[None]:
        with bound_contextvars(**header_dict(task.headers, _HEADER)):
            yield
