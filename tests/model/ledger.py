"""What the rows of a database should be like after each statement: the life of tasks once more, in plain Python."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from uuid import UUID

from horsies.db.queries.tasks import Claimed, ClaimRequest, ConcurrencyCap, Lane, is_plain
from horsies.worker.settle import MAX_CRASHES

LIVE = ("PENDING", "CLAIMED", "RUNNING")
Attempt = tuple[int, str, bool, UUID | None]
Key = tuple[int, datetime, UUID]


class Expiry(Enum):
    """When a task is good for nothing any more. LATER is an hour after it was sent, and has not come."""

    NEVER = "never"
    LATER = "later"
    PAST = "past"

    def allows(self, delay_seconds: float) -> bool:
        return self is Expiry.NEVER or (self is Expiry.LATER and delay_seconds < 3600)


@dataclass(slots=True, kw_only=True)
class Row:
    """A task, as it should be."""

    id: UUID
    queue_name: str
    is_async: bool
    priority: int
    enqueued_at: datetime
    is_due: bool
    expiry: Expiry
    idempotent: bool
    status: str = "PENDING"
    claim_seq: int = 0
    owner: UUID | None = None
    pid: int | None = None
    retry_count: int = 0
    crash_count: int = 0
    is_asked: bool = False  # to stop
    attempts: list[Attempt] = field(default_factory=list[Attempt])

    @property
    def key(self) -> Key:
        return self.priority, self.enqueued_at, self.id

    def take(self, owner: UUID, pid: int | None) -> None:
        self.status = "CLAIMED" if pid is None else "RUNNING"
        self.claim_seq += 1
        self.owner, self.pid = owner, pid

    def free(self) -> None:
        self.status, self.owner, self.pid = "PENDING", None, None
        self.claim_seq += 1

    def end(self, status: str) -> None:
        had_begun = self.status == "RUNNING"
        self.status = status
        if had_begun:
            outcome = "COMPLETED" if status == "COMPLETED" else "FAILED"
            self.attempts.append((self.retry_count + 1, outcome, False, self.owner))

    def cancel(self) -> str:
        """The status that this leads to now."""
        if self.status == "RUNNING":
            self.is_asked = True
        else:
            self.end("CANCELLED")
            self.claim_seq += 1
        return self.status

    def snooze(self) -> bool:
        """Put a run off; whether there will be another."""
        if self.is_asked:
            self.end("CANCELLED")
        else:
            self.is_due = False
            self.free()
        return not self.is_asked

    def fail(self, delay_seconds: float | None, crashed: bool) -> bool:
        """End an attempt; whether there will be another."""
        self.crash_count += crashed
        if self.is_asked:
            self.end("CANCELLED")
            return False
        if delay_seconds is None or not self.expiry.allows(delay_seconds):
            self.end("FAILED")
            return False
        self.attempts.append((self.retry_count + 1, "FAILED", True, self.owner))
        self.retry_count += 1
        self.is_due = delay_seconds == 0
        self.free()
        return True


@dataclass(slots=True)
class Member:
    """A worker that is known to the database."""

    is_late: bool = False
    is_dead: bool = False


class Ledger:
    """All rows, and the answer that each statement should give."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.members: dict[UUID, Member] = {}
        self.in_flight: dict[tuple[str, UUID], int] = {}

    def held(self, owner: UUID, *statuses: str) -> list[Row]:
        return [row for row in self.rows.values() if row.owner == owner and row.status in statuses]

    # What workers do

    def complete(self, owner: UUID, tickets: Iterable[Claimed]) -> int:
        ours = [row for row in self._current(tickets, "RUNNING", owner) if not row.is_asked]
        for row in ours:
            row.end("COMPLETED")
        return len(ours)

    def cancel(self, ids: Iterable[str]) -> list[tuple[str, str, bool]]:
        """Of each, what it is now, and whether the request was for anything."""
        named = [self.rows[task_id] for task_id in dict.fromkeys(ids)]
        return [
            (str(row.id), row.cancel(), True) if row.status in LIVE else (str(row.id), row.status, False)
            for row in named
        ]

    def stop(self, owner: UUID, tickets: Iterable[Claimed]) -> dict[str, bool]:
        """What was asked to stop runs no more."""
        asked = [row for row in self._current(tickets, "RUNNING", owner) if row.is_asked]
        return {str(row.id): row.fail(None, crashed=False) for row in asked}

    def snooze(self, owner: UUID, tickets: Iterable[Claimed]) -> dict[str, bool]:
        return {str(row.id): row.snooze() for row in self._current(tickets, "RUNNING", owner)}

    def fail(
        self, owner: UUID, tickets: Iterable[Claimed], delay_seconds: float | None, crashed: bool
    ) -> dict[str, bool]:
        return {
            str(row.id): row.fail(delay_seconds, crashed) for row in self._current(tickets, "RUNNING", owner)
        }

    def start(self, owner: UUID, tickets: Iterable[Claimed], pid: int) -> set[str]:
        claimed = self._current(tickets, "CLAIMED", owner)
        in_time = [row for row in claimed if row.expiry is not Expiry.PAST]
        for row in in_time:
            row.status, row.pid = "RUNNING", pid
        return {str(row.id) for row in in_time}

    def unclaim(self, tickets: Iterable[Claimed]) -> None:
        for row in self._current(tickets, "CLAIMED"):
            row.free()

    def release(self, owner: UUID, keep: Iterable[Claimed]) -> int:
        kept = {(ticket.id, ticket.claim_seq) for ticket in keep}
        held = [row for row in self.held(owner, *LIVE) if not row.is_asked]
        given = [row for row in held if (str(row.id), row.claim_seq) not in kept]
        for row in given:
            row.free()
        return len(given)

    def give_back(self, owner: UUID, tickets: Iterable[Claimed]) -> int:
        given = [row for row in self._current(tickets, "RUNNING", owner) if not row.is_asked]
        for row in given:
            row.free()
        return len(given)

    def expire(self, owner: UUID) -> int:
        waiting = [row for row in self.rows.values() if row.status == "PENDING"]
        late = [row for row in waiting + self.held(owner, "CLAIMED") if row.expiry is Expiry.PAST]
        for row in late:
            row.end("EXPIRED")
        return len(late)

    def undo_claim(self, task_id: str) -> None:
        """A crash of the server has lost the last claim."""
        row = self.rows[task_id]
        row.status, row.owner, row.pid = "PENDING", None, None
        row.claim_seq -= 1

    def _current(self, tickets: Iterable[Claimed], status: str, owner: UUID | None = None) -> list[Row]:
        """The rows that these tickets are good for, in the hands of this worker if one is given."""
        named = dict.fromkeys((ticket.id, ticket.claim_seq) for ticket in tickets)
        rows = ((self.rows[task_id], number) for task_id, number in named)
        return [
            row
            for row, number in rows
            if row.claim_seq == number and row.status == status and owner in (None, row.owner)
        ]

    # Claims

    def claim(self, request: ClaimRequest, locked: Collection[str] = ()) -> list[Row]:
        """The rows that this claim should take, in order; they are taken."""
        remaining = {cap.queue_name: self._remaining(cap, request.worker_id) for cap in request.caps}
        chosen = self._chosen(request, remaining, locked)
        places = {room.pool: iter(enumerate(room.pids)) for room in request.pools}
        idle = {room.pool: room.idle for room in request.pools}
        for pool, row in chosen:
            place, pid = next(places[pool], (0, None))
            # What has an expiry does not queue in a child.
            row.take(request.worker_id, pid if place < idle[pool] or row.expiry is Expiry.NEVER else None)
        taken = [row for _, row in chosen]
        self._count(request, taken)
        return taken

    def _chosen(
        self, request: ClaimRequest, remaining: dict[str, int], locked: Collection[str]
    ) -> list[tuple[int, Row]]:
        """Line by lane, within the room of each pool and the limits of the cluster."""
        member = self.members.get(request.worker_id)
        is_dead = member is not None and member.is_dead  # and nothing is given to the dead
        room_left = {room.pool: 0 if is_dead else room.room for room in request.pools}
        found: list[tuple[int, Row]] = []
        for lane in request.lanes:
            most = min(lane.quota, remaining.get(lane.queue_name, lane.quota), room_left[lane.pool])
            rows = self._rows_of(lane, locked)[:most]
            room_left[lane.pool] -= len(rows)
            found += [(lane.pool, row) for row in rows]
        if is_plain(request):
            found.sort(key=lambda entry: entry[0])  # without limits, pool by pool
        of_queue: dict[str, int] = {}
        chosen: list[tuple[int, Row]] = []
        for pool, row in found:
            name = row.queue_name
            of_queue[name] = of_queue.get(name, 0) + 1
            if of_queue[name] <= min(request.batch, remaining.get(name, request.batch)):
                chosen.append((pool, row))
        return chosen[: min(request.limit, remaining.get("", request.limit))]

    def _rows_of(self, lane: Lane, locked: Collection[str]) -> list[Row]:
        """What can be taken of a lane, the most urgent first."""
        after = lane.priority, datetime.fromisoformat(lane.enqueued_at), UUID(lane.id)
        free = (
            row
            for row in self.rows.values()
            if (row.queue_name, row.is_async) == (lane.queue_name, lane.is_async)
            and row.status == "PENDING"
            and row.is_due
            and row.expiry is not Expiry.PAST
            and str(row.id) not in locked
            and row.key > after
        )
        return sorted(free, key=lambda row: row.key)

    def _remaining(self, cap: ConcurrencyCap, owner: UUID) -> int:
        others = sum(
            tasks
            for (queue, worker), tasks in self.in_flight.items()
            if queue == cap.queue_name and worker != owner
        )
        return max(0, cap.max_tasks - cap.in_use - others)

    def _count(self, request: ClaimRequest, taken: Sequence[Row]) -> None:
        for cap in request.caps:
            started = [row for row in taken if row.pid and cap.queue_name in ("", row.queue_name)]
            if cap.in_use + len(started) != cap.recorded:
                self.in_flight[cap.queue_name, request.worker_id] = cap.in_use + len(started)

    # Life and death of workers

    def bury(self) -> None:
        for member in self.members.values():
            member.is_dead |= member.is_late

    def rescue(self) -> int:
        """What becomes of the tasks of workers that are dead or unknown; how many those are."""
        lost = [row for row in self.rows.values() if row.status in LIVE and self._is_lost(row)]
        for row in lost:
            if row.status == "CLAIMED":
                row.free()
            else:
                again = row.idempotent and row.crash_count + 1 < MAX_CRASHES
                row.fail(1.0 if again else None, crashed=True)
        self.in_flight = {
            place: tasks for place, tasks in self.in_flight.items() if not self.members[place[1]].is_dead
        }
        return len(lost)

    def _is_lost(self, row: Row) -> bool:
        if row.owner is None:
            return False
        member = self.members.get(row.owner)
        return member is None or member.is_dead

    def forget(self, worker_id: UUID) -> None:
        """A worker has signed off."""
        del self.members[worker_id]
        self.in_flight = {place: n for place, n in self.in_flight.items() if place[1] != worker_id}


DAY_ONE = datetime(2024, 1, 1, tzinfo=UTC)
NOT_YET = datetime(2100, 1, 1, tzinfo=UTC)


def due_at(second: int) -> datetime:
    """A time that has come, the same for the same number."""
    return DAY_ONE + timedelta(seconds=second)
