"""The nodes of a workflow.

A node says what to run and what to wait for. Nodes refer to each other as objects, so a reference cannot be misspelt. Nothing here
is stored or sent.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import FrozenInstanceError, field, fields
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cache
from typing import Any, ClassVar, Generic, Literal, ParamSpec, Protocol, TypeAlias, TypeVar, cast

from horsies.durations import Duration
from horsies.enqueue import TaskDefinition
from horsies.errors import ErrorCode, WorkflowContextMissingIdError, WorkflowValidationError
from horsies.frozen import dataclass
from horsies.retry import RetryPolicy

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Join: TypeAlias = Literal["all", "any", "quorum"]


class OnError(StrEnum):
    """The reaction of a workflow to a failed node: FAIL runs what does not depend on the node, PAUSE waits until someone resumes."""

    FAIL = "FAIL"
    PAUSE = "PAUSE"


class RunnableTask(Protocol[T_co]):
    """The part of a task that a node needs, sync or async."""

    @property
    def definition(self) -> TaskDefinition: ...

    def gives(self) -> type[T_co]:
        """Return the type of the value on success."""
        ...


class Blueprint(Generic[T_co]):
    """The part of a workflow definition that a node needs."""

    name: ClassVar[str] = ""
    definition_key: ClassVar[str] = ""

    @classmethod
    def build_with(cls, app: Any, **params: Any) -> Any:
        """Return a new `WorkflowSpec` for these parameters."""
        raise NotImplementedError

    @classmethod
    def value_type(cls) -> Any:
        """Return the type of the workflow's value, Any if it is unknown."""
        return Any


@dataclass(frozen=True, slots=True)
class NodeKey(Generic[T_co]):
    """The id of a node within its workflow, with the type of its value.

    >>> handle.result_for(fetch.key())
    """

    node_id: str


@dataclass(eq=False, kw_only=True)
class Node(Generic[T_co]):
    """The common part of all nodes: the nodes that they wait for, and their id.

    A node without an id gets one from the workflow it is put into: the name of its task, with a number if the name repeats. The
    nodes of a validated workflow are frozen copies.
    """

    waits_for: Sequence[Node[Any]] = ()
    node_id: str | None = None
    default_id: str | None = field(default=None, init=False, repr=False)  # set if a workflow chose the id
    is_step: bool = field(default=False, init=False, repr=False)  # of a chain or a group

    def key(self) -> NodeKey[T_co]:
        """Return the key of the node, for code that does not have the node itself."""
        if self.node_id is None:
            raise WorkflowContextMissingIdError(
                "a node without a node_id has no key before it is part of a workflow",
                help_text="call app.workflow(…) first, or give it an id: TaskNode(…, node_id='fetch')",
            )
        return NodeKey(self.node_id)


class FrozenNode:
    """Mixin of the nodes of a validated workflow: it refuses changes."""

    __slots__ = ()

    def __setattr__(self, name: str, _value: object) -> None:
        raise FrozenInstanceError(
            f"{name!r} of node {getattr(self, 'node_id', None)!r} cannot change, because its workflow has been validated; "
            "make a new workflow"
        )

    def __delattr__(self, name: str) -> None:
        self.__setattr__(name, None)


@cache
def frozen_class(kind: type[Node[Any]]) -> type[Node[Any]]:
    """Return a subclass of a kind of nodes whose instances refuse changes. The nodes of users do not pay for that."""
    members = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return kind if issubclass(kind, FrozenNode) else type(kind.__name__, (FrozenNode, kind), members)


@dataclass(eq=False, kw_only=True)
class NodeWithInputs(Node[T_co]):
    """A node that takes arguments and results of other nodes, and has a join."""

    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    args_from: Mapping[str, Node[Any]] = field(default_factory=dict[str, "Node[Any]"])
    workflow_ctx_from: Sequence[Node[Any]] | None = None
    allow_failed_deps: bool = False
    join: Join = "all"
    min_success: int | None = None


@dataclass(eq=False)
class TaskNode(NodeWithInputs[T_co]):
    """A task that runs when the nodes it waits for have ended as its join requires.

    `timeout` limits each run, in seconds or as a timedelta; `timeout_ms` does so in milliseconds.

    >>> fetch = TaskNode(fn=fetch_page, kwargs={"url": url})
    >>> parse = TaskNode(fn=parse_page, waits_for=[fetch], args_from={"page": fetch})
    """

    fn: RunnableTask[T_co]
    queue: str | None = field(default=None, kw_only=True)
    priority: int | None = field(default=None, kw_only=True)
    good_until: datetime | None = field(default=None, kw_only=True)
    timeout_ms: int | timedelta | None = field(default=None, kw_only=True)
    timeout: Duration | None = field(default=None, kw_only=True)
    retry_policy: RetryPolicy | None = field(default=None, kw_only=True)
    task_key: str | int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        _require_task(self.fn, "TaskNode(fn=…)")


