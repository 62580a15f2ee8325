"""What logs, traces and error reports know of a task, seen from outside: one worker, whose children write it all to files."""

from __future__ import annotations

import json
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
import structlog
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from horsies import log_context
from horsies.integrations import opentelemetry
from horsies.integrations import structlog as for_structlog
from tests.support.waiting import eventually
from tests.support.workers import Workplace

APP = """
import logging

import sentry_sdk
import structlog
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from sentry_sdk.transport import Transport

from horsies import logs, middleware
from horsies.integrations import opentelemetry, sentry
from horsies.integrations import structlog as for_structlog

FOLDER = Path(__file__).parent
app = Horsies(AppConfig(log_format="json"))
opentelemetry.instrument(app)
sentry.instrument(app)
for_structlog.instrument(app)

text = logging.getLogger("text")
text.propagate = False
text.addHandler(logging.FileHandler(FOLDER / "text.log", delay=True))
text.handlers[0].setFormatter(logging.Formatter("[%(task_id)s|%(task_name)s|%(attempt)s] %(message)s"))


def append(name, record):
    with (FOLDER / name).open("a") as file:
        file.write(json.dumps(record) + "\\n")


class Spans(SpanExporter):
    def export(self, spans):
        for span in spans:
            append("spans.jsonl", json.loads(span.to_json()))
        return SpanExportResult.SUCCESS


class Events(Transport):
    # Keeps what it is given until it is flushed, as one that sends it in the background may.
    def __init__(self, options=None):
        super().__init__(options)
        self.kept = []

    def capture_envelope(self, envelope):
        self.kept.append(envelope.get_event())

    def flush(self, timeout, callback=None):
        for event in self.kept:
            append("events.jsonl", event)
        self.kept = []


@app.on_child_process_start
def set_up():
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, for_structlog.add_task_context, structlog.processors.JSONRenderer()],
        logger_factory=structlog.WriteLoggerFactory(file=(FOLDER / "structlog.log").open("a", buffering=1)),
    )
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Spans(), schedule_delay_millis=3_600_000))
    trace.set_tracer_provider(provider)
    text.handlers[0].addFilter(logs.TaskContext())
    text.warning("at rest")
    sentry_sdk.init(dsn="http://key@localhost/1", transport=Events, default_integrations=False)


@app.task("speak", retry_policy=RetryPolicy.fixed([1], auto_retry_for=["UNHANDLED_EXCEPTION"]))
def speak(secret: str, fail: bool) -> TaskResult[str, TaskError]:
    logging.getLogger("mine").warning("hello", extra={"queue": "my own"})
    text.warning("hello")
    structlog.get_logger().info("hello")
    if fail:
        raise ValueError("no licence")
    return TaskResult(ok=secret)


@app.task("refuse")
async def refuse(reason: str) -> TaskResult[None, TaskError]:
    return TaskResult(err=TaskError(error_code="REFUSED", message=reason))


@app.task("wait")
async def wait() -> TaskResult[None, TaskError]:
    (FOLDER / "waiting").touch()
    await asyncio.sleep(60)
    return TaskResult(ok=None)


@app.task("node")
def node() -> TaskResult[int, TaskError]:
    return TaskResult(ok=1)


class Broken(middleware.Middleware):
    def running(self, task):
        raise RuntimeError("a middleware's own trouble")


app.middleware.append(Broken())
"""


class Story:
    """What was sent, and what everybody wrote down about it."""

    def __init__(self, place: Workplace, app: ModuleType) -> None:
        self.spans = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.spans))
        app.app.middleware.clear()
        opentelemetry.instrument(app.app, provider)
        for_structlog.instrument(app.app)
        tracer = trace.get_tracer("tests", tracer_provider=provider)
        worker = place.start("--processes=1", "--async-processes=1", "--max-tasks-per-child=2")
        with (
            tracer.start_as_current_span("request"),
            log_context(request_id="7f3a"),
            structlog.contextvars.bound_contextvars(customer=7),
        ):
            self.said = app.speak.send("s3cret", False).unwrap()
            self.failed = app.speak.send("s3cret", True).unwrap()
            self.refused = app.refuse.send("closed").unwrap()
            self.stopped = app.wait.send().unwrap()
            flow = app.app.workflow("flow", [app.node.node()()], definition_key="flow").start().unwrap()
        self.results = [each.get(timeout_ms=30_000) for each in (self.said, self.failed, self.refused)]
        eventually((place.folder / "waiting").exists)
        assert self.stopped.cancel().unwrap()
        assert self.stopped.get(timeout_ms=30_000).err_value.error_code == "TASK_CANCELLED"
        assert flow.get(timeout_ms=30_000).is_ok()
        assert worker.stop() == 0, worker.log
        self.worker = worker
        self.folder = place.folder

    def written(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]

    def spans_of(self, task_id: str) -> list[dict[str, Any]]:
        found = [
            span
            for span in self.written("spans.jsonl")
            if span["attributes"]["messaging.message.id"] == task_id
        ]
        return sorted(found, key=lambda span: span["attributes"]["horsies.task.attempt"])

    def events_of(self, task_id: str) -> list[dict[str, Any]]:
        return [
            event for event in self.written("events.jsonl") if event["tags"]["horsies.task_id"] == task_id
        ]


