"""What a task of a workflow gets besides its arguments: its place in the workflow, and the results of other nodes.

The database assembles the results as JSON. The annotations of the task and of the nodes decide how they are decoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from horsies.codec import ArgumentError, Signature, decode_result
from horsies.errors import WorkflowContextMissingIdError
from horsies.frozen import dataclass
from horsies.result import TaskError, TaskResult
from horsies.status import OutcomeCode
from horsies.workflow.graph import value_type_of
from horsies.workflow.handle import SubWorkflowSummary, summary_of
from horsies.workflow.nodes import Node, NodeKey
from horsies.workflow.types import takes_result

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class WorkflowMeta:
    """The workflow and node that a task runs for. A task with a parameter `workflow_meta` gets it.

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
        """Return the result of a node; raise KeyError if it is not in the context."""
        value_type = value_type_of(node) if isinstance(node, Node) else Any
        return decode_result(bytes(self._results[_id_of(node)]), value_type)

    def has_result(self, node: Node[Any] | NodeKey[Any]) -> bool:
        """Return True if the node is in the context."""
        return _id_of(node) in self._results

    def summary_for(self, node: Node[Any] | NodeKey[Any]) -> SubWorkflowSummary:
        """Return the summary of a sub-workflow; raise KeyError if it is not in the context."""
        return summary_of(self._summaries[_id_of(node)])

    def has_summary(self, node: Node[Any] | NodeKey[Any]) -> bool:
        """Return True if the node is a sub-workflow in the context."""
        return _id_of(node) in self._summaries


def _id_of(node: Node[Any] | NodeKey[Any]) -> str:
    if node.node_id is None:
        raise WorkflowContextMissingIdError(
            "the context was asked for a node without a node_id",
            help_text="give the node one: TaskNode(…, node_id='fetch'), or make it an attribute of a definition",
        )
    return node.node_id


class Inputs(msgspec.Struct, frozen=True):
    """The inputs of a task, as the statement `load_inputs` assembles them."""

    workflow_id: str
    task_index: int
    root_workflow_id: str
    depth: int
    # With a join of "any" or "quorum", a source may have no value: its parameter has a default.
    optional: bool = False
    args: dict[str, msgspec.Raw] | None = None
    context: dict[str, msgspec.Raw] | None = None
    summaries: dict[str, dict[str, Any]] | None = None


read_inputs = msgspec.json.Decoder(Inputs).decode
_read_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class NoValue(Exception):
    """A parameter takes the plain value of a node that has none, so the task is not run. `result` is its result instead."""

    def __init__(self, task_name: str, parameter: str, source: TaskError) -> None:
        super().__init__(parameter)
        why = f"{source.error_code}: {source.message}" if source.message else str(source.error_code)
        message = f"argument {parameter!r} of {task_name!r} comes from a node that has no value ({why})"
        self.result: TaskResult[Any, TaskError] = TaskResult(
            err=TaskError(
                error_code=OutcomeCode.UPSTREAM_FAILED, message=message, data={"parameter": parameter}
            )
        )


class _Told(msgspec.Struct):
    ok: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_read_told = msgspec.json.Decoder(_Told).decode


def plain_values(
    task_name: str, annotations: Mapping[str, Any], results: Mapping[str, msgspec.Raw], *, optional: bool
) -> dict[str, msgspec.Raw]:
    """Return results as the parameters take them: as they are, or, for a plain parameter, only the value.

    A source without a value raises `NoValue`. If it is `optional`, its argument is left out, so that the default is used.
    """
    found: dict[str, msgspec.Raw] = {}
    for name, result in results.items():
        if takes_result(annotations.get(name)):
            found[name] = result
            continue
        try:
            value = _read_told(result).ok
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ArgumentError(
                f"the result for argument {name!r} of task {task_name!r} cannot be read: {error}"
            ) from error
        if not isinstance(value, msgspec.UnsetType):
            found[name] = value
        elif not optional:
            raise NoValue(task_name, name, decode_result(bytes(result), Any).err_value)
    return found


def arguments(
    signature: Signature, args: str | None, kwargs: str | None, inputs: str | None
) -> dict[str, Any]:
    """Return the arguments to call a task with: its own, those from other nodes, and the injected ones.

    Raise `NoValue` if a parameter takes the plain value of a node that has none.
    """
    if inputs is None:
        return signature.decode(args, kwargs) | dict.fromkeys(signature.injected)
    try:
        given = read_inputs(inputs)
        annotations = {name: each.annotation for name, each in signature.parameters.items()}
        values = plain_values(signature.task_name, annotations, given.args or {}, optional=given.optional)
        merged = {**_read_object(kwargs or "{}"), **values}
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ArgumentError(
            f"the arguments of task {signature.task_name!r} cannot be read: {error}"
        ) from error
    found = signature.decode(None, msgspec.json.encode(merged))
    meta = WorkflowMeta(given.workflow_id, given.task_index, signature.task_name)
    if "workflow_meta" in signature.injected:
        found["workflow_meta"] = meta
    if "workflow_ctx" in signature.injected:
        found["workflow_ctx"] = None
        if given.context is not None:
            found["workflow_ctx"] = WorkflowContext(meta, given.context, given.summaries or {})
    return found
