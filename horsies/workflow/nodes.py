"""The parts that a workflow is drawn with.

A node says what is to be done and after what. Nodes are named by the objects themselves, so a name that is mistyped
cannot be drawn. Nothing here is stored or sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Generic, Literal, ParamSpec, Protocol, TypeAlias, TypeVar, cast

from horsies.errors import ErrorCode, WorkflowContextMissingIdError, WorkflowValidationError
from horsies.results import TaskError, TaskResult
from horsies.retry import RetryPolicy
from horsies.sending import TaskDefinition

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Join: TypeAlias = Literal["all", "any", "quorum"]
_NO_SLUG = re.compile(r"[^a-z0-9]+")


class OnError(StrEnum):
    """What a workflow does when a node has failed: go on with what does not need it, or wait for a person."""

    FAIL = "FAIL"
    PAUSE = "PAUSE"


class Runs(Protocol[T_co]):
    """A task, as far as a node must know it: sync and async ones alike."""

    @property
    def definition(self) -> TaskDefinition: ...

    def gives(self) -> type[T_co]:
        """What it gives on success."""
        ...


class Blueprint(Generic[T_co]):
    """A workflow's definition, as far as the node that runs it must know it."""

    name: ClassVar[str] = ""
    definition_key: ClassVar[str] = ""

    @classmethod
    def build_with(cls, app: Any, **params: Any) -> Any:
        """A fresh `WorkflowSpec` for these parameters."""
        raise NotImplementedError

    @classmethod
    def value_type(cls) -> Any:
        """What the workflow gives on success, as far as it is known."""
        return Any


@dataclass(frozen=True, slots=True)
class NodeKey(Generic[T_co]):
    """The name of a node within its workflow, which remembers the type of its value.

    >>> handle.result_for(fetch.key())
    """

    node_id: str


@dataclass(eq=False, kw_only=True)
class Node(Generic[T_co]):
    """What all nodes have in common: what they wait for, and how they are called."""

    waits_for: Sequence[Node[Any]] = ()
    node_id: str | None = None

    def key(self) -> NodeKey[T_co]:
        """The node's name, for a place where the node itself is out of reach."""
        if self.node_id is None:
            raise WorkflowContextMissingIdError(
                "a node without a node_id has no key",
                help_text="give it one: TaskNode(…, node_id='fetch'), or make it an attribute of a definition",
            )
        return NodeKey(self.node_id)


@dataclass(eq=False, kw_only=True)
class FedNode(Node[T_co]):
    """A node that takes arguments, and joins what it waits for in a way of its own."""

    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    args_from: Mapping[str, Node[Any]] = field(default_factory=dict[str, "Node[Any]"])
    workflow_ctx_from: Sequence[Node[Any]] | None = None
    allow_failed_deps: bool = False
    join: Join = "all"
    min_success: int | None = None


@dataclass(eq=False)
class TaskNode(FedNode[T_co]):
    """A task to run when what it waits for allows it.

    >>> fetch = TaskNode(fn=fetch_page, kwargs={"url": url})
    >>> parse = TaskNode(fn=parse_page, waits_for=[fetch], args_from={"page": fetch})
    """

    fn: Runs[T_co]
    queue: str | None = field(default=None, kw_only=True)
    priority: int | None = field(default=None, kw_only=True)
    good_until: datetime | None = field(default=None, kw_only=True)
    timeout_ms: int | None = field(default=None, kw_only=True)
    retry_policy: RetryPolicy | None = field(default=None, kw_only=True)


@dataclass(eq=False)
class SubWorkflowNode(FedNode[T_co]):
    """A whole workflow as a node of another.

    >>> report = SubWorkflowNode(MakeReport, kwargs={"month": 3}, waits_for=[collect])
    """

    workflow_def: type[Blueprint[T_co]]


@dataclass(eq=False)
class MapNode(Node[list[T]], Generic[T]):
    """One task for each item of a list that another node gives. Made by `map_node`."""

    fn: Runs[T]
    over: Node[Any]
    param: str | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(eq=False)
