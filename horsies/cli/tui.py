"""The terminal screen of `horsies top`: queues, workers and tasks, with keys to act on them."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from typing import Any, ClassVar, NamedTuple
from uuid import UUID

import msgspec
import psycopg
from rich.text import Text
from textual import on
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.events import Resize
from textual.screen import ModalScreen, Screen
from textual.widgets import DataTable, Footer, Input, Static

from horsies import cancellation
from horsies.cli.inspect import queue_row, read_workers, task_row, worker_row
from horsies.cli.options import Redaction
from horsies.cli.output import LONGEST_CELL, cut, first_line, fitting_columns, printable
from horsies.cli.signals import restored_handlers
from horsies.codec.results import STORED_SHOWN, UNDECODABLE, stored_text, with_plain_codes
from horsies.config import PostgresConfig
from horsies.db.connection import TRANSIENT, Connection, connect
from horsies.db.queries import inspect, operations, statistics
from horsies.db.queries.inspect import Attempt, FullTask, Queue, TaskFilter, TaskPage, TaskRow, Worker
from horsies.db.queries.operations import ALL_QUEUES, Selection
from horsies.db.queries.statistics import Throughput
from horsies.errors import mask_passwords
from horsies.units import age, ago, counted, megabytes, per_second, percentage

REFRESH_SECONDS = 1.0
EXIT_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# At most one part in so many of the time is spent on reading.
READ_SHARE = 5
STATEMENT_SECONDS = 5
TASKS_SHOWN = 100
# The errors of a read or an action: no connection, a statement timeout, a missing privilege.
DATABASE_ERRORS = (psycopg.Error, OSError, TimeoutError)
COLUMNS = {
    "queues": ("queue", "state", "pending", "running", "rate", "oldest", "scheduled", "failed"),
    "workers": ("worker", "state", "busy", "cpu", "memory", "heartbeat", "up", "queues"),
    "tasks": ("task", "state", "sent", "queue", "error", "attempts", "message"),
}
NUMBERS = {
    "pending",
    "running",
    "rate",
    "oldest",
    "scheduled",
    "failed",
    "busy",
    "cpu",
    "memory",
    "heartbeat",
    "up",
    "sent",
    "attempts",
}
# The columns that a narrow table leaves out, the first one first.
DROP = {
    "queues": ("failed", "scheduled", "oldest", "rate"),
    "workers": ("queues", "up", "heartbeat", "memory", "cpu"),
    "tasks": ("message", "attempts", "queue", "error", "sent"),
}
# The throughput is that of the last seconds.
RATE_SECONDS = 10
# Longer texts are cut in columns that share the screen with others.
LONGEST = {"task": 40, "error": 30, "queue": 24, "worker": 28, "queues": 30}
# From this width on, queues and workers stand side by side.
WIDE = 130
STATE_STYLES = {
    "FAILED": "red", "RUNNING": "green", "EXPIRED": "yellow", "CANCELLED": "yellow", "COMPLETED": "dim",
    "paused": "yellow", "suspended": "yellow", "dead": "red",
}  # fmt: skip


class ConfirmScreen(ModalScreen[bool]):
    """Asks for a confirmation of an action; only `y` confirms."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "Yes"),
        Binding("n,escape", "dismiss(False)", "No"),
    ]
    CSS = """
    ConfirmScreen { align: center middle; }
    ConfirmScreen > Static { width: auto; max-width: 90%; padding: 1 2; border: round $warning; background: $surface; }
    """

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        yield Static(Text(f"{self._question}\n\ny: yes   n: no"))


