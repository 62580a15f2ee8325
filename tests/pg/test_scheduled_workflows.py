"""Workflows are scheduled as tasks are: built with the arguments of the schedule, started once for each slot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from horsies import (
    Err,
    Horsies,
    IntervalSchedule,
    OnError,
    TaskSchedule,
    WorkflowDefinition,
    WorkflowHandle,
    WorkflowSpec,
)
from horsies.schedule.scheduler import Starters
from horsies.workflow.definition import DEFINITIONS
from tests.pg.conftest import define_add
from tests.pg.stepped_scheduler import SteppedScheduler

Db = psycopg.Connection[dict[str, Any]]
KEY = "tests.report"


@pytest.fixture
def report(app: Horsies) -> Iterator[None]:
    """A definition with a parameter, known for as long as the test lasts."""
    add = define_add(app)

    class Report(WorkflowDefinition[int]):
        name = "report"
        definition_key = KEY

        @classmethod
        def build_with(cls, app: Any, **params: Any) -> WorkflowSpec[int]:
            if params["x"] < 0:
                raise ValueError("x is below zero")
            node = add.node(node_id="only")(x=params["x"])
            return app.workflow("report", [node], OnError.FAIL, node, definition_key=KEY)

    yield
    del DEFINITIONS[KEY]


def _schedule(name: str = "hourly", **settings: Any) -> TaskSchedule:
    given: dict[str, Any] = {
        "definition_key": KEY,
        "kwargs": {"x": 5},
        "pattern": IntervalSchedule(minutes=1),
        **settings,
    }
    return TaskSchedule(name=name, **given)


def _make_due(db: Db) -> None:
    db.execute("UPDATE horsies_schedule_state SET next_run_at = now() - interval '1 second'")


def _flows(db: Db) -> list[dict[str, Any]]:
    return db.execute("SELECT * FROM horsies_workflows ORDER BY sent_at").fetchall()


@pytest.mark.usefixtures("report")
def test_a_slot_starts_a_workflow_with_the_arguments_of_its_schedule(
    app: Horsies, new_scheduler: Callable[..., SteppedScheduler], db: Db
) -> None:
    scheduler = new_scheduler(app)
    scheduler.sync(_schedule())
    _make_due(db)

    assert scheduler.run_batch() == 1

    (flow,) = _flows(db)
    assert (flow["name"], flow["definition_key"], flow["status"]) == ("report", KEY, "RUNNING")
    (task,) = db.execute("SELECT kwargs FROM horsies_tasks").fetchall()
    assert task["kwargs"] == '{"x":5}'
    (state,) = db.execute("SELECT last_task_id, run_count FROM horsies_schedule_state").fetchall()
    assert state == {"last_task_id": flow["id"], "run_count": 1}


@pytest.mark.usefixtures("report")
def test_a_slot_that_is_set_back_starts_no_second_workflow(
    app: Horsies, new_scheduler: Callable[..., SteppedScheduler], db: Db
) -> None:
    scheduler = new_scheduler(app)
    scheduler.sync(_schedule())
    _make_due(db)
    (slot,) = db.execute("SELECT next_run_at FROM horsies_schedule_state").fetchall()
    scheduler.run_batch()
    db.execute("UPDATE horsies_schedule_state SET next_run_at = %s", (slot["next_run_at"],))

    assert scheduler.run_batch() == 1

    assert len(_flows(db)) == 1


@pytest.mark.usefixtures("report")
def test_a_slot_is_skipped_while_the_workflow_before_it_has_not_ended(
    app: Horsies, new_scheduler: Callable[..., SteppedScheduler], db: Db
) -> None:
    scheduler = new_scheduler(app)
    scheduler.sync(_schedule(overlap="skip"))
    for _ in range(2):
        _make_due(db)
        assert scheduler.run_batch() == 1

    assert len(_flows(db)) == 1
    db.execute("DELETE FROM horsies_tasks_live")
    db.execute("UPDATE horsies_workflow_tasks SET status = 'SKIPPED', completed_at = now()")
    db.execute("UPDATE horsies_workflows SET status = 'CANCELLED', completed_at = now(), open_tasks = 0")
    _make_due(db)
    assert scheduler.run_batch() == 1
    assert len(_flows(db)) == 2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"definition_key": "tests.repot"}, ["'tests.repot' is not known", "'tests.report'"]),
        ({"kwargs": {"x": -1}}, ["x is below zero"]),
        ({"kwargs": {}}, ["cannot be built", "KeyError"]),
        ({"args": (1,)}, ["args is (1,)", "use kwargs"]),
        ({"queue_name": "default"}, ["has no queue"]),
        ({"kwargs": {"x": object()}}, ["no JSON form"]),
    ],
    ids=["unknown", "refused", "missing", "positional", "queue", "not JSON"],
)
@pytest.mark.usefixtures("report")
def test_what_cannot_be_started_is_said_beforehand(
    app: Horsies, settings: dict[str, Any], words: list[str]
) -> None:
    (error,) = Starters(app).problems(_schedule(**settings))

    assert error.code == "HRS-205"
    for word in words:
        assert word in str(error)


@pytest.mark.usefixtures("report")
def test_run_now_gives_the_handle_of_a_workflow(app: Horsies, db: Db) -> None:
    app.schedules.create(_schedule("by-hand")).unwrap()

    handle = app.schedules.run_now("by-hand").unwrap()

    assert isinstance(handle, WorkflowHandle)
    assert [str(flow["id"]) for flow in _flows(db)] == [handle.workflow_id]


def test_a_workflow_that_the_app_does_not_know_cannot_be_scheduled(app: Horsies) -> None:
    answer = app.schedules.create(_schedule())

    assert isinstance(answer, Err)
    assert "not known" in answer.err_value.message
