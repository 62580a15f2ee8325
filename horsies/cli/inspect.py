"""`horsies info`, `tasks`, `show` and `failed`: what there is, as tables for people or JSON for programs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import click
import msgspec

from horsies.cli.database import ask
from horsies.cli.options import database_options, locator_of, named_database
from horsies.cli.tables import print_json, print_table
from horsies.config import PostgresConfig
from horsies.errors import ErrorCode, HorsiesError
from horsies.spans import span
from horsies.storage import monitor, notes, operations
from horsies.storage import tasks as task_rows
from horsies.storage.database import Connection
from horsies.storage.monitor import Filter, Payload, QueueState, TaskState, WorkerState
from horsies.storage.notes import TaskLogLine, TaskProgress
from horsies.storage.why import why as reasons_of

T = TypeVar("T")

WATCH_SECONDS = 1.0
MESSAGE_WIDTH = 60
_STATUSES = ("PENDING", "CLAIMED", "RUNNING", "COMPLETED", "FAILED", "CANCELLED", "EXPIRED")
as_json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
limit_option = click.option(
    "--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many."
)


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--name`, `--queue` and `--code`."""
    name = click.option("--name", metavar="NAME", help="Only this task.")
    queue = click.option("--queue", metavar="QUEUE", help="Only this queue.")
    code = click.option("--code", metavar="CODE", help="Only failures with this error code.")
    return name(queue(code(command)))


@click.command()
@click.argument("locator", required=False)
@click.option("-W", "--workers", "of_workers", is_flag=True, help="Workers instead of queues.")
@click.option("--watch", is_flag=True, help="Print again every second, until you press Ctrl-C.")
@as_json_option
@database_options
def info(
    locator: str | None,
    of_workers: bool,
    watch: bool,
    as_json: bool,
    app: str | None,
    database_url: PostgresConfig | None,
) -> None:
    """How the queues stand, or the workers."""
    if locator and app:
        raise click.UsageError(f"LOCATOR is {locator!r} and --app is {app!r}; give one of the two")
    postgres = named_database(locator_of(locator, None) if locator else app, database_url)
    while True:
        document, print_it = _workers(postgres) if of_workers else _queues(postgres)
        if watch and sys.stdout.isatty():
            click.clear()
        if as_json:
            print_json(document)
        else:
            print_it()
        if not watch:
            return
        sys.stdout.flush()
        time.sleep(WATCH_SECONDS)


def _queues(postgres: PostgresConfig | None) -> tuple[dict[str, Any], Callable[[], None]]:
    async def look(connection: Connection) -> tuple[list[QueueState], list[str]]:
        return await monitor.queues(connection), await operations.suspensions(connection)

    queues, suspensions = ask(postgres, look)
    is_suspended = operations.ALL_QUEUES in suspensions
    document = {"suspended": is_suspended, "queues": [queue._asdict() for queue in queues]}

    def print_it() -> None:
        if is_suspended:
            click.echo("all queues are suspended; `horsies resume` lets workers claim again")
        if not queues:
            click.echo("there are no tasks and no workers")
        numbers = ["pending", "scheduled", "claimed", "running", "failed", "oldest", "limit"]
        print_table(["queue", *numbers, "state"], [_queue_row(queue) for queue in queues], right=numbers)

    return document, print_it


def _queue_row(queue: QueueState) -> list[str]:
    numbers = (queue.pending, queue.scheduled, queue.claimed, queue.running, queue.failed)
    oldest = "" if queue.oldest_pending_seconds is None else span(queue.oldest_pending_seconds)
    limit = "" if queue.max_concurrency is None else str(queue.max_concurrency)
    return [
        queue.name,
        *(f"{number:,}" for number in numbers),
        oldest,
        limit,
        "suspended" if queue.suspended else "",
    ]


