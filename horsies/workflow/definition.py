"""Workflows written as classes, known by a key that outlives the class."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar, get_args, get_origin

from horsies.codec.schema import type_name
from horsies.errors import ErrorCode, WorkflowValidationError
from horsies.workflow.nodes import AnyNode, Blueprint, Node, OnError, SuccessPolicy
from horsies.workflow.spec import WorkflowSpec
from horsies.workflow.types import value_type_of

T = TypeVar("T")
DEFINITIONS: dict[str, type[WorkflowDefinition[Any]]] = {}


class MakesSpecs(Protocol):
    """An app, as far as a definition must know it."""

    def workflow(
        self,
        name: str,
        tasks: Sequence[AnyNode],
        on_error: OnError = ...,
        output: Node[Any] | None = ...,
        success_policy: SuccessPolicy | None = ...,
        *,
        definition_key: str | None = ...,
        deadline_seconds: float | None = ...,
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

    A definition with parameters overrides `build_with`, which must make a fresh workflow each time.
    """

    # A class of yours with `output` (a node, or the name of an attribute), `on_error`, `success_policy` and
    # `deadline_seconds`, as far as they are to be other than by default.
    Meta: ClassVar[Any] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, node in vars(cls).items():
            if isinstance(node, Node) and node.node_id is None:
                node.node_id = name
        if cls.definition_key:
            _register(cls)

    @classmethod
    def nodes(cls) -> list[AnyNode]:
        """The nodes, in the order in which they were written."""
        return [node for node in vars(cls).values() if isinstance(node, Node)]

    @classmethod
    def build(cls, app: MakesSpecs) -> WorkflowSpec[T]:
        """The workflow that this class describes, checked."""
        output = getattr(cls.Meta, "output", None)
        output = vars(cls).get(output) if isinstance(output, str) else output
        spec = app.workflow(
            cls.name or cls.__name__,
            cls.nodes(),
            getattr(cls.Meta, "on_error", OnError.FAIL),
            output,
            getattr(cls.Meta, "success_policy", None),
            definition_key=cls.definition_key or None,
            deadline_seconds=getattr(cls.Meta, "deadline_seconds", None),
        )
        _check_output(cls, output)
        return spec

    @classmethod
    def build_with(cls, app: MakesSpecs, **params: Any) -> WorkflowSpec[T]:
        """The workflow for some parameters; override it to have any."""
        if params:
            raise WorkflowValidationError(
                f"{cls.__name__} was given {', '.join(params)}, and takes nothing",
                code=ErrorCode.WORKFLOW_SUBWORKFLOW_PARAMS_REQUIRE_BUILD_WITH,
                help_text="write a classmethod build_with(cls, app, …) in it",
            )
        return cls.build(app)

    @classmethod
    def value_type(cls) -> Any:
        """The T of `WorkflowDefinition[T]`; Any when it was left open."""
        for base in getattr(cls, "__orig_bases__", ()):
            if get_origin(base) is WorkflowDefinition and not isinstance(get_args(base)[0], TypeVar):
                return get_args(base)[0]
        return Any


def _check_output(cls: type[WorkflowDefinition[Any]], output: AnyNode | None) -> None:
    promised = cls.value_type()
    if output is None or promised is Any:
        return
    given = value_type_of(output)
    if given not in (Any, promised):
        raise WorkflowValidationError(
            f"{cls.__name__} promises {promised}, and its output gives {given}",
            code=ErrorCode.WORKFLOW_OUTPUT_TYPE_MISMATCH,
            help_text=f"write WorkflowDefinition[{type_name(given)}], or choose another output",
        )


def _register(cls: type[WorkflowDefinition[Any]]) -> None:
    known = DEFINITIONS.get(cls.definition_key)
    if known is not None and _origin(known) != _origin(cls):
        raise WorkflowValidationError(
            f"the definition_key {cls.definition_key!r} of {cls.__name__} is that of {known.__module__}.{known.__qualname__}",
            code=ErrorCode.WORKFLOW_DUPLICATE_DEFINITION_KEY,
            help_text="give each definition a key of its own, and keep it",
        )
    DEFINITIONS[cls.definition_key] = cls


def _origin(cls: type) -> tuple[str | None, str]:
    """Where a class was written: the same module may be imported under several names."""
    return getattr(sys.modules.get(cls.__module__), "__file__", cls.__module__), cls.__qualname__
