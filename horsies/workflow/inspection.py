"""Look for mistakes in workflows without starting any: every definition is built, and every builder with every case.

Builders are the user's code and may do anything, so they are called while sends are suppressed, and what they raise is
reported with the case that made them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, get_origin, get_type_hints

from horsies.errors import ErrorCode, HorsiesError, SourceLocation, ValidationReport, WorkflowValidationError
from horsies.workflow.definition import DEFINITIONS, WorkflowDefinition
from horsies.workflow.spec import WorkflowSpec

Case = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Builder:
    """A function that makes workflows, and arguments to try it with."""

    fn: Callable[..., Any]
    cases: Sequence[Case] | None = None

    @property
    def name(self) -> str:
        return getattr(self.fn, "__qualname__", repr(self.fn))


def definition_problems(app: Any) -> list[HorsiesError]:
    """What is wrong with the definitions that are known; one with parameters is built where it is used."""
    report = ValidationReport("definitions")
    for definition in _all_definitions(WorkflowDefinition):
        if not definition.definition_key and definition.nodes():
            report.add(
                _wrong(
                    ErrorCode.WORKFLOW_NO_DEFINITION_KEY,
                    f"the workflow definition {definition.__name__} has no definition_key",
                    "give it one, and keep it",
                    definition,
                )
            )
    for definition in DEFINITIONS.values():
        if definition.nodes() and "build_with" not in vars(definition):
            report.collect(lambda definition=definition: definition.build(app))
    return report.errors


def builder_problems(builders: Iterable[Builder]) -> list[HorsiesError]:
    """What is wrong with builders, or with what they build."""
    return [error for builder in builders for error in _problems(builder)]


def undecorated(modules: Iterable[ModuleType], builders: Iterable[Builder]) -> list[HorsiesError]:
    """Functions that make workflows and are not known as builders, so that nobody checks what they make."""
    known = {builder.fn for builder in builders}
    return [
        _wrong(
            ErrorCode.WORKFLOW_CHECK_UNDECORATED_BUILDER,
            f"{name} gives a WorkflowSpec and is not checked",
            "put @app.workflow_builder(cases=[…]) above it",
            fn,
        )
        for module in modules
        for name, fn in vars(module).items()
        if inspect.isfunction(fn)
        and fn.__module__ == module.__name__
        and fn not in known
        and _makes_specs(fn)
    ]


def _problems(builder: Builder) -> Iterator[HorsiesError]:
    signature = inspect.signature(builder.fn)
    needs = [name for name, each in signature.parameters.items() if each.default is each.empty]
    if needs and not builder.cases:
        yield _wrong(
            ErrorCode.WORKFLOW_CHECK_CASES_REQUIRED,
            f"the builder {builder.name} takes {', '.join(needs)}, and no cases are given to try it with",
            "pass some: @app.workflow_builder(cases=[{…}])",
            builder.fn,
        )
        return
    for case in builder.cases or [{}]:
        try:
            signature.bind(**case)
        except TypeError as error:
            yield _wrong(
                ErrorCode.WORKFLOW_CHECK_CASE_INVALID,
                f"the builder {builder.name} cannot be called with the case {case!r}: {error}",
                "pass its arguments by name",
                builder.fn,
            )
            continue
        yield from _tried(builder, case)


def _tried(builder: Builder, case: Case) -> list[HorsiesError]:
    report = ValidationReport(builder.name)
    try:
        report.collect(lambda: builder.fn(**case))
    except Exception as error:  # noqa: BLE001  a builder is the user's code; what it raises is what is reported
        report.add(
            _wrong(
                ErrorCode.WORKFLOW_CHECK_BUILDER_EXCEPTION,
                f"the builder {builder.name} raised {type(error).__name__} for the case {case!r}: {error}",
                "correct the builder, or the case",
                builder.fn,
            )
        )
    return report.errors


def _makes_specs(fn: Callable[..., Any]) -> bool:
    try:
        made = get_type_hints(fn).get("return")
    except Exception:  # noqa: BLE001  an annotation that cannot be resolved is not ours to report
        return False
    return made is WorkflowSpec or get_origin(made) is WorkflowSpec


def _all_definitions(base: type[WorkflowDefinition[Any]]) -> Iterator[type[WorkflowDefinition[Any]]]:
    for each in base.__subclasses__():
        yield each
        yield from _all_definitions(each)


def _wrong(code: ErrorCode, message: str, remedy: str, about: Any) -> HorsiesError:
    try:
        location = SourceLocation(inspect.getsourcefile(about) or "?", inspect.getsourcelines(about)[1])
    except (OSError, TypeError):
        location = None
    return WorkflowValidationError(message, code=code, help_text=remedy, location=location)