def _workers(postgres: PostgresConfig | None) -> tuple[dict[str, Any], Callable[[], None]]:
    workers = ask(postgres, monitor.workers)

    def print_it() -> None:
        if not workers:
            click.echo("there are no workers")
        header = ["worker", "host", "pid", "state", "queues", "slots", "running", "memory", "up", "last beat"]
        right = ["pid", "slots", "running", "memory", "up", "last beat"]
        print_table(header, [_worker_row(worker) for worker in workers], right=right)

    return {"workers": [worker._asdict() for worker in workers]}, print_it


def _worker_row(worker: WorkerState) -> list[str]:
    known = worker.memory_usage_mb is not None and worker.children_memory_mb is not None
    memory = f"{(worker.memory_usage_mb or 0) + (worker.children_memory_mb or 0):,.0f} MB" if known else ""
    return [
        worker.worker_id,
        worker.hostname,
        str(worker.pid),
        worker.state,
        ", ".join(worker.queues),
        str(worker.processes),
        str(worker.tasks_running),
        memory,
        age(worker.started_at),
        f"{age(worker.last_beat_at)} ago",
    ]


@click.command()
@click.option("--status", type=click.Choice(_STATUSES, case_sensitive=False), help="Only in this state.")
@filter_options
@limit_option
@as_json_option
@database_options
def tasks(
    status: str | None,
    name: str | None,
    queue: str | None,
    code: str | None,
    limit: int,
    as_json: bool,
    app: str | None,
    database_url: PostgresConfig | None,
) -> None:
    """The tasks that were sent last, newest first."""
    wanted = Filter(status, queue, name, code)
    found = ask(
        named_database(app, database_url), lambda connection: monitor.tasks(connection, wanted, limit)
    )
    _list(found, as_json, ["id", "task", "queue", "state", "sent", "attempts", "error"], _task_row)


def _task_row(task: TaskState) -> list[str]:
    error = "" if task.error_code is None else task.error_code
    return [
        task.task_id,
        task.task_name,
        task.queue_name,
        task.status,
        f"{age(task.sent_at)} ago",
        str(task.attempts),
        error,
    ]


@click.command()
@filter_options
@limit_option
@as_json_option
@database_options
def failed(
    name: str | None,
    queue: str | None,
    code: str | None,
    limit: int,
    as_json: bool,
    app: str | None,
    database_url: PostgresConfig | None,
) -> None:
    """The tasks that failed last, with why."""
    wanted = Filter(None, queue, name, code)
    found = ask(
        named_database(app, database_url), lambda connection: monitor.failures(connection, wanted, limit)
    )
    _list(found, as_json, ["id", "task", "queue", "failed", "attempts", "error", "message"], _failure_row)


def _failure_row(task: TaskState) -> list[str]:
    when = "" if task.failed_at is None else f"{age(task.failed_at)} ago"
    return [
        task.task_id,
        task.task_name,
        task.queue_name,
        when,
        str(task.attempts),
        task.error_code or "",
        shortened(task.message or ""),
    ]


def _list(
    found: Sequence[TaskState], as_json: bool, header: Sequence[str], row: Callable[[TaskState], list[str]]
) -> None:
    if as_json:
        print_json({"tasks": [task._asdict() for task in found]})
        return
    if not found:
        click.echo("there are no such tasks")
    print_table(header, [row(task) for task in found], right=["attempts"])


@click.command()
@click.argument("task_id", type=click.UUID)
@as_json_option
@database_options
def show(task_id: UUID, as_json: bool, app: str | None, database_url: PostgresConfig | None) -> None:
    """One task in full, with its attempts, how far it is and what it has logged."""

    async def look(connection: Connection) -> Shown | None:
        found = await monitor.task(connection, task_id)
        if found is None:
            return None
        tries = await task_rows.attempts(connection, task_id)
        progress = await notes.progress(connection, task_id)
        return Shown(*found, tries, progress, await notes.log_lines(connection, task_id))

    shown = ask(named_database(app, database_url), look)
    if shown is None:
        raise no_such_task(task_id)
    attempts: list[dict[str, Any]] = [dict(zip(_ATTEMPT, entry[1:], strict=True)) for entry in shown.attempts]
    if as_json:
        print_json(_document(shown, attempts))
    else:
        _print_task(shown, attempts)


