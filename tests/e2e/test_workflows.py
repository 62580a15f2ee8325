"""Workflows run to their end with real workers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import psycopg
import pytest

from horsies import (
    NodeKey,
    OnError,
    OperationalErrorCode,
    OutcomeCode,
    SubWorkflowError,
    SubWorkflowNode,
    SuccessCase,
    SuccessPolicy,
    TaskNode,
    WorkflowHandle,
    WorkflowStatus,
    WorkflowTaskStatus,
    chain,
    from_node,
    group,
    map_node,
    signal_node,
    sleep_node,
)
from tests.e2e.office import Office, staffed
from tests.support.waiting import eventually
from tests.support.workers import Workplace

APP = """
app = Horsies(AppConfig.for_database_url(
    URL, resilience=WorkerResilienceConfig(notify_poll_interval_ms=60_000)))

@app.task("one")
def one() -> TaskResult[int, TaskError]:
    return TaskResult(ok=1)

@app.task("plus")
def plus(n: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=n + 1)

@app.task("add")
def add(a: TaskResult[int, TaskError], b: TaskResult[int, TaskError]) -> TaskResult[int, TaskError]:
    return TaskResult(ok=a.unwrap() + b.unwrap())

@app.task("plus_async")
async def plus_async(n: TaskResult[int, TaskError]) -> TaskResult[int, TaskError]:
    return TaskResult(ok=n.unwrap() + 1)

@app.task("fail")
def fail() -> TaskResult[int, TaskError]:
    return TaskResult(err=TaskError(error_code="BROKEN", message="it broke"))

@app.task("fail_until")
def fail_until(path: str) -> TaskResult[int, TaskError]:
    if not Path(path).exists():
        return TaskResult(err=TaskError(error_code="BROKEN", message="not yet"))
    return TaskResult(ok=7)

@app.task("wait")
def wait(path: str) -> TaskResult[int, TaskError]:
    deadline = time.monotonic() + 30
    while not Path(path).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return TaskResult(ok=1)

@app.task("code_of")
def code_of(n: TaskResult[int, TaskError]) -> TaskResult[str, TaskError]:
    return TaskResult(ok=str(n.err_value.error_code) if n.is_err() else "ok")

@app.task("dependency_of")
def dependency_of(n: TaskResult[int, TaskError]) -> TaskResult[Any, TaskError]:
    return TaskResult(ok=n.err_value.data)

@app.task("numbers")
def numbers(upto: int) -> TaskResult[list[int], TaskError]:
    return TaskResult(ok=list(range(upto)))

@app.task("half")
def half(n: int) -> TaskResult[float, TaskError]:
    if n == 13:
        return TaskResult(err=TaskError(error_code="UNLUCKY"))
    return TaskResult(ok=n / 2)

@app.task("total")
def total(values: TaskResult[list[float], TaskError]) -> TaskResult[float, TaskError]:
    return TaskResult(ok=sum(values.unwrap()))

@app.task("told")
def told(workflow_ctx: WorkflowContext | None = None,
         workflow_meta: WorkflowMeta | None = None) -> TaskResult[Any, TaskError]:
    seen = None if workflow_ctx is None else {
        key: str(workflow_ctx.result_for(NodeKey(key))) for key in ("a", "b", "part")
        if workflow_ctx.has_result(NodeKey(key))}
    summary = workflow_ctx and workflow_ctx.has_summary(NodeKey("part")) and workflow_ctx.summary_for(NodeKey("part"))
    return TaskResult(ok={
        "seen": seen, "index": workflow_meta.task_index if workflow_meta else None,
        "completed": summary.completed_tasks if summary else None})

class Part(WorkflowDefinition[int]):
    name = "part"
    definition_key = "test.part"
    first = one.node()()
    second = plus.node(waits_for=[first])(n=41)
    class Meta:
        output = "second"

