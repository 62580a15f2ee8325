"""What a worker holds: tasks that the database counts as its own and that it does not hold are released."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import msgspec
import psycopg
import pytest

from horsies import Horsies, PostgresConfig
from horsies.db.connection import connect_worker
from horsies.db.queries.tasks import Claimed, Completed, stopped
from horsies.executor import protocol
from horsies.executor.forkserver import ForkServer
from horsies.executor.pool import ChildPool, Shape
from horsies.executor.protocol import ChildKind, ChildSettings
from horsies.worker.claim import Capacity, Limits
from horsies.worker.pacing import LOST_SESSION_SECONDS
from horsies.worker.round_trips import Holdings
from horsies.worker.settle import Settler
from horsies.worker.steps import StepWriter
from horsies.worker.task_output import TaskOutputWriter
from tests.pg.hands import OK, Hands
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

T = TypeVar("T")
Db = psycopg.Connection[dict[str, Any]]

CHILDREN = 2
HOLD_SECONDS = 30.0
AT_ONCE = float("-inf")
# Started tasks stay with their child until it is killed at the end of the test.
APP = """
import threading
from horsies import Horsies, TaskError, TaskResult

app = Horsies()

@app.task("hang")
def hang() -> TaskResult[int, TaskError]:
    threading.Event().wait()
    return TaskResult(ok=1)
