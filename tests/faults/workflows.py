"""Workflows of random shapes while their workers are killed, frozen, cut off and replaced, and a judge of the record.

    python -m tests.faults.workflows --minutes 10 --seed 7

Exits with 1 when a workflow did not end, when a node ran though its join did not hold, or did not though it did, before
what it waits for, or twice.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from random import Random, randrange
from types import ModuleType
from typing import Any, NamedTuple

import psycopg

from horsies import SubWorkflowNode, TaskNode, map_node, sleep_node
from tests.faults.report import table
from tests.faults.scene import OwnServer
from tests.support.waiting import eventually
from tests.support.workers import Workplace

WORKERS = 2
APP = """
app = Horsies(AppConfig(
    claim_lease_ms=1_500, recovery=RecoveryConfig(check_interval_ms=1_000, crashed_worker_recovery_grace_ms=0)))

@app.task("step", idempotent=True)
def step(n: int, fails: bool = False) -> TaskResult[list[int], TaskError]:
    time.sleep(0.005)
    return TaskResult(err=TaskError(error_code="MEANT")) if fails else TaskResult(ok=[n, n + 1])

class Part(WorkflowDefinition[list[int]]):
    name = "part"
    definition_key = "faults.part"
    first = step.node()(n=1)
    second = step.node(waits_for=[first])(n=2)
    class Meta:
        output = "second"
"""
OPEN = "SELECT NOT EXISTS (SELECT FROM horsies_workflows WHERE completed_at IS NULL)"
RECORD = """
    SELECT node.workflow_id::text, node.task_index, node.node_id, node.kind, node.status, node.join_type, node.min_success,
           node.allow_failed_deps, node.dependencies, node.started_at, node.completed_at,
           (SELECT count(*) FROM horsies_tasks AS task
             WHERE NOT task.live AND task.workflow_id = node.workflow_id AND task.workflow_index = node.task_index),
           EXISTS (SELECT FROM horsies_workflows AS flow JOIN horsies_workflow_tasks AS above
                       ON above.workflow_id = flow.parent_workflow_id AND above.task_index = flow.parent_task_index
                    WHERE flow.id = node.workflow_id AND above.status = 'SKIPPED')
      FROM horsies_workflow_tasks AS node
