"""`chain` and `group` wire nodes as they say, and refuse what could be meant in two ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from horsies import (
    AppConfig,
    ErrorCode,
    Flow,
    Horsies,
    PostgresConfig,
    SubWorkflowNode,
    TaskError,
    TaskResult,
    ValidationReport,
    WorkflowDefinition,
    WorkflowSpec,
    WorkflowValidationError,
    chain,
    from_node,
    group,
    map_node,
    signal_node,
    sleep_node,
)

app = Horsies(AppConfig(broker=PostgresConfig(database_url="postgresql://nobody@nowhere/none")))
Number = TaskResult[int, TaskError]
Numbers = TaskResult[list[int], TaskError]


@app.task("number")
def number(n: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=n)


@app.task("double")
def double(n: Number, factor: int = 2) -> TaskResult[int, TaskError]:
    return TaskResult(ok=n.unwrap() * factor)


@app.task("optional")
def optional(n: Number | None = None) -> TaskResult[int, TaskError]:
    return TaskResult(ok=0)


@app.task("unclear")
def unclear(n: Number | None = None, m: Number | None = None) -> TaskResult[int, TaskError]:
    return TaskResult(ok=0)


@app.task("numbers")
def numbers() -> TaskResult[list[int], TaskError]:
    return TaskResult(ok=[])


@app.task("total")
def total(values: Numbers) -> TaskResult[int, TaskError]:
    return TaskResult(ok=sum(values.unwrap()))


@app.task("done")
def done() -> TaskResult[str, TaskError]:
    return TaskResult(ok="done")


def edges(flow: Flow[Any]) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Return the dependencies and the sources of each node, by ids."""
    entries = flow.spec().entries
    return {
        entry.node_id: (
            [entries[index].node_id for index in entry.deps],
            {name: entries[index].node_id for name, index in entry.args_from.items()},
        )
        for entry in entries
    }


def codes(build: Callable[[], object]) -> list[ErrorCode | None]:
    report = ValidationReport("test")
    report.collect(build)
    assert all(error.help_text for error in report.errors)
    return [error.code for error in report.errors]


def test_a_chain_feeds_each_value_into_the_next_step() -> None:
    flow = chain(number.node(1), double.node(), double.node(factor=3))

    assert edges(flow) == {
        "number": ([], {}),
        "double": (["number"], {"n": "number"}),
        "double_2": (["double"], {"n": "double"}),
    }
    assert flow.spec().output_index == 2


def test_a_chain_feeds_the_only_parameter_with_a_default() -> None:
    assert edges(chain(number.node(1), optional.node()))["optional"] == (["number"], {"n": "number"})


def test_a_chain_does_not_guess_between_parameters_with_defaults() -> None:
    assert codes(lambda: chain(number.node(1), unclear.node())) == [ErrorCode.WORKFLOW_INVALID_ARGS_FROM]
    with pytest.raises(
        WorkflowValidationError, match=r"which parameter of task 'unclear'.*: n, m all have defaults"
    ):
        chain(number.node(1), unclear.node())


def test_a_step_with_all_its_arguments_only_waits() -> None:
    first = number.node(1)
    flow = chain(first, done.node(), double.node(from_node(first), factor=1))

    assert edges(flow)["done"] == (["number"], {})
    assert edges(flow)["double"] == (["done", "number"], {"n": "number"})


def test_a_value_must_fit_where_a_chain_puts_it() -> None:
    assert codes(lambda: chain(done.node(), double.node()).spec()) == [
        ErrorCode.WORKFLOW_ARGS_FROM_TYPE_MISMATCH
    ]
    assert codes(lambda: chain(number.node(1), total.node()).spec()) == [
        ErrorCode.WORKFLOW_ARGS_FROM_TYPE_MISMATCH
    ]


def test_a_group_gathers_the_values_of_its_members() -> None:
    flow = group(number.node(1), number.node(2))

    assert edges(flow) == {
        "number": ([], {}),
        "number_2": ([], {}),
        "gather": (["number", "number_2"], {"0": "number", "1": "number_2"}),
    }
    assert flow.spec().output_index == 2


