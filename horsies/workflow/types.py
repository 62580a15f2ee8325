"""What nodes give on success, and what they take."""

from __future__ import annotations

import inspect
from types import NoneType
from typing import Any, cast, get_type_hints

from horsies.workflow.graph import Entry
from horsies.workflow.nodes import AnyNode, Blueprint, MapNode, SleepNode, SubWorkflowNode, TaskNode


def value_type_of(node: AnyNode) -> Any:
    """What a node gives on success, as far as it is known."""
    match node:
        case TaskNode():
            return node.fn.definition.signature.value_type
        case MapNode():
            return list[cast("MapNode[Any]", node).fn.definition.signature.value_type]
        case SubWorkflowNode():
            return node.workflow_def.value_type()
        case SleepNode():
            return NoneType
        case _:
            return Any


def hints_of(definition: type[Blueprint[Any]]) -> dict[str, Any]:
    """The annotations of a definition's `build_with`, as far as they can be resolved."""
    try:
        return get_type_hints(definition.build_with)
    except Exception:  # noqa: BLE001  a name that only a type checker knows; then the annotations say nothing to us
        return {}


def as_map(entry: Entry) -> MapNode[Any]:
    """The node of an entry that is known to be a map."""
    return cast("MapNode[Any]", entry.node)


def map_param(entry: Entry, node: MapNode[Any]) -> str | None:
    """The parameter that takes the items; None when it cannot be told."""
    if node.param is not None:
        return node.param
    parameters = node.fn.definition.signature.parameters
    open_ones = [name for name in parameters if name not in entry.kwargs]
    required = [name for name in open_ones if parameters[name].default is inspect.Parameter.empty]
    return next((found[0] for found in (required, open_ones) if len(found) == 1), None)
