"""Ids sort by the time of sending, and tell no lie about when a task can have ended."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from uuid import UUID

from hypothesis import example, given, settings
from hypothesis import strategies as st

from horsies.db.ids import LONG_AGO, new_ids, not_before


def timestamp_of(task_id: UUID) -> float:
    return (task_id.int >> 80) / 1000


def made_at(milliseconds: int) -> UUID:
    return UUID(int=milliseconds << 80 | 0x7 << 76 | 0b10 << 62)


def test_ids_are_version_7_of_the_present_moment() -> None:
    before = time.time()
    task_id = new_ids(1)[0]

    assert (task_id.version, task_id.variant) == (7, "specified in RFC 4122")
    assert before - 0.001 <= timestamp_of(task_id) <= time.time() + 0.01


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 10_000))
def test_ids_of_one_process_sort_as_they_were_made(how_many: int) -> None:
    ids = make_ids(how_many)

    assert ids == sorted(ids)
    assert [str(task_id) for task_id in ids] == sorted(str(task_id) for task_id in ids)
    assert len(set(ids)) == how_many


def make_ids(how_many: int) -> list[UUID]:
    ids = new_ids(how_many // 2)
    return ids + [new_ids(1)[0] for _ in range(how_many - len(ids))]


def test_threads_never_make_the_same_id() -> None:
    with ThreadPoolExecutor(8) as threads:
        batches = list(threads.map(make_ids, [5_000] * 8))

    assert len({task_id for batch in batches for task_id in batch}) == 40_000
    assert all(batch == sorted(batch) for batch in batches)


@given(st.lists(st.integers(946_684_800_000 + 1, 4_102_444_800_000), min_size=1))
def test_a_task_cannot_have_ended_before_its_id_was_made(milliseconds: list[int]) -> None:
    bound = not_before(made_at(moment) for moment in milliseconds)

    assert all(bound < datetime.fromtimestamp(moment / 1000, UTC) for moment in milliseconds)


@given(st.lists(st.uuids(), min_size=1))
def test_ids_made_elsewhere_tell_nothing(ids: list[UUID]) -> None:
    assert (
        not_before([new_ids(1)[0], *(task_id for task_id in ids if task_id.version != 7), UUID(int=0)])
        == LONG_AGO
    )


@given(st.lists(st.integers(0, 2**48 - 1)))
@example([2**48 - 1])
def test_no_id_whatever_is_too_much(milliseconds: list[int]) -> None:
    assert not_before(made_at(moment) for moment in milliseconds) >= LONG_AGO


def test_a_fork_in_the_middle_of_making_an_id_leaves_the_child_able_to_make_one() -> None:
    stop = threading.Event()

    def keep_making() -> None:
        while not stop.is_set():
            new_ids(1)[0]

    threads = [threading.Thread(target=keep_making) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        codes = [_fork_and_make() for _ in range(50)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()

    assert codes == [0] * 50


def _fork_and_make() -> int:
    """The exit code of a child that makes an id; a child that hangs is ended by its alarm."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads is what is tested
        pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(2)
        try:
            new_ids(1)[0]
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
