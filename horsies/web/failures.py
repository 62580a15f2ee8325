"""Groups of failures: the same error code, task and kind of message."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from itertools import groupby
from typing import NamedTuple

from horsies.db.queries.inspect import FailureGroup


class Failures(NamedTuple):
    """A group of failures with its counts over time. `retryable` leaves out tasks of workflows, which are retried with them."""

    error_code: str | None
    task_name: str
    kind: str
    digest: str
    tasks: int
    retryable: int
    keys: list[str]
    first_at: datetime
    last_at: datetime
    last_id: str
    over_time: list[int]


def grouped(parts: Iterable[FailureGroup], count: int) -> list[Failures]:
    """Put the parts of each group together, the largest group first."""
    groups = [
        _group(list(found), count)
        for _, found in groupby(parts, key=lambda part: (part.error_code, part.task_name, part.digest))
    ]
    return sorted(groups, key=lambda group: (-group.tasks, group.task_name, group.digest))


def _group(parts: list[FailureGroup], count: int) -> Failures:
    last = max(parts, key=lambda part: part.last_at)
    over_time = [0] * count
    for part in parts:
        over_time[part.part] += part.tasks
    return Failures(
        error_code=last.error_code,
        task_name=last.task_name,
        kind=_text(last.kind),
        digest=last.digest,
        tasks=sum(part.tasks for part in parts),
        retryable=sum(part.retryable for part in parts),
        keys=list(dict.fromkeys(key for part in reversed(parts) for key in part.keys or ()))[:4],
        first_at=min(part.first_at for part in parts),
        last_at=last.last_at,
        last_id=last.last_id,
        over_time=over_time,
    )


def _text(kind: str) -> str:
    """Return a message that was cut out of JSON text without its escapes."""
    try:
        return str(json.loads(f'"{kind}"'))
    except ValueError:
        return kind
