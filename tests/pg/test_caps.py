"""However many workers claim at once, no more is in flight than the cluster and its queues allow."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql

from horsies import PostgresConfig
from horsies.db.connection import Connection, connect_worker
from horsies.db.queries import workers
from horsies.db.queries.tasks import Claimed, Completed, ConcurrencyCap, Lane, PoolRoom
from horsies.worker.claim import NO_LIMIT
from tests.pg.hands import OK, START, Hands
from tests.support.waiting import eventually

Db = psycopg.Connection[dict[str, Any]]
QUEUES = ("a", "b", "c")
CHANNELS = [f"task_queue_{name}" for name in QUEUES]
Kind = tuple[str, bool]  # a queue, and whether its async tasks are meant


def fill(db: Db, tasks: Mapping[Kind, int]) -> None:
    for (queue, is_async), number in tasks.items():
        db.execute(
            "INSERT INTO horsies_tasks (task_name, queue_name, is_async)"
            " SELECT 'add', %s, %s FROM generate_series(1, %s)",
            (queue, is_async, number),
        )


def employ(db: Db, *queues: str, waiting: bool = False, alive: bool = True) -> UUID:
    """Another worker, as a row only."""
    worker_id = uuid4()
    db.execute(
        "INSERT INTO horsies_workers (worker_id, hostname, pid, processes, queues, waiting, lease_expires_at, dead_at)"
        " VALUES (%s, 'elsewhere', 1, 1, %s, %s, now() + interval '1 h', CASE WHEN %s THEN NULL ELSE now() END)",
        (worker_id, list(queues or QUEUES), waiting, alive),
    )
    return worker_id


def hold(db: Db, worker_id: UUID, tasks: Mapping[str, int]) -> None:
    """Say that a worker has so many tasks in flight."""
    for queue, number in tasks.items():
        db.execute("INSERT INTO horsies_in_flight VALUES (%s, %s, %s)", (queue, worker_id, number))


def account(db: Db, worker_id: UUID) -> dict[str, int]:
    """What the database believes that a worker has in flight."""
    found = db.execute("SELECT queue_name, tasks FROM horsies_in_flight WHERE worker_id = %s", (worker_id,))
    return {entry["queue_name"]: entry["tasks"] for entry in found}


def stored(db: Db, status: str) -> Counter[str]:
    """How many tasks of each queue have this state, and of all as ''."""
    found = db.execute("SELECT queue_name FROM horsies_tasks WHERE status = %s", (status,))
    counts = Counter(entry["queue_name"] for entry in found)
    counts[""] = counts.total()
    return counts


def lane(queue: str, quota: int = 100, *, is_async: bool = False, pool: int = 0) -> Lane:
    return Lane(pool, queue, is_async, "", quota, *START)


def room(number: int, pool: int = 0) -> PoolRoom:
    return PoolRoom(pool, number, number, list(range(1, number + 1)))


def completed(tasks: Sequence[Claimed]) -> list[Completed]:
    return [Completed(task.id, task.claim_seq, OK) for task in tasks]


# --- one claim against the formula


class Case(NamedTuple):
    """A moment in the life of a cluster: '' is the limit of all queues together."""

    tasks: dict[Kind, int]
    order: list[Kind]
    rooms: tuple[int, int]
    caps: dict[str, int]
    others: list[dict[str, int]]
    mine: dict[str, int]
    batch: int
    limit: int

    def held(self, name: str) -> int:
        return sum(worker.get(name, 0) for worker in (*self.others, self.mine))

    def left(self, name: str) -> int:
        return max(0, self.caps[name] - self.held(name)) if name in self.caps else NO_LIMIT


few = st.integers(0, 6)
counts = st.dictionaries(st.sampled_from(("", *QUEUES)), few)
both_kinds = [(queue, is_async) for queue in QUEUES for is_async in (False, True)]


@st.composite
def cases(draw: st.DrawFn, *, mixed: bool) -> Case:
    """With both kinds of task in every queue, or with one."""
    one_kind = [(queue, draw(st.booleans())) for queue in draw(st.permutations(QUEUES))]
    return Case(
        tasks={kind: draw(few) for kind in both_kinds},
        order=draw(st.permutations(both_kinds)) if mixed else one_kind,
        rooms=(draw(few), draw(few)),
        caps=draw(st.dictionaries(st.sampled_from(("", *QUEUES)), st.integers(1, 8))),
        others=draw(st.lists(counts, max_size=2)),
        mine={} if mixed else draw(counts),
        batch=draw(st.sampled_from([NO_LIMIT, NO_LIMIT, 1, 2, 4])),
        limit=NO_LIMIT if mixed else draw(st.sampled_from([NO_LIMIT, NO_LIMIT, 0, 1, 3])),
    )


random_cases = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def arrange(db: Db, hands: Hands, case: Case) -> None:
    db.execute("DELETE FROM horsies_tasks")
    db.execute("DELETE FROM horsies_workers")
    hands.register(*QUEUES, waiting=False)
    hold(db, hands.worker_id, case.mine)
    for other in case.others:
        hold(db, employ(db), other)
    fill(db, case.tasks)


def claim(hands: Hands, case: Case) -> Counter[Kind]:
    _, claimed, *_ = hands.settle_and_claim(
        lanes=[lane(queue, min(case.rooms[kind], case.batch), is_async=kind, pool=int(kind)) for queue, kind in case.order],
        pools=[room(number, pool) for pool, number in enumerate(case.rooms)],
        caps=[ConcurrencyCap(name, most, case.mine.get(name, 0), case.mine.get(name, 0)) for name, most in case.caps.items()],
        batch=case.batch,
        limit=case.limit,
    )  # fmt: skip
    return Counter((task.queue_name, task.is_async) for task in claimed)


def by_the_formula(case: Case) -> Counter[Kind]:
    """Queue by queue: the least of what there is, what there is room for, and what each limit leaves."""
    budget = min(case.limit, case.left(""))
    rooms = list(case.rooms)
    taken: Counter[Kind] = Counter()
    for queue, kind in case.order:
        claim_count = min(case.tasks[queue, kind], rooms[kind], budget, case.left(queue), case.batch)
        taken[queue, kind] = claim_count
        rooms[kind] -= claim_count
        budget -= claim_count
    return taken


@pytest.mark.breaks_invariants  # the shares that others hold are drawn, and their tasks are not
@random_cases
@given(case=cases(mixed=False))
def test_a_claim_takes_what_the_formula_says_and_writes_what_it_took(
    hands: Hands, db: Db, case: Case
) -> None:
    arrange(db, hands, case)

    taken = claim(hands, case)

    assert taken == by_the_formula(case)
    running = stored(db, "RUNNING")
    assert running[""] == taken.total()
    stated = account(db, hands.worker_id)
    assert {name: stated.get(name, 0) for name in case.caps} == {
        name: case.mine.get(name, 0) + running[name] for name in case.caps
    }


@random_cases
@given(case=cases(mixed=True))
def test_plain_and_async_tasks_share_every_limit_and_nothing_is_left_that_could_run(
    hands: Hands, db: Db, case: Case
) -> None:
    arrange(db, hands, case)
    before = case
    while taken := claim(hands, case):
        of_queue = Counter({queue: taken[queue, False] + taken[queue, True] for queue in QUEUES})
        assert max(of_queue.values()) <= case.batch
        of_queue[""] = taken.total()
        case = case._replace(
            tasks={kind: number - taken[kind] for kind, number in case.tasks.items()},
            rooms=tuple(case.rooms[kind] - sum(taken[queue, kind] for queue in QUEUES) for kind in (0, 1)),
            mine={name: case.mine.get(name, 0) + of_queue[name] for name in ("", *QUEUES)},
        )
        assert account(db, hands.worker_id) == {name: n for name in case.caps if (n := case.mine[name])}

    for name, most in case.caps.items():
        assert case.held(name) <= max(most, before.held(name))
    for (queue, kind), left in case.tasks.items():
        assert left == 0 or case.rooms[kind] == 0 or 0 in (case.left(queue), case.left(""))
    assert stored(db, "RUNNING")[""] == case.mine.get("", 0)


def test_what_is_claimed_ahead_counts_only_when_it_is_started(hands: Hands, db: Db) -> None:
    hands.register(*QUEUES, waiting=False)
    fill(db, {("a", False): 9})

    claimed = hands.claim("a", limit=5, pids=[1, 2], caps=[ConcurrencyCap("a", 4, 0, 0)])

    assert [task.pid for task in claimed] == [1, 2, None, None]
    assert account(db, hands.worker_id) == {"a": 2}


def test_without_a_limit_nothing_is_written_about_what_is_in_flight(hands: Hands, db: Db) -> None:
    hands.register(*QUEUES, waiting=False)
    fill(db, {("a", False): 4, ("b", False): 4})

    assert len(hands.run_next("a", "b", limit=4)) == 4
    assert account(db, hands.worker_id) == {}

    assert len(hands.claim("a", "b", pids=[1] * 4, caps=[ConcurrencyCap("b", 9, 0, 0)])) == 4
    assert account(db, hands.worker_id) == {"b": 4}


def test_what_is_unchanged_is_not_written_again(hands: Hands, db: Db) -> None:
    hands.register(*QUEUES, waiting=False)
    fill(db, {("a", False): 2})
    first = hands.claim("a", pids=[1], caps=[ConcurrencyCap("a", 1, 0, 0)])
    versions = "SELECT xmin::text AS version FROM horsies_in_flight"
    before = db.execute(versions).fetchall()
    assert len(before) == 1

    ended, claimed, *_ = hands.settle_and_claim(
        completed(first), [lane("a")], [room(1)], caps=[ConcurrencyCap("a", 1, 0, 1)]
    )

    assert (ended, len(claimed)) == (1, 1)
    assert db.execute(versions).fetchall() == before


# --- one after another


@pytest.fixture
def team(hire: Callable[[], Hands], db: Db) -> list[Hands]:
    """Three workers that can be told apart in the server."""
    return [named(hire()) for _ in range(3)]


def named(hands: Hands) -> Hands:
    hands.execute(f"SET application_name = '{hands.worker_id}'")
    hands.register(*QUEUES, waiting=False)
    return hands


@contextmanager
def held_open(hands: Hands, db: Db, url: str, queue: str, *caps: ConcurrencyCap) -> Iterator[Future[Any]]:
    """A claim that cannot end yet: it is to end a task whose row somebody else has locked."""
    fill(db, {("mine", False): 1})
    (task,) = hands.run_next("mine")
    with ThreadPoolExecutor(1) as thread, psycopg.connect(url) as other:
        other.execute("SELECT FROM horsies_tasks_live WHERE id = %s FOR UPDATE", (task.id,))
        under_way = thread.submit(
            hands.settle_and_claim, completed([task]), [lane(queue)], [room(5)], caps=caps
        )
        eventually(lambda: waits_for(db, hands) == "transactionid", what="the claim being under way")
        yield under_way
        assert not under_way.done()


def waits_for(db: Db, hands: Hands) -> str | None:
    """What kind of lock a worker's session waits for, if any."""
    query = "SELECT wait_event FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"
    entry = db.execute(query, (str(hands.worker_id),)).fetchone()
    return None if entry is None else entry["wait_event"]


