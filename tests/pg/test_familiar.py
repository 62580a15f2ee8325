"""What people rely on who come from a queue with ten retries, two minutes apart, and results that go away."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from horsies import Horsies, RetrievalCode, RetryPolicy
from horsies.db.queries.tasks import Claimed
from horsies.executor.protocol import Call
from horsies.executor.runner import Run, raised
from horsies.worker.settle import Settler
from tests.pg.conftest import Add, define_add
from tests.pg.hands import Hands

Db = psycopg.Connection[dict[str, Any]]


class ClientError(Exception): ...


class ConnectTimeout(Exception): ...


class ReadTimeout(Exception): ...


UNREACHABLE = dict.fromkeys((ClientError, ConnectTimeout, ConnectionError, ReadTimeout), "UNREACHABLE")
POLICY = RetryPolicy.fixed([120] * 10, auto_retry_for=["UNREACHABLE"], jitter=False)


@pytest.fixture
def call_out(make_app: Callable[..., Horsies]) -> tuple[Horsies, Add]:
    app = make_app()
    return app, define_add(app, retry_policy=POLICY, exception_mapper=UNREACHABLE)


def after(app: Horsies, add: Add, claimed: Claimed, error: Exception) -> float | None:
    """In how many seconds it is tried again when this was raised; None when it is not."""
    call = Call(1, claimed.id, "add", None, "{}", "default", 1, 10, None, 0.0, 1, claimed.task_options)
    settler = Settler(app)
    settler.ended(claimed, raised(app, Run(call, lambda _: True, ()), add, error))
    return settler.failed[0].delay_seconds


def test_what_the_network_does_is_tried_again_and_what_we_did_wrong_is_not(
    call_out: tuple[Horsies, Add], hands: Hands
) -> None:
    app, add = call_out
    add.send(1).unwrap()
    (claimed,) = hands.run_next()

    assert [after(app, add, claimed, kind("gone")) for kind in UNREACHABLE] == [120.0] * 4
    assert after(app, add, claimed, ValueError("ours")) is None


def test_ten_retries_are_eleven_attempts_two_minutes_apart(
    call_out: tuple[Horsies, Add], hands: Hands, db: Db
) -> None:
    app, add = call_out
    handle = add.send(1).unwrap()
    pauses: list[timedelta] = []
    for _ in range(11):
        (claimed,) = hands.run_next()
        hands.fail([claimed], delay_seconds=after(app, add, claimed, ConnectionError("gone")))
        due = db.execute(
            "SELECT next_retry_at - (SELECT max(finished_at) FROM horsies_attempts) AS pause FROM horsies_tasks_live"
        ).fetchall()
        pauses += [found["pause"] for found in due]
        db.execute("UPDATE horsies_tasks_live SET enqueued_at = now()")

    assert pauses == [timedelta(seconds=120)] * 10
    info = handle.info(include_attempts=True).unwrap()
    assert info is not None
    assert (info.status, [attempt.attempt for attempt in info.attempts or ()]) == (
        "FAILED",
        [*range(11, 0, -1)],
    )


def test_a_result_whose_time_is_over_is_not_found(add: Add, hands: Hands, db: Db) -> None:
    handle = add.send(1).unwrap()
    hands.complete(hands.run_next())
    db.execute("DELETE FROM horsies_tasks_history")

    assert handle.get(timeout_ms=0).err_value.error_code is RetrievalCode.TASK_NOT_FOUND
