"""`horsies info`, `tasks`, `failed`, `show`, `why`, `keys` and `top`: tables for people, JSON for programs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from importlib.util import find_spec
from typing import Any
from uuid import UUID

import click
import msgspec

from horsies.cli.attempts import cells, comparison
from horsies.cli.options import (
    Database,
    Redaction,
    actor,
    as_json_option,
    database_options,
    filter_options,
    limit_option,
    redact_option,
    subject_argument,
)
from horsies.cli.output import cut, first_line, print_fields, print_json, print_table, print_text
from horsies.codec.results import STORED_SHOWN, error_of, raw, stored_text, with_plain_codes
from horsies.db.connection import Connection
from horsies.db.queries import inspect, operations
from horsies.db.queries.inspect import Attempt, FullTask, Queue, TaskFilter, TaskRow, Worker
from horsies.db.queries.keys import MOST_COUNTED, Key
from horsies.db.queries.keys import keys as read_keys
from horsies.db.queries.steps import Called, SignalRow, StepRow
from horsies.db.queries.tasks import TaskLogLine, TaskProgress
from horsies.errors import ConfigurationError, ErrorCode, HorsiesError, how_to_install
from horsies.status import TaskStatus
from horsies.units import age, ago, counted, megabytes, percentage, rough, span, time_text, took

WATCH_SECONDS = 1.0
# The number of running tasks of a worker that are named.
TASK_IDS_SHOWN = 100
# The number of characters that are shown of arguments or a result that cannot be decoded.
UNDECODABLE_SHOWN = 2_000
# The fields of the JSON documents.
_WORKER_FIELDS = (
    "worker_id", "hostname", "pid", "state", "queues", "processes", "started_at", "last_beat_at", "memory_usage_mb",
    "children_memory_mb",
)  # fmt: skip
_TASK_FIELDS = (
    "task_id", "task_name", "status", "queue_name", "priority", "retry_count", "max_retries", "next_retry_at", "sent_at",
    "enqueued_at", "claimed_at", "started_at", "completed_at", "failed_at", "worker_hostname", "worker_pid",
    "worker_process_name", "error_code", "failed_reason", "attempts", "message",
)  # fmt: skip
_TASK_DETAIL_FIELDS = (
    *_TASK_FIELDS, "args", "kwargs", "result", "good_until", "timeout_ms", "tags", "crash_count", "worker_id",
)  # fmt: skip
_ATTEMPT_FIELDS = (
    "attempt", "outcome", "will_retry", "started_at", "finished_at", "error_code", "error_message", "failed_reason",
    "worker_id", "worker_hostname", "worker_pid", "worker_process_name",
)  # fmt: skip


@click.command()
@click.option("-W", "--workers", "of_workers", is_flag=True, help="Show workers instead of queues.")
@click.option("--watch", is_flag=True, help="Print again every second, until you press Ctrl-C.")
@as_json_option
@database_options
def info(of_workers: bool, watch: bool, as_json: bool, database: Database) -> None:
    """Show queues or workers."""
    show_all = _show_workers if of_workers else _show_queues
    try:
        while True:
            show_all(database, as_json, clear=watch and sys.stdout.isatty())
            if not watch:
                return
            sys.stdout.flush()
            time.sleep(WATCH_SECONDS)
    except KeyboardInterrupt:
        if not watch:
            raise


def _show_queues(database: Database, as_json: bool, *, clear: bool) -> None:
    async def read(connection: Connection) -> tuple[list[tuple[Queue, int]], list[str]]:
        return await inspect.queues_with_failures(connection), await operations.suspensions(connection)

    queues, suspensions = database.ask(read)
    if clear:
        click.clear()
    is_suspended = operations.ALL_QUEUES in suspensions
    if as_json:
        print_json(
            {
                "suspended": is_suspended,
                "queues": [_queue_document(queue, failed) for queue, failed in queues],
            }
        )
        return
    if is_suspended:
        click.echo("all queues are paused; `horsies resume` lets workers claim again")
    if not queues:
        click.echo("there are no tasks and no workers")
    rows = [queue_row(queue, failed) for queue, failed in queues]
    if any(queue.parked for queue, _ in queues):
        rows = [row | {"parked": f"{queue.parked:,}"} for row, (queue, _) in zip(rows, queues, strict=True)]
    print_table(
        rows,
        right=["pending", "scheduled", "parked", "claimed", "running", "failed", "oldest", "limit"],
        drop=["limit", "claimed", "parked", "scheduled", "failed", "oldest"],
    )


def _queue_document(queue: Queue, failed: int) -> dict[str, Any]:
    return {
        "name": queue.name,
        "pending": queue.waiting,
        "scheduled": queue.scheduled,
        "parked": queue.parked,
        "claimed": queue.claimed,
        "running": queue.running,
        "failed": failed,
        "oldest_pending_seconds": queue.oldest_seconds,
        "max_concurrency": queue.max_concurrency,
        "suspended": queue.suspended_by is not None,
    }


def queue_row(queue: Queue, failed: int) -> dict[str, str]:
    """Return the cells of a queue by column."""
    return {
        "queue": queue.name,
        "pending": f"{queue.waiting:,}",
        "scheduled": f"{queue.scheduled:,}",
        "claimed": f"{queue.claimed:,}",
        "running": f"{queue.running:,}",
        "failed": f"{failed:,}",
        "oldest": "" if queue.oldest_seconds is None else rough(queue.oldest_seconds),
        "limit": "" if queue.max_concurrency is None else str(queue.max_concurrency),
        "state": "" if queue.suspended_by is None else "paused",
    }


def _show_workers(database: Database, as_json: bool, *, clear: bool) -> None:
    workers = database.ask(read_workers)
    if clear:
        click.clear()
    if as_json:
        print_json({"workers": [_worker_document(worker, running) for worker, running in workers]})
        return
    if not workers:
        click.echo("there are no workers")
    rows = [worker_row(worker, running) for worker, running in workers]
    print_table(
        rows,
        right=["pid", "slots", "running", "cpu", "memory", "up", "heartbeat"],
        drop=["queues", "up", "pid", "heartbeat", "memory", "cpu", "host"],
    )


async def read_workers(connection: Connection) -> list[tuple[Worker, list[str]]]:
    """Return each worker with the ids of its running tasks."""
    workers, running = await inspect.workers(connection), await inspect.running_by_worker(connection)
    return [(worker, running.get(worker.worker_id, [])) for worker in workers]


def _worker_document(worker: Worker, running: list[str]) -> dict[str, Any]:
    return _fields(worker, _WORKER_FIELDS) | {
        "tasks_running": len(running),
        "current_task_ids": sorted(running)[:TASK_IDS_SHOWN],
    }


def worker_row(worker: Worker, running: list[str]) -> dict[str, str]:
    """Return the cells of a worker by column."""
    memory = ""
    if worker.memory_usage_mb is not None and worker.children_memory_mb is not None:
        memory = megabytes(worker.memory_usage_mb + worker.children_memory_mb)
    return {
        "worker": worker.worker_id,
        "host": worker.hostname,
        "pid": str(worker.pid),
        "state": worker.state,
        "queues": ", ".join(map(str, worker.queues)),
        "slots": str(worker.processes),
        "running": str(len(running)),
        "cpu": "" if worker.cpu_percent is None else percentage(worker.cpu_percent),
        "memory": memory,
        "up": age(worker.started_at),
        "heartbeat": ago(worker.last_beat_at),
    }


@click.command()
@click.option("--status", type=click.Choice([*TaskStatus], case_sensitive=False), help="Only in this state.")
@click.option("--key", metavar="KEY", help="Only tasks of this key.")
@filter_options
@limit_option
@as_json_option
@redact_option
@database_options
def tasks(
    status: str | None,
    key: str | None,
    limit: int,
    as_json: bool,
    redact: tuple[str, ...],
    database: Database,
    **filters: str | None,
) -> None:
    """List the tasks that were sent last, newest first."""
    found = _search(TaskFilter(status, key=key, **filters), limit, redact, database)
    _print_tasks(found, as_json, task_row)


@click.command()
@filter_options
@limit_option
@as_json_option
@redact_option
@database_options
def failed(
    limit: int, as_json: bool, redact: tuple[str, ...], database: Database, **filters: str | None
) -> None:
    """List the tasks that failed last, each with its error."""
    found = _search(TaskFilter(**filters), limit, redact, database, failed=True)
    _print_tasks(found, as_json, _failure_row)


def _search(
    wanted: TaskFilter,
    limit: int,
    redact: tuple[str, ...],
    database: Database,
    failed: bool = False,
) -> list[TaskRow]:
    redaction = Redaction(database.registry, redact)

    async def read(connection: Connection) -> list[TaskRow]:
        found = await inspect.search(connection, wanted, limit, failed=failed)
        return await redaction.tasks(connection, found)

    return database.ask(read)


def _print_tasks(found: list[TaskRow], as_json: bool, row: Callable[[TaskRow], dict[str, str]]) -> None:
    if as_json:
        print_json({"tasks": [_fields(task, _TASK_FIELDS) for task in found]})
        return
    if not found:
        click.echo("there are no such tasks")
    print_table(
        [row(task) for task in found], right=["attempts"], drop=["attempts", "message", "queue", "sent"]
    )


def task_row(task: TaskRow) -> dict[str, str]:
    """Return the cells of a task by column."""
    return {
        "id": task.task_id,
        "task": task.task_name,
        "queue": task.queue_name,
        "state": task.status,
        "sent": ago(task.sent_at),
        "attempts": str(task.attempts),
        "error": task.error_code or "",
    }


def _failure_row(task: TaskRow) -> dict[str, str]:
    return {
        "id": task.task_id,
        "task": task.task_name,
        "queue": task.queue_name,
        "failed": "" if task.failed_at is None else ago(task.failed_at),
        "attempts": str(task.attempts),
        "error": task.error_code or "",
        "message": first_line(task.message),
    }


@click.command()
@click.option(
    "--diff",
    "as_diff",
    is_flag=True,
    help="Show the last attempts side by side: outcomes, steps and log lines, and which of them differ.",
)
@as_json_option
@redact_option
@subject_argument("task_id", "TASK_ID", ids=True)
def show(task_id: UUID, as_diff: bool, as_json: bool, redact: tuple[str, ...], database: Database) -> None:
    """Show one task in full, with its attempts, its progress, its steps and its log."""
    found = database.ask(lambda connection: inspect.full_task(connection, task_id, with_reasons=False))
    if found is None:
        raise no_such_task(task_id)
    found = Redaction(database.registry, redact).task(found)
    found = found._replace(attempts=inspect.ended_attempts(found.attempts))
    facts = _fields(found.task, _TASK_DETAIL_FIELDS)
    if as_diff:
        _print_comparison(found, as_json)
    elif as_json:
        print_json(_task_document(facts, found))
    else:
        _print_task(facts, found)


def _print_comparison(found: FullTask, as_json: bool) -> None:
    numbers, rows = comparison(found)
    if as_json:
        facts = [{"fact": row.fact, "differs": row.differs, "texts": row.texts} for row in rows]
        print_json({"task_id": found.task.task_id, "attempts": numbers, "facts": facts})
        return
    click.echo(f"{found.task.task_name} {found.task.task_id}")
    if not numbers:
        click.echo("the task has not begun")
    print_table(cells(numbers, rows))


def _task_document(facts: dict[str, Any], found: FullTask) -> dict[str, Any]:
    return facts | {
        **{field: raw(facts[field]) for field in ("args", "kwargs", "result")},
        "attempts": [_fields(attempt, _ATTEMPT_FIELDS) for attempt in found.attempts],
        "progress": None if found.progress is None else found.progress._asdict(),
        "logs": [line._asdict() for line in found.logs],
        "steps": [step._asdict() | {"result": raw(step.result)} for step in found.steps],
        "signals": [signal._asdict() | {"value": raw(signal.value)} for signal in found.signals],
        "caller": None if found.caller is None else found.caller._asdict(),
        "called": [task._asdict() for task in found.called],
    }


def _print_task(facts: dict[str, Any], found: FullTask) -> None:
    for field in ("args", "kwargs"):
        facts[field] = stored_text(facts[field], UNDECODABLE_SHOWN)
    result, traceback = _result_and_traceback(found.task.result)
    facts["result"] = result and with_plain_codes(result)
    facts["progress"] = None if found.progress is None else _progress(found.progress)
    caller = found.caller
    facts["called by"] = None if caller is None else f"task {caller.task_id} in step {caller.step!r}"
    print_fields(
        {field: _cell(value) for field, value in facts.items() if value is not None}, longest=STORED_SHOWN
    )
    if found.attempts:
        click.echo()
        print_table([_attempt_row(attempt) for attempt in found.attempts], right=["attempt", "took"])
    if found.steps:
        click.echo()
        print_table([_step_row(step) for step in found.steps], right=["attempt", "took"])
    if found.signals:
        click.echo()
        print_table([_signal_row(signal) for signal in found.signals])
    if found.called:
        click.echo()
        print_table([_called_row(task) for task in found.called])
    if found.logs:
        click.echo()
        print_table([_log_row(line) for line in found.logs], right=["attempt"])
    if traceback:
        click.echo()
        print_text("traceback", traceback)


def _result_and_traceback(result: str | None) -> tuple[str | None, str | None]:
    """Return a stored result without the traceback of its error, and the traceback."""
    _, traceback = error_of(result)
    if result is None or traceback is None:
        return stored_text(result, UNDECODABLE_SHOWN), None
    document = msgspec.json.decode(result)
    del document["err"]["exception"]["traceback"]
    return msgspec.json.encode(document).decode(), traceback


def _progress(progress: TaskProgress) -> str:
    total = "" if progress.total is None else f" of {progress.total:g}"
    message = f", {progress.message}" if progress.message else ""
    return f"{progress.done:g}{total}{message} ({ago(progress.at)})"


def _attempt_row(attempt: Attempt) -> dict[str, str]:
    began, ended = attempt.started_at, attempt.finished_at
    return {
        "attempt": str(attempt.attempt),
        "outcome": attempt.outcome + (", retried" if attempt.will_retry else ""),
        "started": time_text(began),
        "took": took(began, ended),
        "error": attempt.error_code or "",
        "message": first_line(attempt.error_message),
        "worker": f"{attempt.worker_hostname or ''}:{attempt.worker_pid or ''}",
    }


def _step_row(step: StepRow) -> dict[str, str]:
    ended = step.ended_at
    waits = "" if step.due_at is None else f" until {time_text(step.due_at)}"
    calls = "" if step.open_calls is None else f" for {counted(step.open_calls, 'task')}"
    return {
        "step": step.name,
        "kind": step.kind,
        "attempt": str(step.attempt),
        "started": time_text(step.started_at),
        "took": "" if ended is None else took(step.started_at, ended),
        "result": f"(waits{calls}{waits})" if ended is None else cut(with_plain_codes(step.result or "")),
    }


def _signal_row(signal: SignalRow) -> dict[str, str]:
    return {"signal": signal.name, "given": time_text(signal.sent_at), "value": cut(signal.value)}


def _called_row(task: Called) -> dict[str, str]:
    state = "PENDING (parked)" if task.is_parked else task.status
    return {"called in": task.step, "task": task.task_id, "name": task.task_name, "state": state}


def _log_row(line: TaskLogLine) -> dict[str, str]:
    return {
        "attempt": str(line.attempt),
        "logged": time_text(line.at),
        "level": line.level,
        "logger": line.logger,
        "message": line.message,
    }


def _fields(record: object, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


def _cell(value: object) -> str:
    return time_text(value) if isinstance(value, datetime) else str(value)


@click.command()
@as_json_option
@subject_argument("task_id", "TASK_ID", ids=True)
def why(task_id: UUID, as_json: bool, database: Database) -> None:
    """Explain why a task is not running and what would help, the most important reason first."""
    found = database.ask(lambda connection: inspect.why(connection, task_id))
    if found is None:
        raise no_such_task(task_id)
    if as_json:
        print_json({"task_id": str(task_id), "reasons": found})
        return
    for sentence in found:
        click.echo(sentence)


@click.command()
@click.option("--busiest", is_flag=True, help="The keys with most running tasks first.")
@limit_option
@as_json_option
@database_options
def keys(busiest: bool, limit: int, as_json: bool, database: Database) -> None:
    """List the keys that have waited longest, those that run most tasks, and those that are paused."""
    found = database.ask(lambda connection: read_keys(connection, limit, busiest=busiest))
    if as_json:
        print_json({"keys": [key._asdict() for key in found]})
        return
    if not found:
        click.echo("no task with a key is running or waiting")
    print_table([_key_row(key) for key in found], right=["running", "waiting", "oldest"])


def _key_row(key: Key) -> dict[str, str]:
    state = "" if key.paused_by is None else f"paused by {key.paused_by}"
    if not state and key.allowed_in is not None:
        state = f"next start in {span(key.allowed_in)}"
    more = "+" if key.waiting >= MOST_COUNTED else ""
    return {
        "key": key.key,
        "running": f"{key.running:,}",
        "waiting": f"{key.waiting:,}{more}",
        "oldest": "" if key.oldest_seconds is None else span(key.oldest_seconds),
        "state": state,
    }


def no_such_task(task_id: UUID) -> HorsiesError:
    return HorsiesError(
        f"there is no task {task_id}",
        code=ErrorCode.TASK_NOT_FOUND,
        help_text="its record may have been deleted; `horsies tasks` lists those that there are",
    )


@click.command()
@redact_option
@database_options
def top(redact: tuple[str, ...], database: Database) -> None:
    """Watch queues, workers and tasks, refreshed every second; keys retry, cancel and pause."""
    if find_spec("textual") is None:
        raise ConfigurationError(
            "`horsies top` draws with textual, which is not installed",
            code=ErrorCode.EXTRA_NOT_INSTALLED,
            help_text=f"{how_to_install('tui')}; `horsies info --watch` needs nothing more",
        )
    # Report a problem of the database before the screen is taken over.
    database.ask(operations.suspensions)
    # textual is an extra, and takes a third of a second to import.
    from horsies.cli.tui import TopApp

    TopApp(database.postgres, actor(), Redaction(database.registry, redact)).run()
