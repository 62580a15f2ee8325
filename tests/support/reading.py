"""Everything through which people read the database, tried one after the other: no way to read may fail."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx2 as httpx
from click.testing import CliRunner
from rich.console import Console

from horsies import AppConfig, Horsies, PostgresConfig, TaskHandle
from horsies.cli import horsies as command
from horsies.cli.options import Redaction
from horsies.cli.tui import TopConnection, task_text
from horsies.db.queries.inspect import TaskFilter
from horsies.web import create_dashboard
from horsies.web.api import CALLS
from horsies.workflow.handle import WorkflowHandle
from tests.support.hostile import Filled

BUG = "horsies has a bug"


def troubles(url: str, filled: Filled) -> list[str]:
    """Return what failed, one line for each way to read that did."""
    logging.getLogger("horsies").setLevel(logging.CRITICAL)
    try:
        return [*pages(url, filled), *commands(url, filled), *board(url, filled), *handles(url, filled)]
    finally:
        logging.getLogger("horsies").setLevel(logging.NOTSET)


def paths(filled: Filled) -> Iterator[str]:
    """Every page and every API call that reads, for every row."""
    screens = (
        "/",
        "/tasks",
        "/queues",
        "/workers",
        "/schedules",
        "/workflows",
        "/health",
        "/api",
        "/metrics",
    )
    yield from screens
    for span in ("5m", "30m", "1h", "6h", "24h"):
        yield f"/?range={span}"
        yield f"/api/overview?range={span}"
    for status in ("PENDING", "RUNNING", "FAILED", "COMPLETED"):
        yield from (
            f"/tasks?status={status}",
            f"/api/tasks?status={status}&limit=2",
            f"/api/tasks?status={status}&since=1d",
        )
    yield from ("/api/tasks?q=a", "/workflows?parts=1", "/api/workflows?parts=1", "/api/openapi.json")
    for call in CALLS:
        if call.method == "GET" and "{" not in call.path:
            yield call.path
    for task_id in filled.tasks:
        yield f"/tasks/{task_id}"
        yield f"/api/tasks/{task_id}"
        for part in ("args", "kwargs", "result"):
            yield f"/api/tasks/{task_id}/{part}"
    for workflow_id in filled.workflows:
        yield f"/workflows/{workflow_id}"
        yield f"/api/workflows/{workflow_id}"


def pages(url: str, filled: Filled) -> list[str]:
    """Fetch every page, and follow the pages of failed tasks to their end."""

    async def fetch() -> list[str]:
        dashboard = create_dashboard(url)
        found: list[str] = []
        transport = httpx.ASGITransport(dashboard)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:
            for path in paths(filled):
                try:
                    answer = await client.get(path)
                except Exception as error:  # noqa: BLE001  whatever it is, the page has failed
                    found.append(f"GET {path}: {error!r}")
                    continue
                if answer.status_code >= 500:
                    found.append(f"GET {path}: {answer.status_code} {answer.text[-500:]}")
                elif "application/json" in answer.headers["content-type"]:
                    answer.json()
            found += await _walk(client, len(filled.tasks))
        await dashboard.close()
        return found

    return asyncio.run(fetch())


async def _walk(client: httpx.AsyncClient, tasks: int) -> list[str]:
    seen: list[str] = []
    place: dict[str, str] | None = {}
    while place is not None:
        answer = (await client.get("/api/tasks", params={"status": "FAILED", "limit": "1", **place})).json()
        if "tasks" not in answer:
            return [f"GET /api/tasks from {place}: {answer}"]
        seen += [task["task_id"] for task in answer["tasks"]]
        place = answer["next"]
        if len(seen) > tasks:
            return [f"the pages of failed tasks do not end: {seen[:5]}"]
    return [] if len(set(seen)) == len(seen) else [f"a failed task is on two pages: {seen}"]


def command_lines(filled: Filled) -> Iterator[list[str]]:
    """Every command that reads, for every row."""
    for plain in (
        ["info"], ["info", "-W"], ["tasks"], ["failed"], ["workflows", "list", "--all"], ["schedules", "list"], ["doctor"],
        ["health", "--host", "h"], ["events", "--since", "1d"],
    ):  # fmt: skip
        yield plain
        yield [*plain, "--json"]
    for task_id in map(str, filled.tasks):
        yield from (
            ["show", task_id],
            ["show", task_id, "--json"],
            ["why", task_id],
            ["why", task_id, "--json"],
        )
        yield ["events", "--task", task_id]
    for workflow_id in map(str, filled.workflows):
        yield from (["workflows", "show", workflow_id], ["workflows", "show", workflow_id, "--json"])
    for name in filled.schedules:
        yield ["schedules", "next", name]
    yield ["retry", "--all", "--dry-run"]
    yield ["purge", "--older-than", "1d", "--dry-run"]


def commands(url: str, filled: Filled) -> list[str]:
    """Run every command in this process."""
    found: list[str] = []
    for words in command_lines(filled):
        result = CliRunner().invoke(command, [*words, "--database-url", url])
        text = result.output
        if (
            result.exit_code not in (0, 1, 2)
            or "Traceback" in text
            or BUG in text
            or _is_crash(result.exception)
        ):
            found.append(f"{words}: {result.exit_code} {result.exception!r} {text[-700:]}")
    return found


def _is_crash(error: BaseException | None) -> bool:
    return error is not None and not isinstance(error, SystemExit)


def board(url: str, filled: Filled) -> list[str]:
    """Look as `horsies top` does, at all and at each task."""

    async def look() -> list[str]:
        config = PostgresConfig(database_url=url)
        source = TopConnection(config, "test", Redaction(None, ()))
        found: list[str] = []
        console = Console(file=io.StringIO(), width=200)
        for failures in (False, True):
            try:
                view = await source.read(TaskFilter(), failures=failures)
                for rows in view.tables().values():
                    for cells in rows.values():
                        console.print(*cells)
            except Exception as error:  # noqa: BLE001  whatever it is, the board has failed
                found.append(f"top, failures={failures}: {error!r}")
        for task_id in filled.tasks:
            try:
                closely = await source.read_task(task_id)
                if closely is not None:
                    console.print(task_text(closely))
            except Exception as error:  # noqa: BLE001
                found.append(f"top, {task_id}: {error!r}")
        await source.close()
        return found

    return asyncio.run(look())


def handles(url: str, filled: Filled) -> list[str]:
    """Ask the Python API for each task and workflow; it may answer with an error of its own, and must not raise."""
    app = Horsies(AppConfig(broker=PostgresConfig(database_url=url)))

    async def ask() -> list[str]:
        broker = app.get_broker()
        found: list[str] = []
        asked: list[tuple[str, Callable[[], Awaitable[Any]]]] = [("schedules", app.schedules.list_async)]
        for task_id in map(str, filled.tasks):
            handle = TaskHandle[Any](task_id, broker, Any)
            asked += [
                (f"info of {task_id}", lambda handle=handle: handle.info_async(
                    include_result=True, include_failed_reason=True, include_attempts=True)),
                (f"get of {task_id}", lambda handle=handle: handle.get_async(timeout_ms=0)),
                (f"progress of {task_id}", handle.progress_async),
                (f"logs of {task_id}", handle.logs_async),
            ]  # fmt: skip
        for workflow_id in map(str, filled.workflows):
            flow = WorkflowHandle[Any](workflow_id, broker)
            asked += [
                (f"get of workflow {workflow_id}", lambda flow=flow: flow.get_async(timeout_ms=0)),
                (f"results of workflow {workflow_id}", flow.results_async),
                (f"tasks of workflow {workflow_id}", flow.tasks_async),
                (f"status of workflow {workflow_id}", flow.status_async),
            ]
        for what, question in asked:
            try:
                answer = await question()
            except Exception as error:  # noqa: BLE001
                found.append(f"{what}: {error!r}")
                continue
            if "DB_OPERATION_FAILED" in repr(answer)[:2000] or "QUERY_FAILED" in repr(answer)[:2000]:
                found.append(f"{what}: {repr(answer)[:700]}")
        await broker.close_async()
        return found

    return asyncio.run(ask())
