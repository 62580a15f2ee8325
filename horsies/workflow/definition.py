"""Workflows written as classes, registered under a key that outlives the class, and the checks that try to build them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from types import ModuleType
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast, get_args, get_origin, get_type_hints

from horsies.codec.values import type_name
from horsies.durations import Duration
from horsies.errors import ErrorCode, HorsiesError, SourceLocation, ValidationReport, WorkflowValidationError
from horsies.workflow.flow import Flow
from horsies.workflow.graph import value_type_of
from horsies.workflow.nodes import AnyNode, Blueprint, Node, OnError, Subgraph, SuccessPolicy
from horsies.workflow.spec import WorkflowSpec, building, flat_nodes
from horsies.workflow.types import fits
from horsies.workflow.validate import wrong

T = TypeVar("T")
DEFINITIONS: dict[str, type[WorkflowDefinition[Any]]] = {}


class MakesSpecs(Protocol):
    """The part of an app that a definition needs."""

    def workflow(
        self,
        name: str,
        tasks: Sequence[AnyNode | Subgraph[Any]] | Subgraph[Any],
        on_error: OnError = ...,
        output: Node[Any] | None = ...,
        success_policy: SuccessPolicy | None = ...,
        *,
        definition_key: str | None = ...,
        deadline_seconds: Duration | None = ...,
    ) -> WorkflowSpec[Any]: ...


class WorkflowDefinition(Blueprint[T], Generic[T]):
    """A workflow as a class: its nodes are attributes, and their names are their ids.

    >>> class Import(WorkflowDefinition[int]):
    ...     name = "import"
    ...     definition_key = "shop.import.v1"
    ...     fetch = TaskNode(fn=fetch_page, kwargs={"url": "https://example.org"})
    ...     parse = TaskNode(fn=parse_page, waits_for=[fetch], args_from={"page": fetch})
    ...     class Meta:
    ...         output = "parse"
    >>> Import.build(app).start()

    A definition with parameters overrides `build_with`, which must make a fresh workflow each time. A workflow that is made there
    without a `definition_key` takes the one of the class.
    """

    # Override it with a class that has any of `output` (a node, or the name of an attribute), `on_error`, `success_policy` and
    # `deadline_seconds`.
    Meta: ClassVar[Any] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, node in vars(cls).items():
            if isinstance(node, Node) and node.node_id is None:
                node.node_id = name
        if isinstance(vars(cls).get("build_with"), classmethod):
            setattr(cls, "build_with", _noting_definition(vars(cls)["build_with"]))  # noqa: B010  a method, to type checkers
        if not cls.definition_key:
            return
        known = DEFINITIONS.setdefault(cls.definition_key, cls)
        if _origin(known) != _origin(cls):
            raise wrong(
                ErrorCode.WORKFLOW_DUPLICATE_DEFINITION_KEY,
                f"the definition_key {cls.definition_key!r} of {cls.__name__} is already used by {known.__module__}.{known.__qualname__}",
                "give each definition a key of its own, and keep it",
            )
        DEFINITIONS[cls.definition_key] = cls

    @classmethod
    def nodes(cls) -> list[AnyNode]:
        """Return the nodes, in the order of the class body."""
        given: list[Any] = [each for each in vars(cls).values() if isinstance(each, Node | Subgraph)]
        return list(flat_nodes(given))

    @classmethod
    def build(cls, app: MakesSpecs) -> WorkflowSpec[T]:
        """Build the workflow that this class describes, and validate it."""
        output = getattr(cls.Meta, "output", None)
        output = vars(cls).get(output) if isinstance(output, str) else output
        output = cast("Subgraph[Any]", output).output if isinstance(output, Subgraph) else output
        spec = app.workflow(
            cls.name or cls.__name__,
            cls.nodes(),
            getattr(cls.Meta, "on_error", OnError.FAIL),
            output,
            getattr(cls.Meta, "success_policy", None),
            definition_key=cls.definition_key or None,
            deadline_seconds=getattr(cls.Meta, "deadline_seconds", None),
        )
        declared, given = cls.value_type(), Any if output is None else value_type_of(output)
        if not fits(declared, given):
            raise wrong(
                ErrorCode.WORKFLOW_OUTPUT_TYPE_MISMATCH,
                f"{cls.__name__} is declared with {type_name(declared)}, and its output returns {type_name(given)}",
                f"write WorkflowDefinition[{type_name(given)}], or choose another output",
            )
        return spec

    @classmethod
    def build_with(cls, app: MakesSpecs, **params: Any) -> WorkflowSpec[T] | Flow[T]:
        """Build the workflow for some parameters. Override it to accept any; it may return a chain or group."""
        if params:
            raise wrong(
                ErrorCode.WORKFLOW_SUBWORKFLOW_PARAMS_REQUIRE_BUILD_WITH,
                f"{cls.__name__} was given {', '.join(params)}, and takes nothing",
                "write a classmethod build_with(cls, app, …) in it",
            )
        with building(cls.definition_key, app):
            return cls.build(app)

    @classmethod
    def value_type(cls) -> Any:
        """Return the T of `WorkflowDefinition[T]`, Any if it is open."""
        for base in getattr(cls, "__orig_bases__", ()):
            if get_origin(base) is WorkflowDefinition and not isinstance(get_args(base)[0], TypeVar):
                return get_args(base)[0]
        return Any


def _noting_definition(method: classmethod[Any, ..., Any]) -> classmethod[Any, ..., Any]:
    """Return a `build_with` that makes it known which definition is being built."""

    @wraps(method.__func__)
    def build_with(cls: type[WorkflowDefinition[Any]], app: Any, *args: Any, **params: Any) -> Any:
        with building(cls.definition_key, app):
            return method.__func__(cls, app, *args, **params)

    return classmethod(build_with)


def _origin(cls: type) -> tuple[str | None, str]:
    """Return the file and name of a class: the same module may be imported under several names."""
    return getattr(sys.modules.get(cls.__module__), "__file__", cls.__module__), cls.__qualname__


@dataclass(frozen=True, slots=True)
class Builder:
    """A function that builds workflows, and arguments to check it with."""

    fn: Callable[..., Any]
    cases: Sequence[Mapping[str, Any]] | None = None

    @property
    def name(self) -> str:
        return getattr(self.fn, "__qualname__", repr(self.fn))


def definition_problems(app: Any) -> list[HorsiesError]:
    """Return the problems of the registered definitions. A definition with parameters is checked where it is used."""
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
    """Return the problems of builders, and of the workflows they build."""
    return [error for builder in builders for error in _problems(builder)]


def _problems(builder: Builder) -> Iterator[HorsiesError]:
    name, signature = builder.name, inspect.signature(builder.fn)
    needs = [name for name, each in signature.parameters.items() if each.default is each.empty]
    if needs and not builder.cases:
        yield _wrong(
            ErrorCode.WORKFLOW_CHECK_CASES_REQUIRED,
            f"the builder {name} takes {', '.join(needs)}, and has no cases to check it with",
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
                f"the builder {name} cannot be called with the case {case!r}: {error}",
                "pass its arguments by name",
                builder.fn,
            )
            continue
        report = ValidationReport(name)
        try:
            report.collect(lambda case=case: _require_spec(builder, builder.fn(**case)))
        except Exception as error:  # noqa: BLE001  a builder is the user's code, and whatever it raises is reported
            yield _wrong(
                ErrorCode.WORKFLOW_CHECK_BUILDER_EXCEPTION,
                f"the builder {name} raised {type(error).__name__} for the case {case!r}: {error}",
                "correct the builder, or the case",
                builder.fn,
            )
        yield from report.errors


def _require_spec(builder: Builder, built: object) -> None:
    """Raise an error if a builder returned something else than a workflow. A chain or group is validated."""
    if isinstance(built, Flow):
        cast("Flow[Any]", built).spec()
    elif not isinstance(built, WorkflowSpec):
        raise _wrong(
            ErrorCode.WORKFLOW_CHECK_BUILDER_EXCEPTION,
            f"the builder {builder.name} returned {built!r}, which is not a WorkflowSpec",
            "return app.workflow(…), or a chain or group",
            builder.fn,
        )


def undecorated(modules: Iterable[ModuleType], builders: Iterable[Builder]) -> list[HorsiesError]:
    """Return an error for each function that returns workflows and is not registered as a builder, so that it is not checked."""
    known = {builder.fn for builder in builders}
    return [
        _wrong(
            ErrorCode.WORKFLOW_CHECK_UNDECORATED_BUILDER,
            f"{name} returns a WorkflowSpec and is not checked",
            "put @app.workflow_builder(cases=[…]) above it",
            fn,
        )
        for module in modules
        for name, fn in vars(module).items()
        if inspect.isfunction(fn)
        and fn.__module__ == module.__name__
        and fn not in known
        and _returns_specs(fn)
    ]


def _returns_specs(fn: Callable[..., Any]) -> bool:
    try:
        returned = get_type_hints(fn).get("return")
    except Exception:  # noqa: BLE001  an annotation that cannot be resolved is reported elsewhere
        return False
    return returned is WorkflowSpec or get_origin(returned) is WorkflowSpec


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
