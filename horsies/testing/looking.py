"""See what was sent and waits."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from horsies.broker import Broker
from horsies.codec import ArgumentError
from horsies.portal import run_sync
from horsies.registry import AnyTask, TaskRegistry
from horsies.storage import testing
from horsies.storage.testing import Waiting


class Enqueued(NamedTuple):
    """A task that waits. Its arguments are as the task will get them."""

    task_id: str
    task_name: str
    queue_name: str
    priority: int
    kwargs: dict[str, Any]
    due_at: datetime
    retry_count: int
    tags: list[str]


def enqueued(app: TaskRegistry, *, queue: str | None = None) -> list[Enqueued]:
    """The tasks that were sent and have not begun, oldest first, due or not.

    >>> [task.task_name for task in enqueued(app, queue="mail")]
    ['send_mail']
    """
    rows = run_sync(_waiting(app.get_broker(), None, queue))
    return [_typed(row, app.tasks.get(row.task_name)) for row in rows]


def assert_enqueued(
    task: AnyTask,
    *,
    kwargs: Mapping[str, Any] | None = None,
    queue: str | None = None,
    count: int | None = None,
) -> list[Enqueued]:
    """Fail unless this task waits, with these arguments among others and in this queue; gives those that do.

    With `count` there must be exactly so many, 0 for none; without it, one or more.

    >>> assert_enqueued(send_mail, kwargs={"to": "ann@example.org"}, queue="mail", count=1)
    """
    there = [_typed(row, task) for row in run_sync(_waiting(task.broker, task.name, None))]
    found = [each for each in there if _fits(each, kwargs or {}, queue)]
    if len(found) == count or (count is None and found):
        return found
    wanted = f"{'at least 1' if count is None else count} of task {task.name!r}"
    wanted += "" if kwargs is None else f" with {dict(kwargs)!r}"
    wanted += "" if queue is None else f" in queue {queue!r}"
    seen = "".join(f"\n  {each.task_name} in {each.queue_name} with {each.kwargs!r}" for each in there)
    raise AssertionError(
        f"expected {wanted} to wait, found {len(found)}; of this task there are:{seen or ' none'}"
    )


async def _waiting(broker: Broker, name: str | None, queue: str | None) -> list[Waiting]:
    async with broker.connection() as connection:
        return await testing.waiting(connection, name, queue)


def _typed(row: Waiting, task: AnyTask | None) -> Enqueued:
    return Enqueued(
        row.id,
        row.task_name,
        row.queue_name,
        row.priority,
        _kwargs(row, task),
        row.due_at,
        row.retry_count,
        row.tags,
    )


def _kwargs(row: Waiting, task: AnyTask | None) -> dict[str, Any]:
    """The arguments by name, as annotated; as plain JSON if some are still to come from other nodes of a workflow."""
    try:
        if task is not None:
            return task.definition.signature.decode(row.args, row.kwargs)
    except ArgumentError:
        pass
    return msgspec.json.decode(row.kwargs or "{}")


def _fits(each: Enqueued, kwargs: Mapping[str, Any], queue: str | None) -> bool:
    in_queue = queue is None or each.queue_name == queue
    return in_queue and all(
        name in each.kwargs and each.kwargs[name] == value for name, value in kwargs.items()
    )
