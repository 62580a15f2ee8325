"""A workflow as drawn, with every arrow made an index.

The caller's nodes are copied, so that nothing they do to them later changes what was checked. What cannot be made an
index is noted and left out; the caller decides what that means.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

from horsies.errors import ErrorCode, HorsiesError, WorkflowValidationError
from horsies.workflow.nodes import AnyNode, FedNode, FromNode, MapNode, SuccessPolicy, slugify


@dataclass(frozen=True, slots=True)
class Entry:
    """A node in its place: what it waits for, what it is fed, and what it may look at, as indexes."""

    index: int
    node: AnyNode
    node_id: str
    deps: tuple[int, ...]
    kwargs: Mapping[str, Any]
    args_from: Mapping[str, int]
    context: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Policy:
    """A success policy by indexes."""

    cases: tuple[tuple[int, ...], ...]
    optional: tuple[int, ...] = ()


def wrong(code: ErrorCode, message: str, remedy: str) -> HorsiesError:
    return WorkflowValidationError(message, code=code, help_text=remedy)


class Resolver:
    """Makes entries of nodes; `errors` holds what was wrong on the way."""

    def __init__(self, workflow_name: str, nodes: Sequence[AnyNode]) -> None:
        self.errors: list[HorsiesError] = []
        self._nodes = nodes
        self._index_of = {id(node): index for index, node in enumerate(nodes)}
        self._slug = slugify(workflow_name)

    def entries(self) -> list[Entry]:
        return [self._entry(index, node) for index, node in enumerate(self._nodes)]

    def node_id(self, index: int) -> str:
        """The id that a node was given, or one made of the workflow's name."""
        given = self._nodes[index].node_id
        return f"{self._slug}:{index}" if given is None else given

    def members(self, nodes: Iterable[AnyNode], code: ErrorCode, role: str) -> tuple[int, ...]:
        """The indexes of nodes; one that is no member is noted under the code."""
        found: dict[int, None] = {}
        for node in nodes:
            index = self._index_of.get(id(node))
            if index is None:
                name = (
                    getattr(node, "node_id", None) or getattr(getattr(node, "fn", None), "name", None) or node
                )
                self.errors.append(
                    wrong(code, f"{role} {name!r}, which is no node of this workflow", "add it to tasks=[…]")
                )
            else:
                found[index] = None
        return tuple(found)

    def policy(self, policy: SuccessPolicy) -> Policy:
        code, role = ErrorCode.WORKFLOW_INVALID_SUCCESS_POLICY, "the success policy names"
        return Policy(
            tuple(self.members(case.required, code, role) for case in policy.cases),
            self.members(policy.optional or (), code, role),
        )

    def _entry(self, index: int, node: AnyNode) -> Entry:
        node_id = self.node_id(index)
        kwargs, fed = _split(node)
        waited_for = [*node.waits_for, *(fed[name] for name in fed if name in _marked(node))]
        deps = self.members(waited_for, ErrorCode.WORKFLOW_INVALID_DEPENDENCY, f"node {node_id!r} waits for")
        code = ErrorCode.WORKFLOW_INVALID_ARGS_FROM
        args_from = {
            name: found[0]
            for name, source in fed.items()
            if (found := self.members([source], code, f"node {node_id!r} takes {name!r} from"))
        }
        context: tuple[int, ...] | None = None
        if isinstance(node, FedNode) and node.workflow_ctx_from is not None:
            role = f"node {node_id!r} has in its context"
            context = self.members(node.workflow_ctx_from, ErrorCode.WORKFLOW_INVALID_CTX_FROM, role)
        twin = copy(node)
        twin.node_id = node_id
        return Entry(index, twin, node_id, deps, kwargs, args_from, context)


def _marked(node: AnyNode) -> dict[str, AnyNode]:
    """The arguments that were given as `from_node(…)`."""
    if not isinstance(node, FedNode | MapNode):
        return {}
    return {name: value.node for name, value in node.kwargs.items() if isinstance(value, FromNode)}


def _split(node: AnyNode) -> tuple[dict[str, Any], dict[str, AnyNode]]:
    """The arguments that are known, and those that come from other nodes."""
    marked = _marked(node)
    if not isinstance(node, FedNode | MapNode):
        return {}, {}
    known = {name: value for name, value in node.kwargs.items() if name not in marked}
    return known, {**marked, **(node.args_from if isinstance(node, FedNode) else {})}


def cycle_in(entries: Sequence[Entry]) -> list[int]:
    """The nodes of a circle of arrows, in order; empty when there is none."""
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
    while here not in path:  # whatever is left waits for something that is left
        path.append(here)
        here = next(iter(left[here]))
    return path[path.index(here) :][::-1]


def dependents_of(entries: Sequence[Entry]) -> list[tuple[int, ...]]:
    """For each node, those that wait for it."""
    found: list[list[int]] = [[] for _ in entries]
    for entry in entries:
        for index in entry.deps:
            found[index].append(entry.index)
    return [tuple(each) for each in found]