def turns(db: Db, hands: Hands) -> list[dict[str, Any]]:
    """The advisory locks that a worker's session has or waits for."""
    return db.execute(
        "SELECT classid, objid, granted FROM pg_locks JOIN pg_stat_activity USING (pid)"
        " WHERE locktype = 'advisory' AND application_name = %s",
        (str(hands.worker_id),),
    ).fetchall()


@contextmanager
def waiting_after(
    holding: AbstractContextManager[Future[Any]], hands: Hands, db: Db, queues: str, *caps: ConcurrencyCap
) -> Iterator[tuple[Future[Any], Future[list[Claimed]]]]:
    """A claim held open and another that waits for it; on leaving, first the one ends and then the other."""
    with ThreadPoolExecutor(1) as thread, holding as ahead:
        behind = thread.submit(hands.claim, *queues, pids=[1] * 9, limit=9, caps=caps)
        eventually(lambda: waits_for(db, hands) == "advisory", what="the claim waiting for its turn")
        yield ahead, behind


def test_with_a_limit_for_the_cluster_all_claims_take_turns(
    team: list[Hands], db: Db, database_url: str
) -> None:
    first, second, _ = team
    fill(db, {("a", False): 5, ("b", False): 5})
    cap = ConcurrencyCap("", 3, 0, 0)
    with waiting_after(held_open(first, db, database_url, "a", cap), second, db, "b", cap) as (ahead, behind):
        (theirs,), (ours,) = turns(db, first), turns(db, second)
        assert (theirs.pop("granted"), ours.pop("granted")) == (True, False)
        assert theirs == ours

    assert (len(ahead.result()[1]), len(behind.result())) == (3, 0)