@dataclass(eq=False)
class SubWorkflowNode(NodeWithInputs[T_co]):
    """A whole workflow as a node of another.

    >>> report = SubWorkflowNode(MakeReport, kwargs={"month": 3}, waits_for=[collect])
    """

    workflow_def: type[Blueprint[T_co]]

    def __post_init__(self) -> None:
        given = cast(object, self.workflow_def)
        if not (isinstance(given, type) and issubclass(given, Blueprint)):
            raise WorkflowValidationError(
                f"SubWorkflowNode was given {given!r}, which is not a workflow definition",
                code=ErrorCode.WORKFLOW_SUBWORKFLOW_BUILD_WITH_BINDING,
                help_text="pass a subclass of WorkflowDefinition, the class itself",
            )


@dataclass(eq=False)
class MapNode(Node[list[T]], Generic[T]):
    """One task for each item of a list that another node returns. Made by `map_node`."""

    fn: RunnableTask[T]
    over: Node[Any] | None = None
    param: str | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    task_key: str | int | None = None

    def __post_init__(self) -> None:
        _require_task(self.fn, "map_node")


@dataclass(eq=False)
class GatherNode(Node[list[T]], Generic[T]):
    """The list of the values of other nodes, in order. Made by `group`."""

    of: Sequence[Node[T]]


@dataclass(eq=False)
class SleepNode(Node[None]):
    """A pause. Made by `sleep_node`."""

    seconds: Duration


@dataclass(eq=False)
class SignalNode(Node[Any]):
    """A wait for a signal. Made by `signal_node`."""

    name: str
    timeout_seconds: Duration | None = None


AnyNode: TypeAlias = Node[Any]


def map_node(
    task: RunnableTask[T],
    over: Node[Any] | None = None,
    *,
    param: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
    waits_for: Sequence[AnyNode] = (),
    node_id: str | None = None,
    task_key: str | int | None = None,
) -> MapNode[T]:
    """Run a task for each item of an upstream list. The value is the list of their values, in order; or their first error.

    The item is passed as `param`, or as the only parameter that has no argument yet. In a `chain`, `over` is the step before
    unless it is given. With `task_key`, all items have this key.

    >>> pages = map_node(fetch_page, over=list_urls)
    """
    sources = waits_for if over is None else (*waits_for, over)
    return MapNode(task, over, param, dict(kwargs or {}), task_key, waits_for=sources, node_id=node_id)


def sleep_node(
    seconds: Duration, *, waits_for: Sequence[AnyNode] = (), node_id: str | None = None
) -> SleepNode:
    """Wait for some seconds, or a `timedelta`, by the database's clock, without occupying a worker.

    >>> remind = TaskNode(fn=send_reminder, waits_for=[sleep_node(86_400, waits_for=[invite])])
    """
    return SleepNode(seconds, waits_for=waits_for, node_id=node_id)


def signal_node(
    name: str,
    *,
    timeout_seconds: Duration | None = None,
    waits_for: Sequence[AnyNode] = (),
    node_id: str | None = None,
) -> SignalNode:
    """Wait until `WorkflowHandle.signal(name, value)` gives a value, which may happen before the node is reached.

    >>> approved = signal_node("approved", timeout_seconds=3_600, waits_for=[draft])
    """
    return SignalNode(name, timeout_seconds, waits_for=waits_for, node_id=node_id)


@dataclass(eq=False, slots=True)
class FromNode:
    """A placeholder for the result of a node among the arguments of another."""

    node: AnyNode


def from_node(node: Node[Any]) -> Any:
    """Pass the value or the result of a node as an argument of another, which then waits for it.

    A parameter annotated `T` takes the value, one annotated `TaskResult[T, TaskError]` the whole result, also of a failure. The
    types are checked by `app.workflow(…)`, because type checkers cannot see which of the two a parameter takes.

    >>> parse = parse_page.node(from_node(fetch))
    """
    if not isinstance(cast(object, node), Node):
        raise WorkflowValidationError(
            f"from_node was given {node!r}, which is not a node",
            code=ErrorCode.WORKFLOW_INVALID_ARGS_FROM,
            help_text="pass a node of the same workflow; of a chain or a group, pass its .output",
        )
    return FromNode(node)


@dataclass(eq=False)
class NodeBuilder(TaskNode[T_co], Generic[P, T_co]):
    """The result of `task.node(…)` with options only: a node without arguments. Call it to get the node with arguments.

    >>> parse = parse_page.node(node_id="parse")(from_node(fetch))
    """

    # Options that the task has as parameters, too: without a call it is not clear which of the two was meant.
    ambiguous: tuple[str, ...] = field(default=(), kw_only=True, repr=False)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> TaskNode[T_co]:
        options = {name: getattr(self, name) for name in NODE_OPTIONS}
        return TaskNode(self.fn, kwargs=_by_name(self.fn.definition, args, kwargs), **options)


# What `task.node(…)` takes besides the arguments of the task.
NODE_OPTIONS = tuple(
    each.name for each in fields(TaskNode) if each.init and each.name not in ("fn", "kwargs")
)


