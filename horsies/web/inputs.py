"""What comes in with a request, read strictly: whatever makes no sense is refused with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from starlette.requests import Request

from horsies.spans import seconds_of
from horsies.status import TaskStatus, WorkflowStatus
from horsies.storage.sights import Place, Wanted
from horsies.web.refusals import Refusal
from horsies.web.series import RANGES

T = TypeVar("T")

PAGE, LONGEST_PAGE = 50, 500
LONGEST_TEXT = 500
LONGEST_BODY = 4_000_000


class Names(msgspec.Struct, forbid_unknown_fields=True):
    """Which tasks are meant by a filter."""

    status: str | None = None
    queue: str | None = None
    name: str | None = None
    code: str | None = None


class Bulk(msgspec.Struct, forbid_unknown_fields=True):
    """Some tasks, by their ids or by a filter; `dry_run` only counts them."""

    ids: list[UUID] | None = None
    filter: Names | None = None
    dry_run: bool = False


class OfQueue(msgspec.Struct, forbid_unknown_fields=True):
    """A queue, or all of them."""

    queue: str | None


class OfSchedule(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class NewArguments(msgspec.Struct, forbid_unknown_fields=True):
    """The arguments of a task by name."""

    kwargs: dict[str, Any]


def task_id_of(request: Request, name: str = "task_id") -> UUID:
    given = request.path_params[name]
    try:
        return UUID(given)
    except ValueError:
        raise Refusal(404, f"{given[:100]!r} is no id.", "An id is a UUID, such as 019a…") from None


def range_of(request: Request) -> str:
    return _one_of(request.query_params.get("range", "5m"), "range", RANGES)


def wanted(query: Mapping[str, str]) -> Wanted:
    """The tasks that a query asks for."""
    values = {name: _text(query, name) for name in Wanted._fields}
    if values["status"] is not None:
        values["status"] = _one_of(values["status"].upper(), "status", TaskStatus)
    return Wanted(**values)


def workflows_wanted(query: Mapping[str, str]) -> dict[str, Any]:
    status = _text(query, "status")
    return {
        "status": None if status is None else _one_of(status.upper(), "status", WorkflowStatus),
        "name": _text(query, "name"),
        "parts": query.get("parts") == "1",
    }


def schedules_wanted(query: Mapping[str, str]) -> tuple[str | None, str, int]:
    """Words in their names, the name after which the page begins, and how many."""
    _text(query, "after")  # refused if it cannot be a name; yet blanks at its ends belong to it
    return _text(query, "q"), query.get("after", ""), limit(query)


def place(query: Mapping[str, str]) -> Place:
    """Where a page begins."""
    before, ended = query.get("before"), query.get("ended")
    try:
        return Place(
            Place().before if not before else UUID(before),
            "infinity" if not ended or ended == "infinity" else datetime.fromisoformat(ended).isoformat(),
        )
    except ValueError:
        raise Refusal(400, "The place in the list cannot be read.", "Begin with the first page.") from None


def since(query: Mapping[str, str]) -> timedelta | None:
    given = _text(query, "since")
    if given is None:
        return None
    try:
        return timedelta(seconds=seconds_of(given))
    except (ValueError, OverflowError):
        raise Refusal(400, f"since is {given!r}.", "Write 30s, 15m, 12h or 7d.") from None


def limit(query: Mapping[str, str]) -> int:
    given = query.get("limit", str(PAGE))
    if not given.isascii() or not given.isdigit() or not 1 <= int(given[:9]) <= LONGEST_PAGE:
        raise Refusal(400, f"limit is {given[:20]!r}.", f"Use a number from 1 to {LONGEST_PAGE}.")
    return int(given)


async def body(request: Request, kind: type[T]) -> T:
    """The JSON that an action came with."""
    received = b""
    async for chunk in request.stream():
        received += chunk
        if len(received) > LONGEST_BODY:
            raise Refusal(413, f"The request is longer than {LONGEST_BODY:,} bytes.")
    try:
        return msgspec.json.decode(received or b"{}", type=kind)
    except msgspec.DecodeError as error:
        raise Refusal(
            400, f"The request cannot be read: {error}.", "See the API's page for what it takes."
        ) from None


def _text(query: Mapping[str, str], name: str) -> str | None:
    given = query.get(name, "").strip()
    if len(given) > LONGEST_TEXT:
        raise Refusal(400, f"{name} is longer than {LONGEST_TEXT} characters.")
    if "\0" in given:
        raise Refusal(400, f"{name} has a NUL in it, which no task has.")
    return given or None


def _one_of(given: str, name: str, known: Any) -> str:
    if given not in list(known):
        raise Refusal(400, f"{name} is {given[:50]!r}.", f"Use one of {', '.join(known)}.")
    return given
