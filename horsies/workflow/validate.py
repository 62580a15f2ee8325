"""What is wrong with a workflow, found before anything is stored.

The ids of nodes come first: with unusable ones, nothing else could be said clearly. All other problems are found
together, each with its code, the node it is about, and a remedy.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin

from horsies.codec import ArgumentError
from horsies.codec.schema import type_name
from horsies.config import CustomQueueConfig
from horsies.errors import ErrorCode, HorsiesError, is_whole_number
from horsies.results import TaskResult
from horsies.sending import MAX_DELAY_SECONDS, MAX_TIMEOUT_MS, MIN_TIMEOUT_MS
from horsies.workflow.graph import Entry, Policy, cycle_in, wrong
from horsies.workflow.nodes import (
    AnyNode,
    FedNode,
    MapNode,
    SignalNode,
    SleepNode,
    SubWorkflowNode,
    TaskNode,
)
from horsies.workflow.types import as_map, hints_of, map_param, value_type_of

_NODE_ID = re.compile(r"[A-Za-z0-9_\-:.]{1,128}")
_ID_REMEDY = "use 1 to 128 letters, digits and any of _ - : ."
Errors = Iterator[HorsiesError]


def check_ids(name: str, ids: Sequence[str]) -> Errors:
    """The name and the ids, on which all other messages build."""
    if not name:
        yield wrong(ErrorCode.WORKFLOW_NO_NAME, "the workflow has no name", "name it, for people to read")
    if not ids:
        yield wrong(ErrorCode.WORKFLOW_NO_NODES, f"workflow {name!r} has no nodes", "pass them as tasks=[…]")
    for node_id in ids:
        if not _NODE_ID.fullmatch(node_id):
            yield wrong(ErrorCode.WORKFLOW_INVALID_NODE_ID, f"node_id {node_id!r} is not usable", _ID_REMEDY)
    for node_id in dict.fromkeys(each for each in ids if ids.count(each) > 1):
        yield wrong(
            ErrorCode.WORKFLOW_DUPLICATE_NODE_ID,
            f"the node_id {node_id!r} is used {ids.count(node_id)} times",
            "give each node an id of its own",
        )


def check_graph(entries: Sequence[Entry]) -> Errors:
    """Whether it can begin, and whether it can end."""
    if entries and all(entry.deps for entry in entries):
        yield wrong(
            ErrorCode.WORKFLOW_NO_ROOT_TASKS,
            "every node waits for another, so that none could begin",
            "leave waits_for of the first node empty",
        )
    if circle := cycle_in(entries):
        names = " → ".join(entries[index].node_id for index in [*circle, circle[0]])
        yield wrong(
            ErrorCode.WORKFLOW_CYCLE_DETECTED,
            f"nodes wait for each other: {names}",
            "remove one of the arrows",
        )


def check_entry(
    entry: Entry, entries: Sequence[Entry], queues: Mapping[str, CustomQueueConfig] | None
) -> Errors:
    """Everything about one node, given that ids are usable."""
    yield from _sources(entry)
    match entry.node:
        case TaskNode() as node:
            yield from _join(entry, node)
            yield from _arguments(entry, entries, _parameters(node), f"task {node.fn.definition.name!r}")
            yield from _serializable(entry, node.fn.definition.signature.encode_part)
            yield from _context(entry, "workflow_ctx" in node.fn.definition.signature.injected)
            yield from _options(entry, node, queues)
        case SubWorkflowNode() as node:
            yield from _join(entry, node)
            yield from _context(entry, True)
            yield from _build_parameters(entry, entries, node)
        case MapNode():
            yield from _map(entry, entries, as_map(entry))
        case SleepNode() as node:
            yield from _seconds(entry, "seconds", node.seconds)
        case SignalNode() as node:
            if node.timeout_seconds is not None:
                yield from _seconds(entry, "timeout_seconds", node.timeout_seconds)
            if not _NODE_ID.fullmatch(node.name):
                yield wrong(
                    ErrorCode.WORKFLOW_INVALID_NODE_ID,
                    f"the signal name {node.name!r} is not usable",
                    _ID_REMEDY,
                )
        case _:
            yield wrong(
                ErrorCode.WORKFLOW_INVALID_NODE_ID,
                f"{entry.node!r} is of no known kind",
                "use TaskNode, SubWorkflowNode, map_node, sleep_node or signal_node",
            )


def check_policy(policy: Policy) -> Errors:
    """Whether success can be told."""
    code = ErrorCode.WORKFLOW_INVALID_SUCCESS_POLICY
    if not policy.cases:
        yield wrong(code, "the success policy has no cases", "add a SuccessCase, or leave the policy out")
    for number, case in enumerate(policy.cases):
        if not case:
            yield wrong(
                code, f"case {number} of the success policy requires nothing", "name the nodes it requires"
            )


def check_deadline(seconds: object) -> Errors:
    if seconds is not None and not _is_duration(seconds):
        yield wrong(
            ErrorCode.CONFIG_INVALID_VALUE, f"deadline_seconds is {seconds!r}", "use seconds above 0, or None"
        )


def _sources(entry: Entry) -> Errors:
    """What a node is fed or may look at, it must also wait for."""
    for name, index in entry.args_from.items():
        if index not in entry.deps:
            yield wrong(
                ErrorCode.WORKFLOW_INVALID_ARGS_FROM,
                f"node {entry.node_id!r} takes {name!r} from a node that it does not wait for",
                "add that node to waits_for, or write from_node(…) as the argument",
            )
        if isinstance(entry.node, FedNode) and name in entry.node.args_from and name in entry.node.kwargs:
            yield wrong(
                ErrorCode.WORKFLOW_KWARGS_ARGS_FROM_OVERLAP,
                f"node {entry.node_id!r} is given {name!r} in kwargs and in args_from",
                "leave one of the two out",
            )
    for index in entry.context or ():
        if index not in entry.deps:
            yield wrong(
                ErrorCode.WORKFLOW_INVALID_CTX_FROM,
                f"node {entry.node_id!r} has a node in its context that it does not wait for",
                "add that node to waits_for",
            )


def _join(entry: Entry, node: FedNode[Any]) -> Errors:
    code, where = ErrorCode.WORKFLOW_INVALID_JOIN, f"node {entry.node_id!r}"
    if node.join not in ("all", "any", "quorum"):
        yield wrong(code, f"{where} has join={node.join!r}", 'use "all", "any" or "quorum"')
    if node.join == "quorum":
        if not is_whole_number(node.min_success, 1, len(entry.deps)):
            yield wrong(
                code,
                f"{where} has min_success={node.min_success!r} of {len(entry.deps)} dependencies",
                f"use a whole number from 1 to {len(entry.deps)}",
            )
    elif node.min_success is not None:
        yield wrong(code, f"{where} has min_success and join={node.join!r}", 'use join="quorum" with it')
    if node.join == "any" and not entry.deps:
        yield wrong(code, f'{where} has join="any" and waits for nothing', "name what it waits for")


def _parameters(node: TaskNode[Any]) -> Mapping[str, inspect.Parameter]:
    return node.fn.definition.signature.parameters


def _arguments(
    entry: Entry, entries: Sequence[Entry], parameters: Mapping[str, inspect.Parameter], owner: str
) -> Errors:
    """Whether a call with these arguments, and those that come from other nodes, would be one."""
    where = f"node {entry.node_id!r}"
    for name in (*entry.kwargs, *entry.args_from):
        if name not in parameters:
            known = ", ".join(parameters) or "none"
            yield wrong(
                ErrorCode.WORKFLOW_INVALID_KWARG_KEY,
                f"{where} is given {name!r}, which {owner} does not take",
                f"its parameters are: {known}",
            )
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty and name not in entry.kwargs and name not in entry.args_from
    ]
    if missing:
        yield wrong(
            ErrorCode.WORKFLOW_MISSING_REQUIRED_PARAMS,
            f"{where} leaves out {', '.join(map(repr, missing))} of {owner}",
            "pass it in kwargs, or take it from another node",
        )
    for name, index in entry.args_from.items():
        if name in parameters:
            yield from _fits(entry, name, parameters[name], entries[index].node)


def _fits(entry: Entry, name: str, parameter: inspect.Parameter, source: AnyNode) -> Errors:
    """Whether a parameter can take the result of a node."""
    given, where = value_type_of(source), f"node {entry.node_id!r}"
    if not _takes(parameter.annotation, given):
        yield wrong(
            ErrorCode.WORKFLOW_ARGS_FROM_TYPE_MISMATCH,
            f"{where} takes {name!r} from {source.node_id or 'a node'!r}, which gives {given}, "
            f"and it is annotated {parameter.annotation}",
            f"annotate it as TaskResult[{type_name(given)}, TaskError]",
        )
    may_be_open = isinstance(entry.node, FedNode) and entry.node.join != "all"
    if may_be_open and parameter.default is parameter.empty:
        yield wrong(
            ErrorCode.WORKFLOW_INVALID_ARGS_FROM,
            f"{where} may run before {source.node_id or 'a node'!r} has ended, and {name!r} has no default",
            f"give {name!r} a default, such as None",
        )


def _takes(annotation: Any, given: Any) -> bool:
    if annotation in (Any, object, inspect.Parameter.empty) or annotation is TaskResult:
        return True
    if get_origin(annotation) in (Union, UnionType):
        return any(_takes(part, given) for part in get_args(annotation) if part is not NoneType)
    if get_origin(annotation) is not TaskResult:
        return False
    wanted = get_args(annotation)[0]
    return Any in (wanted, given) or wanted == given or given in get_args(wanted)


def _serializable(entry: Entry, encode: Any) -> Errors:
    try:
        encode(entry.kwargs)
    except ArgumentError as error:
        yield wrong(
            ErrorCode.WORKFLOW_KWARGS_NOT_SERIALIZABLE,
            f"node {entry.node_id!r}: {error}",
            "pass a value of the annotated type that has a JSON form",
        )


def _context(entry: Entry, takes_it: bool) -> Errors:
    if entry.context is not None and not takes_it:
        yield wrong(
            ErrorCode.WORKFLOW_CTX_PARAM_MISSING,
            f"node {entry.node_id!r} has workflow_ctx_from, and its task takes no workflow_ctx",
            "add the parameter `workflow_ctx: WorkflowContext | None = None`",
        )


def _options(entry: Entry, node: TaskNode[Any], queues: Mapping[str, CustomQueueConfig] | None) -> Errors:
    where = f"node {entry.node_id!r}"
    if node.queue is not None and queues is not None and node.queue not in queues:
        yield wrong(
            ErrorCode.WORKFLOW_UNRESOLVED_QUEUE,
            f"{where} uses queue {node.queue!r}, which is not configured",
            f"use one of: {', '.join(queues)}",
        )
    if node.priority is not None and not is_whole_number(node.priority, 1, 100):
        yield wrong(
            ErrorCode.WORKFLOW_UNRESOLVED_PRIORITY,
            f"{where} has priority={node.priority!r}",
            "use a whole number from 1 (first) to 100",
        )
    if node.timeout_ms is not None and not is_whole_number(node.timeout_ms, MIN_TIMEOUT_MS, MAX_TIMEOUT_MS):
        yield wrong(
            ErrorCode.CONFIG_INVALID_VALUE,
            f"{where} has timeout_ms={node.timeout_ms!r}",
            f"use a whole number from {MIN_TIMEOUT_MS} to {MAX_TIMEOUT_MS}",
        )
    moment = cast(object, node.good_until)
    if moment is not None and not (isinstance(moment, datetime) and moment.tzinfo is not None):
        yield wrong(
            ErrorCode.CONFIG_INVALID_VALUE,
            f"{where} has good_until={moment!r}",
            "use a datetime with a time zone, such as datetime.now(UTC) + timedelta(hours=1)",
        )


def _build_parameters(entry: Entry, entries: Sequence[Entry], node: SubWorkflowNode[Any]) -> Errors:
    """Whether `build_with` can be called with what the node is given."""
    given = {*entry.kwargs, *entry.args_from}
    signature = inspect.signature(node.workflow_def.build_with)
    hints = hints_of(node.workflow_def)
    parameters = {
        name: parameter.replace(annotation=hints.get(name, Any))
        for name, parameter in list(signature.parameters.items())[1:]
        if parameter.kind is not parameter.VAR_KEYWORD
    }
    if given and not _has_own_build_with(node):
        yield wrong(
            ErrorCode.WORKFLOW_SUBWORKFLOW_PARAMS_REQUIRE_BUILD_WITH,
            f"node {entry.node_id!r} passes {', '.join(sorted(given))}, and {node.workflow_def.__name__} takes nothing",
            "write a classmethod build_with(cls, app, …) in the definition",
        )
        return
    try:
        signature.bind(None, **dict.fromkeys(given))
    except TypeError as error:
        yield wrong(
            ErrorCode.WORKFLOW_SUBWORKFLOW_BUILD_WITH_BINDING,
            f"node {entry.node_id!r} cannot call {node.workflow_def.__name__}.build_with: {error}",
            "pass what it takes, by name",
        )
        return
    for name, index in entry.args_from.items():
        if name in parameters:
            yield from _fits(entry, name, parameters[name], entries[index].node)


def _has_own_build_with(node: SubWorkflowNode[Any]) -> bool:
    owner = next(each for each in node.workflow_def.__mro__ if "build_with" in vars(each))
    return not owner.__module__.startswith("horsies.workflow")


def _map(entry: Entry, entries: Sequence[Entry], node: MapNode[Any]) -> Errors:
    definition, param = node.fn.definition, map_param(entry, node)
    if param is None:
        yield wrong(
            ErrorCode.WORKFLOW_MISSING_REQUIRED_PARAMS,
            f"node {entry.node_id!r} does not say which parameter of task {definition.name!r} takes the items",
            "name it: map_node(…, param='item')",
        )
        return
    if entry.args_from:
        yield wrong(
            ErrorCode.WORKFLOW_INVALID_ARGS_FROM,
            f"node {entry.node_id!r} takes an argument from another node, which map_node cannot",
            "pass plain values in kwargs",
        )
    with_item = Entry(entry.index, node, entry.node_id, entry.deps, {**entry.kwargs, param: None}, {}, None)
    yield from _arguments(with_item, entries, definition.signature.parameters, f"task {definition.name!r}")
    yield from _serializable(entry, definition.signature.encode_part)
    given, parameter = value_type_of(node.over), definition.signature.parameters.get(param)
    if given is not Any and get_origin(given) not in (list, tuple, set, frozenset):
        yield wrong(
            ErrorCode.WORKFLOW_ARGS_FROM_TYPE_MISMATCH,
            f"node {entry.node_id!r} maps over {given}, which is no list",
            "map over a node whose task gives list[…]",
        )
    elif parameter is not None and not _takes_item(parameter.annotation, (*get_args(given), Any)[0]):
        yield wrong(
            ErrorCode.WORKFLOW_ARGS_FROM_TYPE_MISMATCH,
            f"node {entry.node_id!r} maps over items of {get_args(given)[0]}, and {param!r} is {parameter.annotation}",
            "annotate both alike",
        )


def _takes_item(annotation: Any, item: Any) -> bool:
    return (
        Any in (annotation, item)
        or annotation is object
        or annotation == item
        or item in get_args(annotation)
    )


def _seconds(entry: Entry, name: str, seconds: object) -> Errors:
    if not _is_duration(seconds):
        yield wrong(
            ErrorCode.CONFIG_INVALID_VALUE,
            f"node {entry.node_id!r} has {name}={seconds!r}",
            "use seconds above 0 and up to a century",
        )


def _is_duration(seconds: object) -> bool:
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        return False
    return 0 < seconds <= MAX_DELAY_SECONDS
