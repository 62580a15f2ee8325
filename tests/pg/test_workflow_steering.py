"""What is done to a workflow from outside reaches all its parts, and what was done can be taken up again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psycopg
import pytest

from horsies import (
    Horsies,
    OnError,
    OutcomeCode,
    PostgresConfig,
    RetentionConfig,
    SubWorkflowNode,
    TaskError,
    TaskNode,
    TaskResult,
    WorkflowDefinition,
    WorkflowHandle,
    WorkflowSpec,
    WorkflowStatus,
    map_node,
    signal_node,
)
from horsies.db.connection import connect
from horsies.worker.retention import sweep
from horsies.workflow.definition import DEFINITIONS
from tests.pg.players import Player, play
from tests.pg.test_notifying import heard, listen

Db = psycopg.Connection[dict[str, Any]]


@pytest.fixture(autouse=True)
def _forget_definitions() -> Iterator[None]:
    known = dict(DEFINITIONS)
    yield
    DEFINITIONS.clear()
    DEFINITIONS.update(known)


@pytest.fixture
def task(app: Horsies) -> Any:
    @app.task("task")
    def task(n: int = 0) -> TaskResult[list[int], TaskError]:
        return TaskResult(ok=[n])

    return task


def part_of(task: Any, **meta: Any) -> type[WorkflowDefinition[Any]]:
    """A workflow of two steps, to be a part of another."""

    class Part(WorkflowDefinition[Any]):
        name = "part"
        definition_key = "steering.part"
        first = task.node()(n=1)
        second = task.node(waits_for=[first])(n=2)
        Meta = type("Meta", (), {"output": "second", **meta})

    return Part


def states(handle: WorkflowHandle[Any]) -> dict[str, str]:
    return {each.node_id: str(each.status) for each in handle.tasks().unwrap()}


def below(app: Horsies, handle: WorkflowHandle[Any], node_id: str = "part") -> WorkflowHandle[Any]:
    node = next(each for each in handle.tasks().unwrap() if each.node_id == node_id)
    assert node.sub_workflow_id is not None
    return app.workflow_handle(node.sub_workflow_id)


def with_part(app: Horsies, task: Any, **meta: Any) -> WorkflowSpec[Any]:
    part = SubWorkflowNode(part_of(task, **meta), node_id="part")
    after = task.node(node_id="after", waits_for=[part])(n=3)
    return app.workflow("whole", [part, after], output=after, definition_key="whole")


def test_a_pause_reaches_the_parts_and_so_does_what_comes_after(
    app: Horsies,
    task: Any,
    player: Player,
) -> None:
    handle = with_part(app, task).start().unwrap()
    running = player.claim()
    handle.pause().unwrap()

    waiting = player.complete(running)
    paused = (handle.status().unwrap(), below(app, handle).status().unwrap(), states(below(app, handle)))
    handle.resume().unwrap()

    assert waiting == []
    assert paused == (
        WorkflowStatus.PAUSED, WorkflowStatus.PAUSED, {"first": "COMPLETED", "second": "READY"},
    )  # fmt: skip
    play(player, handle)
    assert below(app, handle).status().unwrap() is WorkflowStatus.COMPLETED


def test_a_part_that_pauses_itself_holds_up_only_what_needs_it(
    app: Horsies,
    task: Any,
    player: Player,
) -> None:
    handle = with_part(app, task, on_error=OnError.PAUSE).start().unwrap()

    player.fail(player.claim())

    assert handle.status().unwrap() is WorkflowStatus.RUNNING
    assert below(app, handle).status().unwrap() is WorkflowStatus.PAUSED
    below(app, handle).resume().unwrap()
    assert handle.status().unwrap() is WorkflowStatus.FAILED
    assert handle.get(timeout_ms=0).err_value.error_code is OutcomeCode.SUBWORKFLOW_FAILED


def test_what_failed_in_a_part_is_run_again_with_the_whole(
    app: Horsies,
    task: Any,
    player: Player,
    db: Db,
) -> None:
    handle = with_part(app, task).start().unwrap()
    second = player.complete(player.claim())
    player.fail(second)
    failed = (handle.status().unwrap(), states(below(app, handle)))

    retried = handle.retry_failed().unwrap()
    again = player.claim()

    assert failed == (WorkflowStatus.FAILED, {"first": "COMPLETED", "second": "FAILED"})
    assert retried
    assert [each.kwargs for each in again] == ['{"n":2}']
    play(player, handle, again)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_part_of_a_skipped_node_is_over_too_and_begins_when_that_is_run_again(
    app: Horsies, task: Any, player: Player, db: Db, depth: int
) -> None:
    first = task.node(node_id="first")(n=1)
    links = [task.node(node_id=f"link{n}", waits_for=[first])(n=n) for n in range(1, depth)]
    part = SubWorkflowNode(part_of(task), node_id="part", waits_for=links or [first])
    handle = app.workflow("whole", [first, *links, part], definition_key="steering.whole").start().unwrap()

    player.fail(player.claim())

    flows = "SELECT status, completed_at IS NOT NULL AS over FROM horsies_workflows WHERE name = 'part'"
    assert db.execute(flows).fetchall() == [{"status": "CANCELLED", "over": True}]
    assert states(handle)["part"] == "SKIPPED"
    assert handle.result_for(part).unwrap_err().error_code == OutcomeCode.UPSTREAM_SKIPPED

    handle.retry_failed().unwrap()
    play(player, handle)

    assert db.execute(flows).fetchall() == [{"status": "COMPLETED", "over": True}]


def test_a_map_that_failed_takes_its_items_anew(app: Horsies, task: Any, player: Player) -> None:
    many = task.node(node_id="many")(n=1)
    mapped = map_node(task, over=many, node_id="mapped")
    handle = app.workflow("map", [many, mapped], definition_key="map").start().unwrap()
    items = player.complete(player.claim())
    player.fail(items[:1])
    player.complete(items[1:])
    failed = handle.status().unwrap()

    handle.retry_failed().unwrap()
    again = player.claim()

    assert failed is WorkflowStatus.FAILED
    assert [each.kwargs for each in again] == ['{"n":1}', '{"n":2}', '{"n":3}']
    play(player, handle, again)


def test_a_retry_counts_anew_what_a_running_node_waits_for(
    app: Horsies,
    task: Any,
    player: Player,
) -> None:
    good, bad = task.node(node_id="good")(n=1), task.node(node_id="bad")(n=2)
    either = TaskNode(fn=task, waits_for=[good, bad], join="any", node_id="either")
    needs = task.node(node_id="needs", waits_for=[bad])(n=3)
    handle = (
        app.workflow("any", [good, bad, either, needs], on_error=OnError.PAUSE, definition_key="any")
        .start()
        .unwrap()
    )
    first, second = player.claim()
    running = player.complete([first])
    player.fail([second])

    handle.retry_failed().unwrap()
    again = player.claim()

    assert len(running) == len(again) == 1
    play(player, handle, [*running, *again])


def test_cancelling_a_part_fails_its_node(app: Horsies, task: Any, player: Player) -> None:
    handle = with_part(app, task).start().unwrap()

    below(app, handle).cancel().unwrap()

    assert player.claim() == []
    assert states(handle) == {"part": "FAILED", "after": "SKIPPED"}
    assert handle.get(timeout_ms=0).err_value.error_code is OutcomeCode.SUBWORKFLOW_FAILED


def test_the_deadline_of_a_part_counts_from_its_beginning(
    app: Horsies,
    task: Any,
    player: Player,
    db: Db,
) -> None:
    first = task.node(node_id="first")(n=1)
    part = SubWorkflowNode(part_of(task, deadline_seconds=60), waits_for=[first], node_id="part")
    handle = app.workflow("late", [first, part], definition_key="late").start().unwrap()
    set_before = db.execute("SELECT count(deadline_at) AS n FROM horsies_workflows").fetchone()

    player.complete(player.claim())
    set_after = db.execute("SELECT count(deadline_at) AS n FROM horsies_workflows").fetchone()
    db.execute("UPDATE horsies_workflows SET deadline_at = now() WHERE deadline_at IS NOT NULL")
    player.fire()

    assert (set_before, set_after) == ({"n": 0}, {"n": 1})
    assert below(app, handle).status().unwrap() is WorkflowStatus.EXPIRED
    assert states(handle)["part"] == "FAILED"


def test_a_signal_reaches_a_paused_workflow_and_takes_effect_when_it_goes_on(
    app: Horsies,
    task: Any,
    player: Player,
) -> None:
    word = signal_node("word", node_id="word")
    handle = (
        app.workflow("said", [word, task.node(waits_for=[word], node_id="after")(n=1)], definition_key="said")
        .start()
        .unwrap()
    )
    handle.pause().unwrap()

    taken = handle.signal("word", 1).unwrap()
    while_paused = (states(handle), player.claim())
    handle.resume().unwrap()

    assert taken
    assert while_paused == ({"word": "COMPLETED", "after": "READY"}, [])
    play(player, handle)


@pytest.mark.parametrize("act", ["resume", "signal", "retry"])
def test_an_operator_wakes_workers_that_are_not_seen_to_sleep(
    app: Horsies, task: Any, player: Player, db: Db, act: str
) -> None:
    """A worker may be about to sleep when the statement looks; a lost wake-up would cost it a poll."""
    word = signal_node("word", node_id="word")
    nodes = [word, task.node(waits_for=[word], node_id="after")(n=1), task.node(node_id="first")(n=2)]
    handle = app.workflow("said", nodes, definition_key="said").start().unwrap()
    steer: Callable[[], Any] = handle.resume
    if act == "resume":
        handle.pause().unwrap()
    elif act == "signal":
        player.complete(player.claim())
        steer = partial(handle.signal, "word", 1)
    elif act == "retry":
        player.fail(player.claim())
        handle.signal("word", 1).unwrap()
        player.complete(player.claim())
        steer = handle.retry_failed
    listen(db, "task_queue_default")

    steer().unwrap()

    assert ("task_queue_default", "") in heard(db)


def test_what_is_asked_of_no_workflow_is_told_so(app: Horsies) -> None:
    for handle in (app.workflow_handle("0198f0c2-0000-7000-8000-000000000000"), app.workflow_handle("seven")):
        answers: list[Callable[[], Any]] = [
            handle.status, handle.tasks, handle.results, handle.pause, handle.resume, handle.cancel,
            handle.retry_failed, lambda handle=handle: handle.signal("word"),
        ]  # fmt: skip
        assert {answer().unwrap_err().code for answer in answers} == {"WORKFLOW_NOT_FOUND"}
        assert handle.get(timeout_ms=0).err_value.error_code == "WORKFLOW_NOT_FOUND"


def test_a_value_that_cannot_be_sent_is_refused(app: Horsies) -> None:
    error = app.workflow_handle("0198f0c2-0000-7000-8000-000000000000").signal("word", object()).unwrap_err()

    assert error.code == "INTERNAL_FAILED"
    assert "word" in error.message


def test_a_workflow_is_deleted_with_its_parts_after_its_time(
    app: Horsies, task: Any, player: Player, db: Db, database_url: str
) -> None:
    handle = with_part(app, task).start().unwrap()
    running = with_part(app, task).start().unwrap()
    held = player.claim()
    play(player, handle, [each for each in held if each.workflow_id == below(app, handle).workflow_id])
    db.execute(
        "UPDATE horsies_workflows SET completed_at = now() - interval '1 year' WHERE completed_at IS NOT NULL"
    )

    async def sweep_once() -> None:
        async with await connect(PostgresConfig(database_url=database_url)) as connection:
            await sweep(connection, RetentionConfig())

    asyncio.run(sweep_once())

    assert handle.status().is_err()
    assert running.status().unwrap() is WorkflowStatus.RUNNING
    left = db.execute("SELECT count(*) AS n FROM horsies_workflow_tasks").fetchone()
    assert left == {"n": 4}


def test_a_part_that_was_built_by_another_version_fails_its_node_alone(
    app: Horsies, task: Any, player: Player
) -> None:
    class Sized(WorkflowDefinition[Any]):
        name = "sized"
        definition_key = "steering.sized"

        @classmethod
        def build_with(cls, app: Any, *, size: TaskResult[list[int], TaskError]) -> WorkflowSpec[Any]:
            raise NotImplementedError

    first = task.node(node_id="first")(n=1)
    part = SubWorkflowNode(Sized, waits_for=[first], args_from={"size": first}, node_id="part")
    free = task.node(node_id="free", waits_for=[first])(n=2)
    handle = app.workflow("built", [first, part, free], definition_key="built").start().unwrap()

    player.complete(player.complete(player.claim()))

    assert states(handle) == {"first": "COMPLETED", "part": "FAILED", "free": "COMPLETED"}
    assert handle.get(timeout_ms=0).err_value.error_code == "SUBWORKFLOW_LOAD_FAILED"
