"""The graph of a workflow: nodes by index, their ids, the edges between them, and the types of their values."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType, NoneType
from typing import Any, Union, cast, get_type_hints

from horsies.codec.values import why_not_json
from horsies.workflow.nodes import (
    AnyNode,
    Blueprint,
    FromNode,
    FrozenNode,
    GatherNode,
    MapNode,
    NodeWithInputs,
    SignalNode,
    SleepNode,
    SubWorkflowNode,
    TaskNode,
    frozen_class,
    slug_of,
    slugify,
)

# The longest default id of a node, before a number is added.
_LONGEST_NAME = 120


@dataclass(frozen=True, slots=True)
class Entry:
    """A node with its dependencies, its sources of arguments and its context, as indexes of nodes."""

    index: int
    node: AnyNode
    node_id: str
    deps: tuple[int, ...]
    kwargs: Mapping[str, Any]
    args_from: Mapping[str, int]
    context: tuple[int, ...] | None

    def __str__(self) -> str:
        return f"node {self.node_id!r}"


class Graph:
    """The nodes of a workflow by their indexes. Nodes that are not in the workflow are left out: `validate` reports them.

    The entries have frozen copies of the nodes, which refer to each other. `aliases` are the ids that released versions gave to
    nodes by default.
    """

    def __init__(self, workflow_name: str, nodes: Sequence[AnyNode]) -> None:
        self.nodes = nodes
        ids = default_ids(nodes)
        copies = [frozen_class(type(node)).__new__(frozen_class(type(node))) for node in nodes]
        self._index_of = {id(node): n for each in (copies, nodes) for n, node in enumerate(each)}
        for n, node in enumerate(nodes):
            copies[n].__dict__.update(node.__dict__, node_id=ids[n], **self._references(node, copies))
        self.entries = tuple(self._entry(n, node, ids[n]) for n, node in enumerate(copies))
        self.node_ids = dict(zip((*nodes, *copies), (*ids, *ids), strict=True))
        slug = slugify(workflow_name)
        self.aliases = {f"{slug}:{n}": node_id for n, node_id in enumerate(ids)}

    def __contains__(self, node: object) -> bool:
        return id(node) in self._index_of

    def indexes(self, nodes: Iterable[AnyNode]) -> tuple[int, ...]:
        """Return the index of each node once, in this order."""
        return tuple(dict.fromkeys(self._index_of[id(node)] for node in nodes if node in self))

    def name_nodes(self) -> None:
        """Give the default ids to the caller's nodes, so that code can ask for their results."""
        for node in self.nodes:
            if _given_id(node) is None:
                node.node_id = node.default_id = self.node_ids[node]

    def _references(self, node: AnyNode, copies: Sequence[AnyNode]) -> dict[str, Any]:
        """Return the fields of a node that refer to others, as a copy has them: with the other copies, and frozen."""

        def twin(other: AnyNode) -> AnyNode:
            return copies[self._index_of[id(other)]] if other in self else other

        changed: dict[str, Any] = {"waits_for": tuple(map(twin, node.waits_for))}
        if isinstance(node, NodeWithInputs | MapNode):
            changed["kwargs"] = MappingProxyType(
                {
                    name: FromNode(twin(value.node)) if isinstance(value, FromNode) else value
                    for name, value in _kwargs(cast("AnyNode", node)).items()
                }
            )
        if isinstance(node, NodeWithInputs):
            sources = {name: twin(source) for name, source in node.args_from.items()}
            changed["args_from"] = MappingProxyType(sources)
            if node.workflow_ctx_from is not None:
                changed["workflow_ctx_from"] = tuple(map(twin, node.workflow_ctx_from))
        if isinstance(node, MapNode):
            over = cast("MapNode[Any]", node).over
            changed["over"] = None if over is None else twin(over)
        if isinstance(node, GatherNode):
            changed["of"] = tuple(map(twin, cast("GatherNode[Any]", node).of))
        return changed

    def _entry(self, index: int, node: AnyNode, node_id: str) -> Entry:
        context: tuple[int, ...] | None = None
        if isinstance(node, NodeWithInputs) and node.workflow_ctx_from is not None:
            context = self.indexes(node.workflow_ctx_from)
        return Entry(
            index,
            node,
            node_id,
            deps=self.indexes((*node.waits_for, *_marked(node).values())),
            kwargs=MappingProxyType(
                {name: value for name, value in _kwargs(node).items() if not isinstance(value, FromNode)}
            ),
            args_from={
                name: self._index_of[id(source)]
                for name, source in sources_of(node).items()
                if source in self
            },
            context=context,
        )


