"""A handle to a workflow that was started: wait for its result, look into it, steer it.

A handle never raises. What a workflow came to is a `TaskResult`, as with a task; what was asked of it and could not be
done is an `Err` with a code.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeVar
from uuid import UUID

import psycopg

from horsies.broker import Broker
from horsies.codec import ArgumentError, decode_result, encode_json
from horsies.errors import HorsiesError, mask_passwords
from horsies.portal import run_async, run_sync
from horsies.results import (
    Err,
    HandleOperationError,
    HandleResult,
    Ok,
    TaskError,
    TaskResult,
)
from horsies.status import (
    BuiltInTaskCode,
    HandleErrorCode,
    OperationalErrorCode,
    OutcomeCode,
    RetrievalCode,
    WorkflowStatus,
    WorkflowTaskStatus,
)
from horsies.storage import steering, workflows
from horsies.storage.database import TRANSIENT, Connection
from horsies.storage.workflows import FlowSeen
from horsies.workflow.info import WorkflowTaskInfo, summary_of
from horsies.workflow.nodes import AnyNode, Node, NodeKey

T = TypeVar("T")
V = TypeVar("V")
Nothing: Mapping[Any, Any] = {}

# A deadlock is resolved by ending one of the two; the next try finds the way free.
TRIES = 3
_ENDINGS: dict[str, tuple[BuiltInTaskCode, str]] = {
    WorkflowStatus.CANCELLED: (OutcomeCode.WORKFLOW_CANCELLED, "the workflow was cancelled"),
    WorkflowStatus.EXPIRED: (OutcomeCode.WORKFLOW_EXPIRED, "the workflow did not end before its deadline"),
    WorkflowStatus.PAUSED: (OutcomeCode.WORKFLOW_PAUSED, "the workflow is paused; resume it to go on"),
    WorkflowStatus.FAILED: (OutcomeCode.WORKFLOW_FAILED, "the workflow has failed"),
}


class WorkflowHandle(Generic[T]):
    """Stands for a workflow that was started.

    >>> handle = spec.start().unwrap()
    >>> handle.get(timeout_ms=5_000)
    TaskResult(ok=5)
    """

    def __init__(
        self,
        workflow_id: str,
        broker: Broker,
        types: Mapping[str, Any] = Nothing,
        node_ids: Mapping[AnyNode, str] = Nothing,
    ) -> None:
        self.workflow_id = workflow_id
        self._broker = broker
        self._types = types
        self._node_ids = node_ids

    def __repr__(self) -> str:
        return f"WorkflowHandle({self.workflow_id!r})"

    def status(self) -> HandleResult[WorkflowStatus]:
        """Where the workflow is now."""
        return run_sync(self._status())

    async def status_async(self) -> HandleResult[WorkflowStatus]:
        """As `status`, without blocking the running loop."""
        return await run_async(self._status())

    def get(self, timeout_ms: int | None = None) -> TaskResult[T, TaskError]:
        """What the workflow came to, waiting for it as long as you say: None for ever, 0 not at all.

        The value is that of its output node; without one, the results of the nodes that none waits for, by their ids.
        A workflow that is paused is not waited for.
        """
        return run_sync(self._get(timeout_ms))

    async def get_async(self, timeout_ms: int | None = None) -> TaskResult[T, TaskError]:
        """As `get`, without blocking the running loop."""
        return await run_async(self._get(timeout_ms))

    def results(self) -> HandleResult[dict[str, TaskResult[Any, TaskError]]]:
        """The results of all nodes that have ended, by their ids."""
        return run_sync(self._results())

    async def results_async(self) -> HandleResult[dict[str, TaskResult[Any, TaskError]]]:
        """As `results`, without blocking the running loop."""
        return await run_async(self._results())

    def result_for(self, node: Node[V] | NodeKey[V]) -> TaskResult[V, TaskError]:
        """The result of one node, looked for once; RESULT_NOT_READY when there is none yet.

        >>> handle.result_for(fetch)
        """
        return run_sync(self._result_for(node))

    async def result_for_async(self, node: Node[V] | NodeKey[V]) -> TaskResult[V, TaskError]:
        """As `result_for`, without blocking the running loop."""
        return await run_async(self._result_for(node))

    def tasks(self) -> HandleResult[list[WorkflowTaskInfo]]:
        """All nodes in order, with their states."""
        return run_sync(self._tasks())

    async def tasks_async(self) -> HandleResult[list[WorkflowTaskInfo]]:
        """As `tasks`, without blocking the running loop."""
        return await run_async(self._tasks())

    def pause(self) -> HandleResult[bool]:
        """Start nothing more; what runs may end. Whether it was running."""
        return run_sync(self._steer(steering.pause))

    async def pause_async(self) -> HandleResult[bool]:
        """As `pause`, without blocking the running loop."""
        return await run_async(self._steer(steering.pause))

    def resume(self) -> HandleResult[bool]:
        """Go on after a pause; what has failed stays so. Whether it was paused."""
        return run_sync(self._steer(steering.resume))

    async def resume_async(self) -> HandleResult[bool]:
        """As `resume`, without blocking the running loop."""
        return await run_async(self._steer(steering.resume))

    def cancel(self) -> HandleResult[None]:
        """End it with all its parts: what has not begun will not; what runs may end. Harmless when it is over."""
        return run_sync(self._cancel())

    async def cancel_async(self) -> HandleResult[None]:
        """As `cancel`, without blocking the running loop."""
        return await run_async(self._cancel())

    def retry_failed(self) -> HandleResult[bool]:
        """After a failure, run again what failed and what was skipped; what completed stays. Whether it had failed.

        >>> handle.retry_failed()
        """
        return run_sync(self._steer(steering.retry_failed))

    async def retry_failed_async(self) -> HandleResult[bool]:
        """As `retry_failed`, without blocking the running loop."""
        return await run_async(self._steer(steering.retry_failed))

    def signal(self, name: str, value: Any = None) -> HandleResult[bool]:
        """Give a `signal_node` its value, whether it waits for it by now or not. Whether any node took it.

        >>> handle.signal("approved", {"by": "ann"})
        """
        return run_sync(self._signal(name, value))

    async def signal_async(self, name: str, value: Any = None) -> HandleResult[bool]:
        """As `signal`, without blocking the running loop."""
        return await run_async(self._signal(name, value))

    # How it is done

    async def _steer(self, act: Callable[[Connection, UUID], Awaitable[bool | None]]) -> HandleResult[bool]:
        found = await self._ask(act, tries=TRIES)
        if isinstance(found, Err):
            return found
        return self._unknown() if found.ok_value is None else Ok(found.ok_value)

    async def _cancel(self) -> HandleResult[None]:
        done = await self._steer(steering.cancel)
        return done if isinstance(done, Err) else Ok(None)

    async def _signal(self, name: str, value: Any) -> HandleResult[bool]:
        try:
            result = f'{{"ok":{encode_json(value).decode()}}}'
        except ArgumentError as error:
            return Err(
                HandleOperationError(
                    code=HandleErrorCode.INTERNAL_FAILED,
                    message=f"the value of signal {name!r} cannot be sent: {error}",
                    workflow_id=self.workflow_id,
                )
            )
        return await self._steer(
            lambda connection, flow_id: steering.signal(connection, flow_id, name, result)
        )

    async def _status(self) -> HandleResult[WorkflowStatus]:
        found = self._known(await self._ask(workflows.look))
        return found if isinstance(found, Err) else Ok(WorkflowStatus(found.ok_value.status))

    async def _get(self, timeout_ms: int | None) -> TaskResult[T, TaskError]:
        flow_id = as_uuid(self.workflow_id)
        if flow_id is None:
            return error_result(RetrievalCode.WORKFLOW_NOT_FOUND, f"{self.workflow_id!r} is no workflow's id")
        try:
            seen = await self._seen(flow_id, timeout_ms)
            if seen is None:
                return error_result(RetrievalCode.WORKFLOW_NOT_FOUND, f"there is no workflow {flow_id}")
            return await self._outcome(seen)
        except TimeoutError:
            message = f"workflow {flow_id} has not ended within {timeout_ms} ms"
            return error_result(RetrievalCode.WAIT_TIMEOUT, message)
        except (psycopg.Error, OSError, HorsiesError) as error:
            message = mask_passwords(str(error)) or type(error).__name__
            return error_result(OperationalErrorCode.BROKER_ERROR, message)

    async def _seen(self, flow_id: UUID, timeout_ms: int | None) -> FlowSeen | None:
        if timeout_ms is not None and timeout_ms <= 0:
            async with self._broker.connection() as connection:
                return await workflows.look(connection, flow_id)
        return await self._broker.watch_workflow(flow_id, None if timeout_ms is None else timeout_ms / 1000)

    async def _outcome(self, seen: FlowSeen) -> TaskResult[Any, TaskError]:
        if seen.error is not None:
            return decode_result(f'{{"err":{seen.error}}}', Any)
        if seen.status in _ENDINGS:
            return error_result(*_ENDINGS[seen.status])
        if seen.status != WorkflowStatus.COMPLETED:
            return error_result(RetrievalCode.WAIT_TIMEOUT, f"workflow {seen.id} is {seen.status}")
        if seen.output is not None and seen.result is not None:
            return decode_result(seen.result, self._type_of(seen.output))
        async with self._broker.connection() as connection:
            rows = await workflows.results(connection, seen.id)
        if seen.output is not None:
            return next(self._decoded(*row[:3]) for row in rows if row[0] == seen.output)
        return TaskResult(ok={row[0]: self._decoded(*row[:3]) for row in rows if row[3]})

    async def _results(self) -> HandleResult[dict[str, TaskResult[Any, TaskError]]]:
        found = self._known(await self._ask(workflows.results))
        if isinstance(found, Err):
            return found
        ended = [row for row in found.ok_value if row[2] is not None or row[1] == WorkflowTaskStatus.SKIPPED]
        return Ok({row[0]: self._decoded(*row[:3]) for row in ended})

    async def _result_for(self, node: Node[V] | NodeKey[V]) -> TaskResult[V, TaskError]:
        node_id = self._id_of(node)
        if node_id is None:
            message = f"{node!r} has no id, and is no node of this workflow"
            return error_result(RetrievalCode.RESULT_NOT_AVAILABLE, message)
        found = await self._ask(
            lambda connection, flow_id: workflows.result_for(connection, flow_id, node_id)
        )
        if isinstance(found, Err):
            missing = found.err_value.code is HandleErrorCode.WORKFLOW_NOT_FOUND
            code = RetrievalCode.WORKFLOW_NOT_FOUND if missing else OperationalErrorCode.BROKER_ERROR
            return error_result(code, found.err_value.message)
        if found.ok_value is None:
            message = f"workflow {self.workflow_id} has no node {node_id!r}"
            return error_result(RetrievalCode.RESULT_NOT_AVAILABLE, message)
        return self._decoded(*found.ok_value)

    async def _tasks(self) -> HandleResult[list[WorkflowTaskInfo]]:
        found = self._known(await self._ask(workflows.nodes))
        return found if isinstance(found, Err) else Ok([self._info(row) for row in found.ok_value])

    def _info(self, row: tuple[Any, ...]) -> WorkflowTaskInfo:
        index, node_id, kind, name, status, task_id, child, queue, priority, deps, *rest = row
        started, completed, due, result, summary = rest
        ended = result is not None or status == WorkflowTaskStatus.SKIPPED
        return WorkflowTaskInfo(
            index=index,
            node_id=node_id,
            kind=kind,
            name=name,
            status=WorkflowTaskStatus(status),
            task_id=None if task_id is None else str(task_id),
            sub_workflow_id=None if child is None else str(child),
            queue_name=queue,
            priority=priority,
            dependencies=tuple(deps),
            started_at=started,
            completed_at=completed,
            due_at=due,
            result=self._decoded(node_id, status, result) if ended else None,
            summary=None if summary is None else summary_of(summary),
        )

    def _decoded(self, node_id: str, status: str, result: str | None) -> TaskResult[Any, TaskError]:
        if result is not None and status in (WorkflowTaskStatus.COMPLETED, WorkflowTaskStatus.FAILED):
            return decode_result(result, self._type_of(node_id))
        match status:
            case WorkflowTaskStatus.SKIPPED:
                return error_result(OutcomeCode.UPSTREAM_SKIPPED, f"node {node_id!r} was skipped")
            case WorkflowTaskStatus.COMPLETED | WorkflowTaskStatus.FAILED:
                message = f"node {node_id!r} is {status}; its result is not kept any more"
                return error_result(RetrievalCode.RESULT_NOT_AVAILABLE, message)
            case _:
                return error_result(RetrievalCode.RESULT_NOT_READY, f"node {node_id!r} is {status}")

    def _type_of(self, node_id: str) -> Any:
        return self._types.get(node_id, Any)

    def _id_of(self, node: Node[Any] | NodeKey[Any]) -> str | None:
        if isinstance(node, NodeKey):
            return node.node_id
        return self._node_ids.get(node, node.node_id)

    def _known(self, found: HandleResult[V | None]) -> HandleResult[V]:
        """What was found of a workflow, or that there is none."""
        if isinstance(found, Err):
            return found
        return Ok(found.ok_value) if found.ok_value else self._unknown()

    def _unknown(self) -> Err[HandleOperationError]:
        return Err(
            HandleOperationError(
                code=HandleErrorCode.WORKFLOW_NOT_FOUND,
                message=f"there is no workflow {self.workflow_id}",
                workflow_id=self.workflow_id,
            )
        )

    async def _ask(
        self, question: Callable[[Connection, UUID], Awaitable[V]], *, tries: int = 1
    ) -> HandleResult[V]:
        """Ask the database about this workflow, or for something; a lost race is tried again."""
        flow_id = as_uuid(self.workflow_id)
        if flow_id is None:
            return self._unknown()
        while True:
            tries -= 1
            try:
                async with self._broker.connection() as connection:
                    return Ok(await question(connection, flow_id))
            except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected) as error:
                if tries <= 0:
                    return self._failed(error)
            except (psycopg.Error, OSError, HorsiesError) as error:
                return self._failed(error)

    def _failed(self, error: Exception) -> Err[HandleOperationError]:
        return Err(
            HandleOperationError(
                code=HandleErrorCode.DB_OPERATION_FAILED,
                message=mask_passwords(str(error)) or type(error).__name__,
                retryable=isinstance(error, TRANSIENT),
                workflow_id=self.workflow_id,
                exception=error,
            )
        )


def as_uuid(workflow_id: str) -> UUID | None:
    try:
        return UUID(workflow_id)
    except ValueError:
        return None


def error_result(code: BuiltInTaskCode, message: str) -> TaskResult[Any, TaskError]:
    return TaskResult(err=TaskError(error_code=code, message=message))
