"""Web apps that send tasks: connected while they run, and in the transaction of the request."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import psycopg
import pytest
from fastapi import Depends, FastAPI, HTTPException
from fastapi.testclient import TestClient
from flask import Flask, current_app

from horsies import AppConfig, Horsies, TaskError, TaskResult
from horsies.errors import HorsiesError
from horsies.integrations.fastapi import Queue, lifespan
from horsies.integrations.flask import FlaskHorsies, current_queue
from horsies.middleware import RunContext, observe_run
from tests.support.waiting import eventually


def shop(url: str) -> Horsies:
    app = Horsies(AppConfig.for_database_url(url), run_schema_migrations=False)

    @app.task("greet")
    def greet(name: str) -> TaskResult[str, TaskError]:
        return TaskResult(ok=f"hello {name}")

    return app


@pytest.fixture
def app(database_url: str) -> Iterator[Horsies]:
    app = shop(database_url)
    yield app
    asyncio.run(app.get_broker().close_async())


def test_a_route_sends_in_the_transaction_of_its_request(app: Horsies, database_url: str, db: Any) -> None:
    async def session() -> AsyncIterator[psycopg.AsyncConnection]:
        async with await psycopg.AsyncConnection.connect(database_url) as connection:
            yield connection

    opened: list[str] = []

    @asynccontextmanager
    async def mine(_: FastAPI) -> AsyncIterator[dict[str, str]]:
        opened.append("mine")
        yield {"mine": "kept"}

    web = FastAPI(lifespan=lifespan(app, mine))

    @web.post("/greetings/{name}")
    async def greet(
        name: str, queue: Queue, session: Annotated[psycopg.AsyncConnection, Depends(session)]
    ) -> str:
        sent = await queue.tasks["greet"].with_options(conn=session).send_async(name)
        if name == "Eve":
            raise HTTPException(403)
        return sent.unwrap().task_id

    @web.get("/greetings/{task_id}")
    async def status(task_id: str, queue: Queue) -> str:
        info = (await queue.handle(task_id).info_async()).unwrap()
        return "none" if info is None else info.status

    with TestClient(web) as client:
        task_id = client.post("/greetings/Ann").json()
        assert client.post("/greetings/Eve").status_code == 403
        assert client.get(f"/greetings/{task_id}").json() == "PENDING"

    assert opened == ["mine"]
    assert [str(row["id"]) for row in db.execute("SELECT id FROM horsies_tasks").fetchall()] == [task_id]
    left = "SELECT count(*) AS n FROM pg_stat_activity WHERE application_name = 'horsies-producer' AND datname = current_database()"
    eventually(lambda: db.execute(left).fetchone()["n"] == 0, what="the app's connections to be closed")


def test_a_web_app_does_not_start_without_its_database() -> None:
    web = FastAPI(lifespan=lifespan(shop("postgresql://nobody@127.0.0.1:1/none")))

    with pytest.raises(HorsiesError, match="cannot reach PostgreSQL"), TestClient(web):
        pass


def test_a_request_without_a_queue_says_what_is_missing() -> None:
    web = FastAPI()

    @web.get("/")
    async def index(queue: Queue) -> str:
        return "never"

    with pytest.raises(HorsiesError, match="has no queue"):
        TestClient(web).get("/")


def test_tasks_run_in_the_context_of_the_flask_application(app: Horsies, db: Any) -> None:
    web = Flask("shop")
    FlaskHorsies(app).init_app(web)

    @web.post("/greetings/<name>")
    def greet(name: str) -> str:
        return current_queue.tasks["greet"].send(name).unwrap().task_id

    task_id = web.test_client().post("/greetings/Ann").text
    running = RunContext(task_id=task_id, task_name="greet", attempt=1, queue="default")
    with observe_run(running, app.middleware):
        assert current_app.name == "shop"

    assert db.execute("SELECT id FROM horsies_tasks").fetchone()["id"].hex == task_id.replace("-", "")
    assert (
        "Run the tasks of the app"
        in web.test_cli_runner().invoke(args=["horsies", "worker", "--help"]).output
    )
