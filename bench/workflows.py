"""What workflows cost, beside plain tasks in the same run: a chain, a wide fan, and the start of a thousand nodes.

All run with default settings, and the fan with tuned ones as well. The plain tasks beside a chain run strictly one at a time,
as the steps of a chain must."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bench.app import app, noop
from bench.figures import Figure, at_most
from bench.harness import NO_RECYCLING, PREFETCH, STRICT, Bench, Counters
from horsies import AnyNode, WorkflowSpec
from horsies.workflow.nodes import TaskNode

DONE = "SELECT NOT EXISTS (SELECT FROM horsies_workflows WHERE completed_at IS NULL)"
DRAINED = "SELECT NOT EXISTS (SELECT FROM horsies_tasks_live)"
ONE = ("--processes", "1")
TWO = ("--processes", "2")
TUNED = (*TWO, *PREFETCH, *NO_RECYCLING)
# A fan lasts for a tenth of a second, so it takes several to say how long.
FANS = 3


def workflows(bench: Bench, count: int) -> Iterator[Figure]:
    """Chains against tasks one at a time; fans against a drain of as many tasks."""
    yield from _chain(bench, count)
    yield from _fan(bench, count)
    yield from _many(bench, count)


def _chain(bench: Bench, count: int) -> Iterator[Figure]:
    plain_seconds, plain = _measured(
        bench, lambda: noop.send_many([(n,) for n in range(count)]), (*ONE, *STRICT), DRAINED
    )
    chain = _drawn_chain(count)
    seconds, cost = _measured(bench, chain.start, ONE, DONE)
    yield Figure("plain tasks, one at a time", count / plain_seconds, "tasks/s")
    yield Figure(f"a chain of {count:,}", count / seconds, "steps/s")
    for what, mine, theirs in (
        ("  transactions per step", cost.transactions, plain.transactions),
        ("  WAL per step", cost.wal_bytes, plain.wal_bytes),
    ):
        ratio = mine / theirs
        yield Figure(what, mine / count, "", ratio, "plain task", "≤ 1.5", ratio <= 1.5)


def _fan(bench: Bench, count: int) -> Iterator[Figure]:
    first = noop.node()(x=0)
    middle = [noop.node(waits_for=[first])(x=n) for n in range(count)]
    last = noop.node(waits_for=middle)(x=0)
    fan: WorkflowSpec[int] = app.workflow("fan", [first, *middle, last], definition_key="bench.fan")
    fan.start().unwrap()  # connects
    bench.empty()
    began = time.perf_counter()
    fan.start().unwrap()
    start = time.perf_counter() - began
    yield Figure(f"start of {count + 2:,} nodes, one round trip", start * 1000, "ms")
    for settings, flags in (("", TWO), (", prefetch 1000, no recycling", TUNED)):
        plain: list[float] = []
        fans: list[float] = []
        for _ in range(FANS):  # in turns, so that a slow moment of the machine meets both
            plain.append(
                _measured(bench, lambda: noop.send_many([(n,) for n in range(count)]), flags, DRAINED)[0]
            )
            fans.append(_measured(bench, fan.start, flags, DONE)[0])
        drained, fanned = statistics.median(plain) * 1000, statistics.median(fans) * 1000
        yield Figure(f"drain of {count:,} plain tasks{settings}", drained, "ms")
        yield at_most(
            f"fan-out and fan-in of {count:,}{settings}", fanned, "ms", fanned / drained, "drain", 2
        )


def _many(bench: Bench, count: int) -> Iterator[Figure]:
    small = _drawn_chain(3)

    def start_all() -> None:
        for _ in range(count):
            small.start().unwrap()

    seconds, _ = _measured(bench, start_all, TWO, DONE)
    yield Figure(f"{count:,} workflows of three steps at once", count / seconds, "workflows/s")


def _drawn_chain(count: int) -> WorkflowSpec[Any]:
    nodes: list[AnyNode] = []
    for n in range(count):
        nodes.append(TaskNode(noop, kwargs={"x": n}, waits_for=nodes[-1:]))
    return app.workflow("chain", nodes, definition_key="bench.chain")


def _measured(bench: Bench, begin: Any, flags: tuple[str, ...], done: str) -> tuple[float, Counters]:
    """Seconds from the first start of a task to the last end, and what the server did from before the sends."""
    bench.empty()
    before = bench.counters()
    begin()
    with bench.worker(*flags):
        bench.wait_until(done)
    after = bench.counters()  # sessions that have ended have told everything
    seconds = float(
        bench.value(
            "SELECT extract(epoch FROM max(terminal_at) - min(started_at)) FROM horsies_tasks WHERE NOT live"
        )
    )
    return seconds, replace(
        after,
        transactions=after.transactions - before.transactions,
        wal_bytes=after.wal_bytes - before.wal_bytes,
    )
