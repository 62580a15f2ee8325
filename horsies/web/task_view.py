"""Turn what is stored of a task into what its page shows: JSON to fold, frames of a traceback, and bars. Pure functions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple, cast

from horsies.codec.results import pretty
from horsies.db.queries.inspect import Attempt, TaskDetail
from horsies.db.queries.steps import StepRow
from horsies.durations import seconds_between, unbounded

# An object or a list within another is folded at first if it has more entries.
OPEN_ENTRIES = 20
# Longer documents are shown as plain text: each token is an element of the page.
MOST_TOKENS = 4_000


class Token(NamedTuple):
    """A piece of a JSON text: its text, or the beginning or the end of a part that folds."""

    kind: Literal["text", "key", "string", "number", "literal", "open", "folded", "close"]
    text: str
    entries: int = 0


class _Number(str):
    """A number as it was written, so that no digit is lost."""

    __slots__ = ()


def json_tokens(text: str | None) -> list[Token]:
    """Return a stored JSON text, indented, as tokens; a text that cannot be decoded, or a very long one, as one token."""
    try:
        value: Any = json.loads(text or "", parse_int=_Number, parse_float=_Number, parse_constant=_Number)
        found: list[Token] = []
        for token in _tokens(value, 0):
            found.append(token)
            if len(found) > MOST_TOKENS:
                return [Token("text", pretty(text))]
        return found
    except (ValueError, RecursionError):
        return [Token("text", pretty(text))]


def _tokens(value: Any, depth: int) -> Iterator[Token]:
    if isinstance(value, dict) and value:
        fields = cast("dict[str, Any]", value)
        yield from _folding("{", "}", _entries(fields, depth), len(fields), depth)
    elif isinstance(value, list) and value:
        items = cast("list[Any]", value)
        yield from _folding("[", "]", (_tokens(each, depth + 1) for each in items), len(items), depth)
    elif isinstance(value, _Number):
        yield Token("number", str(value))
    else:
        yield Token("string" if isinstance(value, str) else "literal", _quoted(value))


def _quoted(value: Any) -> str:
    """Return a value as JSON; a text that cannot be sent in UTF-8, such as a lone surrogate, with escapes."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return text


def _entries(value: dict[str, Any], depth: int) -> Iterator[Iterator[Token]]:
    for key, each in value.items():
        yield _entry(key, each, depth)


def _entry(key: str, value: Any, depth: int) -> Iterator[Token]:
    yield Token("key", _quoted(key))
    yield Token("text", ": ")
    yield from _tokens(value, depth + 1)


def _folding(
    first: str, last: str, entries: Iterator[Iterator[Token]], count: int, depth: int
) -> Iterator[Token]:
    yield Token("folded" if depth and count > OPEN_ENTRIES else "open", first, count)
    for number, entry in enumerate(entries):
        yield Token("text", ("," if number else "") + "\n" + "  " * (depth + 1))
        yield from entry
    yield Token("text", "\n" + "  " * depth)
    yield Token("close", last)


# Tracebacks


class Frame(NamedTuple):
    """A frame of a traceback. It is the project's own unless its file belongs to Python, to horsies or to another package."""

    file: str
    line: int
    function: str
    code: str
    own: bool


_FRAME = re.compile(r'^  File "(?P<file>[^"\n]*)", line (?P<line>\d+)(?:, in (?P<function>.*))?$')
_FOREIGN = re.compile(
    r"[/\\](?:site-packages|dist-packages)[/\\]|[/\\]lib[/\\]python\d|^<|[/\\]Lib[/\\](?!site)"
    r"|[/\\]horsies[/\\](?:executor|codec|worker|db|workflow|middleware|task|registry|result|outcomes|event_loop)\b"
)


def frames(traceback: str | None) -> list[Frame]:
    """Return the frames of a traceback with the project's own first, the latest call first in each part."""
    found: list[Frame] = []
    code: list[str] = []
    for line in (traceback or "").splitlines():
        match = _FRAME.match(line)
        if match:
            file, code = match["file"], []
            found.append(
                Frame(file, int(match["line"][:9]), match["function"] or "", "", not _FOREIGN.search(file))
            )
        elif found and line.startswith("    "):
            # The lines below the code mark the part of it that failed: they say nothing without the code's own indentation.
            if line.strip(" ^~") and "[Previous line repeated" not in line:
                code.append(line[4:])
                found[-1] = found[-1]._replace(code="\n".join(code))
        else:
            code = []
    found.reverse()
    return sorted(found, key=lambda frame: not frame.own)


