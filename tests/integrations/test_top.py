"""`horsies top`, as somebody at a terminal uses it, on a real database."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from psycopg import sql
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Static

from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult
from horsies.cli import horsies, tui
from horsies.cli.tui import ConfirmScreen, Rows, TaskScreen, TopApp, parse_filter
from horsies.db.queries.inspect import TaskFilter
from tests.pg.hands import Hands

NAME = "[red]add\x1b[2J"


class Terminal:
    """The board on a database with two tasks, one that failed and one that waits for a worker."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.app = Horsies(AppConfig.for_database_url(url), run_schema_migrations=False)

        @self.app.task(NAME)
        def add(x: int) -> TaskResult[int, TaskError]:
            return TaskResult(ok=x)

        hands = Hands(url)
        hands.register(waiting=False)
        self.failed = add.send(1).unwrap().task_id
        hands.fail(hands.run_next())
        self.waiting = add.send(2).unwrap().task_id
        hands.close()

    def close(self) -> None:
        asyncio.run(self.app.get_broker().close_async())

    def play(self, scene: Callable[[TopApp, Pilot[None]], Any], size: tuple[int, int] = (160, 40)) -> None:
        """Run the board, and a scene on it."""

        async def show() -> None:
            top = TopApp(PostgresConfig(database_url=self.url), "ann")
            async with top.run_test(size=size) as pilot:
                await until(pilot, lambda: top.view.tasks)
                await scene(top, pilot)

        asyncio.run(show())


@pytest.fixture
def terminal(database_url: str) -> Iterator[Terminal]:
    terminal = Terminal(database_url)
    yield terminal
    terminal.close()


