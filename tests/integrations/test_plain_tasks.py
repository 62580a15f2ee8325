"""Plain functions as tasks work in every integration, as those that return a TaskResult do."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
import sentry_sdk
from fastapi import FastAPI
from fastapi.testclient import TestClient
from flask import Flask, current_app
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sentry_sdk.transport import Transport
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from horsies import AppConfig, Horsies, TaskFailure
from horsies.integrations import opentelemetry, sentry
from horsies.integrations.fastapi import Queue, lifespan
from horsies.integrations.flask import FlaskHorsies, current_queue
from horsies.integrations.starlette import queue_of
from horsies.testing import drain
from tests.integrations.test_django import MANAGE, SETTINGS
from tests.support.workers import Workplace

Send = Callable[..., str]


@pytest.fixture
def app(database_url: str) -> Iterator[Horsies]:
    app = Horsies(AppConfig.for_database_url(database_url), run_schema_migrations=False)

    @app.task("greet")
    def greet(name: str) -> str:
        return f"hello {name}"

    @app.task("greet_async")
    async def greet_async(name: str) -> str:
        return f"hello {name}"

    @app.task("where")
    def where() -> str:
        return current_app.name

    @app.task("refuse")
    def refuse(secret: str) -> None:
        raise TaskFailure("CARD_DECLINED", "the bank said no", data={"asked": len(secret)})

    @app.task("crash")
    def crash(secret: str) -> None:
        raise LookupError("no such card")

    yield app
    asyncio.run(app.get_broker().close_async())


def by_send(task: Any, *arguments: Any) -> str:
    return task.send(*arguments).unwrap().task_id


def by_delay(task: Any, *arguments: Any) -> str:
    return task.delay(*arguments).task_id


async def by_send_async(task: Any, *arguments: Any) -> str:
    return (await task.send_async(*arguments)).unwrap().task_id


async def by_delay_async(task: Any, *arguments: Any) -> str:
    return (await task.delay_async(*arguments)).task_id


either_way = pytest.mark.parametrize("send", [by_send, by_delay])
either_async_way = pytest.mark.parametrize("send", [by_send_async, by_delay_async])


@either_async_way
def test_fastapi_sends_plain_tasks(app: Horsies, send: Any) -> None:
    web = FastAPI(lifespan=lifespan(app))

    @web.post("/{task}/{name}")
    async def greet(task: str, name: str, queue: Queue) -> str:
        return await send(queue.tasks[task], name)

    with TestClient(web) as client:
        sent = [client.post(f"/{task}/Ann").json() for task in ("greet", "greet_async")]

    assert {ran.task_id: ran.result.unwrap() for ran in drain(app)} == dict.fromkeys(sent, "hello Ann")


@either_async_way
def test_starlette_sends_plain_tasks(app: Horsies, send: Any) -> None:
    async def greet(request: Request) -> PlainTextResponse:
        return PlainTextResponse(await send(queue_of(request).tasks["greet"], "Ann"))

    web = Starlette(routes=[Route("/", greet)], lifespan=lifespan(app))
    with TestClient(web) as client:
        task_id = client.get("/").text

    assert [(ran.task_id, ran.result.unwrap()) for ran in drain(app)] == [(task_id, "hello Ann")]


@either_way
def test_flask_sends_plain_tasks_and_they_run_in_its_context(app: Horsies, send: Send) -> None:
    web = Flask("shop")
    FlaskHorsies(app).init_app(web)

    @web.post("/")
    def ask() -> str:
        return send(current_queue.tasks["where"])

    task_id = web.test_client().post("/").text

    assert [(ran.task_id, ran.result.unwrap()) for ran in drain(app)] == [(task_id, "shop")]


@either_way
def test_a_trace_tells_how_plain_tasks_end(app: Horsies, send: Send) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    opentelemetry.instrument(app, provider)
    sent = {name: send(app.tasks[name], "s3cret") for name in ("greet", "greet_async", "refuse", "crash")}
    drain(app)

    runs: dict[str, Any] = {}
    sends: dict[str, Any] = {}
    for span in exporter.get_finished_spans():
        kept = sends if span.kind.name == "PRODUCER" else runs
        kept[str((span.attributes or {})["messaging.message.id"])] = span
    for name, code in {
        "greet": None, "greet_async": None, "refuse": "CARD_DECLINED", "crash": "UNHANDLED_EXCEPTION",
    }.items():  # fmt: skip
        run, sending = runs[sent[name]], sends[sent[name]]
        assert run.parent.span_id == sending.context.span_id
        assert run.attributes.get("error.type") == code
        assert run.status.status_code.name == ("UNSET" if code is None else "ERROR")
    (failure,) = runs[sent["refuse"]].events
    assert failure.attributes["exception.type"].endswith("TaskFailure")


class Events(Transport):
    """Keeps the events that Sentry would get."""

    kept: ClassVar[list[dict[str, Any]]] = []

    def capture_envelope(self, envelope: Any) -> None:
        self.kept.append(envelope.get_event())


@pytest.fixture
def events() -> Iterator[list[dict[str, Any]]]:
    Events.kept = []
    sentry_sdk.init(dsn="http://key@localhost/1", transport=Events, default_integrations=False)
    yield Events.kept
    sentry_sdk.init()


@either_way
def test_sentry_gets_the_failures_of_plain_tasks(
    app: Horsies, send: Send, events: list[dict[str, Any]]
) -> None:
    sentry.instrument(app)
    for name in ("greet", "refuse", "crash"):
        send(app.tasks[name], "s3cret")
    drain(app)

    told = [
        (event["transaction"], event["tags"]["horsies.error_code"], event["exception"]["values"][-1]["type"])
        for event in events
    ]
    assert told == [
        ("refuse", "CARD_DECLINED", "TaskFailure"),
        ("crash", "UNHANDLED_EXCEPTION", "LookupError"),
    ]
    assert "s3cret" not in json.dumps(events)


QUEUE = """
app = Horsies(AppConfig.for_database_url(os.environ["HORSIES_DATABASE_URL"]))