def node_of(task: RunnableTask[T], args: tuple[Any, ...], given: Mapping[str, Any]) -> TaskNode[T]:
    """Return the node of `task.node(…)`, which is given options, arguments of the task, or both."""
    parameters = task.definition.signature.parameters
    options = {name: value for name, value in given.items() if name in NODE_OPTIONS and value is not None}
    kwargs = {name: value for name, value in given.items() if name not in NODE_OPTIONS}
    shared = tuple(name for name in options if name in parameters)
    if unknown := [name for name in kwargs if name not in parameters]:
        raise WorkflowValidationError(
            f"a node of task {task.definition.name!r} is given {unknown[0]!r}, which is neither an argument nor an option",
            code=ErrorCode.WORKFLOW_INVALID_KWARG_KEY,
            help_text=f"the arguments are: {', '.join(parameters) or 'none'}; the options are: {', '.join(NODE_OPTIONS)}",
        )
    if not (args or kwargs):
        return NodeBuilder[..., T](task, ambiguous=shared, **options)
    if shared:
        raise ambiguous_option(task.definition.name, shared[0])
    return TaskNode(task, kwargs=_by_name(task.definition, args, kwargs), **options)


def ambiguous_option(task_name: str, name: str) -> WorkflowValidationError:
    """Return the error for a name that is an option of nodes and a parameter of the task."""
    return WorkflowValidationError(
        f"task {task_name!r} has a parameter {name!r}, which is also an option of nodes; node({name}=…) could mean either",
        code=ErrorCode.WORKFLOW_INVALID_KWARG_KEY,
        help_text=f"pass options first and arguments in a second call: node()({name}=…) for the parameter, "
        f"node({name}=…)(…) for the option",
    )


def _by_name(task: TaskDefinition, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a node by their names."""
    parameters = task.signature.parameters
    names = [name for name, each in parameters.items() if each.kind is not inspect.Parameter.KEYWORD_ONLY]
    twice = [name for name in names[: len(args)] if name in kwargs]
    if len(args) > len(names) or twice:
        problem = f"{twice[0]!r} by position and by name" if twice else f"{len(args)} arguments by position"
        raise WorkflowValidationError(
            f"a node of task {task.name!r} is given {problem}",
            code=ErrorCode.WORKFLOW_POSITIONAL_ARGS_NOT_SUPPORTED,
            help_text=f"it takes {len(names)} by position: {', '.join(names) or 'none'}; pass others by name",
        )
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _require_task(task: object, place: str) -> None:
    """Raise an error if something else than a task was given where a task belongs."""
    if not isinstance(getattr(task, "definition", None), TaskDefinition):
        name = getattr(task, "__name__", None)
        raise WorkflowValidationError(
            f"{place} was given {task!r}, which is not a task",
            code=ErrorCode.TASK_NOT_REGISTERED,
            help_text=f"put @app.task above {f'def {name}' if name else 'the function'}, and pass what it makes",
        )


@dataclass(eq=False)
class Subgraph(Generic[T_co]):
    """Nodes that are wired to each other, and can be used as one step. Made by `chain` and `group`.

    The `heads` wait for the step before, and the `takers` take its value. `output` is the node whose value is that of the whole.
    """

    nodes: tuple[Node[Any], ...]
    heads: tuple[Node[Any], ...] = field(repr=False)
    takers: tuple[Node[Any], ...] = field(repr=False)
    output: Node[T_co]
    is_step: bool = field(default=False, init=False, repr=False)


@dataclass(frozen=True, slots=True)
class SuccessCase:
    """Nodes that must all complete for the workflow to succeed."""

    required: Sequence[AnyNode]


@dataclass(frozen=True, slots=True)
class SuccessPolicy:
    """A workflow succeeds if one of these cases is met; a failure of an `optional` node does not matter.

    >>> SuccessPolicy(cases=[SuccessCase(required=[primary]), SuccessCase(required=[fallback])])
    """

    cases: Sequence[SuccessCase]
    optional: Sequence[AnyNode] | None = None


class NodeResults(dict[str, Any]):
    """Results by node id. A node without a given id is also found as "workflow_name:0", by its place in the workflow."""

    def __init__(self, results: Mapping[str, Any], aliases: Mapping[str, str]) -> None:
        super().__init__(results)
        self._aliases = aliases

    def __missing__(self, key: str) -> Any:
        return super().__getitem__(self._aliases[key])

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or super().__contains__(self._aliases.get(cast(str, key)))

    def get(self, key: str, default: Any = None, /) -> Any:
        """Return the result of a node, or the default."""
        return super().get(key if super().__contains__(key) else self._aliases.get(key, key), default)


def slugify(text: str) -> str:
    """Turn a text into a part of a node id: characters that an id cannot have become underscores.

    >>> slugify("Hello World!")
    'Hello_World'
    """
    return slug_of(text) or "workflow"


def slug_of(text: str) -> str:
    """Return a text without the characters that an id cannot have; empty if nothing remains."""
    words = re.findall(r"[A-Za-z0-9_\-:.]+", text)
    return "_".join(words)
