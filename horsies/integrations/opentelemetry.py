"""OpenTelemetry: traces from the send of a task to its runs, and metrics of queues and workers."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from functools import partial
from typing import Any

from opentelemetry import metrics, propagate, trace
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode

from horsies.client import Broker
from horsies.db.connection import TRANSIENT
from horsies.db.queries import inspect, statistics
from horsies.db.queries.inspect import Queue, Worker
from horsies.db.queries.statistics import ENDS, TaskTotals
from horsies.event_loop import run_sync
from horsies.middleware import FLUSH_SECONDS, Middleware, RunContext, SendContext, header_dict
from horsies.registry import TaskRegistry

SYSTEM = "horsies"
_HEADER = "otel"


def instrument(app: TaskRegistry, tracer_provider: trace.TracerProvider | None = None) -> None:
    """Trace every send and every run of this app's tasks. Call it once, where the app is created.

    Without a provider, each span uses the global one of that moment. A provider with its own thread must be set up in each
    child process: `app.on_child_process_start`.

    >>> app = Horsies()
    >>> instrument(app)
    """
    if not any(isinstance(each, _Tracing) for each in app.middleware):
        app.middleware.append(_Tracing(tracer_provider))


class _Tracing(Middleware):
    def __init__(self, provider: trace.TracerProvider | None) -> None:
        self._provider = provider

    def _tracer(self) -> trace.Tracer:
        return trace.get_tracer("horsies", tracer_provider=self._provider)

    @contextmanager
    def sending(self, sent: SendContext) -> Generator[None]:
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
    def running(self, task: RunContext) -> Generator[None]:
        attributes = _attributes("process", task.queue, task.task_name)
        attributes |= {"messaging.message.id": task.task_id, "horsies.task.attempt": task.attempt}
        sender = propagate.extract(header_dict(task.headers, _HEADER))
        sent_in = trace.get_current_span(sender).get_span_context()
        # All attempts are children of the send span. A retry also links to it, with the number of the attempt.
        is_retry = task.attempt > 1 and sent_in.is_valid
        links = [Link(sent_in, {"horsies.task.attempt": task.attempt})] if is_retry else []
        span = self._tracer().start_span(
            f"process {task.queue}",
            context=sender,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=links,
        )
        with trace.use_span(span, end_on_exit=True):
            yield
            if task.error is not None:
                span.record_exception(task.error)
            if task.code is not None:
                _fail(span, task.code, task.message)

    def leaving(self) -> None:
        provider = self._provider or trace.get_tracer_provider()
        # Only the SDK's provider has this method; the API's own provider keeps nothing to flush.
        if flush := getattr(provider, "force_flush", None):
            flush(int(FLUSH_SECONDS * 1000))


def _attributes(operation: str, queue: str, task_name: str) -> dict[str, Any]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": queue,
        "horsies.task.name": task_name,
    }


def _fail(span: Span, code: str, message: str | None) -> None:
    span.set_attribute("error.type", code)
    span.set_status(Status(StatusCode.ERROR, code if message is None else f"{code}: {message}"))


logger = logging.getLogger("horsies.metrics")

# All instruments are read one after another and should report the same snapshot, which is kept for so long.
KEPT_SECONDS = 1.0


def measure(app: TaskRegistry, meter_provider: metrics.MeterProvider | None = None) -> None:
    """Report the state of queues and workers, and the number of tasks that have ended.

    The numbers are those of the whole cluster, so report them from one process: that of the dashboard, or one of its own.

    >>> app = Horsies()
    >>> measure(app)
    """
    meter = metrics.get_meter("horsies", meter_provider=meter_provider)
    reader = _Reader(app.get_broker())
    meter.create_observable_counter(
        "horsies.tasks", [reader.tasks], "{task}", "Tasks that have ended, counted once a minute"
    )
    for name, unit, about, value in _QUEUE_GAUGES:
        meter.create_observable_gauge(f"horsies.queue.{name}", [partial(reader.queues, value)], unit, about)
    meter.create_observable_gauge("horsies.workers", [reader.workers], "{worker}", "Workers by state")


_QUEUE_GAUGES: tuple[tuple[str, str, str, Callable[[Queue], float]], ...] = (
    ("pending", "{task}", "Tasks that are due and wait", lambda queue: queue.waiting),
    ("running", "{task}", "Tasks that workers hold", lambda queue: queue.claimed + queue.running),
    (
        "oldest",
        "s",
        "How long the oldest waiting task has been due",
        lambda queue: queue.oldest_seconds or 0.0,
    ),
)


_Figures = tuple[list[TaskTotals], list[Queue], list[Worker]]


class _Reader:
    """Reads the figures of all instruments at once. While the database cannot be reached, nothing is reported."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._read_at = float("-inf")
        self._figures: _Figures = ([], [], [])

    def tasks(self, _options: CallbackOptions) -> Iterable[Observation]:
        totals, _, _ = self._latest()
        for total in totals:
            for end in ENDS:
                labels = {"queue": total.queue_name, "task": total.task_name, "status": end}
                yield Observation(getattr(total, end), labels)

    def queues(self, value: Callable[[Queue], float], _options: CallbackOptions) -> Iterable[Observation]:
        _, queues, _ = self._latest()
        return [Observation(value(queue), {"queue": queue.name}) for queue in queues]

    def workers(self, _options: CallbackOptions) -> Iterable[Observation]:
        _, _, workers = self._latest()
        states = Counter(worker.state for worker in workers)
        return [Observation(count, {"state": state}) for state, count in states.items()]

    def _latest(self) -> _Figures:
        if time.monotonic() - self._read_at > KEPT_SECONDS:
            try:
                self._figures = run_sync(self._read())
            except TRANSIENT as error:
                logger.warning("metrics cannot be read from the database (%s)", type(error).__name__)
                self._figures = ([], [], [])
            self._read_at = time.monotonic()
        return self._figures

    async def _read(self) -> _Figures:
        async with self._broker.connection() as connection:
            totals = await statistics.totals(connection)
            return totals, await inspect.queues(connection), await inspect.workers(connection)
