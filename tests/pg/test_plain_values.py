"""A parameter that is annotated with a plain type gets the value of the node before it, and never anything else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from horsies import (
    Horsies,
    RetryPolicy,
    SubWorkflowNode,
    TaskError,
    TaskResult,
    WorkflowDefinition,
    WorkflowHandle,
    WorkflowSpec,
    WorkflowStatus,
    from_node,
    map_node,
    signal_node,
)
from horsies.codec import ArgumentError
from horsies.status import OutcomeCode
from horsies.testing import drain
from horsies.workflow.context import plain_values

NO_STOCK = TaskError(error_code="NO_STOCK", message="sold out")


class Tasks:
    """The tasks of these tests, and what the task with a plain parameter was called with."""

    def __init__(self, app: Horsies) -> None:
        self.app = app
        self.seen: list[Any] = []

        @app.task("number")
        def number(n: int = 1) -> TaskResult[int, TaskError]:
            return TaskResult(ok=n)

        @app.task("numbers")
        def numbers(upto: int) -> TaskResult[list[int], TaskError]:
            return TaskResult(ok=list(range(upto)))

        @app.task("fails")
        def fails(n: int = 0) -> TaskResult[int, TaskError]:
            return TaskResult(err=NO_STOCK)

        @app.task("double", retry_policy=RetryPolicy.fixed([60], auto_retry_for=["*"]))
        def double(n: int) -> TaskResult[int, TaskError]:
            self.seen.append(n)
            return TaskResult(ok=2 * n)

        @app.task("total")
        def total(ns: list[int]) -> TaskResult[int, TaskError]:
            self.seen.append(ns)
            return TaskResult(ok=sum(ns))

        @app.task("with_default")
        def with_default(n: int | None = None) -> TaskResult[str, TaskError]:
            self.seen.append(n)
            return TaskResult(ok=repr(n))

        @app.task("whole")
        def whole(n: TaskResult[int, TaskError] | None = None) -> TaskResult[str, TaskError]:
            self.seen.append(n)
            return TaskResult(ok="ran")

        @app.task("anything")
        def anything(n: Any) -> TaskResult[str, TaskError]:
            return TaskResult(ok=repr(n))

        self.number: Any = number
        self.numbers: Any = numbers
        self.fails: Any = fails
        self.double: Any = double
        self.total: Any = total
        self.with_default: Any = with_default
        self.whole: Any = whole
        self.anything: Any = anything

    def run(self, *nodes: Any) -> WorkflowHandle[Any]:
        handle: WorkflowHandle[Any] = (
            self.app.workflow("plain", nodes, output=nodes[-1], definition_key="plain").start().unwrap()
        )
        drain(self.app)
        return handle


@pytest.fixture
def tasks(app: Horsies) -> Tasks:
    return Tasks(app)


def code(handle: WorkflowHandle[Any], node: Any) -> Any:
    return handle.result_for(node).unwrap_err().error_code


def test_a_plain_parameter_gets_the_value_and_an_annotated_one_the_result(tasks: Tasks) -> None:
    one = tasks.number.node(node_id="one")(n=21)
    two = tasks.double.node(node_id="two")(n=from_node(one))
    three = tasks.whole.node(node_id="three")(n=from_node(two))

    assert tasks.run(one, two, three).get(0).unwrap() == "ran"

    assert tasks.seen == [21, TaskResult(ok=42)]


def test_a_parameter_that_takes_anything_gets_the_value(tasks: Tasks) -> None:
    one = tasks.number.node(node_id="one")(n=5)
    two = tasks.anything.node(node_id="two")(n=from_node(one))

    assert tasks.run(one, two).get(0).unwrap() == "5"


def test_an_optional_plain_parameter_gets_the_value(tasks: Tasks) -> None:
    one = tasks.number.node(node_id="one")(n=5)
    two = tasks.with_default.node(node_id="two")(n=from_node(one))

    assert tasks.run(one, two).get(0).unwrap() == "5"


def test_a_node_whose_source_failed_is_skipped_and_its_result_reaches_only_who_asks_for_it(
    tasks: Tasks,
) -> None:
    bad = tasks.fails.node(node_id="bad")()
    plain = tasks.double.node(node_id="plain")(n=from_node(bad))
    told = tasks.whole.node(node_id="told", allow_failed_deps=True)(n=from_node(bad))

    handle = tasks.run(bad, plain, told)

    assert code(handle, plain) is OutcomeCode.UPSTREAM_SKIPPED
    assert tasks.seen == [TaskResult(err=NO_STOCK)]


@pytest.mark.parametrize("skipped", [False, True])
def test_a_node_that_allows_failures_fails_without_a_value_and_is_neither_run_nor_retried(
    tasks: Tasks, skipped: bool
) -> None:
    bad = tasks.fails.node(node_id="bad")()
    between = tasks.double.node(node_id="between")(n=from_node(bad))
    source, nodes = (between, [bad, between]) if skipped else (bad, [bad])
    plain = tasks.double.node(node_id="plain", allow_failed_deps=True)(n=from_node(source))
    by_default = tasks.with_default.node(node_id="by_default", allow_failed_deps=True)(n=from_node(source))

    handle = tasks.run(*nodes, plain, by_default)

    assert tasks.seen == []
    assert handle.status().unwrap() is WorkflowStatus.FAILED
    for node in (plain, by_default):
        error = handle.result_for(node).unwrap_err()
        assert error.error_code is OutcomeCode.UPSTREAM_FAILED
        assert error.message is not None
        assert "'n'" in error.message
        assert ("UPSTREAM_SKIPPED" if skipped else "NO_STOCK: sold out") in error.message


def test_the_values_of_a_map_arrive_as_a_list_and_a_failed_item_stops_what_needs_them(tasks: Tasks) -> None:
    many = tasks.numbers.node(node_id="many")(upto=3)
    doubled = map_node(tasks.double, over=many, node_id="doubled")
    total = tasks.total.node(node_id="total")(ns=from_node(doubled))
    assert tasks.run(many, doubled, total).get(0).unwrap() == 6
    tasks.seen.clear()

    broken = map_node(tasks.fails, over=many, node_id="broken", param="n")
    skipped = tasks.total.node(node_id="skipped")(ns=from_node(broken))
    failed = tasks.total.node(node_id="failed", allow_failed_deps=True)(ns=from_node(broken))
    handle = tasks.run(many, broken, skipped, failed)

    assert code(handle, skipped) is OutcomeCode.UPSTREAM_SKIPPED
    assert code(handle, failed) is OutcomeCode.UPSTREAM_FAILED
    assert tasks.seen == []


@pytest.mark.parametrize("join", [{"join": "any"}, {"join": "quorum", "min_success": 1}])
def test_a_join_that_does_not_need_the_source_leaves_the_default(tasks: Tasks, join: dict[str, Any]) -> None:
    bad, good = tasks.fails.node(node_id="bad")(), tasks.number.node(node_id="good")(n=3)
    asked = signal_node("later", node_id="later")
    from_bad = tasks.with_default.node(node_id="from_bad", waits_for=[good, bad], **join)(n=from_node(bad))
    from_good = tasks.with_default.node(node_id="from_good", waits_for=[good, bad], **join)(n=from_node(good))
    from_open = tasks.with_default.node(node_id="from_open", waits_for=[good, asked], **join)(
        n=from_node(asked)
    )

    handle = tasks.run(bad, good, asked, from_bad, from_good, from_open)

    assert handle.result_for(from_bad).unwrap() == "None"
    assert handle.result_for(from_good).unwrap() == "3"
    assert handle.result_for(from_open).unwrap() == "None"


def test_a_value_of_another_type_fails_the_node_before_it_runs(tasks: Tasks) -> None:
    asked = signal_node("n", node_id="asked")
    plain = tasks.double.node(node_id="plain")(n=from_node(asked))
    handle = (
        tasks.app.workflow("wrong", [asked, plain], output=plain, definition_key="wrong").start().unwrap()
    )
    handle.signal("n", "seven").unwrap()
    drain(tasks.app)

    assert tasks.seen == []


def test_a_builder_gets_plain_values_and_results_as_it_is_annotated(tasks: Tasks) -> None:
    class Part(WorkflowDefinition[int]):
        name = "part"
        definition_key = "plain.part"

        @classmethod
        def build_with(  # pyright: ignore[reportIncompatibleMethodOverride]
            cls, app: Any, *, size: int, told: TaskResult[int, TaskError], extra: int = 0
        ) -> WorkflowSpec[int]:
            tasks.seen.append((size, told, extra))
            node = tasks.number.node()(n=size + extra)
            return app.workflow("part", [node], output=node, definition_key="plain.part")

    one = tasks.number.node(node_id="one")(n=4)
    part: Any = SubWorkflowNode(
        Part, kwargs={"size": from_node(one), "told": from_node(one), "extra": 1}, node_id="part"
    )
    assert tasks.run(one, part).get(0).unwrap() == 5
    assert tasks.seen == [(4, TaskResult(ok=4), 1)]
    tasks.seen.clear()

    bad = tasks.fails.node(node_id="bad")()
    arguments = {"size": from_node(bad), "told": from_node(bad)}
    skipped: Any = SubWorkflowNode(Part, kwargs=arguments, node_id="skipped")
    failed: Any = SubWorkflowNode(Part, kwargs=arguments, node_id="failed", allow_failed_deps=True)
    handle = tasks.run(bad, skipped, failed)

    assert code(handle, skipped) is OutcomeCode.UPSTREAM_SKIPPED
    assert code(handle, failed) is OutcomeCode.UPSTREAM_FAILED
    assert tasks.seen == []


def test_a_stored_result_that_is_no_result_is_an_error_of_the_arguments() -> None:
    for stored in (b"[1]", b'"text"', b"7"):
        with pytest.raises(ArgumentError, match="'n' of task 'double' cannot be read"):
            plain_values("double", {"n": int}, {"n": msgspec.Raw(stored)}, optional=False)
