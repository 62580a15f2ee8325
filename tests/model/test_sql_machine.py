"""Whatever several workers do to the same tasks, and in whatever order, the database does what the ledger says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,  # pyright: ignore[reportUnknownVariableType]
)
from psycopg.rows import dict_row

from horsies.db.queries.tasks import Claimed, ClaimRequest, ConcurrencyCap, Lane, PoolRoom, stopped
from tests.model.crew import Crewman
from tests.model.inspection import Inspector
from tests.model.ledger import LIVE, NOT_YET, Expiry, Ledger, Member, Row, due_at
from tests.model.wishes import (
    BOTH_QUEUES_AND_KINDS,
    COMMON,
    Limit,
    Pick,
    Wish,
    caps,
    facts,
    few,
    pick,
    picks,
    some_row,
    someone,
    wishes,
)
from tests.pg.hands import START

EXAMPLES = int(os.environ.get("HORSIES_MODEL_EXAMPLES", "40"))
FOR_EVER = 1e9
PID = 4242
UNDO_CLAIM = """UPDATE horsies_tasks_live
   SET status = 'PENDING', claim_seq = claim_seq - 1, claimed_by_worker_id = NULL, claimed_at = NULL, started_at = NULL,
       worker_pid = NULL
 WHERE id = %s"""


@dataclass(frozen=True, slots=True)
class Place:
    """Sessions on one database, which all examples share."""

    crew: list[Crewman]
    db: psycopg.Connection[dict[str, Any]]
    other: psycopg.Connection[dict[str, Any]]


class TaskMachine(RuleBasedStateMachine):
    """Three workers on one database, and the ledger of what they did."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self._place = place
        self._crew = place.crew
        self._ledger = Ledger()
        self._inspector = Inspector(place.db)
        self._tickets: list[Claimed] = []
        self._ids = count(1)
        self._later = datetime.now(UTC) + timedelta(hours=1)

    @initialize(sent=st.lists(st.tuples(st.integers(0, 255), facts), min_size=4, max_size=8))
    def begin(self, sent: list[tuple[int, dict[str, Any]]]) -> None:
        for table in ("tasks", "attempts", "in_flight", "workers", "actions"):
            self._execute(f"DELETE FROM horsies_{table}")
        for crewman in self._crew:
            self._ledger.members[crewman.sign_on()] = Member()
        for salt, task in sent:
            self.send(0, salt, task)

    # Sending, and time

    @rule(by=someone, salt=st.integers(0, 255), facts=facts)
    def send(self, by: int, salt: int, facts: dict[str, Any]) -> None:
        """The salt is what sorts ids; a send that is repeated changes nothing."""
        row = Row(id=UUID(int=salt << 120 | next(self._ids)), is_due=facts["enqueued_at"] != NOT_YET, **facts)

        assert self._crew[by].send(row, self._later) == [str(row.id)]
        assert self._crew[by].send(row, self._later) == []

        self._ledger.rows[str(row.id)] = row

    @rule(place=some_row, second=st.integers(0, 2), is_over=st.booleans())
    def let_time_pass(self, place: int, second: int, is_over: bool) -> None:
        """A task falls due, or its time is over."""
        self._need("PENDING")
        rows = [row for row in self._ledger.rows.values() if row.status in LIVE]
        row = rows[-1 - place % len(rows)]
        if is_over:
            row.expiry = Expiry.PAST
            self._set(row, "good_until = now() - interval '1 s'")
        elif row.status == "PENDING":
            row.enqueued_at, row.is_due = due_at(second), True
            self._set(row, "enqueued_at = %s", row.enqueued_at)

    @rule(by=someone, places=st.lists(some_row, min_size=1, max_size=3))
    def expire(self, by: int, places: list[int]) -> None:
        self._need("CLAIMED", by)
        for place in places:
            self.let_time_pass(place, 0, is_over=True)

        assert self._crew[by].expire() == self._ledger.expire(self._crew[by].worker_id)

    # Claiming

    @rule(by=someone, many=st.integers(1, 4), starts=few)
    def claim(self, by: int, many: int, starts: int) -> None:
        """As most claims are: of everything, for children that are idle."""
        self._need("PENDING")
        pids = min(starts, many)
        lanes = [(lane, many) for lane in BOTH_QUEUES_AND_KINDS]
        self._settle_and_claim(by, [], Wish(lanes=lanes, rooms=((many, pids, pids),) * 2))

    @rule(by=someone, starts=few, limit=st.integers(0, 4), batch=st.integers(1, 3), caps=caps)
    def claim_within_limits(
        self, by: int, starts: int, limit: int, batch: int, caps: tuple[Limit, ...]
    ) -> None:
        """There is more to be had, and room for it, than the limits allow."""
        for salt in range(4):
            self.send(by, salt, COMMON | {"queue_name": "aab"[salt % 3], "expiry": Expiry.NEVER})
        lanes = [(lane, 8) for lane in BOTH_QUEUES_AND_KINDS]
        rooms = ((8, starts, starts),) * 2
        self._settle_and_claim(by, [], Wish(lanes=lanes, rooms=rooms, limit=limit, batch=batch, caps=caps))

    @rule(
        by=someone,
        ended=st.lists(pick, max_size=3),
        wish=wishes,
        after=st.none() | st.integers(0, 7),
        locked=st.none() | some_row,
    )
    def settle_and_claim(
        self, by: int, ended: list[Pick], wish: Wish, after: int | None, locked: int | None
    ) -> None:
        """With everything that can be asked for; one row may be locked by somebody else."""
        self._need("PENDING")
        waiting = [task_id for task_id, row in self._ledger.rows.items() if row.status == "PENDING"]
        names = [] if locked is None or not waiting else [waiting[locked % len(waiting)]]
        with self._place.other.transaction():
            for name in names:
                self._place.other.execute("SELECT FROM horsies_tasks_live WHERE id = %s FOR UPDATE", (name,))
            self._settle_and_claim(by, ended, wish, self._key(after), names)

    def _settle_and_claim(
        self,
        by: int,
        ended: list[Pick],
        wish: Wish,
        after: tuple[int, str, str] = START,
        locked: list[str] | None = None,
    ) -> None:
        tickets, request = self._chosen(ended), self._request(self._crew[by].worker_id, wish, after)

        answer, claimed = self._crew[by].end_and_claim(tickets, request)

        taken = self._ledger.claim(request, locked or ())
        assert answer == self._ledger.complete(self._crew[by].worker_id, tickets)
        assert [(task.id, task.claim_seq, task.pid) for task in claimed] == [
            (str(row.id), row.claim_seq, row.pid) for row in taken
        ]
        assert [task.turn for task in claimed] == list(range(1, len(claimed) + 1))
        self._tickets += claimed

    def _request(self, worker_id: UUID, wish: Wish, after: tuple[int, str, str]) -> ClaimRequest:
        return ClaimRequest(
            lanes=[
                Lane(int(is_async), name, is_async, "", quota, *after)
                for (name, is_async), quota in wish.lanes
            ],
            pools=[
                PoolRoom(pool, room, idle, [PID] * pids) for pool, (room, pids, idle) in enumerate(wish.rooms)
            ],
            caps=[self._cap(worker_id, *cap) for cap in wish.caps],
            rates=[],
            limit=wish.limit,
            batch=wish.batch,
            worker_id=worker_id,
            hostname="host",
            process_name="crew",
        )

    def _cap(self, worker_id: UUID, queue_name: str, most: int, forgotten: bool) -> ConcurrencyCap:
        """A limit, with what the worker holds of it, and what it believes to have said."""
        held = self._ledger.held(worker_id, "RUNNING")
        mine = sum(queue_name in ("", row.queue_name) for row in held)
        recorded = self._ledger.in_flight.get((queue_name, worker_id), 0)
        return ConcurrencyCap(queue_name, most, mine, -1 if forgotten else recorded)

    def _key(self, after: int | None) -> tuple[int, str, str]:
        """Where to read from: the place of a task that was once claimed."""
        if after is None or not self._tickets:
            return START
        ticket = self._tickets[-1 - after % len(self._tickets)]
        return ticket.priority, ticket.enqueued_at, ticket.id

    # Starting, ending and giving back

    @rule(by=someone, picks=picks, pid=st.integers(1, 9))
    def start(self, by: int, picks: list[Pick], pid: int) -> None:
        self._need("CLAIMED", by)
        tickets = self._chosen(picks, "CLAIMED")

        assert self._crew[by].start(tickets, pid) == self._ledger.start(
            self._crew[by].worker_id, tickets, pid
        )

    @rule(by=someone, picks=picks)
    def complete(self, by: int, picks: list[Pick]) -> None:
        self._need("RUNNING", by)
        tickets = self._chosen(picks)

        assert self._crew[by].complete(tickets) == self._ledger.complete(self._crew[by].worker_id, tickets)

    @rule(by=someone, picks=picks, delay=st.sampled_from([None, 0, 0, 1800, 7200]), crashed=st.booleans())
    def fail(self, by: int, picks: list[Pick], delay: float | None, crashed: bool) -> None:
        self._need("RUNNING", by)
        tickets = self._chosen(picks)

        answer = self._crew[by].fail(tickets, delay_seconds=delay, crashed=crashed)

        assert answer == self._ledger.fail(self._crew[by].worker_id, tickets, delay, crashed)
        for task_id in (task_id for task_id, again in answer.items() if again):
            self._ledger.rows[task_id].enqueued_at = self._inspector.retried_at(task_id)

    @rule(by=someone, places=st.lists(some_row, min_size=1, max_size=3))
    def cancel(self, by: int, places: list[int]) -> None:
        """By an operator, whatever the tasks are doing."""
        self._need("RUNNING", by)
        running = [task_id for task_id, row in self._ledger.rows.items() if row.status == "RUNNING"]
        every = [*running, *self._ledger.rows]
        ids = [every[place % len(every)] for place in places]

        answer = self._crew[by].cancel(*ids)

        assert sorted(map(tuple, answer)) == sorted(self._ledger.cancel(ids))

    @rule(by=someone, picks=picks)
    def stop(self, by: int, picks: list[Pick]) -> None:
        """What a child has ended because it was asked to, and perhaps something that it was not asked to."""
        self._need("RUNNING", by)
        tickets = self._chosen(picks)

        assert self._crew[by].store([stopped(each) for each in tickets]) == self._ledger.stop(
            self._crew[by].worker_id, tickets
        )

    @rule(by=someone, picks=picks)
    def snooze(self, by: int, picks: list[Pick]) -> None:
        self._need("RUNNING", by)
        tickets = self._chosen(picks)

        answer = self._crew[by].snooze(tickets)

        assert answer == self._ledger.snooze(self._crew[by].worker_id, tickets)
        for task_id in (task_id for task_id, again in answer.items() if again):
            self._ledger.rows[task_id].enqueued_at = self._inspector.retried_at(task_id)

    @rule(by=someone, keep=st.lists(pick, max_size=2))
    def release(self, by: int, keep: list[Pick]) -> None:
        self._need("RUNNING", by)
        kept, crewman = self._chosen(keep), self._crew[by]

        assert crewman.release(kept) == self._ledger.release(crewman.worker_id, kept)

    @rule(by=someone, picks=picks)
    def give_back(self, by: int, picks: list[Pick]) -> None:
        """A child of a worker that died has not begun these."""
        self._need("RUNNING", by)
        tickets = self._chosen(picks)

        assert self._crew[by].give_back(tickets) == self._ledger.give_back(self._crew[by].worker_id, tickets)

    @rule(by=someone, picks=picks)
    def unclaim(self, by: int, picks: list[Pick]) -> None:
        self._need("CLAIMED", by)
        tickets = self._chosen(picks, "CLAIMED")

        self._crew[by].unclaim(tickets)

        self._ledger.unclaim(tickets)

    @rule(by=someone, place=some_row)
    def crash_of_the_server(self, by: int, place: int) -> None:
        """A claim that was not flushed is undone. The next claim of the task has the same number."""
        self._need("RUNNING", by)
        held = [
            task_id
            for task_id, row in self._ledger.rows.items()
            if row.status == "RUNNING" and not row.is_asked
        ]
        if held:
            task_id = held[place % len(held)]
            self._place.other.execute(UNDO_CLAIM, (task_id,))
            self._ledger.undo_claim(task_id)
            self._inspector.forget(task_id)

    # Life and death of workers

    @rule(by=someone, is_late=st.booleans())
    def beat(self, by: int, is_late: bool) -> None:
        crewman, members = self._crew[by], self._ledger.members
        if is_late:
            self._be_late(crewman)
        member = members[crewman.worker_id]

        answer = crewman.beat()

        assert answer.is_alive is not member.is_dead
        if answer.is_alive:
            someone_is_late = any(other.is_late and not other.is_dead for other in members.values())
            assert answer.others_are_late == someone_is_late
            member.is_late = False
        else:
            members[crewman.sign_on()] = Member()

    @rule(
        by=someone, lost=someone, signs_off=st.booleans(), server_is_new=st.sampled_from([False, False, True])
    )
    def reap(self, by: int, lost: int, signs_off: bool, server_is_new: bool) -> None:
        """One worker is late, or has signed off with tasks still in its name."""
        self._need("CLAIMED", lost)
        if signs_off:
            self._crew[lost].sign_off()
            self._ledger.forget(self._crew[lost].worker_id)
            self._ledger.members[self._crew[lost].sign_on()] = Member()
        else:
            self._be_late(self._crew[lost])
        before = {row.id: row.retry_count for row in self._ledger.rows.values()}

        rescued = self._crew[by].rescue(FOR_EVER if server_is_new else 0.0)

        if not server_is_new:
            self._ledger.bury()
        assert rescued == self._ledger.rescue()
        for row in self._ledger.rows.values():
            if row.retry_count > before[row.id]:  # due in a second: too soon to know whether it has come
                row.enqueued_at = NOT_YET
                self._set(row, "enqueued_at = %s", NOT_YET)

    def _be_late(self, crewman: Crewman) -> None:
        self._ledger.members[crewman.worker_id].is_late = True
        late = "UPDATE horsies_workers SET lease_expires_at = now() - interval '1 s' WHERE worker_id = %s"
        self._execute(late, crewman.worker_id)

    # What must be true at all times

    @invariant()
    def the_database_is_as_the_ledger_says(self) -> None:
        self._inspector.inspect(self._ledger)

    def _need(self, status: str, by: int = 0) -> None:
        """See to it that there is a task in this status, so that the next step is not for nothing."""
        statuses = {row.status for row in self._ledger.rows.values()}
        if status in statuses:
            return
        if "PENDING" not in statuses:
            for salt, is_async in enumerate((False, True)):
                self.send(by, salt, COMMON | {"is_async": is_async})
        if status != "PENDING":
            self.claim(by, 2, 2 if status == "RUNNING" else 0)

    def _chosen(self, picks: list[Pick], status: str = "RUNNING") -> list[Claimed]:
        """The tickets picked, some perhaps twice. Those come first that are good for a task in this status."""

        def is_good(ticket: Claimed) -> bool:
            row = self._ledger.rows[ticket.id]
            return row.claim_seq == ticket.claim_seq and row.status == status

        good = [ticket for ticket in self._tickets if is_good(ticket)]
        tickets = good + self._tickets[::-1]
        chosen: list[Claimed] = []
        for place, shift in picks if tickets else ():
            ticket = tickets[place % len(tickets)]
            chosen.append(ticket._replace(claim_seq=ticket.claim_seq + shift))
        return chosen

    def _set(self, row: Row, change: str, *values: object) -> None:
        self._execute(f"UPDATE horsies_tasks_live SET {change} WHERE id = %s", *values, row.id)

    def _execute(self, statement: str, *values: object) -> None:
        self._place.db.execute(statement.encode(), values)


def _session(url: str) -> psycopg.Connection[dict[str, Any]]:
    return psycopg.Connection[dict[str, Any]].connect(url, autocommit=True, row_factory=dict_row)


@pytest.fixture
def place(database_url: str) -> Iterator[Place]:
    with ExitStack() as stack:
        crew = [stack.enter_context(closing(Crewman(database_url))) for _ in range(3)]
        db, other = (stack.enter_context(_session(database_url)) for _ in range(2))
        yield Place(crew, db, other)
        db.execute(
            "DELETE FROM horsies_in_flight"
        )  # here workers claim within limits and without, which none does


@pytest.mark.timeout(600 + EXAMPLES)
def test_the_database_does_what_the_ledger_says(place: Place) -> None:
    run_state_machine_as_test(
        lambda: TaskMachine(place),  # pyright: ignore[reportArgumentType]
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=30,
            deadline=None,
            # The same examples in every run, unless more are asked for.
            derandomize="HORSIES_MODEL_EXAMPLES" not in os.environ,
            report_multiple_bugs=False,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
