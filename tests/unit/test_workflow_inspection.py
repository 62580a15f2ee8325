"""`check` finds workflows that cannot be built before anybody starts one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from horsies import AppConfig, ErrorCode, Horsies, PostgresConfig, TaskError, TaskResult
from horsies.workflow.definition import DEFINITIONS

HEADER = """
from typing import Any
from horsies import *
app = Horsies(AppConfig(broker=PostgresConfig(database_url="postgresql://nobody@nowhere/none")))

@app.task("number")
def number(n: int = 0) -> TaskResult[int, TaskError]:
    return TaskResult(ok=n)

def spec(node) -> Any:
    return app.workflow("w", [node], definition_key="k")
"""


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """What the check finds in a module."""
    known = dict(DEFINITIONS)
    monkeypatch.syspath_prepend(str(tmp_path))

    def found(source: str) -> list[ErrorCode | None]:
        (tmp_path / "checked.py").write_text(HEADER + source)
        module = ModuleType("checked")
        sys.modules.pop("checked", None)
        module = __import__("checked")
        module.app.discover_tasks(["checked"])
        errors = module.app.check()
        assert all(error.help_text for error in errors)
        return [error.code for error in errors]

    yield found
    sys.modules.pop("checked", None)
    DEFINITIONS.clear()
    DEFINITIONS.update(known)


def test_a_builder_is_tried_with_every_case(check: Any) -> None:
    assert (
        check(
            """
@app.workflow_builder(cases=[{"n": 1}, {"n": 2}])
def build(n: int) -> WorkflowSpec[int]:
    return spec(number.node()(n=n))
"""
        )
        == []
    )


def test_a_builder_with_parameters_needs_cases(check: Any) -> None:
    assert check(
        """
@app.workflow_builder()
def build(n: int) -> WorkflowSpec[int]:
    return spec(number.node()(n=n))
"""
    ) == [ErrorCode.WORKFLOW_CHECK_CASES_REQUIRED]


def test_a_case_must_fit_its_builder(check: Any) -> None:
    assert check(
        """
@app.workflow_builder(cases=[{"m": 1}])
def build(n: int) -> WorkflowSpec[int]:
    return spec(number.node()(n=n))
"""
    ) == [ErrorCode.WORKFLOW_CHECK_CASE_INVALID]


def test_what_a_builder_raises_is_reported_and_so_is_what_it_builds(check: Any) -> None:
    assert check(
        """
@app.workflow_builder(cases=[{"n": 0}, {"n": 1}])
def build(n: int) -> WorkflowSpec[int]:
    return spec(number.node()(n=1 // n, m=2))
"""
    ) == [ErrorCode.WORKFLOW_CHECK_BUILDER_EXCEPTION, ErrorCode.WORKFLOW_INVALID_KWARG_KEY]


def test_a_builder_must_return_a_workflow(check: Any) -> None:
    assert check(
        """
@app.workflow_builder()
def build() -> WorkflowSpec[int]:
    return number.node()()
"""
    ) == [ErrorCode.WORKFLOW_CHECK_BUILDER_EXCEPTION]


def test_a_builder_may_return_a_chain_which_is_validated(check: Any) -> None:
    assert check(
        """
@app.workflow_builder(cases=[{"second": {"n": 1}}, {"second": {"m": 1}}])
def build(second: dict[str, int]) -> Any:
    return chain(number.node(1), number.node()(**second))
"""
    ) == [ErrorCode.WORKFLOW_INVALID_KWARG_KEY]


def test_a_function_that_makes_workflows_is_to_be_checked(check: Any) -> None:
    assert check(
        """
def build() -> WorkflowSpec[int]:
    return spec(number.node()())
"""
    ) == [ErrorCode.WORKFLOW_CHECK_UNDECORATED_BUILDER]


def test_every_definition_is_built(check: Any) -> None:
    assert check(
        """
class Wrong(WorkflowDefinition[int]):
    name = "wrong"
    definition_key = "checked.wrong"
    only = number.node()(m=1)
"""
    ) == [ErrorCode.WORKFLOW_INVALID_KWARG_KEY]


def test_a_definition_without_a_key_is_reported(check: Any) -> None:
    assert check(
        """
class Nameless(WorkflowDefinition[int]):
    name = "nameless"
    only = number.node()()
"""
    ) == [ErrorCode.WORKFLOW_NO_DEFINITION_KEY]


def test_starts_are_suppressed_while_modules_are_imported() -> None:
    app = Horsies(AppConfig(broker=PostgresConfig(database_url="postgresql://nobody@nowhere/none")))

    @app.task("alone")
    def alone() -> TaskResult[int, TaskError]:
        return TaskResult(ok=1)

    spec = app.workflow("w", [alone.node()()], definition_key="k")
    app.suppress_sends(True)

    assert "suppressed" in spec.start().unwrap_err().message
