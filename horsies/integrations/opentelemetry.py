"""OpenTelemetry: one trace from whoever sends a task to the code that runs it, wherever that is.

The context of the send travels with the task, in the formats of the global propagators (W3C `traceparent` unless you set
others). Provider and exporter are yours. Attributes are those of the semantic conventions for messaging; arguments and
results are never among them.

>>> instrument(app)
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode

from horsies.context import FAREWELL_SECONDS, Running, Sending, Watcher, part
from horsies.registry import TaskRegistry

SYSTEM = "horsies"
_HEADER = "otel"


def instrument(app: TaskRegistry, tracer_provider: trace.TracerProvider | None = None) -> None:
    """Trace every send and every run of this app's tasks; call it where the app is made, once.

    Without a provider, the global one is used, as it is set when a span begins. A provider with a thread of its own must be set
    up in each child process: `app.on_child_process_start`.

    >>> app = Horsies()
    >>> instrument(app)
    """
    if not any(isinstance(watcher, _Tracing) for watcher in app.watchers):
        app.watchers.append(_Tracing(tracer_provider))


class _Tracing(Watcher):
    def __init__(self, provider: trace.TracerProvider | None) -> None:
        self._provider = provider

    def _tracer(self) -> trace.Tracer:
        return trace.get_tracer("horsies", tracer_provider=self._provider)

    @contextmanager
    def sending(self, sent: Sending) -> Generator[None]:
        attributes = _attributes("send", sent.queue, sent.task_name)
        if len(sent.task_ids) == 1:
            attributes["messaging.message.id"] = sent.task_ids[0]
        else:
            attributes["messaging.batch.message_count"] = len(sent.task_ids)
        name = f"send {sent.queue}"
        with self._tracer().start_as_current_span(
            name, kind=SpanKind.PRODUCER, attributes=attributes
        ) as span:
            carrier: dict[str, str] = {}
            propagate.inject(carrier)
            if carrier:
                sent.headers[_HEADER] = carrier
            yield
            if sent.failure is not None:
                _fail(span, sent.failure, None)

    @contextmanager
    def running(self, task: Running) -> Generator[None]:
        attributes = _attributes("process", task.queue, task.task_name)
        attributes |= {"messaging.message.id": task.task_id, "horsies.task.attempt": task.attempt}
        sender = propagate.extract(part(task.headers, _HEADER))
        span = self._tracer().start_span(
            f"process {task.queue}",
            context=sender,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=_link_of_retry(task, trace.get_current_span(sender)),
        )
        with trace.use_span(span, end_on_exit=True):
            yield
            if task.error is not None:
                span.record_exception(task.error)
            if task.code is not None:
                _fail(span, task.code, task.message)

    def leaving(self) -> None:
        provider = self._provider or trace.get_tracer_provider()
        # Only the SDK has this; the API alone gathers nothing.
        if flush := getattr(provider, "force_flush", None):
            flush(int(FAREWELL_SECONDS * 1000))


def _attributes(operation: str, queue: str, task_name: str) -> dict[str, Any]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": queue,
        "horsies.task.name": task_name,
    }


def _link_of_retry(task: Running, sender: Span) -> list[Link]:
    """All attempts are under the send; a later one says so by a link, with which of them it is."""
    if task.attempt == 1 or not sender.get_span_context().is_valid:
        return []
    return [Link(sender.get_span_context(), {"horsies.task.attempt": task.attempt})]


def _fail(span: Span, code: str, message: str | None) -> None:
    span.set_attribute("error.type", code)
    span.set_status(Status(StatusCode.ERROR, code if message is None else f"{code}: {message}"))
