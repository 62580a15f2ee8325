"""Two schedulers that are killed, frozen and cut off at random, and the slots that were to be run meanwhile.

    python -m tests.faults.schedulers --minutes 10 --seed 7

Exits with 1 when a slot was run twice, or when a schedule that catches up has missed one.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from random import Random, randrange
from typing import Any

import psycopg

from tests.faults.report import percentile, table
from tests.faults.scene import OwnServer
from tests.support.waiting import eventually
from tests.support.workers import Workplace

SCHEDULERS = 2
APP = """
EVERY = [("second", 1), ("other-second", 1), ("two", 2), ("three", 3), ("five", 5)]

app = Horsies(AppConfig(schedule=ScheduleConfig(schedules=[
    TaskSchedule(name=f"{kind}-{name}", task_name="note", pattern=IntervalSchedule(seconds=seconds),
                 kwargs={"name": f"{kind}-{name}"}, catch_up_missed=kind == "all", max_catch_up_runs=5)
    for kind in ("all", "latest") for name, seconds in EVERY
])))

@app.task("note", priority=3)
def note(name: str) -> TaskResult[str, TaskError]:
    return TaskResult(ok=name)
"""
RUNS = """
    SELECT kwargs::json ->> 'name' AS name, id, sent_at, enqueued_at - sent_at AS late
      FROM horsies_tasks ORDER BY 1, 3
"""


@dataclass(slots=True)
class Verdict:
    """What came of it."""

    slots: int
    doubled: list[str]
    missed: list[str]
    strange: list[str]
    late: list[float]
    struck: Counter[str] = field(default_factory=Counter[str])

    @property
    def is_sound(self) -> bool:
        return not (self.doubled or self.missed or self.strange)


class Drill:
    """Schedulers, a worker, and somebody who strikes at them."""

    def __init__(self, place: Workplace, seed: int) -> None:
        self._place = place
        self._random = Random(seed)
        self._db = psycopg.connect(place.database_url, autocommit=True)
        place.write(APP)
        self._worker = place.start("--processes=1")
        self._schedulers = [place.start(command="scheduler") for _ in range(SCHEDULERS)]
        self._first = self._slots()
        self.struck: Counter[str] = Counter()

    def run(self, seconds: float) -> Verdict:
        """Strike for so long, let one of them catch up, and look."""
        end = time.monotonic() + seconds
        faults = [self._kill, self._kill, self._kill, self._freeze, self._throw_out, self._replace]
        while time.monotonic() < end:
            time.sleep(self._random.uniform(0.1, 1.5))
            fault = self._random.choice(faults)
            fault()
            self.struck[fault.__name__.strip("_")] += 1
        self._catch_up()
        assert self._worker.stop() == 0
        verdict = judge(self._first, self._slots(), self._rows(RUNS))
        verdict.struck = self.struck
        self._db.close()
        return verdict

    def _kill(self) -> None:
        self._begin_again(signal.SIGKILL)

    def _replace(self) -> None:
        self._begin_again(signal.SIGTERM)

    def _begin_again(self, number: signal.Signals) -> None:
        place = self._random.randrange(SCHEDULERS)
        self._schedulers[place].signal(number)
        self._schedulers[place].wait()
        self._schedulers[place] = self._place.start(command="scheduler", ready=False)

    def _freeze(self) -> None:
        """Most often for a moment; sometimes for longer than a transaction may be idle."""
        frozen = self._random.choice(self._schedulers)
        frozen.signal(signal.SIGSTOP)
        time.sleep(self._random.choice([0.2, 0.5, 1.0, 12.0]))
        frozen.signal(signal.SIGCONT)

    def _throw_out(self) -> None:
        self._db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'horsies-scheduler'"
        )

    def _catch_up(self) -> None:
        def has_caught_up() -> bool:
            (row,) = self._rows(
                "SELECT min(next_run_at) > now() - interval '1 second' FROM horsies_schedule_state"
            )
            return bool(row[0])

        eventually(has_caught_up, 60, "all schedules having caught up")
        for scheduler in self._schedulers:
            scheduler.wait_until_ready().signal(signal.SIGTERM)
            assert scheduler.wait() == 0, scheduler.log
            assert "Traceback" not in scheduler.log, scheduler.log

    def _slots(self) -> dict[str, datetime]:
        return dict(self._rows("SELECT schedule_name, next_run_at FROM horsies_schedule_state"))

    def _rows(self, statement: str) -> list[Any]:
        return self._db.execute(statement.encode()).fetchall()


SECONDS = {"second": 1, "other-second": 1, "two": 2, "three": 3, "five": 5}


def judge(first: dict[str, datetime], last: dict[str, datetime], runs: list[Any]) -> Verdict:
    """Compare the runs with the slots from the first to the last one that schedules have stood at."""
    seen: dict[str, Counter[datetime]] = {name: Counter() for name in first}
    for name, _id, slot, _late in runs:
        seen[name][slot] += 1
        first[name] = min(first[name], slot)  # it may have been run before it was looked for
    doubled, missed, strange = list[str](), list[str](), list[str]()
    slots = 0
    for name, counts in seen.items():
        kind, _, every = name.partition("-")
        step = timedelta(seconds=SECONDS[every])
        expected = {first[name] + n * step for n in range((last[name] - first[name]) // step)}
        slots += len(expected)
        doubled += [f"{name} at {slot}: {count} times" for slot, count in counts.items() if count > 1]
        strange += [f"{name} at {slot}" for slot in counts.keys() - expected]
        if kind == "all":
            missed += [f"{name} at {slot}" for slot in expected - counts.keys()]
    return Verdict(slots, doubled, missed, strange, [late.total_seconds() for _, _, _, late in runs])


def report(verdict: Verdict) -> str:
    late = sorted(verdict.late)
    shares = [
        (f"lateness, {name}", f"{percentile(late, share) or 0:.3f} s")
        for name, share in (("median", 0.5), ("95 %", 0.95))
    ]
    return table(
        [
            ("faults", ", ".join(f"{count} {name}" for name, count in verdict.struck.items())),
            ("slots", f"{verdict.slots:,}"),
            ("runs", f"{len(verdict.late):,}"),
            ("doubled", str(len(verdict.doubled))),
            ("missed, of those that catch up", str(len(verdict.missed))),
            ("run without a slot", str(len(verdict.strange))),
            *shares,
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.schedulers", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=randrange(10**9))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="horsies-schedulers-") as folder:
        Path(folder).chmod(0o755)
        server = OwnServer(Path(folder) / "server", fsync="on")
        try:
            place = Path(folder) / "place"
            place.mkdir()
            with Workplace(place, server.url) as workplace:
                verdict = Drill(workplace, options.seed).run(options.minutes * 60)
        finally:
            server.remove()
    print(f"seed {options.seed}")
    print(report(verdict))
    for problem in (*verdict.doubled, *verdict.missed, *verdict.strange):
        print("BROKEN:", problem)
    sys.exit(0 if verdict.is_sound else 1)


if __name__ == "__main__":
    main()
