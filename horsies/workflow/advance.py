"""Decide what follows when a node ends. This module is pure: `horsies.workflow.settle` loads the rows and writes the changes.

A step knows only the nodes that ended and their dependents. Each node counts the dependencies that it still waits for, and each
workflow the nodes that have not ended. So a step in a workflow of thousands of nodes costs as much as in one of three. The order
in which nodes end does not affect how the workflow ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple, TypeAlias

import msgspec

from horsies.status import WORKFLOW_TASK_TERMINAL_STATES, WorkflowStatus, WorkflowTaskStatus

Ref: TypeAlias = tuple[str, int]
PENDING, READY = WorkflowTaskStatus.PENDING, WorkflowTaskStatus.READY
ENQUEUED, RUNNING = WorkflowTaskStatus.ENQUEUED, WorkflowTaskStatus.RUNNING
COMPLETED, FAILED, SKIPPED = (
    WorkflowTaskStatus.COMPLETED,
    WorkflowTaskStatus.FAILED,
    WorkflowTaskStatus.SKIPPED,
)


class Kind(StrEnum):
    """The kind of a node."""

    TASK = "task"
    WORKFLOW = "workflow"
    MAP = "map"
    SLEEP = "sleep"
    SIGNAL = "signal"


class Flow(msgspec.Struct):
    """The part of a workflow's row that a step needs."""

    id: str
    status: str
    pauses: bool  # when a node fails
    open_tasks: int
    parent: Ref | None = None


class Node(msgspec.Struct):
    """The part of a node's row that a step needs. `sources` are the dependencies that must have ended whatever the join says."""

    workflow_id: str
    index: int
    kind: str
    status: str
    join: str
    min_success: int | None
    allow_failed: bool
    open_deps: int
    completed_deps: int
    failed_deps: int
    open_sources: int
    dependents: list[int]
    sources: list[int]
    child: str | None = None
    has_result: bool = False

    @property
    def ref(self) -> Ref:
        return self.workflow_id, self.index

    @property
    def has_ended(self) -> bool:
        return self.status in WORKFLOW_TASK_TERMINAL_STATES


class NodeEnded(NamedTuple):
    """A node has ended. If its sub-workflow is built by a task, the end of that task: the sub-workflow can start then."""

    workflow_id: str
    task_index: int
    status: WorkflowTaskStatus
    result: str | None = None


class WorkflowStarted(NamedTuple):
    """A workflow starts, or resumes after a pause: its nodes that are ready may start."""

    workflow_id: str


Event: TypeAlias = NodeEnded | WorkflowStarted


class NodeChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node to write, with its counts only if they changed. A node that `starts` is also enqueued or timed."""

    workflow_id: str
    task_index: int
    status: str
    starts: bool = False
    open_deps: int | None = None
    completed_deps: int | None = None
    failed_deps: int | None = None
    open_sources: int | None = None
    result: str | None = None


class Changes:
    """The result of a step: the rows to write, and what to do next."""

    def __init__(self) -> None:
        self.nodes: list[NodeChange] = []
        self.flows: list[Flow] = []
        self.paused: list[str] = []  # workflows whose tasks that were not started must be put off
        self.maps: list[Ref] = []  # map nodes that start: their tasks must be enqueued
        self.built: list[Ref] = []  # nodes whose sub-workflow has just been built
        self.dropped: list[str] = []  # sub-workflows that will not start, because their node was skipped
        self.over: list[str] = []  # workflows whose nodes have all ended
        self.events: list[Event] = []


def can_start(node: Node) -> bool | None:
    """Return True if the dependencies of a node allow it to start, False if they never will, None if that is still open."""
    if node.join == "all":
        if node.open_deps:
            return None
        return node.allow_failed or not node.failed_deps
    needed = node.min_success or 1
    if node.completed_deps >= needed:
        return True if not node.open_sources else None
    return None if node.completed_deps + node.open_deps >= needed else False


def advance(flows: Mapping[str, Flow], nodes: Mapping[Ref, Node], events: Iterable[Event]) -> Changes:
    """Return what follows from these events. `nodes` has the nodes that ended and their dependents."""
    step = _Step(flows, nodes)
    for event in events:
        step.apply(event)
    step.start_ready_nodes()
    step.collect_rows()
    return step.changes


class _Step:
    def __init__(self, flows: Mapping[str, Flow], nodes: Mapping[Ref, Node]) -> None:
        self.changes = Changes()
        self._flows = flows
        self._nodes = nodes
        self._touched: dict[Ref, str | None] = {}  # with the results that the events carry
        self._counted: set[Ref] = set()
        self._ready: dict[Ref, None] = {}
        self._starts: set[Ref] = set()
        self._touched_flows: dict[str, None] = {}

    def apply(self, event: Event) -> None:
        if isinstance(event, WorkflowStarted):
            flow = self._flows[event.workflow_id]
            flow.status = WorkflowStatus.RUNNING
            self._touched_flows[flow.id] = None
            members = [node for node in self._nodes.values() if node.workflow_id == flow.id]
            self._ready |= {node.ref: None for node in members if node.status == READY}
            return
        node = self._node((event.workflow_id, event.task_index))
        if node.has_ended:
            return
        if node.kind == Kind.WORKFLOW and node.child is None and event.status == COMPLETED:
            node.status = RUNNING
            self._touched[node.ref] = None
            self.changes.built.append(node.ref)
            return
        self._touched[node.ref] = event.result
        self._end_with_dependents(node, event.status)

    def _node(self, ref: Ref) -> Node:
        """Return a node by reference. The reference comes from a stored row, which may be wrong."""
        node = self._nodes.get(ref)
        if node is None:
            raise LookupError(f"workflow {ref[0]} has no node {ref[1]}")
        return node

    def _end_with_dependents(self, first: Node, status: WorkflowTaskStatus) -> None:
        """End a node, and skip the nodes that cannot start any more because of it, level by level."""
        level = [(first, status)]
        while level:
            following: list[tuple[Node, WorkflowTaskStatus]] = []
            for node, ending in level:
                if node.has_ended:
                    continue  # two of its dependencies have skipped it
                self._end(node, ending)
                for index in node.dependents:
                    dependent = self._node((node.workflow_id, index))
                    if not dependent.has_ended and self._count_ended_dependency(dependent, node):
                        following.append((dependent, SKIPPED))
            level = following

    def _end(self, node: Node, status: WorkflowTaskStatus) -> None:
        flow = self._flows[node.workflow_id]
        node.status = status
        flow.open_tasks -= 1
        self._touched.setdefault(node.ref, None)
        self._touched_flows[flow.id] = None
        self._ready.pop(node.ref, None)
        if status == SKIPPED and node.child is not None:
            self.changes.dropped.append(node.child)
        if status == FAILED and flow.pauses and flow.status == WorkflowStatus.RUNNING:
            flow.status = WorkflowStatus.PAUSED
            self.changes.paused.append(flow.id)

    def _count_ended_dependency(self, node: Node, ended: Node) -> bool:
        """Count a dependency that has ended; return True if the node must be skipped now."""
        completed = ended.status == COMPLETED
        node.open_deps -= 1
        node.completed_deps += completed
        node.failed_deps += not completed
        node.open_sources -= ended.index in node.sources
        self._counted.add(node.ref)
        self._touched.setdefault(node.ref, None)
        if node.status != PENDING:
            return False
        startable = can_start(node)
        if startable:
            self._ready[node.ref] = None
        if startable is not False:
            return False
        if all((node.workflow_id, index) in self._nodes for index in node.dependents):
            return True
        # Its dependents are not loaded: skip it in a step of its own.
        self.changes.events.append(NodeEnded(node.workflow_id, node.index, SKIPPED))
        return False

    def start_ready_nodes(self) -> None:
        """Start the nodes that are ready, in workflows that run."""
        for ref in self._ready:
            node = self._nodes[ref]
            self._touched.setdefault(ref, None)
            if self._flows[node.workflow_id].status != WorkflowStatus.RUNNING:
                node.status = READY
                continue
            self._starts.add(ref)
            has_task = node.kind == Kind.TASK or (node.kind == Kind.WORKFLOW and node.child is None)
            node.status = ENQUEUED if has_task else RUNNING
            if node.kind == Kind.MAP:
                self.changes.maps.append(ref)
            elif node.kind == Kind.WORKFLOW and node.child is not None:
                self.changes.events.append(WorkflowStarted(node.child))
            elif node.kind == Kind.SIGNAL and node.has_result:
                self.changes.events.append(NodeEnded(*ref, COMPLETED))

    def collect_rows(self) -> None:
        """Add the rows of all nodes and workflows that have changed."""
        for ref, result in self._touched.items():
            node = self._nodes[ref]
            counted = ref in self._counted
            self.changes.nodes.append(
                NodeChange(
                    *ref,
                    node.status,
                    starts=ref in self._starts,
                    open_deps=node.open_deps if counted else None,
                    completed_deps=node.completed_deps if counted else None,
                    failed_deps=node.failed_deps if counted else None,
                    open_sources=node.open_sources if counted else None,
                    result=result,
                )
            )
        for flow_id in self._touched_flows:
            flow = self._flows[flow_id]
            self.changes.flows.append(flow)
            if flow.status == WorkflowStatus.RUNNING and not flow.open_tasks:
                self.changes.over.append(flow_id)


class WorkflowEnd(NamedTuple):
    """The end of a workflow. `culprit` is the node whose error is that of the workflow, if it failed by one."""

    completed: bool
    culprit: int | None = None


def decide_end(cases: Iterable[Iterable[int]] | None, completed: set[int], failed: set[int]) -> WorkflowEnd:
    """Decide how a workflow has ended. Without cases of a success policy, any failed node fails it.

    `completed` and `failed` must have all nodes that the cases require; without cases, the first of `failed` is enough.
    """
    if cases is None:
        return WorkflowEnd(not failed, min(failed, default=None))
    listed = [list(case) for case in cases]
    if any(completed.issuperset(case) for case in listed):
        return WorkflowEnd(True)
    return WorkflowEnd(False, next((index for case in listed for index in case if index in failed), None))
