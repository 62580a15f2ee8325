"""A handle to a started workflow: wait for its result, read its nodes, pause, resume, cancel and signal it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from math import ceil, isinf
from typing import Any, Generic, TypeVar, cast
from uuid import UUID

import psycopg

from horsies.client import Broker
from horsies.codec import ArgumentError, decode_result, encode_json
from horsies.db.connection import TRANSIENT, Connection
from horsies.db.queries import workflows
from horsies.db.queries.workflows import NodeDetails, WorkflowState
from horsies.durations import Duration, in_milliseconds, in_seconds
from horsies.errors import ConfigurationError, ErrorCode, HorsiesError, mask_passwords
from horsies.event_loop import run_async, run_sync
from horsies.frozen import dataclass
from horsies.result import Err, HandleOperationError, HandleResult, Ok, TaskError, TaskResult
from horsies.status import (
    BuiltInTaskCode,
    ContractCode,
    HandleErrorCode,
    OperationalErrorCode,
    OutcomeCode,
    RetrievalCode,
    WorkflowStatus,
    WorkflowTaskStatus,
    member,
)
from horsies.workflow import control
from horsies.workflow.nodes import AnyNode, Node, NodeKey, NodeResults


@dataclass(frozen=True, slots=True, kw_only=True)
class SubWorkflowSummary:
    """The result of a workflow that ran as a node of another."""

    status: WorkflowStatus
    output: Any
    total_tasks: int
    completed_tasks: int
    failed_tasks: int
    skipped_tasks: int
    error_summary: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowTaskInfo:
    """A node of a workflow as recorded."""

    index: int
    node_id: str
    kind: str
    name: str
    status: WorkflowTaskStatus
    task_id: str | None
    sub_workflow_id: str | None
    queue_name: str | None
    priority: int | None
    dependencies: tuple[int, ...]
    started_at: datetime | None
    completed_at: datetime | None
    due_at: datetime | None
    result: TaskResult[Any, TaskError] | None
    summary: SubWorkflowSummary | None


def summary_of(document: Mapping[str, Any]) -> SubWorkflowSummary:
    facts = {**document, "status": member(WorkflowStatus, document["status"])}
    return SubWorkflowSummary(**cast("dict[str, Any]", facts))


T = TypeVar("T")
V = TypeVar("V")

# PostgreSQL resolves a deadlock by aborting one of the two transactions; the next try succeeds.
LOST_RACES = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)
TRIES = 3
_ENDINGS: dict[str, tuple[BuiltInTaskCode, str]] = {
    WorkflowStatus.CANCELLED: (OutcomeCode.WORKFLOW_CANCELLED, "the workflow was cancelled"),
    WorkflowStatus.EXPIRED: (OutcomeCode.WORKFLOW_EXPIRED, "the workflow did not end before its deadline"),
    WorkflowStatus.PAUSED: (OutcomeCode.WORKFLOW_PAUSED, "the workflow is paused; resume it to go on"),
    WorkflowStatus.FAILED: (OutcomeCode.WORKFLOW_FAILED, "the workflow has failed"),
}


class WorkflowHandle(Generic[T]):
    """A handle to a workflow that was started.

    >>> handle = spec.start().unwrap()
    >>> handle.get(timeout_ms=5_000)
    TaskResult(ok=5)
    """

    def __init__(
        self,
        workflow_id: str,
        broker: Broker,
        types: Mapping[str, Any] | None = None,
        node_ids: Mapping[AnyNode, str] | None = None,
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        self.workflow_id = workflow_id
        self._broker = broker
        self._types = types or {}
        self._node_ids = node_ids or {}
        self._aliases = aliases or {}

    def __repr__(self) -> str:
        return f"WorkflowHandle({self.workflow_id!r})"

    def status(self) -> HandleResult[WorkflowStatus]:
        """Return the status of the workflow."""
        return run_sync(self._status())

    async def status_async(self) -> HandleResult[WorkflowStatus]:
        """Call `status` without blocking the running loop."""
        return await run_async(self._status())

    def result(self, timeout: Duration | None = None) -> T:
        """Wait for the workflow to end, and return its value. `timeout` None waits for ever, 0 not at all.

        Raise `TaskFailed` if the workflow failed or is paused, `TaskCancelled`, `TaskExpired` or `TaskNotFound`, and
        `TaskTimeout` if it has not ended in time: nothing is lost, ask again.

        >>> handle.result(timeout=10)
        5
        """
        return self.get(_wait_ms(timeout)).unwrap()

    async def result_async(self, timeout: Duration | None = None) -> T:  # noqa: ASYNC109  as of `result`
        """Call `result` without blocking the running loop."""
        return (await self.get_async(_wait_ms(timeout))).unwrap()

    def get(self, timeout_ms: int | timedelta | None = None) -> TaskResult[T, TaskError]:
        """Wait for the workflow to end, and return its result. `timeout_ms` None waits for ever, 0 not at all.

        The value is that of the output node; without one, the results of the nodes without dependents, by their ids.
        A paused workflow returns at once.
        """
        return run_sync(self._get(None if timeout_ms is None else in_milliseconds(timeout_ms)))

    async def get_async(self, timeout_ms: int | timedelta | None = None) -> TaskResult[T, TaskError]:
        """Call `get` without blocking the running loop."""
        return await run_async(self._get(None if timeout_ms is None else in_milliseconds(timeout_ms)))

    def results(self) -> HandleResult[dict[str, TaskResult[Any, TaskError]]]:
        """Return the results of all nodes that have ended, by their ids."""
        return run_sync(self._results())

    async def results_async(self) -> HandleResult[dict[str, TaskResult[Any, TaskError]]]:
        """Call `results` without blocking the running loop."""
        return await run_async(self._results())

    def result_for(self, node: Node[V] | NodeKey[V]) -> TaskResult[V, TaskError]:
        """Return the result of one node without waiting; RESULT_NOT_READY if the node has not ended.

        A node of another workflow gives WORKFLOW_CTX_MISSING_ID.

        >>> handle.result_for(fetch)
        """
        return run_sync(self._result_for(node))

    async def result_for_async(self, node: Node[V] | NodeKey[V]) -> TaskResult[V, TaskError]:
        """Call `result_for` without blocking the running loop."""
        return await run_async(self._result_for(node))

    def tasks(self) -> HandleResult[list[WorkflowTaskInfo]]:
        """Return all nodes in order, with their states."""
        return run_sync(self._tasks())

    async def tasks_async(self) -> HandleResult[list[WorkflowTaskInfo]]:
        """Call `tasks` without blocking the running loop."""
        return await run_async(self._tasks())

    def pause(self) -> HandleResult[bool]:
        """Pause the workflow: start nothing more, and let running tasks end. Return False if it was not running."""
        return run_sync(self._steer(control.pause))

    async def pause_async(self) -> HandleResult[bool]:
        """Call `pause` without blocking the running loop."""
        return await run_async(self._steer(control.pause))

    def resume(self) -> HandleResult[bool]:
        """Resume the workflow after a pause; failed nodes stay failed. Return False if it was not paused."""
        return run_sync(self._steer(control.resume))

    async def resume_async(self) -> HandleResult[bool]:
        """Call `resume` without blocking the running loop."""
        return await run_async(self._steer(control.resume))

    def cancel(self) -> HandleResult[None]:
        """Cancel the workflow and its sub-workflows: start nothing more, and let running tasks end. Harmless if it has ended."""
        return run_sync(self._cancel())

    async def cancel_async(self) -> HandleResult[None]:
        """Call `cancel` without blocking the running loop."""
        return await run_async(self._cancel())

    def retry_failed(self) -> HandleResult[bool]:
        """Run failed and skipped nodes again; completed nodes stay. Return False if nothing had failed.

        >>> handle.retry_failed()
        """
        return run_sync(self._steer(control.retry_failed))

    async def retry_failed_async(self) -> HandleResult[bool]:
        """Call `retry_failed` without blocking the running loop."""
        return await run_async(self._steer(control.retry_failed))

    def signal(self, name: str, value: Any = None) -> HandleResult[bool]:
        """Give a `signal_node` its value, before or while it waits. Return False if no node took it.

        >>> handle.signal("approved", {"by": "ann"})
        """
        return run_sync(self._signal(name, value))

    async def signal_async(self, name: str, value: Any = None) -> HandleResult[bool]:
        """Call `signal` without blocking the running loop."""
        return await run_async(self._signal(name, value))

    # Implementation

    async def _steer(self, act: Callable[[Connection, UUID], Awaitable[bool | None]]) -> HandleResult[bool]:
        found = await self._ask(act, tries=TRIES)
        if isinstance(found, Err):
            return found
        return self._unknown() if found.ok_value is None else Ok(found.ok_value)

    async def _cancel(self) -> HandleResult[None]:
        done = await self._steer(control.cancel)
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
            lambda connection, flow_id: control.signal(connection, flow_id, name, result)
        )

    async def _status(self) -> HandleResult[WorkflowStatus]:
        found = self._known(await self._ask(workflows.look))
        return found if isinstance(found, Err) else Ok(member(WorkflowStatus, found.ok_value.status))

    async def _get(self, timeout_ms: int | None) -> TaskResult[T, TaskError]:
        flow_id = as_uuid(self.workflow_id)
        if flow_id is None:
            return error_result(
                RetrievalCode.WORKFLOW_NOT_FOUND, f"{self.workflow_id!r} is not the id of a workflow"
            )
        try:
            if timeout_ms is not None and timeout_ms <= 0:
                async with self._broker.connection() as connection:
                    state = await workflows.look(connection, flow_id)
            else:
                seconds = None if timeout_ms is None else timeout_ms / 1000
                state = await self._broker.watch_workflow(flow_id, seconds)
            if state is None:
                return error_result(RetrievalCode.WORKFLOW_NOT_FOUND, f"there is no workflow {flow_id}")
            return await self._outcome(state)
        except TimeoutError:
            message = f"workflow {flow_id} has not ended within {timeout_ms} ms"
            return error_result(RetrievalCode.WAIT_TIMEOUT, message)
        except (psycopg.Error, OSError, HorsiesError) as error:
            message = mask_passwords(str(error)) or type(error).__name__
            return error_result(OperationalErrorCode.BROKER_ERROR, message)

    async def _outcome(self, state: WorkflowState) -> TaskResult[Any, TaskError]:
        if state.error is not None and state.status != WorkflowStatus.PAUSED:
            return decode_result(f'{{"err":{state.error}}}', Any)
        if state.status in _ENDINGS:
            return error_result(*_ENDINGS[state.status])
        if state.status != WorkflowStatus.COMPLETED:
            return error_result(RetrievalCode.WAIT_TIMEOUT, f"workflow {state.id} is {state.status}")
        if state.output is not None and state.result is not None:
            return decode_result(state.result, self._types.get(state.output, Any))
        async with self._broker.connection() as connection:
            rows = await workflows.results(connection, state.id)
        if state.output is not None:
            output = next((row for row in rows if row.node_id == state.output), None)
            status = WorkflowTaskStatus.COMPLETED if output is None else output.status
            return self._decoded(state.output, status, None if output is None else output.result)
        return TaskResult(
            ok=NodeResults(
                {
                    row.node_id: self._decoded(row.node_id, row.status, row.result)
                    for row in rows
                    if row.is_last
                },
                self._aliases,
            )
        )

    async def _results(self) -> HandleResult[dict[str, TaskResult[Any, TaskError]]]:
        found = self._known(await self._ask(workflows.results))
        if isinstance(found, Err):
            return found
        return Ok(
            NodeResults(
                {
                    row.node_id: self._decoded(row.node_id, row.status, row.result)
                    for row in found.ok_value
                    if row.result is not None or row.status == WorkflowTaskStatus.SKIPPED
                },
                self._aliases,
            )
        )

    async def _result_for(self, node: Node[V] | NodeKey[V]) -> TaskResult[V, TaskError]:
        node_id = node.node_id if isinstance(node, NodeKey) else self._node_ids.get(node, node.node_id)
        node_id = node_id if node_id is None else self._aliases.get(node_id, node_id)
        if node_id is None:
            message = (
                f"{node!r} has no id and is not a node of this workflow; pass one of its nodes, or a NodeKey"
            )
            return error_result(ContractCode.WORKFLOW_CTX_MISSING_ID, message)
        found = await self._ask(lambda connection, flow_id: workflows.results(connection, flow_id, node_id))
        if isinstance(found, Err):
            missing = found.err_value.code is HandleErrorCode.WORKFLOW_NOT_FOUND
            code = RetrievalCode.WORKFLOW_NOT_FOUND if missing else OperationalErrorCode.BROKER_ERROR
            return error_result(code, found.err_value.message)
        if not found.ok_value:
            message = f"workflow {self.workflow_id} has no node {node_id!r}"
            return error_result(ContractCode.WORKFLOW_CTX_MISSING_ID, message)
        row = found.ok_value[0]
        return self._decoded(row.node_id, row.status, row.result)

    async def _tasks(self) -> HandleResult[list[WorkflowTaskInfo]]:
        found = self._known(await self._ask(workflows.nodes))
        return found if isinstance(found, Err) else Ok([self._info(row) for row in found.ok_value])

    def _info(self, row: NodeDetails) -> WorkflowTaskInfo:
        has_ended = row.result is not None or row.status == WorkflowTaskStatus.SKIPPED
        return WorkflowTaskInfo(
            index=row.task_index,
            node_id=row.node_id,
            kind=row.kind,
            name=row.task_name,
            status=member(WorkflowTaskStatus, row.status),
            task_id=None if row.task_id is None else str(row.task_id),
            sub_workflow_id=None if row.sub_workflow_id is None else str(row.sub_workflow_id),
            queue_name=row.queue_name,
            priority=row.priority,
            dependencies=tuple(row.dependencies),
            started_at=row.started_at,
            completed_at=row.completed_at,
            due_at=row.due_at,
            result=self._decoded(row.node_id, row.status, row.result) if has_ended else None,
            summary=_summary(row.summary),
        )

    def _decoded(self, node_id: str, status: str, result: str | None) -> TaskResult[Any, TaskError]:
        if result is not None and status in (WorkflowTaskStatus.COMPLETED, WorkflowTaskStatus.FAILED):
            return decode_result(result, self._types.get(node_id, Any))
        match status:
            case WorkflowTaskStatus.SKIPPED:
                return error_result(OutcomeCode.UPSTREAM_SKIPPED, f"node {node_id!r} was skipped")
            case WorkflowTaskStatus.COMPLETED | WorkflowTaskStatus.FAILED:
                message = f"node {node_id!r} is {status}; its result has been deleted"
                return error_result(RetrievalCode.RESULT_NOT_AVAILABLE, message)
            case _:
                return error_result(RetrievalCode.RESULT_NOT_READY, f"node {node_id!r} is {status}")

    def _known(self, found: HandleResult[V | None]) -> HandleResult[V]:
        """Return what was found, or an error if there is no such workflow."""
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
            except (psycopg.Error, OSError, HorsiesError, UnicodeError) as error:
                if tries <= 0 or not isinstance(error, LOST_RACES):
                    return Err(
                        HandleOperationError(
                            code=HandleErrorCode.DB_OPERATION_FAILED,
                            message=mask_passwords(str(error)) or type(error).__name__,
                            retryable=isinstance(error, TRANSIENT),
                            workflow_id=self.workflow_id,
                            exception=error,
                        )
                    )


def _wait_ms(timeout: Duration | None) -> int | None:
    """Return a timeout in milliseconds, rounded up: only 0 means not to wait."""
    if timeout is None:
        return None
    given = cast(object, timeout)
    if (
        isinstance(given, bool)
        or not isinstance(given, int | float | timedelta)
        or not in_seconds(given) >= 0
    ):
        raise ConfigurationError(
            f"timeout is {given!r}",
            code=ErrorCode.CONFIG_INVALID_VALUE,
            help_text="use seconds from 0 on, a timedelta, or None to wait for ever",
        )
    seconds = in_seconds(timeout)
    return None if isinf(seconds) else ceil(seconds * 1000)


def _summary(stored: Any) -> SubWorkflowSummary | None:
    """Return the stored summary of a sub-workflow; None without one, or if it cannot be read."""
    try:
        return None if stored is None else summary_of(stored)
    except (TypeError, KeyError):
        return None


def as_uuid(workflow_id: str) -> UUID | None:
    try:
        return UUID(workflow_id)
    except ValueError:
        return None


def error_result(code: BuiltInTaskCode, message: str) -> TaskResult[Any, TaskError]:
    return TaskResult(err=TaskError(error_code=code, message=message))