def test_with_limits_for_queues_only_claims_that_share_one_take_turns(
    team: list[Hands], db: Db, database_url: str
) -> None:
    first, second, third = team
    fill(db, {("a", False): 5, ("b", False): 5})
    caps = ConcurrencyCap("b", 4, 0, 0), ConcurrencyCap("a", 3, 0, 0)
    holding = held_open(first, db, database_url, "a", caps[1])
    with waiting_after(holding, third, db, "ab", *caps) as (ahead, behind):
        assert [lock["granted"] for lock in turns(db, first)] == [True]
        assert second.claim("c", caps=[ConcurrencyCap("c", 2, 0, 0)]) == []
        assert len(second.run_next("a", limit=1)) == 1

    assert len(ahead.result()[1]) == 3
    assert Counter(task.queue_name for task in behind.result()) == {"b": 4}


def test_without_limits_a_claim_takes_no_turn(team: list[Hands], db: Db, database_url: str) -> None:
    first, second, _ = team
    fill(db, {("a", False): 9})
    with held_open(first, db, database_url, "a"):
        assert turns(db, first) == []
        assert second.run_next("a", limit=2)


def test_no_two_claims_wait_for_each_other_however_they_list_their_queues(team: list[Hands]) -> None:
    def claim_on(hands: Hands, order: Sequence[str]) -> None:
        for _ in range(60):
            hands.claim(*order, caps=[ConcurrencyCap(name, 1, 0, 0) for name in order])

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(claim_on, team, [("a", "b", "c"), ("c", "b", "a"), ("b", "a", "c")]))


