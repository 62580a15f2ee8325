"""Build a workflow whose parameters come from other nodes.

Building runs the user's code, so a child does it, as a task: what it gives is the rows to store. A workflow that cannot be
built fails its node, and nothing else.
"""

from __future__ import annotations

from typing import Any, get_args, get_origin

import msgspec

from horsies.codec import decode_result
from horsies.context import Headers
from horsies.registry import TaskRegistry
from horsies.results import TaskError, TaskResult
from horsies.status import OperationalErrorCode
from horsies.storage.ids import new_ids
from horsies.workflow.context import Inputs, read_inputs
from horsies.workflow.definition import DEFINITIONS
from horsies.workflow.rows import carrying, part
from horsies.workflow.spec import build
from horsies.workflow.types import hints_of


class _Asked(msgspec.Struct):
    definition_key: str
    kwargs: dict[str, Any]


def build_part(
    registry: TaskRegistry, kwargs: str | None, inputs: str | None, headers: Headers
) -> TaskResult[Any, TaskError]:
    """The rows of a workflow, to be stored as a part of the one that asks for it."""
    asked = msgspec.json.decode(kwargs or "{}", type=_Asked)
    fed = read_inputs(inputs or "{}")
    definition = DEFINITIONS.get(asked.definition_key)
    if definition is None:
        return _failed(f"this worker knows no workflow definition {asked.definition_key!r}")
    try:
        spec = build(definition, registry, {**asked.kwargs, **_results(definition, fed)})
    except Exception as error:  # noqa: BLE001  the user's code runs here, and what it raises is the node's error
        return _failed(f"{asked.definition_key!r} cannot be built: {type(error).__name__}: {error}")
    return TaskResult(ok=msgspec.to_builtins(carrying(part(spec, new_ids(1)[0], fed), headers)._asdict()))


def _results(definition: Any, fed: Inputs) -> dict[str, Any]:
    """The results of other nodes, read as `build_with` has annotated them."""
    types = hints_of(definition)
    return {
        name: decode_result(bytes(document), _value_type(types.get(name)))
        for name, document in (fed.args or {}).items()
    }


def _value_type(annotation: Any) -> Any:
    """The T of `TaskResult[T, TaskError]`, also where that is one of several; Any when it says nothing of the kind."""
    for each in (annotation, *get_args(annotation)):
        if get_origin(each) is TaskResult:
            return get_args(each)[0]
    return Any


def _failed(message: str) -> TaskResult[Any, TaskError]:
    return TaskResult(err=TaskError(error_code=OperationalErrorCode.SUBWORKFLOW_LOAD_FAILED, message=message))
