"""What follows from the end of a node. Decisions only: what is loaded before and written after is the caller's.

A step knows the nodes that ended and those that wait for them, and no others: each node keeps count of what it still
waits for, and each workflow of what has not ended, so that a step of a workflow of thousands costs what a step of three
does. The order in which nodes end makes no difference to how the workflow ends.
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
    """What a node is."""

    TASK = "task"
    WORKFLOW = "workflow"
    MAP = "map"
    SLEEP = "sleep"
    SIGNAL = "signal"


class Flow(msgspec.Struct):
    """A workflow, as far as a step must know it."""

    id: str
    status: str
    pauses: bool  # on the first failure
    open_tasks: int
    parent: Ref | None = None


class Node(msgspec.Struct):
    """A node, as far as a step must know it. `sources` are the dependencies that must have ended in any case."""

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
    is_fed: bool = False  # with results of others, when it runs

    @property
    def ref(self) -> Ref:
        return self.workflow_id, self.index

    @property
    def has_ended(self) -> bool:
        return self.status in WORKFLOW_TASK_TERMINAL_STATES


class Ended(NamedTuple):
    """A node has ended; one whose workflow is still to be built has only got that."""

    workflow_id: str
    task_index: int
    status: WorkflowTaskStatus
    result: str | None = None

    @property
    def ref(self) -> Ref:
        return self.workflow_id, self.task_index


class Opened(NamedTuple):
    """A workflow may begin, or go on after a pause, with its nodes that are ready."""

    workflow_id: str


Event: TypeAlias = Ended | Opened


class NodeChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node as it is to be written, its counts only if they changed; one that `starts` is put to work as well."""

    workflow_id: str
    task_index: int
    status: str
    starts: bool = False
    open_deps: int | None = None
    completed_deps: int | None = None
    failed_deps: int | None = None
    open_sources: int | None = None
    result: str | None = None

    @property
    def ref(self) -> Ref:
        return self.workflow_id, self.task_index


class FlowChange(msgspec.Struct, frozen=True):
    """A workflow as it is to be written."""

    id: str
    status: str
    open_tasks: int


class Changes(NamedTuple):
    """What a step comes to: rows to write, then what they lead to in turn."""

    nodes: list[NodeChange]
    flows: list[FlowChange]
    paused: list[str]  # workflows whose tasks that have not begun must be held back
    maps: list[Ref]  # nodes that take their items now
    built: list[Ref]  # nodes whose workflow has just been built
    dropped: list[str]  # workflows that will not begin, because their node was skipped
    over: list[str]  # workflows that have ended, and need a verdict
    events: list[Event]

    @property
    def leads_on(self) -> bool:
        """Whether there is more to do than to write rows."""
        return bool(self.paused or self.maps or self.built or self.dropped or self.events)


def joins(node: Node) -> bool | None:
    """Whether a node may run, given how far its dependencies are; None when that is not decided."""
    if node.join == "all":
        if node.open_deps:
            return None
        return node.allow_failed or not node.failed_deps
    wanted = node.min_success or 1
    if node.completed_deps >= wanted:
        return True if not node.open_sources else None
    return None if node.completed_deps + node.open_deps >= wanted else False


def advance(flows: Mapping[str, Flow], nodes: Mapping[Ref, Node], events: Iterable[Event]) -> Changes:
    """What follows from these events. `nodes` are those that ended, and those that wait for them."""
    step = _Step(flows, nodes)
    for event in events:
        step.take(event)
    step.begin()
    return step.changes


