"""What a worker asks for: never more than it has room for, fairly, and with an honest account of what it holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies import CustomQueueConfig
from horsies.db.queries.tasks import Claimed, ClaimRequest, ConcurrencyCap, PoolRoom
from horsies.executor.pool import Shape
from horsies.executor.protocol import ChildKind
from horsies.worker.claim import NO_LIMIT, START, Capacity, Caps, Claimer, Limits, Owner, budget

if TYPE_CHECKING:
    from horsies.executor.pool import ChildPool

few = st.integers(0, 20)
NOW = 100.0
OWNER = Owner(uuid4(), "host", "worker-1", 10.0)
ONE_POOL = {False: 0, True: 0}
TWO_POOLS = {False: 0, True: 1}
_ids = count(1)


def queue(name: str, priority: int = 50, most: int | None = None) -> CustomQueueConfig:
    return CustomQueueConfig(name=name, priority=priority, max_concurrency=most)


def held(queue_name: str, *, is_async: bool = False, task_name: str = "add", pid: int | None = 7) -> Claimed:
    """A task in a worker's hands."""
    return Claimed(
        turn=1,
        id=f"00000000-0000-0000-0000-{next(_ids):012}",
        claim_seq=1,
        task_name=task_name,
        args=None,
        kwargs=None,
        queue_name=queue_name,
        is_async=is_async,
        priority=50,
        enqueued_at="2025-01-01T00:00:00Z",
        pid=pid,
        timeout_ms=None,
        retry_count=0,
        max_retries=0,
        crash_count=0,
        has_expiry=False,
        task_options=None,
    )


# --- how much room there is


@given(processes=st.integers(1, 20), running=few, claimed=few)
def test_without_prefetch_the_room_is_the_processes_less_what_is_in_flight(
    processes: int, running: int, claimed: int
) -> None:
    room = budget(slots=processes, prefetch=0, max_claim_per_worker=0, running=running, claimed=claimed)

    assert room == max(0, processes - (running + claimed))


@given(processes=st.integers(1, 20), prefetch=few, running=few, claimed=few)
def test_with_prefetch_what_is_claimed_takes_up_room_too(
    processes: int, prefetch: int, running: int, claimed: int
) -> None:
    room = budget(
        slots=processes, prefetch=prefetch, max_claim_per_worker=0, running=running, claimed=claimed
    )

    assert room == max(0, processes + prefetch - running - claimed)


@given(processes=st.integers(1, 20), prefetch=few, most=st.integers(1, 30), running=few, claimed=few)
def test_a_worker_never_holds_more_unstarted_tasks_than_it_may(
    processes: int, prefetch: int, most: int, running: int, claimed: int
) -> None:
    room = budget(
        slots=processes, prefetch=prefetch, max_claim_per_worker=most, running=running, claimed=claimed
    )

    local_budget = processes + prefetch - running - claimed
    assert room == max(0, min(local_budget, most - claimed))


# --- what counts against the limits of the cluster


def test_without_limits_there_is_nothing_to_account_for() -> None:
    caps = Caps(None, [queue("a"), queue("b", most=0)])

    assert not caps
    assert caps.request([held("a")]) == []
    assert not caps.are_outdated([held("a")])


def test_every_limit_is_asked_for_with_what_is_held_of_it() -> None:
    caps = Caps(9, [queue("a", most=3), queue("b"), queue("c", most=2)])

    asked = caps.request([held("a"), held("a", is_async=True), held("b")])

    assert caps
    assert asked == [ConcurrencyCap("a", 3, 2, 0), ConcurrencyCap("c", 2, 0, 0), ConcurrencyCap("", 9, 3, 0)]


def test_what_was_written_is_what_was_held_and_what_was_started() -> None:
    caps = Caps(9, [queue("a", most=3)])
    before = [held("a")]
    started = [held("a"), held("b")]

    caps.claimed(caps.request(before), started)

    assert caps.request([*before, *started]) == [ConcurrencyCap("a", 3, 2, 2), ConcurrencyCap("", 9, 3, 3)]
    assert not caps.are_outdated([*before, *started])
    assert caps.are_outdated(started)
    assert caps.are_outdated([*before, *started, held("b")])


