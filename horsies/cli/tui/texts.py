"""What `horsies top` writes into its tables: pure functions from what is known to cells.

Names and messages may hold anything. They are written as text, never as markup, and control characters are written out.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from rich.text import Text

from horsies.cli.inspect import age, shortened
from horsies.cli.tables import printable
from horsies.cli.tui.source import Closeup
from horsies.spans import span
from horsies.storage.monitor import Filter, QueueState, TaskState, WorkerState

QUEUE_COLUMNS = ("queue", "pending", "scheduled", "running", "failed", "oldest", "state")
WORKER_COLUMNS = ("worker", "state", "running", "slots", "queues", "up", "last beat")
TASK_COLUMNS = ("task", "queue", "state", "sent", "attempts", "error", "message")
_COLOURS = {
    "FAILED": "red",
    "RUNNING": "green",
    "EXPIRED": "yellow",
    "CANCELLED": "yellow",
    "COMPLETED": "dim",
}


def queue_cells(queue: QueueState) -> list[Text]:
    oldest = "" if queue.oldest_pending_seconds is None else span(queue.oldest_pending_seconds)
    held = queue.claimed + queue.running
    numbers = (queue.pending, queue.scheduled, held, queue.failed)
    state = "suspended" if queue.suspended else ""
    return [
        _text(queue.name),
        *(_text(f"{number:,}") for number in numbers),
        _text(oldest),
        _text(state, "yellow"),
    ]


def worker_cells(worker: WorkerState) -> list[Text]:
    cells = (str(worker.tasks_running), str(worker.processes), ", ".join(worker.queues))
    return [
        _text(f"{worker.hostname}:{worker.pid}"),
        _text(worker.state, "red" if worker.state == "dead" else ""),
        *map(_text, cells),
        _text(age(worker.started_at)),
        _text(f"{age(worker.last_beat_at)} ago"),
    ]


def task_cells(task: TaskState) -> list[Text]:
    return [
        _text(task.task_name),
        _text(task.queue_name),
        _text(task.status, _COLOURS.get(task.status, "")),
        _text(f"{age(task.sent_at)} ago"),
        _text(str(task.attempts)),
        _text(task.error_code or ""),
        _text(shortened(task.message or "")),
    ]


def closeup(found: Closeup) -> Text:
    """One task in full: what it is, why it does not run, its arguments, its result and its attempts."""
    task, payload, attempts, reasons = found
    facts = {
        "task": task.task_name, "id": task.task_id, "queue": task.queue_name, "state": task.status,
        "priority": task.priority, "sent": f"{age(task.sent_at)} ago", "error": task.error_code,
    }  # fmt: skip
    text = Text()
    for name, value in facts.items():
        if value is not None:
            text.append(f"{name:<10}", "bold").append(printable(str(value))).append("\n")
    for title, lines in (
        ("why", reasons),
        ("arguments", _json(payload.args, payload.kwargs)),
        ("result", _json(payload.result)),
        ("attempts", [_attempt(attempt) for attempt in attempts]),
    ):
        text.append(f"\n{title}\n", "bold")
        for line in lines or ["none"]:
            text.append(f"  {printable(line)}\n")
    return text


def _attempt(row: tuple[object, ...]) -> str:
    _, number, outcome, retried, _, _, code, message, *_ = row
    end = f"{outcome}{', retried' if retried else ''}"
    return f"{number}  {end}  {code or ''}  {shortened(str(message or ''))}"


def _json(*stored: str | None) -> list[str]:
    """Stored JSON, indented; anyone may have written that row, so what is none is shown as it is."""
    lines: list[str] = []
    for text in stored:
        if text is None:
            continue
        try:
            lines += msgspec.json.format(text).splitlines()
        except msgspec.DecodeError:
            lines += text.splitlines()
    return lines


def parse_filter(words: str) -> Filter:
    """What was typed as a filter: `queue:mail state:failed code:TIMEOUT`, and a bare word is the name of a task.

    >>> parse_filter("send_mail queue:mail")
    Filter(status=None, queue='mail', name='send_mail', code=None)
    """
    fields = {"queue": "queue", "state": "status", "code": "code", "task": "name"}
    found: dict[str, str] = {}
    for word in words.split():
        key, colon, value = word.partition(":")
        if colon and key in fields:
            found[fields[key]] = value.upper() if key == "state" else value
        else:
            found["name"] = word
    return Filter(**found)


def told(parts: Iterable[str]) -> str:
    return "   ".join(part for part in parts if part)


def _text(cell: str, style: str = "") -> Text:
    return Text(printable(cell), style)
