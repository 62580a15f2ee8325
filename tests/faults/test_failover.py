"""The primary of replicated servers dies, is replaced, or is cut off: workers and producers go on with the next one.

Needs Debian's PostgreSQL, which has pg_rewind. `python -m tests.faults --failover 10 --sync` runs the same at length.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import failover
from tests.faults.conftest import SCALE
from tests.faults.drill import Verdict
from tests.faults.scene import Plan
from tests.support.failover import missing_programs
from tests.support.patroni import why_not

pytestmark = [
    pytest.mark.skipif(missing_programs() is not None, reason=str(missing_programs())),
    pytest.mark.timeout(300 * SCALE),
]


def kept(verdict: Verdict, strikes: int) -> None:
    shown = "\n".join(verdict.violations[:20])
    assert not verdict.violations, f"seed {verdict.seed}: broken promises:\n{shown}"
    assert verdict.strikes == strikes
    assert len(verdict.recoveries) == strikes, "no task was run after a promotion"


def test_with_synchronous_replication_a_primary_may_die(tmp_path: Path, plan: Plan) -> None:
    load = {"sends": 800 * SCALE, "seconds": 8.0 * SCALE}
    kept(failover.failovers(tmp_path, plan.seed, SCALE, is_sync=True, **load), SCALE)


def test_a_primary_may_be_replaced_on_purpose(tmp_path: Path, plan: Plan) -> None:
    load = {"sends": 600 * SCALE, "seconds": 5.0 * SCALE}
    kept(failover.switchovers(tmp_path, plan.seed, SCALE, is_sync=False, **load), SCALE)


@pytest.mark.skipif(SCALE == 1, reason="takes a minute; FAULTS_SCALE=2 runs it")
def test_with_synchronous_replication_two_servers_may_take_themselves_for_the_primary(
    tmp_path: Path, plan: Plan
) -> None:
    kept(failover.splits(tmp_path, plan.seed, 1, is_sync=True), 1)


@pytest.mark.skipif(SCALE == 1, reason="takes two minutes; FAULTS_SCALE=2 runs it")
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_patroni_may_replace_the_primary(tmp_path: Path, plan: Plan) -> None:
    kept(failover.patroni_failovers(tmp_path, plan.seed, 1, is_sync=True), 1)


@pytest.mark.skipif(SCALE == 1, reason="takes a minute; FAULTS_SCALE=2 runs it")
def test_with_asynchronous_replication_what_is_left_ends(tmp_path: Path, plan: Plan) -> None:
    kept(failover.failovers(tmp_path, plan.seed, SCALE, is_sync=False), SCALE)