def test_after_forgetting_everything_is_said_anew_even_that_nothing_is_held() -> None:
    caps = Caps(9, [queue("a", most=3)])
    caps.claimed(caps.request([]), [held("a")])

    caps.forget()

    assert caps.are_outdated([])
    assert [cap.recorded for cap in caps.request([])] == [-1, -1]
    caps.claimed(caps.request([]), [])
    assert not caps.are_outdated([])


@given(
    cap=st.none() | st.integers(1, 9),
    most=st.dictionaries(st.sampled_from("abc"), st.none() | st.integers(0, 9)),
    names=st.lists(st.sampled_from("abc"), max_size=9),
)
def test_the_account_is_right_after_every_claim(
    cap: int | None, most: dict[str, int | None], names: list[str]
) -> None:
    caps = Caps(cap, [queue(name, most=limit) for name, limit in most.items()])
    mine: list[Claimed] = []
    for name in names:
        task = held(name)
        caps.claimed(caps.request(mine), [task])
        mine.append(task)

        assert not caps.are_outdated(mine)
        limited = cap is not None or bool(most.get(name))
        assert caps.are_outdated(mine[:-1]) == limited
    for entry in caps.request(mine):
        assert entry.in_use == entry.recorded == sum(entry.queue_name in ("", name) for name in names)


# --- whom to ask, in which order


def request(claimer: Claimer, *rooms: int, ceiling: int = NO_LIMIT, now: float = 0.0) -> ClaimRequest:
    pools = [PoolRoom(number, room, room, list(range(room))) for number, room in enumerate(rooms)]
    return claimer.request(OWNER, pools, ceiling, [], now)


def asked_queues(found: ClaimRequest) -> list[str]:
    """The queues, each when it is first asked."""
    return list(dict.fromkeys(lane.queue_name for lane in found.lanes))


def test_queues_are_asked_by_priority() -> None:
    claimer = Claimer([queue("c", 100), queue("a", 1), queue("b", 50)], ONE_POOL, 0)

    for _ in range(5):
        assert asked_queues(request(claimer, 4)) == ["a", "b", "c"]


def test_queues_of_equal_priority_take_turns_at_being_first() -> None:
    claimer = Claimer([queue("a", 7), queue("last", 9), queue("b", 7), queue("c", 7)], {False: 0}, 0)

    orders = [asked_queues(request(claimer, 4)) for _ in range(6)]

    assert {order[-1] for order in orders} == {"last"}
    assert [order[0] for order in orders[:3]] == [order[0] for order in orders[3:]]
    assert {order[0] for order in orders} == {"a", "b", "c"}


@given(priorities=st.lists(st.integers(1, 3), min_size=1, max_size=6), passes=st.integers(1, 20))
def test_every_line_is_asked_in_every_pass_the_urgent_ones_first(priorities: list[int], passes: int) -> None:
    names = [f"q{number}" for number in range(len(priorities))]
    priority_of = dict(zip(names, priorities, strict=True))
    claimer = Claimer([queue(name, priority_of[name]) for name in names], TWO_POOLS, 0)
    claimer.limit_rates(["slow"])
    for _ in range(passes):
        lanes = request(claimer, 3, 3).lanes

        asked = [(lane.queue_name, lane.is_async, lane.rate_key) for lane in lanes]
        assert sorted(asked) == sorted(
            (name, kind, rate) for name in names for kind in (False, True) for rate in ("", "slow")
        )
        urgency = [priority_of[lane.queue_name] for lane in lanes]
        assert urgency == sorted(urgency)