def test_a_turn_counts_what_the_one_before_took_whatever_isolation_the_database_prefers(
    hire: Callable[[], Hands], db: Db, database_url: str
) -> None:
    setting = sql.SQL("ALTER DATABASE {} SET default_transaction_isolation = 'repeatable read'")
    db.execute(setting.format(sql.Identifier(db.info.dbname)))
    first, second = named(hire()), named(hire())
    fill(db, {("a", False): 5, ("b", False): 5})
    cap = ConcurrencyCap("", 3, 0, 0)

    with waiting_after(held_open(first, db, database_url, "a", cap), second, db, "b", cap) as (ahead, behind):
        pass

    assert (len(ahead.result()[1]), len(behind.result())) == (3, 0)


@pytest.mark.parametrize("limited", ["", "a"], ids=["cluster", "queue"])
def test_workers_that_claim_at_the_same_moment_never_exceed_a_limit(
    team: list[Hands], db: Db, limited: str
) -> None:
    rounds = 25
    fill(db, {("a", False): 3 * rounds})
    together = threading.Barrier(len(team), timeout=20)

    def work(hands: Hands) -> list[int]:
        """Claim with all others, then end with all others what was claimed."""
        taken: list[int] = []
        for _ in range(rounds):
            together.wait()
            claimed = hands.claim("a", limit=2, pids=[1, 2], caps=[ConcurrencyCap(limited, 3, 0, 0)])
            together.wait()
            hands.settle_and_claim(completed(claimed), caps=[ConcurrencyCap(limited, 3, 0, len(claimed))])
            taken.append(len(claimed))
        return taken

    with ThreadPoolExecutor(len(team)) as threads:
        taken = list(threads.map(work, team))

    assert [sum(shares) for shares in zip(*taken, strict=True)] == [3] * rounds
    assert stored(db, "COMPLETED")["a"] == 3 * rounds
    # A worker that was too late in every round has held nothing, and has no row.
    assert [account(db, hands.worker_id).get(limited, 0) for hands in team] == [0, 0, 0]


# --- capacity that comes free


def listen(db: Db, *channels: str) -> None:
    for channel in channels:
        db.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))


