"""What is measured: each function carries out its drills and gives lines for the report."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from tests.faults import faults
from tests.faults.drill import Verdict
from tests.faults.place import Place
from tests.faults.report import percentile, spread
from tests.faults.scene import Scene

Lines = list[tuple[str, str]]
Settings = dict[str, Any]

LOAD, BULK_LOAD = 0.6, 0.8
CHAPTER_SENDS = 50_000
CHAPTER_SECONDS = 300.0
SOAK_FAULT_EVERY_SECONDS = 45.0
FAULT_EVERY_SECONDS = 5.0
# Short tasks in batches, many of them claimed at once: what counts is how many.
BULK: Settings = {
    "batch": 100,
    "task_ms": 2,
    "watch_seconds": 0.5,
    "lease_ms": 3_000,
    "prefetch": 32,
    "narrow_cap": None,
}
# Tasks with keys only, of which few may run at once, by four workers.
KEYED: Settings = BULK | {"mix": (*("keyed",) * 3, "keyed_beside"), "workers": 4, "prefetch": 0}
# So that a kill finds tasks at work, and nothing waits in line.
SLOW: Settings = {"sends": 400, "task_ms": 400, "mix": ("repeatable",), "narrow_cap": None, "workers": 3}
# Tasks of 20 ms on average, all but one kind of which are run again when they are lost.
SHORT: Settings = {"batch": 10, "task_ms": 40, "mix": ("plain", "repeatable", "beside"), "narrow_cap": None}


def deaths(place: Place) -> Lines:
    """Of workers, as a whole, and of children."""
    by_default = place.drill(faults.kill_all_processes, 2, lease_ms=None, seconds=40.0, **SLOW)
    fast = place.drill(faults.kill_all_processes, 3, lease_ms=3_000, seconds=30.0, **SLOW)
    children = place.drill(faults.kill_child, 100, sends=2_000, seconds=25.0, task_ms=40)
    return [
        ("kill -9 of a worker and its children to the next run, default", spread(by_default.rescues)),
        ("the same with claim_lease_ms=3000", spread(fast.rescues)),
        ("kill -9 of a child to the next run", spread(children.rescues)),
        ("siblings harmed by the death of a child", f"{children.harmed} (n={children.kills})"),
    ]


def crashes(place: Place) -> Lines:
    """Of the server."""
    verdict = place.drill(
        partial(faults.crash_server, place.server), 4, sends=2_000, seconds=40.0, crashes=False
    )
    return [
        ("crash of PostgreSQL, from accepting again to the next run", spread(verdict.recoveries)),
        ("false crashes", f"{verdict.broken['false crashes']} (n={verdict.strikes})"),
    ]


def kills(place: Place, count: int) -> Lines:
    """What becomes of finished work when its worker is killed: a kill about every second, and another one is hired."""
    verdict = place.drill(
        faults.kill_worker, count, sends=200 * count, seconds=1.3 * count, workers=3, **SHORT
    )
    return [
        ("finished tasks repeated per 100 kills of a worker", _per_100(verdict.repeated, verdict)),
        ("finished tasks taken for lost per 100 kills", _per_100(verdict.unrecorded, verdict)),
    ]


def _per_100(count: int, verdict: Verdict) -> str:
    return f"{100 * count / max(verdict.kills, 1):.1f} (n={verdict.kills})"


def lost_replies(place: Place, count: int) -> Lines:
    """Statements that were carried out, and nobody heard of it."""
    settings: Settings = {"proxied": True, "crashes": False, "lease_ms": None}
    sends = place.drill(
        partial(faults.lose_many_replies, count, of_producers=True),
        sends=2 * count,
        seconds=1.0,
        **settings,
    )
    work = place.drill(
        partial(faults.lose_many_replies, count, of_producers=False),
        sends=4 * count,
        seconds=1.0,
        workers=3,
        **settings,
    )
    return [
        ("lost replies to sends, each resolved as one task", _resolved(sends)),
        ("lost replies to workers, each task run by its policy", _resolved(work)),
    ]


def _resolved(verdict: Verdict) -> str:
    wrong = len(verdict.violations)
    return f"{max(0, verdict.lost_replies - wrong):,} of {verdict.lost_replies:,}"


def volume(place: Place, sends: int) -> Lines:
    """So many sends under fault after fault."""
    verdicts = _chapters(place, sends, BULK)
    acknowledged = sum(verdict.acknowledged for verdict in verdicts)
    lost = sum(verdict.broken["tasks lost"] for verdict in verdicts)
    strikes = sum(verdict.strikes for verdict in verdicts)
    return [("lost", f"{lost} of {acknowledged:,} acknowledged sends, under {strikes} faults")]


def keys(place: Place, sends: int) -> Lines:
    """So many sends of tasks with keys, under fault after fault."""
    verdicts = _chapters(place, sends, KEYED)
    exceeded = sum(verdict.broken["limits exceeded"] for verdict in verdicts)
    ended = sum(verdict.completed + verdict.failed for verdict in verdicts)
    strikes = sum(verdict.strikes for verdict in verdicts)
    return [("limits of keys exceeded", f"{exceeded} in {ended:,} tasks, under {strikes} faults")]


def _chapters(place: Place, sends: int, settings: Settings) -> list[Verdict]:
    """Send so much under fault after fault, in chapters, each checked by itself."""
    rate = BULK_LOAD * _pace(place, **settings)
    verdicts: list[Verdict] = []
    while (left := sends - sum(verdict.acknowledged for verdict in verdicts)) > 0:
        share = min(left, CHAPTER_SENDS)
        seconds = max(share / rate, 5.0)
        times = max(1, int(seconds / FAULT_EVERY_SECONDS))
        verdicts.append(
            place.drill(partial(_any_fault, place), times, sends=share, seconds=seconds, **settings)
        )
        print(verdicts[-1].figures, flush=True)
    return verdicts


def soak(place: Place, minutes: float) -> Lines:
    """Keep a load and a fault every 45 seconds, in chapters, each checked by itself."""
    rate = LOAD * _pace(place)
    verdicts: list[Verdict] = []
    left = minutes * 60
    while left > 0:
        seconds = min(left, CHAPTER_SECONDS)
        times = max(1, int(seconds / SOAK_FAULT_EVERY_SECONDS))
        strike = partial(_any_fault, place)
        settings: Settings = {
            "sends": int(rate * seconds),
            "seconds": seconds,
            "lease_ms": 3_000,
            "proxied": True,
        }
        verdicts.append(place.drill(strike, times, **settings))
        left -= seconds
    recoveries = [gap for verdict in verdicts for gap in verdict.recoveries]
    return [
        ("minutes", f"{minutes:g}"),
        ("faults", str(sum(verdict.strikes for verdict in verdicts))),
        ("time to recover, p99", f"{percentile(recoveries, 0.99) or 0.0:.2f} s"),
    ]


def _pace(place: Place, **settings: Any) -> float:
    """What these workers can do in a second."""
    pace = place.drill(faults.nothing, sends=6_000, seconds=1.0, **settings).per_second
    print(f"{pace:.0f} tasks/s are possible here", flush=True)
    return pace


def _any_fault(place: Place, scene: Scene) -> None:
    known = [
        *(faults.kill_worker, faults.kill_all_processes, faults.kill_child, faults.freeze_parent),
        *(faults.freeze_all_processes, faults.freeze_child, faults.replace_worker, faults.end_sessions),
        *(faults.cancel_statements, faults.lock_rows, partial(faults.crash_server, place.server)),
    ]
    if scene.plan.proxied:
        known += [
            *(faults.cut_connections, faults.swallow_for_a_moment, faults.swallow_everything),
            *(faults.delay_everything, faults.lose_replies_to_producers, faults.lose_replies_to_workers),
            *(faults.partition_worker, faults.deafen_listeners),
        ]
    scene.random.choice(known)(scene)


def promises(place: Place) -> Lines:
    """How often each promise was broken in all drills together."""
    total: Counter[str] = Counter()
    for verdict in place.verdicts:
        total.update(verdict.broken)
    sent = sum(verdict.acknowledged for verdict in place.verdicts)
    return [
        *((name, str(count)) for name, count in total.items()),
        ("runs held over by a freeze", str(sum(verdict.held_over for verdict in place.verdicts))),
        ("acknowledged sends", f"{sent:,}"),
    ]
