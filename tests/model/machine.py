"""The protocol by which workers hold a task, small enough to look at every state that it can get into.

One task, a few workers, any of which may rescue what the others held. A worker may be away for any time and come back
with what it knew; the reply to any of its statements may be lost. Each guard of the protocol is a switch, so that it
can be shown what it is for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

PENDING, CLAIMED, RUNNING, COMPLETED, FAILED = "PENDING", "CLAIMED", "RUNNING", "COMPLETED", "FAILED"
FINAL = (COMPLETED, FAILED)
# What a worker knows of a task that it holds, from the claim to the outcome that it has to write.
WAITING, SENT, BEGUN = "waiting", "sent", "begun"
RETURNED, BROKE, CRASHED = "returned", "broke", "crashed"
# Owners that are no worker of ours: nobody, and a name that was given up.
NOBODY, GONE = -1, -2


@dataclass(frozen=True, slots=True, kw_only=True)
class Guards:
    """What the protocol insists on."""

    claim_only_pending: bool = True
    start_is_fenced: bool = True
    start_only_claimed: bool = True
    outcome_is_fenced: bool = True
    outcome_only_running: bool = True
    number_changes_with_owner: bool = True
    release_only_own: bool = True
    release_keeps_what_is_held: bool = True
    held_is_told_by_number: bool = True
    refused_start_is_recounted: bool = True
    lost_reply_is_recounted: bool = True
    begin_only_within_lease: bool = True
    dead_go_on_under_another_name: bool = True
    bury_only_after_lease: bool = True
    rescue_only_from_the_dead: bool = True
    rescue_at_all: bool = True
    started_is_not_rerun_blindly: bool = True
    crashes_are_limited: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What is looked at: how many workers, how often the task may be retried, and whether a crash is retried."""

    workers: int = 2
    retries: int = 1
    crash_retry: bool = False
    max_crashes: int = 2
    slots: int = 2
    guards: Guards = Guards()


class Task(NamedTuple):
    """The row. The number grows with every change of owner; one that did not would be the same for all."""

    status: str
    number: int
    owner: int
    retries: int
    crashes: int


class Hold(NamedTuple):
    """What a worker believes that it holds."""

    number: int
    stage: str


class Worker(NamedTuple):
    """`valid` until its lease expires, which it can tell by its own clock; `dead` it is only in the database."""

    away: bool
    valid: bool
    dead: bool
    unsure: bool  # something may be in its name that it does not hold, and must go back before it takes more
    holds: tuple[Hold, ...]


class State(NamedTuple):
    """`begun` says that user code was begun, and that nothing has allowed to begin it again."""

    task: Task
    workers: tuple[Worker, ...]
    begun: bool


class Event(NamedTuple):
    """What happened, to whom, with which hold. A fault is nothing that the protocol may wait for."""

    verb: str
    worker: int
    hold: Hold | None = None
    fault: bool = False

    def __str__(self) -> str:
        number = "" if self.hold is None else f" (number {self.hold.number})"
        return f"worker {self.worker} {self.verb}{number}"


Step = tuple[Event, State]


def beginning(world: World) -> State:
    worker = Worker(away=False, valid=True, dead=False, unsure=False, holds=())
    return State(Task(PENDING, 0, NOBODY, 0, 0), (worker,) * world.workers, begun=False)


def steps(state: State, world: World) -> Iterator[Step]:
    """Everything that can happen next."""
    for index, worker in enumerate(state.workers):
        if worker.away:
            yield Event("comes back", index, fault=True), _put(state, index, worker._replace(away=False))
            if worker.valid:
                yield Event("has its lease expire", index), _put(state, index, worker._replace(valid=False))
            continue
        if any(not other.away for place, other in enumerate(state.workers) if place != index):
            yield Event("goes away", index, fault=True), _put(state, index, worker._replace(away=True))
        yield from _beat(state, index, world)
        yield from _claim(state, index, world)
        for hold in worker.holds:
            yield from _move(state, index, hold, world)
        if worker.unsure:
            yield from _release(state, index, world)
        yield from _reap(state, index, world)


