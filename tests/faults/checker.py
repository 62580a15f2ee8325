"""Tell from testimonies and rows whether every promise was kept.

It is run when all is over, and it accuses on facts alone: a run of which nobody saw the end lasted at least as long as its
process was seen alive, and a task was final no later than its final row was seen.

Two things are excused. What a frozen worker had begun goes on when it thaws, until the worker notices that it was declared dead
meanwhile: nobody can end the code of a process that stands still, nor stop it at its next instruction. This is counted. And
a crash of the server may undo the claim of an idempotent task, whose run then goes on until the worker is connected again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tests.faults.testimony import Run, Send

FINAL = frozenset({"COMPLETED", "FAILED", "CANCELLED", "EXPIRED"})
CRASHED = "WORKER_CRASHED"
# So long after it thaws may a worker take to end what it no longer owns.
NOTICE_NS = 2_000_000_000
# A process may stand still between its last look at the lease and the first line of the task. That shows at once.
FIRST_LINE_NS = 100_000_000


@dataclass(frozen=True, slots=True)
class Row:
    """A task as it is stored; `result` is what its run gave, or None. A row made by hand has no number."""

    id: str
    number: int | None
    task: str
    status: str
    result: str | None = None
    error_code: str | None = None
    claim_seq: int = 1
    crash_count: int = 0


@dataclass(frozen=True, slots=True)
class Freeze:
    """A worker stood still for longer than its lease, as a `whole` or its parent alone; `pids` are its processes.

    Up to `until` they may have begun tasks in good faith: the moment at which they stood still, or, when only the parent
    did, the end of its lease.
    """

    pids: frozenset[int]
    until: int
    thawed: int
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Policy:
    """How often a task may start, and with which codes it may fail."""

    most_starts: int
    errors: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All that is known about a drill."""

    sends: Sequence[Send]
    runs: Sequence[Run]
    rows: Sequence[Row]
    policies: Mapping[str, Policy]
    caps: Mapping[str, int] = field(default_factory=dict[str, int])
    # Final rows as they were first seen, with when that was.
    seen: Mapping[str, tuple[int, Row]] = field(default_factory=dict[str, tuple[int, Row]])
    # When each process that ran tasks was last seen alive.
    alive: Mapping[int, int] = field(default_factory=dict[int, int])
    freezes: Sequence[Freeze] = ()
    # Tasks of rows that were put there by hand.
    strangers: frozenset[str] = frozenset()
    survivors: Sequence[int] = ()
    crashes_expected: bool = True
    # Tasks whose claims a crash of the server may undo, and when each such crash began and was over.
    unflushed: frozenset[str] = frozenset()
    server_crashes: Sequence[tuple[int, int]] = ()


def accusations(history: History) -> dict[str, list[str]]:
    """What went wrong, in words, under each promise; nothing under those that were kept."""
    facts = _Facts(history)
    return {
        "tasks lost": list(facts.lost()),
        "tasks made up": list(facts.extra()),
        "overlapping runs": list(facts.overlapping()),
        "runs after the end": list(facts.run_when_final()),
        "stale results accepted": list(facts.stale()),
        "starts beyond the policy": list(facts.too_often()),
        "false crashes": list(facts.false_crashes()),
        "limits exceeded": list(facts.over_caps()),
        "endings changed": list(facts.rewritten()),
        "orphans": [f"process {pid} has outlived its worker" for pid in history.survivors],
    }


def check(history: History) -> list[str]:
    """What went wrong, in words; nothing when all promises were kept."""
    return [words for found in accusations(history).values() for words in found]


def repeated(history: History) -> int:
    """How many runs that had come to their end were followed by another one of the same task, beyond its own retries."""
    facts = _Facts(history)
    retried = {row.number: row.crash_count for row in history.rows}
    return sum(
        min(retried.get(number, 0), sum(run.ended is not None for run in runs[:-1]))
        for number, runs in facts.runs.items()
    )


