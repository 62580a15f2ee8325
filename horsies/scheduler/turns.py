"""What becomes of schedules whose slot has come: they are run and moved on in one transaction, or neither.

One that cannot be run is written down as such and does not hold up the others. It is moved on when no scheduler could
run it, and left to others when only this one cannot.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple
from uuid import UUID

import psycopg

from horsies.errors import mask_passwords
from horsies.schedule.definition import Unreadable, read
from horsies.schedule.model import TaskSchedule
from horsies.schedule.slots import Due, due, zone_of
from horsies.scheduler.targets import Run, Starter, Starters, Unknown
from horsies.sending import Refused
from horsies.storage import schedules
from horsies.storage.database import TRANSIENT, Connection
from horsies.storage.ids import slot_id
from horsies.storage.schedules import Moved, Turn

logger = logging.getLogger("horsies.scheduler")

BATCH = 500
RUNS_AT_ONCE = 2_000
ASIDE_SECONDS = 60.0
RETRY_SECONDS = 1.0
PLANS_KEPT = 20_000


class Plan(NamedTuple):
    """A definition made ready to run; with a reason, no run of it can be started."""

    schedule: TaskSchedule
    starter: Starter
    what: Any
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do in a turn: start these runs, and then stand there."""

    turn: Turn
    plan: Plan
    due: Due
    runs: Sequence[Run]
    error: str | None = None

    @property
    def is_capped(self) -> bool:
        """Whether slots are left that are due already."""
        return self.due.next_run_at <= self.turn.now

    def moved(self, ids: Mapping[UUID, UUID]) -> Moved:
        """Where the schedule stands when its runs go by these ids."""
        last = self.runs[-1] if self.runs else None
        return Moved(
            schedule_name=self.turn.name,
            slot=self.turn.slot,
            next_run_at=self.due.next_run_at,
            last_run_at=None if last is None else last.slot,
            last_task_id=None if last is None else ids[last.id],
            runs=len(self.runs),
            skips=0 if self.runs or self.error else len(self.due.slots),
            error=self.error,
        )


def decide(turn: Turn, plan: Plan, living: Set[UUID]) -> Decision:
    """What to do with a schedule whose slot has come, knowing which of the last runs have not ended."""
    schedule = plan.schedule
    may_overlap = schedule.overlap == "allow"
    found = due(
        schedule.pattern,
        schedule.timezone,
        turn.slot,
        turn.now,
        catch_up=schedule.catch_up_missed and may_overlap,
        most=schedule.max_catch_up_runs,
    )
    if plan.refusal is not None or (not may_overlap and turn.last_task_id in living):
        return Decision(turn, plan, found, [], plan.refusal)
    runs = [Run(slot_id(turn.name, slot), slot, plan.what) for slot in found.slots]
    return Decision(turn, plan, found, runs)