@pytest.fixture(scope="module")
def story(shared_workplace: Workplace) -> Story:
    shared_workplace.write(APP)
    return Story(shared_workplace, shared_workplace.load())


def test_what_is_logged_says_which_task_runs_and_for_whom(story: Story) -> None:
    said = story.said.task_id
    lines = [json.loads(line) for line in story.worker.log.splitlines() if line.startswith("{")]
    hello = next(line for line in lines if line["message"] == "hello" and line["task_id"] == said)
    assert (hello["task_name"], hello["attempt"], hello["request_id"]) == ("speak", 1, "7f3a")
    assert len(hello["worker_id"]) == 36
    assert hello["queue"] == "my own"  # what the call itself says wins
    outside = next(line for line in lines if line["message"].startswith("Concurrency config"))
    assert not {"task_id", "attempt", "request_id"} & set(outside)

    text = (story.folder / "text.log").read_text().splitlines()
    assert {f"[{said}|speak|1] hello", f"[{story.failed.task_id}|speak|2] hello", "[||] at rest"} <= set(text)

    event = next(each for each in story.written("structlog.log") if each["task_id"] == said)
    assert (event["customer"], event["request_id"], event["queue"]) == (7, "7f3a", "default")


def test_a_trace_leads_from_the_request_through_the_send_to_every_attempt(story: Story) -> None:
    *sends, request = story.spans.get_finished_spans()
    for task_id, send in zip([story.said.task_id, story.failed.task_id], sends, strict=False):
        assert send.attributes["messaging.message.id"] == task_id
        assert send.parent.span_id == request.context.span_id
        assert (send.kind.name, send.name) == ("PRODUCER", "send default")
        for run in story.spans_of(task_id):
            assert run["context"]["trace_id"] == f"0x{request.context.trace_id:032x}"
            assert run["parent_id"] == f"0x{send.context.span_id:016x}"
            assert (run["kind"], run["name"]) == ("SpanKind.CONSUMER", "process default")
            assert run["attributes"]["messaging.system"] == "horsies"

    (said,) = story.spans_of(story.said.task_id)
    assert said["status"]["status_code"] == "UNSET"
    first, second = story.spans_of(story.failed.task_id)
    assert first["links"] == []
    assert second["links"][0]["context"]["span_id"] == second["parent_id"]
    for run in (first, second):
        assert run["status"]["status_code"] == "ERROR"
        assert run["attributes"]["error.type"] == "UNHANDLED_EXCEPTION"
        assert run["events"][0]["attributes"]["exception.type"] == "ValueError"

    node = next(
        span for span in story.written("spans.jsonl") if span["attributes"]["horsies.task.name"] == "node"
    )
    assert sends[-1].name == "send workflow flow"
    assert node["parent_id"] == f"0x{sends[-1].context.span_id:016x}"
    assert "s3cret" not in json.dumps(story.written("spans.jsonl"))


def test_a_failed_attempt_is_reported_to_sentry_without_its_arguments(story: Story) -> None:
    first, second = story.events_of(story.failed.task_id)
    (refused,) = story.events_of(story.refused.task_id)

    assert [event["tags"]["horsies.attempt"] for event in (first, second)] == [1, 2]
    assert first["exception"]["values"][-1]["type"] == "ValueError"
    assert first["contexts"]["horsies"]["task_name"] == first["transaction"] == "speak"
    assert refused["message"] == "refuse failed with REFUSED"
    assert "s3cret" not in json.dumps([first, second])
    assert story.events_of(story.said.task_id) == story.events_of(story.stopped.task_id) == []


def test_an_error_of_middleware_leaves_the_task_alone(story: Story) -> None:
    said, failed, refused = story.results

    assert said.ok_value == "s3cret"
    assert (failed.err_value.error_code, refused.err_value.error_code) == ("UNHANDLED_EXCEPTION", "REFUSED")
    assert "a middleware's own trouble" in story.worker.log


def test_nobody_pays_for_what_they_do_not_use() -> None:
    others = {
        "opentelemetry",
        "sentry_sdk",
        "structlog",
        "fastapi",
        "starlette",
        "flask",
        "django",
        "textual",
    }
    script = "import sys, horsies.cli, horsies.executor.child; print(*{name.partition('.')[0] for name in sys.modules})"

    imported = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout

    assert not others & set(imported.split())