def heard(db: Db) -> list[str]:
    """The channels notified so far: notifications come in the order of their commits, so ours comes last."""
    listen(db, "end_of_test")
    db.execute("NOTIFY end_of_test")
    found: list[str] = []
    for notification in db.notifies(timeout=10):
        if notification.channel == "end_of_test":
            return sorted(found)
        found.append(notification.channel)
    raise AssertionError("our own notification did not arrive")


@pytest.mark.parametrize(
    ("cap", "told"),
    [
        (ConcurrencyCap("a", 5, 1, 2), ["task_queue_a"]),
        (ConcurrencyCap("a", 5, 0, 2), ["task_queue_a"]),
        (ConcurrencyCap("", 5, 1, 2), ["task_queue_a", "task_queue_b"]),
        (ConcurrencyCap("a", 5, 2, 2), []),
        (ConcurrencyCap("a", 5, 3, 2), []),
        (ConcurrencyCap("", 5, 2, 2), []),
        (ConcurrencyCap("c", 5, 1, 2), []),
    ],
)
def test_those_who_wait_are_told_when_capacity_comes_free_and_only_then(
    hands: Hands, db: Db, cap: ConcurrencyCap, told: list[str]
) -> None:
    hands.register(*QUEUES, waiting=True)
    employ(db, "a", "b", waiting=True)
    employ(db, "c", waiting=False)
    hold(db, hands.worker_id, {cap.queue_name: cap.recorded})
    listen(db, *CHANNELS)

    hands.settle_and_claim(caps=[cap])

    assert heard(db) == told
    assert account(db, hands.worker_id) == {cap.queue_name: cap.in_use}


def test_capacity_that_is_taken_again_at_once_is_nobodys_news(hands: Hands, db: Db) -> None:
    hands.register(*QUEUES, waiting=False)
    fill(db, {("a", False): 2})
    first = hands.claim("a", pids=[1], caps=[ConcurrencyCap("a", 1, 0, 0)])
    employ(db, waiting=True)
    listen(db, *CHANNELS)

    hands.settle_and_claim(completed(first), [lane("a")], [room(1)], caps=[ConcurrencyCap("a", 1, 0, 1)])

    assert heard(db) == []


def test_a_worker_that_does_not_know_what_it_last_said_tells_those_who_wait(hands: Hands, db: Db) -> None:
    """After a lost connection it may be that it holds less than the database believes."""
    hands.register(*QUEUES, waiting=False)
    hold(db, hands.worker_id, {"a": 2})
    employ(db, waiting=True)
    listen(db, *CHANNELS)

    hands.settle_and_claim(caps=[ConcurrencyCap("a", 5, 1, -1)])

    assert account(db, hands.worker_id) == {"a": 1}
    assert heard(db) == ["task_queue_a"]


def run(url: str, work: Callable[[Connection], Awaitable[None]]) -> None:
    """Do something else that workers do, over a session of its own."""

    async def connected() -> None:
        async with await connect_worker(PostgresConfig(database_url=url), "other") as connection:
            await work(connection)

    asyncio.run(connected())


def test_what_a_dead_worker_held_counts_no_longer_and_those_who_wait_are_told(
    db: Db, database_url: str
) -> None:
    dead, alive = employ(db, alive=False), employ(db, "a", "c", waiting=True)
    hold(db, dead, {"a": 2, "": 2})
    hold(db, alive, {"a": 1, "": 3})
    listen(db, *CHANNELS)

    run(database_url, workers.delete_usage_of_dead)

    assert account(db, dead) == {}
    assert account(db, alive) == {"a": 1, "": 3}
    assert heard(db) == ["task_queue_a", "task_queue_c"]

    run(database_url, workers.delete_usage_of_dead)
    assert heard(db) == []


def test_a_worker_that_leaves_takes_its_account_with_it(db: Db, database_url: str) -> None:
    leaves, stays = employ(db), employ(db)
    for worker_id in (leaves, stays):
        hold(db, worker_id, {"a": 2, "": 2})

    run(database_url, lambda connection: workers.deregister(connection, leaves))

    assert account(db, leaves) == {}
    assert account(db, stays) == {"a": 2, "": 2}