def test_a_paused_queue_is_not_asked_and_one_without_a_limit_is() -> None:
    claimer = Claimer([queue("paused", most=0), queue("open"), queue("limited", most=1)], ONE_POOL, 0)

    assert sorted(asked_queues(request(claimer, 4))) == ["limited", "open"]


def test_a_pool_without_room_is_not_asked_for_and_neither_is_anything_at_a_ceiling_of_none() -> None:
    claimer = Claimer([queue("a")], TWO_POOLS, 0)
    claimer.limit_rates(["slow"])

    assert {lane.is_async for lane in request(claimer, 0, 5).lanes} == {True}
    assert {lane.quota for lane in request(claimer, 0, 5).lanes} == {5}
    nothing = request(claimer, 3, 3, ceiling=0)
    assert (nothing.lanes, nothing.rates) == ([], [])
    assert request(claimer, 3, 3).rates == ["slow"]


@pytest.mark.parametrize(("batch", "quota"), [(0, 9), (4, 4), (20, 9)])
def test_no_line_is_asked_for_more_than_a_batch(batch: int, quota: int) -> None:
    asked = request(Claimer([queue("a"), queue("b")], {False: 0}, batch), 9)

    assert [lane.quota for lane in asked.lanes] == [quota, quota]
    assert asked.batch == (batch or NO_LIMIT)


def keys_of(found: ClaimRequest) -> dict[tuple[str, str], tuple[int, str, str]]:
    return {
        (lane.queue_name, lane.rate_key): (lane.priority, lane.enqueued_at, lane.id) for lane in found.lanes
    }


def key(task: Claimed) -> tuple[int, str, str]:
    return task.priority, task.enqueued_at, task.id


def test_a_line_is_read_on_from_the_last_task_claimed_until_it_is_time_to_begin_anew() -> None:
    claimer = Claimer([queue("a"), queue("b")], {False: 0}, 0)
    tasks: Sequence[Claimed] = [held("a"), held("a")]
    assert keys_of(request(claimer, 4, now=100.0)) == {("a", ""): START, ("b", ""): START}
    claimer.claimed(tasks, seconds=0.001, now=100.0)

    assert keys_of(request(claimer, 4, now=100.01)) == {("a", ""): key(tasks[-1]), ("b", ""): START}
    assert claimer.rewind()
    assert keys_of(request(claimer, 4, now=100.02)) == {("a", ""): START, ("b", ""): START}
    assert not claimer.rewind()


def test_a_rate_limited_line_is_always_read_from_its_beginning() -> None:
    claimer = Claimer([queue("a")], {False: 0}, 0)
    claimer.limit_rates(["slow"])
    plain, limited = held("a"), held("a", task_name="slow")
    request(claimer, 4, now=100.0)

    claimer.claimed([plain, limited], seconds=0.001, now=100.0)

    assert keys_of(request(claimer, 4, now=100.01)) == {("a", ""): key(plain), ("a", "slow"): START}


def test_only_a_claim_that_spent_a_rate_makes_the_next_due_time_unknown() -> None:
    claimer = Claimer([queue("a")], {False: 0}, 0)
    claimer.limit_rates(["slow"])

    assert claimer.claimed([held("a"), held("a", task_name="slow")], seconds=0.001, now=100.0)
    assert not claimer.claimed([held("a")], seconds=0.001, now=100.0)


def test_what_became_uncertain_during_a_claim_is_said_anew_after_it() -> None:
    caps = Caps(9, [])
    asked = caps.request([])
    caps.forget()

    caps.claimed(asked, [])

    assert caps.are_outdated([])


# --- how much is claimed ahead by run times


class _Pool:
    """The parts of a pool of children that decide how much is claimed: its shape, and the calls that it holds."""

    def __init__(self, size: int, load: int = 0, width: int = 1) -> None:
        self.shape = Shape(ChildKind.SERIAL if width == 1 else ChildKind.THREADS, size, width)
        self.load = load
        self.depth = width
        self.short_names = None

    def is_valid(self) -> bool:
        return True

    def idle(self) -> int:
        return max(0, self.shape.slots - self.load)

    def room(self) -> int:
        return max(0, self.shape.size * self.depth - self.load)


