"""Why a task is not running: the reasons one by one, the one that matters most first, and what would clear each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from uuid import UUID

from horsies.spans import span
from horsies.storage.database import Connection
from horsies.storage.statements import statements

SQL = statements("why")

# So many tasks ahead are counted; more are «more than».
MOST_AHEAD = 10_000


class Facts(NamedTuple):
    """What there is to know about a task that may keep it from running. Times are in seconds from now."""

    id: str
    task_name: str
    status: str
    queue_name: str
    is_async: bool
    priority: int
    due_in: float
    expires_in: float | None
    was_tried: bool
    error_code: str | None
    worker_hostname: str | None
    worker_pid: int | None
    since: float | None
    all_suspended: bool
    queue_suspended: bool
    workers: int
    serving: int
    is_known: bool
    queue_limit: int | None
    queue_in_flight: int
    cluster_limit: int | None
    cluster_in_flight: int
    rate_allows_in: float | None
    ahead: int
    slots: int
    running: int
    paused_workflow: str | None = None
    unknown_for: float | None = None
    asked_to_stop: float | None = None


async def why(connection: Connection, task_id: UUID) -> list[str] | None:
    """A sentence for each reason; None when there is no such task."""
    values = {"id": task_id, "most": MOST_AHEAD}
    row = await (await connection.execute(SQL["why"], values)).fetchone()
    return None if row is None else reasons(Facts._make(row))


def reasons(facts: Facts) -> list[str]:
    """Why it is not running, the real reason first."""
    if facts.status != "PENDING":
        return [_not_pending(facts)]
    found = list(_blocking(facts))
    return found or ["Nothing holds it up: it should start any moment."]


def _not_pending(facts: Facts) -> str:
    since = "" if facts.since is None else f" {span(facts.since)} ago"
    where = f" on {facts.worker_hostname}" if facts.worker_hostname else ""
    match facts.status:
        case "RUNNING" if facts.asked_to_stop is not None:
            return (
                f"It is running{where} in process {facts.worker_pid}, and was asked to stop {span(facts.asked_to_stop)} ago;"
                " when its cancel_grace_ms is over, its process is ended."
            )
        case "RUNNING":
            return f"It is running{where} in process {facts.worker_pid}; it was started{since}."
        case "CLAIMED":
            return f"A worker{where} has claimed it{since} and starts it when one of its processes is free."
        case "FAILED":
            return (
                f"It has failed{since} with {facts.error_code}; `horsies requeue {facts.id}` runs it again."
            )
        case _:
            return f"It has ended{since}: it is {facts.status}."


def _blocking(facts: Facts) -> Iterator[str]:
    if facts.expires_in is not None and facts.expires_in <= 0:
        yield "Its good_until is over: it will be EXPIRED, not run."
    if facts.all_suspended:
        yield "All queues are suspended; `horsies resume` lets workers claim again."
    if facts.queue_suspended:
        yield f"Queue {facts.queue_name} is suspended; `horsies resume --queue {facts.queue_name}` lets workers claim from it."
    if facts.paused_workflow is not None:  # it is put off until then, to a date that says nothing
        yield f"Its workflow is paused; `horsies workflows resume {facts.paused_workflow}` goes on with it."
    elif facts.unknown_for is not None:
        yield (
            f"A worker that claimed it does not know a task {facts.task_name}; for {span(facts.unknown_for)} it has waited"
            " for one that does, which starts it as soon as it comes."
        )
    elif facts.due_in > 0:
        again = "It is to be tried again" if facts.was_tried else "It is due"
        yield f"{again} in {span(facts.due_in)}; nothing needs to be done."
    if facts.workers == 0:
        yield "No worker is running; start one with `horsies worker`."
    elif facts.serving == 0:
        yield f"None of the {facts.workers} workers serves queue {facts.queue_name}; start one that does, or see their --queues."
    elif not facts.is_known:
        yield f"No worker has ever known a task {facts.task_name}: one that claims it will fail it; start one that knows it."
    yield from _limits(facts)
    if facts.ahead:
        count = f"more than {MOST_AHEAD:,}" if facts.ahead >= MOST_AHEAD else f"{facts.ahead:,}"
        yield f"It is behind {count} tasks of its queue; more workers, or a lower priority number for it, would help."
    elif facts.serving and not facts.is_async and facts.running >= facts.slots:
        yield (
            f"All {facts.slots} processes of the workers that serve its queue are busy; it starts when one is free,"
            " or with more workers."
        )


def _limits(facts: Facts) -> Iterator[str]:
    if facts.queue_limit == 0:
        yield f"Queue {facts.queue_name} is paused by max_concurrency=0; raise it and restart the workers."
    elif facts.queue_limit is not None and facts.queue_in_flight >= facts.queue_limit:
        yield (
            f"Queue {facts.queue_name} runs as many tasks as it may ({facts.queue_limit}); it starts when one ends,"
            " or with a higher max_concurrency."
        )
    if facts.cluster_limit is not None and facts.cluster_in_flight >= facts.cluster_limit:
        yield (
            f"The cluster runs as many tasks as it may ({facts.cluster_limit}); it starts when one ends,"
            " or with a higher cluster_wide_cap."
        )
    if facts.rate_allows_in is not None and facts.rate_allows_in > 0:
        yield f"The rate limit of {facts.task_name} is used up; the next start is allowed in {span(facts.rate_allows_in)}."
