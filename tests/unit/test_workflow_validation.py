"""What cannot run as it is drawn is refused when it is drawn, with everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import FrozenInstanceError, dataclass
from datetime import date, datetime, timedelta
from types import NoneType
from typing import Annotated, Any, Literal, NewType, TypedDict
from uuid import uuid4

import pytest

from horsies import (
    AppConfig,
    ErrorCode,
    Flow,
    Horsies,
    MultipleValidationErrors,
    NodeKey,
    OnError,
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
    WorkflowValidationError,
    chain,
    from_node,
    group,
    map_node,
    signal_node,
    sleep_node,
    slugify,
)
from horsies.workflow.definition import DEFINITIONS
from horsies.workflow.spec import workflow_rows
from horsies.workflow.types import fits

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


@app.task("takes_two")
def takes_two(n: TaskResult[int, TaskError], m: int, label: str = "") -> TaskResult[int, TaskError]:
    return TaskResult(ok=n.unwrap() + m)


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

    assert [entry.node_id for entry in spec.entries] == ["number", "takes", "number_2", "sleep", "go"]
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
        fn=takes_two,
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

    assert sorted(map(str, found)) == sorted(
        [
            ErrorCode.WORKFLOW_INVALID_DEPENDENCY,
            ErrorCode.WORKFLOW_INVALID_ARGS_FROM,
            ErrorCode.WORKFLOW_INVALID_KWARG_KEY,
            ErrorCode.WORKFLOW_MISSING_REQUIRED_PARAMS,
            ErrorCode.WORKFLOW_KWARGS_NOT_SERIALIZABLE,
            ErrorCode.WORKFLOW_INVALID_JOIN,
            ErrorCode.WORKFLOW_UNRESOLVED_PRIORITY,
            ErrorCode.WORKFLOW_UNRESOLVED_QUEUE,
            ErrorCode.CONFIG_INVALID_VALUE,  # timeout_ms
            ErrorCode.CONFIG_INVALID_VALUE,  # good_until
            ErrorCode.CONFIG_INVALID_VALUE,  # deadline_seconds
        ]
    )


def test_one_mistake_gives_one_error() -> None:
    class Takes(WorkflowDefinition[int]):
        name = "takes"
        definition_key = "unit.takes"

        @classmethod
        def build_with(cls, app: Any, *, n: TaskResult[int, TaskError]) -> WorkflowSpec[int]:
            raise AssertionError("a sub-workflow with a wrong source is not built")

    a, stranger = number.node()(), number.node()()
    policy = SuccessPolicy(cases=[SuccessCase(required=[stranger])])
    unknown = TaskNode(fn=number, waits_for=[a], kwargs={"m": 1}, args_from={"m": a})

    args_from = [ErrorCode.WORKFLOW_INVALID_ARGS_FROM]
    assert codes(lambda: draw(takes.node()(n=from_node(stranger)))) == args_from
    assert codes(lambda: draw(SubWorkflowNode(Takes, kwargs={"n": from_node(stranger)}))) == args_from
    assert codes(lambda: draw(a, number.node(waits_for=[stranger], join="any")())) == [
        ErrorCode.WORKFLOW_INVALID_DEPENDENCY
    ]
    assert codes(lambda: draw(a, success_policy=policy)) == [ErrorCode.WORKFLOW_INVALID_SUCCESS_POLICY]
    assert codes(lambda: draw(a, number.node(join="some", min_success=1)())) == [  # pyright: ignore
        ErrorCode.WORKFLOW_INVALID_JOIN
    ]
    assert codes(lambda: draw(a, unknown)) == [
        ErrorCode.WORKFLOW_KWARGS_ARGS_FROM_OVERLAP,
        ErrorCode.WORKFLOW_INVALID_KWARG_KEY,
    ]


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
    words, one = text.node()(), number.node()()
    result_of_text = TaskNode(fn=takes, waits_for=[words], args_from={"n": words})
    value_of_text = TaskNode(fn=number, waits_for=[words], args_from={"n": words})
    result = TaskNode(fn=takes, waits_for=[one], args_from={"n": one})
    value = TaskNode(fn=number, waits_for=[one], args_from={"n": one})

    assert codes(lambda: draw(words, result_of_text)) == [ErrorCode.WORKFLOW_ARGS_FROM_TYPE_MISMATCH]
    assert codes(lambda: draw(words, value_of_text)) == [ErrorCode.WORKFLOW_ARGS_FROM_TYPE_MISMATCH]
    assert codes(lambda: draw(one, result, value)) == []


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


def test_a_node_takes_no_more_arguments_by_position_than_its_task() -> None:
    assert codes(lambda: number.node()(1, 2)) == [ErrorCode.WORKFLOW_POSITIONAL_ARGS_NOT_SUPPORTED]  # pyright: ignore
    assert codes(lambda: number.node()(1, n=2)) == [ErrorCode.WORKFLOW_POSITIONAL_ARGS_NOT_SUPPORTED]  # pyright: ignore
    assert draw(number.node()(1)).entries[0].kwargs == {"n": 1}


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
    with pytest.raises(WorkflowContextMissingIdError, match=r"before it is part of a workflow"):
        number.node()().key()
    assert number.node(node_id="a")().key() == NodeKey("a")


def test_slugs_can_stand_in_ids() -> None:
    assert slugify("Hello World!") == "Hello_World"
    assert slugify("parallel_fetch") == "parallel_fetch"
    assert slugify("(v1.2) import-all") == "v1.2_import-all"
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

    rows = workflow_rows(spec, uuid4(), None)
    flows, nodes = rows.flows, rows.nodes

    assert [flow.status for flow in flows] == ["RUNNING", "PENDING", "RUNNING"]
    assert [node.status for node in nodes] == [
        "ENQUEUED", "PENDING", "RUNNING", "READY", "PENDING", "ENQUEUED", "PENDING",
    ]  # fmt: skip


def test_a_validated_workflow_cannot_be_changed() -> None:
    source, values = numbers.node()(), {"n": 1}
    mapped = map_node(number, over=source)
    one = TaskNode(fn=number, kwargs=values, waits_for=[source])
    two = TaskNode(fn=takes, waits_for=[one], args_from={"n": one})
    spec = draw(source, mapped, one, two, output=two)

    for node in spec.tasks:
        with pytest.raises(FrozenInstanceError, match=node.node_id):
            node.waits_for = ()
        with pytest.raises(FrozenInstanceError):
            del node.node_id
    with pytest.raises(FrozenInstanceError):
        spec.tasks[0].queue = "nowhere"  # type: ignore[attr-defined]  # pyright: ignore
    with pytest.raises(TypeError):
        spec.tasks[2].kwargs["n"] = 2  # type: ignore[attr-defined]  # pyright: ignore
    with pytest.raises(TypeError):
        spec.tasks[3].args_from["label"] = source  # type: ignore[attr-defined]  # pyright: ignore
    values["n"] = 3

    assert spec.entries[2].kwargs == {"n": 1}
    assert spec.output is spec.tasks[3]
    assert [list(node.waits_for) for node in spec.tasks] == [
        [], [spec.tasks[0]], [spec.tasks[0]], [spec.tasks[2]],
    ]  # fmt: skip


def test_later_changes_of_a_value_do_not_reach_what_is_stored() -> None:
    @app.task("total")
    def total(values: list[int]) -> TaskResult[int, TaskError]:
        return TaskResult(ok=sum(values))

    values = [1, 2]
    spec = draw(total.node()(values=values))
    values.append(3)

    assert workflow_rows(spec, uuid4(), None).nodes[0].task_kwargs == '{"values":[1,2]}'


def test_a_node_without_an_id_can_be_asked_for_after_it_is_drawn() -> None:
    first, second, named = number.node()(), number.node()(), number.node(node_id="number_2")()

    spec = draw(first, second, named)

    assert [node.node_id for node in (first, second, named)] == ["number", "number_3", "number_2"]
    assert [first.key(), second.key()] == [NodeKey("number"), NodeKey("number_3")]
    assert [spec.node_ids[node] for node in (first, spec.tasks[1])] == ["number", "number_3"]


def test_a_node_that_is_drawn_again_is_named_again() -> None:
    first, second = number.node()(), number.node()()
    draw(first), draw(second)

    assert [node.node_id for node in draw(first, second).tasks] == ["number", "number_2"]


def test_every_kind_of_node_has_a_name_by_default() -> None:
    class Part(WorkflowDefinition[int]):
        name = "the part!"
        definition_key = "unit.part"
        only = number.node()()

    @app.task("Zählung")
    def foreign() -> TaskResult[int, TaskError]:
        return TaskResult(ok=0)

    @app.task("計算")
    def unusable() -> TaskResult[int, TaskError]:
        return TaskResult(ok=0)

    many = numbers.node()()
    nodes = [
        many, map_node(number, over=many), SubWorkflowNode(Part), sleep_node(1), signal_node("go"),
        foreign.node(), unusable.node(), unusable.node(),
    ]  # fmt: skip

    assert [node.node_id for node in draw(*nodes).tasks] == [
        "numbers", "number", "the_part", "sleep", "go", "Z_hlung", "node", "node_2",
    ]  # fmt: skip


@pytest.mark.parametrize("given", ["pause", "PAUSE", OnError.PAUSE])
def test_on_error_may_be_written_as_text(given: Any) -> None:
    spec = draw(number.node()(), on_error=given)

    assert spec.on_error is OnError.PAUSE
    assert workflow_rows(spec, uuid4(), None).flows[0].on_error == "PAUSE"


@pytest.mark.parametrize("given", ["stop", "Pause", "fAIL", "", None, 1, True])
def test_any_other_on_error_is_refused(given: Any) -> None:
    assert codes(lambda: draw(number.node()(), on_error=given)) == [ErrorCode.CONFIG_INVALID_VALUE]


@dataclass
class Base:
    name: str


@dataclass
class Derived(Base):
    size: int


@app.task("derived")
def derived() -> TaskResult[Derived, TaskError]:
    return TaskResult(ok=Derived("", 0))


@app.task("takes_base")
def takes_base(it: TaskResult[Base, TaskError], other: Base | None = None) -> TaskResult[Base, TaskError]:
    return it


@app.task("takes_derived")
def takes_derived(it: TaskResult[Derived, TaskError]) -> TaskResult[Derived, TaskError]:
    return it


def test_a_derived_value_fits_its_base() -> None:
    class GivesBase(WorkflowDefinition[Base]):
        name = "gives base"
        definition_key = "unit.gives_base"
        first = derived.node()()
        last = derived.node(waits_for=[first])()

        class Meta:
            output = "last"

    first = derived.node()()
    second = takes_base.node()(it=from_node(first), other=from_node(first))

    assert codes(lambda: GivesBase.build(app)) == []
    assert codes(lambda: draw(first, second)) == []
    third = takes_derived.node()(it=from_node(second))
    assert codes(lambda: draw(first, second, third)) == [ErrorCode.WORKFLOW_ARGS_FROM_TYPE_MISMATCH]


class Shape(TypedDict):
    sides: int


@pytest.mark.parametrize(
    ("wanted", "given", "verdict"),
    [
        (Base, Derived, True),
        (Derived, Base, False),
        (int | None, int, True),
        (int, int | None, False),
        (int | str, str | int, True),
        (float, int, True),
        (int, float, False),
        (int, bool, False),  # JSON has a boolean of its own
        (date, datetime, False),
        (Any, int, True),
        (int, Any, True),
        (object, int, True),
        (list[Base], list[Derived], True),
        (list[int], list[str], False),
        (list[int], tuple[int, ...], True),
        (Sequence[Base], list[Derived], True),
        (list[int], list, True),
        (list, list[int], True),
        (list[int], int, False),
        (dict[str, Base], dict[str, Derived], True),
        (dict[str, int], dict[str, str], False),
        (Shape, Shape, True),
        (Shape, dict[str, int], False),
        (str, Literal["a", "b"], True),
        (Literal["a", "b", "c"], Literal["a"], True),
        (Literal["a"], str, False),
        (None, NoneType, True),
        (Annotated[int, "positive"], int, True),
        (NewType("Id", int), int, False),
        (int, NewType("Id", int), True),
    ],
)
def test_a_type_fits_another_if_each_of_its_values_does(wanted: Any, given: Any, verdict: bool) -> None:
    assert fits(wanted, given) is verdict


def test_a_map_takes_items_of_a_derived_type_and_refuses_others() -> None:
    @app.task("many_derived")
    def many_derived() -> TaskResult[list[Derived], TaskError]:
        return TaskResult(ok=[])

    @app.task("bare_list")
    def bare_list() -> TaskResult[list, TaskError]:  # type: ignore[type-arg]  # pyright: ignore
        return TaskResult(ok=[])

    @app.task("name_of")
    def name_of(it: Base) -> TaskResult[str, TaskError]:
        return TaskResult(ok=it.name)

    some, unknown, wrong = many_derived.node()(), bare_list.node()(), numbers.node()()

    assert codes(lambda: draw(some, map_node(name_of, over=some))) == []
    assert codes(lambda: draw(unknown, map_node(name_of, over=unknown))) == []
    assert codes(lambda: draw(map_node(name_of))) == [ErrorCode.WORKFLOW_MISSING_REQUIRED_PARAMS]
    with pytest.raises(
        WorkflowValidationError, match=r"items of type int, and 'it' of task 'name_of' is annotated .*Base"
    ):
        draw(wrong, map_node(name_of, over=wrong))


def test_a_map_uses_its_own_list_whatever_else_it_waits_for() -> None:
    many, other = numbers.node()(), number.node()()
    spec = draw(many, other, map_node(number, over=many, waits_for=[many, other]))

    assert workflow_rows(spec, uuid4(), None).nodes[2].args_from == {"n": 0}


def test_only_tasks_can_be_run_by_a_node() -> None:
    def undecorated() -> None: ...

    for build in (
        lambda: TaskNode(fn=undecorated),  # pyright: ignore
        lambda: map_node(undecorated),  # pyright: ignore
    ):
        assert codes(build) == [ErrorCode.TASK_NOT_REGISTERED]
    with pytest.raises(WorkflowValidationError, match=r"not a task(.|\n)*@app.task above def undecorated"):
        TaskNode(fn=undecorated)  # pyright: ignore
    assert codes(lambda: SubWorkflowNode(number)) == [  # pyright: ignore
        ErrorCode.WORKFLOW_SUBWORKFLOW_BUILD_WITH_BINDING
    ]


def test_only_nodes_can_be_drawn() -> None:
    assert codes(lambda: draw(number)) == [ErrorCode.WORKFLOW_INVALID_DEPENDENCY]


def test_a_node_takes_arguments_at_once_or_after_its_options() -> None:
    first = number.node(1)
    nodes = [
        first,
        number.node(n=2),
        number.node(node_id="third")(3),
        takes.node(from_node(first), label="x"),
    ]
    spec = draw(*nodes, number.node())

    assert [dict(entry.kwargs) for entry in spec.entries] == [
        {"n": 1},
        {"n": 2},
        {"n": 3},
        {"label": "x"},
        {},
    ]
    assert spec.entries[2].node_id == "third"
    assert spec.entries[3].args_from == {"n": 0}


def test_an_argument_that_is_neither_of_the_task_nor_of_nodes_is_refused_at_once() -> None:
    with pytest.raises(
        WorkflowValidationError, match=r"'nodeid'(.|\n)*arguments are: n; the options are: .*node_id"
    ):
        number.node(1, nodeid="x")  # pyright: ignore


def test_a_name_that_could_be_an_option_or_an_argument_is_refused() -> None:
    @app.task("letter")
    def letter(to: str = "", priority: int = 1) -> TaskResult[int, TaskError]:
        return TaskResult(ok=priority)

    code = [ErrorCode.WORKFLOW_INVALID_KWARG_KEY]
    assert codes(lambda: letter.node("ann", priority=3)) == code
    assert codes(lambda: draw(letter.node(priority=3))) == code
    spec = draw(letter.node(priority=3)(priority=4))
    assert workflow_rows(spec, uuid4(), None).nodes[0].priority == 3
    assert spec.entries[0].kwargs == {"priority": 4}


def test_a_workflow_built_by_a_definition_takes_its_key_and_app() -> None:
    class Bare(WorkflowDefinition[int]):
        name = "bare"
        definition_key = "unit.bare"

        @classmethod
        def build_with(cls, app: Any, *, n: int) -> WorkflowSpec[int]:
            node = number.node(n)
            return WorkflowSpec(name=cls.name, tasks=[node], output=node)

    class ByApp(WorkflowDefinition[int]):
        name = "by app"
        definition_key = "unit.by_app"

        @classmethod
        def build_with(cls, app: Any) -> WorkflowSpec[int]:
            return app.workflow(cls.name, [SubWorkflowNode(Bare, kwargs={"n": 1})])

    for spec, key in ((Bare.build_with(app, n=1), "unit.bare"), (ByApp.build_with(app), "unit.by_app")):
        assert spec.definition_key == key
        assert spec.broker is app.get_broker()
    assert ByApp.build_with(app).children[0].definition_key == "unit.bare"
    with pytest.raises(WorkflowValidationError, match="HRS-016"):
        app.workflow("outside", [number.node(1)])


def test_a_part_may_be_built_as_a_chain_or_group_and_has_the_key_of_its_definition() -> None:
    class Chained(WorkflowDefinition[int]):
        name = "chained"
        definition_key = "unit.chained"

        @classmethod
        def build_with(cls, app: Any, *, n: int) -> Flow[int]:
            return chain(number.node(n), number.node())

    class Grouped(WorkflowDefinition[list[int]]):
        definition_key = "unit.grouped"

        @classmethod
        def build_with(cls, app: Any) -> Any:
            return app.workflow("of the app", group(number.node(1), number.node(2)))

    class Inner(WorkflowDefinition[int]):
        definition_key = "unit.inner"

        @classmethod
        def build_with(cls, app: Any) -> Flow[int]:
            return chain(SubWorkflowNode(Chained, kwargs={"n": 3}), number.node())

    nodes = [SubWorkflowNode(Chained, kwargs={"n": 1}), SubWorkflowNode(Grouped), SubWorkflowNode(Inner)]
    chained, grouped, inner = draw(*nodes).children.values()

    assert (chained.name, chained.definition_key, len(chained.tasks)) == ("chained", "unit.chained", 2)
    assert chained.output is chained.tasks[-1]
    assert (grouped.name, grouped.definition_key) == ("of the app", "unit.grouped")
    assert (inner.name, inner.children[0].definition_key) == ("Inner", "unit.chained")


def test_a_chain_that_contains_its_own_definition_is_refused() -> None:
    class Round(WorkflowDefinition[int]):
        definition_key = "unit.round"

        @classmethod
        def build_with(cls, app: Any) -> Flow[int]:
            return chain(number.node(1), SubWorkflowNode(cls), number.node())

    assert codes(lambda: draw(SubWorkflowNode(Round))) == [ErrorCode.WORKFLOW_CYCLE_DETECTED]


@pytest.mark.parametrize(
    ("options", "stored"),
    [
        ({"timeout_ms": 2_000}, 2_000),
        ({"timeout_ms": timedelta(seconds=2)}, 2_000),
        ({"timeout": 0.25}, 250),
        ({"timeout": timedelta(minutes=1)}, 60_000),
    ],
)
def test_the_time_limit_of_a_node_is_given_in_any_unit(options: dict[str, Any], stored: int) -> None:
    spec = draw(TaskNode(fn=number, **options), number.node(**options)(1), number.node(**options))

    assert [node.timeout_ms for node in workflow_rows(spec, uuid4(), None).nodes] == [stored] * 3


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"timeout_ms": 2_000, "timeout": 2}, "both timeout and timeout_ms are given"),
        ({"timeout_ms": timedelta(0)}, r"timeout_ms is datetime.timedelta\(0\)"),
        ({"timeout_ms": "2000"}, "timeout_ms is '2000'"),
        ({"timeout": 0.05}, "timeout is 0.05"),
        ({"timeout": "2"}, "timeout is '2'"),
        ({"timeout": True}, "timeout is True"),
    ],
)
def test_a_time_limit_of_a_node_that_is_none_is_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(WorkflowValidationError, match=problem) as caught:
        draw(TaskNode(fn=number, **options))

    assert caught.value.code == ErrorCode.CONFIG_INVALID_VALUE
    assert (caught.value.help_text or "").startswith("use ")


def test_a_part_must_be_built_by_a_definition_that_returns_a_workflow() -> None:
    class Nothing(WorkflowDefinition[int]):
        name = "nothing"
        definition_key = "unit.nothing"

        @classmethod
        def build_with(cls, app: Any) -> WorkflowSpec[int]:
            return None  # pyright: ignore

    assert codes(lambda: draw(SubWorkflowNode(Nothing))) == [ErrorCode.WORKFLOW_CHECK_BUILDER_EXCEPTION]


def test_arguments_that_wait_for_others_must_have_a_json_form() -> None:
    class Takes(WorkflowDefinition[int]):
        name = "takes"
        definition_key = "unit.takes"

        @classmethod
        def build_with(cls, app: Any, *, n: int, it: Any) -> WorkflowSpec[int]:
            raise AssertionError("it is built when n is known")

    first = number.node(1)
    part = SubWorkflowNode(Takes, kwargs={"n": from_node(first), "it": object()})

    assert codes(lambda: draw(first, part)) == [ErrorCode.WORKFLOW_KWARGS_NOT_SERIALIZABLE]
