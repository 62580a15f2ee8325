"""What the claim loop does next: which work comes first, when it polls, and when it sleeps until it is notified."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from horsies.worker.claim_loop import ClaimLoop
from horsies.worker.pacing import (
    AWAKE_SECONDS,
    BUSY_FINDS,
    BUSY_SECONDS,
    COMMIT_PAUSES,
    CONFIRM_PAUSES,
    FULL_SECONDS,
    GATHER_MAX_SECONDS,
    GATHER_MIN_SECONDS,
    HELP_BATCH,
    LOST_SESSION_SECONDS,
    POLL_PAUSES,
    TOGETHER_SECONDS,
    LoopState,
    PollPolicy,
    gather_seconds,
    needs_help,
    next_rest,
    next_work,
    should_gather,
    sleep_seconds,
)

NOW = 100.0
NOTHING_TO_DO: dict[str, Any] = {
    "now": NOW,
    "is_stopping": False,
    "is_registered": True,
    "is_busy": False,
    "timer_at": None,
    "release_at": None,
    "is_notified_in_vain": False,
    "should_gather": False,
    "gather_until": 0.0,
    "has_outcomes": False,
    "can_claim": False,
    "is_usage_outdated": False,
}
# Each kind of work with what calls for it, the most urgent first.
BY_URGENCY: list[tuple[LoopState, dict[str, Any]]] = [
    (LoopState.DISOWNED, {"is_registered": False}),
    (LoopState.FIRING_TIMERS, {"timer_at": NOW}),
    (LoopState.RELEASING, {"release_at": NOW}),
    (LoopState.ANNOUNCING, {"is_notified_in_vain": True}),
    (LoopState.GATHERING, {"should_gather": True, "gather_until": NOW + 0.01}),
    (LoopState.CLAIMING, {"can_claim": True}),
]

# --- what there is to do


def work(**facts: Any) -> LoopState | None:
    return next_work(**{**NOTHING_TO_DO, **facts})


def test_every_state_is_in_the_table() -> None:
    table = ClaimLoop.__doc__ or ""

    assert [state.name for state in LoopState if state.name not in table] == []


def test_a_loop_without_work_rests() -> None:
    assert work() is None


@pytest.mark.parametrize("place", range(len(BY_URGENCY)), ids=[state.name for state, _ in BY_URGENCY])
def test_the_most_urgent_work_comes_first(place: int) -> None:
    facts: dict[str, Any] = {}
    for _, reasons in BY_URGENCY[place:]:
        facts |= reasons

    assert work(**facts) is BY_URGENCY[place][0]


@pytest.mark.parametrize("reason", ["has_outcomes", "can_claim", "is_usage_outdated"])
def test_a_round_trip_is_made_for_outcomes_for_tasks_and_for_changed_usage(reason: str) -> None:
    assert work(**{reason: True}) is LoopState.CLAIMING


@pytest.mark.parametrize("reasons", [{"timer_at": NOW + 0.1}, {"release_at": NOW + 0.1}])
def test_what_is_due_later_is_not_done_now(reasons: dict[str, Any]) -> None:
    assert work(**reasons) is None


def test_results_do_not_gather_for_longer_than_they_may() -> None:
    facts = {"should_gather": True, "gather_until": NOW, "has_outcomes": True}

    assert work(**facts) is LoopState.CLAIMING
    assert work(**facts, now=NOW - 0.001) is LoopState.GATHERING


@pytest.mark.parametrize("reason", ["is_busy", "has_outcomes", "is_usage_outdated"])
def test_a_loop_stops_when_nothing_runs_and_everything_is_written(reason: str) -> None:
    assert work(is_stopping=True) is LoopState.STOPPED
    assert work(is_stopping=True, is_registered=False, timer_at=NOW) is LoopState.STOPPED
    assert work(is_stopping=True, **{reason: True}) is not LoopState.STOPPED


def test_a_stopping_worker_that_is_declared_dead_waits_for_its_new_id_before_it_writes() -> None:
    assert work(is_stopping=True, is_registered=False, has_outcomes=True) is LoopState.DISOWNED


# --- how to rest


def rest(poll_state: LoopState = LoopState.ASLEEP, **facts: bool) -> LoopState:
    usual = {
        "is_stopping": False,
        "has_room": True,
        "is_announcement_outdated": False,
        "is_due_time_known": True,
    }
    return next_rest(poll_state, **{**usual, **facts})


def test_senders_are_told_before_the_worker_rests() -> None:
    for is_stopping, has_room in product([False, True], repeat=2):
        state = rest(is_stopping=is_stopping, has_room=has_room, is_announcement_outdated=True)
        assert state is LoopState.ANNOUNCING


def test_a_worker_without_room_does_not_poll() -> None:
    assert rest(LoopState.POLLING, has_room=False, is_due_time_known=False) is LoopState.FULL
    assert rest(LoopState.POLLING, is_stopping=True) is LoopState.DRAINING


def test_the_due_time_is_read_before_the_worker_falls_asleep_and_only_then() -> None:
    assert rest(LoopState.ASLEEP, is_due_time_known=False) is LoopState.FALLING_ASLEEP
    for state in (LoopState.POLLING, LoopState.CONFIRMING_SLEEP, LoopState.WAITING_FOR_COMMITS):
        assert rest(state, is_due_time_known=False) is state
    assert rest(LoopState.ASLEEP) is LoopState.ASLEEP


def sleep(pause: float = 5.0, wake_times: tuple[float | None, ...] = (), **facts: bool) -> float:
    usual = {"is_full_and_announced": False, "has_lost_sessions": False}
    return sleep_seconds(pause, wake_times=wake_times, now=NOW, **{**usual, **facts})


def test_a_sleep_ends_at_the_first_time_that_is_known() -> None:
    assert sleep() == 5.0
    assert sleep(wake_times=(None, NOW + 2.0)) == 2.0
    assert sleep(wake_times=(NOW + 1.5, NOW + 2.0)) == 1.5
    assert sleep(wake_times=(NOW + 9.0, NOW - 3.0)) == 0.0


def test_a_sleep_is_short_while_a_lost_connection_may_claim_or_senders_notify_a_full_worker() -> None:
    assert sleep(has_lost_sessions=True) == LOST_SESSION_SECONDS
    assert sleep(0.001, has_lost_sessions=True) == 0.001
    assert sleep(is_full_and_announced=True) == FULL_SECONDS


# --- how results gather, and when the second connection helps

SHORT, LONG = TOGETHER_SECONDS / 2, TOGETHER_SECONDS * 2


@pytest.mark.parametrize(
    ("is_ahead", "load", "completed", "run_time", "gathers"),
    [
        (False, 1, 3, SHORT, True),
        (False, 0, 3, SHORT, False),
        (False, 1, 3, LONG, False),
        (True, 51, 24, LONG, True),
        (True, 50, 24, SHORT, False),
        (True, 51, 25, SHORT, False),
    ],
)
def test_results_gather_while_the_children_have_enough_to_do(
    is_ahead: bool, load: int, completed: int, run_time: float, gathers: bool
) -> None:
    found = should_gather(is_ahead=is_ahead, load=load, capacity=100, completed=completed, run_time=run_time)

    assert found is gathers


def test_results_of_tasks_claimed_ahead_gather_for_as_long_as_a_round_trip_takes_within_bounds() -> None:
    assert gather_seconds(True, 0.02) == 0.02
    assert gather_seconds(True, 0.0) == GATHER_MIN_SECONDS
    assert gather_seconds(True, 3.0) == GATHER_MAX_SECONDS
    assert gather_seconds(False, 3.0) == TOGETHER_SECONDS


@pytest.mark.parametrize(
    ("is_ahead", "completed", "gathers", "run_time", "can_claim", "helps"),
    [
        (False, 1, False, LONG, False, True),
        (False, 0, False, LONG, True, True),
        (False, 0, False, LONG, False, False),
        (False, 1, False, SHORT, True, False),
        (True, HELP_BATCH, False, SHORT, False, True),
        (True, HELP_BATCH, True, SHORT, True, False),
        (True, HELP_BATCH - 1, False, LONG, True, False),
    ],
)
def test_the_second_connection_helps_when_a_child_or_a_batch_waits(
    is_ahead: bool, completed: int, gathers: bool, run_time: float, can_claim: bool, helps: bool
) -> None:
    found = needs_help(
        is_ahead=is_ahead, completed=completed, gathers=gathers, run_time=run_time, can_claim=can_claim
    )

    assert found is helps


# --- when to poll


def confirming() -> PollPolicy:
    poll_policy = PollPolicy()
    for _ in POLL_PAUSES:
        poll_policy.claimed(0, now=0.0)
    assert poll_policy.state is LoopState.CONFIRMING_SLEEP
    return poll_policy


def asleep() -> PollPolicy:
    poll_policy = confirming()
    for _ in CONFIRM_PAUSES:
        poll_policy.claimed(0, now=0.0)
    assert poll_policy.state is LoopState.ASLEEP
    assert poll_policy.pause() is None
    return poll_policy


def test_several_claims_in_vain_make_it_wait_and_a_find_among_them_does_not() -> None:
    poll_policy = PollPolicy()
    for _ in range(5):
        for _ in POLL_PAUSES[1:]:
            poll_policy.claimed(0, now=0.0)
        poll_policy.claimed(1, now=0.0)
        assert not poll_policy.waits

    assert confirming().waits
    assert confirming().pause() == CONFIRM_PAUSES[0]


def test_polls_that_find_nothing_follow_each_other_after_growing_pauses() -> None:
    poll_policy = PollPolicy()
    pauses: list[float | None] = []
    for _ in POLL_PAUSES:
        pauses.append(poll_policy.pause())
        poll_policy.claimed(0, now=0.0)

    assert pauses == [*POLL_PAUSES]


def test_it_claims_a_few_times_more_and_then_sleeps_until_it_is_notified() -> None:
    poll_policy = confirming()
    pauses: list[float | None] = []
    for _ in range(len(CONFIRM_PAUSES) + 1):
        pauses.append(poll_policy.pause())
        poll_policy.claimed(0, now=0.0)

    assert pauses == [*CONFIRM_PAUSES, None]


def test_a_worker_that_was_notified_and_found_nothing_claims_a_few_times_more() -> None:
    waiting_for_commits = asleep()
    waiting_for_commits.checked_commits(["3/700"])
    for poll_policy in (asleep(), waiting_for_commits):
        poll_policy.notified()
        poll_policy.claimed(0, now=0.0)

        assert poll_policy.state is LoopState.CONFIRMING_SLEEP
        assert poll_policy.pause() == CONFIRM_PAUSES[0]


def test_a_task_now_and_then_leaves_it_asleep() -> None:
    poll_policy = asleep()
    for n in range(10 * BUSY_FINDS):
        poll_policy.claimed(1, now=1.01 * n * BUSY_SECONDS / (BUSY_FINDS - 1))

    assert poll_policy.state is LoopState.ASLEEP


def test_many_tasks_in_a_short_time_make_it_poll_however_many_claims_find_them() -> None:
    for found in (1, 3, BUSY_FINDS, 1_000):
        poll_policy = confirming()
        claims = -(-BUSY_FINDS // found)
        for n in range(claims):
            assert poll_policy.waits
            poll_policy.claimed(found, now=n * BUSY_SECONDS / (claims + 1))

        assert poll_policy.state is LoopState.POLLING


def test_senders_are_told_when_it_has_polled_for_some_time() -> None:
    poll_policy = confirming()
    assert not poll_policy.is_notified_in_vain(is_announced=True, now=5.0)

    poll_policy.poll()

    assert not poll_policy.is_notified_in_vain(is_announced=True, now=5.0 + AWAKE_SECONDS / 2)
    assert poll_policy.is_notified_in_vain(is_announced=True, now=5.0 + AWAKE_SECONDS * 2)
    assert not poll_policy.is_notified_in_vain(is_announced=False, now=5.0 + AWAKE_SECONDS * 3)
    assert not poll_policy.is_notified_in_vain(is_announced=True, now=5.0 + AWAKE_SECONDS * 3.5)


def test_a_task_that_a_poll_finds_should_have_been_notified() -> None:
    poll_policy = asleep()

    poll_policy.found()
    assert poll_policy.missed_notifications == 1

    poll_policy.notified()
    poll_policy.found()
    assert poll_policy.missed_notifications == 1


def test_a_task_that_was_due_or_is_found_while_polling_needs_no_notification() -> None:
    poll_policy = asleep()
    poll_policy.became_due()
    poll_policy.found()
    poll_policy.poll()
    poll_policy.found()
    assert poll_policy.missed_notifications == 0

    poll_policy = asleep()
    poll_policy.became_due()
    poll_policy.claimed(0, 0.0)
    poll_policy.found()
    assert poll_policy.missed_notifications == 1


def test_a_waiting_worker_keeps_claiming_while_transactions_from_before_are_open() -> None:
    poll_policy = asleep()
    pauses: list[float | None] = []
    for _ in range(len(COMMIT_PAUSES) + 2):
        poll_policy.checked_commits(["3/700"])
        assert poll_policy.state is LoopState.WAITING_FOR_COMMITS
        pauses.append(poll_policy.pause())
        poll_policy.claimed(0, now=0.0)
        poll_policy.paused()
        assert poll_policy.pause() is None  # time to ask for open transactions again

    assert pauses == [*COMMIT_PAUSES, COMMIT_PAUSES[-1], COMMIT_PAUSES[-1]]
    assert list(COMMIT_PAUSES) == sorted(COMMIT_PAUSES)


def test_a_waiting_worker_sleeps_when_all_transactions_from_before_have_ended() -> None:
    poll_policy = asleep()
    poll_policy.checked_commits(["3/700"])
    poll_policy.paused()
    poll_policy.checked_commits([])

    assert poll_policy.pause() is None
    assert poll_policy.open_transactions == []


def test_work_that_comes_meanwhile_does_not_make_it_forget_the_open_transactions() -> None:
    poll_policy = asleep()
    poll_policy.checked_commits(["3/700"])

    poll_policy.poll()

    assert poll_policy.open_transactions == ["3/700"]


def test_an_answer_about_open_transactions_that_comes_too_late_does_not_stop_it_from_polling() -> None:
    poll_policy = asleep()
    poll_policy.poll()

    poll_policy.checked_commits(["3/700"])

    assert poll_policy.state is LoopState.POLLING


def test_a_new_announcement_asks_for_the_transactions_that_are_open_then() -> None:
    poll_policy = asleep()
    poll_policy.checked_commits(["3/700"])

    poll_policy.announced()

    assert poll_policy.open_transactions is None
    assert poll_policy.state is LoopState.ASLEEP
    poll_policy.checked_commits(["3/900"])
    assert poll_policy.pause() == COMMIT_PAUSES[0]
