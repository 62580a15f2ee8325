"""The list of tasks: its columns, its orders, and the arguments that tell one task from another."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, cast

from horsies.db.queries.inspect import PageStart, TaskOrder, TaskPage, TaskRow
from horsies.web.requests import HttpError

# The columns that a viewer may choose besides the state and the name, each with the key that it is sorted by.
COLUMNS: Mapping[str, tuple[str, str | None]] = {
    "id": ("Id", None),
    "queue": ("Queue", "queue"),
    "arguments": ("Arguments", None),
    "error": ("Error", "error"),
    "worker": ("Worker", None),
    "priority": ("Priority", "priority"),
    "sent": ("Sent", "sent"),
    "ended": ("Ended", "ended"),
    "wait": ("Waited", "wait"),
    "run": ("Run time", "run"),
    "attempts": ("Attempts", "attempts"),
}
NUMBERS = frozenset({"priority", "wait", "run", "attempts"})
_USUAL = ("queue", "arguments", "sent", "wait", "run", "attempts")
_OF_FAILURES = ("queue", "arguments", "error", "ended", "attempts")
# The keys that are sorted from the highest value down when they are chosen first.
_DESCENDING_FIRST = frozenset({"run", "wait", "ended", "sent", "attempts"})


class TaskList(NamedTuple):
    """A page of the list of tasks as a viewer asked for it.

    `newer` counts matching tasks above a pinned page. `order` is None if the newest tasks are first. `page_number` counts the
    pages of a sorted list.
    """

    page: TaskPage
    newer: int
    order: TaskOrder | None
    page_number: int
    has_more: bool


def parse_columns(given: str | None, status: str | None) -> list[str]:
    """Return the columns to show, in their fixed order; the usual ones of a list if none is given.

    >>> parse_columns("run,id,run", None), parse_columns(None, "FAILED")
    (['id', 'run'], ['queue', 'arguments', 'error', 'ended', 'attempts'])
    """
    if not given:
        return list(_OF_FAILURES if status == "FAILED" else _USUAL)
    chosen = set(given.split(",")) - {""}
    if unknown := sorted(chosen - set(COLUMNS)):
        raise HttpError(400, f"There is no column {unknown[0][:50]!r}.", f"Use {', '.join(COLUMNS)}.")
    return [column for column in COLUMNS if column in chosen]


def sort_links(order: TaskOrder | None) -> dict[str, str | None]:
    """Return the value of `sort` that the header of each column links to; None leads back to the newest first.

    >>> sort_links(TaskOrder("run", True))["run"], sort_links(None)["run"]
    ('run', '-run')
    """
    links: dict[str, str | None] = {}
    for key in ("task", "status", *(key for _, key in COLUMNS.values() if key is not None)):
        first, second = (f"-{key}", key) if key in _DESCENDING_FIRST else (key, f"-{key}")
        chosen = None if order is None or order.sort != key else f"{'-' * order.descending}{key}"
        links[key] = {None: first, first: second, second: None}[chosen]
    return links


def pin_text(pin: PageStart | None) -> str:
    """Return the start of a page as its address names it."""
    return "" if pin is None else f"{pin.before},{pin.ended}"


# Names that say which thing a task is about come first among its arguments.
_TELLING = ("id", "key", "name", "email", "to", "user", "customer", "order", "account", "url", "path", "file")
MOST_ARGUMENTS, MOST_CHARACTERS = 4, 40


def key_arguments(text: str | None) -> list[tuple[str, str]]:
    """Return the arguments that tell most about a task, with short values; the JSON text may be cut.

    >>> key_arguments('{"pages": 3, "items": [1, 2], "order_id": 17, "to": "ann@exa')
    [('order_id', '17'), ('pages', '3'), ('items', '2 items')]
    """
    found = list(_members(text or ""))
    telling = [pair for pair in found if _tells(pair[0]) and not isinstance(pair[1], (dict, list))]
    plain = [pair for pair in found if pair not in telling and not isinstance(pair[1], (dict, list))]
    nested = [pair for pair in found if isinstance(pair[1], (dict, list))]
    return [(name, _short(value)) for name, value in (*telling, *plain, *nested)[:MOST_ARGUMENTS]]


def _tells(name: str) -> bool:
    lowered = name.casefold()
    return lowered in _TELLING or lowered.endswith(("_id", "_key", "id", "_name"))


def _members(text: str) -> Iterator[tuple[str, Any]]:
    """Yield the complete members of a JSON object that may be cut or no object at all."""
    decoder = json.JSONDecoder()
    place = text.find("{") + 1
    if not place or text[: place - 1].strip():
        return
    while True:
        try:
            name, place = decoder.raw_decode(text, _skip(text, place, ","))
            value, place = decoder.raw_decode(text, _skip(text, place, ":"))
        except (ValueError, RecursionError):
            return
        if not isinstance(name, str) or (_skip(text, place, "") == len(text) and not isinstance(value, str)):
            return  # a number at the end of a text that was cut may lack digits
        yield name, value


def _skip(text: str, place: int, mark: str) -> int:
    """Return the next place that is neither blank nor the mark."""
    while place < len(text) and (text[place].isspace() or text[place] == mark):
        place += 1
    return place


def _short(value: Any) -> str:
    match value:
        case str():
            shown = " ".join(value.split())
        case list() | dict():
            count = len(cast("Sequence[Any]", value))
            shown = f"{count} {'item' if count == 1 else 'items'}" if isinstance(value, list) else "{…}"
        case _:
            shown = json.dumps(value)
    return shown if len(shown) <= MOST_CHARACTERS else shown[: MOST_CHARACTERS - 1] + "…"


def failed_at(task: TaskRow) -> datetime | None:
    """Return the time at which a task ended, also if it failed in the live table."""
    return task.terminal_at or task.failed_at