def capacity(
    pool: _Pool, prefetch: int | None = None, most: int = 0, cap: int | None = None, runs: int = 200
) -> Capacity:
    """Return the room of a worker that has run so many tasks of 1 ms, and whose last claim filled its room."""
    limits = Limits(prefetch, most, max_claim_batch=2, cluster_wide_cap=cap, poll_seconds=5, hold_seconds=10)
    found = Capacity([cast("ChildPool", pool)], limits)
    found.claims_ahead = True
    for _ in range(runs):
        found.ran(held("default"), 0.001)
    return found


def test_a_worker_that_has_run_nothing_claims_one_task_for_each_idle_child() -> None:
    room = capacity(_Pool(4, load=1), runs=0)
    assert room.claimable(NOW) == [3]
    assert not room.is_ahead


def test_a_worker_of_short_tasks_claims_for_each_child_what_it_runs_in_16_ms() -> None:
    room = capacity(_Pool(4, load=1))
    assert room.depth() in (15, 16)
    assert room.claimable(NOW) == [4 * room.depth() - 1]
    assert room.is_ahead
    assert json.loads(room.run_times_json()) == {"add": pytest.approx(0.001, rel=0.05)}


def test_room_that_is_only_ahead_is_no_room_for_a_task_that_must_not_wait() -> None:
    room = capacity(_Pool(2, load=2))
    assert room.claimable(NOW)[0] > 0
    assert not room.has_room()


def test_without_a_backlog_tasks_are_claimed_for_idle_children_only() -> None:
    pool = _Pool(2, load=2)
    room = capacity(pool)
    room.claims_ahead = False
    assert room.claimable(NOW) == [0]
    pool.load = 1
    assert room.claimable(NOW) == [1]


def test_claims_that_are_only_ahead_and_find_nothing_take_a_twentieth_of_the_time() -> None:
    pool = _Pool(2, load=2)
    room = capacity(pool)
    room.found_nothing_ahead(0.001, NOW)
    assert room.claimable(NOW + 0.019) == [0]
    assert room.claimable(NOW + 0.021)[0] > 0
    pool.load = 1
    assert room.claimable(NOW)[0] > 1  # a claim for an idle child costs no more if it is ahead, too


def test_a_fixed_prefetch_is_filled_without_a_backlog_and_while_all_children_are_busy() -> None:
    room = capacity(_Pool(1, load=1), prefetch=4, runs=0)
    room.claims_ahead = False
    assert room.claimable(NOW) == [4]


def test_a_fixed_prefetch_claims_nothing_ahead_of_tasks_with_keys_that_wait_for_an_idle_child() -> None:
    pool = _Pool(2, load=2)
    room = capacity(pool, prefetch=4)
    room.serves_keys = True
    assert room.claimable(NOW) == [0]
    pool.load = 1
    assert room.claimable(NOW) == [1]


@pytest.mark.parametrize(("most", "load", "expected"), [(1, 0, 3), (5, 0, 7), (5, 4, 3), (5, 9, 0)])
def test_no_more_tasks_wait_in_a_worker_than_max_claim_per_worker(
    most: int, load: int, expected: int
) -> None:
    assert capacity(_Pool(2, load=load), most=most).claimable(NOW) == [expected]


@pytest.mark.parametrize(
    "settings",
    [{"prefetch": 0}, {"cap": 10}, {"pool": _Pool(2, width=4)}],
    ids=["strict", "cluster cap", "threads"],
)
def test_nothing_is_claimed_ahead_in_strict_mode_nor_within_a_cap_nor_for_threads(
    settings: dict[str, Any],
) -> None:
    pool = settings.pop("pool", _Pool(2))
    room = capacity(pool, **settings)
    assert room.claimable(NOW) == [pool.shape.slots]
    assert not room.is_ahead
    assert room.run_times_json() == ""