def _move(state: State, index: int, hold: Hold, world: World) -> Iterator[Step]:
    """What can become of one hold."""
    if hold.stage == WAITING:
        yield from _start(state, index, hold, world)
        yield Event("gives up a claim", index, hold), _let_go(state, index, hold)
    elif hold.stage == SENT:
        yield from _begin(state, index, hold, world)
    elif hold.stage == BEGUN:
        yield Event("has a return", index, hold), _replace(state, index, hold, RETURNED)
        yield Event("has an error", index, hold), _replace(state, index, hold, BROKE)
        yield Event("has a crash", index, hold, fault=True), _replace(state, index, hold, CRASHED)
    else:
        yield from _settle(state, index, hold, world)


# What a worker asks of the database


def _claim(state: State, index: int, world: World) -> Iterator[Step]:
    """Take the task, to be started later or at once. A worker that is unsure recounts first."""
    worker, task = state.workers[index], state.task
    free = task.status == PENDING or (not world.guards.claim_only_pending and task.status not in FINAL)
    if not free or worker.unsure or len(worker.holds) == world.slots:
        return
    number = task.number + 1
    for verb, status, stage in (("claims", CLAIMED, WAITING), ("claims and starts", RUNNING, SENT)):
        taken = state._replace(task=task._replace(status=status, number=number, owner=index))
        hold = Hold(number, stage)
        yield (
            Event(verb, index, hold),
            _put(taken, index, worker._replace(holds=_sorted(*worker.holds, hold))),
        )
        yield (
            Event(f"{verb}, the reply is lost", index, hold, fault=True),
            _put(taken, index, worker._replace(unsure=world.guards.lost_reply_is_recounted)),
        )


def _start(state: State, index: int, hold: Hold, world: World) -> Iterator[Step]:
    """A task that waited here is started. One that cannot be is let go of; a lost reply may have left it started."""
    task, guards = state.task, world.guards
    fits = not guards.start_is_fenced or _is_current(hold, task, guards)
    if guards.start_only_claimed:
        fits = fits and task.status == CLAIMED
    if not fits:
        yield (
            Event("is refused a start", index, hold),
            _let_go(state, index, hold, guards.refused_start_is_recounted),
        )
        return
    started = state._replace(task=task._replace(status=RUNNING))
    yield Event("starts", index, hold), _replace(started, index, hold, SENT)
    unsure = state.workers[index]._replace(unsure=True)
    yield Event("starts, the reply is lost", index, hold, fault=True), _put(started, index, unsure)


def _settle(state: State, index: int, hold: Hold, world: World) -> Iterator[Step]:
    """Write an outcome. One that is refused is dropped; one whose reply is lost is kept and written again."""
    task, guards = state.task, world.guards
    fits = not guards.outcome_is_fenced or _is_current(hold, task, guards)
    if guards.outcome_only_running:
        fits = fits and task.status == RUNNING
    if not fits:
        yield Event(f"drops that it {hold.stage}", index, hold), _drop(state, index, hold)
        return
    written = _ended(state, hold.stage, world)
    yield Event(f"writes that it {hold.stage}", index, hold), _drop(written, index, hold)
    unsure = state.workers[index]._replace(unsure=True)
    verb = f"writes that it {hold.stage}, the reply is lost"
    yield Event(verb, index, hold, fault=True), _put(written, index, unsure)


def _release(state: State, index: int, world: World) -> Iterator[Step]:
    """Give back what is in our name and not in our hands."""
    task, worker, guards = state.task, state.workers[index], world.guards
    is_ours = task.owner == index if guards.release_only_own else task.owner != NOBODY
    by_number = guards.held_is_told_by_number
    is_kept = any(not by_number or _is_current(hold, task, guards) for hold in worker.holds)
    is_kept = is_kept and guards.release_keeps_what_is_held
    freed = _freed(task) if is_ours and not is_kept and task.status not in FINAL else task
    yield (
        Event("recounts what it holds", index),
        _put(state._replace(task=freed), index, worker._replace(unsure=False)),
    )


# The lease, and what becomes of those who lost it


