"""What the benchmark decides and computes, without measuring anything."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from bench.idle import Patience, Wait, judged
from bench.peers.catalogue import LOADS, PEERS
from bench.peers.mix import LONG_SECONDS, SLOTS, TABLE, bursts, in_order
from bench.report import empty_row
from bench.standing import standings

PATIENCE = Patience(idle_seconds=10, limit_seconds=30)


def test_a_machine_is_idle_after_enough_idle_samples_in_a_row() -> None:
    samples = iter([(5.0, 0.9), (5.0, 0.01), (5.0, 0.03), (5.0, 0.9)])

    assert judged(samples, PATIENCE) == Wait(15.0, 0.03, is_idle=True)


def test_a_busy_sample_begins_the_wait_anew() -> None:
    samples = iter([(5.0, 0.01), (5.0, 0.5), (5.0, 0.01), (5.0, 0.02)])

    assert judged(samples, PATIENCE) == Wait(20.0, 0.02, is_idle=True)


def test_the_wait_for_an_idle_machine_ends() -> None:
    samples = iter([(5.0, 0.7)] * 100)

    assert judged(samples, PATIENCE) == Wait(30.0, 0.7, is_idle=False)


def test_two_slots_take_tasks_in_order() -> None:
    assert in_order([(0.0, 3.0), (0.0, 1.0), (0.5, 1.0), (5.0, 1.0)], 2) == [0.0, 0.0, 0.5, 0.0]


def test_long_tasks_of_the_mix_never_overlap_and_all_tasks_come_in_time() -> None:
    arrivals = bursts(random.Random(3), 60.0)

    long = [at for at, seconds in arrivals if seconds == LONG_SECONDS]
    assert len(long) == 10
    assert len(arrivals) == 1_010
    assert min(after - before for before, after in pairwise(long)) > LONG_SECONDS
    assert [at for at, _ in arrivals] == sorted(at for at, _ in arrivals)


@pytest.mark.parametrize("name", LOADS)
def test_a_load_asks_for_the_share_of_two_processes_that_the_page_names(name: str) -> None:
    lasting = 600.0
    arrivals = TABLE[name].arrivals(random.Random(name), lasting)

    assert sum(seconds for _, seconds in arrivals) / lasting / SLOTS == pytest.approx(TABLE[name].share, 0.1)


def test_default_settings_come_first() -> None:
    first = PEERS[0]

    assert (first.name, dict(first.environment), first.mix) == ("horsies", {}, LOADS)
    assert empty_row("horsies").settings == "default settings, results stored"


def test_default_settings_are_compared_with_the_best_of_the_others() -> None:
    rows = [
        empty_row(name)
        for name in ("horsies", "horsies, strict", "PgQueuer", "graphile-worker", "Celery", "RQ")
    ]
    for row, drain in zip(rows, (20.0, 90.0, 25.0, 80.0, 5.0, 6.0), strict=True):
        row.works["drain, 2 processes"] = [drain]
    for row, late in zip(rows, (3.0, 1.0, 1.0, 1.0, 4.0, 5.0), strict=True):
        row.works["5 ms of CPU, p99"] = [late]

    drain, tail = standings(rows)

    assert (drain.of, drain.ratio, drain.met) == ("PgQueuer", 0.8, False)
    assert (tail.of, tail.ratio, tail.met) == ("Celery", 0.75, True)
