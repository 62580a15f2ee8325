"""What is measured of every peer, in the same way for all: the bench holds the watch and reads the servers' counters."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg

from bench.harness import Bench
from bench.peers.catalogue import PEERS, Peer
from bench.peers.environments import Missing, node_environment, python_environment, redis_server
from bench.peers.stage import SCRIPTS, Stage, go, heard, use

PRODUCER_PROCESSES, PRODUCER_WIDTH = 4, 4
# What a library or its script can do wrong: end, hang, say something else, forget a task, lose its database.
PROBLEMS = (RuntimeError, OSError, subprocess.SubprocessError, AssertionError, LookupError, psycopg.Error)


@dataclass(frozen=True, slots=True)
class Size:
    """How much work there is: all tasks of a work are divided by `divisor`."""

    divisor: int
    latencies: int
    cap_seconds: float
    mix_seconds: int


FULL = Size(1, 300, 45.0, 24)
REDUCED = Size(20, 60, 20.0, 12)


@dataclass(frozen=True, slots=True)
class Measured:
    """One value of one run; a peer that could not be measured has a `problem` instead."""

    peer: str
    work: str
    unit: str = ""
    value: float | None = None
    problem: str = ""


Values = Iterator[tuple[str, str, float]]
Work = Callable[[Stage, Size], Values]
Say = Callable[[str], object]


def install(only: str | None, say: Say) -> None:
    """Install what peers need before anything is measured. What cannot be installed is said where the peer is measured."""
    say("installing the others, where that has not been done …")
    for peer in wanted(only):
        with suppress(Missing):
            _command(peer)


def peers(bench: Bench, size: Size, only: str | None, say: Say) -> Iterator[Measured]:
    """Measure all works of all peers, or of those of one name."""
    works = (_sends, _producers, _bulk, _drains, _latencies)
    yield from measured(bench, [(peer, works) for peer in wanted(only) if peer.in_table], size, say)


def wanted(only: str | None) -> list[Peer]:
    """Return the peers of one name, or all."""
    return [peer for peer in PEERS if only is None or only == peer.short_name]


def measured(
    bench: Bench, plan: Sequence[tuple[Peer, Sequence[Work]]], size: Size, say: Say
) -> Iterator[Measured]:
    """Measure these works of these peers, each on an empty store of its own."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="horsies-peers-")))
        stores = {"PostgreSQL": bench.url}
        for peer, works in plan:
            say(f"measuring {peer.name} …")
            try:
                if peer.store not in stores:
                    stores[peer.store] = stack.enter_context(redis_server(folder))
                stage = Stage(peer, stores[peer.store], _command(peer), folder)
            except Missing as missing:
                yield Measured(peer.name, "", problem=str(missing))
                continue
            yield from _works(stage, works, size)


def _command(peer: Peer) -> list[str]:
    """What runs the script; ours runs where the bench does."""
    name = peer.short_name
    if name == "graphile":
        node, home = node_environment(name, peer.requirements)
        return [str(node), str(SCRIPTS / f"{peer.script}.cjs"), str(home)]
    python = Path(sys.executable)
    if peer.requirements:
        python = python_environment(name, peer.requirements, peer.python)
    return [str(python), str(SCRIPTS / "play.py"), peer.script]


def _works(stage: Stage, works: Sequence[Work], size: Size) -> Iterator[Measured]:
    """Whatever goes wrong with a peer is its own row's problem; the others are measured all the same."""
    try:
        stage.set_up()
        for work in works:
            for name, unit, value in work(stage, size):
                yield Measured(stage.peer.name, name, unit, value)
    except PROBLEMS as problem:
        yield Measured(stage.peer.name, "", problem=f"{problem} ({stage.complaint()})")
    finally:
        stage.close()


def _sends(stage: Stage, size: Size) -> Values:
    stage.clear()
    yield "send", "tasks/s", _send_rate(stage, 1, "send", 2_000 // size.divisor, 1)


def _producers(stage: Stage, size: Size) -> Values:
    stage.clear()
    count = 2_000 // size.divisor
    yield (
        "send, 16 producers",
        "tasks/s",
        _send_rate(stage, PRODUCER_PROCESSES, "send", count, PRODUCER_WIDTH),
    )


def _bulk(stage: Stage, size: Size) -> Values:
    if stage.peer.bulk:
        stage.clear()
        yield "bulk send", "tasks/s", _send_rate(stage, 1, "bulk", 50_000 // size.divisor, stage.peer.bulk)


def _send_rate(stage: Stage, processes: int, command: str, count: int, how: int) -> float:
    with stage.together(processes, command, count, how) as scripts:
        began = time.monotonic()
        go(scripts)
        for script in scripts:
            heard(script, "done")
        return processes * count / (time.monotonic() - began)


def _drains(stage: Stage, size: Size) -> Values:
    for processes in (2, 4):
        stage.clear()
        count = stage.peer.drained // size.divisor
        if stage.peer.bulk:
            _send_rate(stage, 1, "bulk", count, stage.peer.bulk)
        else:
            _send_rate(stage, 1, "send", count, PRODUCER_WIDTH)
        stage.settle()
        costs = list(_drain(stage, processes, count, size.cap_seconds))
        yield from costs if processes == 2 else costs[:1]


def _drain(stage: Stage, processes: int, count: int, cap_seconds: float) -> Values:
    """From the first start until the store says that nothing is left; slow peers are cut off after a while."""
    before = None if stage.bench is None else stage.bench.counters()
    with stage.worker(processes) as worker:
        wait(lambda: stage.started() > 0, 60, "no task has begun")
        began = stage.starts()[0][1]
        while time.monotonic() < began + cap_seconds and (stage.started() < count or stage.left() > 0):
            time.sleep(0.01)
        ended, done = time.monotonic(), stage.started()
        taken = use(worker)
    yield f"drain, {processes} processes", "tasks/s", done / (ended - began)
    if stage.bench is not None and before is not None:
        after = stage.bench.counters()
        yield "transactions per task", "", (after.transactions - before.transactions) / done
        yield "WAL per task", "bytes", (after.wal_bytes - before.wal_bytes) / done
    yield "memory, 2 processes", "MB", taken.memory_mb
    yield "CPU of the worker per task", "ms", taken.cpu_seconds / done * 1000


def _latencies(stage: Stage, size: Size) -> Values:
    stage.clear()
    with stage.worker(2), stage.together(1, "latency", size.latencies) as scripts:
        wait(lambda: stage.started() > 0, 60, "no task has begun")
        time.sleep(2)  # the worker has nothing to do
        go(scripts)
        said = [[float(word) for word in line.split()] for line in heard(scripts[0], "done")]
    started = dict(stage.starts())
    starts = [(started[int(task[0])] - task[1]) * 1000 for task in said]
    yield from percentiles("send → start", starts)
    yield from percentiles("send → result", [(task[2] - task[1]) * 1000 for task in said if len(task) > 2])


PERCENTILES = (50, 95, 99)


def percentiles(name: str, times: list[float]) -> Values:
    if times:
        cuts = statistics.quantiles(times, n=100, method="inclusive")
        for percent in PERCENTILES:
            yield f"{name}, p{percent}", "ms", cuts[percent - 1]


def wait(condition: Callable[[], bool], seconds: float, otherwise: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{otherwise} within {seconds:.0f} s")
        time.sleep(0.002)