# The time line


class Bar(NamedTuple):
    """A part of an attempt: its kind (scheduled, waiting, or the outcome), its seconds, and its place in percent."""

    kind: str
    seconds: float
    start: float
    length: float


class AttemptBars(NamedTuple):
    attempt: Attempt | None  # None while the task waits for its first or next attempt
    number: int
    bars: list[Bar]


class StepBar(NamedTuple):
    """A step of a durable task; the bar of one that has not ended goes on until now."""

    step: StepRow
    bar: Bar


class Timeline(NamedTuple):
    rows: list[AttemptBars]
    step_bars: list[StepBar]


_Part = tuple[str, datetime, datetime]


def timeline_of(
    task: TaskDetail, attempts: Sequence[Attempt], steps: Sequence[StepRow], now: datetime
) -> Timeline:
    """Return a row of bars for each attempt, the first one first, and a bar for each step, all to one scale."""
    in_order = [each for each in reversed(attempts) if each.started_at is not None]
    is_whole = not in_order or in_order[0].attempt <= 1
    first = min(task.sent_at, task.enqueued_at) if is_whole else in_order[0].started_at or task.sent_at
    rows = _parts_of_attempts(task, in_order, first, now, is_whole=is_whole, is_durable=bool(steps))
    ends = [end for _, _, parts in rows for _, _, end in parts]
    last = max((*ends, *(step.ended_at or now for step in steps)), default=now)
    whole = _seconds(first, last) or 0.001
    return Timeline(
        [
            AttemptBars(
                attempt,
                number,
                [_bar(kind, start, end, first, whole) for kind, start, end in parts if start <= end],
            )
            for attempt, number, parts in rows
        ],
        [
            StepBar(step, _bar(step.kind, step.started_at, step.ended_at or now, first, whole))
            for step in steps
        ],
    )


def _parts_of_attempts(
    task: TaskDetail,
    in_order: Sequence[Attempt],
    first: datetime,
    now: datetime,
    *,
    is_whole: bool,
    is_durable: bool,
) -> list[tuple[Attempt | None, int, list[_Part]]]:
    """Return the parts of each attempt: its waits, and its run."""
    waits = task.terminal_at is None and (not in_order or in_order[-1].finished_at is not None)
    found: list[tuple[Attempt | None, int, list[_Part]]] = []
    since = first
    for place, each in enumerate(in_order, 1):
        assert each.started_at is not None
        due = task.enqueued_at if place == len(in_order) and not waits else None
        if is_durable and place == 1:
            due = None  # it became due again each time it was parked
        ended = each.finished_at or now
        parts = [
            *_wait(since, each.started_at, due, "scheduled" if place == 1 and is_whole else "retry delay")
        ]
        found.append((each, each.attempt, [*parts, (each.outcome.lower(), each.started_at, ended)]))
        since = ended
    if waits and is_durable:
        found.append((None, len(in_order) + 1, [("parked", since, now)]))
    elif waits:
        number = in_order[-1].attempt + 1 if in_order else 1
        label = "retry delay" if in_order else "scheduled"
        found.append((None, number, [*_wait(since, now, task.enqueued_at, label)]))
    return found


def _wait(since: datetime, until: datetime, due: datetime | None, label: str) -> Iterator[_Part]:
    """Divide a wait: until the task was due, and then until a worker was free. Only the last due time is stored."""
    if due is not None and due > since:
        yield label, since, min(due, until)
        since = due
    if since < until:
        yield "waiting", since, until


def _bar(kind: str, start: datetime, end: datetime, first: datetime, whole: float) -> Bar:
    seconds = _seconds(start, end)
    at = min(99.6, 100 * _seconds(first, start) / whole)
    return Bar(kind, seconds, round(at, 3), round(min(100 - at, max(0.4, 100 * seconds / whole)), 3))


def _seconds(began: datetime, ended: datetime) -> float:
    """Return the seconds between two times, which people may have set to infinity in the database."""
    if unbounded(began) or unbounded(ended):
        return 0.0
    return max(0.0, seconds_between(began, ended))
