"""The tasks of a bulk action, as requests name them: by their ids, or by the filter of a list."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec

from horsies.db.queries.operations import Selection
from horsies.durations import seconds_of
from horsies.status import TaskStatus
from horsies.web.requests import HttpError

MAX_IDS = 1_000


class BulkFilter(msgspec.Struct, forbid_unknown_fields=True):
    """The filter of a bulk action: a task must match every field that is given. The fields are those of the list of tasks."""

    status: TaskStatus | None = None
    queue: str | None = None
    name: str | None = None
    code: str | None = None
    q: str | None = None
    key: str | None = None
    kind: str | None = None
    since: str | None = None
    ended_from: datetime | None = msgspec.field(default=None, name="from")
    ended_until: datetime | None = msgspec.field(default=None, name="until")


class Bulk(msgspec.Struct, forbid_unknown_fields=True):
    """Some tasks, by their ids or by a filter; `dry_run` only counts them."""

    ids: list[UUID] | None = None
    filter: BulkFilter | None = None
    dry_run: bool = False


class Restored(msgspec.Struct, forbid_unknown_fields=True):
    """The tasks of a cancel that is undone: its selection, and the time span in which it cancelled them."""

    cancelled_from: datetime
    cancelled_until: datetime
    ids: list[UUID] | None = None
    filter: BulkFilter | None = None


def parse_bulk_filter(query: Mapping[str, str]) -> BulkFilter:
    """Return the filter in the query of a list of tasks."""
    given = {name: value for name in BulkFilter.__struct_encode_fields__ if (value := query.get(name))}
    if "status" in given:
        given["status"] = given["status"].upper()
    try:
        return msgspec.convert(given, BulkFilter, strict=False)
    except msgspec.ValidationError as error:
        raise HttpError(400, f"The filter is invalid: {error}.") from None


def selection(given: BulkFilter | None, ids: list[UUID] | None, *, in_arguments: bool) -> Selection:
    """Return the tasks that a bulk action names; refuse one that names none, or all."""
    if (ids is None) == (given is None):
        raise HttpError(400, "Name the tasks: give either ids or a filter.")
    if ids is not None and len(ids) > MAX_IDS:
        problem = f"The request names {len(ids):,} ids, more than {MAX_IDS:,}."
        raise HttpError(400, problem, "Use a filter instead.")
    which = Selection(ids) if given is None else _selected(given, in_arguments)
    if which.is_empty:
        raise HttpError(
            400,
            "The filter is empty, so it would match every task.",
            "Give at least one of status, queue, name and code, or the ids of the tasks.",
        )
    return which


def _selected(given: BulkFilter, in_arguments: bool) -> Selection:
    which = Selection(
        None,
        given.status,
        given.queue,
        given.name,
        given.code,
        given.q,
        in_arguments,
        ended_since=given.ended_from,
        ended_until=given.ended_until,
        key=given.key,
        kind=given.kind,
    )
    if given.since is None:
        return which
    try:
        moment = datetime.now(UTC) - timedelta(seconds=seconds_of(given.since))
    except ValueError as error:
        raise HttpError(400, f"since is invalid: {error}.", "Write 30s, 15m, 12h or 7d.") from None
    if given.status == "FAILED":
        return which._replace(ended_since=max(moment, which.ended_since or moment))
    return which._replace(sent_since=first_id_at(moment))


def first_id_at(moment: datetime) -> UUID:
    """Return the lowest id that a task sent at this time can have."""
    return UUID(int=max(0, int(moment.timestamp() * 1000)) << 80)
