"""Two apps in two schemas of one database: workers, schedules, pages and commands each see their own."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from horsies.web import create_dashboard
from tests.e2e.office import URL
from tests.support.waiting import eventually
from tests.support.workers import Workplace
from tests.web.conftest import calls, get

Db = psycopg.Connection[dict[str, Any]]

APP = (
    URL
    + """
def made(schema):
    schedule = ScheduleConfig(schedules=[
        TaskSchedule(name=f"tick {schema}", task_name=f"tick {schema}", pattern=IntervalSchedule(seconds=1)),
    ])
    app = Horsies(AppConfig(broker=PostgresConfig(database_url=URL, schema=schema), schedule=schedule))

    @app.task(f"tick {schema}")
    def tick() -> TaskResult[str, TaskError]:
        return TaskResult(ok=schema)

    @app.task("where", idempotent=True)
    def where(path: str | None = None) -> TaskResult[str, TaskError]:
        if path is not None:
            Path(f"{path}.begun").touch()
            while not Path(path).exists():
                time.sleep(0.005)
        return TaskResult(ok=schema)

    @app.task("sends", idempotent=True)
    def sends() -> TaskResult[str, TaskError]:
        return TaskResult(ok=where.send().unwrap().get(20_000).ok_value)
    return app

app, other = made("one"), made("two")
"""
)


@pytest.fixture
def place(tmp_path: Path, empty_database_url: str) -> Iterator[Workplace]:
    with Workplace(tmp_path, empty_database_url) as place:
        place.write(APP)
        yield place


@pytest.fixture
def tasks(place: Workplace) -> Iterator[Any]:
    module = place.load()
    yield module
    asyncio.run(module.other.get_broker().close_async())


@pytest.fixture
def plain(empty_database_url: str) -> Iterator[Db]:
    with psycopg.connect(empty_database_url, autocommit=True, row_factory=dict_row) as session:
        yield session


def names(plain: Db, schema: str) -> set[str]:
    plain.execute("SELECT set_config('search_path', %s, false)", (schema,))
    return {row["task_name"] for row in plain.execute("SELECT task_name FROM horsies_tasks").fetchall()}


def test_each_worker_runs_the_tasks_and_schedules_of_its_own_schema(
    place: Workplace, tasks: Any, plain: Db
) -> None:
    place.start("--processes=2", "--with-scheduler")
    place.start("--processes=2", "--with-scheduler", locator="app:other")

    handles = [
        (schema, app.tasks[name].send().unwrap())
        for schema, app in (("one", tasks.app), ("two", tasks.other))
        for name in ("where", "sends")
    ]

    assert [handle.get(20_000).ok_value for _, handle in handles] == [schema for schema, _ in handles]
    for schema in ("one", "two"):
        eventually(
            lambda schema=schema: f"tick {schema}" in names(plain, schema), what="a run of the schedule"
        )
        assert names(plain, schema) == {"where", "sends", f"tick {schema}"}


def test_the_child_of_a_killed_worker_stores_its_result_in_the_schema(place: Workplace, tasks: Any) -> None:
    worker = place.start("--processes=1")
    gate = place.folder / "gate"
    handle = tasks.app.tasks["where"].send(str(gate)).unwrap()
    eventually(Path(f"{gate}.begun").exists, 20, "the task having begun")
    worker.signal(signal.SIGSTOP)
    gate.touch()

    worker.signal(signal.SIGKILL)

    assert handle.get(20_000).ok_value == "one"


def test_commands_work_on_the_schema_of_the_app(place: Workplace, tasks: Any) -> None:
    assert "migrations applied" in place.run("migrate", "--app", "app:app").stdout
    assert place.run("migrate", "--app", "app:app", "--check").returncode == 0
    assert place.run("migrate", "--app", "app:other", "--check").returncode == 1
    assert (
        'SET LOCAL search_path = "two", pg_temp;'
        in place.run("migrate", "--app", "app:other", "--sql").stdout
    )
    assert (
        'SET LOCAL search_path = "one", pg_temp;'
        in place.run("migrate", "--app", "app:app", "--roles").stdout
    )
    task_id = tasks.app.tasks["where"].send().unwrap().task_id
    assert place.run("migrate", "--app", "app:other").returncode == 0

    for words in (
        ["doctor"], ["info"], ["tasks"], ["failed"], ["workflows", "list"], ["schedules", "list"],
        ["show", task_id], ["why", task_id], ["suspend", "--queue", "default"],
        ["resume", "--queue", "default"], ["events"],
        ["requeue", "--all"], ["purge", "--older-than", "1d", "--yes"], ["cancel", task_id],
    ):  # fmt: skip
        answer = place.run(*words, "--app", "app:app")
        assert answer.returncode == 0, (words, answer.stdout, answer.stderr)
    assert task_id in place.run("tasks", "--app", "app:app", "--json").stdout
    assert task_id not in place.run("tasks", "--app", "app:other", "--json").stdout
    place.env["HORSIES_SCHEMA"] = "one"
    assert task_id in place.run("tasks", "--database-url", place.database_url, "--json").stdout
    place.env["HORSIES_SCHEMA"] = "pg_one"
    refused = place.run("tasks", "--database-url", place.database_url)
    assert refused.returncode != 0
    assert "schema is 'pg_one'" in refused.stderr


def test_the_dashboard_shows_the_schema_of_its_app(place: Workplace, tasks: Any) -> None:
    task_id = tasks.app.tasks["where"].send().unwrap().task_id
    tasks.other.tasks["where"].send().unwrap()

    [page, detail] = calls(create_dashboard(tasks.app), get("/tasks"), get(f"/tasks/{task_id}"))
    [elsewhere] = calls(create_dashboard(tasks.other), get(f"/tasks/{task_id}"))

    assert (page.status_code, detail.status_code, elsewhere.status_code) == (200, 200, 404)
    assert task_id in page.text