async def until(pilot: Pilot[None], condition: Callable[[], Any], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        await pilot.pause(0.01)


def row(top: TopApp, name: str, place: int = 0) -> dict[str, str]:
    """Return the cells of a row by column."""
    table = top.screen_stack[0].query_one(f"#{name}", Rows)
    return dict(zip(table.shown, cells(top, name)[place], strict=True))


def cells(top: TopApp, name: str) -> list[list[str]]:
    table = top.screen_stack[0].query_one(f"#{name}", DataTable)
    return [[str(cell) for cell in table.get_row_at(row)] for row in range(table.row_count)]


def summary(top: TopApp) -> str:
    return str(top.screen_stack[0].query_one("#summary", Static).content)


def status(top: TopApp) -> str:
    return str(top.screen_stack[0].query_one("#status", Static).content)


def test_everything_is_there_at_a_glance_and_a_task_can_be_opened(terminal: Terminal) -> None:
    async def scene(top: TopApp, pilot: Pilot[None]) -> None:
        queue = row(top, "queues")
        assert (queue["queue"], queue["pending"], queue["running"], queue["failed"]) == (
            "default",
            "1",
            "0",
            "1",
        )
        worker = row(top, "workers")
        assert (worker["worker"], worker["state"], worker["busy"]) == ("host:1", "idle", "0/1")
        waiting, failed = row(top, "tasks"), row(top, "tasks", 1)
        assert (waiting["task"], waiting["state"]) == ("[red]add\\x1b[2J", "PENDING")
        assert (failed["state"], failed["error"], failed["message"]) == ("FAILED", "BROKEN", "it broke")
        await pilot.press("enter")
        assert isinstance(top.screen, TaskScreen)
        text = str(top.screen.text)
        assert terminal.waiting in text
        assert '"x": 2' in text
        assert "No worker has ever known a task" in text
        await pilot.press("escape", "slash")
        top.screen.query_one(Input).value = "state:failed"
        await pilot.press("enter")
        await until(pilot, lambda: [each[1] for each in cells(top, "tasks")] == ["FAILED"])
        await pilot.press("escape", "f")
        await until(pilot, lambda: "failures" in str(top.screen.query_one("#tasks").border_title))
        assert [each[1] for each in cells(top, "tasks")] == ["FAILED"]

    terminal.play(scene)


def test_a_small_terminal_drops_columns_and_cuts_none(terminal: Terminal, db: Any) -> None:
    db.execute(
        "INSERT INTO horsies_worker_states (worker_id, state, hostname, pid, processes, max_claim_batch, max_claim_per_worker,"
        " queues, queue_priorities, queue_max_concurrency, recovery_config, tasks_running, tasks_claimed, memory_usage_mb,"
        " memory_percent, children_memory_mb, cpu_percent, worker_started_at, current_task_ids)"
        " SELECT worker_id, 'idle', hostname, pid, processes, 1, 1, queues, '{}', '{}', '{}', 0, 0, 300, 1, 1200, 42, started_at,"
        " '{}' FROM horsies_workers"
    )

    async def scene(top: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: row(top, "workers")["cpu"])
        for name in ("queues", "workers", "tasks"):
            table = top.screen_stack[0].query_one(f"#{name}", Rows)
            assert table.max_scroll_x == 0, (name, table.shown)
        assert row(top, "tasks")["state"] == "PENDING"
        assert (row(top, "workers")["cpu"], row(top, "workers")["memory"]) == ("42 %", "1.5 GB")
        numbers = top.screen_stack[0].query_one("#queues", Rows)
        pending = numbers.shown.index("pending")
        assert numbers.get_row_at(0)[pending].justify == "right"
        await until(pilot, lambda: "6/min done" in summary(top))
        assert "1 worker" in summary(top)
        assert "CPU 42 %" in summary(top)
        # Every queue and worker is in sight, and the tasks have the rest.
        for name in ("queues", "workers"):
            table = top.screen_stack[0].query_one(f"#{name}", Rows)
            assert table.max_scroll_y == 0, name
        assert top.screen_stack[0].query_one("#tasks", Rows).size.height >= 8
        await pilot.resize_terminal(60, 24)
        await until(pilot, lambda: len(summary(top)) <= 58)
        assert "memory" not in summary(top)
        await until(pilot, lambda: "message" not in row(top, "tasks", 1))
        for name in ("queues", "workers", "tasks"):
            assert top.screen_stack[0].query_one(f"#{name}", Rows).max_scroll_x == 0
        await pilot.resize_terminal(160, 40)
        await until(pilot, lambda: "message" in row(top, "tasks", 1))

    terminal.play(scene, (80, 24))


def test_an_act_is_done_when_it_is_confirmed_and_not_before(terminal: Terminal, db: Any) -> None:
    def state(task_id: str) -> str:
        return db.execute("SELECT status FROM horsies_tasks WHERE id = %s", (task_id,)).fetchone()["status"]

    async def scene(top: TopApp, pilot: Pilot[None]) -> None:
        await pilot.press("c")
        assert isinstance(top.screen, ConfirmScreen)
        await pilot.press("n")
        assert state(terminal.waiting) == "PENDING"
        await pilot.press("c", "y")
        await until(pilot, lambda: f"{terminal.waiting} is cancelled" in status(top))
        assert state(terminal.waiting) == "CANCELLED"
        await pilot.press("down", "r", "y")
        await until(pilot, lambda: f"{terminal.failed} is PENDING again" in status(top))
        assert state(terminal.failed) == "PENDING"
        await pilot.press("p", "y")
        await until(pilot, lambda: row(top, "queues")["state"] == "paused")
        await pilot.press("p", "y")
        await until(pilot, lambda: row(top, "queues")["state"] == "")

    terminal.play(scene)
    acts = db.execute("SELECT actor, action FROM horsies_actions ORDER BY acted_at, id").fetchall()
    assert [(act["actor"], act["action"]) for act in acts] == [
        ("ann", "cancel"), ("ann", "requeue"), ("ann", "suspend"), ("ann", "resume"),
    ]  # fmt: skip


def test_it_outlives_a_database_that_goes_away(
    terminal: Terminal, server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tui, "REFRESH_SECONDS", 0.05)
    name = terminal.url.rpartition("/")[2]

    def allow(admin: psycopg.Connection[Any], allowed: bool) -> None:
        admin.execute(
            sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}").format(
                sql.Identifier(name), sql.Literal(allowed)
            )
        )

    async def scene(top: TopApp, pilot: Pilot[None]) -> None:
        with psycopg.connect(server_url, autocommit=True) as admin:
            allow(admin, False)
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'horsies-top' AND datname = %s",
                (name,),
            )
            await until(pilot, lambda: "cannot read: " in status(top))
            assert len(cells(top, "tasks")) == 2  # what was seen last
            allow(admin, True)
        await until(pilot, lambda: "cannot read" not in status(top))

    terminal.play(scene)


def test_without_textual_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "textual", None)

    refused = CliRunner().invoke(horsies, ["top"])

    assert refused.exit_code == 1
    assert "error[HRS-219]" in refused.output
    assert "/path/to/horsies[tui]" in refused.output


def test_a_filter_is_typed_in_words() -> None:
    assert parse_filter("send_mail queue:mail state:failed") == TaskFilter(
        "FAILED", "mail", "send_mail", None
    )
