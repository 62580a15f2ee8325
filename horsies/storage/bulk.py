"""Many tasks of one kind, stored by COPY: the server stores the first ones while the last are still being made.

Only tasks without a key and without a delay go this way: a key may be taken, and a delay counts on the server's clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from horsies.storage.tasks import SQL, NewTask

COPY = SQL["copy"]
ROWS_PER_WRITE = 1_000


def fits(row: NewTask) -> bool:
    """Whether tasks like this one can be copied."""
    return row.unique_key is None and row.idempotency_key is None and row.delay_seconds is None


def batches(rows: Sequence[NewTask]) -> Iterator[Sequence[NewTask]]:
    """Rows in the portions that they are written in."""
    for first in range(0, len(rows), ROWS_PER_WRITE):
        yield rows[first : first + ROWS_PER_WRITE]


def lines(rows: Sequence[NewTask]) -> str:
    """Rows as COPY reads them; but for id and arguments, all are as the first one."""
    rest = _rest(rows[0])
    return "".join([f"{row.id}\t{_field(row.kwargs)}\t{rest}\n" for row in rows])


def _rest(row: NewTask) -> str:
    """The columns that `copy` names after `kwargs`."""
    return "\t".join(
        [
            _field(row.task_name),
            _field(row.queue_name),
            "t" if row.is_async else "f",
            str(row.priority),
            "now" if row.eta is None else row.eta.isoformat(),
            _field(row.good_until),
            _field(row.timeout_ms),
            str(row.max_retries),
            _field(row.task_options),
            _field(_array(row.tags)),
            _field(row.rate_key),
        ]
    )


def _field(value: str | int | datetime | None) -> str:
    match value:
        case None:
            return r"\N"
        case str():
            return value.replace("\\", r"\\").replace("\t", r"\t").replace("\n", r"\n").replace("\r", r"\r")
        case datetime():
            return value.isoformat()
        case _:
            return str(value)


def _array(texts: Sequence[str] | None) -> str | None:
    if texts is None:
        return None
    quoted = (text.replace("\\", r"\\").replace('"', r"\"") for text in texts)
    return "{" + ",".join(f'"{text}"' for text in quoted) + "}"
