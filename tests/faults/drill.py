"""A drill: producers send, workers work, one fault is let loose, and when all has come to rest the history is checked."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tests.e2e.observing import is_alive
from tests.faults.checker import History, accusations, held_over, repeated, unrecorded
from tests.faults.scene import ROOT, Plan, Scene, Watch
from tests.faults.testimony import Run, read_runs, read_sends
from tests.faults.workload import KEY_LIMIT, KEYS, NARROW, POLICIES, VARIABLE, Setup, lane_of
from tests.support.soundness import ailments
from tests.support.waiting import eventually

Fault = Callable[[Scene], int | None]
SETTLE_SECONDS = 90.0
ORPHAN_SECONDS = 2.0
# Idempotent tasks without a limit.
UNFLUSHED = frozenset({"busy", "beside"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a drill has shown."""

    seed: int
    violations: list[str]
    sent: int
    acknowledged: int
    completed: int
    failed: int
    repeated: int
    unrecorded: int
    held_over: int
    harmed: int  # tasks that crashed beyond one for each process that was killed
    broken: dict[str, int]  # how many violations of each promise
    kills: int
    strikes: int
    resolved: int  # sends that failed and were then acknowledged
    lost_replies: int
    rescues: list[float]  # from the death of a process to the next run of what it ran
    recoveries: list[float]  # from the end of a fault to the next run of anything
    per_second: float

    @property
    def figures(self) -> dict[str, int]:
        """The counts, by what they count."""
        return {
            "sent": self.sent,
            "completed": self.completed,
            "failed": self.failed,
            "broken promises": len(self.violations),
            "kills": self.kills,
            "finished tasks repeated": self.repeated,
            "runs held over by a freeze": self.held_over,
            "replies lost": self.lost_replies,
            "failed sends resolved": self.resolved,
        }


def run(folder: Path, database_url: str, plan: Plan, fault: Fault, times: int = 1) -> Verdict:
    """Carry out a drill in a folder of its own."""
    print(f"seed {plan.seed}")
    with Scene(folder, database_url, plan, _env(folder, database_url, plan)) as scene:
        for _ in range(plan.workers):
            scene.hire(ready=False)
        for worker in scene.workers:
            worker.wait_until_ready()
        with Watch(folder, database_url, plan.watch_seconds) as watch:
            scene.start_producers()
            scene.strike(fault, times)
            violations = _come_to_rest(scene)
        return _verdict(scene, watch, violations)


def _env(folder: Path, database_url: str, plan: Plan) -> dict[str, str]:
    setup = Setup(
        folder=str(folder),
        lease_ms=plan.lease_ms,
        prefetch=plan.prefetch,
        narrow_cap=plan.narrow_cap,
        task_ms=plan.task_ms,
        session_url=None if plan.pooler_url is None else database_url,
        clock_seconds=plan.clock_seconds,
        mix=plan.mix,
        batch=plan.batch,
    )
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        VARIABLE: msgspec.json.encode(setup).decode(),
    }


def _come_to_rest(scene: Scene) -> list[str]:
    """Wait until everything sent is final, then stop the workers; gives back what was wrong with either."""
    wrong: list[str] = []
    for number, producer in enumerate(scene.producers):
        if producer.wait(SETTLE_SECONDS + scene.plan.seconds) != 0:
            log = (scene.folder / f"producer-{number}.log").read_text()
            wrong.append(f"producer {number} gave up: {log[-500:]}")
    try:
        eventually(lambda: scene.live() == 0, SETTLE_SECONDS, "everything being final")
        eventually(lambda: scene.slots() == 0, SETTLE_SECONDS, "no key being held by a task that has ended")
    except AssertionError as error:
        wrong.append(str(error))
    for worker in list(scene.workers):
        worker.wait_until_ready()
        if (code := scene.dismiss(worker)) != 0:
            wrong.append(f"worker {worker.pid} exited with {code}: {worker.log[-500:]}")
    return wrong


def _verdict(scene: Scene, watch: Watch, violations: list[str]) -> Verdict:
    history = _history(scene, watch)
    accused = accusations(history)
    kept = accused.keys() if scene.plan.promises is None else scene.plan.promises
    found = [*violations, *(words for promise in kept for words in accused[promise])]
    sends, runs, rows = history.sends, sorted(history.runs, key=lambda run: run.began), history.rows
    span = (runs[-1].began - runs[0].began) / 1e9 if runs else 0.0
    return Verdict(
        seed=scene.plan.seed,
        violations=[*found, *map(str, ailments(scene.url))],
        sent=len(sends),
        acknowledged=sum(send.acknowledged is not None for send in sends),
        completed=sum(row.status == "COMPLETED" for row in rows),
        failed=sum(row.status == "FAILED" for row in rows),
        repeated=repeated(history),
        unrecorded=unrecorded(history),
        held_over=held_over(history),
        harmed=max(0, sum(row.crash_count for row in rows) - scene.kills),
        broken={promise: len(found) for promise, found in accused.items()},
        kills=scene.kills,
        strikes=len(scene.strikes),
        resolved=sum(send.failures > 0 and send.acknowledged is not None for send in sends),
        lost_replies=sum(proxy.lost for proxy in scene.proxies),
        rescues=_rescues(runs, history.alive),
        recoveries=_recoveries(runs, scene.strikes),
        per_second=len(runs) / span if span else 0.0,
    )


def _history(scene: Scene, watch: Watch) -> History:
    """Everything that is known; processes have a moment to end after their worker has."""
    ours = scene.known | set(watch.alive)
    with suppress(AssertionError):
        eventually(lambda: not any(map(is_alive, ours)), ORPHAN_SECONDS)
    return History(
        sends=read_sends(scene.folder),
        runs=read_runs(scene.folder),
        rows=scene.rows(),
        policies=POLICIES,
        caps={lane_of(key): KEY_LIMIT for key in range(KEYS)}
        | ({} if scene.plan.narrow_cap is None else {NARROW: scene.plan.narrow_cap}),
        seen=watch.seen,
        alive=watch.alive,
        freezes=scene.freezes,
        strangers=frozenset(scene.strangers),
        survivors=sorted(filter(is_alive, ours)),
        crashes_expected=scene.plan.crashes,
        unflushed=UNFLUSHED | ({"repeatable"} if scene.plan.narrow_cap is None else set[str]()),
        server_crashes=scene.server_crashes,
    )


def _rescues(runs: Sequence[Run], alive: Mapping[int, int]) -> list[float]:
    """For each run that was cut short and followed by another: the seconds from its process's death to that."""
    last: dict[int, Run] = {}
    found: list[float] = []
    for run in runs:
        before = last.get(run.number)
        if before is not None and before.ended is None:
            found.append((run.began - alive.get(before.pid, before.began)) / 1e9)
        last[run.number] = run
    return found


def _recoveries(runs: Sequence[Run], strikes: Sequence[tuple[int, int]]) -> list[float]:
    """For each strike: the seconds from its end to the next run that began, if that was before the next strike."""
    found: list[float] = []
    for place, (_, healed) in enumerate(strikes):
        following = bisect_left(runs, healed, key=lambda run: run.began)
        until = strikes[place + 1][0] if place + 1 < len(strikes) else None
        if following < len(runs) and (until is None or runs[following].began < until):
            found.append((runs[following].began - healed) / 1e9)
    return found
