"""Validate a workflow before anything is stored.

The names are checked first, because all other messages name nodes by their ids. All other problems are reported together, each
with its code, its node and a remedy.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, cast

import msgspec

from horsies.codec import ArgumentError, Signature
from horsies.codec.values import type_name
from horsies.durations import in_seconds
from horsies.enqueue import MAX_DELAY_SECONDS, InvalidSend, TaskDefinition, lane_of_node, timeout_problem
from horsies.errors import ErrorCode, HorsiesError, WorkflowValidationError, is_whole_number
from horsies.redaction import Redactor
from horsies.retry import take_errors
from horsies.workflow.graph import (
    Entry,
    Graph,
    as_map,
    cycle_in,
    hints_of,
    map_param,
    sources_of,
    value_type_of,
)
from horsies.workflow.nodes import (
    AnyNode,
    GatherNode,
    MapNode,
    Node,
    NodeBuilder,
    NodeWithInputs,
    SignalNode,
    SleepNode,
    SubWorkflowNode,
    SuccessPolicy,
    TaskNode,
    ambiguous_option,
)
from horsies.workflow.types import accepts_source, fits, item_type_of

_NODE_ID = re.compile(r"[A-Za-z0-9_\-:.]{1,128}")
_ID_REMEDY = "use 1 to 128 letters, digits and any of _ - : ."
Errors = Iterator[HorsiesError]


def wrong(code: ErrorCode, message: str, remedy: str) -> HorsiesError:
    return WorkflowValidationError(message, code=code, help_text=remedy)


def check_names(name: str, definition_key: str, ids: Sequence[str]) -> Errors:
    """Check the name and key of the workflow, and the ids of its nodes."""
    if not name:
        yield wrong(ErrorCode.WORKFLOW_NO_NAME, "the workflow has no name", "give it a name")
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
    if not definition_key:
        yield wrong(
            ErrorCode.WORKFLOW_NO_DEFINITION_KEY,
            f"workflow {name!r} has no definition_key",
            'give it one that stays the same for ever: definition_key="shop.import.v1"',
        )


def check_graph(graph: Graph) -> Errors:
    """Check that the graph has a first node and no cycle."""
    if all(entry.deps for entry in graph.entries):
        yield wrong(
            ErrorCode.WORKFLOW_NO_ROOT_TASKS,
            "every node waits for another, so that none could start",
            "leave waits_for of the first node empty",
        )
    if circle := cycle_in(graph.entries):
        names = " → ".join(graph.entries[index].node_id for index in [*circle, circle[0]])
        yield wrong(
            ErrorCode.WORKFLOW_CYCLE_DETECTED,
            f"nodes wait for each other: {names}",
            "remove one of these dependencies",
        )


def check_end(
    graph: Graph, output: AnyNode | None, policy: SuccessPolicy | None, deadline_seconds: object
) -> Errors:
    """Check the output of a workflow, its success policy and its deadline."""
    if output is not None:
        yield from _check_members(graph, [output], ErrorCode.WORKFLOW_INVALID_OUTPUT, "the output is")
    if policy is not None:
        yield from _check_policy(graph, policy)
    if deadline_seconds is not None and not _is_duration(deadline_seconds):
        yield wrong(
            ErrorCode.CONFIG_INVALID_VALUE,
            f"deadline_seconds is {deadline_seconds!r}",
            "use seconds above 0, a timedelta, or None",
        )


def _check_policy(graph: Graph, policy: SuccessPolicy) -> Errors:
    code = ErrorCode.WORKFLOW_INVALID_SUCCESS_POLICY
    if not policy.cases:
        yield wrong(code, "the success policy has no cases", "add a SuccessCase, or leave the policy out")
    for number, case in enumerate(policy.cases):
        if not case.required:
            yield wrong(
                code, f"case {number} of the success policy requires nothing", "name the nodes it requires"
            )
        yield from _check_members(graph, case.required, code, "the success policy names")
    yield from _check_members(graph, policy.optional or (), code, "the success policy names")


def _check_members(graph: Graph, nodes: Iterable[AnyNode], code: ErrorCode, role: str) -> Errors:
    """Check that nodes are nodes of this workflow."""
    for node in nodes:
        if node not in graph:
            task = getattr(node, "fn", None)
            name = getattr(node, "node_id", None) or getattr(task, "name", None) or node
            yield wrong(code, f"{role} {name!r}, which is not a node of this workflow", "add it to tasks=[…]")


def check_node(entry: Entry, graph: Graph, queues: Collection[str] | None, redactor: Redactor) -> Errors:
    """Check one node. The names have been checked."""
    node = entry.node
    role = f"{entry} waits for"
    yield from _check_members(graph, node.waits_for, ErrorCode.WORKFLOW_INVALID_DEPENDENCY, role)
    if isinstance(node, NodeWithInputs):
        yield from _check_inputs(entry, node, graph)
        yield from _check_join(entry, node)
    match node:
        case TaskNode():
            signature = node.fn.definition.signature
            if isinstance(node, NodeBuilder):
                yield from (ambiguous_option(signature.task_name, name) for name in node.ambiguous)
            yield from _check_names_of_arguments(entry, signature, {**node.kwargs, **node.args_from})
            yield from _check_types_of_sources(entry, graph, signature.parameters)
            yield from _check_values(entry, signature, redactor)
            yield from _check_key(entry, node.fn.definition, node.task_key, redactor)
            yield from _check_options(entry, node, queues)
        case SubWorkflowNode():
            yield from _check_build_with(entry, node, graph)
        case MapNode():
            yield from _check_map(entry, as_map(entry), redactor)
        case GatherNode():
            gathers = f"{entry} gathers"
            sources = sources_of(entry.node).values()
            yield from _check_members(graph, sources, ErrorCode.WORKFLOW_INVALID_ARGS_FROM, gathers)
        case SleepNode():
            yield from _check_seconds(entry, "seconds", node.seconds)
        case SignalNode():
            if node.timeout_seconds is not None:
                yield from _check_seconds(entry, "timeout_seconds", node.timeout_seconds)
            if not _NODE_ID.fullmatch(node.name):
                problem = f"the signal name {node.name!r} is not usable"
                yield wrong(ErrorCode.WORKFLOW_INVALID_NODE_ID, problem, _ID_REMEDY)
        case _:
            yield wrong(
                ErrorCode.WORKFLOW_INVALID_NODE_ID,
                f"{node!r} is not a node of a known kind",
                "use TaskNode, SubWorkflowNode, map_node, sleep_node or signal_node",
            )


def _check_inputs(entry: Entry, node: NodeWithInputs[Any], graph: Graph) -> Errors:
    """Check that a node waits for the nodes whose results it takes."""
    code = ErrorCode.WORKFLOW_INVALID_ARGS_FROM
    for name, source in sources_of(node).items():
        yield from _check_members(graph, [source], code, f"{entry} takes {name!r} from")
    for name, index in entry.args_from.items():
        if index not in entry.deps:
            yield wrong(
                code,
                f"{entry} takes {name!r} from a node that it does not wait for",
                "add that node to waits_for, or write from_node(…) as the argument",
            )
    for name in node.args_from:
        if name in node.kwargs:
            yield wrong(
                ErrorCode.WORKFLOW_KWARGS_ARGS_FROM_OVERLAP,
                f"{entry} is given {name!r} in kwargs and in args_from",
                "remove one of the two",
            )
    code, context = ErrorCode.WORKFLOW_INVALID_CTX_FROM, node.workflow_ctx_from or ()
    yield from _check_members(graph, context, code, f"{entry} has in its context")
    for index in entry.context or ():
        if index not in entry.deps:
            yield wrong(
                code,
                f"{entry} has a node in its context that it does not wait for",
                "add that node to waits_for",
            )


def _check_join(entry: Entry, node: NodeWithInputs[Any]) -> Errors:
    code = ErrorCode.WORKFLOW_INVALID_JOIN
    if node.join not in ("all", "any", "quorum"):
        yield wrong(code, f"{entry} has join={node.join!r}", 'use "all", "any" or "quorum"')
    elif node.join == "quorum" and not is_whole_number(node.min_success, 1, len(entry.deps)):
        yield wrong(
            code,
            f"{entry} has min_success={node.min_success!r} of {len(entry.deps)} dependencies",
            f"use a whole number from 1 to {len(entry.deps)}",
        )
    elif node.join != "quorum" and node.min_success is not None:
        yield wrong(code, f"{entry} has min_success and join={node.join!r}", 'use join="quorum" with it')
    if node.join == "any" and not (entry.deps or node.waits_for):
        yield wrong(code, f'{entry} has join="any" and waits for nothing', "name the nodes it waits for")


def _check_names_of_arguments(entry: Entry, signature: Signature, given: Collection[str]) -> Errors:
    """Check that a node passes what its task requires, and nothing else."""
    task, parameters = f"task {signature.task_name!r}", signature.parameters
    for name in given:
        if name not in parameters:
            yield wrong(
                ErrorCode.WORKFLOW_INVALID_KWARG_KEY,
                f"{entry} passes {name!r}, which {task} does not take",
                f"its parameters are: {', '.join(parameters) or 'none'}",
            )
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty and name not in given
    ]
    if missing:
        yield wrong(
            ErrorCode.WORKFLOW_MISSING_REQUIRED_PARAMS,
            f"{entry} does not pass {', '.join(map(repr, missing))} of {task}",
            "pass it in kwargs, or take it from another node",
        )


def _check_types_of_sources(
    entry: Entry, graph: Graph, parameters: Mapping[str, inspect.Parameter]
) -> Errors:
    """Check that the parameters can take the results of the nodes that they come from."""
    for name, index in entry.args_from.items():
        parameter, source = parameters.get(name), graph.entries[index]
        if parameter is None:
            continue
        given = value_type_of(source.node)
        if not accepts_source(parameter.annotation, given):
            shown = type_name(given)
            yield wrong(
                ErrorCode.WORKFLOW_ARGS_FROM_TYPE_MISMATCH,
                f"{entry} takes {name!r} from {source.node_id!r}, which returns {shown}, "
                f"and it is annotated {type_name(parameter.annotation)}",
                f"annotate it as {shown} to take the value, or as TaskResult[{shown}, TaskError] to take the result",
            )
        may_be_open = isinstance(entry.node, NodeWithInputs) and entry.node.join != "all"
        if may_be_open and parameter.default is parameter.empty:
            yield wrong(
                ErrorCode.WORKFLOW_INVALID_ARGS_FROM,
                f"{entry} may run before {source.node_id!r} has ended, and {name!r} has no default",
                f"give {name!r} a default, such as None",
            )


def _check_values(entry: Entry, signature: Signature, redactor: Redactor) -> Errors:
    """Check that the arguments can be stored as the annotations of the task say."""
    try:
        signature.encode_part(entry.kwargs)
    except ArgumentError as error:
        yield wrong(
            ErrorCode.WORKFLOW_KWARGS_NOT_SERIALIZABLE,
            f"{entry}: {redactor.scrub_call(str(error), entry.kwargs)}",
            "pass a value of the annotated type that has a JSON form",
        )


def _check_key(entry: Entry, definition: TaskDefinition, key: str | int | None, redactor: Redactor) -> Errors:
    """Check that the key of a node can be computed now, before the results of other nodes are known."""
    try:
        lane_of_node(definition, key, entry.kwargs)
    except InvalidSend as error:
        yield wrong(
            ErrorCode.WORKFLOW_MISSING_REQUIRED_PARAMS,
            f"{entry}: {redactor.scrub_call(str(error), entry.kwargs)}",
            "pass the argument as a plain value, or give the node a key: node(task_key=…)",
        )


def _check_options(entry: Entry, node: TaskNode[Any], queues: Collection[str] | None) -> Errors:
    if entry.context is not None and "workflow_ctx" not in node.fn.definition.signature.injected:
        yield wrong(
            ErrorCode.WORKFLOW_CTX_PARAM_MISSING,
            f"{entry} has workflow_ctx_from, and its task takes no workflow_ctx",
            "add the parameter `workflow_ctx: WorkflowContext | None = None`",
        )
    if node.queue is not None and queues is not None and node.queue not in queues:
        yield wrong(
            ErrorCode.WORKFLOW_UNRESOLVED_QUEUE,
            f"{entry} uses queue {node.queue!r}, which is not configured",
            f"use one of: {', '.join(queues)}",
        )
    if node.priority is not None and not is_whole_number(node.priority, 1, 100):
        yield wrong(
            ErrorCode.WORKFLOW_UNRESOLVED_PRIORITY,
            f"{entry} has priority={node.priority!r}",
            "use a whole number from 1 (first) to 100",
        )
    if problem := timeout_problem(node.timeout, node.timeout_ms):
        fault, _, remedy = problem.rpartition("; ")
        yield wrong(ErrorCode.CONFIG_INVALID_VALUE, f"{entry}: {fault}", remedy)
    policy = node.retry_policy
    if policy is not None and take_errors(policy, node.fn.definition.retry_policy).auto_retry_for is None:
        yield wrong(
            ErrorCode.CONFIG_INVALID_VALUE,
            f"{entry} has a retry_policy that lists no errors, and its task retries none",
            "add auto_retry_for=[…] to the policy",
        )
    moment = cast(object, node.good_until)
    if moment is not None and not (isinstance(moment, datetime) and moment.tzinfo is not None):
        yield wrong(
            ErrorCode.CONFIG_INVALID_VALUE,
            f"{entry} has good_until={moment!r}",
            "use a datetime with a time zone, such as datetime.now(UTC) + timedelta(hours=1)",
        )


def _check_build_with(entry: Entry, node: SubWorkflowNode[Any], graph: Graph) -> Errors:
    """Check that `build_with` can be called with the arguments of the node."""
    definition = node.workflow_def
    given = {**node.kwargs, **node.args_from}
    owner = next(each for each in definition.__mro__ if "build_with" in vars(each))
    if given and owner.__module__.startswith("horsies.workflow"):
        yield wrong(
            ErrorCode.WORKFLOW_SUBWORKFLOW_PARAMS_REQUIRE_BUILD_WITH,
            f"{entry} passes {', '.join(sorted(given))}, and {definition.__name__} takes nothing",
            "write a classmethod build_with(cls, app, …) in the definition",
        )
        return
    signature = inspect.signature(definition.build_with)
    try:
        signature.bind(None, **given)
    except TypeError as error:
        yield wrong(
            ErrorCode.WORKFLOW_SUBWORKFLOW_BUILD_WITH_BINDING,
            f"{entry} cannot call {definition.__name__}.build_with: {error}",
            "pass what it takes, by name",
        )
        return
    if entry.args_from:
        yield from _check_build_values(entry)
    hints = hints_of(definition)
    _app, *parameters = signature.parameters.values()
    named = {
        each.name: each.replace(annotation=hints.get(each.name, Any))
        for each in parameters
        if each.kind is not each.VAR_KEYWORD
    }
    yield from _check_types_of_sources(entry, graph, named)


def _check_build_values(entry: Entry) -> Errors:
    """Check that arguments of `build_with` can be stored until the other ones are known."""
    for name, value in entry.kwargs.items():
        try:
            msgspec.json.encode(value)
        except (TypeError, ValueError, RecursionError) as error:
            yield wrong(
                ErrorCode.WORKFLOW_KWARGS_NOT_SERIALIZABLE,
                f"{entry}: argument {name!r} has no JSON form: {error}",
                "pass a value that has a JSON form",
            )


def _check_map(entry: Entry, node: MapNode[Any], redactor: Redactor) -> Errors:
    signature, param = node.fn.definition.signature, map_param(entry)
    if param is None:
        yield wrong(
            ErrorCode.WORKFLOW_MISSING_REQUIRED_PARAMS,
            f"{entry} does not say which parameter of task {signature.task_name!r} takes the items",
            "name it: map_node(…, param='item')",
        )
        return
    if sources_of(node):
        yield wrong(
            ErrorCode.WORKFLOW_INVALID_ARGS_FROM,
            f"{entry} takes an argument from another node, which map_node cannot",
            "pass plain values in kwargs",
        )
    yield from _check_names_of_arguments(entry, signature, {**node.kwargs, param: None})
    yield from _check_values(entry, signature, redactor)
    yield from _check_key(entry, node.fn.definition, node.task_key, redactor)
    if node.over is None:
        yield wrong(
            ErrorCode.WORKFLOW_MISSING_REQUIRED_PARAMS,
            f"{entry} does not say which list it maps over",
            "pass map_node(…, over=node), or make it a step of a chain",
        )
        return
    if not isinstance(cast(object, node.over), Node):
        return  # reported as a dependency that is not a node of this workflow
    given, parameter = value_type_of(node.over), signature.parameters.get(param)
    item = item_type_of(given)
    if item is None:
        yield wrong(
            ErrorCode.WORKFLOW_ARGS_FROM_TYPE_MISMATCH,
            f"{entry} maps over {type_name(given)}, which is not a list",
            "map over a node whose task returns list[…]",
        )
    elif parameter is not None and not fits(parameter.annotation, item):
        yield wrong(
            ErrorCode.WORKFLOW_ARGS_FROM_TYPE_MISMATCH,
            f"{entry} maps over items of type {type_name(item)}, and {param!r} of task {signature.task_name!r} "
            f"is annotated {type_name(parameter.annotation)}",
            f"annotate {param!r} as {type_name(item)}, or map over a list of {type_name(parameter.annotation)}",
        )


def _check_seconds(entry: Entry, name: str, seconds: object) -> Errors:
    if not _is_duration(seconds):
        yield wrong(
            ErrorCode.CONFIG_INVALID_VALUE,
            f"{entry} has {name}={seconds!r}",
            "use seconds, or a timedelta, above 0 and up to a century",
        )


def _is_duration(seconds: object) -> bool:
    if isinstance(seconds, timedelta):
        seconds = in_seconds(seconds)
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        return False
    return 0 < seconds <= MAX_DELAY_SECONDS
