"""Compose nodes without naming their connections: `chain` runs steps one after another, `group` side by side.

Both wire the nodes they are given, so a node can be a step of one chain or group only. A chain or a group can be a step of another.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar, cast
from uuid import UUID

from horsies.client import Broker
from horsies.errors import ErrorCode
from horsies.result import WorkflowStartResult
from horsies.workflow.graph import name_of
from horsies.workflow.handle import WorkflowHandle
from horsies.workflow.nodes import (
    AnyNode,
    GatherNode,
    MapNode,
    Node,
    NodeWithInputs,
    SignalNode,
    SleepNode,
    Subgraph,
    SubWorkflowNode,
    TaskNode,
)
from horsies.workflow.spec import WorkflowSpec
from horsies.workflow.validate import wrong

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Step: TypeAlias = Node[T] | Subgraph[T]

_LONGEST_NAME = 200


@dataclass(eq=False)
class Flow(Subgraph[T_co]):
    """Steps that can be started as a workflow, given to `app.workflow`, or used as a step of another `chain` or `group`.

    >>> handle = chain(fetch.node(1), count.node()).start().unwrap()
    >>> handle.get(timeout_ms=10_000)
    TaskResult(ok=6)
    """

    name: str = field(kw_only=True)
    definition_key: str = field(kw_only=True)

    def spec(self) -> WorkflowSpec[T_co]:
        """Return the validated workflow of these steps; raise all of its errors together."""
        broker = next((each for each in map(_broker_of, self.nodes) if each is not None), None)
        return WorkflowSpec(
            name=self.name,
            tasks=self.nodes,
            output=self.output,
            definition_key=self.definition_key,
            broker=broker,
            resend_on_transient_err=broker is not None and broker.config.resend_on_transient_err,
        )

    def start(
        self, workflow_id: str | UUID | None = None, *, conn: Any = None
    ) -> WorkflowStartResult[WorkflowHandle[T_co]]:
        """Start the steps as a workflow, in the transaction of `conn` if there is one. See `WorkflowSpec.start`."""
        return self.spec().start(workflow_id, conn=conn)

    async def start_async(
        self, workflow_id: str | UUID | None = None, *, conn: Any = None
    ) -> WorkflowStartResult[WorkflowHandle[T_co]]:
        """Call `start` without blocking the running loop."""
        return await self.spec().start_async(workflow_id, conn=conn)


def chain(
    *steps: *tuple[*tuple[Step[Any], ...], Step[T]],
    name: str | None = None,
    definition_key: str | None = None,
) -> Flow[T]:
    """Run steps one after another, each with the value of the step before. The value is that of the last step.

    The value becomes the first required parameter that has no argument. If no such parameter is required, it becomes the only
    one without an argument; several are refused as ambiguous. A node with an argument for each parameter only waits. A group
    gives the value to each of its members, a `sleep_node` passes it on, and a `map_node` without `over` takes its items.

    The name and the definition key default to the text of the call, such as "chain(fetch, count)".

    >>> chain(fetch.node(1), count.node()).start()
    """
    parts = _parts("chain", steps)
    takers = list(parts[0].takers)
    before, value = parts[0].output, _value_after(parts[0].output, None)
    for part in parts[1:]:
        for head in part.heads:
            head.waits_for = (*head.waits_for, before)
        if value is None:  # only sleeps so far: the value comes from whatever this chain is a step of
            takers += part.takers
        else:
            for taker in part.takers:
                _take(taker, value)
        before, value = part.output, _value_after(part.output, value)
    nodes = tuple(node for part in parts for node in part.nodes)
    return _flow("chain", parts, Subgraph(nodes, parts[0].heads, tuple(takers), before), name, definition_key)


def group(*steps: Step[T], name: str | None = None, definition_key: str | None = None) -> Flow[list[T]]:
    """Run steps side by side. The value is the list of their values, in order; if a step fails, there is none.

    >>> group(fetch.node(1), fetch.node(2)).start().unwrap().get()
    TaskResult(ok=['page 1', 'page 2'])
    """
    parts = _parts("group", steps)
    outputs = [part.output for part in parts]
    gathered: GatherNode[Any] = GatherNode(outputs, waits_for=outputs)
    gathered.is_step = True
    nodes = (*(node for part in parts for node in part.nodes), gathered)
    heads = tuple(head for part in parts for head in part.heads)
    takers = tuple(taker for part in parts for taker in part.takers)
    return _flow("group", parts, Subgraph(nodes, heads, takers, gathered), name, definition_key)


def _parts(kind: str, steps: Iterable[object]) -> list[Flow[Any]]:
    """Return the steps of a chain or group; raise an error for something that cannot be one, or is one elsewhere."""
    parts: list[Flow[Any]] = []
    for step in steps:
        if isinstance(step, Flow):
            part = cast("Flow[Any]", step)
        elif isinstance(step, Node):
            node = cast("AnyNode", step)
            takers = () if isinstance(node, SleepNode | SignalNode) else (node,)
            part = Flow((node,), (node,), takers, node, name=node.node_id or name_of(node), definition_key="")
        else:
            raise wrong(
                ErrorCode.WORKFLOW_INVALID_DEPENDENCY,
                f"{kind} was given {step!r}, which is not a node",
                "make a node of a task with task.node(…)",
            )
        if cast(Any, step).is_step:
            raise wrong(
                ErrorCode.WORKFLOW_INVALID_DEPENDENCY,
                f"{part.name!r} is a step of another chain or group, or is given twice",
                "make a new node for each step: task.node(…)",
            )
        cast(Any, step).is_step = True
        parts.append(part)
    if not parts:
        raise wrong(
            ErrorCode.WORKFLOW_NO_NODES, f"{kind}() has no steps", f"pass nodes: {kind}(fetch.node(1), …)"
        )
    return parts


def _flow(
    kind: str, parts: list[Flow[Any]], graph: Subgraph[Any], name: str | None, definition_key: str | None
) -> Flow[Any]:
    text = f"{kind}({', '.join(part.name for part in parts)})"
    if len(text) > _LONGEST_NAME:
        text = text[: _LONGEST_NAME - 1] + "…"
    key = definition_key or name or text
    return Flow(graph.nodes, graph.heads, graph.takers, graph.output, name=name or text, definition_key=key)


def _broker_of(node: AnyNode) -> Broker | None:
    broker = getattr(getattr(node, "fn", None), "broker", None)
    return broker if isinstance(broker, Broker) else None


def _value_after(node: AnyNode, value: AnyNode | None) -> AnyNode | None:
    """Return the node whose value goes to the next step. A sleep has no value of its own and passes the one before on."""
    return value if isinstance(node, SleepNode) else node


def _take(node: AnyNode, value: AnyNode) -> None:
    """Make a node take the value of another."""
    node.waits_for = (*node.waits_for, value)
    if isinstance(node, MapNode) and cast("MapNode[Any]", node).over is None:
        cast("MapNode[Any]", node).over = value
    elif isinstance(node, NodeWithInputs) and (name := _open_parameter(node)) is not None:
        node.args_from = {**node.args_from, name: value}


def _open_parameter(node: NodeWithInputs[Any]) -> str | None:
    """Return the parameter that takes the value of the step before; None if every parameter has an argument."""
    owner, parameters = _parameters(node)
    free = {
        name: each
        for name, each in parameters.items()
        if name not in node.kwargs and name not in node.args_from
    }
    required = [name for name, each in free.items() if each.default is each.empty]
    if required or len(free) <= 1:
        return next(iter(required or free), None)
    names = ", ".join(free)
    raise wrong(
        ErrorCode.WORKFLOW_INVALID_ARGS_FROM,
        f"it is not clear which parameter of {owner} takes the value of the step before: {names} all have defaults",
        f"pass arguments for the others, or say it: node({next(iter(free))}=from_node(…))",
    )


def _parameters(node: NodeWithInputs[Any]) -> tuple[str, Mapping[str, inspect.Parameter]]:
    """Return what a node runs, for messages, and its parameters."""
    if isinstance(node, TaskNode):
        definition = node.fn.definition
        return f"task {definition.name!r}", definition.signature.parameters
    blueprint = cast("SubWorkflowNode[Any]", node).workflow_def
    _app, *parameters = inspect.signature(blueprint.build_with).parameters.values()
    found = {each.name: each for each in parameters if each.kind is not each.VAR_KEYWORD}
    return f"{blueprint.__name__}.build_with", found
