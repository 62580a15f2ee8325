"""Measure how faults are borne: `python -m tests.faults`; `--soak MINUTES` keeps a load under fault after fault.

    python -m tests.faults
    python -m tests.faults --soak 60 --seed 7

Both use a PostgreSQL server of their own, and exit with 1 when a promise was broken.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from uuid import uuid4

import psycopg
from psycopg import sql

from tests.faults import drill, faults
from tests.faults.drill import Fault, Verdict
from tests.faults.report import percentile, spread, summary, table
from tests.faults.scene import OwnServer, Plan, Scene

CHAPTER_SECONDS = 300.0
FAULT_EVERY_SECONDS = 45.0
LOAD = 0.6


class Range:
    """A server with a fresh database for each drill."""

    def __init__(self, server: OwnServer, folder: Path, seed: int) -> None:
        self.server = server
        self.random = Random(seed)
        self._folder = folder

    def drill(self, fault: Fault, times: int = 1, **settings: object) -> Verdict:
        name = f"drill_{uuid4().hex}"
        folder = self._folder / name
        folder.mkdir()
        with psycopg.connect(self.server.url, autocommit=True) as admin:
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        plan = Plan(seed=self.random.randrange(10**9), **settings)  # pyright: ignore[reportArgumentType]
        verdict = drill.run(folder, f"{self.server.url.rpartition('/')[0]}/{name}", plan, fault, times)
        for violation in verdict.violations:
            print("BROKEN:", violation)
        return verdict


@contextmanager
def _range(seed: int) -> Generator[Range]:
    with tempfile.TemporaryDirectory(prefix="horsies-faults-") as folder:
        Path(folder).chmod(0o755)
        server = OwnServer(Path(folder) / "server", fsync="on")
        try:
            yield Range(server, Path(folder), seed)
        finally:
            server.remove()


def measure(seed: int) -> int:
    """The figures of the most telling faults; gives back how many promises were broken."""
    with _range(seed) as place:
        slow = {"sends": 100, "task_ms": 400}  # so that a kill finds tasks at work, and nothing waits in line
        by_default = place.drill(faults.kill_worker, 4, lease_ms=None, seconds=12.0, **slow)
        fast = place.drill(faults.kill_worker, 5, lease_ms=3_000, seconds=15.0, **slow)
        killed = place.drill(faults.kill_worker, 25, sends=2_000, seconds=60.0, task_ms=40)
        children = place.drill(faults.kill_child, 200, sends=2_000, seconds=40.0, task_ms=40)
        crashed = place.drill(
            partial(faults.crash_server, place.server), 4, sends=2_000, seconds=40.0, crashes=False
        )
        sends = place.drill(
            faults.lose_replies_to_producers, 4, sends=4_000, seconds=20.0, proxied=True, crashes=False
        )
        workers = place.drill(
            faults.lose_replies_to_workers,
            4,
            sends=4_000,
            seconds=20.0,
            proxied=True,
            crashes=False,
            lease_ms=None,
        )
    verdicts = [by_default, fast, killed, children, crashed, sends, workers]
    rows = [
        ("kill -9 of a worker to the next run elsewhere, default", spread(by_default.rescues)),
        ("the same with claim_lease_ms=3000", spread(fast.rescues)),
        ("kill -9 of a child to the next run", spread(children.rescues)),
        ("crash of PostgreSQL, from accepting again to the next run", spread(crashed.recoveries)),
        ("finished tasks repeated per 100 kills of a worker", _per_100(killed)),
        ("finished tasks repeated per 100 kills of a child", _per_100(children)),
        (
            "sends that failed, and were resolved as one task",
            f"{sends.resolved} ({sends.lost_replies} replies lost)",
        ),
        ("replies to workers lost, all tasks run once", f"{workers.lost_replies}"),
    ]
    print(f"\nseed {seed}\n{summary(verdict.figures for verdict in verdicts)}\n{table(rows)}")
    return sum(len(verdict.violations) for verdict in verdicts)


def _per_100(verdict: Verdict) -> str:
    return f"{100 * verdict.repeated / max(verdict.kills, 1):.1f} (n={verdict.kills})"


def soak(seed: int, minutes: float) -> int:
    """Keep a load and a fault every 45 seconds, in chapters of five minutes, each checked by itself."""
    verdicts: list[Verdict] = []
    with _range(seed) as place:
        rate = LOAD * place.drill(faults.nothing, sends=2_000, seconds=1.0).per_second
        print(f"{rate:.0f} tasks/s are {LOAD:.0%} of what these workers can do")
        left = minutes * 60
        while left > 0:
            seconds = min(left, CHAPTER_SECONDS)
            strike, times = partial(_any_fault, place), max(1, int(seconds / FAULT_EVERY_SECONDS))
            verdicts.append(
                place.drill(
                    strike, times, sends=int(rate * seconds), seconds=seconds, lease_ms=3_000, proxied=True
                )
            )
            left -= seconds
    recoveries = [gap for verdict in verdicts for gap in verdict.recoveries]
    broken = sum(len(verdict.violations) for verdict in verdicts)
    rows = [
        ("minutes", f"{minutes:g}"),
        ("faults", str(sum(verdict.strikes for verdict in verdicts))),
        ("sent", f"{sum(verdict.sent for verdict in verdicts):,}"),
        ("completed", f"{sum(verdict.completed for verdict in verdicts):,}"),
        (
            "failed, by their own error or for want of their process",
            f"{sum(verdict.failed for verdict in verdicts):,}",
        ),
        ("broken promises", str(broken)),
        ("time to recover, p99", f"{percentile(recoveries, 0.99) or 0.0:.2f} s"),
    ]
    print(f"\nseed {seed}\n{table(rows)}")
    return broken


def _any_fault(place: Range, scene: Scene) -> None:
    fault = scene.random.choice(
        [
            *(faults.kill_worker, faults.kill_child, faults.freeze_parent, faults.freeze_all_processes),
            *(faults.replace_worker, faults.end_sessions, faults.lock_rows, faults.cut_connections),
            *(faults.swallow_for_a_moment, faults.swallow_everything, faults.delay_everything),
            *(faults.lose_replies_to_producers, faults.lose_replies_to_workers),
            partial(faults.crash_server, place.server),
        ]
    )
    fault(scene)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--soak", type=float, metavar="MINUTES")
    parser.add_argument("--seed", type=int, default=Random().randrange(1, 10**9))
    given = parser.parse_args()
    broken = measure(given.seed) if given.soak is None else soak(given.seed, given.soak)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
