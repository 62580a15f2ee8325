"""How soon tasks start under loads that two processes can carry: the tail of a queue, not its peak.

Tasks arrive at times that are drawn in advance and do not wait for one another, so a queue that falls behind cannot slow its
load down. All peers get the same arrivals. Each load asks for so small a part of what two processes can do that a queue which
gives every waiting task to the first free process has a short tail. `in_order` computes how short.

- `burn`: 5 ms of processor time, at random times.
- `rest`: 50 ms of waiting, at random times. An async library waits in its loop, all others in a thread or a process.
- `nap`: bursts of short tasks, and among them, in an unknown place, one long task for each hundred. All have the same name, and the
  long ones never overlap: one process is always free for the short ones. They block their thread, as most code does.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from bench.harness import Bench
from bench.peers.catalogue import LOADS
from bench.peers.stage import Stage, go, heard
from bench.peers.works import PERCENTILES, Measured, Say, Size, Values, measured, percentiles, wait, wanted

SLOTS = 2
IN_ORDER = "two slots that cost nothing, computed"
# The first tasks are not counted: the worker and its database are cold, and it has to learn how long tasks run.
WARM_UP_SECONDS = 6.0
# After the last arrival, tasks that have not begun are waited for.
GRACE_SECONDS = 30.0
PERIOD_SECONDS, LONG_SECONDS, SHORT_SECONDS, SHORT_TASKS, BURSTS = 6.0, 5.0, 0.001, 100, 4

Arrival = tuple[float, float]
"""When a task is sent, and how long it takes, in seconds."""


@dataclass(frozen=True, slots=True)
class Load:
    """What arrives, by the name that the tables use. `share` is the part of two processes' time that it asks for."""

    title: str
    head: str
    share: float
    arrivals: Callable[[random.Random, float], list[Arrival]]


def poisson(seconds: float, share: float, draws: random.Random, lasting: float) -> list[Arrival]:
    """Draw arrivals of tasks of one length at random times, as they come from many independent users."""
    rate = share * SLOTS / seconds
    arrivals: list[Arrival] = []
    at = draws.expovariate(rate)
    while at < lasting:
        arrivals.append((at, seconds))
        at += draws.expovariate(rate)
    return arrivals


def bursts(draws: random.Random, lasting: float) -> list[Arrival]:
    """Draw bursts of short tasks, and in each period one long task in a random place of a random burst.

    >>> drawn = bursts(random.Random(1), 12.0)
    >>> len(drawn), sum(seconds == LONG_SECONDS for _, seconds in drawn)
    (202, 2)
    """
    arrivals: list[Arrival] = []
    pause = PERIOD_SECONDS / BURSTS
    for period in range(int(lasting / PERIOD_SECONDS)):
        # The long task comes early in its period, so that it has ended before the next one.
        lengths = [SHORT_SECONDS] * SHORT_TASKS
        lengths.insert(draws.randrange(SHORT_TASKS // BURSTS), LONG_SECONDS)
        for place, length in enumerate(lengths):
            burst = min(place * BURSTS // SHORT_TASKS, BURSTS - 1)
            arrivals.append((period * PERIOD_SECONDS + burst * pause, length))
    return arrivals


_BURST_SHARE = (LONG_SECONDS + SHORT_TASKS * SHORT_SECONDS) / PERIOD_SECONDS / SLOTS
TABLE = {
    "burn": Load("5 ms of CPU", "CPU", 0.3, partial(poisson, 0.005, 0.3)),
    "rest": Load("50 ms of waiting", "waiting", 0.5, partial(poisson, 0.05, 0.5)),
    "nap": Load("1 of 5 s among 100 of 1 ms", "mix", _BURST_SHARE, bursts),
}


def mix(bench: Bench, size: Size, only: str | None, say: Say) -> Iterator[Measured]:
    """Measure how soon tasks start under each load, for every peer that takes part, beside what two slots need."""
    for name in LOADS:
        arrivals = _arrivals(name, size)
        for work, unit, value in _starts(name, arrivals, in_order(arrivals, SLOTS)):
            yield Measured(IN_ORDER, work, unit, value)
    plan = [
        (
            replace(peer, environment={**peer.environment, **peer.mix_environment}),
            [partial(_under, name) for name in peer.mix],
        )
        for peer in wanted(only)
        if peer.mix
    ]
    yield from measured(bench, plan, size, say)


def _arrivals(name: str, size: Size) -> list[Arrival]:
    """Return the arrivals of a load. They are the same for all peers and all rounds."""
    lasting = size.mix_seconds if name == "nap" else WARM_UP_SECONDS + size.mix_seconds / 2
    return TABLE[name].arrivals(random.Random(name), lasting)


def _under(name: str, stage: Stage, size: Size) -> Values:
    """Send the tasks of a load at their times, and return how long each took to start."""
    arrivals = _arrivals(name, size)
    stage.clear()
    path = stage.note(json.dumps(arrivals))
    with stage.worker(SLOTS), stage.together(1, "arrive", name, path) as scripts:
        wait(lambda: stage.started() > 0, 60, "no task has begun")
        go(scripts)
        sent = [float(line.split()[1]) for line in heard(scripts[0], "done")]
        expected = len(sent) + 1  # the one that `ready` sent
        wait(lambda: stage.started() >= expected, GRACE_SECONDS, f"not all of {len(sent)} tasks have begun")
    started = dict(stage.starts())
    yield from _starts(name, arrivals, [started[n] - sent_at for n, sent_at in enumerate(sent)])


def _starts(name: str, arrivals: Sequence[Arrival], delays: Sequence[float]) -> Values:
    """Return the percentiles of the delays in milliseconds, without those of the warm-up."""
    counted = [delay * 1000 for (at, _), delay in zip(arrivals, delays, strict=True) if at >= WARM_UP_SECONDS]
    yield from percentiles(TABLE[name].title, counted)


def in_order(arrivals: Sequence[Arrival], slots: int) -> list[float]:
    """Return how long each task waits if the first free slot takes the first task that waits, and that costs nothing.

    >>> in_order([(0.0, 3.0), (0.0, 1.0), (0.5, 1.0)], 2)
    [0.0, 0.0, 0.5]
    """
    free = [0.0] * slots
    waits: list[float] = []
    for at, seconds in arrivals:
        slot = free.index(min(free))
        start = max(at, free[slot])
        waits.append(start - at)
        free[slot] = start + seconds
    return waits


# The works that a mix yields, and the heads of their columns.
WORKS = [f"{load.title}, p{percent}" for load in TABLE.values() for percent in PERCENTILES]
TITLES = [f"{load.head}, p{percent}" for load in TABLE.values() for percent in PERCENTILES]