class TaskScreen(ModalScreen[None]):
    """Shows one task in full."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,q", "dismiss", "Back")]
    CSS = """
    TaskScreen { align: center middle; }
    TaskScreen > VerticalScroll { width: 90%; height: 90%; padding: 1 2; border: round $primary; background: $surface; }
    """

    def __init__(self, text: Text) -> None:
        super().__init__()
        self.text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(self.text)


class View(NamedTuple):
    """The contents of the three tables: each queue with its number of failures, each worker with its running tasks."""

    queues: list[tuple[Queue, int]]
    workers: list[tuple[Worker, list[str]]]
    page: TaskPage
    is_suspended: bool
    throughput: dict[str, Throughput]

    @property
    def tasks(self) -> list[TaskRow]:
        return self.page.tasks

    def summary(self, width: int) -> str:
        """Return the figures of all queues and all living workers, those that fit on a line of this width."""
        alive = [worker for worker, _ in self.workers if worker.state != "dead"]
        busy = sum(len(running) for _, running in self.workers)
        ended = sum(each.ended for each in self.throughput.values()) / RATE_SECONDS
        failed = sum(each.failed for each in self.throughput.values()) / RATE_SECONDS
        memory = [
            worker.memory_usage_mb + (worker.children_memory_mb or 0)
            for worker in alive
            if worker.memory_usage_mb
        ]
        figures = [
            f"{per_second(ended)} done",
            f"{per_second(failed)} failed" if failed else "",
            f"{busy} of {counted(sum(worker.processes for worker in alive), 'slot')} busy",
            counted(len(alive), "worker"),
            f"CPU {percentage(sum(worker.cpu_percent or 0 for worker in alive))}" if alive else "",
            f"memory {megabytes(sum(memory))}" if memory else "",
        ]
        shown = list(filter(None, figures))
        while shown and len("   ".join(shown)) > width:
            shown.pop()
        return "   ".join(shown)

    def tables(self) -> dict[str, dict[str, dict[str, str]]]:
        """Return the rows of each table by their keys, as the texts of their cells by column."""
        queues = {
            queue.name: queue_row(queue, failed)
            | {
                "running": f"{queue.claimed + queue.running:,}",
                "rate": per_second(self.throughput[queue.name].ended / RATE_SECONDS)
                if queue.name in self.throughput
                else "",
            }
            for queue, failed in self.queues
        }
        workers = {
            worker.worker_id: worker_row(worker, running)
            | {"worker": f"{worker.hostname}:{worker.pid}", "busy": f"{len(running)}/{worker.processes}"}
            for worker, running in self.workers
        }
        tasks = {task.task_id: task_row(task) | {"message": first_line(task.message)} for task in self.tasks}
        return {
            name: {
                key: {
                    column: printable(cut(row[column], LONGEST.get(column, LONGEST_CELL)))
                    for column in COLUMNS[name]
                }
                for key, row in rows.items()
            }
            for name, rows in (("queues", queues), ("workers", workers), ("tasks", tasks))
        }


def _cell(column: str, value: str) -> Text:
    style = STATE_STYLES.get(value, "") if column == "state" else ""
    return Text(value, style, justify="right" if column in NUMBERS else "left")


EMPTY = View([], [], TaskPage([], None, None), False, {})


class TopConnection:
    """The connection of `horsies top`, which is used for one thing at a time."""

    def __init__(self, postgres: PostgresConfig, actor: str, redaction: Redaction) -> None:
        self._redaction = redaction
        self._postgres = postgres
        self._actor = actor
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()
        self._reads = 0
        self._last = EMPTY

    async def read(self, wanted: TaskFilter, *, failures: bool) -> View:
        """Read the tables. Workers and suspensions change slowly, so they are read in turn, every other time."""
        async with self._connected() as connection:
            if self._reads % 2 == 0:
                self._last = self._last._replace(workers=await read_workers(connection))
            else:
                suspensions = await operations.suspensions(connection)
                self._last = self._last._replace(is_suspended=ALL_QUEUES in suspensions)
            self._reads += 1
            rates = await statistics.throughput(connection, RATE_SECONDS)
            queues = await inspect.queues_with_failures(connection)
            page = await inspect.tasks(
                connection, wanted, limit=TASKS_SHOWN, failed=failures, with_messages=True
            )
            page = page._replace(tasks=await self._redaction.tasks(connection, page.tasks))
        self._last = self._last._replace(queues=queues, page=page, throughput=rates)
        return self._last

    async def read_task(self, task_id: UUID) -> FullTask | None:
        async with self._connected() as connection:
            found = await inspect.full_task(connection, task_id)
        if found is None:
            return None
        shown = self._redaction.task(found)
        return shown._replace(attempts=inspect.ended_attempts(shown.attempts))

    async def retry(self, task_id: UUID) -> str:
        """Retry a failed task; return a sentence about the outcome."""
        which = Selection([task_id])
        async with self._connected() as connection:
            if not await operations.requeue(connection, which):
                return f"{task_id} was not retried: it has not failed, belongs to a workflow, or another has its unique key"
            await operations.note(connection, self._actor, "requeue", str(which), 1)
        return f"{task_id} is PENDING again"

    async def cancel(self, task_id: UUID) -> str:
        """Cancel a task, or ask it to stop; return a sentence about the outcome."""
        async with self._connected() as connection:
            done = await cancellation.cancel(connection, [task_id], actor=self._actor)
        if not done:
            return f"there is no task {task_id}"
        if not done[0].cancelled:
            return f"{task_id} is {done[0].status} already"
        return f"{task_id} is {'asked to stop' if done[0].status == 'RUNNING' else 'cancelled'}"

    async def toggle(self, queue: Queue) -> str:
        """Pause a queue, or resume a paused one; return a sentence about the outcome."""
        async with self._connected() as connection:
            if queue.suspended_by is None:
                await operations.suspend(connection, queue.name, self._actor)
                return f"queue {queue.name} is paused"
            await operations.resume(connection, queue.name, self._actor)
            return f"queue {queue.name} is resumed"

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    @asynccontextmanager
    async def _connected(self) -> AsyncGenerator[Connection]:
        """Lend the connection; open it if there is none, and close it after an error of the connection."""
        async with self._lock:
            if self._connection is None or self._connection.closed:
                self._connection = await connect(self._postgres, session=True, name="horsies-top")
                await self._connection.execute(f"SET statement_timeout = '{STATEMENT_SECONDS}s'".encode())
            try:
                yield self._connection
            except TRANSIENT:
                await self._connection.close()
                raise


def task_text(found: FullTask) -> Text:
    """Return one task in full: its record, why it is not running, its arguments, its result and its attempts."""
    task = found.task
    facts = {
        "task": task.task_name, "id": task.task_id, "queue": task.queue_name, "state": task.status,
        "priority": task.priority, "sent": ago(task.sent_at), "error": task.error_code,
    }  # fmt: skip
    text = Text()
    for name, value in facts.items():
        if value is not None:
            text.append(f"{name:<10}", "bold").append(printable(cut(str(value)))).append("\n")
    for title, lines in (
        ("why", found.reasons),
        ("arguments", _json(task.args, task.kwargs)),
        ("result", _json(task.result and with_plain_codes(task.result))),
        ("attempts", [_attempt(attempt) for attempt in found.attempts]),
    ):
        text.append(f"\n{title}\n", "bold")
        for line in lines or ["none"]:
            text.append(f"  {printable(cut(line, STORED_SHOWN))}\n")
    return text


def _attempt(attempt: Attempt) -> str:
    outcome = f"{attempt.outcome}{', retried' if attempt.will_retry else ''}"
    return f"{attempt.attempt}  {outcome}  {attempt.error_code or ''}  {first_line(attempt.error_message)}"


def _json(*stored: str | None) -> list[str]:
    """Return stored JSON indented. Anybody may have written the row, so a text that is no JSON is shown as it is."""
    lines: list[str] = []
    for text in stored:
        if text is None:
            continue
        try:
            lines += msgspec.json.format(text).splitlines()
        except UNDECODABLE:
            lines += (stored_text(text) or "").splitlines()
    return lines


def parse_filter(words: str) -> TaskFilter:
    """Parse a typed filter such as `queue:mail state:failed code:TIMEOUT`. A bare word is the name of a task.

    >>> parse_filter("send_mail queue:mail")
    TaskFilter(status=None, queue='mail', name='send_mail', code=None, q=None, key=None, kind=None)
    """
    fields = {"queue": "queue", "state": "status", "code": "code", "task": "name"}
    found: dict[str, str] = {}
    for word in words.split():
        key, colon, value = word.partition(":")
        if colon and key in fields:
            found[fields[key]] = value.upper() if key == "state" else value
        else:
            found["name"] = word
    return TaskFilter(**found)


class Rows(DataTable[Text]):
    """A table whose rows have keys, and which shows the columns that fit its width."""

    def __init__(self, name: str) -> None:
        super().__init__(id=name, cursor_type="row", zebra_stripes=True)
        self.border_title = name
        self.shown: list[str] = []
        self._all, self._drop = COLUMNS[name], DROP[name]
        self._rows: Mapping[str, dict[str, str]] = {}

    @property
    def chosen(self) -> str | None:
        """Return the key of the row under the cursor."""
        if not self.is_valid_row_index(self.cursor_row):
            return None
        return self.coordinate_to_cell_key(self.cursor_coordinate).row_key.value

    def on_resize(self) -> None:
        """Choose the columns anew."""
        self.fill(self._rows)

    def fill(self, rows: Mapping[str, dict[str, str]]) -> None:
        """Replace the rows. The cursor stays on its row if the row is still there."""
        chosen, at = self.chosen, self.cursor_row
        self._rows = rows
        # A border of two, and a scroll bar of two if the rows do not fit.
        width = self.size.width - (2 if len(rows) > self.size.height - 1 else 0)
        shown = fitting_columns(list(rows.values()), self._all, self._drop, width, gap=2)
        if shown != self.shown:
            self.clear(columns=True)
            self.add_columns(*(_cell(name, name) for name in shown))
            self.shown = shown
        self.clear()
        for key, row in rows.items():
            self.add_row(*(_cell(name, row[name]) for name in shown), key=key)
        self.move_cursor(row=self.get_row_index(chosen) if chosen and chosen in rows else at)


class TopApp(App[None]):
    """The screen of `horsies top`: queues, workers and tasks."""

    TITLE = "horsies top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #above { height: auto; max-height: 60%; layout: vertical; }
    #above.wide { layout: horizontal; }
    #above > Rows { height: auto; min-height: 4; max-height: 8; }
    #summary { height: 1; padding: 0 1; text-style: bold; }
    DataTable { width: 1fr; height: 1fr; border: round $primary; }
    #status { height: 1; padding: 0 1; }
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
        # With priority, because textual and its input fields use the key to copy.
        Binding("ctrl+c", "quit", "Quit", show=False, priority=True),
    ]

    def __init__(self, postgres: PostgresConfig, actor: str, redaction: Redaction | None = None) -> None:
        super().__init__()
        self._database = TopConnection(postgres, actor, redaction or Redaction(None, ()))
        self._where = mask_passwords(postgres.conninfo).rpartition("@")[2]
        self._wanted, self._typed, self._failures = TaskFilter(), "", False
        self.view = EMPTY
        self.outcome = ""  # of the last action
        self._handlers = ExitStack()

    def compose(self) -> ComposeResult:
        yield Static(id="summary")
        with Container(id="above"):
            yield Rows("queues")
            yield Rows("workers")
        yield Rows("tasks")
        yield Input(id="filter", placeholder="task name   queue:mail   state:failed   code:TIMEOUT")
        yield Static(id="status")
        yield Footer()

    def on_mount(self) -> None:
        self._table("tasks").focus()
        self.run_worker(self._watch())
        loop = asyncio.get_running_loop()
        self._handlers.enter_context(restored_handlers(*EXIT_SIGNALS))
        for number in EXIT_SIGNALS:
            loop.add_signal_handler(number, self.exit)
            self._handlers.callback(loop.remove_signal_handler, number)

    def on_resize(self, event: Resize) -> None:
        """Show queues and workers side by side on a wide screen, else one below the other."""
        self._main_screen.query_one("#above").set_class(event.size.width >= WIDE, "wide")

    async def on_unmount(self) -> None:
        await self._database.close()
        self._handlers.close()

    # Refreshing

    async def _watch(self) -> None:
        while True:
            began = time.monotonic()
            await self._refresh_tables()
            await asyncio.sleep(max(REFRESH_SECONDS, (time.monotonic() - began) * (READ_SHARE - 1)))

    async def _refresh_tables(self) -> None:
        problem = ""
        try:
            self.view = await self._database.read(self._wanted, failures=self._failures)
        except DATABASE_ERRORS as error:
            problem = f"cannot read: {_last_line(error)}; the tables are not current"
        if not self.screen_stack or not self._main_screen.query("#tasks"):
            return  # the screen was closed meanwhile
        if problem:
            self._show_status(problem, is_error=True)
            return
        self._main_screen.query_one("#summary", Static).update(
            self.view.summary(self._main_screen.size.width - 2)
        )
        for name, rows in self.view.tables().items():
            self._table(name).fill(rows)
        oldest = self.view.page.looked_back_to
        title = (
            "failures" if self._failures else "tasks",
            self._typed,
            "" if oldest is None else f"of the last {age(oldest)}",
        )
        self._table("tasks").border_title = "   ".join(filter(None, title))
        suspended = "ALL QUEUES ARE PAUSED" if self.view.is_suspended else ""
        self._show_status("   ".join(filter(None, (suspended, self._where, self.outcome))))

    def _table(self, name: str) -> Rows:
        return self._main_screen.query_one(f"#{name}", Rows)

    @property
    def _main_screen(self) -> Screen[Any]:
        """Return the main screen, below any modal screen."""
        return self.screen_stack[0]

    def _show_status(self, text: str, *, is_error: bool = False) -> None:
        self._main_screen.query_one("#status", Static).update(Text(text, "bold red" if is_error else ""))

    # Selecting

    def action_filter(self) -> None:
        field = self._main_screen.query_one("#filter", Input)
        field.add_class("open")
        field.focus()

    async def on_input_submitted(self, entered: Input.Submitted) -> None:
        self._typed, self._wanted = entered.value, parse_filter(entered.value)
        entered.input.remove_class("open")
        self._table("tasks").focus()
        await self._refresh_tables()

    async def action_clear(self) -> None:
        field = self._main_screen.query_one("#filter", Input)
        field.value = ""
        await self.on_input_submitted(Input.Submitted(field, ""))

    async def action_failures(self) -> None:
        self._failures = not self._failures
        await self._refresh_tables()

    @on(DataTable.RowSelected, "#queues")
    async def choose_queue(self, selected: DataTable.RowSelected) -> None:
        """Show only the tasks of the chosen queue."""
        if (name := selected.row_key.value) is not None:
            self._typed, self._wanted = f"queue:{name}", TaskFilter(queue=name)
            await self._refresh_tables()

    @on(DataTable.RowSelected, "#tasks")
    async def choose_task(self, selected: DataTable.RowSelected) -> None:
        """Show the chosen task in full."""
        if (task_id := selected.row_key.value) is None:
            return
        try:
            found = await self._database.read_task(UUID(task_id))
        except DATABASE_ERRORS as error:
            self._show_status(f"cannot read: {_last_line(error)}", is_error=True)
            return
        if found is not None:
            self.push_screen(TaskScreen(task_text(found)))

    # Acting

    def action_retry(self) -> None:
        if (task_id := self._table("tasks").chosen) is not None:
            self._confirm(f"Retry {task_id}?", lambda: self._database.retry(UUID(task_id)))

    def action_cancel(self) -> None:
        if (task_id := self._table("tasks").chosen) is not None:
            self._confirm(f"Cancel {task_id}?", lambda: self._database.cancel(UUID(task_id)))

    def action_switch(self) -> None:
        chosen = self._table("queues").chosen
        queue = next((queue for queue, _ in self.view.queues if queue.name == chosen), None)
        if queue is not None:
            verb = "Pause" if queue.suspended_by is None else "Resume"
            self._confirm(f"{verb} queue {queue.name}?", lambda: self._database.toggle(queue))

    def _confirm(self, question: str, act: Callable[[], Awaitable[str]]) -> None:
        """Act if the question is answered with yes, and show the outcome."""

        async def answered(yes: bool | None) -> None:
            if not yes:
                return
            try:
                self.outcome = await act()
            except DATABASE_ERRORS as error:
                self._show_status(f"not done: {_last_line(error)}", is_error=True)
                return
            await self._refresh_tables()

        self.push_screen(ConfirmScreen(question), answered)


def _last_line(error: BaseException) -> str:
    lines = mask_passwords(str(error)).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
