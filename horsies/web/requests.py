"""Read requests strictly, and answer them: JSON on success, a message and a remedy on failure, never a stack trace."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import msgspec
import psycopg
from psycopg import errors
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from horsies.codec.values import NotEncodable, check_nul
from horsies.db.connection import TRANSIENT
from horsies.db.queries.inspect import FIRST_PAGE, SORTS, PageStart, TaskFilter, TaskOrder
from horsies.durations import seconds_of
from horsies.errors import HorsiesError, mask_passwords
from horsies.status import TaskStatus, WorkflowStatus
from horsies.web.charts import RANGES, Range
from horsies.web.state import READ_SECONDS

T = TypeVar("T")

logger = logging.getLogger("horsies.web")

DEFAULT_LIMIT, MAX_LIMIT = 50, 500
MAX_TEXT = 500
MAX_BODY_BYTES = 4_000_000
# Timestamps that PostgreSQL can store and Python cannot, as `next.ended` gives them.
_TIMESTAMP_BEYOND_PYTHON = re.compile(
    r"-?infinity|[0-9]{4,6}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])T[0-9:.+-]{8,30} BC"
    r"|(?:[1-9][0-9]{4}|[12][0-9]{5})-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])T[0-9:.+-]{8,30}"
)
_SMALL_NUMBER = re.compile("[1-9][0-9]{0,3}")


class HttpError(Exception):
    """An error answer: an HTTP status, a message, and a remedy if there is one."""

    def __init__(self, status: int, message: str, remedy: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.remedy = remedy


def not_found(what: str) -> HttpError:
    return HttpError(404, f"There is no {what}.", "It may have been deleted at the end of its retention.")


def http_error_of(error: Exception) -> HttpError:
    """Return the error to show to the viewer, and log an error that only an operator can fix."""
    match error:
        case HttpError():
            return error
        case ClientDisconnect():
            return HttpError(400, "The connection closed before the request was complete.")
        case errors.QueryCanceled():
            problem = f"The database did not answer the query within {READ_SECONDS} s."
            return HttpError(503, problem, "Narrow it down: a shorter time range, one queue, one task name.")
        case errors.UndefinedTable() | errors.UndefinedColumn() | errors.UndefinedFunction():
            return HttpError(
                503,
                "The database schema does not match this version of the dashboard.",
                "Run: horsies migrate",
            )
        case errors.InsufficientPrivilege():
            problem = f"The dashboard's database role lacks a privilege: {error.diag.message_primary}."
            return HttpError(403, problem, "Use the role horsies_viewer, or horsies_operator for actions.")
        case HorsiesError():
            return HttpError(503, mask_passwords(error.message), error.help_text)
        case _ if isinstance(error, TRANSIENT):
            logger.warning("the database cannot be reached (%s)", type(error).__name__)
            return HttpError(
                503, "The database cannot be reached.", "This page reloads when the database is back."
            )
        case psycopg.Error():
            logger.warning("the database refused a request: %s", mask_passwords(str(error)))
            return HttpError(
                500,
                f"The database refused the request ({type(error).__name__}).",
                "See the dashboard's log for details.",
            )
        case _:
            logger.error("a request failed", exc_info=error)
            return HttpError(
                500,
                "The dashboard has a bug and could not answer.",
                "See the dashboard's log for details, and please report them.",
            )


def json_response(document: dict[str, Any], status: int = 200) -> Response:
    """Answer with a JSON object, and the time of the answer as `at`."""
    body = msgspec.json.encode({**document, "at": datetime.now(UTC)})
    return Response(body, status, media_type="application/json")


def as_dicts(records: Sequence[Any], names: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Return the fields of each record, all or those named."""
    return [fields_of(record, names or record._fields) for record in records]


