"""Explain why a task is not running: each reason, the most important first, with what would remove it. Pure functions."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from horsies.units import span

# The number of tasks ahead of a task that are counted.
MOST_AHEAD = 10_000


class WaitingFacts(NamedTuple):
    """The facts that may keep a task from running. Times are in seconds from now."""

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
    knowing: int
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
    fails_in: float | None = None
    asked_to_stop: float | None = None
    key: str | None = None
    key_limit: int | None = None
    key_running: int = 0
    key_holders: Sequence[str] = ()
    key_paused_by: str | None = None
    key_allows_in: float | None = None
    in_batch: int | None = None  # the due tasks that wait for the same batch, itself included
    parked_in: str | None = None
    parked_kind: str | None = None
    parked_for: float | None = None
    open_calls: int | None = None
    follows: str | None = None


def reasons_of(facts: WaitingFacts) -> list[str]:
    """Return a sentence for each reason why the task is not running, the most important first."""
    if facts.status != "PENDING":
        return [_not_pending(facts)]
    if facts.parked_in is not None:
        return [_parked(facts)]
    found = list(_blocking(facts))
    return found or ["Nothing holds it up: it should start any moment."]


def _not_pending(facts: WaitingFacts) -> str:
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
            return f"It failed{since} with {facts.error_code}; `horsies retry {facts.id}` runs it again."
        case _:
            return f"It has ended{since}: it is {facts.status}."


def _parked(facts: WaitingFacts) -> str:
    """Return what a parked task waits for."""
    where = f"It is parked in step {facts.parked_in!r}"
    until = "" if facts.parked_for is None else f"{span(max(0.0, facts.parked_for))}"
    match facts.parked_kind:
        case "sleep":
            return f"{where} and goes on in {until or 'a moment'}."
        case "wait":
            limit = f"; it waits for {until} more" if until else ""
            return (
                f"{where} until it is signalled{limit}: "
                f"`horsies signal {facts.id} {shlex.quote(facts.parked_in or '')} VALUE`."
            )
        case _:
            count = facts.open_calls or 0
            called = "task that it has called has" if count == 1 else "tasks that it has called have"
            return f"{where} until {count:,} {called} ended; `horsies show {facts.id}` lists them."


def _blocking(facts: WaitingFacts) -> Iterator[str]:
    if facts.expires_in is not None and facts.expires_in <= 0:
        yield "Its good_until is over: it will be EXPIRED, not run."
    if facts.all_suspended:
        yield "All queues are paused; `horsies resume` lets workers claim again."
    if facts.queue_suspended:
        yield f"Queue {facts.queue_name} is paused; `horsies resume --queue {facts.queue_name}` lets workers claim from it."
    if facts.follows is not None:
        yield (
            f"It follows task {facts.follows}, which has the same unique key; it starts when that has ended."
        )
    if facts.paused_workflow is not None:  # its due time is a placeholder while the workflow is paused
        yield f"Its workflow is paused; `horsies workflows resume {facts.paused_workflow}` goes on with it."
    elif facts.unknown_for is not None:
        yield (
            f"A worker that claimed it does not know a task {facts.task_name}; for {span(facts.unknown_for)} it has waited"
            f" for one that does, which starts it as soon as it comes.{_deadline(facts)}"
        )
    elif facts.due_in > 0:
        yield f"{'It is retried' if facts.was_tried else 'It is due'} in {span(facts.due_in)}."
    yield from _missing_workers(facts)
    yield from _limits(facts)
    if facts.due_in > 0:
        return  # tasks before it may have ended by then
    if facts.in_batch is not None:
        others = facts.in_batch - 1
        beside = f" with {others:,} other{'s' if others > 1 else ''}" if others > 0 else ""
        yield (
            f"It waits{beside} to run in a batch, which starts when it is full or when its first task has waited for as long as"
            " the linger of the task."
        )
    elif facts.ahead:
        count = (
            f"more than {MOST_AHEAD:,} tasks"
            if facts.ahead >= MOST_AHEAD
            else f"{facts.ahead:,} task{'s' if facts.ahead > 1 else ''}"
        )
        if facts.key is not None:
            yield f"It is behind {count} of its key; tasks of a key start in their order."
            return
        yield f"It is behind {count} of its queue; more workers, or a lower priority number for it, would help."
        return
    if facts.serving and not facts.is_async and facts.running >= facts.slots:
        busy = (
            "The only process of the worker that serves its queue is busy; it starts when that is free,"
            if facts.slots == 1
            else f"All {facts.slots} processes of the workers that serve its queue are busy; it starts when one is free,"
        )
        yield f"{busy} or with more workers."


def _missing_workers(facts: WaitingFacts) -> Iterator[str]:
    """Yield what keeps the workers that run from claiming it."""
    if facts.workers == 0:
        yield "No worker is running; start one with `horsies worker`."
    elif facts.serving == 0:
        running = (
            "The only worker does not serve"
            if facts.workers == 1
            else f"None of the {facts.workers} workers serves"
        )
        yield f"{running} queue {facts.queue_name}; start one that does, or see the workers' --queues."
    elif not facts.is_known:
        yield (
            f"No worker has ever known a task {facts.task_name}: it fails when unknown_task_grace_seconds are over,"
            " unless you start one that knows it."
        )
    elif facts.knowing == 0 and facts.unknown_for is None:
        yield (
            f"No live worker of queue {facts.queue_name} knows a task {facts.task_name}: it fails when"
            " unknown_task_grace_seconds are over, unless you start one that knows it."
        )
    elif facts.knowing < facts.serving and facts.unknown_for is None:
        yield (
            f"Of the {facts.serving} workers that serve its queue, {facts.knowing} know"
            f"{'s' if facts.knowing == 1 else ''} a task {facts.task_name};"
            " the others leave it to them."
        )


def _deadline(facts: WaitingFacts) -> str:
    """Return when a task that no live worker knows fails."""
    if facts.fails_in is None:
        return ""
    return f" Otherwise it fails with WORKER_RESOLUTION_ERROR in {span(max(0.0, facts.fails_in))}."


def _limits(facts: WaitingFacts) -> Iterator[str]:
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
    if facts.key is not None:
        yield from _limits_of_key(facts, facts.key)


def _limits_of_key(facts: WaitingFacts, key: str) -> Iterator[str]:
    if facts.key_paused_by is not None:
        yield f"Key {key!r} was paused by {facts.key_paused_by}; `horsies resume --key {key}` lets its tasks start again."
    if facts.key_limit is not None and facts.key_running >= facts.key_limit:
        more = facts.key_running - len(facts.key_holders)
        holders = ", ".join(facts.key_holders) + (f" and {more:,} more" if more > 0 else "")
        yield (
            f"{facts.key_running:,} of {facts.key_limit:,} tasks of key {key!r} are running: {holders};"
            " it starts when one ends, or with a higher key_concurrency."
        )
    if facts.key_allows_in is not None and facts.key_allows_in > 0:
        yield f"Key {key!r} has to wait for its rate; its next task may start in {span(facts.key_allows_in)}."
