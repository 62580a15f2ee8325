"""What cannot run as it is drawn is refused when it is drawn, with everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any
from uuid import uuid4

import pytest

from horsies import (
    AppConfig,
    ErrorCode,
    Horsies,
    MultipleValidationErrors,
    NodeKey,
    PostgresConfig,
    SubWorkflowNode,
    SuccessCase,
    SuccessPolicy,
    TaskError,
    TaskNode,
    TaskResult,
    ValidationReport,
    WorkflowContextMissingIdError,
    WorkflowDefinition,
    WorkflowSpec,
    WorkflowStartErrorCode,
    from_node,
    map_node,
    signal_node,
    sleep_node,
    slugify,
)
from horsies.workflow.definition import DEFINITIONS
from horsies.workflow.rows import plan

app = Horsies(AppConfig(broker=PostgresConfig(database_url="postgresql://nobody@nowhere/none")))


@app.task("number")
def number(n: int = 0) -> TaskResult[int, TaskError]:
    return TaskResult(ok=n)


@app.task("numbers")
def numbers() -> TaskResult[list[int], TaskError]:
    return TaskResult(ok=[])


@app.task("text")
def text() -> TaskResult[str, TaskError]:
    return TaskResult(ok="")


@app.task("takes")
def takes(n: TaskResult[int, TaskError], label: str = "") -> TaskResult[int, TaskError]:
    return TaskResult(ok=n.unwrap())


@app.task("may_take")
def may_take(n: TaskResult[int, TaskError] | None = None) -> TaskResult[int, TaskError]:
    return TaskResult(ok=0)


@app.task("looks")
def looks(workflow_ctx: Any = None) -> TaskResult[int, TaskError]:
    return TaskResult(ok=0)


@pytest.fixture(autouse=True)
def _forget_definitions() -> Iterator[None]:
    known = dict(DEFINITIONS)
    yield
    DEFINITIONS.clear()
    DEFINITIONS.update(known)


def draw(*nodes: Any, **options: Any) -> WorkflowSpec[Any]:
    return app.workflow(options.pop("name", "w"), list(nodes), definition_key="k", **options)


def codes(build: Callable[[], object]) -> list[ErrorCode | None]:
    report = ValidationReport("test")
    report.collect(build)
    assert all(error.help_text for error in report.errors)
    return [error.code for error in report.errors]


def test_a_sound_graph_is_accepted() -> None:
    first = number.node()(n=1)
    both = [takes.node()(n=from_node(first)), TaskNode(fn=number, waits_for=[first])]

    spec = draw(first, *both, sleep_node(1), signal_node("go"))

    assert [entry.node_id for entry in spec.entries] == ["w:0", "w:1", "w:2", "w:3", "w:4"]
    assert spec.entries[1].deps == (0,)


def test_a_name_and_nodes_are_needed() -> None:
    assert codes(lambda: draw(name="")) == [ErrorCode.WORKFLOW_NO_NAME, ErrorCode.WORKFLOW_NO_NODES]


def test_ids_must_be_usable_and_unique_before_anything_else_is_looked_at() -> None:
    nodes = [number.node(node_id=name)() for name in ("a b", "x", "x", "y" * 129)]

    assert codes(lambda: draw(*nodes)) == [
        ErrorCode.WORKFLOW_INVALID_NODE_ID,
        ErrorCode.WORKFLOW_INVALID_NODE_ID,
        ErrorCode.WORKFLOW_DUPLICATE_NODE_ID,
    ]


def test_a_definition_key_is_needed() -> None:
    assert codes(lambda: app.workflow("w", [number.node()()])) == [ErrorCode.WORKFLOW_NO_DEFINITION_KEY]


def test_a_circle_is_refused_with_its_nodes_named() -> None:
    a, b, c = (TaskNode(fn=number, node_id=name) for name in "abc")
    a.waits_for, b.waits_for, c.waits_for = [c], [a], [b]

    found = codes(lambda: draw(a, b, c))

    assert found == [ErrorCode.WORKFLOW_NO_ROOT_TASKS, ErrorCode.WORKFLOW_CYCLE_DETECTED]
    with pytest.raises(MultipleValidationErrors, match=r"a → b → c → a|b → c → a → b|c → a → b → c"):
        draw(a, b, c)


def test_all_problems_are_reported_together() -> None:
    stranger = number.node()()
    bad = TaskNode(
        fn=takes,
        kwargs={"label": 3, "colour": "red"},
        waits_for=[stranger],
        args_from={"n": stranger},
        join="quorum",
        priority=0,
        queue="mail",
        good_until=datetime(2030, 1, 1),
        timeout_ms=1,
    )

    found = codes(lambda: draw(bad, deadline_seconds=-1))

    assert set(found) >= {
        ErrorCode.WORKFLOW_INVALID_DEPENDENCY,
        ErrorCode.WORKFLOW_INVALID_ARGS_FROM,
        ErrorCode.WORKFLOW_INVALID_KWARG_KEY,
        ErrorCode.WORKFLOW_MISSING_REQUIRED_PARAMS,
        ErrorCode.WORKFLOW_KWARGS_NOT_SERIALIZABLE,
        ErrorCode.WORKFLOW_INVALID_JOIN,
        ErrorCode.WORKFLOW_UNRESOLVED_PRIORITY,
        ErrorCode.WORKFLOW_UNRESOLVED_QUEUE,
        ErrorCode.CONFIG_INVALID_VALUE,
    }


def test_a_required_parameter_must_come_from_somewhere() -> None:
    assert codes(lambda: draw(takes.node()())) == [ErrorCode.WORKFLOW_MISSING_REQUIRED_PARAMS]  # pyright: ignore


def test_what_a_node_is_fed_it_must_wait_for() -> None:
    first = number.node()()
    second = TaskNode(fn=takes, args_from={"n": first})

    assert codes(lambda: draw(first, second)) == [ErrorCode.WORKFLOW_INVALID_ARGS_FROM]


def test_an_argument_comes_from_one_place_only() -> None:
    first = number.node()()
    second = TaskNode(fn=takes, kwargs={"n": from_node(first)}, args_from={"n": first}, waits_for=[first])

    assert ErrorCode.WORKFLOW_KWARGS_ARGS_FROM_OVERLAP in codes(lambda: draw(first, second))


def test_a_result_must_fit_the_parameter_it_goes_to() -> None:
    wrong, unmarked = text.node()(), number.node()()
    takes_text = TaskNode(fn=takes, waits_for=[wrong], args_from={"n": wrong})
    takes_plain = TaskNode(fn=number, waits_for=[unmarked], args_from={"n": unmarked})

    assert codes(lambda: draw(wrong, takes_text)) == [ErrorCode.WORKFLOW_ARGS_FROM_TYPE_MISMATCH]
    assert codes(lambda: draw(unmarked, takes_plain)) == [ErrorCode.WORKFLOW_ARGS_FROM_TYPE_MISMATCH]


def test_a_node_that_may_run_early_needs_defaults_for_what_may_be_missing() -> None:
    a, b = number.node()(), number.node()()
    early = TaskNode(fn=takes, waits_for=[a, b], args_from={"n": a}, join="any")
    prepared = TaskNode(fn=may_take, waits_for=[a, b], args_from={"n": a}, join="any")

    assert codes(lambda: draw(a, b, early)) == [ErrorCode.WORKFLOW_INVALID_ARGS_FROM]
    assert codes(lambda: draw(a, b, prepared)) == []


@pytest.mark.parametrize("minimum", [None, 0, 3, True])
def test_a_quorum_must_be_possible(minimum: Any) -> None:
    a, b = number.node()(), number.node()()
    c = number.node(waits_for=[a, b], join="quorum", min_success=minimum)()

    assert codes(lambda: draw(a, b, c)) == [ErrorCode.WORKFLOW_INVALID_JOIN]


def test_a_minimum_is_for_a_quorum_only() -> None:
    a = number.node()()
    b = number.node(waits_for=[a], min_success=1)()

    assert codes(lambda: draw(a, b)) == [ErrorCode.WORKFLOW_INVALID_JOIN]


def test_a_context_needs_a_parameter_and_dependencies() -> None:
    a, b = number.node()(), number.node()()
    deaf = number.node(waits_for=[a], workflow_ctx_from=[a])()
    early = looks.node(waits_for=[a], workflow_ctx_from=[b])()

    assert codes(lambda: draw(a, b, deaf)) == [ErrorCode.WORKFLOW_CTX_PARAM_MISSING]
    assert codes(lambda: draw(a, b, early)) == [ErrorCode.WORKFLOW_INVALID_CTX_FROM]


def test_output_and_policy_name_members() -> None:
    a, stranger = number.node()(), number.node()()

    assert codes(lambda: draw(a, output=stranger)) == [ErrorCode.WORKFLOW_INVALID_OUTPUT]
    for policy in (
        SuccessPolicy(cases=[SuccessCase(required=[stranger])]),
        SuccessPolicy(cases=[]),
        SuccessPolicy(cases=[SuccessCase(required=[])]),
    ):
        found = codes(lambda policy=policy: draw(a, success_policy=policy))
        assert set(found) == {ErrorCode.WORKFLOW_INVALID_SUCCESS_POLICY}


def test_arguments_of_a_node_go_by_name() -> None:
    assert codes(lambda: number.node()(1)) == [ErrorCode.WORKFLOW_POSITIONAL_ARGS_NOT_SUPPORTED]


def test_from_node_takes_nodes_only() -> None:
    assert codes(lambda: from_node(number)) == [ErrorCode.WORKFLOW_INVALID_ARGS_FROM]  # pyright: ignore


def test_a_map_needs_a_list_of_what_its_task_takes() -> None:
    many, one, words = numbers.node()(), number.node()(), text.node()()

    assert codes(lambda: draw(many, map_node(number, over=many))) == []
    assert codes(lambda: draw(one, map_node(number, over=one))) == [
        ErrorCode.WORKFLOW_ARGS_FROM_TYPE_MISMATCH
    ]
    assert codes(lambda: draw(many, map_node(numbers, over=many))) == [
        ErrorCode.WORKFLOW_MISSING_REQUIRED_PARAMS
    ]
    assert ErrorCode.WORKFLOW_INVALID_DEPENDENCY in codes(lambda: draw(map_node(number, over=words)))


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), "1", True])
def test_a_pause_must_have_a_length(seconds: Any) -> None:
    assert codes(lambda: draw(sleep_node(seconds))) == [ErrorCode.CONFIG_INVALID_VALUE]


def test_later_changes_of_a_node_do_not_reach_what_was_checked() -> None:
    node = number.node()(n=1)
    spec = draw(node)

    node.kwargs = {"n": "nonsense"}

    assert spec.entries[0].kwargs == {"n": 1}
    with pytest.raises(AttributeError):
        spec.name = "other"  # pyright: ignore


def test_a_node_without_an_id_has_no_key() -> None:
    with pytest.raises(WorkflowContextMissingIdError):
        number.node()().key()
    assert number.node(node_id="a")().key() == NodeKey("a")


def test_slugs_can_stand_in_ids() -> None:
    assert slugify("Monthly report (EU)") == "monthly-report-eu"
    assert slugify("!!!") == "workflow"


def test_a_definition_names_its_nodes_after_their_attributes() -> None:
    class Import(WorkflowDefinition[int]):
        name = "import"
        definition_key = "unit.import"
        fetch = number.node()(n=1)
        parse = takes.node()(n=from_node(fetch))

        class Meta:
            output = "parse"

    spec = Import.build(app)

    assert [entry.node_id for entry in spec.entries] == ["fetch", "parse"]
    assert spec.output_index == 1


def test_a_definition_must_give_what_it_promises() -> None:
    class Wrong(WorkflowDefinition[str]):
        name = "wrong"
        definition_key = "unit.wrong"
        only = number.node()()

        class Meta:
            output = "only"

    assert codes(lambda: Wrong.build(app)) == [ErrorCode.WORKFLOW_OUTPUT_TYPE_MISMATCH]


def test_a_definition_key_belongs_to_one_definition() -> None:
    class First(WorkflowDefinition[int]):
        definition_key = "unit.shared"

    def second() -> None:
        class Second(WorkflowDefinition[int]):
            definition_key = "unit.shared"

    assert codes(second) == [ErrorCode.WORKFLOW_DUPLICATE_DEFINITION_KEY]


def test_a_workflow_cannot_contain_itself() -> None:
    class Loop(WorkflowDefinition[int]):
        name = "loop"
        definition_key = "unit.loop"

        @classmethod
        def build_with(cls, app: Any, **params: Any) -> WorkflowSpec[int]:
            return app.workflow("loop", [SubWorkflowNode(cls)], definition_key="unit.loop")

    assert codes(lambda: Loop.build_with(app)) == [ErrorCode.WORKFLOW_CYCLE_DETECTED]


def test_parameters_of_a_part_go_to_build_with() -> None:
    class Plain(WorkflowDefinition[int]):
        name = "plain"
        definition_key = "unit.plain"
        only = number.node()()

    class Takes(WorkflowDefinition[int]):
        name = "takes"
        definition_key = "unit.takes"

        @classmethod
        def build_with(cls, app: Any, *, n: int) -> WorkflowSpec[int]:
            return app.workflow("takes", [number.node()(n=n)], definition_key="unit.takes")

    assert codes(lambda: draw(SubWorkflowNode(Plain, kwargs={"n": 1}))) == [
        ErrorCode.WORKFLOW_SUBWORKFLOW_PARAMS_REQUIRE_BUILD_WITH
    ]
    assert ErrorCode.WORKFLOW_SUBWORKFLOW_BUILD_WITH_BINDING in codes(
        lambda: draw(SubWorkflowNode(Takes, kwargs={"m": 1}))
    )
    assert codes(lambda: draw(SubWorkflowNode(Takes, kwargs={"n": 1}))) == []


def test_a_part_needs_an_app_to_be_built_with() -> None:
    class Part(WorkflowDefinition[int]):
        name = "part"
        definition_key = "unit.part"
        only = number.node()()

    found = codes(lambda: WorkflowSpec(name="w", tasks=[SubWorkflowNode(Part)], definition_key="k"))

    assert found == [ErrorCode.WORKFLOW_SUBWORKFLOW_APP_MISSING]


def test_without_a_broker_nothing_starts() -> None:
    spec = WorkflowSpec(name="w", tasks=[number.node()()], definition_key="k")

    assert spec.start().unwrap_err().code is WorkflowStartErrorCode.BROKER_NOT_CONFIGURED


def test_an_id_that_is_no_uuid_starts_nothing() -> None:
    error = draw(number.node()()).start("one").unwrap_err()

    assert error.code is WorkflowStartErrorCode.VALIDATION_FAILED
    assert "HRS-032" in error.message


def test_a_part_is_stored_with_the_whole_and_waits_its_turn() -> None:
    class Part(WorkflowDefinition[int]):
        name = "part"
        definition_key = "unit.part"
        one = number.node()(n=1)
        two = number.node(waits_for=[one])(n=2)

    first = number.node()()
    spec = draw(first, SubWorkflowNode(Part, waits_for=[first]), SubWorkflowNode(Part))

    flows, nodes = plan(spec, uuid4(), None)

    assert [flow.status for flow in flows] == ["RUNNING", "PENDING", "RUNNING"]
    assert [node.status for node in nodes] == [
        "ENQUEUED", "PENDING", "RUNNING", "READY", "PENDING", "ENQUEUED", "PENDING",
    ]  # fmt: skip
