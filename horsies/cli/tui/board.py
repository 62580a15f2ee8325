"""The board of `horsies top`: three tables, a filter, a line of news, and keys.

It looks once a second, and less often when a look takes long. When the database goes away, what was seen last stays, the
line of news says so, and it goes on when the database is back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, ClassVar, cast
from uuid import UUID

import psycopg
from rich.text import Text
from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.coordinate import Coordinate
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Input, Static

from horsies.cli.tui.screens import Closer, Question
from horsies.cli.tui.source import Source, View
from horsies.cli.tui.texts import (
    QUEUE_COLUMNS,
    TASK_COLUMNS,
    WORKER_COLUMNS,
    closeup,
    parse_filter,
    queue_cells,
    task_cells,
    told,
    worker_cells,
)
from horsies.config import PostgresConfig
from horsies.errors import mask_passwords
from horsies.storage.monitor import Filter

LOOK_SECONDS = 1.0
# Of the time, at most one part in so many is spent looking.
SHARE = 5
# What asking may raise: a server that is away, a statement that was given up, a right that is not there.
TROUBLE = (psycopg.Error, OSError, TimeoutError)


class Board(App[None]):
    """Queues, workers and tasks at a glance."""

    TITLE = "horsies top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #above { height: 40%; }
    DataTable { width: 1fr; height: 1fr; border: round $primary; }
    #news { height: 1; padding: 0 1; }
    #filter { display: none; }
    #filter.open { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("f", "failures", "Failures/all"),
        Binding("r", "retry", "Retry"),
        Binding("c", "cancel", "Cancel"),
        Binding("p", "switch", "Pause/resume queue"),
        Binding("escape", "clear", "Clear filter", show=False),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(self, postgres: PostgresConfig, actor: str) -> None:
        super().__init__()
        self._source = Source(postgres, actor)
        self._where = mask_passwords(postgres.conninfo).rpartition("@")[2]
        self._wanted, self._typed, self._failures = Filter(), "", False
        self.view = View([], [], [], False)
        self.news = ""

    def compose(self) -> ComposeResult:
        with Horizontal(id="above"):
            yield _table("queues", QUEUE_COLUMNS)
            yield _table("workers", WORKER_COLUMNS)
        yield _table("tasks", TASK_COLUMNS)
        yield Input(id="filter", placeholder="task name   queue:mail   state:failed   code:TIMEOUT")
        yield Static(id="news")
        yield Footer()

    def on_mount(self) -> None:
        self._table("tasks").focus()
        self.run_worker(self._watch())

    async def on_unmount(self) -> None:
        await self._source.close()

    # Looking

    async def _watch(self) -> None:
        while True:
            began = time.monotonic()
            await self._look()
            await asyncio.sleep(max(LOOK_SECONDS, (time.monotonic() - began) * (SHARE - 1)))

    async def _look(self) -> None:
        trouble: BaseException | None = None
        try:
            self.view = await self._source.look(self._wanted, failures=self._failures)
        except TROUBLE as error:
            trouble = error
        if not self._board.query("#tasks"):
            return  # it was closed meanwhile
        if trouble is not None:
            self._say(f"cannot look: {_said(trouble)}; what you see is old", is_bad=True)
            return
        self._fill("queues", ((queue.name, queue_cells(queue)) for queue in self.view.queues))
        self._fill("workers", ((worker.worker_id, worker_cells(worker)) for worker in self.view.workers))
        self._fill("tasks", ((task.task_id, task_cells(task)) for task in self.view.tasks))
        shown = "failures" if self._failures else "tasks"
        held = "ALL QUEUES ARE SUSPENDED" if self.view.is_suspended else ""
        self._table("tasks").border_title = told((shown, self._typed))
        self._say(told((held, self._where, self.news)))

    def _fill(self, name: str, rows: Iterable[tuple[str, list[Text]]]) -> None:
        """Write a table anew; the cursor stays on the row that it was on, if that is still there."""
        table = self._table(name)
        chosen = self._chosen(name)
        at = table.cursor_row
        table.clear()
        keys: list[str] = []
        for key, cells in rows:
            table.add_row(*cells, key=key)
            keys.append(key)
        table.move_cursor(row=keys.index(chosen) if chosen in keys else at)

    def _table(self, name: str) -> DataTable[Text]:
        return cast("DataTable[Text]", self._board.query_one(f"#{name}"))

    @property
    def _board(self) -> Screen[Any]:
        """The screen below whatever has come up over it."""
        return self.screen_stack[0]

    def _chosen(self, name: str) -> str | None:
        """The key of the row under the cursor."""
        table = self._table(name)
        if not table.is_valid_row_index(table.cursor_row):
            return None
        return table.coordinate_to_cell_key(Coordinate(table.cursor_row, 0)).row_key.value

    def _say(self, news: str, *, is_bad: bool = False) -> None:
        self._board.query_one("#news", Static).update(Text(news, "bold red" if is_bad else ""))

    # Choosing

    def action_filter(self) -> None:
        field = self._board.query_one("#filter", Input)
        field.add_class("open")
        field.focus()

    async def on_input_submitted(self, entered: Input.Submitted) -> None:
        self._typed, self._wanted = entered.value, parse_filter(entered.value)
        entered.input.remove_class("open")
        self._table("tasks").focus()
        await self._look()

    async def action_clear(self) -> None:
        field = self._board.query_one("#filter", Input)
        field.value = ""
        await self.on_input_submitted(Input.Submitted(field, ""))

    async def action_failures(self) -> None:
        self._failures = not self._failures
        await self._look()

    @on(DataTable.RowSelected, "#queues")
    async def choose_queue(self, selected: DataTable.RowSelected) -> None:
        """Enter on a queue: only its tasks are shown."""
        if (name := selected.row_key.value) is not None:
            self._typed, self._wanted = f"queue:{name}", Filter(queue=name)
            await self._look()

    @on(DataTable.RowSelected, "#tasks")
    async def choose_task(self, selected: DataTable.RowSelected) -> None:
        """Enter on a task: it is shown in full."""
        if (task_id := selected.row_key.value) is not None:
            await self._open(UUID(task_id))

    async def _open(self, task_id: UUID) -> None:
        try:
            found = await self._source.look_closely(task_id)
        except TROUBLE as error:
            self._say(f"cannot look: {_said(error)}", is_bad=True)
            return
        if found is not None:
            self.push_screen(Closer(closeup(found)))

    # Acting

    def action_retry(self) -> None:
        if (task_id := self._chosen("tasks")) is not None:
            self._after_asking(
                f"Send {task_id} through once more?", lambda: self._source.retry(UUID(task_id))
            )

    def action_cancel(self) -> None:
        if (task_id := self._chosen("tasks")) is not None:
            self._after_asking(f"Cancel {task_id}?", lambda: self._source.cancel(UUID(task_id)))

    def action_switch(self) -> None:
        queue = next((each for each in self.view.queues if each.name == self._chosen("queues")), None)
        if queue is not None:
            verb = "Resume" if queue.suspended else "Suspend"
            self._after_asking(f"{verb} queue {queue.name}?", lambda: self._source.switch(queue))

    def _after_asking(self, question: str, act: Callable[[], Awaitable[str]]) -> None:
        async def answered(yes: bool | None) -> None:
            if yes:
                await self._do(act())

        self.push_screen(Question(question), answered)

    async def _do(self, act: Awaitable[str]) -> None:
        try:
            self.news = await act
        except TROUBLE as error:
            self._say(f"not done: {_said(error)}", is_bad=True)
            return
        await self._look()


def _table(name: str, columns: Sequence[str]) -> DataTable[Text]:
    table: DataTable[Text] = DataTable(id=name, cursor_type="row", zebra_stripes=True)
    table.border_title = name
    table.add_columns(*columns)
    return table


def _said(error: BaseException) -> str:
    lines = mask_passwords(str(error)).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
