"""Schedulers that are killed, frozen and cut off run every slot once; `python -m tests.faults.schedulers` takes longer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import randrange

import psycopg
import pytest

from tests.faults.conftest import SCALE, SEED
from tests.faults.schedulers import APP, Drill, judge, report
from tests.faults.test_tools import FAKETIME
from tests.support.waiting import eventually
from tests.support.workers import Workplace

START = datetime(2026, 11, 16, tzinfo=UTC)
LATE = timedelta(milliseconds=5)


def test_two_schedulers_under_fault_after_fault_run_every_slot_once(workplace: Workplace) -> None:
    seed = SEED or randrange(1, 10**9)

    verdict = Drill(workplace, seed).run(12.0 * SCALE)

    print(report(verdict))
    problems = [*verdict.doubled, *verdict.missed, *verdict.strange]
    assert not problems, f"seed {seed}: {problems[:20]}"
    assert verdict.slots > 30


@pytest.mark.skipif(FAKETIME is None, reason="libfaketime is not installed")
@pytest.mark.parametrize("shift", ["-1h", "+1h"])
def test_the_clock_of_a_scheduler_decides_nothing(workplace: Workplace, shift: str) -> None:
    workplace.env |= {"LD_PRELOAD": str(FAKETIME), "FAKETIME": shift, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    workplace.write(APP)
    workplace.start(command="scheduler")

    with psycopg.connect(workplace.database_url, autocommit=True) as db:
        statement = (
            "SELECT max(abs(extract(epoch FROM now() - sent_at))) FROM horsies_tasks HAVING count(*) > 10"
        )
        row = eventually(lambda: db.execute(statement).fetchone(), what="some runs")

    assert row is not None
    assert row[0] < 30


def test_the_judge_sees_what_is_doubled_missed_and_strange() -> None:
    first = {"all-two": START, "latest-two": START}
    last = {name: START + timedelta(seconds=8) for name in first}
    slots = [START + timedelta(seconds=n) for n in (0, 2, 2, 6, 7)]

    verdict = judge(first, last, [(name, None, slot, LATE) for name in first for slot in slots])

    assert verdict.slots == 8
    assert len(verdict.doubled) == 2
    assert len(verdict.strange) == 2
    assert verdict.missed == [f"all-two at {START + timedelta(seconds=4)}"]
