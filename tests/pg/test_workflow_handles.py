"""What a handle and the rows say of a workflow: its value or why there is none, and when its nodes ran."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from horsies import (
    Horsies,
    OnError,
    TaskCancelled,
    TaskError,
    TaskFailed,
    TaskNotFound,
    TaskResult,
    TaskTimeout,
    WorkflowHandle,
    WorkflowStatus,
    signal_node,
    sleep_node,
)
from horsies.core.errors import ConfigurationError
from horsies.status import ContractCode, OutcomeCode
from horsies.testing import drain

Db = psycopg.Connection[dict[str, Any]]


@pytest.fixture
def number(app: Horsies) -> Any:
    @app.task("number")
    def number(n: int = 1) -> TaskResult[int, TaskError]:
        return TaskResult(ok=n)

    return number


@pytest.fixture
def fails(app: Horsies) -> Any:
    @app.task("fails")
    def fails() -> TaskResult[int, TaskError]:
        return TaskResult(err=TaskError(error_code="NO_STOCK", message="sold out"))

    return fails


def start(app: Horsies, *nodes: Any, **options: Any) -> WorkflowHandle[Any]:
    spec: Any = app.workflow("w", nodes, output=nodes[-1], definition_key="w", **options)
    return spec.start().unwrap()


def workflow_row(db: Db, handle: WorkflowHandle[Any]) -> dict[str, Any]:
    row = db.execute("SELECT * FROM horsies_workflows WHERE id = %s", (handle.workflow_id,)).fetchone()
    assert row is not None
    return row


def node_row(db: Db, handle: WorkflowHandle[Any], node_id: str) -> dict[str, Any]:
    row = db.execute(
        "SELECT * FROM horsies_workflow_tasks WHERE workflow_id = %s AND node_id = %s",
        (handle.workflow_id, node_id),
    ).fetchone()
    assert row is not None
    return row


def test_the_value_is_returned_and_a_wait_that_is_over_loses_nothing(app: Horsies, number: Any) -> None:
    handle = start(app, number.node(node_id="one")(n=7))

    for timeout in (0, 0.001, timedelta(milliseconds=1)):
        with pytest.raises(TaskTimeout, match=r"has not ended|is RUNNING"):
            handle.result(timeout=timeout)
    drain(app)

    assert handle.result(timeout=timedelta(seconds=5)) == handle.result() == 7
    assert asyncio.run(handle.result_async(timeout=5)) == 7
    assert handle.get(timedelta(seconds=5)).unwrap() == 7


def test_a_workflow_without_a_value_raises_the_reason(app: Horsies, number: Any, fails: Any) -> None:
    failed = start(app, fails.node(node_id="bad")())
    paused = start(app, fails.node(node_id="bad")(), on_error=OnError.PAUSE)
    cancelled = start(app, signal_node("never", node_id="never"))
    cancelled.cancel().unwrap()
    drain(app)

    with pytest.raises(TaskFailed, match="NO_STOCK: sold out") as caught:
        failed.result(timeout=1)
    assert caught.value.error.error_code == "NO_STOCK"
    with pytest.raises(TaskFailed, match="WORKFLOW_PAUSED"):
        paused.result(timeout=1)
    with pytest.raises(TaskCancelled):
        cancelled.result(timeout=1)
    with pytest.raises(TaskCancelled):
        asyncio.run(cancelled.result_async(timeout=1))
    for unknown in (str(uuid4()), "no id"):
        with pytest.raises(TaskNotFound):
            app.workflow_handle(unknown).result(timeout=1)


@pytest.mark.parametrize("timeout", [-1, "10", True, timedelta(seconds=-1), float("nan")])
def test_a_timeout_that_is_no_time_is_refused_with_its_value(app: Horsies, timeout: Any) -> None:
    with pytest.raises(ConfigurationError, match="timeout is") as caught:
        app.workflow_handle(str(uuid4())).result(timeout=timeout)
    assert "seconds" in str(caught.value)


def test_a_node_of_another_workflow_is_refused(app: Horsies, number: Any) -> None:
    handle = start(app, number.node(node_id="one")(n=7))
    drain(app)

    for foreign in (
        number.node()(n=7),
        number.node(node_id="two")(n=7),
        number.node(node_id="three")(n=7).key(),
    ):
        error = handle.result_for(foreign).unwrap_err()
        assert error.error_code is ContractCode.WORKFLOW_CTX_MISSING_ID
        assert error.message is not None


def test_a_node_has_started_when_its_task_runs_and_not_when_it_was_sent(
    app: Horsies, number: Any, db: Db
) -> None:
    handle = start(app, number.node(node_id="one")(n=7))

    (waiting,) = handle.tasks().unwrap()
    assert waiting.started_at is None
    assert node_row(db, handle, "one")["started_at"] is not None
    drain(app)

    (ended,) = handle.tasks().unwrap()
    task = db.execute("SELECT * FROM horsies_tasks WHERE id = %s", (ended.task_id,)).fetchone()
    assert task is not None
    assert ended.started_at == task["started_at"]
    assert ended.completed_at == task["completed_at"]
    assert ended.started_at > node_row(db, handle, "one")["started_at"]


def test_a_sleep_has_started_when_it_began(app: Horsies, db: Db) -> None:
    handle = start(app, sleep_node(60, node_id="pause"))

    (node,) = handle.tasks().unwrap()

    assert node.started_at == node_row(db, handle, "pause")["started_at"] is not None


def test_a_paused_workflow_says_why_until_it_goes_on(app: Horsies, number: Any, fails: Any, db: Db) -> None:
    bad, last = fails.node(node_id="bad")(), number.node(node_id="last")()
    handle = start(app, bad, last, on_error=OnError.PAUSE)
    by_hand = start(app, signal_node("never", node_id="never"))
    by_hand.pause().unwrap()
    drain(app)

    assert handle.status().unwrap() is WorkflowStatus.PAUSED
    assert '"NO_STOCK"' in workflow_row(db, handle)["error"]
    assert workflow_row(db, by_hand)["error"] is None
    assert handle.get(0).unwrap_err().error_code is OutcomeCode.WORKFLOW_PAUSED

    signal = signal_node("go", node_id="go")
    waiting = start(app, fails.node(node_id="bad")(), signal, on_error=OnError.PAUSE)
    drain(app)
    assert '"NO_STOCK"' in workflow_row(db, waiting)["error"]
    assert waiting.resume().unwrap()
    assert workflow_row(db, waiting)["error"] is None
    waiting.signal("go").unwrap()
    assert waiting.get(0).unwrap_err().error_code == "NO_STOCK"

    assert handle.cancel().is_ok()
    assert handle.get(0).unwrap_err().error_code is OutcomeCode.WORKFLOW_CANCELLED


def test_a_skipped_node_has_no_end(app: Horsies, number: Any, fails: Any, db: Db) -> None:
    bad = fails.node(node_id="bad")()
    handle = start(app, bad, number.node(node_id="after", waits_for=[bad])())
    drain(app)
    cancelled = start(app, number.node(node_id="sent")(), sleep_node(60, node_id="sleeps"))
    cancelled.cancel().unwrap()

    assert node_row(db, handle, "bad")["completed_at"] is not None
    for flow, node_id in ((handle, "after"), (cancelled, "sent"), (cancelled, "sleeps")):
        row = node_row(db, flow, node_id)
        assert (row["status"], row["completed_at"]) == ("SKIPPED", None)
    assert [node.completed_at for node in cancelled.tasks().unwrap()] == [None, None]