class SleepNode(Node[None]):
    """A pause. Made by `sleep_node`."""

    seconds: float


@dataclass(eq=False)
class SignalNode(Node[Any]):
    """A wait for somebody's word. Made by `signal_node`."""

    name: str
    timeout_seconds: float | None = None


AnyNode: TypeAlias = Node[Any]


def map_node(
    task: Runs[T],
    over: Node[Any],
    *,
    param: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
    waits_for: Sequence[AnyNode] = (),
    node_id: str | None = None,
) -> MapNode[T]:
    """Run a task for each item of an upstream list; the node's value is the list of theirs, in order, or their first error.

    The item is given as `param`, or as the only parameter that is left open.

    >>> pages = map_node(fetch_page, over=list_urls)
    """
    return MapNode(task, over, param, dict(kwargs or {}), waits_for=(*waits_for, over), node_id=node_id)


def sleep_node(seconds: float, *, waits_for: Sequence[AnyNode] = (), node_id: str | None = None) -> SleepNode:
    """Wait so long, on the database's clock; no worker is kept busy.

    >>> remind = TaskNode(fn=send_reminder, waits_for=[sleep_node(86_400, waits_for=[invite])])
    """
    return SleepNode(seconds, waits_for=waits_for, node_id=node_id)


def signal_node(
    name: str,
    *,
    timeout_seconds: float | None = None,
    waits_for: Sequence[AnyNode] = (),
    node_id: str | None = None,
) -> SignalNode:
    """Wait until `WorkflowHandle.signal(name, value)` gives it a value, which may be before it is reached.

    >>> approved = signal_node("approved", timeout_seconds=3_600, waits_for=[draft])
    """
    return SignalNode(name, timeout_seconds, waits_for=waits_for, node_id=node_id)


class FromNode:
    """Stands for a node's result among the arguments of another."""

    __slots__ = ("node",)

    def __init__(self, node: AnyNode) -> None:
        self.node = node


def from_node(node: Node[T]) -> TaskResult[T, TaskError]:
    """The result of a node, as an argument of another, which then waits for it.

    >>> parse = parse_page.node()(page=from_node(fetch))
    """
    if not isinstance(cast(object, node), Node):
        raise WorkflowValidationError(
            f"from_node was given {node!r}, which is not a node",
            code=ErrorCode.WORKFLOW_INVALID_ARGS_FROM,
            help_text="pass a node of the same workflow",
        )
    return cast("TaskResult[T, TaskError]", FromNode(node))


class NodeBuilder(Generic[P, T]):
    """What `task.node(…)` gives: call it with the task's arguments to have the node."""

    def __init__(self, task: Runs[T], options: Mapping[str, Any]) -> None:
        self._task = task
        self._options = options

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> TaskNode[T]:
        if args:
            raise WorkflowValidationError(
                f"task {self._task.definition.name!r} is given {len(args)} arguments by position in a node",
                code=ErrorCode.WORKFLOW_POSITIONAL_ARGS_NOT_SUPPORTED,
                help_text="pass each by its name",
            )
        return TaskNode(self._task, kwargs=kwargs, **self._options)


@dataclass(frozen=True, slots=True)
class SuccessCase:
    """Nodes that make the workflow a success when all of them have completed."""

    required: Sequence[AnyNode]


@dataclass(frozen=True, slots=True)
class SuccessPolicy:
    """A workflow is a success when one of these cases is met; `optional` nodes may fail without a say in it.

    >>> SuccessPolicy(cases=[SuccessCase(required=[primary]), SuccessCase(required=[fallback])])
    """

    cases: Sequence[SuccessCase]
    optional: Sequence[AnyNode] | None = None


def slugify(text: str) -> str:
    """The text as it can stand in a node's id.

    >>> slugify("Monthly report (EU)")
    'monthly-report-eu'
    """
    return _NO_SLUG.sub("-", text.lower()).strip("-") or "workflow"