class Shown(NamedTuple):
    """All that is known of a task."""

    task: TaskState
    payload: Payload
    attempts: list[tuple[Any, ...]]
    progress: TaskProgress | None
    logs: list[TaskLogLine]


def _document(shown: Shown, attempts: list[dict[str, Any]]) -> dict[str, Any]:
    readable = {
        field: raw(value) if field in ("args", "kwargs", "result") else value
        for field, value in shown.payload._asdict().items()
    }
    return (
        shown.task._asdict()
        | readable
        | {
            "attempts": attempts,
            "progress": None if shown.progress is None else shown.progress._asdict(),
            "logs": [line._asdict() for line in shown.logs],
        }
    )


def _print_task(shown: Shown, attempts: list[dict[str, Any]]) -> None:
    facts = shown.task._asdict() | shown.payload._asdict()
    if shown.progress is not None:
        facts["progress"] = _how_far(shown.progress)
    print_table(
        ["field", "value"], [[field, _cell(value)] for field, value in facts.items() if value is not None]
    )
    click.echo()
    header = ["attempt", "outcome", "started", "took", "error", "message", "worker"]
    print_table(header, [_attempt_row(entry) for entry in attempts], right=["attempt", "took"])
    if shown.logs:
        click.echo()
        rows = [
            [str(line.attempt), _cell(line.at), line.level, line.logger, line.message] for line in shown.logs
        ]
        print_table(["attempt", "logged", "level", "logger", "message"], rows, right=["attempt"])


def _how_far(progress: TaskProgress) -> str:
    of = "" if progress.total is None else f" of {progress.total:g}"
    said = f", {progress.message}" if progress.message else ""
    return f"{progress.done:g}{of}{said} ({age(progress.at)} ago)"


_ATTEMPT = (
    "attempt", "outcome", "will_retry", "started_at", "finished_at", "error_code", "error_message", "failed_reason",
    "worker_id", "worker_hostname", "worker_pid", "worker_process_name",
)  # fmt: skip


def _attempt_row(attempt: dict[str, Any]) -> list[str]:
    began, ended = attempt["started_at"], attempt["finished_at"]
    took = span((ended - began).total_seconds()) if began and ended else ""
    return [
        str(attempt["attempt"]),
        attempt["outcome"] + (", retried" if attempt["will_retry"] else ""),
        _cell(began) if began else "",
        took,
        attempt["error_code"] or "",
        shortened(attempt["error_message"] or ""),
        f"{attempt['worker_hostname'] or ''}:{attempt['worker_pid'] or ''}",
    ]


@click.command()
@click.argument("task_id", type=click.UUID)
@as_json_option
@database_options
def why(task_id: UUID, as_json: bool, app: str | None, database_url: PostgresConfig | None) -> None:
    """Why a task is not running, and what would help; the reason that matters most first."""
    found = ask(named_database(app, database_url), lambda connection: reasons_of(connection, task_id))
    if found is None:
        raise no_such_task(task_id)
    if as_json:
        print_json({"task_id": str(task_id), "reasons": found})
        return
    for sentence in found:
        click.echo(sentence)


def no_such_task(task_id: UUID) -> HorsiesError:
    return HorsiesError(
        f"there is no task {task_id}",
        code=ErrorCode.TASK_NOT_FOUND,
        help_text="its record may have been deleted; `horsies tasks` lists those that there are",
    )


# How things are written


def raw(text: str | None) -> msgspec.Raw | str | None:
    """Stored JSON as JSON; anyone may have written that row, so what is none is shown as text."""
    if text is None:
        return None
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
    return msgspec.Raw(text.encode())


def age(moment: datetime) -> str:
    return span((datetime.now(UTC) - moment).total_seconds())


def shortened(text: str) -> str:
    first = text.partition("\n")[0]
    return first if len(first) <= MESSAGE_WIDTH else first[: MESSAGE_WIDTH - 1] + "…"


def _cell(value: object) -> str:
    return (
        value.astimezone().isoformat(sep=" ", timespec="milliseconds")
        if isinstance(value, datetime)
        else str(value)
    )