class _Step:
    def __init__(self, flows: Mapping[str, Flow], nodes: Mapping[Ref, Node]) -> None:
        self._flows = flows
        self._nodes = nodes
        self._touched: dict[Ref, str | None] = {}  # with the results that came along
        self._counted: set[Ref] = set()
        self._ready: dict[Ref, None] = {}
        self._starts: set[Ref] = set()
        self._touched_flows: dict[str, None] = {}
        self._paused: list[str] = []
        self._maps: list[Ref] = []
        self._built: list[Ref] = []
        self._dropped: list[str] = []
        self._events: list[Event] = []

    def take(self, event: Event) -> None:
        if isinstance(event, Opened):
            flow = self._flows[event.workflow_id]
            flow.status = WorkflowStatus.RUNNING
            self._touched_flows[flow.id] = None
            members = [node for node in self._nodes.values() if node.workflow_id == flow.id]
            self._ready |= {node.ref: None for node in members if node.status == READY}
            return
        node = self._nodes[event.ref]
        if node.has_ended:
            return
        if node.kind == Kind.WORKFLOW and node.child is None and event.status == COMPLETED:
            node.status = RUNNING
            self._touched[node.ref] = None
            self._built.append(node.ref)
            return
        self._touched[node.ref] = event.result
        self._spread(node, event.status)

    def _spread(self, first: Node, status: WorkflowTaskStatus) -> None:
        """End a node, and all that are skipped because of it, level by level."""
        level = [(first, status)]
        while level:
            following: list[tuple[Node, WorkflowTaskStatus]] = []
            for node, ending in level:
                if node.has_ended:
                    continue  # two of those before it have said so
                self._end(node, ending)
                for index in node.dependents:
                    dependent = self._nodes[node.workflow_id, index]
                    if not dependent.has_ended and self._count(dependent, node):
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
            self._dropped.append(node.child)
        if status == FAILED and flow.pauses and flow.status == WorkflowStatus.RUNNING:
            flow.status = WorkflowStatus.PAUSED
            self._paused.append(flow.id)

    def _count(self, node: Node, ended: Node) -> bool:
        """Note that a dependency has ended; tells whether the node is to be skipped here and now."""
        completed = ended.status == COMPLETED
        node.open_deps -= 1
        node.completed_deps += completed
        node.failed_deps += not completed
        node.open_sources -= ended.index in node.sources
        self._counted.add(node.ref)
        self._touched.setdefault(node.ref, None)
        if node.status != PENDING:
            return False
        verdict = joins(node)
        if verdict:
            self._ready[node.ref] = None
        if verdict is not False:
            return False
        if all((node.workflow_id, index) in self._nodes for index in node.dependents):
            return True
        self._events.append(Ended(node.workflow_id, node.index, SKIPPED))  # when those after it are known
        return False

    def begin(self) -> None:
        """Put to work what is ready, where that is allowed."""
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
                self._maps.append(ref)
            elif node.kind == Kind.WORKFLOW and node.child is not None:
                self._events.append(Opened(node.child))
            elif node.kind == Kind.SIGNAL and node.has_result:
                self._events.append(Ended(*ref, COMPLETED))

    @property
    def changes(self) -> Changes:
        touched = [self._flows[flow_id] for flow_id in self._touched_flows]
        return Changes(
            nodes=[self._change(self._nodes[ref], result) for ref, result in self._touched.items()],
            flows=[FlowChange(flow.id, flow.status, flow.open_tasks) for flow in touched],
            paused=self._paused,
            maps=self._maps,
            built=self._built,
            dropped=self._dropped,
            over=[
                flow.id for flow in touched if flow.status == WorkflowStatus.RUNNING and not flow.open_tasks
            ],
            events=self._events,
        )

    def _change(self, node: Node, result: str | None) -> NodeChange:
        starts = node.ref in self._starts
        if node.ref not in self._counted:
            return NodeChange(node.workflow_id, node.index, node.status, starts, result=result)
        counts = (node.open_deps, node.completed_deps, node.failed_deps, node.open_sources)
        return NodeChange(node.workflow_id, node.index, node.status, starts, *counts, result)


class Verdict(NamedTuple):
    """How a workflow has ended; of a failure, which node's error it is, if it is one's."""

    completed: bool
    culprit: int | None = None


def judge(cases: Iterable[Iterable[int]] | None, completed: set[int], failed: set[int]) -> Verdict:
    """Whether a workflow is a success. Without cases every failed node fails it.

    Of the nodes that cases require, `completed` and `failed` must tell; without cases, the first of `failed` will do.
    """
    if cases is None:
        return Verdict(not failed, min(failed, default=None))
    listed = [list(case) for case in cases]
    if any(completed.issuperset(case) for case in listed):
        return Verdict(True)
    return Verdict(False, next((index for case in listed for index in case if index in failed), None))
