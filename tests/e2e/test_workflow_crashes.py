"""Workers are killed while workflows run: they go on by themselves, and every node runs to its end once."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from horsies import WorkflowStatus, from_node
from tests.e2e.observing import Db
from tests.e2e.office import staffed
from tests.support.waiting import eventually
from tests.support.workers import Workplace

APP = """
app = Horsies(AppConfig.for_database_url(
    URL, claim_lease_ms=1_500, recovery=RecoveryConfig(check_interval_ms=1_000, crashed_worker_recovery_grace_ms=0)))

@app.task("step", idempotent=True)
def step(n: int) -> TaskResult[int, TaskError]:
    time.sleep(0.02)
    return TaskResult(ok=n)

@app.task("join", idempotent=True)
def join(a: TaskResult[int, TaskError], b: TaskResult[int, TaskError]) -> TaskResult[int, TaskError]:
    return TaskResult(ok=a.unwrap() + b.unwrap())
"""


@pytest.mark.parametrize("kills", [1, 2])
def test_a_workflow_outlives_the_workers_that_run_it(workplace: Workplace, db: Db, kills: int) -> None:
    office = staffed(workplace, APP, "--processes", "2")
    step, join = office.tasks.step, office.tasks.join
    nodes: list[Any] = [step.node()(n=0)]
    for _ in range(8):
        fan = [step.node(waits_for=nodes[-1:])(n=k) for k in range(3)]
        nodes += [*fan, join.node(waits_for=fan)(a=from_node(fan[0]), b=from_node(fan[2]))]
    spec = office.tasks.app.workflow("long", nodes, output=nodes[-1], definition_key="long")
    handle = spec.start().unwrap()

    for kill in range(kills):
        eventually(lambda kill=kill: _ended(db) >= 6 + 8 * kill)
        office.worker.signal(signal.SIGKILL)
        office = office._replace(worker=workplace.start("--processes", "2"))

    assert handle.get(timeout_ms=60_000).unwrap() == 2
    assert handle.status().unwrap() is WorkflowStatus.COMPLETED
    assert _ended(db) == len(nodes)


def _ended(db: Db) -> int:
    """How many nodes have ended; each has one task that did."""
    row = db.execute(
        "SELECT count(*) AS nodes, (SELECT count(*) FROM horsies_tasks WHERE NOT live) AS tasks"
        "  FROM horsies_workflow_tasks WHERE status = 'COMPLETED'"
    ).fetchone()
    assert row is not None
    assert row["nodes"] == row["tasks"]
    return row["nodes"]