class Turns:
    """Takes the turns of schedules that are due.

    `ours` are the names of the schedules in this app's code: one that only other code has is not run here.
    """

    def __init__(self, starters: Starters, ours: Set[str], pace_seconds: float) -> None:
        self._starters = starters
        self._ours = ours
        self._pace_seconds = pace_seconds
        self._aside: dict[str, float] = {}
        self._told: set[tuple[str, str]] = set()
        # Making a plan takes longer than all the rest of a turn, and most definitions never change.
        self._prepare = lru_cache(maxsize=PLANS_KEPT)(self._new_plan)

    @property
    def aside(self) -> list[str]:
        """The schedules to leave alone for the moment."""
        now = time.monotonic()
        self._aside = {name: until for name, until in self._aside.items() if until > now}
        return list(self._aside)

    def look_again(self, name: str) -> None:
        """A schedule has changed; without a name, any may have."""
        if name:
            self._aside.pop(name, None)
        else:
            self._aside.clear()

    async def take(self, connection: Connection) -> int:
        """Run what is due, some of it; tells how many turns were taken."""
        try:
            return await self._take(connection)
        except psycopg.Error as error:
            logger.warning("could not run schedules together (%s); one by one", type(error).__name__)
        taken = 0
        for turn in await schedules.due(connection, self.aside, None, BATCH):
            taken += await self._take_alone(connection, turn.name)
        return taken

    async def _take_alone(self, connection: Connection, name: str) -> int:
        """One schedule by itself: if it fails, only its own slot is lost, and not even that if it may succeed later."""
        try:
            return await self._take(connection, only=name)
        except psycopg.Error as error:
            _raise_if_lost(connection, error)
            if isinstance(error, TRANSIENT):
                self._set_aside(name, RETRY_SECONDS, f"it could not be run now ({type(error).__name__})")
                return 0
            problem = mask_passwords(str(error)) or type(error).__name__
        try:
            return await self._take(connection, only=name, refusal=problem)
        except psycopg.Error as error:
            _raise_if_lost(connection, error)
            self._set_aside(name, ASIDE_SECONDS, mask_passwords(str(error)))
            return 0

    async def _take(self, connection: Connection, only: str | None = None, refusal: str | None = None) -> int:
        async with connection.transaction():
            turns = await schedules.due(connection, self.aside, only, BATCH)
            plans = [(turn, plan) for turn in turns if (plan := await self._plan(connection, turn))]
            if refusal is not None:
                plans = [(turn, plan._replace(refusal=refusal)) for turn, plan in plans]
            living = await self._living(connection, plans)
            decisions = list(_up_to(RUNS_AT_ONCE, (decide(turn, plan, living) for turn, plan in plans)))
            ids = await self._start(connection, decisions)
            moved = [decision.moved(ids) for decision in decisions]
            if await schedules.move_on(connection, moved) != len(moved):
                raise AssertionError("a schedule that is locked was moved by somebody else")
        for decision in decisions:
            self._note(decision)
        return len(turns)

    async def _plan(self, connection: Connection, turn: Turn) -> Plan | None:
        """How to run a schedule; None, with the reason written down, when it cannot be run here."""
        if turn.source == "code" and turn.name not in self._ours:
            self._set_aside(
                turn.name, ASIDE_SECONDS, "it is not in the code of this app; it is kept, and not run"
            )
            return None
        try:
            return self._prepare(turn.name, turn.definition)
        except (Unreadable, Unknown) as error:
            self._set_aside(turn.name, ASIDE_SECONDS, str(error))
            await schedules.complain(connection, turn.name, str(error))
            return None

    def _new_plan(self, name: str, definition: str) -> Plan:
        written = read(name, definition)
        schedule = written.schedule
        if zone_of(schedule.timezone) is None:
            raise Unknown(f"there is no time zone {schedule.timezone!r} on this machine")
        starter = self._starters.of(schedule)
        try:
            return Plan(schedule, starter, starter.prepare(written))
        except Refused as refusal:
            return Plan(schedule, starter, None, str(refusal))

    async def _living(self, connection: Connection, plans: Iterable[tuple[Turn, Plan]]) -> set[UUID]:
        """Which of the last runs have not ended, where it matters."""
        asked: dict[Starter, list[UUID]] = {}
        for turn, plan in plans:
            if plan.schedule.overlap == "skip" and turn.last_task_id is not None:
                asked.setdefault(plan.starter, []).append(turn.last_task_id)
        found = [await starter.living(connection, ids) for starter, ids in asked.items()]
        return set(chain.from_iterable(found))

    async def _start(self, connection: Connection, decisions: Sequence[Decision]) -> dict[UUID, UUID]:
        """Start the runs of all decisions, those of a kind together; gives by which id each of them goes."""
        by_starter: dict[Starter, list[Run]] = {}
        for decision in decisions:
            by_starter.setdefault(decision.plan.starter, []).extend(decision.runs)
        ids: dict[UUID, UUID] = {}
        for starter, runs in by_starter.items():
            started = await starter.start(connection, runs) if runs else []
            ids.update(zip((run.id for run in runs), started, strict=True))
        return ids

    def _note(self, decision: Decision) -> None:
        name, slots = decision.turn.name, decision.due.slots
        if decision.error is not None:
            logger.error("schedule %r: the slot of %s was not run: %s", name, slots[-1], decision.error)
        elif not decision.runs:
            logger.info(
                "schedule %r: the slot of %s was skipped, the last run has not ended", name, slots[-1]
            )
        elif decision.is_capped:
            self._aside[name] = time.monotonic() + self._pace_seconds

    def _set_aside(self, name: str, seconds: float, reason: str) -> None:
        """Leave a schedule alone for a while; why, is said aloud once."""
        level = logging.DEBUG if (name, reason) in self._told else logging.WARNING
        self._told.add((name, reason))
        logger.log(level, "schedule %r is left alone for %g s: %s", name, seconds, reason)
        self._aside[name] = time.monotonic() + seconds


def _raise_if_lost(connection: Connection, error: Exception) -> None:
    """A connection that is gone is nothing that a schedule has done; the server gives several reasons for it."""
    if connection.closed:
        raise psycopg.OperationalError("the connection was lost in the middle of a turn") from error


def _up_to(most: int, decisions: Iterable[Decision]) -> Iterable[Decision]:
    """As many as can be run in one transaction, at least one; the rest keeps its turn."""
    runs = 0
    for decision in decisions:
        if runs and runs + len(decision.runs) > most:
            return
        runs += len(decision.runs)
        yield decision