def unrecorded(history: History) -> int:
    """How many tasks came to their end and were taken for lost all the same."""
    runs = _Facts(history).runs
    lost = [row.number for row in history.rows if row.error_code == CRASHED and row.number in runs]
    return sum(runs[number][-1].ended is not None for number in lost)


def held_over(history: History) -> int:
    """How many runs went on, or got to their first line, when their worker thawed and the task was no longer its own."""
    facts = _Facts(history)
    return len(facts.strays) + sum(
        facts.end(first) > second.began
        for runs in facts.runs.values()
        for first, second in pairwise(runs)
        if facts.freeze_of(first) is not None
    )


class _Facts:
    def __init__(self, history: History) -> None:
        self._history = history
        self._rows: defaultdict[int, list[Row]] = defaultdict(list)
        for row in history.rows:
            if row.number is not None:
                self._rows[row.number].append(row)
        self._sends = {send.number: send for send in history.sends}
        self.strays = _strays(history)
        self.runs: defaultdict[int, list[Run]] = defaultdict(list)
        for run in sorted(history.runs, key=lambda run: run.began):
            if run.token not in self.strays:
                self.runs[run.number].append(run)

    def lost(self) -> Iterator[str]:
        """A send that was acknowledged has one row, and that is final."""
        for send in self._history.sends:
            rows = self._rows[send.number]
            if len(rows) > 1:
                yield f"task {send.number} has {len(rows)} rows: {', '.join(row.id for row in rows)}"
            if send.acknowledged is None:
                continue
            if not rows:
                yield f"task {send.number} was acknowledged as {send.acknowledged} and has no row"
            elif rows[0].id != send.acknowledged:
                yield f"task {send.number} was acknowledged as {send.acknowledged}, its row is {rows[0].id}"
        for row in self._history.rows:
            if row.status not in FINAL:
                yield f"task {_name(row)} is {row.status} and will stay so"

    def extra(self) -> Iterator[str]:
        """Nothing is stored or run that was not sent."""
        for row in self._history.rows:
            if row.id not in self._history.strangers and row.number not in self._sends:
                yield f"row {row.id} ({row.task}) was sent by nobody"
        for number in self.runs:
            if number not in self._sends:
                yield f"task {number} was run and sent by nobody"

    def overlapping(self) -> Iterator[str]:
        """No two runs of one task at a time, but for what a worker held that froze."""
        for number, runs in self.runs.items():
            for first, second in pairwise(runs):
                freeze, end = self.freeze_of(first), self.end(first)
                healed = self._undone_until(first, second)
                if healed is not None and end <= healed + NOTICE_NS:
                    continue
                if freeze is None and end > second.began:
                    yield (
                        f"task {number} ran in processes {first.pid} and {second.pid} at once, "
                        f"for {(end - second.began) / 1e6:.1f} ms at least"
                    )
                elif freeze is not None and end > max(second.began, freeze.thawed + NOTICE_NS):
                    yield (
                        f"task {number} went on in process {first.pid} for {(end - freeze.thawed) / 1e9:.1f} s "
                        "after its worker had thawed"
                    )

    def run_when_final(self) -> Iterator[str]:
        """No user code begins for a task that has ended."""
        for row in self._history.rows:
            runs = self.runs.get(-1 if row.number is None else row.number, ())
            moments = [self._history.seen[row.id][0]] if row.id in self._history.seen else []
            moments += [run.ended for run in runs if run.token == row.result and run.ended is not None]
            for run in runs:
                if moments and run.began > min(moments):
                    yield f"task {_name(row)} was begun in process {run.pid} after it had ended"

    def stale(self) -> Iterator[str]:
        """What is stored is what the last run gave, and a completed task has run."""
        for row in self._history.rows:
            if row.status != "COMPLETED" or row.id in self._history.strangers:
                continue
            runs = self.runs.get(-1 if row.number is None else row.number, [])
            by = next((run for run in runs if run.token == row.result), None)
            if by is None:
                yield f"task {_name(row)} has the result {row.result!r}, which no run of it gave"
            elif by.ended is None:
                yield f"task {_name(row)} has the result of a run that never came to its end"
            elif by is not runs[-1]:
                yield f"task {_name(row)} has the result of a run that was followed by another one"

    def too_often(self) -> Iterator[str]:
        """No task starts more often than its policy allows."""
        for number, runs in self.runs.items():
            policy = self._history.policies.get(runs[0].task)
            if policy is None:
                continue
            undone = sum(self._undone_until(first, second) is not None for first, second in pairwise(runs))
            if len(runs) - undone > policy.most_starts:
                yield f"task {number} ({runs[0].task}) started {len(runs)} times, {policy.most_starts} at most are allowed"

    def false_crashes(self) -> Iterator[str]:
        """A task fails with its own error, or because its process died when processes die."""
        for row in self._history.rows:
            policy = self._history.policies.get(row.task)
            if row.status != "FAILED" or policy is None or row.id in self._history.strangers:
                continue
            crashed = row.error_code == CRASHED
            if crashed and not self._history.crashes_expected:
                yield f"task {_name(row)} failed with {CRASHED}, and no process of its had died"
            elif not crashed and row.error_code not in policy.errors:
                yield f"task {_name(row)} failed with {row.error_code}, which is none of its errors"

    def over_caps(self) -> Iterator[str]:
        """Never more runs at once than a queue may have: the exact sum over all moments."""
        steps: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for run in self._history.runs:
            if run.queue in self._history.caps and run.token not in self.strays:
                freeze = self.freeze_of(run)
                end = self.end(run) if freeze is None else freeze.until
                steps[run.queue] += [(run.began, 1), (end, -1)]
        for queue, moments in steps.items():
            count = most = 0
            for _, step in sorted(moments):
                count += step
                most = max(most, count)
            if most > self._history.caps[queue]:
                yield f"queue {queue} ran {most} tasks at once, its cap is {self._history.caps[queue]}"

    def rewritten(self) -> Iterator[str]:
        """What has ended stays as it ended."""
        rows = {row.id: row for row in self._history.rows}
        for task_id, (_, before) in self._history.seen.items():
            after = rows.get(task_id)
            if after is None:
                yield f"task {_name(before)} was {before.status} and its row is gone"
            elif after != before:
                yield f"task {_name(before)} was final as {before} and is now {after}"

    def end(self, run: Run) -> int:
        """Until when a run lasted at least."""
        if run.ended is not None:
            return run.ended
        return run.stopped or max(run.began, self._history.alive.get(run.pid, run.began))

    def _undone_until(self, first: Run, second: Run) -> int | None:
        """The end of the crash of the server that may have undone the claim of a run before the next one began.

        What was claimed before the crash may begin during it.
        """
        if first.task not in self._history.unflushed:
            return None
        crashes = self._history.server_crashes
        ends = (over for began, over in crashes if first.began <= over and began < second.began)
        return next(ends, None)

    def freeze_of(self, run: Run) -> Freeze | None:
        """The freeze that a run was in the middle of."""
        within = (
            freeze
            for freeze in self._history.freezes
            if run.pid in freeze.pids and run.began <= freeze.until < self.end(run)
        )
        return next(within, None)


def _strays(history: History) -> set[str]:
    """Runs in vain that were at their first line when their process stood still: one of each process, if any."""
    stored = {row.result for row in history.rows}
    found: set[str] = set()
    for freeze in history.freezes:
        if freeze.whole:
            end, first = freeze.thawed + FIRST_LINE_NS, dict[int, Run]()
            for run in sorted(history.runs, key=lambda run: run.began):
                if run.pid in freeze.pids and freeze.thawed <= run.began <= end:
                    first.setdefault(run.pid, run)
            found |= {run.token for run in first.values()} - stored
    return found


def _name(row: Row) -> str:
    return f"{row.id} ({row.task})" if row.number is None else str(row.number)