"""


class Listener:
    """Ignores how calls end: only what the pool holds matters here."""

    def ended(self, task: Claimed, outcome: protocol.Outcome) -> None:
        pass

    def crashed(self, task: Claimed, how: str) -> None:
        pass

    def timed_out(self, task: Claimed, limit_ms: int) -> None:
        pass

    def cancelled(self, task: Claimed) -> None:
        pass

    def child_available(self) -> None:
        pass

    def calls_released(self) -> None:
        pass


class Desk:
    """The holdings of a worker, with a connection and a pool of children of their own, and no loop that drives them."""

    def __init__(self, app: Horsies, url: str, folder: Path) -> None:
        self.url = url
        self._runner = asyncio.Runner()
        settings = ChildSettings("app:app", [], [str(folder), *sys.path], 1, 0, None, orphan_seconds=5.0)
        self._launcher = ForkServer(settings)
        self.run(self._open(app))

    async def _open(self, app: Horsies) -> None:
        await self.connect()
        limits = Limits(
            prefetch=4,
            max_claim_per_worker=0,
            max_claim_batch=0,
            cluster_wide_cap=None,
            poll_seconds=1.0,
            hold_seconds=HOLD_SECONDS,
        )
        self.pool = ChildPool(
            Shape(ChildKind.SERIAL, CHILDREN), self._launcher, TaskOutputWriter(), StepWriter(), None
        )
        self.capacity = Capacity([self.pool], limits)
        self.prefetched = self.capacity.prefetched
        self.settler = Settler(app)
        self.holdings = Holdings(self.capacity, self.settler, limits)

    async def connect(self) -> None:
        """Open a connection, as a worker does that has lost the one before."""
        self._connection = await connect_worker(PostgresConfig(database_url=self.url), "holdings")

    async def _close(self) -> None:
        await self.pool.close()
        await self._launcher.close()
        await self._connection.close()

    def close(self) -> None:
        self.run(self._close())
        self._runner.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def start_children(self) -> list[int]:
        """Start the children, without which every call waits in the pool; return their pids."""
        self.run(self.pool.start(Listener()))
        return self.pool.pids

    @property
    def session(self) -> int:
        return self._connection.info.backend_pid

    @property
    def running(self) -> set[str]:
        """The ids of the tasks that were given to children."""
        return {task.id for task in self.pool.running}

    async def release(self, worker_id: UUID) -> None:
        await self.holdings.release(self._connection, worker_id)

    async def start(self, worker_id: UUID) -> bool:
        return await self.holdings.start_prefetched(self._connection, worker_id)


@pytest.fixture
def desk(app: Horsies, database_url: str, tmp_path: Path) -> Iterator[Desk]:
    (tmp_path / "app.py").write_text(APP)
    desk = Desk(app, database_url, tmp_path)
    yield desk
    desk.close()


@pytest.fixture
def holdings(desk: Desk) -> Holdings:
    return desk.holdings


def claim(
    db: Db, hands: Hands, count: int, *, pids: Sequence[int] = (), expire: bool = False
) -> list[Claimed]:
    """Claim so many new tasks, of which those with a pid are started."""
    add(db, count, expire=expire)
    claimed = hands.claim(pids=pids)
    assert len(claimed) == count
    return claimed


def add(db: Db, count: int, *, expire: bool = False) -> None:
    db.execute(
        "INSERT INTO horsies_tasks (task_name, kwargs, good_until)"
        " SELECT 'hang', '{}', CASE WHEN %s THEN now() + interval '1 h' END FROM generate_series(1, %s)",
        (expire, count),
    )


def statuses(db: Db, *tasks: Claimed) -> list[str]:
    """The status of each task, or RELEASED if it has been claimed and can be claimed again."""
    rows = db.execute(
        "SELECT id::text, status, claim_seq, claimed_by_worker_id IS NULL AS free FROM horsies_tasks"
    ).fetchall()
    by_id = {row["id"]: row for row in rows}

    def status(task: Claimed) -> str:
        row = by_id[task.id]
        is_released = row["status"] == "PENDING" and row["free"] and row["claim_seq"] > task.claim_seq
        return "RELEASED" if is_released else row["status"]

    return [status(task) for task in tasks]


def is_open(db: Db, session: int) -> bool:
    return db.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", (session,)).fetchone() is not None


def waits(db: Db, session: int) -> bool:
    query = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
    return db.execute(query, (session,)).fetchone() is not None


def end(db: Db, session: int) -> None:
    """End a session on the server, and wait until it is gone."""
    db.execute("SELECT pg_terminate_backend(%s)", (session,))
    eventually(lambda: not is_open(db, session), what="the end of the session")


def meanwhile(
    desk: Desk, db: Db, work: Coroutine[Any, Any, T], locked: Claimed, act: Callable[[], object]
) -> T:
    """Do something while a statement of `work` waits for the row of a task; then let the statement go on."""

    async def race() -> T:
        with psycopg.connect(desk.url) as other:
            other.execute("SELECT FROM horsies_tasks_live WHERE id = %s FOR UPDATE", (locked.id,))
            under_way = asyncio.create_task(work)
            await asyncio.to_thread(eventually, lambda: waits(db, desk.session), what="the statement waiting")
            await asyncio.to_thread(act)
        return await under_way

    return desk.run(race())


# Release


def test_nothing_is_released_while_the_database_agrees(
    desk: Desk, holdings: Holdings, db: Db, hands: Hands
) -> None:
    desk.pool.submit(claim(db, hands, 1, pids=[1]))

    assert holdings.release_at() is None


def test_a_lost_reply_is_released_at_once(desk: Desk, holdings: Holdings, db: Db, proxy: Proxy) -> None:
    claimer = Hands(proxy.url)
    add(db, 1)
    proxy.lose_reply(skip=1)  # after the one that prepares the claim
    with pytest.raises(psycopg.OperationalError):
        claimer.claim()
    claimer.close()
    row = db.execute("SELECT status, claimed_by_worker_id AS owner FROM horsies_tasks").fetchone()
    assert row == {"status": "CLAIMED", "owner": claimer.worker_id}

    holdings.is_uncertain = True
    assert holdings.release_at() == AT_ONCE
    desk.run(desk.release(claimer.worker_id))

    row = db.execute("SELECT status, claimed_by_worker_id AS owner FROM horsies_tasks").fetchone()
    assert row == {"status": "PENDING", "owner": None}
    assert holdings.release_at() is None


def test_what_is_held_is_kept(desk: Desk, db: Db, hands: Hands) -> None:
    claimed = claim(db, hands, 5, pids=[1, 1, 1])
    running, completed, failed, prefetched, _ = claimed
    desk.pool.submit([running])
    desk.settler.completed.append(Completed(completed.id, completed.claim_seq, OK))
    desk.settler.failed.append(stopped(failed))
    desk.prefetched.append(prefetched)

    desk.run(desk.release(hands.worker_id))

    assert statuses(db, *claimed) == ["RUNNING", "RUNNING", "RUNNING", "CLAIMED", "RELEASED"]


def test_a_task_that_was_cancelled_and_is_not_held_ends(desk: Desk, db: Db, hands: Hands) -> None:
    held, lost = claim(db, hands, 2, pids=[1, 1])
    desk.pool.submit([held])
    hands.cancel(held.id, lost.id)
    assert statuses(db, held, lost) == ["RUNNING", "RUNNING"]

    desk.run(desk.release(hands.worker_id))

    assert statuses(db, held, lost) == ["RUNNING", "CANCELLED"]


def test_a_reply_that_is_lost_during_a_release_is_released_later(
    desk: Desk, holdings: Holdings, db: Db, hands: Hands
) -> None:
    (first,) = claim(db, hands, 1)
    late: list[Claimed] = []

    def lose() -> None:
        late.extend(claim(db, hands, 1))
        holdings.is_uncertain = True

    meanwhile(desk, db, desk.release(hands.worker_id), first, lose)

    assert statuses(db, first, *late) == ["RELEASED", "CLAIMED"]
    assert holdings.release_at() == AT_ONCE
    desk.run(desk.release(hands.worker_id))
    assert statuses(db, *late) == ["RELEASED"]
    assert holdings.release_at() is None


def test_tasks_that_are_dropped_during_a_release_are_released_later(
    desk: Desk, holdings: Holdings, db: Db, hands: Hands
) -> None:
    unheld, prefetched = claim(db, hands, 2)
    desk.prefetched.append(prefetched)

    def stop() -> None:
        holdings.drop_prefetched()
        holdings.is_uncertain = True

    meanwhile(desk, db, desk.release(hands.worker_id), unheld, stop)

    assert statuses(db, unheld, prefetched) == ["RELEASED", "CLAIMED"]
    assert holdings.release_at() == AT_ONCE
    desk.run(desk.release(hands.worker_id))
    assert statuses(db, prefetched) == ["RELEASED"]


def test_a_release_that_fails_is_repeated(desk: Desk, holdings: Holdings, db: Db, hands: Hands) -> None:
    (task,) = claim(db, hands, 1)

    with pytest.raises(psycopg.OperationalError):
        meanwhile(desk, db, desk.release(hands.worker_id), task, lambda: end(db, desk.session))

    assert statuses(db, task) == ["CLAIMED"]
    assert holdings.release_at() == AT_ONCE
    desk.run(desk.connect())
    desk.run(desk.release(hands.worker_id))
    assert statuses(db, task) == ["RELEASED"]
    assert holdings.release_at() is None


# Lost sessions


def session_of(hands: Hands, db: Db) -> int:
    """The session of hands, which says so itself."""
    hands.execute(f"SET application_name = '{hands.worker_id}'")
    row = db.execute(
        "SELECT pid FROM pg_stat_activity WHERE application_name = %s", (str(hands.worker_id),)
    ).fetchone()
    assert row is not None
    return row["pid"]


def test_tasks_are_released_until_every_lost_session_has_ended(
    desk: Desk, holdings: Holdings, db: Db, hands: Hands, hire: Callable[[], Hands]
) -> None:
    ended, lost_later, still_open = (session_of(each, db) for each in (hire(), hire(), hands))
    end(db, ended)
    end(db, lost_later)
    holdings.lost_sessions |= {ended, still_open}

    async def release_and_lose() -> None:
        under_way = asyncio.create_task(desk.release(hands.worker_id))
        await asyncio.sleep(0)  # the sessions to ask for are chosen, and the answer is not read
        holdings.session_lost(lost_later)
        await under_way

    desk.run(release_and_lose())

    assert holdings.lost_sessions == {still_open, lost_later}
    assert holdings.release_at() == AT_ONCE

    before = time.monotonic()
    desk.run(desk.release(hands.worker_id))
    after = time.monotonic()

    assert holdings.lost_sessions == {still_open}
    check_at = holdings.release_at()
    assert check_at is not None
    assert before + LOST_SESSION_SECONDS <= check_at <= after + LOST_SESSION_SECONDS

    (late,) = claim(db, hands, 1)
    end(db, still_open)
    desk.run(desk.release(hands.worker_id))

    assert statuses(db, late) == ["RELEASED"]
    assert holdings.release_at() is None


def test_what_a_lost_session_claims_during_a_release_is_released_later(
    desk: Desk, holdings: Holdings, db: Db, hands: Hands
) -> None:
    session = session_of(hands, db)
    holdings.lost_sessions.add(session)
    (first,) = claim(db, hands, 1)
    late: list[Claimed] = []

    def claim_and_end() -> None:
        late.extend(claim(db, hands, 1))
        end(db, session)

    meanwhile(desk, db, desk.release(hands.worker_id), first, claim_and_end)

    assert statuses(db, first, *late) == ["RELEASED", "CLAIMED"]
    assert holdings.release_at() is not None
    desk.run(desk.release(hands.worker_id))
    assert statuses(db, *late) == ["RELEASED"]
    assert holdings.release_at() is None


UNDO = """UPDATE horsies_tasks_live
             SET status = 'PENDING', claim_seq = claim_seq - 1, claimed_by_worker_id = NULL, claimed_at = NULL, started_at = NULL,
                 worker_pid = NULL
           WHERE id = ANY (%s::uuid[])"""


def undo(db: Db, *tasks: Claimed) -> None:
    """Undo claims, as a crash of the server does that had not flushed them."""
    db.execute(UNDO, ([task.id for task in tasks],))


def test_after_a_session_is_lost_tasks_whose_claims_are_undone_are_given_up_before_the_next_claim(
    desk: Desk, holdings: Holdings, db: Db, hands: Hands
) -> None:
    running, kept, prefetched = claim(db, hands, 3, pids=[1, 1])
    desk.pool.submit([running, kept])
    desk.prefetched.append(prefetched)
    desk.run(desk.release(hands.worker_id))
    undo(db, running, prefetched)

    holdings.session_lost(-1)
    assert holdings.release_at() == AT_ONCE
    desk.run(desk.release(hands.worker_id))

    assert desk.running == {kept.id}
    assert not desk.prefetched
    assert statuses(db, running, kept, prefetched) == ["PENDING", "RUNNING", "PENDING"]


def test_an_outcome_under_an_undone_claim_does_not_end_the_task_that_the_same_worker_has_claimed_again(
    desk: Desk, holdings: Holdings, db: Db, hands: Hands
) -> None:
    claimed = claim(db, hands, 3, pids=[1, 1, 1])
    returned, failed, kept = claimed
    desk.settler.completed += [Completed(each.id, each.claim_seq, OK) for each in (returned, kept)]
    desk.settler.failed.append(msgspec.structs.replace(stopped(failed), asked=False))
    undo(db, returned, failed)

    holdings.session_lost(-1)
    desk.run(desk.release(hands.worker_id))
    again = hands.claim(pids=[1, 1])

    assert {(task.id, task.claim_seq) for task in again} == {(task.id, 1) for task in (returned, failed)}
    assert hands.settle_and_claim(desk.settler.take_completed()).settled == 1
    assert hands.store(desk.settler.take_failed()) == {}
    assert statuses(db, *claimed) == ["RUNNING", "RUNNING", "COMPLETED"]


# Prefetched tasks


def test_prefetched_tasks_that_cannot_be_started_are_dropped_in_time(
    desk: Desk, holdings: Holdings, db: Db, hands: Hands
) -> None:
    first, second = claim(db, hands, 2)
    holdings.will_prefetch(10.0)
    desk.prefetched.append(first)
    holdings.will_prefetch(20.0)  # a second claim does not start their time again
    desk.prefetched.append(second)

    assert desk.run(desk.start(hands.worker_id))  # no child has room
    assert holdings.release_at() == 10.0 + HOLD_SECONDS
    assert not holdings.drop_stuck(9.0 + HOLD_SECONDS)
    desk.run(desk.release(hands.worker_id))
    assert statuses(db, first, second) == ["CLAIMED", "CLAIMED"]

    assert holdings.drop_stuck(10.0 + HOLD_SECONDS)
    assert not desk.prefetched
    desk.run(desk.release(hands.worker_id))
    assert statuses(db, first, second) == ["RELEASED", "RELEASED"]


def test_prefetched_tasks_are_started_in_order_as_far_as_children_are_free(
    desk: Desk, holdings: Holdings, db: Db, hands: Hands
) -> None:
    pids = desk.start_children()
    first, second, third = claim(db, hands, 3)
    desk.prefetched.extend([first, second, third])

    before = time.monotonic()
    assert desk.run(desk.start(hands.worker_id))

    assert desk.running == {first.id, second.id}
    assert list(desk.prefetched) == [third]
    assert statuses(db, first, second, third) == ["RUNNING", "RUNNING", "CLAIMED"]
    rows = db.execute("SELECT worker_pid FROM horsies_tasks WHERE status = 'RUNNING'").fetchall()
    assert sorted(row["worker_pid"] for row in rows) == sorted(pids)
    assert not holdings.is_uncertain
    release_at = holdings.release_at()
    assert release_at is not None
    assert release_at >= before + HOLD_SECONDS  # the third may wait from now on


def test_a_task_that_may_expire_is_not_sent_to_a_busy_child(desk: Desk, db: Db, hands: Hands) -> None:
    desk.start_children()
    desk.pool.depth = 2
    claimed = claim(db, hands, 3, expire=True)
    desk.prefetched.extend(claimed)

    assert desk.run(desk.start(hands.worker_id))

    assert statuses(db, *claimed) == ["RUNNING", "RUNNING", "CLAIMED"]
    assert list(desk.prefetched) == claimed[2:]


def test_a_task_that_cannot_be_started_is_dropped_and_released(
    desk: Desk, holdings: Holdings, db: Db, hands: Hands
) -> None:
    desk.start_children()
    first, second = claim(db, hands, 2)
    desk.prefetched.extend([first, second])
    hands.start([first])  # whose reply was lost

    assert not desk.run(desk.start(hands.worker_id))

    assert desk.running == {second.id}
    assert not desk.prefetched
    assert holdings.release_at() == AT_ONCE
    desk.run(desk.release(hands.worker_id))
    assert statuses(db, first, second) == ["RELEASED", "RUNNING"]


def test_tasks_that_are_dropped_while_they_start_are_not_run_whatever_is_prefetched_since(
    desk: Desk, holdings: Holdings, db: Db, hands: Hands
) -> None:
    desk.start_children()
    first, second, later = claim(db, hands, 3)
    desk.prefetched.extend([first, second])

    def replace() -> None:
        holdings.drop_prefetched()
        desk.prefetched.append(later)

    assert meanwhile(desk, db, desk.start(hands.worker_id), first, replace)

    assert desk.running == set()
    assert list(desk.prefetched) == [later]
    assert statuses(db, first, second, later) == ["RUNNING", "RUNNING", "CLAIMED"]
    desk.run(desk.release(hands.worker_id))
    assert statuses(db, first, second, later) == ["RELEASED", "RELEASED", "CLAIMED"]


def test_tasks_whose_start_is_not_confirmed_are_dropped_and_leave_their_children_free(
    desk: Desk, holdings: Holdings, db: Db, hands: Hands
) -> None:
    desk.start_children()
    claimed = claim(db, hands, 3)
    desk.prefetched.extend(claimed)
    free_meanwhile: list[int] = []

    def cut() -> None:
        free_meanwhile.extend(desk.pool.free(CHILDREN))
        end(db, desk.session)

    with pytest.raises(psycopg.OperationalError):
        meanwhile(desk, db, desk.start(hands.worker_id), claimed[0], cut)

    assert free_meanwhile == []
    assert len(desk.pool.free(CHILDREN)) == CHILDREN
    assert desk.running == set()
    assert not desk.prefetched
    desk.run(desk.connect())
    desk.run(desk.release(hands.worker_id))
    assert statuses(db, *claimed) == ["RELEASED"] * 3
    assert holdings.release_at() is None
