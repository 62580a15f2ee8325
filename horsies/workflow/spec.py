"""A workflow that has been checked and can be started.

Starting stores the whole graph, sub-workflows and all, in one statement: from then on it goes by what was stored,
whatever becomes of the code that drew it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from random import random
from typing import Any, Generic, TypeVar
from uuid import UUID

import psycopg

from horsies.broker import RESENDS, Broker
from horsies.context import Headers, sending
from horsies.errors import ErrorCode, HorsiesError, ValidationReport, mask_passwords
from horsies.portal import run_async, run_sync
from horsies.results import Err, Ok, WorkflowStartError, WorkflowStartResult
from horsies.retry import backoff
from horsies.status import WorkflowStartErrorCode
from horsies.storage import workflows
from horsies.storage.database import TRANSIENT, is_refused
from horsies.storage.ids import new_ids
from horsies.workflow.graph import Entry, Policy, Resolver, wrong
from horsies.workflow.handle import WorkflowHandle
from horsies.workflow.nodes import AnyNode, Node, OnError, SubWorkflowNode, SuccessPolicy
from horsies.workflow.rows import TooLarge, carrying, plan
from horsies.workflow.types import value_type_of
from horsies.workflow.validate import (
    check_deadline,
    check_entry,
    check_graph,
    check_ids,
    check_policy,
)

T_co = TypeVar("T_co", covariant=True)

# The definitions that are being built right now, each for a node of the one before.
_building: ContextVar[tuple[str, ...]] = ContextVar("building", default=())


@dataclass(frozen=True, eq=False, slots=True)
class WorkflowSpec(Generic[T_co]):
    """A workflow, ready to start. Made by `app.workflow(…)`, which reports all that is wrong with it together.

    >>> spec = app.workflow("import", [fetch, parse], output=parse, definition_key="shop.import")
    >>> handle = spec.start().unwrap()
    >>> handle.get(timeout_ms=10_000)
    """

    name: str
    tasks: Sequence[AnyNode]
    on_error: OnError = OnError.FAIL
    output: Node[T_co] | None = None
    success_policy: SuccessPolicy | None = None
    definition_key: str = ""
    deadline_seconds: float | None = None
    broker: Broker | None = field(default=None, repr=False)
    resend_on_transient_err: bool = False
    app: Any = field(default=None, repr=False)
    entries: tuple[Entry, ...] = field(init=False, repr=False)
    children: Mapping[int, WorkflowSpec[Any]] = field(init=False, repr=False)
    policy: Policy | None = field(init=False, repr=False)
    output_index: int | None = field(init=False, repr=False)
    node_ids: Mapping[AnyNode, str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        report = ValidationReport(f"workflow {self.name!r}")
        given = tuple(self.tasks)
        resolver = Resolver(self.name, given)
        report.errors += check_ids(self.name, [resolver.node_id(index) for index in range(len(given))])
        if not self.definition_key:
            report.add(
                wrong(
                    ErrorCode.WORKFLOW_NO_DEFINITION_KEY,
                    f"workflow {self.name!r} has no definition_key",
                    'give it one that stays the same for ever: definition_key="shop.import.v1"',
                )
            )
        report.raise_if_any()
        self._resolve(report, resolver)
        report.raise_if_any()
        self._put("node_ids", {node: entry.node_id for node, entry in zip(given, self.entries, strict=True)})
        self._put("tasks", tuple(entry.node for entry in self.entries))

    def _resolve(self, report: ValidationReport, resolver: Resolver) -> None:
        """Make indexes of all arrows, and check everything."""
        entries = tuple(resolver.entries())
        output = () if self.output is None else (self.output,)
        found = resolver.members(output, ErrorCode.WORKFLOW_INVALID_OUTPUT, "the output is")
        policy = None if self.success_policy is None else resolver.policy(self.success_policy)
        self._put("entries", entries)
        self._put("output_index", found[0] if found else None)
        self._put("policy", policy)
        queues = None if self.broker is None else {queue.name: queue for queue in self.broker.config.queues}
        report.errors += resolver.errors
        report.errors += check_graph(entries)
        problems = [list(check_entry(entry, entries, queues)) for entry in entries]
        report.errors += (error for found in problems for error in found)
        report.errors += () if policy is None else check_policy(policy)
        report.errors += check_deadline(self.deadline_seconds)
        children = {
            entry.index: child
            for entry in entries
            if isinstance(entry.node, SubWorkflowNode)
            and not problems[entry.index]
            and (child := report.collect(lambda entry=entry: self._child(entry, entry.node)))
        }
        self._put("children", children)

    def _child(self, entry: Entry, node: AnyNode) -> WorkflowSpec[Any] | None:
        """The workflow of a node. One whose parameters come from other nodes is built when they have ended."""
        assert isinstance(node, SubWorkflowNode)
        if self.app is None:
            raise wrong(
                ErrorCode.WORKFLOW_SUBWORKFLOW_APP_MISSING,
                f"node {entry.node_id!r} is a workflow, and this one was made without an app",
                "make it with app.workflow(…)",
            )
        if node.workflow_def.definition_key in _building.get():
            circle = " → ".join((*_building.get(), node.workflow_def.definition_key))
            raise wrong(
                ErrorCode.WORKFLOW_CYCLE_DETECTED,
                f"definitions contain each other: {circle}",
                "a workflow cannot be a part of itself",
            )
        if entry.args_from:
            return None
        return build(node.workflow_def, self.app, entry.kwargs)

    def _put(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def start(self, workflow_id: str | UUID | None = None) -> WorkflowStartResult[WorkflowHandle[T_co]]:
        """Store the workflow and begin with it; with an id that was used before, the handle of that one is given.

        >>> match spec.start():
        ...     case Ok(handle): print(handle.workflow_id)
        ...     case Err(error): print(error.code, error.message)
        """
        started = run_sync(self._start(workflow_id))
        if self.broker is not None and self.broker.inline is not None and isinstance(started, Ok):
            self.broker.inline.run()
        return started

    async def start_async(
        self, workflow_id: str | UUID | None = None
    ) -> WorkflowStartResult[WorkflowHandle[T_co]]:
        """As `start`, without blocking the running loop."""
        started = await run_async(self._start(workflow_id))
        if self.broker is not None and self.broker.inline is not None and isinstance(started, Ok):
            await self.broker.inline.run_async()
        return started

    def retry_start(self, error: WorkflowStartError) -> WorkflowStartResult[WorkflowHandle[T_co]]:
        """Start again what could not be stored; it is started once, even if it was stored after all."""
        return run_sync(self._start_again(error))

    async def retry_start_async(self, error: WorkflowStartError) -> WorkflowStartResult[WorkflowHandle[T_co]]:
        """As `retry_start`, without blocking the running loop."""
        return await run_async(self._start_again(error))

    async def _start_again(self, error: WorkflowStartError) -> WorkflowStartResult[WorkflowHandle[T_co]]:
        if error.code is not WorkflowStartErrorCode.ENQUEUE_FAILED or error.workflow_name != self.name:
            return self._failed(
                WorkflowStartErrorCode.VALIDATION_FAILED,
                f"only a start of {self.name!r} that failed with ENQUEUE_FAILED can be retried, "
                f"not {error.code} of {error.workflow_name!r}",
                error.workflow_id,
            )
        return await self._start(error.workflow_id)

    async def _start(self, workflow_id: str | UUID | None) -> WorkflowStartResult[WorkflowHandle[T_co]]:
        broker = self.broker
        if broker is None:
            return self._failed(
                WorkflowStartErrorCode.BROKER_NOT_CONFIGURED,
                "made without a broker; use app.workflow(…)",
                None,
            )
        try:
            flow_id = new_ids(1)[0] if workflow_id is None else UUID(str(workflow_id))
        except ValueError:
            message = f"error[{ErrorCode.WORKFLOW_INVALID_ID}]: workflow_id is {workflow_id!r}; use a UUID"
            return self._failed(WorkflowStartErrorCode.VALIDATION_FAILED, message, str(workflow_id))
        if broker.sends_suppressed:
            message = "starts are suppressed while modules are imported"
            return self._failed(WorkflowStartErrorCode.VALIDATION_FAILED, message, str(flow_id))
        with sending(broker.watchers, self.name, f"workflow {self.name}", [flow_id]) as sent:
            started = await self._begin(broker, flow_id, sent.headers)
            sent.failure = started.err_value.code if isinstance(started, Err) else None
        return started

    async def _begin(
        self, broker: Broker, flow_id: UUID, headers: Headers
    ) -> WorkflowStartResult[WorkflowHandle[T_co]]:
        try:
            rows = plan(self, flow_id, broker.config.payload.reject_bytes)
            await self._store(broker, carrying(rows, headers))
        except TooLarge as error:
            return self._failed(WorkflowStartErrorCode.VALIDATION_FAILED, str(error), str(flow_id))
        except (psycopg.Error, HorsiesError, OSError) as error:
            message = mask_passwords(str(error)) or type(error).__name__
            return self._failed(WorkflowStartErrorCode.ENQUEUE_FAILED, message, str(flow_id), error)
        return Ok(self.handle(flow_id))

    async def _store(self, broker: Broker, rows: workflows.Plan) -> None:
        tries = RESENDS if self.resend_on_transient_err else 0
        for attempt in range(tries + 1):
            try:
                async with broker.connection() as connection:
                    return await workflows.start(connection, rows)
            except TRANSIENT as error:
                if attempt == tries or is_refused(error):
                    raise
            await asyncio.sleep(backoff(attempt, 200, 2_000, random()))
        return None

    def handle(self, workflow_id: str | UUID) -> WorkflowHandle[T_co]:
        """A handle to a workflow of this kind that was started before; it knows the types of its values."""
        assert self.broker is not None, "only a workflow of an app can have been started"
        types = {entry.node_id: value_type_of(entry.node) for entry in self.entries}
        return WorkflowHandle(str(workflow_id), self.broker, types, self.node_ids)

    def _failed(
        self,
        code: WorkflowStartErrorCode,
        message: str,
        workflow_id: str | None,
        error: Exception | None = None,
    ) -> Err[WorkflowStartError]:
        return Err(
            WorkflowStartError(
                code=code,
                message=f"workflow {self.name!r}: {message}",
                retryable=isinstance(error, TRANSIENT) and not is_refused(error),
                workflow_name=self.name,
                workflow_id=workflow_id,
                exception=error,
            )
        )


def build(definition: Any, app: Any, params: Mapping[str, Any]) -> WorkflowSpec[Any]:
    """The workflow of a definition; one that contains itself is refused."""
    key = definition.definition_key
    token = _building.set((*_building.get(), key))
    try:
        return definition.build_with(app, **params)
    finally:
        _building.reset(token)
