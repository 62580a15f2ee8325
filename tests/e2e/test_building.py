"""The task that builds a part of a workflow takes what the builder takes, whoever has written its row."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.observing import Db
from tests.e2e.office import Office, staffed
from tests.support.waiting import eventually
from tests.support.workers import Workplace

APP = """
app = Horsies(AppConfig.for_database_url(URL))

@app.task("one")
def one() -> TaskResult[int, TaskError]:
    return TaskResult(ok=1)

@app.task("day_of")
def day_of(day: str) -> TaskResult[str, TaskError]:
    return TaskResult(ok=day)

class Sized(WorkflowDefinition[str]):
    name = "sized"
    definition_key = "building.sized"
    @classmethod
    def build_with(cls, app, *, size: TaskResult[int, TaskError], start: int, day: datetime | None = None):
        Path("called").touch()
        assert isinstance(start, int)
        node = day_of.node(node_id="day")(day=repr(day))
        return app.workflow("sized", [node], output=node, definition_key="building.sized")

class Open(WorkflowDefinition[int]):
    name = "open"
    definition_key = "building.open"
    @classmethod
    def build_with(cls, app, **params: int):
        Path("called").touch()
        assert all(isinstance(each, int) for each in params.values())
        node = one.node(node_id="one")()
        return app.workflow("open", [node], output=node, definition_key="building.open")

class Closed(WorkflowDefinition[int]):
    name = "closed"
    definition_key = "building.closed"
    only = one.node()()
    class Meta:
        output = "only"
"""


@pytest.fixture(scope="module")
def office(shared_workplace: Workplace) -> Office:
    return staffed(shared_workplace, APP, "--processes=1")


@pytest.fixture
def flow(office: Office) -> Any:
    """A workflow that waits, whose node the rows of the tests claim to be."""
    tasks = office.tasks
    signal = tasks.signal_node("go", node_id="go")
    handle = tasks.app.workflow("waits", [signal], definition_key="building.waits").start().unwrap()
    yield handle
    handle.cancel().unwrap()


FED = json.dumps({"has_inputs": True})
OWN = {"definition_key": "building.sized", "kwargs": {"start": 1}}


@pytest.mark.parametrize(
    "kwargs",
    [
        OWN,  # `size` is missing: it is the result of another node
        {"definition_key": "building.sized", "kwargs": {"start": 1, "size": 3}},
        {"definition_key": "building.sized", "kwargs": {"start": "one"}},
        {"definition_key": "building.sized", "kwargs": {"start": 1, "other": 2}},
        {"definition_key": "building.sized", "kwargs": {"start": 1, "app": 2}},
        {"definition_key": "building.sized", "kwargs": {"start": 1, "cls": 2}},
        {"definition_key": "building.sized", "kwargs": [1]},
        {"definition_key": "building.sized", "kwargs": None},
        {"definition_key": "building.open", "kwargs": {"n": "one"}},
        {"definition_key": "building.open", "kwargs": {"not a name": 1}},
        {"definition_key": "building.open", "kwargs": {"class": 1}},
        {"definition_key": "building.closed", "kwargs": {"n": 1}},
        {"definition_key": 7, "kwargs": {}},
        {"definition_key": "building.open", "kwargs": {}, "more": 1},
        {"kwargs": {}},
        [],
    ],
    ids=str,
)
def test_arguments_that_the_builder_does_not_take_are_refused_before_it_is_called(
    office: Office, shared_db: Db, flow: Any, kwargs: Any
) -> None:
    row = _stored(shared_db, json.dumps(kwargs), None, flow.workflow_id)

    assert (row["status"], row["error_code"]) == ("FAILED", "WORKER_SERIALIZATION_ERROR")
    assert not (office.place.folder / "called").exists()


def test_a_row_that_belongs_to_no_workflow_or_has_positional_arguments_is_refused(
    office: Office, shared_db: Db, flow: Any
) -> None:
    good = json.dumps({"definition_key": "building.open", "kwargs": {"n": 1}})
    alone = _stored(shared_db, good, None, None)
    positional = _stored(shared_db, good, "[1]", flow.workflow_id)

    assert {alone["error_code"], positional["error_code"]} == {"WORKER_SERIALIZATION_ERROR"}
    assert not (office.place.folder / "called").exists()


def test_arguments_that_fit_come_as_the_builder_has_annotated_them(office: Office) -> None:
    tasks = office.tasks
    first = tasks.one.node(node_id="first")()
    part = tasks.SubWorkflowNode(
        tasks.Sized,
        waits_for=[first],
        args_from={"size": first},
        kwargs={"start": 1, "day": tasks.datetime(2026, 1, 2, tzinfo=tasks.UTC)},
        node_id="part",
    )
    handle = (
        tasks.app.workflow("built", [first, part], output=part, definition_key="building.built")
        .start()
        .unwrap()
    )
    try:
        assert handle.get(20_000).ok_value.startswith("datetime.datetime(2026, 1, 2, 0, 0")
    finally:
        (office.place.folder / "called").unlink(missing_ok=True)


def test_a_gathering_row_that_is_no_node_of_a_workflow_is_refused(
    office: Office, shared_db: Db, flow: Any
) -> None:
    alone = _stored(shared_db, "{}", None, None, task_name="horsies:gather")
    foreign = _stored(shared_db, "{}", None, flow.workflow_id, task_name="horsies:gather")

    assert (alone["status"], alone["error_code"]) == ("FAILED", "WORKER_SERIALIZATION_ERROR")
    assert (foreign["status"], foreign["error_code"]) == ("FAILED", "WORKER_SERIALIZATION_ERROR")
    assert flow.status().unwrap() == "RUNNING"


def _stored(
    db: Db, kwargs: str, args: str | None, workflow_id: str | None, task_name: str = "horsies:build_workflow"
) -> dict[str, Any]:
    """Store a row by plain SQL, and return it once it has ended."""
    sent = db.execute(
        "INSERT INTO horsies_tasks (task_name, args, kwargs, task_options, workflow_id, workflow_index)"
        " VALUES (%s, %s, %s, %s, %s, %s) RETURNING id",
        (task_name, args, kwargs, FED if workflow_id else None, workflow_id, 0 if workflow_id else None),
    ).fetchone()
    assert sent is not None

    def ended() -> dict[str, Any] | None:
        found = db.execute("SELECT * FROM horsies_tasks WHERE id = %s AND NOT live", (sent["id"],))
        return found.fetchone()

    eventually(ended, 20, "the row having ended")
    row = ended()
    assert row is not None
    return row