@app.task("where")
def where() -> str:
    from django.db import connection
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('application_name')")
        return cursor.fetchone()[0]
"""
STORY = """
os.environ["DJANGO_SETTINGS_MODULE"] = "project"
import django
django.setup()
from django.db import connection, transaction
from django.db.utils import ProgrammingError
from horsies.integrations.django.backend import NotEnqueued
from shop.queue import where
from shop.tasks import greet

with transaction.atomic():
    sent = where.with_options(conn=connection).send().unwrap()
try:
    with transaction.atomic():
        undone = where.with_options(conn=connection).send().unwrap()
        raise LookupError
except LookupError:
    pass
refused = None
try:
    with transaction.atomic(), connection.cursor() as cursor:
        try:
            cursor.execute("SELECT nonsense")
        except ProgrammingError:
            pass
        greet.enqueue("Ann")
except NotEnqueued as error:
    refused = str(error)
greeted = greet.enqueue("Ann")
while not greeted.is_finished:
    time.sleep(0.01)
    greeted.refresh()
print(json.dumps({
    "where": sent.get(30_000).unwrap(), "undone": undone.info().unwrap() is None,
    "greeted": greeted.return_value, "refused": refused,
}))
"""
TASKS = """
from {tasks} import task

@task
def greet(name):
    return f"hello {{name}}"
"""


def test_a_plain_task_runs_beside_djangos_own_in_one_app(workplace: Workplace) -> None:
    pytest.importorskip("django_tasks")
    (workplace.folder / "shop").mkdir()
    (workplace.folder / "shop" / "__init__.py").touch()
    settings = SETTINGS.replace('"QUEUES": ["default", "mail"],', "").replace(
        '"schema": os.environ.get("SHOP_SCHEMA")', '"app": "shop.queue.app"'
    )
    workplace.write(settings, "project.py")
    workplace.write(QUEUE, "shop/queue.py")
    workplace.write(TASKS.format(tasks="django_tasks"), "shop/tasks.py")
    workplace.write(MANAGE, "manage.py")
    workplace.write(STORY, "story.py")
    worker = workplace.manage("--processes=1")

    told = subprocess.run(
        [sys.executable, "story.py"], cwd=workplace.folder, env=workplace.env, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip

    assert told.returncode == 0, told.stderr + worker.log
    story = json.loads(told.stdout)
    assert (story["where"], story["undone"], story["greeted"]) == ("the shop", True, "hello Ann")
    assert "current transaction is aborted" in story["refused"]