def default_ids(nodes: Sequence[AnyNode]) -> list[str]:
    """Return the id of each node: the given one, or the name of what it runs, numbered when the name repeats."""
    given = [_given_id(node) for node in nodes]
    taken = {node_id for node_id in given if node_id is not None}
    counts: dict[str, int] = {}
    found: list[str] = []
    for node, node_id in zip(nodes, given, strict=True):
        if node_id is None:
            name = (slug_of(name_of(node)) or "node")[:_LONGEST_NAME]
            node_id = name
            while node_id in taken:
                counts[name] = counts.get(name, 1) + 1
                node_id = f"{name}_{counts[name]}"
            taken.add(node_id)
        found.append(node_id)
    return found


def _given_id(node: AnyNode) -> str | None:
    """Return the id of a node, None if a workflow may choose it. A node of a validated workflow keeps its id."""
    return None if node.node_id == node.default_id and not isinstance(node, FrozenNode) else node.node_id


def name_of(node: AnyNode) -> str:
    """Return the name of what a node runs."""
    match node:
        case TaskNode():
            return node.fn.definition.name
        case MapNode():
            return cast("MapNode[Any]", node).fn.definition.name
        case SubWorkflowNode():
            return node.workflow_def.name or node.workflow_def.__name__
        case SignalNode():
            return node.name
        case SleepNode():
            return "sleep"
        case GatherNode():
            return "gather"
        case _:
            return "node"


def sources_of(node: AnyNode) -> dict[str, AnyNode]:
    """Return the nodes whose results are arguments of a node, by the names of the arguments."""
    if isinstance(node, GatherNode):
        return {str(n): source for n, source in enumerate(cast("GatherNode[Any]", node).of)}
    return {**_marked(node), **(node.args_from if isinstance(node, NodeWithInputs) else {})}


def _marked(node: AnyNode) -> dict[str, AnyNode]:
    """Return the nodes of the arguments that are given as `from_node(…)`."""
    return {name: value.node for name, value in _kwargs(node).items() if isinstance(value, FromNode)}


def _kwargs(node: AnyNode) -> Mapping[str, Any]:
    return node.kwargs if isinstance(node, NodeWithInputs | MapNode) else {}


def cycle_in(entries: Sequence[Entry]) -> list[int]:
    """Return the nodes of a cycle, in order; empty if there is none."""
    left = {entry.index: set(entry.deps) for entry in entries}
    dependents = dependents_of(entries)
    free = [index for index, deps in left.items() if not deps]
    while free:
        index = free.pop()
        del left[index]
        for dependent in dependents[index]:
            left[dependent].discard(index)
            if not left[dependent]:
                free.append(dependent)
    if not left:
        return []
    path: list[int] = []
    here = next(iter(left))
    while here not in path:  # each node that is left waits for another one that is left
        path.append(here)
        here = next(iter(left[here]))
    return path[path.index(here) :][::-1]


def dependents_of(entries: Sequence[Entry]) -> list[tuple[int, ...]]:
    """Return the dependents of each node."""
    found: list[list[int]] = [[] for _ in entries]
    for entry in entries:
        for index in entry.deps:
            found[index].append(entry.index)
    return [tuple(each) for each in found]


def value_type_of(node: AnyNode) -> Any:
    """Return the type of a node's value, Any if it is unknown."""
    match node:
        case TaskNode():
            return node.fn.definition.signature.value_type
        case MapNode():
            return list[cast("MapNode[Any]", node).fn.definition.signature.value_type]
        case SubWorkflowNode():
            return node.workflow_def.value_type()
        case GatherNode():
            return list[_common_type(cast("GatherNode[Any]", node).of)]
        case SleepNode():
            return NoneType
        case _:
            return Any


def _common_type(nodes: Iterable[AnyNode]) -> Any:
    """Return a type for the values of all these nodes, Any if there is none that can be decoded."""
    types = list(dict.fromkeys(value_type_of(node) for node in nodes))
    common = Any if Any in types else Union[tuple(types)]  # noqa: UP007  the types are known at run time only
    return Any if why_not_json(common) else common


def hints_of(definition: type[Blueprint[Any]]) -> dict[str, Any]:
    """Return the annotations of a definition's `build_with`, or nothing if they cannot be resolved."""
    try:
        return get_type_hints(definition.build_with)
    except Exception:  # noqa: BLE001  a name that exists for type checkers only
        return {}


def as_map(entry: Entry) -> MapNode[Any]:
    """Return the node of an entry that is known to be a map."""
    return cast("MapNode[Any]", entry.node)


def map_param(entry: Entry) -> str | None:
    """Return the parameter of a map's task that takes the items; None if that is not clear."""
    node = as_map(entry)
    if node.param is not None:
        return node.param
    parameters = node.fn.definition.signature.parameters
    open_ones = [name for name in parameters if name not in entry.kwargs]
    required = [name for name in open_ones if parameters[name].default is inspect.Parameter.empty]
    return next((found[0] for found in (required, open_ones) if len(found) == 1), None)
