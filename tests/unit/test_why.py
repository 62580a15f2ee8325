"""Why a task is not running, in the order in which it matters."""

from __future__ import annotations

from typing import Any

import pytest

from horsies.db.queries.why import MOST_AHEAD, WaitingFacts, reasons_of
from horsies.durations import seconds_of

READY = WaitingFacts(
    id="1",
    task_name="add",
    status="PENDING",
    queue_name="mail",
    is_async=False,
    priority=100,
    due_in=-1.0,
    expires_in=None,
    was_tried=False,
    error_code=None,
    worker_hostname=None,
    worker_pid=None,
    since=None,
    all_suspended=False,
    queue_suspended=False,
    workers=1,
    serving=1,
    is_known=True,
    knowing=1,
    queue_limit=None,
    queue_in_flight=0,
    cluster_limit=None,
    cluster_in_flight=0,
    rate_allows_in=None,
    ahead=0,
    slots=2,
    running=0,
)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, "any moment"),
        ({"due_in": 90.0}, "due in 1 min"),
        ({"due_in": 90.0, "was_tried": True}, "retried in 1 min"),
        ({"expires_in": -1.0}, "EXPIRED"),
        ({"due_in": 1e12, "paused_workflow": "7"}, "`horsies workflows resume 7`"),
        ({"due_in": 12.0, "unknown_for": 90.0}, "does not know a task"),
        ({"all_suspended": True}, "`horsies resume`"),
        ({"queue_suspended": True}, "`horsies resume --queue mail`"),
        ({"workers": 0, "serving": 0}, "`horsies worker`"),
        ({"workers": 3, "serving": 0}, "None of the 3 workers serves queue mail"),
        ({"workers": 1, "serving": 0}, "The only worker does not serve queue mail"),
        ({"is_known": False, "knowing": 0}, "ever known a task add"),
        ({"knowing": 0}, "No live worker of queue mail knows a task add"),
        ({"serving": 2}, "Of the 2 workers that serve its queue, 1 knows a task add"),
        ({"unknown_for": 9.0, "fails_in": 51.0}, "fails with WORKER_RESOLUTION_ERROR in 51 s"),
        ({"queue_limit": 0}, "max_concurrency=0"),
        ({"queue_limit": 2, "queue_in_flight": 2}, "as many tasks as it may (2)"),
        ({"cluster_limit": 5, "cluster_in_flight": 5}, "cluster_wide_cap"),
        ({"rate_allows_in": 30.0}, "allowed in 30 s"),
        ({"ahead": 7}, "behind 7 tasks of"),
        ({"ahead": 1}, "behind 1 task of"),
        ({"ahead": 7, "due_in": 90.0}, "due in 1 min"),
        ({"ahead": MOST_AHEAD}, "behind more than 10,000 tasks"),
        ({"running": 2}, "All 2 processes"),
        ({"running": 1, "slots": 1}, "The only process of the worker that serves its queue is busy"),
        ({"status": "RUNNING", "worker_hostname": "h", "worker_pid": 7, "since": 5.0}, "running on h in process 7"),
        ({"status": "RUNNING", "asked_to_stop": 3.0}, "was asked to stop 3 s ago"),
        ({"status": "CLAIMED", "worker_hostname": "h", "since": 5.0}, "claimed it"),
        ({"status": "FAILED", "error_code": "BROKEN", "since": 5.0}, "`horsies retry 1`"),
        ({"status": "COMPLETED", "since": 5.0}, "COMPLETED"),
    ],
)  # fmt: skip
def test_each_reason_is_one_sentence(facts: dict[str, Any], words: str) -> None:
    (sentence,) = reasons_of(READY._replace(**facts))

    assert words in sentence
    assert sentence.endswith(".")


@pytest.mark.parametrize(
    "facts",
    [
        {"queue_limit": 2, "queue_in_flight": 1},
        {"cluster_limit": 5, "cluster_in_flight": 4},
        {"rate_allows_in": -1.0},
        {"is_async": True, "running": 2},
    ],
)
def test_what_does_not_hold_it_up_is_not_named(facts: dict[str, Any]) -> None:
    assert reasons_of(READY._replace(**facts)) == reasons_of(READY)


def test_the_reason_that_matters_most_comes_first() -> None:
    sentences = reasons_of(READY._replace(all_suspended=True, workers=0, serving=0, ahead=3))

    assert [sentence.split()[0] for sentence in sentences] == ["All", "No", "It"]


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("15m", 900), ("12h", 43_200), ("7d", 604_800), ("0s", 0)]
)
def test_durations_are_written_with_a_unit(text: str, seconds: int) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "7", "d", "7 d", "-7d", "7w", "1.5h", "7d "])
def test_anything_else_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="30s, 15m, 12h or 7d"):
        seconds_of(text)


@pytest.mark.parametrize(
    ("in_batch", "beside"),
    [(1, "waits to run"), (2, "waits with 1 other to"), (38, "waits with 37 others to")],
)
def test_a_task_of_a_batch_says_how_many_wait_with_it(in_batch: int, beside: str) -> None:
    (reason,) = reasons_of(READY._replace(in_batch=in_batch, ahead=in_batch - 1))

    assert beside in reason
    assert "linger" in reason
