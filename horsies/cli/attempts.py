"""The attempts of a task side by side: what was the same in them, and what was not."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from horsies.cli.output import cut, first_line
from horsies.codec.results import with_plain_codes
from horsies.db.queries.inspect import Attempt, FullTask
from horsies.db.queries.steps import StepRow
from horsies.units import time_text, took

# More attempts do not fit beside each other: the last ones are shown.
MOST_ATTEMPTS = 3
LONGEST_CELL = 60
_SAME, _DIFFERENT = "", "≠"


class Row(NamedTuple):
    """A fact of several attempts: its name, and its text in each attempt, empty where there is none."""

    fact: str
    texts: tuple[str, ...]

    @property
    def differs(self) -> bool:
        """Return True if the attempts do not agree."""
        return len(set(self.texts)) > 1


def comparison(found: FullTask) -> tuple[list[int], list[Row]]:
    """Return the numbers of the last attempts, and the facts of them in which a reader looks for a difference."""
    numbers = sorted(
        {attempt.attempt for attempt in found.attempts}
        | {step.attempt for step in found.steps}
        | {line.attempt for line in found.logs}
    )[-MOST_ATTEMPTS:]
    by_number = {attempt.attempt: attempt for attempt in found.attempts}
    known = [by_number.get(number) for number in numbers]
    rows = [
        Row("outcome", tuple("RUNNING" if each is None else _outcome(each) for each in known)),
        Row("started", tuple("" if each is None else time_text(each.started_at) for each in known)),
        Row("took", tuple("" if each is None else took(each.started_at, each.finished_at) for each in known)),
        Row("worker", tuple("" if each is None else _worker(each) for each in known)),
        Row("error", tuple("" if each is None else each.error_code or "" for each in known)),
        Row("message", tuple("" if each is None else first_line(each.error_message) for each in known)),
    ]
    rows += [
        Row(f"step {step.name}", tuple(_step_in(step, number) for number in numbers)) for step in found.steps
    ]
    logs = [
        [f"{line.level} {line.message}" for line in found.logs if line.attempt == number]
        for number in numbers
    ]
    rows += [Row("log", texts) for texts in aligned(logs)]
    return numbers, [row for row in rows if any(row.texts)]


def cells(numbers: Sequence[int], rows: Sequence[Row]) -> list[dict[str, str]]:
    """Return the table of a comparison: a mark before each fact in which the attempts differ."""
    return [
        {
            "": _DIFFERENT if row.differs else _SAME,
            "attempt": row.fact,
            **{
                str(number): cut(with_plain_codes(text), LONGEST_CELL)
                for number, text in zip(numbers, row.texts, strict=True)
            },
        }
        for row in rows
    ]


def aligned(columns: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return rows in which equal lines of several columns are beside each other, each column in its order.

    >>> aligned([["a", "b", "c"], ["a", "c", "d"]])
    [('a', 'a'), ('b', ''), ('c', 'c'), ('', 'd')]
    """
    rows: list[tuple[str, ...]] = []
    for count, column in enumerate(columns):
        # A row is known by the last line that it has.
        keys = [next(text for text in reversed(row) if text) for row in rows]
        merged: list[tuple[str, ...]] = []
        for _, i, j, k, m in SequenceMatcher(None, keys, list(column), autojunk=False).get_opcodes():
            if keys[i:j] == list(column[k:m]):
                merged += [(*row, line) for row, line in zip(rows[i:j], column[k:m], strict=True)]
            else:
                merged += [(*row, "") for row in rows[i:j]]
                merged += [("",) * count + (line,) for line in column[k:m]]
        rows = merged
    return rows


def _outcome(attempt: Attempt) -> str:
    return attempt.outcome + (", retried" if attempt.will_retry else "")


def _worker(attempt: Attempt) -> str:
    return f"{attempt.worker_hostname or ''}:{attempt.worker_pid or ''}"


def _step_in(step: StepRow, number: int) -> str:
    """Describe a step in an attempt: not reached, stored in it, or stored before it."""
    if number < step.attempt:
        return ""
    if step.ended_at is None:
        return "waits"
    return (
        f"{took(step.started_at, step.ended_at)}: {step.result}"
        if number == step.attempt
        else "stored before"
    )
