"""A workflow as the rows that are stored when it starts.

What can begin at once is stored as begun, and everything that a node needs later is stored with it: its task's
options, its arguments, and those who wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC
from typing import Any, Protocol
from uuid import UUID

import msgspec

from horsies.broker import Broker
from horsies.context import Headers, with_headers
from horsies.sending import TaskDefinition
from horsies.status import WorkflowStatus, WorkflowTaskStatus
from horsies.storage.ids import new_ids
from horsies.storage.workflows import NewFlow, NewNode, Plan
from horsies.workflow.advance import Kind
from horsies.workflow.context import Inputs
from horsies.workflow.graph import Entry, Policy, dependents_of
from horsies.workflow.nodes import FedNode, MapNode, Node, SignalNode, SleepNode, SubWorkflowNode, TaskNode
from horsies.workflow.types import as_map, map_param

# The task that builds a workflow whose parameters come from other nodes. No task of a user's can have this name.
BUILD = "horsies:build_workflow"


class TooLarge(ValueError):
    """Arguments that take more room than they may."""


class Drawing(Protocol):
    """A workflow that was checked, as far as its rows go by it."""

    @property
    def name(self) -> str: ...
    @property
    def on_error(self) -> str: ...
    @property
    def definition_key(self) -> str: ...
    @property
    def deadline_seconds(self) -> float | None: ...
    @property
    def entries(self) -> Sequence[Entry]: ...
    @property
    def children(self) -> Mapping[int, Drawing]: ...
    @property
    def policy(self) -> Policy | None: ...
    @property
    def output_index(self) -> int | None: ...
    @property
    def broker(self) -> Broker | None: ...


class Place(msgspec.Struct, frozen=True):
    """Where a workflow stands in a tree of them."""

    root: UUID
    parent: UUID | None = None
    parent_index: int | None = None
    depth: int = 0


def plan(spec: Drawing, workflow_id: UUID, limit: int | None) -> Plan:
    """The rows of a workflow that starts now, its sub-workflows included."""
    flows: list[NewFlow] = []
    nodes: list[NewNode] = []
    for flow, members in _tree(spec, workflow_id, Place(root=workflow_id), runs=True):
        flows.append(flow)
        nodes += members
    for node in nodes:
        if limit is not None and node.task_kwargs is not None and len(node.task_kwargs) > limit:
            raise TooLarge(
                f"the arguments of node {node.node_id!r} take {len(node.task_kwargs):,} bytes, more than the limit of "
                f"{limit:,}; pass a reference to the data, or raise PayloadPolicy.reject_bytes"
            )
    return Plan(flows, nodes)


def carrying(rows: Plan, headers: Headers) -> Plan:
    """The rows with what is to travel with the tasks of a workflow, those that are sent later included."""
    if not headers:
        return rows
    return Plan(
        rows.flows,
        [
            msgspec.structs.replace(node, task_options=with_headers(node.task_options, headers))
            if node.queue_name is not None
            else node
            for node in rows.nodes
        ],
    )


def part(spec: Drawing, workflow_id: UUID, inputs: Inputs) -> Plan:
    """The rows of a workflow that is to be a part of one that runs, and waits for its turn."""
    place = Place(
        UUID(inputs.root_workflow_id), UUID(inputs.workflow_id), inputs.task_index, inputs.depth + 1
    )
    trees = list(_tree(spec, workflow_id, place, runs=False))
    return Plan([flow for flow, _ in trees], [node for _, nodes in trees for node in nodes])


def _tree(
    spec: Drawing, workflow_id: UUID, place: Place, runs: bool
) -> Iterator[tuple[NewFlow, list[NewNode]]]:
    ids = dict(zip(spec.children, new_ids(len(spec.children)), strict=True))
    yield _flow(spec, workflow_id, place, runs), _nodes(spec, workflow_id, ids, runs)
    for index, child in spec.children.items():
        below = Place(place.root, workflow_id, index, place.depth + 1)
        yield from _tree(child, ids[index], below, runs and not spec.entries[index].deps)


def _flow(spec: Drawing, workflow_id: UUID, place: Place, runs: bool) -> NewFlow:
    return NewFlow(
        id=workflow_id,
        root_workflow_id=place.root,
        parent_workflow_id=place.parent,
        parent_task_index=place.parent_index,
        depth=place.depth,
        name=spec.name,
        status=WorkflowStatus.RUNNING if runs else WorkflowStatus.PENDING,
        on_error=spec.on_error,
        definition_key=spec.definition_key,
        output_task_index=spec.output_index,
        success_policy=None if spec.policy is None else policy_json(spec.policy),
        deadline_seconds=spec.deadline_seconds,
        open_tasks=len(spec.entries),
    )


def policy_json(policy: Policy) -> str:
    cases = [{"required_indices": case} for case in policy.cases]
    return msgspec.json.encode({"cases": cases, "optional_indices": policy.optional}).decode()


def _nodes(spec: Drawing, workflow_id: UUID, children: dict[int, UUID], runs: bool) -> list[NewNode]:
    dependents = dependents_of(spec.entries)
    task_ids = new_ids(len(spec.entries))
    return [
        msgspec.structs.replace(
            _described(entry, spec, task_ids[entry.index]),
            workflow_id=workflow_id,
            status=_status(entry, runs),
            dependents=dependents[entry.index],
            sub_workflow_id=children.get(entry.index),
        )
        for entry in spec.entries
    ]


def _status(entry: Entry, runs: bool) -> WorkflowTaskStatus:
    if entry.deps:
        return WorkflowTaskStatus.PENDING
    if not runs:
        return WorkflowTaskStatus.READY
    return WorkflowTaskStatus.ENQUEUED if isinstance(entry.node, TaskNode) else WorkflowTaskStatus.RUNNING


def _described(entry: Entry, spec: Drawing, task_id: UUID) -> NewNode:
    """A node as it is stored, but for its place among others."""
    node = _blank(entry)
    match entry.node:
        case TaskNode():
            return _task(node, entry, entry.node, task_id)
        case SubWorkflowNode() as sub:
            key = sub.workflow_def.definition_key
            node = msgspec.structs.replace(
                node, kind=Kind.WORKFLOW, task_name=sub.workflow_def.name, sub_definition_key=key
            )
            return _builder(node, entry, spec, task_id) if entry.args_from else node
        case MapNode():
            mapped = as_map(entry)
            definition = mapped.fn.definition
            param = map_param(entry, mapped) or ""
            node = _with_task(node, definition, entry)
            over = entry.deps[-1] if param not in entry.args_from else entry.args_from[param]
            return msgspec.structs.replace(node, kind=Kind.MAP, args_from={param: over})
        case SleepNode() as sleep:
            return msgspec.structs.replace(node, kind=Kind.SLEEP, task_name="sleep", seconds=sleep.seconds)
        case SignalNode() as signal:
            return msgspec.structs.replace(
                node, kind=Kind.SIGNAL, task_name=signal.name, seconds=signal.timeout_seconds
            )
        case Node():
            raise AssertionError("every kind of node was checked")


def _blank(entry: Entry) -> NewNode:
    node = entry.node
    fed = node if isinstance(node, FedNode) else None
    join = "all" if fed is None else fed.join
    return NewNode(
        task_index=entry.index,
        node_id=entry.node_id,
        task_name="",
        dependencies=entry.deps,
        open_deps=len(entry.deps),
        join_type=join,
        min_success=1 if join == "any" else None if fed is None else fed.min_success,
        allow_failed_deps=fed is not None and fed.allow_failed_deps,
        args_from=dict(entry.args_from) or None,
        workflow_ctx_from=entry.context,
        open_sources=0 if join == "all" else len(entry.context or ()),
    )


def _task(blank: NewNode, entry: Entry, node: TaskNode[Any], task_id: UUID) -> NewNode:
    definition = node.fn.definition
    if node.retry_policy is not None:
        definition = replace(definition, retry_policy=node.retry_policy)
    stored = _with_task(blank, definition, entry)
    return msgspec.structs.replace(
        stored,
        task_id=task_id,
        queue_name=node.queue or stored.queue_name,
        priority=node.priority or stored.priority,
        timeout_ms=node.timeout_ms or stored.timeout_ms,
        good_until=None if node.good_until is None else node.good_until.astimezone(UTC),
    )


def _with_task(node: NewNode, definition: TaskDefinition, entry: Entry) -> NewNode:
    takes_meta = "workflow_meta" in definition.signature.injected
    is_fed = bool(entry.args_from) or entry.context is not None or takes_meta
    return msgspec.structs.replace(
        node,
        task_name=definition.name,
        queue_name=definition.queue.name,
        priority=definition.priority or definition.queue.priority,
        is_async=definition.is_async,
        max_retries=definition.max_retries,
        timeout_ms=definition.timeout_ms,
        rate_key=definition.rate_key,
        task_options=_options(definition.options_json, is_fed),
        task_kwargs=definition.signature.encode_part(entry.kwargs).decode(),
    )


def _options(options_json: str | None, is_fed: bool) -> str | None:
    """The options of a task, and whether it must be fed before it can run."""
    if not is_fed:
        return options_json
    options: dict[str, Any] = {} if options_json is None else msgspec.json.decode(options_json)
    return msgspec.json.encode({**options, "fed": True}).decode()


def _builder(node: NewNode, entry: Entry, spec: Drawing, task_id: UUID) -> NewNode:
    """A node whose workflow is built by a task of its own, when its parameters are there."""
    assert spec.broker is not None
    queue = spec.broker.config.queues[0]
    call = {"definition_key": node.sub_definition_key, "kwargs": dict(entry.kwargs)}
    return msgspec.structs.replace(
        node,
        task_id=task_id,
        task_name=BUILD,
        queue_name=queue.name,
        priority=queue.priority,
        task_options=_options(None, True),
        task_kwargs=msgspec.json.encode(call).decode(),
    )
