"""What a producer may store as a workflow: a whole and sound one of its own, which touches no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import msgspec
import psycopg
import pytest
from psycopg import errors

from horsies import (
    Horsies,
    SubWorkflowNode,
    SuccessCase,
    SuccessPolicy,
    TaskError,
    TaskResult,
    WorkflowDefinition,
    WorkflowSpec,
    WorkflowStatus,
    from_node,
    map_node,
    signal_node,
    sleep_node,
)
from horsies.task import Task
from horsies.workflow.spec import workflow_rows
from tests.pg.players import Player, play

Db = psycopg.Connection[dict[str, Any]]
Rows = dict[str, Any]
Change = Callable[[list[Rows], list[Rows]], None]
NAN = "NaN"

# The nodes of `sound`, by index; the sub-workflow's only node comes last.
FIRST, SECOND, MAPPED, SLEPT, ASKED, QUORUM, BELOW, PART = range(8)


@pytest.fixture
def listed(app: Horsies) -> Task[..., list[int]]:
    @app.task("listed")
    def listed(x: TaskResult[list[int], TaskError] | None = None) -> TaskResult[list[int], TaskError]:
        return TaskResult(ok=[1])

    return listed


@pytest.fixture
def sound(app: Horsies, listed: Task[..., list[int]]) -> tuple[list[Rows], list[Rows]]:
    """The rows of a workflow with a node of each kind, as a producer would send them."""

    @app.task("item")
    def item(n: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=n)

    class Part(WorkflowDefinition[Any]):
        name = "part"
        definition_key = "part"
        only = listed.node(node_id="only")()

    first = listed.node(node_id="first")()
    second = listed.node(node_id="second")(x=from_node(first))
    mapped = map_node(item, over=first, node_id="mapped")
    slept = sleep_node(60, node_id="slept")
    asked = signal_node("yes", timeout_seconds=60, waits_for=[first, slept], node_id="asked")
    quorum = listed.node(node_id="quorum", waits_for=[second, mapped, asked], join="quorum", min_success=2)()
    below: Any = SubWorkflowNode(Part, node_id="below")
    policy = SuccessPolicy(cases=[SuccessCase(required=[first, quorum])])
    spec: WorkflowSpec[Any] = app.workflow(
        "sound",
        [first, second, mapped, slept, asked, quorum, below],
        definition_key="sound",
        success_policy=policy,
        deadline_seconds=60,
        output=first,
    )
    rows = workflow_rows(spec, uuid4(), None)
    return _plain(rows.flows), _plain(rows.nodes)


def _plain(rows: Any) -> list[Rows]:
    return msgspec.json.decode(msgspec.json.encode(rows))


def store(db: Db, flows: list[Rows], nodes: list[Rows]) -> bool:
    row = db.execute(
        "SELECT horsies_start_workflow(%s, %s, %s) AS stored",
        (flows[0]["id"], msgspec.json.encode(flows).decode(), msgspec.json.encode(nodes).decode()),
    ).fetchone()
    assert row is not None
    return row["stored"]


def stored(db: Db) -> list[int]:
    tables = ("horsies_workflows", "horsies_workflow_tasks", "horsies_tasks")
    return [len(db.execute(f"SELECT FROM {table}".encode()).fetchall()) for table in tables]


def test_a_sound_workflow_is_stored_once(db: Db, sound: tuple[list[Rows], list[Rows]]) -> None:
    assert store(db, *sound)
    assert not store(db, *sound)

    assert stored(db) == [2, 8, 2]


def flow(number: int = 0, **values: Any) -> Change:
    return lambda flows, nodes: flows[number].update(values)


def node(index: int, **values: Any) -> Change:
    return lambda flows, nodes: nodes[index].update(values)


def all_of(*changes: Change) -> Change:
    def change(flows: list[Rows], nodes: list[Rows]) -> None:
        for each in changes:
            each(flows, nodes)

    return change


ELSEWHERE = "00000000-0000-0000-0000-000000000001"

FAULTS: dict[str, Change] = {
    # What would touch another workflow.
    "a parent": flow(parent_workflow_id=ELSEWHERE, parent_task_index=0),
    "another root": flow(root_workflow_id=ELSEWHERE),
    "a depth": flow(depth=1),
    "a part of another workflow": flow(1, parent_workflow_id=ELSEWHERE),
    "a part of another root": flow(1, root_workflow_id=ELSEWHERE),
    "a part of another node": flow(1, parent_task_index=FIRST),
    "a part that is deeper": flow(1, depth=2),
    "a part that waits in vain": flow(1, status="PENDING"),
    "a node of another workflow": node(PART, workflow_id=ELSEWHERE),
    "a workflow of others as a node": node(BELOW, sub_workflow_id=ELSEWHERE),
    "a workflow of others behind a task": node(SECOND, sub_workflow_id=ELSEWHERE),
    # What only a worker may write.
    "over": flow(status="COMPLETED"),
    "paused": flow(status="PAUSED"),
    "pending": flow(status="PENDING"),
    "a completed node": node(FIRST, status="COMPLETED"),
    "a skipped node": node(ASKED, status="SKIPPED"),
    "a node that is ahead": node(QUORUM, status="ENQUEUED"),
    "a signal with a task": all_of(
        node(ASKED, task_id=ELSEWHERE, queue_name="default", priority=1),
    ),
    "a map with a task": node(MAPPED, task_id=ELSEWHERE),
    "a task without an id": node(SECOND, task_id=None),
    "an enqueued task without an id": node(FIRST, task_id=None),
    "a builder of its own": all_of(
        node(SECOND, kind="workflow", sub_workflow_id=None),
    ),
    # What no worker could carry out.
    "an unknown status": node(FIRST, status="DONE"),
    "an unknown kind": node(FIRST, kind="lambda"),
    "an unknown join": node(QUORUM, join_type="most"),
    "an unknown on_error": flow(on_error="IGNORE"),
    "an endless deadline": flow(deadline_seconds=NAN),
    "a deadline in a million years": flow(deadline_seconds=1e14),
    "a negative deadline": flow(1, deadline_seconds=-1),
    "a sleep of NaN": node(SLEPT, seconds=NAN),
    "a sleep without a time": node(SLEPT, seconds=None),
    "an endless sleep": node(ASKED, seconds="Infinity"),
    "a negative sleep": node(ASKED, seconds=-1),
    "a task with a timer": node(SECOND, seconds=1),
    "priority 0": node(SECOND, priority=0),
    "priority 101": node(FIRST, priority=101),
    "a map without a priority": node(MAPPED, priority=None),
    "no queue": node(SECOND, queue_name=None),
    "an empty queue": node(SECOND, queue_name=""),
    "a long queue": node(MAPPED, queue_name="q" * 101),
    "a long name": node(SECOND, task_name="n" * 256),
    "no name": node(SECOND, task_name=""),
    "a negative index": node(QUORUM, task_index=-1),
    "a gap": node(BELOW, task_index=17),
    "negative retries": node(SECOND, max_retries=-1),
    "a negative timeout": node(SECOND, timeout_ms=-1),
    "a dependent elsewhere": node(FIRST, dependents=[SECOND, MAPPED, ASKED, 99]),
    "a dependency elsewhere": node(SECOND, dependencies=[99], args_from=None),
    "a negative dependent": node(QUORUM, dependents=[-1]),
    "a dependent that is NULL": node(QUORUM, dependents=[None]),
    "a table of dependents": node(FIRST, dependents=[[SECOND, MAPPED, ASKED]]),
    "a dependency that is NULL": node(SECOND, dependencies=[None], args_from=None),
    "a part without an id beside a worse one": all_of(
        flow(1, parent_workflow_id=ELSEWHERE), lambda flows, nodes: flows.insert(1, flows[1] | {"id": None})
    ),
    "no join": node(QUORUM, join_type=None),
    "any without a number": node(QUORUM, join_type="any", min_success=None),
    "a dependent left out": node(FIRST, dependents=[SECOND]),
    "a dependent too many": node(SLEPT, dependents=[ASKED, QUORUM]),
    "miscounted dependencies": node(SECOND, open_deps=2, status="PENDING"),
    "miscounted sources": node(QUORUM, open_sources=1),
    "miscounted nodes": flow(open_tasks=6),
    "nothing to do": all_of(flow(1, open_tasks=0), lambda flows, nodes: nodes.pop(PART) and None),
    "an output elsewhere": flow(output_task_index=7),
    "a negative output": flow(output_task_index=-1),
    "a quorum too high": node(QUORUM, min_success=4),
    "no quorum": node(QUORUM, min_success=None),
    "a quorum of all": node(SECOND, min_success=1),
    "context from elsewhere": node(SECOND, workflow_ctx_from=[ASKED]),
    "arguments from elsewhere": node(SECOND, args_from={"x": ASKED}),
    "arguments from a name": node(SECOND, args_from={"x": "first"}),
    "arguments from a fraction": node(SECOND, args_from={"x": 0.5}),
    "arguments from a list": node(SECOND, args_from=[0]),
    "a map over nothing": node(MAPPED, args_from=None),
    "a map over two": node(MAPPED, args_from={"n": FIRST, "m": FIRST}),
    "a map with other arguments": node(MAPPED, task_kwargs="[]"),
    "options that are no object": node(SECOND, task_options="[]"),
    "options that are no JSON": node(SECOND, task_options="{"),
    "options of another type": node(SECOND, task_options='{"has_inputs": "yes"}'),
    "a policy without cases": flow(success_policy="{}"),
    "a policy that is no JSON": flow(success_policy="{"),
    "a policy with names": flow(success_policy='{"cases": [{"required_indices": ["first"]}]}'),
    "a policy with nodes elsewhere": flow(success_policy='{"cases": [{"required_indices": [7]}]}'),
    "a policy with an empty case": flow(success_policy='{"cases": [{}]}'),
    "a policy that is a list": flow(success_policy="[]"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_workflow_that_is_not_sound_is_refused_as_a_whole(
    db: Db, sound: tuple[list[Rows], list[Rows]], fault: str
) -> None:
    flows, nodes = sound
    FAULTS[fault](flows, nodes)

    with pytest.raises((errors.IntegrityError, errors.DataError)):
        store(db, flows, nodes)

    assert stored(db) == [0, 0, 0]


def test_a_node_that_is_alone_has_no_dependents(db: Db, app: Horsies, listed: Task[..., list[int]]) -> None:
    rows = workflow_rows(app.workflow("one", [listed.node()()], definition_key="one"), uuid4(), None)
    flows, nodes = _plain(rows.flows), _plain(rows.nodes)

    for dependents in ([None], [0], [[0]], [1]):
        with pytest.raises(errors.CheckViolation):
            store(db, flows, [nodes[0] | {"dependents": dependents}])


def test_two_nodes_cannot_have_one_task(db: Db, sound: tuple[list[Rows], list[Rows]]) -> None:
    flows, nodes = sound
    nodes[SECOND]["task_id"] = nodes[QUORUM]["task_id"]

    with pytest.raises(errors.CheckViolation, match="same task"):
        store(db, flows, nodes)


def test_a_node_cannot_be_added_to_a_workflow_that_runs(
    db: Db, app: Horsies, listed: Task[..., list[int]], sound: tuple[list[Rows], list[Rows]]
) -> None:
    running = app.workflow("mine", [listed.node()()], definition_key="mine").start().unwrap()
    flows, nodes = sound
    nodes.append(nodes[PART] | {"workflow_id": running.workflow_id, "task_index": 1})

    with pytest.raises(errors.CheckViolation, match="belongs to another workflow"):
        store(db, flows, nodes)


# A workflow that a task has built for a node


@pytest.fixture
def building(app: Horsies, listed: Task[..., list[int]]) -> WorkflowSpec[Any]:
    """A workflow whose second node is a workflow that is built when the first has ended."""

    class Sized(WorkflowDefinition[Any]):
        name = "sized"
        definition_key = "sized"

        @classmethod
        def build_with(cls, app: Horsies, size: TaskResult[list[int], TaskError]) -> WorkflowSpec[Any]:
            return app.workflow("sized", [listed.node(node_id="part")()], definition_key="sized")

    first = listed.node(node_id="first")()
    built: Any = SubWorkflowNode(Sized, node_id="built", waits_for=[first], args_from={"size": first})
    return app.workflow("building", [first, built], definition_key="building")


def part_of(flow_id: str, **changes: Any) -> str:
    """What a build gives: the rows of a workflow that is a part of another."""
    child = str(uuid4())
    flows = {
        "id": child,
        "root_workflow_id": flow_id,
        "parent_workflow_id": flow_id,
        "parent_task_index": 1,
        "depth": 1,
        "name": "sized",
        "status": "PENDING",
        "on_error": "FAIL",
        "definition_key": "sized",
        "output_task_index": None,
        "success_policy": None,
        "deadline_seconds": None,
        "open_tasks": 1,
    } | changes
    node = {
        "workflow_id": flows["id"],
        "task_index": 0,
        "node_id": "part",
        "task_name": "listed",
        "kind": "task",
        "status": "READY",
        "join_type": "all",
        "task_id": str(uuid4()),
        "queue_name": "default",
        "priority": 100,
    }
    return msgspec.json.encode({"ok": {"flows": [flows], "nodes": [node]}}).decode()


def test_a_workflow_that_was_built_becomes_a_part(
    building: WorkflowSpec[Any], hire_player: Callable[..., Player]
) -> None:
    handle, player = building.start().unwrap(), hire_player()
    build = player.complete(player.claim())

    play(player, handle, player.complete(build, result=part_of(handle.workflow_id)))


@pytest.mark.parametrize(
    "changes",
    [
        {"parent_workflow_id": ELSEWHERE},
        {"parent_task_index": 0},
        {"root_workflow_id": ELSEWHERE},
        {"depth": 0},
        {"status": "RUNNING"},
        {"status": "nonsense"},
        {"deadline_seconds": -1},
        {"open_tasks": 2},
    ],
    ids=str,
)
def test_a_build_that_would_touch_others_fails_its_node(
    building: WorkflowSpec[Any], hire_player: Callable[..., Player], db: Db, changes: dict[str, Any]
) -> None:
    handle, player = building.start().unwrap(), hire_player()
    build = player.complete(player.claim())

    assert player.complete(build, result=part_of(handle.workflow_id, **changes)) == []

    assert handle.status().unwrap() is WorkflowStatus.FAILED
    assert stored(db) == [1, 2, 2]


def test_a_build_cannot_adopt_a_workflow_that_is_there(
    app: Horsies,
    building: WorkflowSpec[Any],
    listed: Task[..., list[int]],
    hire_player: Callable[..., Player],
) -> None:
    approval = signal_node("approved")
    theirs = app.workflow(
        "theirs", [approval, listed.node(waits_for=[approval])()], definition_key="theirs"
    ).start()
    handle, player = building.start().unwrap(), hire_player()
    build = player.complete(player.claim())

    player.complete(build, result=part_of(handle.workflow_id, id=theirs.unwrap().workflow_id))

    assert handle.status().unwrap() is WorkflowStatus.FAILED
    assert theirs.unwrap().status().unwrap() is WorkflowStatus.RUNNING
