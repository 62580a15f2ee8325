"""A task that is cancelled does not begin; one that runs has been cancelled however it ends."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from horsies import BrokerErrorCode, Horsies, OutcomeCode, cancellation
from horsies.cancellation import Cancellation
from horsies.db.queries.operations import Selection
from horsies.db.queries.tasks import Completed, stopped
from horsies.db.queries.workers import Rules
from horsies.worker.settle import Settler
from tests.pg.conftest import Add, define_add
from tests.pg.hands import OK, Hands
from tests.pg.players import Player

Db = psycopg.Connection[dict[str, Any]]


def _row(db: Db) -> dict[str, Any]:
    row = db.execute("SELECT * FROM horsies_tasks").fetchone()
    assert row is not None
    return row


def test_a_task_that_waits_is_over_at_once_and_whoever_awaits_it_is_told(
    add: Add, hands: Hands, db: Db
) -> None:
    handle = add.send(1).unwrap()

    assert handle.cancel().unwrap() is True

    assert handle.get(5_000).err_value.error_code is OutcomeCode.TASK_CANCELLED
    row = _row(db)
    assert (row["status"], row["live"], row["error_code"]) == ("CANCELLED", False, "TASK_CANCELLED")
    assert hands.run_next() == []
    assert handle.cancel().unwrap() is False


def test_a_task_that_was_claimed_ahead_cannot_be_started_any_more(add: Add, hands: Hands, db: Db) -> None:
    handle = add.send(1).unwrap()
    claimed = hands.claim()

    assert hands.cancel(handle.task_id) == [Cancellation(handle.task_id, "CANCELLED", True)]

    assert hands.start(claimed) == set()
    assert _row(db)["claim_seq"] > claimed[0].claim_seq


def _return(hands: Hands, claimed: list[Any], _add: Add) -> None:
    assert hands.complete(claimed) == 0
    assert hands.settle(claimed) == set()


def _return_within_limits(hands: Hands, claimed: list[Any], _add: Add) -> None:
    done = [Completed(task.id, task.claim_seq, OK) for task in claimed]
    assert hands.settle_and_claim(done, rates=["add"])[0] == 0
    hands.store([stopped(task) for task in claimed])


def _be_given_back(hands: Hands, claimed: list[Any], _add: Add) -> None:
    assert hands.give_back(claimed) == 0
    hands.store([stopped(task) for task in claimed])


def _break(hands: Hands, claimed: list[Any], _add: Add) -> None:
    assert hands.fail(claimed, delay_seconds=0) == {claimed[0].id: False}


def _lose_the_worker(hands: Hands, claimed: list[Any], add: Add) -> None:
    app = Horsies()
    define_add(app, idempotent=True)
    assert hands.reap(Rules(quarantine_seconds=0), Settler(app)) == 1


def _lose_the_reply(hands: Hands, _claimed: list[Any], _add: Add) -> None:
    assert hands.release() == 0
    hands.end_unheld()


@pytest.mark.parametrize(
    "end", [_return, _return_within_limits, _be_given_back, _break, _lose_the_worker, _lose_the_reply]
)
def test_a_task_that_was_asked_to_stop_has_been_cancelled_however_it_ends(
    make_app: Callable[..., Horsies], hands: Hands, db: Db, end: Callable[..., None]
) -> None:
    add = define_add(make_app(), idempotent=True)
    handle = add.send(1).unwrap()
    claimed = hands.run_next()

    assert (handle.cancel().unwrap(), handle.cancel().unwrap()) == (True, True)
    assert _row(db)["status"] == "RUNNING"
    end(hands, claimed, add)

    row = _row(db)
    assert (row["status"], row["error_code"], row["live"], row["failed_at"]) == (
        "CANCELLED",
        "TASK_CANCELLED",
        False,
        None,
    )
    assert handle.get(0).err_value.error_code is OutcomeCode.TASK_CANCELLED
    assert db.execute("SELECT FROM horsies_attempts").fetchall() == []


def test_a_worker_is_told_what_of_its_tasks_is_to_stop(add: Add, hands: Hands) -> None:
    hands.register(waiting=False)
    first, second = add.send(1).unwrap(), add.send(2).unwrap()
    claimed = hands.run_next()

    first.cancel().unwrap()

    assert list(hands.beat(claimed).cancelled) == [first.task_id]
    assert list(hands.beat(claimed[1:]).cancelled) == []
    assert second.info().unwrap() is not None


def test_what_is_cancelled_is_on_record_and_what_has_ended_or_is_unknown_is_told(
    add: Add, hands: Hands, db: Db
) -> None:
    done, waiting = add.send(1).unwrap(), add.send(2).unwrap()
    hands.complete(hands.run_next(limit=1))

    told = hands.cancel(done.task_id, waiting.task_id, str(uuid4()))

    assert sorted(told, key=lambda each: each.cancelled) == [
        Cancellation(done.task_id, "COMPLETED", False),
        Cancellation(waiting.task_id, "CANCELLED", True),
    ]
    query = "SELECT actor, action, tasks FROM horsies_actions"
    assert db.execute(query).fetchall() == [{"actor": "ann", "action": "cancel", "tasks": 1}]


def test_everything_that_fits_can_be_cancelled_at_once(
    app: Horsies, hands: Hands, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancellation, "BATCH", 2)
    define_add(app).send_many([(number,) for number in range(5)]).unwrap()
    hands.complete(hands.run_next(limit=1))
    hands.run_next(limit=1)

    assert hands.cancel_all(Selection(name="other")) == 0
    assert hands.cancel_all(Selection(name="add")) == 4

    states = db.execute("SELECT status, count(*) AS n FROM horsies_tasks GROUP BY 1 ORDER BY 1").fetchall()
    assert [(row["status"], row["n"]) for row in states] == [
        ("CANCELLED", 3),
        ("COMPLETED", 1),
        ("RUNNING", 1),
    ]
    (action,) = db.execute("SELECT subject, tasks FROM horsies_actions").fetchall()
    assert action == {"subject": "name 'add'", "tasks": 4}


def test_a_task_that_ends_while_it_is_being_cancelled_has_ended(add: Add, hands: Hands, db: Db) -> None:
    handle = add.send(1).unwrap()
    (claimed,) = hands.run_next()

    with ThreadPoolExecutor(1) as thread:
        with db.transaction():
            db.execute("SELECT FROM horsies_tasks_live FOR UPDATE")
            asked = thread.submit(handle.cancel)
            end = "UPDATE horsies_tasks SET live = false, status = 'COMPLETED', terminal_at = now() WHERE live AND id = %s"
            db.execute(end, (claimed.id,))
        assert asked.result().unwrap() is False


def test_an_unknown_task_cannot_be_cancelled(app: Horsies) -> None:
    for unknown in (str(uuid4()), "no id"):
        error = app.handle(unknown).cancel().err_value
        assert (error.code, error.retryable) == (BrokerErrorCode.TASK_CANCEL_FAILED, False)


def test_the_node_of_a_cancelled_task_has_failed_and_its_workflow_goes_on(
    app: Horsies, add: Add, player: Player, hands: Hands
) -> None:
    waits, runs = add.node(node_id="waits")(x=1), add.node(node_id="runs")(x=2)
    after = add.node(node_id="after", waits_for=[waits, runs], allow_failed_deps=True)(x=3)
    flow = app.workflow("flow", [waits, runs, after], definition_key="k").start().unwrap()
    nodes = {node.node_id: node for node in flow.tasks().unwrap()}
    claimed = player.claim(limit=1)

    cancelled = hands.cancel(*(str(nodes[name].task_id) for name in ("waits", "runs")))
    assert sorted(each.status for each in cancelled) == ["CANCELLED", "RUNNING"]
    player.complete(claimed, limit=0)
    player.stop(claimed)

    states = {node.node_id: node.status for node in flow.tasks().unwrap()}
    assert states == {"waits": "FAILED", "runs": "FAILED", "after": "ENQUEUED"}
    error = flow.result_for(waits).err_value
    assert error.error_code is OutcomeCode.TASK_CANCELLED
