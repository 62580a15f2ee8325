"""Many tasks of one kind, stored by COPY: the server stores the first ones while the last are still being made.

Only tasks without a key and without a delay go this way: a key may be taken, and a delay counts on the server's clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from horsies.storage.tasks import SQL, NewTask, as_texts

COPY = SQL["copy"]
ROWS_PER_WRITE = 1_000
REST = (
    "task_name",
    "queue_name",
    "is_async",
    "priority",
    "eta",
    "good_until",
    "timeout_ms",
    "max_retries",
    "task_options",
    "tags",
    "rate_key",
)


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
    texts = as_texts(row)
    texts["eta"] = texts["eta"] or "now"
    return "\t".join(_field(texts[name]) for name in REST)


def _field(text: str | None) -> str:
    if text is None:
        return r"\N"
    return text.replace("\\", r"\\").replace("\t", r"\t").replace("\n", r"\n").replace("\r", r"\r")