def fields_of(record: Any, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


def parse_id(request: Request, name: str = "task_id") -> UUID:
    """Return the id in the path of a request."""
    given = request.path_params[name]
    try:
        return UUID(given)
    except ValueError:
        raise HttpError(404, f"{given[:100]!r} is not an id.", "An id is a UUID, such as 019a…") from None


def parse_range(query: Mapping[str, str]) -> Range:
    return RANGES[_one_of(query.get("range", "5m"), "range", RANGES)]


def parse_by(query: Mapping[str, str]) -> str | None:
    """Return what a chart is broken down by: "queue", "task" or nothing."""
    given = query.get("by")
    return _one_of(given, "by", ("queue", "task")) if given else None


def parse_task_filter(query: Mapping[str, str]) -> TaskFilter:
    values = {name: _text(query, name) for name in TaskFilter._fields}
    if values["status"] is not None:
        values["status"] = _one_of(values["status"].upper(), "status", TaskStatus)
    return TaskFilter(**values)


def parse_order(query: Mapping[str, str]) -> TaskOrder | None:
    """Return the order that a list of tasks is sorted in, None for the newest first."""
    given = _text(query, "sort")
    if given is None:
        return None
    key = _one_of(given.removeprefix("-"), "sort", SORTS)
    return TaskOrder(key, given.startswith("-"))


def parse_window(query: Mapping[str, str]) -> tuple[datetime, datetime] | None:
    """Return the time span `from` to `until` in which tasks ended, None if the query names none."""
    first, last = _text(query, "from"), _text(query, "until")
    if first is None and last is None:
        return None
    since = parse_time("from", first) if first is not None else datetime.min.replace(tzinfo=UTC)
    until = parse_time("until", last) if last is not None else datetime.now(UTC)
    if since >= until:
        raise HttpError(400, "from is not before until.")
    return since, until


def parse_time(name: str, given: str) -> datetime:
    """Return a time such as 2026-07-01T08:00:00Z; without a zone it is in UTC."""
    try:
        found = datetime.fromisoformat(given)
        return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise HttpError(400, f"{name} is {given[:50]!r}.", "Write a time as 2026-07-01T08:00:00Z.") from None


def parse_pin(query: Mapping[str, str]) -> PageStart | None:
    """Return the start of the page that a viewer looks at."""
    before, comma, ended = (query.get("pin") or "").partition(",")
    return parse_page_start({"before": before, "ended": ended}) if comma else None


def parse_page_number(query: Mapping[str, str]) -> int:
    """Return the number of the page of a sorted list, from 1."""
    given = query.get("page", "1")
    if _SMALL_NUMBER.fullmatch(given) is None:
        raise HttpError(400, f"page is {given[:20]!r}.", "Use a number from 1, in plain digits.")
    return int(given)


def parse_workflow_filter(query: Mapping[str, str]) -> dict[str, Any]:
    status = _text(query, "status")
    return {
        "status": None if status is None else _one_of(status.upper(), "status", WorkflowStatus),
        "name": _text(query, "name"),
        "parts": query.get("parts") == "1",
    }


def parse_schedule_page(query: Mapping[str, str]) -> tuple[str | None, str, int]:
    """Return the search text, the name after which the page begins, and the number of rows."""
    _text(query, "after")  # only validates it: blanks at its ends belong to the name
    return _text(query, "q"), query.get("after", ""), parse_limit(query)


def parse_page_start(query: Mapping[str, str]) -> PageStart:
    """Return the position in the list at which the page begins."""
    before, ended = query.get("before"), query.get("ended") or "infinity"
    try:
        if _TIMESTAMP_BEYOND_PYTHON.fullmatch(ended) is None:
            ended = datetime.fromisoformat(ended).isoformat()
        return PageStart(UUID(before) if before else FIRST_PAGE.before, ended)
    except ValueError:
        raise HttpError(400, "The position in the list is invalid.", "Start from the first page.") from None


def parse_since(query: Mapping[str, str]) -> timedelta | None:
    given = _text(query, "since")
    if given is None:
        return None
    try:
        return timedelta(seconds=seconds_of(given))
    except ValueError as error:
        raise HttpError(400, f"since is invalid: {error}.", "Write 30s, 15m, 12h or 7d.") from None


def parse_limit(query: Mapping[str, str]) -> int:
    """Return the number of rows that a query asks for; refuse anything but plain decimal digits."""
    given = query.get("limit", str(DEFAULT_LIMIT))
    if _SMALL_NUMBER.fullmatch(given) is None or int(given) > MAX_LIMIT:
        raise HttpError(
            400, f"limit is {given[:20]!r}.", f"Use a number from 1 to {MAX_LIMIT}, in plain digits."
        )
    return int(given)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Read the body of a request, and refuse it as soon as it is known to be longer than `max_bytes`."""
    too_long = HttpError(413, f"The request is longer than {max_bytes:,} bytes.", "Send less.")
    announced = request.headers.get("content-length", "0")
    if announced.isascii() and announced.isdigit() and int(announced[:19]) > max_bytes:
        raise too_long
    received = bytearray()
    async for chunk in request.stream():
        if len(received) + len(chunk) > max_bytes:
            raise too_long
        received += chunk
    return bytes(received)


async def read_json(request: Request, kind: type[T]) -> T:
    """Return the JSON body of an action."""
    received = await read_body(request, MAX_BODY_BYTES)
    try:
        check_nul(received)
        return msgspec.json.decode(received or b"{}", type=kind)
    except (msgspec.MsgspecError, NotEncodable, RecursionError) as error:
        raise HttpError(
            400, f"The request body is invalid: {error}.", "The page API lists the fields of each call."
        ) from None


def _text(query: Mapping[str, str], name: str) -> str | None:
    given = query.get(name, "").strip()
    if len(given) > MAX_TEXT:
        raise HttpError(400, f"{name} is longer than {MAX_TEXT} characters.")
    if "\0" in given:
        raise HttpError(400, f"{name} contains a NUL character, which PostgreSQL cannot store.")
    return given or None


def _one_of(given: str, name: str, known: Any) -> str:
    if given not in list(known):
        raise HttpError(400, f"{name} is {given[:50]!r}.", f"Use one of {', '.join(known)}.")
    return given