def test_a_group_in_a_chain_takes_the_value_in_each_member_and_gives_the_list() -> None:
    flow = chain(number.node(1), group(double.node(), chain(double.node(), optional.node())), total.node())

    assert edges(flow) == {
        "number": ([], {}),
        "double": (["number"], {"n": "number"}),
        "double_2": (["number"], {"n": "number"}),
        "optional": (["double_2"], {"n": "double_2"}),
        "gather": (["double", "optional"], {"0": "double", "1": "optional"}),
        "total": (["gather"], {"values": "gather"}),
    }


def test_a_sleep_passes_the_value_on() -> None:
    inner = chain(sleep_node(2), double.node())
    flow = chain(number.node(1), sleep_node(1), inner, signal_node("go"))

    assert edges(flow) == {
        "number": ([], {}),
        "sleep": (["number"], {}),
        "sleep_2": (["sleep"], {}),
        "double": (["sleep_2", "number"], {"n": "number"}),
        "go": (["double"], {}),
    }


def test_a_map_in_a_chain_takes_the_list_before_it() -> None:
    flow = chain(numbers.node(), map_node(number), total.node())

    assert edges(flow)["number"] == (["numbers"], {})
    assert codes(lambda: chain(done.node(), map_node(number)).spec()) == [
        ErrorCode.WORKFLOW_ARGS_FROM_TYPE_MISMATCH
    ]


def test_a_sub_workflow_in_a_chain_takes_the_value_as_a_parameter() -> None:
    class Part(WorkflowDefinition[int]):
        name = "part"
        definition_key = "unit.flows.part"

        @classmethod
        def build_with(cls, app: Any, label: str, n: Number, **others: Any) -> WorkflowSpec[int]:
            raise AssertionError("it is built when n is known")

    spec = app.workflow("w", chain(number.node(1), SubWorkflowNode(Part, kwargs={"label": "x"})))

    assert spec.entries[1].args_from == {"n": 0}


def test_a_node_is_a_step_once() -> None:
    step, inner = double.node(), chain(double.node())
    chain(number.node(1), step, inner)

    for again in (
        lambda: chain(number.node(1), step),
        lambda: group(number.node(1), inner),
        lambda: chain(number.node(1), inner.output),
        lambda: group(*[number.node(1)] * 2),
    ):
        assert codes(again) == [ErrorCode.WORKFLOW_INVALID_DEPENDENCY]


@pytest.mark.parametrize("compose", [chain, group])
def test_steps_are_nodes(compose: Any) -> None:
    assert codes(compose) == [ErrorCode.WORKFLOW_NO_NODES]
    assert codes(lambda: compose(number)) == [ErrorCode.WORKFLOW_INVALID_DEPENDENCY]


def test_a_flow_has_a_name_and_a_key_by_default() -> None:
    flow = chain(number.node(1), group(double.node(node_id="twice"), double.node()))

    assert flow.name == flow.definition_key == flow.spec().name == "chain(number, group(twice, double))"
    named = chain(number.node(1), name="import")
    assert (named.name, named.definition_key) == ("import", "import")
    assert chain(number.node(1), name="import", definition_key="shop.import").definition_key == "shop.import"
    assert len(group(*(number.node(n) for n in range(1_000))).name) <= 255


def test_an_app_takes_flows_as_workflows_and_beside_other_nodes() -> None:
    whole = app.workflow("whole", chain(number.node(1), double.node()))
    parts = group(number.node(1), number.node(2))
    mixed = app.workflow("mixed", [number.node(3), parts], output=parts.output, definition_key="mixed")

    assert (whole.definition_key, whole.output_index) == ("whole", 1)
    assert [node.node_id for node in mixed.tasks] == ["number", "number_2", "number_3", "gather"]
    assert mixed.output_index == 3


def test_a_definition_may_be_made_of_flows() -> None:
    class Sum(WorkflowDefinition[int]):
        name = "sum"
        definition_key = "unit.flows.sum"
        first = number.node(1)
        steps = chain(group(number.node(2), number.node(3)), total.node())

        class Meta:
            output = "steps"

    spec = Sum.build(app)

    assert [node.node_id for node in spec.tasks] == ["first", "number", "number_2", "gather", "total"]
    assert spec.output_index == 4


def test_a_flow_starts_where_its_tasks_belong() -> None:
    assert chain(number.node(1)).spec().broker is app.get_broker()
    assert chain(sleep_node(1)).spec().broker is None