class BrokenPart(WorkflowDefinition[int]):
    name = "broken"
    definition_key = "test.broken"
    only = fail.node()()

class Sized(WorkflowDefinition[int]):
    name = "sized"
    definition_key = "test.sized"
    @classmethod
    def build_with(cls, app, *, size: TaskResult[int, TaskError], start: int):
        if size.unwrap() > 100:
            raise ValueError("too large")
        nodes = [plus.node(node_id=f"n{n}")(n=start + n) for n in range(size.unwrap())]
        return app.workflow("sized", nodes, output=nodes[-1], definition_key="test.sized")

@app.task("anything")
def anything(values: list[Any]) -> TaskResult[Any, TaskError]:
    return TaskResult(ok=values)

@app.task("looks")
def looks(workflow_ctx: WorkflowContext | None = None) -> TaskResult[int, TaskError]:
    return workflow_ctx.result_for(unnamed)

unnamed = one.node()
looking = looks.node(waits_for=[unnamed], workflow_ctx_from=[unnamed])()
unnamed_nodes = app.workflow("unnamed", [unnamed, looking], output=looking, definition_key="test.unnamed")

class Bare(WorkflowDefinition[int]):
    name = "bare"
    definition_key = "test.bare"
    @classmethod
    def build_with(cls, app, *, n: int = 0):
        node = plus.node(n)
        return WorkflowSpec(name=cls.name, tasks=[node], output=node)

class Grand(WorkflowDefinition[int]):
    name = "grand"
    definition_key = "test.grand"
    below = SubWorkflowNode(Part)
    class Meta:
        output = "below"
