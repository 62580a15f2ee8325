"""When a worker looks for work by itself, and when it sleeps until it is told."""

from __future__ import annotations

from horsies.worker.attention import (
    AWAKE_SECONDS,
    BUSY_FINDS,
    BUSY_SECONDS,
    CONFIRM_PAUSES,
    SEARCH_PAUSES,
    Attention,
)


def asleep() -> Attention:
    attention = Attention()
    for _ in SEARCH_PAUSES:
        attention.looked(0, now=0.0)
    assert attention.waiting
    return attention


def at_rest() -> Attention:
    attention = asleep()
    for _ in CONFIRM_PAUSES:
        attention.looked(0, now=0.0)
    assert attention.pause() is None
    return attention


def test_several_looks_in_vain_make_it_wait_and_a_find_among_them_does_not() -> None:
    attention = Attention()
    for _ in range(5):
        for _ in SEARCH_PAUSES[1:]:
            attention.looked(0, now=0.0)
        attention.looked(1, now=0.0)
        assert not attention.waiting

    assert asleep().pause() == CONFIRM_PAUSES[0]


def test_it_looks_a_few_times_more_and_then_sleeps_until_it_is_told() -> None:
    attention = asleep()
    pauses: list[float | None] = []
    for _ in range(len(CONFIRM_PAUSES) + 1):
        pauses.append(attention.pause())
        attention.looked(0, now=0.0)

    assert pauses == [*CONFIRM_PAUSES, None]


def test_who_was_woken_and_found_nothing_looks_a_few_times_more() -> None:
    attention = at_rest()

    attention.notified()
    attention.looked(0, now=0.0)

    assert attention.pause() == CONFIRM_PAUSES[0]


def test_a_task_now_and_then_leaves_it_asleep() -> None:
    attention = asleep()
    for n in range(10 * BUSY_FINDS):
        attention.looked(1, now=1.01 * n * BUSY_SECONDS / (BUSY_FINDS - 1))

    assert attention.waiting


def test_many_tasks_in_a_short_time_make_it_look_by_itself_however_many_looks_find_them() -> None:
    for found in (1, 3, BUSY_FINDS, 1_000):
        attention = asleep()
        looks = -(-BUSY_FINDS // found)
        for n in range(looks):
            assert attention.waiting
            attention.looked(found, now=n * BUSY_SECONDS / (looks + 1))

        assert not attention.waiting


def test_others_are_told_when_it_has_looked_by_itself_for_some_time() -> None:
    attention = asleep()
    assert not attention.is_woken_in_vain(said_waiting=True, now=5.0)

    attention.search()

    assert not attention.is_woken_in_vain(said_waiting=True, now=5.0 + AWAKE_SECONDS / 2)
    assert attention.is_woken_in_vain(said_waiting=True, now=5.0 + AWAKE_SECONDS * 2)
    assert not attention.is_woken_in_vain(said_waiting=False, now=5.0 + AWAKE_SECONDS * 3)
    assert not attention.is_woken_in_vain(said_waiting=True, now=5.0 + AWAKE_SECONDS * 3.5)


def test_what_a_poll_finds_should_have_been_told() -> None:
    attention = at_rest()

    attention.found()
    assert attention.untold == 1

    attention.notified()
    attention.found()
    assert attention.untold == 1


def test_what_was_due_or_is_found_while_looking_about_need_not_be_told() -> None:
    attention = at_rest()
    attention.was_due()
    attention.found()
    attention.search()
    attention.found()
    assert attention.untold == 0

    attention = at_rest()
    attention.was_due()
    attention.looked(0, 0.0)
    attention.found()
    assert attention.untold == 1
