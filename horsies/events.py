"""Events of tasks, workflows and schedules.

queued ─▶ processing ─▶ completed | failed | timeout | crashed | cancelled      expired, cancelled: before it was started
             ├──────▶ retry | timeout | crashed, with `will_retry` ─▶ processing …
             └──────▶ parked ─▶ processing …
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

# The events that a worker causes itself, so that it can call hooks for them.
WORKER_KINDS: Final = (
    "processing",
    "completed",
    "failed",
    "retry",
    "timeout",
    "crashed",
    "expired",
    "cancelled",
)
KINDS: Final = (
    "queued", "parked", *WORKER_KINDS, "workflow.started", "workflow.paused", "workflow.resumed", "workflow.completed",
    "workflow.failed", "workflow.cancelled", "workflow.expired", "schedule.fired",
)  # fmt: skip


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """An event of a task, workflow or schedule. If `will_retry` is true, the task is retried.

    >>> event.kind, event.task_name, event.attempt, event.error_code
    ('retry', 'charge', 1, 'CARD_DECLINED')
    """

    kind: str
    at: datetime
    task_id: str | None = None
    task_name: str | None = None
    queue_name: str | None = None
    attempt: int | None = None
    error_code: str | None = None
    message: str | None = None
    worker_id: str | None = None
    will_retry: bool = False
    workflow_id: str | None = None
    workflow_name: str | None = None
    schedule_name: str | None = None
    key: str | None = None

    @property
    def subject(self) -> str:
        """Return the id of the task or workflow, or the name of the schedule."""
        if self.schedule_name is not None:
            return self.schedule_name
        return self.task_id or self.workflow_id or ""

    @property
    def id(self) -> str:
        """Return an id that is the same each time the event is read."""
        return f"{self.subject}:{self.kind}:{self.at.astimezone(UTC):%Y%m%dT%H%M%S%f}"

    def facts(self) -> dict[str, Any]:
        """Return the fields that are set as plain JSON values."""
        return msgspec.to_builtins(self)


Hook = Callable[[Event], object]


def kind_of_failure(error_code: str | None, will_retry: bool) -> str:
    """Return the kind of event for a failed attempt."""
    match error_code:
        case "TASK_TIMEOUT":
            return "timeout"
        case "WORKER_CRASHED":
            return "crashed"
        case "TASK_CANCELLED" if not will_retry:
            return "cancelled"
        case _:
            return "retry" if will_retry else "failed"