"""


class Entry(NamedTuple):
    """A node as recorded, how many of its tasks have ended, and whether it is part of a node that was skipped."""

    workflow_id: str
    place: int
    node_id: str
    kind: str
    status: str
    join: str
    min_success: int | None
    allow_failed: bool
    deps: list[int]
    started_at: datetime | None
    completed_at: datetime | None
    tasks: int
    dropped: bool = False


def judge(record: Iterable[Entry]) -> list[str]:
    """What cannot have come about by the rules."""
    flows: dict[str, dict[int, Entry]] = defaultdict(dict)
    for entry in record:
        flows[entry.workflow_id][entry.place] = entry
    return [
        problem for flow in flows.values() for entry in flow.values() for problem in _problems(entry, flow)
    ]


def _problems(entry: Entry, flow: dict[int, Entry]) -> list[str]:
    name = f"{entry.node_id} of {entry.workflow_id}"
    deps = [flow[index] for index in entry.deps]
    completed = [
        dep.completed_at for dep in deps if dep.status == "COMPLETED" and dep.completed_at is not None
    ]
    if entry.status not in ("COMPLETED", "FAILED", "SKIPPED"):
        return [f"{name} is {entry.status} in the end"]
    if entry.dropped:
        ran = entry.status != "SKIPPED" or entry.tasks
        return [f"{name} is {entry.status}, though what it is a part of was skipped"] if ran else []
    wanted = len(deps) if entry.join == "all" else entry.min_success or 1
    holds = len(completed) >= wanted or (entry.join == "all" and entry.allow_failed)
    if holds == (entry.status == "SKIPPED"):
        return [f"{name} is {entry.status}, and its join {'holds' if holds else 'does not hold'}"]
    found: list[str] = []
    if entry.tasks != (entry.kind == "task" and entry.status != "SKIPPED"):
        found.append(f"{name} has {entry.tasks} tasks that ended")
    if entry.started_at is not None and completed and not entry.allow_failed:
        earliest = sorted(completed)[wanted - 1]
        if entry.started_at < earliest:
            found.append(f"{name} began at {entry.started_at}, and what it waits for ended at {earliest}")
    return found


class Drill:
    """Workers, somebody who starts workflows, and somebody who strikes."""

    def __init__(self, place: Workplace, seed: int) -> None:
        self._place = place
        self._random = Random(seed)
        self._db = psycopg.connect(place.database_url, autocommit=True)
        place.write(APP)
        self._tasks: ModuleType = place.load()
        self._workers = [place.start("--processes", "2") for _ in range(WORKERS)]
        self.struck: Counter[str] = Counter()
        self.started = 0

    def run(self, seconds: float) -> list[str]:
        with self._db:
            return self._run(seconds)

    def _run(self, seconds: float) -> list[str]:
        end = time.monotonic() + seconds
        faults = [self._kill, self._kill, self._freeze, self._throw_out, self._replace]
        while time.monotonic() < end:
            for _ in range(self._random.randint(1, 4)):
                self._start_one()
            time.sleep(self._random.uniform(0.05, 0.8))
            fault = self._random.choice(faults)
            fault()
            self.struck[fault.__name__.strip("_")] += 1
        eventually(lambda: self._db.execute(OPEN.encode()).fetchone() == (True,), 60, "every workflow ended")
        for worker in self._workers:
            assert worker.wait_until_ready().stop() == 0, worker.log
        return judge(Entry._make(row) for row in self._db.execute(RECORD.encode()).fetchall())

    def _start_one(self) -> None:
        nodes: list[Any] = []
        for n in range(self._random.randint(2, 12)):
            deps = self._random.sample(nodes, min(len(nodes), self._random.randint(0, 3)))
            nodes.append(self._node(n, deps))
        app = self._tasks.app
        app.workflow("random", nodes, definition_key="faults.random").start().unwrap()
        self.started += 1

    def _node(self, n: int, deps: list[Any]) -> Any:
        chance = self._random.random()
        lists: list[Any] = [dep for dep in deps if isinstance(dep, TaskNode)]
        if chance < 0.1:
            return sleep_node(self._random.uniform(0.01, 0.3), waits_for=deps)
        if chance < 0.2 and lists:
            return map_node(self._tasks.step, over=lists[0], param="n", waits_for=deps)
        if chance < 0.3:
            return SubWorkflowNode(self._tasks.Part, waits_for=deps)
        join = self._random.choice(["all", "all", "any", "quorum"]) if deps else "all"
        minimum = self._random.randint(1, len(deps)) if join == "quorum" else None
        allow = self._random.random() < 0.3
        node = self._tasks.step.node(waits_for=deps, join=join, min_success=minimum, allow_failed_deps=allow)
        return node(n=n, fails=self._random.random() < 0.15)

    def _kill(self) -> None:
        self._begin_again(signal.SIGKILL)

    def _replace(self) -> None:
        self._begin_again(signal.SIGTERM)

    def _begin_again(self, number: signal.Signals) -> None:
        place = self._random.randrange(WORKERS)
        self._workers[place].signal(number)
        self._workers[place].wait()
        self._workers[place] = self._place.start("--processes", "2", ready=False)

    def _freeze(self) -> None:
        frozen = self._random.choice(self._workers)
        frozen.signal(signal.SIGSTOP)
        time.sleep(self._random.choice([0.2, 0.5, 3.0]))
        frozen.signal(signal.SIGCONT)

    def _throw_out(self) -> None:
        self._db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE 'horsies-worker%'"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.workflows", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=randrange(10**9))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="horsies-workflows-") as folder:
        Path(folder).chmod(0o755)
        server = OwnServer(Path(folder) / "server", fsync="on")
        try:
            place = Path(folder) / "place"
            place.mkdir()
            with Workplace(place, server.url) as workplace:
                drill = Drill(workplace, options.seed)
                problems = drill.run(options.minutes * 60)
        finally:
            server.remove()
    faults = ", ".join(f"{count} {name}" for name, count in drill.struck.items())
    print(table([("seed", str(options.seed)), ("faults", faults), ("workflows", f"{drill.started:,}")]))
    for problem in problems:
        print("BROKEN:", problem)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