def _beat(state: State, index: int, world: World) -> Iterator[Step]:
    worker, task = state.workers[index], state.task
    if not worker.dead:
        if not worker.valid:
            yield Event("renews its lease late", index), _put(state, index, worker._replace(valid=True))
    elif world.guards.dead_go_on_under_another_name:
        outcomes = (hold for hold in worker.holds if hold.stage != WAITING)
        killed = (hold._replace(stage=CRASHED) if hold.stage == BEGUN else hold for hold in outcomes)
        holds = _sorted(*(hold for hold in killed if hold.stage != SENT))
        owner = GONE if task.owner == index else task.owner
        renamed = state._replace(task=task._replace(owner=owner))
        new = worker._replace(valid=True, dead=False, holds=holds)
        yield Event("goes on under another name", index), _put(renamed, index, new)
    else:
        revived = worker._replace(valid=True, dead=False)
        yield Event("goes on under its old name", index), _put(state, index, revived)


def _begin(state: State, index: int, hold: Hold, world: World) -> Iterator[Step]:
    """A child comes to the call. After the lease it hands it back untouched."""
    if state.workers[index].valid or not world.guards.begin_only_within_lease:
        yield Event("begins", index, hold), _replace(state._replace(begun=True), index, hold, BEGUN)
    else:
        yield Event("does not begin", index, hold), _let_go(state, index, hold)


def _reap(state: State, index: int, world: World) -> Iterator[Step]:
    """Declare others dead, and rescue what the dead held."""
    task, guards = state.task, world.guards
    for place, other in enumerate(state.workers):
        is_late = not other.valid or not guards.bury_only_after_lease
        if place != index and is_late and not other.dead:
            yield Event(f"buries worker {place}", index), _put(state, place, other._replace(dead=True))
    is_lost = task.owner == GONE or (task.owner >= 0 and state.workers[task.owner].dead)
    if task.status in FINAL or task.owner == NOBODY or not guards.rescue_at_all:
        return
    if is_lost or not guards.rescue_only_from_the_dead:
        if task.status == CLAIMED:
            yield Event("rescues a claim", index), state._replace(task=_freed(task))
        else:
            yield Event("rescues what was started", index), _ended(state, CRASHED, world)


def _ended(state: State, how: str, world: World) -> State:
    """The end of an attempt: of the task, or until the next one."""
    task, guards = state.task, world.guards
    crashes = task.crashes + (how == CRASHED)
    again = how == BROKE and task.retries < world.retries
    if how == CRASHED:
        may_crash = crashes < world.max_crashes or not guards.crashes_are_limited
        again = may_crash and (world.crash_retry or not guards.started_is_not_rerun_blindly)
    if not again:
        status = COMPLETED if how == RETURNED else FAILED
        return state._replace(task=task._replace(status=status, crashes=crashes))
    retried = _freed(task._replace(retries=task.retries + (how == BROKE), crashes=crashes))
    return state._replace(task=retried, begun=state.begun and how == CRASHED and not world.crash_retry)


def _freed(task: Task) -> Task:
    return task._replace(status=PENDING, number=task.number + 1, owner=NOBODY)


def _is_current(hold: Hold, task: Task, guards: Guards) -> bool:
    """Whether the number of a hold is the row's."""
    return hold.number == task.number or not guards.number_changes_with_owner


# States are values: each of these gives a new one


def _put(state: State, index: int, worker: Worker) -> State:
    return state._replace(workers=(*state.workers[:index], worker, *state.workers[index + 1 :]))


def _drop(state: State, index: int, hold: Hold) -> State:
    worker = state.workers[index]
    kept = tuple(other for other in worker.holds if other is not hold)
    return _put(state, index, worker._replace(holds=kept))


def _let_go(state: State, index: int, hold: Hold, recount: bool = True) -> State:
    dropped = _drop(state, index, hold)
    worker = dropped.workers[index]
    return _put(dropped, index, worker._replace(unsure=worker.unsure or recount))


def _replace(state: State, index: int, hold: Hold, stage: str) -> State:
    dropped = _drop(state, index, hold)
    worker = dropped.workers[index]
    return _put(dropped, index, worker._replace(holds=_sorted(*worker.holds, hold._replace(stage=stage))))


def _sorted(*holds: Hold) -> tuple[Hold, ...]:
    return tuple(sorted(holds))
