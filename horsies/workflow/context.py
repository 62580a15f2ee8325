"""What a task of a workflow is told of it: where it stands, and what came of the nodes before it.

It arrives beside the task's own arguments, as JSON that the database has put together. The annotations of the task and
of the nodes asked for say what it is read as.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from horsies.codec import Signature, decode_result
from horsies.errors import WorkflowContextMissingIdError
from horsies.results import TaskError, TaskResult
from horsies.workflow.info import SubWorkflowSummary, summary_of
from horsies.workflow.nodes import Node, NodeKey
from horsies.workflow.types import value_type_of

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class WorkflowMeta:
    """Which node of which workflow a task runs for. A task that has a parameter `workflow_meta` is given it.

    >>> @app.task("audit")
    ... def audit(workflow_meta: WorkflowMeta | None = None) -> TaskResult[str, TaskError]:
    ...     return TaskResult(ok=workflow_meta.workflow_id if workflow_meta else "no workflow")
    """

    workflow_id: str
    task_index: int
    task_name: str


class WorkflowContext:
    """The results of the nodes in `workflow_ctx_from`, for a task that has a parameter `workflow_ctx`.

    >>> @app.task("report")
    ... def report(workflow_ctx: WorkflowContext | None = None) -> TaskResult[int, TaskError]:
    ...     assert workflow_ctx is not None
    ...     return workflow_ctx.result_for(Import.fetch)
    """

    def __init__(
        self,
        meta: WorkflowMeta,
        results: Mapping[str, msgspec.Raw],
        summaries: Mapping[str, Mapping[str, Any]],
    ) -> None:
        self.workflow_id = meta.workflow_id
        self.task_index = meta.task_index
        self.task_name = meta.task_name
        self._results = results
        self._summaries = summaries

    def result_for(self, node: Node[V] | NodeKey[V]) -> TaskResult[V, TaskError]:
        """What came of a node; KeyError when it is not in the context."""
        value_type = value_type_of(node) if isinstance(node, Node) else Any
        return decode_result(bytes(self._results[_id_of(node)]), value_type)

    def has_result(self, node: Node[Any] | NodeKey[Any]) -> bool:
        """Whether the node is in the context."""
        return _id_of(node) in self._results

    def summary_for(self, node: Node[Any] | NodeKey[Any]) -> SubWorkflowSummary:
        """What came of a sub-workflow as a whole; KeyError when it is not in the context."""
        return summary_of(self._summaries[_id_of(node)])

    def has_summary(self, node: Node[Any] | NodeKey[Any]) -> bool:
        """Whether the node is a sub-workflow in the context."""
        return _id_of(node) in self._summaries


def _id_of(node: Node[Any] | NodeKey[Any]) -> str:
    if node.node_id is None:
        raise WorkflowContextMissingIdError(
            "the context was asked for a node without a node_id",
            help_text="give the node one: TaskNode(…, node_id='fetch'), or make it an attribute of a definition",
        )
    return node.node_id


class Inputs(msgspec.Struct, frozen=True):
    """What the database has put together for a task."""

    workflow_id: str
    task_index: int
    root_workflow_id: str
    depth: int
    args: dict[str, msgspec.Raw] | None = None
    context: dict[str, msgspec.Raw] | None = None
    summaries: dict[str, dict[str, Any]] | None = None


read_inputs = msgspec.json.Decoder(Inputs).decode
_read_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def arguments(
    signature: Signature, args: str | None, kwargs: str | None, inputs: str | None
) -> dict[str, Any]:
    """What to call a task with: its own arguments, those that come from other nodes, and what it wants to know."""
    if inputs is None:
        return signature.decode(args, kwargs) | dict.fromkeys(signature.injected)
    fed = read_inputs(inputs)
    merged = {**_read_object(kwargs or "{}"), **(fed.args or {})}
    found = signature.decode(None, msgspec.json.encode(merged))
    meta = WorkflowMeta(fed.workflow_id, fed.task_index, signature.task_name)
    if "workflow_meta" in signature.injected:
        found["workflow_meta"] = meta
    if "workflow_ctx" in signature.injected:
        has_context = fed.context is not None
        found["workflow_ctx"] = (
            WorkflowContext(meta, fed.context or {}, fed.summaries or {}) if has_context else None
        )
    return found
