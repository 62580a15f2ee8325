"""Look at every state that the protocol can get into, the nearest first, until something is wrong.

What is wrong is said here without regard to how the protocol avoids it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.machine import (
    BEGUN,
    FINAL,
    NOBODY,
    PENDING,
    SENT,
    WAITING,
    Event,
    State,
    World,
    beginning,
    steps,
)


@dataclass(frozen=True, slots=True)
class Report:
    """How many states there are; what is wrong, if anything, and the shortest way to it."""

    states: int
    problem: str | None = None
    trace: tuple[Event, ...] = ()

    def __str__(self) -> str:
        told = "".join(f"\n  {number}. {event}" for number, event in enumerate(self.trace, 1))
        return f"{self.problem or 'nothing is wrong'} ({self.states} states){told}"


class _Seen(NamedTuple):
    """A state as it was first come to."""

    state: State
    parent: Hashable
    event: Event | None


def explore(world: World) -> Report:
    """All states, or the shortest way to one that must not be."""
    first = beginning(world)
    seen: dict[Hashable, _Seen] = {_key(first): _Seen(first, None, None)}
    ways_in: dict[Hashable, list[Hashable]] = {}
    queue = deque(seen)
    while queue:
        key = queue.popleft()
        state = seen[key].state
        if _is_over(state):
            continue
        for event, after in steps(state, world):
            problem = _problem(state, event, after, world)
            if problem is not None:
                return Report(len(seen), problem, (*_trace(seen, key), event))
            next_key = _key(after)
            if not event.fault:
                ways_in.setdefault(next_key, []).append(key)
            if next_key not in seen:
                seen[next_key] = _Seen(after, key, event)
                queue.append(next_key)
    for key in _stranded(seen, ways_in):
        return Report(len(seen), "the task is in limbo", _trace(seen, key))
    return Report(len(seen))


def _is_over(state: State) -> bool:
    """The task has ended, and nobody believes to hold it: nothing can come of anything any more."""
    return state.task.status in FINAL and not any(worker.holds for worker in state.workers)


def _problem(before: State, event: Event, after: State, world: World) -> str | None:
    """What is wrong with a step, or with the state that it leads to."""
    old, new, hold = before.task, after.task, event.hold
    if old.status in FINAL and old._replace(owner=0) != new._replace(owner=0):
        return "what had ended was changed"
    if event.verb == "begins" and before.begun:
        return "the task was begun twice"
    if event.verb == "begins" and old.status in FINAL:
        return "the task was begun after its end"
    is_stale = hold is not None and hold.number != old.number
    if event.verb == "begins" and is_stale:
        return "the task was begun by a worker that had lost it"
    if not event.verb.startswith("claims") and is_stale and old != new:
        return "a stale worker's word was taken"
    if (new.status == PENDING) != (new.owner == NOBODY):
        return "a pending task has an owner, or another one has none"
    if sum(_believes(after)) > 1:
        return "two workers own the task"
    if new.crashes > world.max_crashes:
        return "the task crashes for ever"
    return None


def _believes(state: State) -> list[bool]:
    """For each worker, whether it holds the task and nobody has declared it dead."""
    return [
        not worker.dead and any(hold.stage in (WAITING, SENT, BEGUN) for hold in worker.holds)
        for worker in state.workers
    ]


def _stranded(seen: dict[Hashable, _Seen], ways_in: dict[Hashable, list[Hashable]]) -> list[Hashable]:
    """The states from which no end can be reached, unless something breaks or somebody comes back; nearest first."""
    ends = [key for key, found in seen.items() if found.state.task.status in FINAL]
    hopeful = set(ends)
    while ends:
        for key in ways_in.get(ends.pop(), ()):
            if key not in hopeful:
                hopeful.add(key)
                ends.append(key)
    return [key for key in seen if key not in hopeful]


def _trace(seen: dict[Hashable, _Seen], key: Hashable) -> tuple[Event, ...]:
    events: list[Event] = []
    while (event := seen[key].event) is not None:
        events.append(event)
        key = seen[key].parent
    return tuple(reversed(events))


def _key(state: State) -> Hashable:
    """The same for states that differ only in the names of workers, or in how far numbers have been counted."""
    task, workers = state.task, state.workers
    numbers = {task.number, *(hold.number for worker in workers for hold in worker.holds)}
    ranks = {number: rank for rank, number in enumerate(sorted(numbers, reverse=True))}
    crew = sorted(
        (*worker[:-1], task.owner == index, *((ranks[hold.number], hold.stage) for hold in worker.holds))
        for index, worker in enumerate(workers)
    )
    counts = (0, 0) if task.status in FINAL else (task.retries, task.crashes)
    return (task.status, min(task.owner, 0), *counts, ranks[task.number], state.begun, *crew)