"""


@pytest.fixture(scope="module")
def office(shared_workplace: Workplace) -> Office:
    return staffed(shared_workplace, "from typing import Any\n" + APP, "--processes", "2")


def start(office: Office, *nodes: Any, **options: Any) -> WorkflowHandle[Any]:
    return office.tasks.app.workflow("test", list(nodes), definition_key="test", **options).start().unwrap()


def states(handle: WorkflowHandle[Any]) -> dict[str, str]:
    return {task.node_id: str(task.status) for task in handle.tasks().unwrap()}


def until(handle: WorkflowHandle[Any], status: WorkflowStatus) -> None:
    eventually(lambda: handle.status().unwrap() is status, what=f"the workflow being {status}")


def test_a_chain_runs_to_its_end(office: Office) -> None:
    nodes: list[Any] = []
    for n in range(5):
        nodes.append(office.tasks.plus.node(waits_for=nodes[-1:])(n=n))

    handle = start(office, *nodes, output=nodes[-1])

    assert handle.get(timeout_ms=10_000).unwrap() == 5
    assert handle.status().unwrap() is WorkflowStatus.COMPLETED


def test_a_diamond_carries_results_along(office: Office) -> None:
    top = office.tasks.one.node(node_id="top")()
    left = office.tasks.plus.node(waits_for=[top], node_id="left")(n=1)
    right = office.tasks.plus_async.node(node_id="right")(n=from_node(top))
    bottom = office.tasks.add.node(node_id="bottom")(a=from_node(left), b=from_node(right))

    handle = start(office, top, left, right, bottom, output=bottom)

    assert handle.get(timeout_ms=10_000).unwrap() == 4
    assert {name: result.unwrap() for name, result in handle.results().unwrap().items()} == {
        "top": 1, "left": 2, "right": 2, "bottom": 4,
    }  # fmt: skip
    assert handle.result_for(left).unwrap() == 2


def test_without_an_output_the_last_nodes_tell(office: Office) -> None:
    top = office.tasks.one.node(node_id="top")()
    ends = [office.tasks.plus.node(waits_for=[top], node_id=f"end{n}")(n=n) for n in range(2)]

    result = start(office, top, *ends).get(timeout_ms=10_000).unwrap()

    assert {name: each.unwrap() for name, each in result.items()} == {"end0": 1, "end1": 2}


def test_a_failure_skips_what_needs_it_and_fails_the_workflow_with_its_error(office: Office) -> None:
    bad = office.tasks.fail.node(node_id="bad")()
    after = office.tasks.plus.node(waits_for=[bad], node_id="after")(n=1)
    later = office.tasks.plus.node(waits_for=[after], node_id="later")(n=1)
    free = office.tasks.one.node(node_id="free")()

    handle = start(office, free, bad, after, later)

    assert handle.get(timeout_ms=10_000).err_value.error_code == "BROKEN"
    assert states(handle) == {"free": "COMPLETED", "bad": "FAILED", "after": "SKIPPED", "later": "SKIPPED"}
    assert handle.result_for(after).err_value.error_code is OutcomeCode.UPSTREAM_SKIPPED
    assert handle.status().unwrap() is WorkflowStatus.FAILED


def test_a_node_that_allows_failures_is_told_of_them(office: Office) -> None:
    bad = office.tasks.fail.node()()
    skipped = office.tasks.plus.node(waits_for=[bad])(n=1)
    tells = office.tasks.code_of.node(allow_failed_deps=True)(n=from_node(bad))
    where = office.tasks.dependency_of.node(allow_failed_deps=True)(n=from_node(skipped))
    policy = SuccessPolicy(cases=[SuccessCase(required=[tells, where])])

    handle = start(office, bad, skipped, tells, where, output=tells, success_policy=policy)

    assert handle.get(timeout_ms=10_000).unwrap() == "BROKEN"
    assert handle.result_for(where).unwrap() == {"dependency_index": 1}


def test_a_policy_that_is_not_met_is_an_error_of_its_own(office: Office) -> None:
    bad = office.tasks.fail.node()()
    good = office.tasks.one.node()()
    skipped = office.tasks.plus.node(waits_for=[bad])(n=1)
    policy = SuccessPolicy(cases=[SuccessCase(required=[good, skipped])])

    handle = start(office, bad, good, skipped, success_policy=policy)

    error = handle.get(timeout_ms=10_000).err_value
    assert error.error_code is OutcomeCode.WORKFLOW_SUCCESS_CASE_NOT_MET


def test_a_paused_workflow_waits_and_goes_on_with_the_same_tasks(office: Office) -> None:
    gate = office.gate("pause")
    waits = office.tasks.wait.node(node_id="waits")(path=str(gate))
    after = office.tasks.plus.node(waits_for=[waits], node_id="after")(n=1)
    handle = start(office, waits, after, output=after)
    eventually(lambda: states(handle)["waits"] == "RUNNING")
    ids = [task.task_id for task in handle.tasks().unwrap()]

    paused = (handle.pause().unwrap(), handle.pause().unwrap())
    gate.touch()
    eventually(lambda: states(handle)["waits"] == "COMPLETED")
    while_paused = (states(handle)["after"], handle.get(timeout_ms=1_000).err_value.error_code)
    resumed = (handle.resume().unwrap(), handle.resume().unwrap())

    assert paused == resumed == (True, False)
    assert while_paused == ("READY", OutcomeCode.WORKFLOW_PAUSED)
    assert handle.get(timeout_ms=10_000).unwrap() == 2
    assert [task.task_id for task in handle.tasks().unwrap()] == ids


def test_on_error_pause_waits_for_a_person(office: Office) -> None:
    gate = office.gate("on-error")
    bad = office.tasks.fail_until.node(node_id="bad")(path=str(gate))
    after = office.tasks.plus.node(waits_for=[bad], node_id="after")(n=1)
    handle = start(office, bad, after, on_error=OnError.PAUSE, output=after)

    paused = handle.get(timeout_ms=10_000).err_value.error_code
    gate.touch()
    retried = handle.retry_failed().unwrap()

    assert paused is OutcomeCode.WORKFLOW_PAUSED
    assert retried
    assert handle.get(timeout_ms=10_000).unwrap() == 2


def test_resuming_after_a_failure_ends_in_failure(office: Office) -> None:
    bad = office.tasks.fail.node(node_id="bad")()
    after = office.tasks.plus.node(waits_for=[bad], node_id="after")(n=1)
    handle = start(office, bad, after, on_error=OnError.PAUSE)
    until(handle, WorkflowStatus.PAUSED)

    handle.resume().unwrap()

    assert handle.get(timeout_ms=10_000).err_value.error_code == "BROKEN"


def test_cancelling_leaves_out_what_has_not_begun_and_lets_the_rest_end(
    office: Office, shared_db: psycopg.Connection[dict[str, Any]]
) -> None:
    gate = office.gate("cancel")
    waits = [office.tasks.wait.node(node_id=f"waits{n}")(path=str(gate)) for n in range(6)]
    after = office.tasks.plus.node(waits_for=waits, node_id="after")(n=1)
    part = SubWorkflowNode(office.tasks.Part, waits_for=[after], node_id="part")
    handle = start(office, *waits, after, part)
    eventually(lambda: list(states(handle).values()).count("RUNNING") == 2)

    first, second = handle.cancel().unwrap(), handle.cancel().unwrap()
    cancelled = states(handle)
    gate.touch()

    assert (first, second) == (None, None)
    assert sorted(cancelled.values()) == ["RUNNING"] * 2 + ["SKIPPED"] * 6
    assert handle.get(timeout_ms=1_000).err_value.error_code is OutcomeCode.WORKFLOW_CANCELLED
    eventually(lambda: sorted(states(handle).values()) == ["COMPLETED"] * 2 + ["SKIPPED"] * 6)
    part_id = handle.tasks().unwrap()[-1].sub_workflow_id
    row = shared_db.execute("SELECT status FROM horsies_workflows WHERE id = %s", (part_id,)).fetchone()
    assert row == {"status": "CANCELLED"}


def test_a_part_is_a_node_like_any_other(office: Office) -> None:
    part = SubWorkflowNode(office.tasks.Grand, node_id="part")
    after = office.tasks.plus_async.node()(n=from_node(part))

    handle = start(office, part, after, output=after)

    assert handle.get(timeout_ms=10_000).unwrap() == 43
    summary = handle.tasks().unwrap()[0].summary
    assert summary is not None
    assert (summary.status, summary.total_tasks, summary.output) == (WorkflowStatus.COMPLETED, 1, 42)


def test_a_part_that_fails_says_how_far_it_came(office: Office) -> None:
    part = SubWorkflowNode(office.tasks.BrokenPart, node_id="part")

    handle = start(office, part)

    error = handle.get(timeout_ms=10_000).err_value
    assert isinstance(error, SubWorkflowError)
    assert error.error_code is OutcomeCode.SUBWORKFLOW_FAILED
    assert error.sub_workflow_summary["failed_tasks"] == 1
    assert error.sub_workflow_id == handle.tasks().unwrap()[0].sub_workflow_id


def test_a_part_can_be_built_from_results(office: Office) -> None:
    size = office.tasks.plus.node()(n=2)
    part = SubWorkflowNode(
        office.tasks.Sized, kwargs={"start": 10}, waits_for=[size], args_from={"size": size}
    )

    assert start(office, size, part, output=part).get(timeout_ms=10_000).unwrap() == 13


def test_a_part_that_cannot_be_built_fails_its_node(office: Office) -> None:
    size = office.tasks.plus.node()(n=200)
    part = SubWorkflowNode(
        office.tasks.Sized, kwargs={"start": 10}, waits_for=[size], args_from={"size": size}
    )

    error = start(office, size, part, output=part).get(timeout_ms=10_000).err_value

    assert "too large" in str(error.message)


@pytest.mark.parametrize("upto", [0, 1, 5])
def test_a_map_runs_a_task_for_each_item_in_order(office: Office, upto: int) -> None:
    many = office.tasks.numbers.node()(upto=upto)
    halves = map_node(office.tasks.half, over=many, node_id="halves")
    total = office.tasks.total.node()(values=from_node(halves))

    handle = start(office, many, halves, total, output=total)

    assert handle.get(timeout_ms=10_000).unwrap() == sum(n / 2 for n in range(upto))
    assert handle.result_for(halves).unwrap() == [n / 2 for n in range(upto)]


def test_a_map_fails_with_the_first_error_of_its_items(office: Office) -> None:
    many = office.tasks.numbers.node()(upto=15)
    halves = map_node(office.tasks.half, over=many, node_id="halves")

    assert start(office, many, halves).get(timeout_ms=10_000).err_value.error_code == "UNLUCKY"


def test_a_sleep_holds_up_only_what_waits_for_it(office: Office) -> None:
    sleep = sleep_node(0.3, node_id="sleep")
    after = office.tasks.plus.node(waits_for=[sleep], node_id="after")(n=1)

    handle = start(office, sleep, after, output=after)

    assert handle.get(timeout_ms=10_000).unwrap() == 2
    slept, began = handle.tasks().unwrap()
    assert slept.completed_at is not None
    assert slept.started_at is not None
    assert (slept.completed_at - slept.started_at).total_seconds() >= 0.3
    assert began.result is not None


def test_a_signal_may_come_before_or_after_its_node_is_reached(office: Office) -> None:
    first = signal_node("first", node_id="first")
    second = signal_node("second", waits_for=[first], node_id="second")
    after = office.tasks.plus.node(waits_for=[second])(n=1)
    handle = start(office, first, second, after, output=after)

    early = handle.signal("second", {"by": "ann"}).unwrap()
    nobody = handle.signal("third").unwrap()
    late = handle.signal("first", [1]).unwrap()
    again = handle.signal("first", [2]).unwrap()

    assert (early, nobody, late, again) == (True, False, True, False)
    assert handle.get(timeout_ms=10_000).unwrap() == 2
    assert handle.result_for(first).unwrap() == [1]
    assert handle.result_for(second).unwrap() == {"by": "ann"}


def test_a_signal_is_not_waited_for_longer_than_said(office: Office) -> None:
    handle = start(office, signal_node("never", timeout_seconds=0.2))

    assert handle.get(timeout_ms=10_000).err_value.error_code is OutcomeCode.TASK_TIMEOUT


def test_a_workflow_ends_at_its_deadline(office: Office) -> None:
    waits = signal_node("never", node_id="waits")
    after = office.tasks.plus.node(waits_for=[waits], node_id="after")(n=1)

    handle = start(office, waits, after, deadline_seconds=0.3)

    assert handle.get(timeout_ms=10_000).err_value.error_code is OutcomeCode.WORKFLOW_EXPIRED
    assert handle.status().unwrap() is WorkflowStatus.EXPIRED
    assert set(states(handle).values()) == {"SKIPPED"}


def test_what_failed_can_be_run_again(office: Office) -> None:
    gate = office.gate("retry")
    good = office.tasks.one.node(node_id="good")()
    bad = office.tasks.fail_until.node(node_id="bad")(path=str(gate))
    after = office.tasks.add.node(node_id="after")(a=from_node(good), b=from_node(bad))
    handle = start(office, good, bad, after, output=after)
    handle.get(timeout_ms=10_000)
    before = {task.node_id: task.task_id for task in handle.tasks().unwrap()}
    gate.touch()

    retried = handle.retry_failed().unwrap()

    assert retried
    assert handle.get(timeout_ms=10_000).unwrap() == 8
    ids = {task.node_id: task.task_id for task in handle.tasks().unwrap()}
    assert ids["good"] == before["good"]
    assert ids["bad"] != before["bad"]
    assert handle.retry_failed().unwrap() is False


def test_a_task_is_told_where_it_runs_and_what_came_before(office: Office) -> None:
    a = office.tasks.one.node(node_id="a")()
    b = office.tasks.fail.node(node_id="b")()
    part = SubWorkflowNode(office.tasks.Part, node_id="part")
    tells = office.tasks.told.node(
        waits_for=[a, b, part], workflow_ctx_from=[a, part], allow_failed_deps=True, node_id="tells"
    )()
    policy = SuccessPolicy(cases=[SuccessCase(required=[tells])])

    result = start(office, a, b, part, tells, output=tells, success_policy=policy).get(timeout_ms=10_000)

    told = result.unwrap()
    assert told == {
        "seen": {"a": "TaskResult(ok=1)", "part": "TaskResult(ok=42)"}, "index": 3, "completed": 2,
    }  # fmt: skip
    assert office.tasks.told.send().unwrap().get(timeout_ms=10_000).unwrap()["seen"] is None


def test_any_of_several_will_do(office: Office) -> None:
    gate: Path = office.gate("any")
    slow = office.tasks.wait.node(node_id="slow")(path=str(gate))
    fast = office.tasks.one.node(node_id="fast")()
    first = TaskNode(fn=office.tasks.one, waits_for=[slow, fast], join="any", node_id="first")
    handle = start(office, slow, fast, first)

    eventually(lambda: states(handle)["first"] == "COMPLETED")
    still_running = handle.status().unwrap()
    gate.touch()

    assert still_running is WorkflowStatus.RUNNING
    assert handle.get(timeout_ms=10_000).is_ok()
    assert set(states(handle).values()) == {str(WorkflowTaskStatus.COMPLETED)}


def test_a_start_repeated_with_its_id_is_one_workflow(office: Office) -> None:
    spec = office.tasks.app.workflow("test", [office.tasks.one.node()()], definition_key="test")
    first = spec.start().unwrap()

    second = spec.start(first.workflow_id).unwrap()

    assert second.workflow_id == first.workflow_id
    assert second.get(timeout_ms=10_000).is_ok()


def test_a_node_that_was_not_started_in_time_has_failed(office: Office) -> None:
    from datetime import UTC, datetime, timedelta

    gate = office.gate("late")
    blockers = [office.tasks.wait.send(str(gate)).unwrap() for _ in range(2)]
    soon = datetime.now(UTC) + timedelta(seconds=0.3)
    late = office.tasks.one.node(good_until=soon, node_id="late")()
    after = office.tasks.plus.node(waits_for=[late], node_id="after")(n=1)

    handle = start(office, late, after)
    outcome = handle.get(timeout_ms=10_000)
    gate.touch()

    assert outcome.err_value.error_code is OutcomeCode.TASK_EXPIRED
    assert states(handle) == {"late": "FAILED", "after": "SKIPPED"}
    assert all(blocker.get(timeout_ms=10_000).is_ok() for blocker in blockers)


def test_a_composed_chain_carries_values_from_step_to_step(office: Office) -> None:
    tasks = office.tasks
    handle = chain(tasks.one.node(), tasks.plus_async.node(), tasks.plus_async.node()).start().unwrap()

    assert handle.get(timeout_ms=10_000).unwrap() == 3
    assert states(handle) == dict.fromkeys(["one", "plus_async", "plus_async_2"], "COMPLETED")


def test_a_group_gives_the_values_of_its_members_in_order(office: Office) -> None:
    members = [office.tasks.half.node(n) for n in (4, 2, 0)]
    handle = group(*members).start().unwrap()

    assert handle.get(timeout_ms=10_000).unwrap() == [2.0, 1.0, 0.0]
    assert [handle.result_for(member).unwrap() for member in members] == [2.0, 1.0, 0.0]


def test_groups_and_maps_within_a_chain_hand_their_lists_on(office: Office) -> None:
    tasks = office.tasks
    flow = chain(
        tasks.numbers.node(5),
        map_node(tasks.half),
        group(tasks.total.node(), chain(tasks.total.node(), sleep_node(0.01))),
    )
    handle = office.tasks.app.workflow("nested", flow).start().unwrap()
    summed = chain(group(tasks.half.node(4), tasks.half.node(6)), tasks.total.node()).start().unwrap()

    assert handle.get(timeout_ms=10_000).unwrap() == [5.0, None]
    assert summed.get(timeout_ms=10_000).unwrap() == 5.0


def test_a_group_with_a_failed_member_has_no_value(office: Office) -> None:
    tasks = office.tasks
    handle = chain(group(tasks.half.node(13), tasks.half.node(2)), tasks.total.node()).start().unwrap()

    assert handle.get(timeout_ms=10_000).err_value.error_code == "UNLUCKY"
    assert states(handle) == {
        "half": "FAILED", "half_2": "COMPLETED", "gather": "SKIPPED", "total": "SKIPPED",
    }  # fmt: skip


def test_a_chain_starts_from_async_code(office: Office) -> None:
    async def run() -> Any:
        handle = (await chain(office.tasks.one.node(), office.tasks.plus_async.node()).start_async()).unwrap()
        return (await handle.get_async(timeout_ms=10_000)).unwrap()

    assert asyncio.run(run()) == 2


def test_a_task_can_ask_for_the_result_of_a_node_without_a_given_id(office: Office) -> None:
    handle = office.tasks.unnamed_nodes.start().unwrap()

    assert handle.get(timeout_ms=10_000).unwrap() == 1
    assert office.tasks.unnamed.key().node_id == "one"
    assert handle.result_for(office.tasks.unnamed.key()).unwrap() == 1


def test_results_are_also_found_by_the_ids_of_released_versions(office: Office) -> None:
    nodes = [office.tasks.plus.node(n) for n in range(2)]
    handle = office.tasks.app.workflow("parallel_fetch", nodes, definition_key="test.fetch").start().unwrap()

    last = handle.get(timeout_ms=10_000).unwrap()
    for results in (handle.results().unwrap(), last):
        assert results["parallel_fetch:0"].unwrap() == results["plus"].unwrap() == 1
        assert results.get("parallel_fetch:1").unwrap() == results["plus_2"].unwrap() == 2
        assert list(results) == ["plus", "plus_2"]
        assert "parallel_fetch:1" in results
        assert "parallel_fetch:2" not in results
        assert results.get("parallel_fetch:2") is None
        with pytest.raises(KeyError):
            results["parallel_fetch:2"]
    assert handle.result_for(NodeKey("parallel_fetch:1")).unwrap() == 2


def test_a_definition_may_return_a_workflow_without_a_key_or_an_app(office: Office) -> None:
    spec = office.tasks.Bare.build_with(office.tasks.app, n=3)
    part = SubWorkflowNode(office.tasks.Bare, kwargs={"n": 4})

    assert spec.start().unwrap().get(timeout_ms=10_000).unwrap() == 4
    assert start(office, part, output=part).get(timeout_ms=10_000).unwrap() == 5


def test_an_item_of_a_wrong_type_fails_its_map_with_a_clear_error(office: Office) -> None:
    many = office.tasks.anything.node(["no number"])
    mapped = map_node(office.tasks.half, over=many)

    error = start(office, many, mapped).get(timeout_ms=10_000).err_value

    assert error.error_code is OperationalErrorCode.WORKER_SERIALIZATION_ERROR
    assert "argument 'n' of task 'half'" in str(error.message)
    assert "expected `int`, got `str`" in str(error.message)


def test_a_map_over_something_else_than_a_list_fails_with_a_clear_error(office: Office) -> None:
    what = office.tasks.told.node()
    mapped = map_node(office.tasks.half, over=what)

    error = start(office, what, mapped).get(timeout_ms=10_000).err_value

    assert "not a list" in str(error.message)
