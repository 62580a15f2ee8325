"""A validated workflow that can be started, the rows that are stored when it starts, and functions that start, pause and resume one.

Nodes that can start at once are stored as started. Everything that a node needs later is stored with it: the options and arguments
of its task, and its dependents.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import field, replace
from datetime import UTC
from random import random
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar, cast
from uuid import UUID

import msgspec
import psycopg

from horsies.client import RESENDS, Broker
from horsies.db.connection import TRANSIENT, is_refused
from horsies.db.foreign_connections import ACCEPTED, async_fetcher, fetcher
from horsies.db.ids import new_ids
from horsies.db.insert import run_plan, run_plan_async
from horsies.db.queries import workflows
from horsies.db.queries.workflows import IdTaken, NewNode, NewWorkflow, WorkflowRows, start_and_notify
from horsies.durations import Duration, in_seconds
from horsies.enqueue import TaskDefinition, lane_of_node, log_failed_start, timeout_in_ms
from horsies.errors import ErrorCode, HorsiesError, ValidationReport, mask_passwords
from horsies.event_loop import run_async, run_sync
from horsies.frozen import dataclass
from horsies.middleware import Headers, SendContext, observe_send, with_headers
from horsies.redaction import Redactor
from horsies.result import Err, HandleResult, Ok, WorkflowStartError, WorkflowStartResult
from horsies.retry import backoff, take_errors
from horsies.status import WorkflowStartErrorCode, WorkflowStatus, WorkflowTaskStatus
from horsies.workflow.advance import Kind
from horsies.workflow.context import Inputs
from horsies.workflow.graph import Entry, Graph, as_map, dependents_of, map_param, name_of, value_type_of
from horsies.workflow.handle import WorkflowHandle
from horsies.workflow.nodes import (
    AnyNode,
    GatherNode,
    MapNode,
    Node,
    NodeWithInputs,
    OnError,
    SignalNode,
    SleepNode,
    Subgraph,
    SubWorkflowNode,
    SuccessPolicy,
    TaskNode,
)
from horsies.workflow.validate import check_end, check_graph, check_names, check_node, wrong

T_co = TypeVar("T_co", covariant=True)

# The task that builds a workflow whose parameters come from other nodes, and the one that makes a list of the values of nodes.
# No task of a user can have these names.
BUILD = "horsies:build_workflow"
GATHER = "horsies:gather"
INTERNAL_TASKS = frozenset({BUILD, GATHER})

# The definitions that are being built, each as a node of the one before, with the app they are built for.
_building: ContextVar[tuple[tuple[str, Any], ...]] = ContextVar("building", default=())


class TooLarge(ValueError):
    """The arguments of a node exceed the size limit."""


@dataclass(frozen=True, eq=False, slots=True)
class WorkflowSpec(Generic[T_co]):
    """A workflow that is ready to start. Made by `app.workflow(…)`, which reports all problems together.

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
    deadline_seconds: Duration | None = None
    broker: Broker | None = field(default=None, repr=False)
    resend_on_transient_err: bool = False
    app: Any = field(default=None, repr=False)
    entries: tuple[Entry, ...] = field(init=False, repr=False)
    children: Mapping[int, WorkflowSpec[Any]] = field(init=False, repr=False)
    policy_json: str | None = field(init=False, repr=False)
    output_index: int | None = field(init=False, repr=False)
    node_ids: Mapping[AnyNode, str] = field(init=False, repr=False)
    aliases: Mapping[str, str] = field(init=False, repr=False)
    arguments: tuple[str | None, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        report = ValidationReport(f"workflow {self.name!r}")
        self._take_defaults()
        report.collect(self._read_on_error)
        nodes = report.collect(lambda: flat_nodes(self.tasks))
        graph = Graph(self.name, nodes or ())
        if nodes is None:
            report.raise_if_any()
        report.errors += check_names(
            self.name, self.definition_key, [entry.node_id for entry in graph.entries]
        )
        report.raise_if_any()
        report.errors += check_graph(graph)
        queues = None if self.broker is None else [queue.name for queue in self.broker.config.all_queues]
        redactor = Redactor(() if self.broker is None else self.broker.config.redact)
        children: dict[int, WorkflowSpec[Any]] = {}
        for entry in graph.entries:
            problems = list(check_node(entry, graph, queues, redactor))
            report.errors += problems
            if not problems and (child := report.collect(lambda entry=entry: self._child(entry))):
                children[entry.index] = child
        report.errors += check_end(graph, self.output, self.success_policy, self.deadline_seconds)
        report.raise_if_any()
        output_index = None if self.output is None else graph.indexes([self.output])[0]
        self._set(
            tasks=tuple(entry.node for entry in graph.entries),
            output=None if output_index is None else graph.entries[output_index].node,
            entries=graph.entries,
            children=MappingProxyType(children),
            policy_json=None if self.success_policy is None else _policy_json(self.success_policy, graph),
            output_index=output_index,
            node_ids=MappingProxyType(graph.node_ids),
            aliases=MappingProxyType(graph.aliases),
            arguments=tuple(_arguments_json(entry) for entry in graph.entries),
        )
        graph.name_nodes()

    def _set(self, **values: Any) -> None:
        """Set fields. The dataclass is frozen: only its constructor does this."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _take_defaults(self) -> None:
        """Take what was not given: the output of a chain or group, and the key and app of the definition that is being built."""
        given: object = self.tasks
        if isinstance(given, Subgraph) and self.output is None:
            self._set(output=cast("Subgraph[T_co]", given).output)
        if _building.get():
            definition_key, app = _building.get()[-1]
            if not self.definition_key:
                self._set(definition_key=definition_key)
            if self.broker is None and hasattr(app, "get_broker"):
                resends = app.config.resend_on_transient_err
                self._set(app=app, broker=app.get_broker(), resend_on_transient_err=resends)
        if isinstance(given, Subgraph) and not self.definition_key:
            self._set(definition_key=self.name)

    def _read_on_error(self) -> None:
        """Accept a member of `OnError`, its name, and the name in lower case."""
        given = cast(object, self.on_error)
        if given not in ("fail", "pause", *OnError):
            raise wrong(ErrorCode.CONFIG_INVALID_VALUE, f"on_error is {given!r}", 'use "fail" or "pause"')
        self._set(on_error=OnError(cast(str, given).upper()))

    def _child(self, entry: Entry) -> WorkflowSpec[Any] | None:
        """Build the workflow of a node. One whose parameters come from other nodes is built when they have ended."""
        node = entry.node
        if not isinstance(node, SubWorkflowNode):
            return None
        if self.app is None:
            raise wrong(
                ErrorCode.WORKFLOW_SUBWORKFLOW_APP_MISSING,
                f"{entry} is a workflow, and its parent was made without an app",
                "make it with app.workflow(…)",
            )
        keys = [key for key, _app in _building.get()]
        if node.workflow_def.definition_key in keys:
            circle = " → ".join((*keys, node.workflow_def.definition_key))
            raise wrong(
                ErrorCode.WORKFLOW_CYCLE_DETECTED,
                f"definitions contain each other: {circle}",
                "a workflow cannot be a part of itself",
            )
        return None if entry.args_from else build(node.workflow_def, self.app, entry.kwargs)

    def start(
        self, workflow_id: str | UUID | None = None, *, conn: Any = None
    ) -> WorkflowStartResult[WorkflowHandle[T_co]]:
        """Store the workflow and start it. With an id that exists already, return the handle of that workflow.

        >>> match spec.start():
        ...     case Ok(handle): print(handle.workflow_id)
        ...     case Err(error): print(error.code, error.message)

        `conn` is a connection or session of your own: the workflow starts if and only if its transaction commits. Then an
        error is raised as `SendError`, so that no transaction commits without its workflow.

        >>> with Session(engine) as session, session.begin():
        ...     session.add(order)
        ...     handle = spec.start(conn=session).unwrap()
        """
        if conn is not None:
            return _or_raise(self._start_on(conn, workflow_id))
        started = run_sync(self._start(workflow_id))
        if self.broker is not None and self.broker.inline is not None and isinstance(started, Ok):
            self.broker.inline.run()
        return started

    async def start_async(
        self, workflow_id: str | UUID | None = None, *, conn: Any = None
    ) -> WorkflowStartResult[WorkflowHandle[T_co]]:
        """Call `start` without blocking the running loop; `conn` is an async connection or session."""
        if conn is not None:
            return _or_raise(await self._start_on_async(conn, workflow_id))
        started = await run_async(self._start(workflow_id))
        if self.broker is not None and self.broker.inline is not None and isinstance(started, Ok):
            await self.broker.inline.run_async()
        return started

    def retry_start(self, error: WorkflowStartError) -> WorkflowStartResult[WorkflowHandle[T_co]]:
        """Repeat a start that failed; the workflow starts once, even if the first try had stored it."""
        return run_sync(self._start_again(error))

    async def retry_start_async(self, error: WorkflowStartError) -> WorkflowStartResult[WorkflowHandle[T_co]]:
        """Call `retry_start` without blocking the running loop."""
        return await run_async(self._start_again(error))

    async def _start_again(self, error: WorkflowStartError) -> WorkflowStartResult[WorkflowHandle[T_co]]:
        if error.code is not WorkflowStartErrorCode.ENQUEUE_FAILED or error.workflow_name != self.name:
            refused = self._failed(
                WorkflowStartErrorCode.VALIDATION_FAILED,
                f"only a start of {self.name!r} that failed with ENQUEUE_FAILED can be retried, "
                f"not {error.code} of {error.workflow_name!r}",
                error.workflow_id,
            )
            return self._reported(refused)
        return await self._start(error.workflow_id)

    def _reported(
        self, started: WorkflowStartResult[WorkflowHandle[T_co]]
    ) -> WorkflowStartResult[WorkflowHandle[T_co]]:
        """Log the error of a failed start, which its caller gets as a value."""
        if isinstance(started, Err):
            broker = self.broker
            redacts = broker is not None and bool(broker.config.redact)
            suppressed = broker is not None and (broker.sends_suppressed or broker.app_is_loading)
            log_failed_start(started.err_value, redacts, suppressed)
        return started

    def _new_id(self, workflow_id: str | UUID | None) -> WorkflowStartResult[tuple[Broker, UUID]]:
        """Return the broker and the id to start with, or why the workflow cannot be started at all."""
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
        if broker.sends_suppressed or broker.app_is_loading:
            message = "starts are suppressed while modules are imported"
            return self._failed(WorkflowStartErrorCode.VALIDATION_FAILED, message, str(flow_id))
        return Ok((broker, flow_id))

    async def _start(self, workflow_id: str | UUID | None) -> WorkflowStartResult[WorkflowHandle[T_co]]:
        given = self._new_id(workflow_id)
        if isinstance(given, Err):
            return self._reported(given)
        broker, flow_id = given.ok_value
        with self._observe(broker, flow_id) as sent:
            started = await self._store(broker, flow_id, sent.headers)
            sent.failure = started.err_value.code if isinstance(started, Err) else None
        return self._reported(started)

    def _observe(self, broker: Broker, flow_id: UUID) -> AbstractContextManager[SendContext]:
        return observe_send(broker.middleware, self.name, f"workflow {self.name}", [flow_id])

    def _start_on(
        self, conn: Any, workflow_id: str | UUID | None
    ) -> WorkflowStartResult[WorkflowHandle[T_co]]:
        """Start in the transaction of a sync connection."""
        given = self._new_id(workflow_id)
        if isinstance(given, Err):
            return given
        broker, flow_id = given.ok_value
        fetch = fetcher(conn, broker.schema)
        if fetch is None:
            return self._wrong_connection(conn, "start_async" if async_fetcher(conn) else None, flow_id)
        with self._observe(broker, flow_id) as sent:
            try:
                run_plan(start_and_notify(self._rows(broker, flow_id, sent.headers)), fetch)
            except Exception as error:  # noqa: BLE001  any driver's error; it is the caller's transaction that failed
                failed = self._failed_on_caller(error, flow_id)
                sent.failure = failed.err_value.code
                return failed
        return Ok(self.handle(flow_id))

    async def _start_on_async(
        self, conn: Any, workflow_id: str | UUID | None
    ) -> WorkflowStartResult[WorkflowHandle[T_co]]:
        """Start in the transaction of an async connection."""
        given = self._new_id(workflow_id)
        if isinstance(given, Err):
            return given
        broker, flow_id = given.ok_value
        fetch = async_fetcher(conn, broker.schema)
        if fetch is None:
            return self._wrong_connection(conn, "start" if fetcher(conn) else None, flow_id)
        with self._observe(broker, flow_id) as sent:
            try:
                await run_plan_async(start_and_notify(self._rows(broker, flow_id, sent.headers)), fetch)
            except Exception as error:  # noqa: BLE001  any driver's error; it is the caller's transaction that failed
                failed = self._failed_on_caller(error, flow_id)
                sent.failure = failed.err_value.code
                return failed
        return Ok(self.handle(flow_id))

    def _rows(self, broker: Broker, flow_id: UUID, headers: Headers) -> WorkflowRows:
        return rows_with_headers(workflow_rows(self, flow_id, broker.config.payload.reject_bytes), headers)

    def _wrong_connection(self, conn: Any, method: str | None, flow_id: UUID) -> Err[WorkflowStartError]:
        remedy = f"which needs {method}(…) instead" if method else f"and it must be {ACCEPTED}"
        message = f"conn is a {type(conn).__name__}, {remedy}"
        return self._failed(WorkflowStartErrorCode.VALIDATION_FAILED, message, str(flow_id))

    def _failed_on_caller(self, error: Exception, flow_id: UUID) -> Err[WorkflowStartError]:
        """Return the error of a start in the caller's transaction; only the whole transaction can be retried."""
        code = WorkflowStartErrorCode.ENQUEUE_FAILED
        if isinstance(error, TooLarge | IdTaken):
            code = WorkflowStartErrorCode.VALIDATION_FAILED
        message = mask_passwords(str(error)) or type(error).__name__
        failed = self._failed(code, message, str(flow_id), error)
        return Err(replace(failed.err_value, retryable=False))

    async def _store(
        self, broker: Broker, flow_id: UUID, headers: Headers
    ) -> WorkflowStartResult[WorkflowHandle[T_co]]:
        tries = RESENDS if self.resend_on_transient_err else 0
        try:
            rows = self._rows(broker, flow_id, headers)
            for attempt in range(tries + 1):
                try:
                    async with broker.connection() as connection:
                        await workflows.start(connection, rows)
                        break
                except TRANSIENT as error:
                    if attempt == tries or is_refused(error):
                        raise
                await asyncio.sleep(backoff(attempt, 200, 2_000, random()))
        except (TooLarge, IdTaken) as error:
            return self._failed(WorkflowStartErrorCode.VALIDATION_FAILED, str(error), str(flow_id))
        except (psycopg.Error, HorsiesError, OSError) as error:
            message = mask_passwords(str(error)) or type(error).__name__
            return self._failed(WorkflowStartErrorCode.ENQUEUE_FAILED, message, str(flow_id), error)
        return Ok(self.handle(flow_id))

    def handle(self, workflow_id: str | UUID) -> WorkflowHandle[T_co]:
        """Return a handle to a workflow of this kind that was started before; it knows the types of the values."""
        assert self.broker is not None, "only a workflow of an app can have been started"
        types = {entry.node_id: value_type_of(entry.node) for entry in self.entries}
        return WorkflowHandle(str(workflow_id), self.broker, types, self.node_ids, self.aliases)

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


@contextmanager
def building(definition_key: str, app: Any) -> Generator[None]:
    """Note that a definition is being built: a workflow without a key takes the one of the definition."""
    token = _building.set((*_building.get(), (definition_key, app)))
    try:
        yield
    finally:
        _building.reset(token)


def build(definition: Any, app: Any, params: Mapping[str, Any]) -> WorkflowSpec[Any]:
    """Build the workflow of a definition, also of one that gives a chain or group; raise an error if it contains itself."""
    built: object = definition.build_with(app, **params)
    if isinstance(built, Subgraph):
        with building(definition.definition_key, app):
            return app.workflow(definition.name or definition.__name__, built)
    if not isinstance(built, WorkflowSpec):
        raise wrong(
            ErrorCode.WORKFLOW_CHECK_BUILDER_EXCEPTION,
            f"{definition.__name__}.build_with returned {built!r}, which is not a WorkflowSpec",
            "return app.workflow(…), or a chain or group",
        )
    return cast("WorkflowSpec[Any]", built)


def flat_nodes(tasks: object) -> tuple[AnyNode, ...]:
    """Return the nodes of a workflow, those of its chains and groups included."""
    given = (cast(object, tasks),) if isinstance(tasks, Subgraph) else tuple(cast("Sequence[object]", tasks))
    nodes: list[AnyNode] = []
    for each in given:
        if isinstance(each, Subgraph):
            nodes += cast("Subgraph[Any]", each).nodes
        elif isinstance(each, Node):
            nodes.append(cast("AnyNode", each))
        else:
            raise wrong(
                ErrorCode.WORKFLOW_INVALID_DEPENDENCY,
                f"tasks has {each!r}, which is not a node",
                "make a node of a task with task.node(…)",
            )
    return tuple(nodes)


T = TypeVar("T")


def _or_raise(started: WorkflowStartResult[T]) -> WorkflowStartResult[T]:
    """Return the result of a start; raise `SendError` if it failed."""
    started.unwrap()
    return started


class Startable(Protocol[T_co]):
    """A chain or a group, which makes a workflow of its steps."""

    def spec(self) -> WorkflowSpec[T_co]:
        """Return the validated workflow."""
        ...


def _bound_to(
    given: WorkflowSpec[T] | Startable[T], broker: Broker | None
) -> WorkflowStartResult[WorkflowSpec[T]]:
    """Return the same workflow, to be started over this broker; None means its own."""
    spec = given if isinstance(given, WorkflowSpec) else given.spec()
    if broker is None or broker is spec.broker:
        return Ok(spec)
    if not isinstance(cast(object, broker), Broker):
        error = WorkflowStartError(
            code=WorkflowStartErrorCode.VALIDATION_FAILED,
            message=f"workflow {spec.name!r}: broker is {mask_passwords(repr(broker))}; "
            "pass app.get_broker(), and an id as workflow_id=…",
            workflow_name=spec.name,
        )
        log_failed_start(error, redacts=False, suppressed=False)
        return Err(error)
    bound = copy(spec)
    object.__setattr__(
        bound, "broker", broker
    )  # the dataclass is frozen, and nothing else refers to the copy
    return Ok(bound)


def start_workflow(
    spec: WorkflowSpec[T] | Startable[T], broker: Broker | None = None, workflow_id: str | UUID | None = None
) -> WorkflowStartResult[WorkflowHandle[T]]:
    """Start a workflow, a chain or a group, as `spec.start(workflow_id)` does; over this broker, by default that of the workflow's app.

    >>> start_workflow(spec, app.get_broker(), workflow_id="0198f0c2-…")
    """
    bound = _bound_to(spec, broker)
    return bound if isinstance(bound, Err) else bound.ok_value.start(workflow_id)


async def start_workflow_async(
    spec: WorkflowSpec[T] | Startable[T], broker: Broker | None = None, workflow_id: str | UUID | None = None
) -> WorkflowStartResult[WorkflowHandle[T]]:
    """Start a workflow, as `spec.start_async(workflow_id)` does; over this broker, by default that of the workflow's app."""
    bound = _bound_to(spec, broker)
    return bound if isinstance(bound, Err) else await bound.ok_value.start_async(workflow_id)


async def pause_workflow(broker: Broker, workflow_id: str | UUID) -> HandleResult[bool]:
    """Pause a workflow by its id; `app.get_broker()` gives the broker."""
    return await WorkflowHandle(str(workflow_id), broker).pause_async()


def pause_workflow_sync(broker: Broker, workflow_id: str | UUID) -> HandleResult[bool]:
    """Call `pause_workflow` and wait for it."""
    return WorkflowHandle(str(workflow_id), broker).pause()


async def resume_workflow(broker: Broker, workflow_id: str | UUID) -> HandleResult[bool]:
    """Resume a paused workflow by its id."""
    return await WorkflowHandle(str(workflow_id), broker).resume_async()


def resume_workflow_sync(broker: Broker, workflow_id: str | UUID) -> HandleResult[bool]:
    """Call `resume_workflow` and wait for it."""
    return WorkflowHandle(str(workflow_id), broker).resume()


# The rows of a workflow


class TreePosition(msgspec.Struct, frozen=True):
    """The position of a workflow in its tree."""

    root: UUID
    parent: UUID | None = None
    parent_index: int | None = None
    depth: int = 0


def workflow_rows(spec: WorkflowSpec[Any], workflow_id: UUID, limit: int | None) -> WorkflowRows:
    """Return the rows of a workflow that starts now, and of its sub-workflows. `limit` is the largest size of arguments."""
    rows = WorkflowRows([], [])
    _add_rows(rows, spec, workflow_id, TreePosition(root=workflow_id), runs=True)
    for node in rows.nodes:
        if limit is not None and node.task_kwargs is not None and len(node.task_kwargs) > limit:
            raise TooLarge(
                f"the arguments of node {node.node_id!r} take {len(node.task_kwargs):,} bytes, more than the limit of "
                f"{limit:,}; pass a reference to the data, or raise PayloadPolicy.reject_bytes"
            )
    return rows


def sub_workflow_rows(spec: WorkflowSpec[Any], workflow_id: UUID, inputs: Inputs) -> WorkflowRows:
    """Return the rows of a workflow that becomes a sub-workflow of a running one, and has not started."""
    rows = WorkflowRows([], [])
    position = TreePosition(
        UUID(inputs.root_workflow_id), UUID(inputs.workflow_id), inputs.task_index, inputs.depth + 1
    )
    _add_rows(rows, spec, workflow_id, position, runs=False)
    return rows


def rows_with_headers(rows: WorkflowRows, headers: Headers) -> WorkflowRows:
    """Return the rows with headers added to all tasks, those that are enqueued later included."""
    if not headers:
        return rows
    return WorkflowRows(
        rows.flows,
        [
            msgspec.structs.replace(node, task_options=with_headers(node.task_options, headers))
            if node.queue_name is not None
            else node
            for node in rows.nodes
        ],
    )


def _add_rows(
    rows: WorkflowRows, spec: WorkflowSpec[Any], workflow_id: UUID, position: TreePosition, runs: bool
) -> None:
    """Add the rows of a workflow, and after them those of its sub-workflows."""
    rows.flows.append(
        NewWorkflow(
            id=workflow_id,
            root_workflow_id=position.root,
            parent_workflow_id=position.parent,
            parent_task_index=position.parent_index,
            depth=position.depth,
            name=spec.name,
            status=WorkflowStatus.RUNNING if runs else WorkflowStatus.PENDING,
            on_error=spec.on_error,
            definition_key=spec.definition_key,
            output_task_index=spec.output_index,
            success_policy=spec.policy_json,
            deadline_seconds=None if spec.deadline_seconds is None else in_seconds(spec.deadline_seconds),
            open_tasks=len(spec.entries),
        )
    )
    children = dict(zip(spec.children, new_ids(len(spec.children)), strict=True))
    dependents = dependents_of(spec.entries)
    task_ids = new_ids(len(spec.entries))
    for entry in spec.entries:
        node = entry.node
        inputs = node if isinstance(node, NodeWithInputs) else None
        join = "all" if inputs is None else inputs.join
        columns: dict[str, Any] = {"args_from": entry.args_from or None}
        rows.nodes.append(
            NewNode(
                workflow_id=workflow_id,
                task_index=entry.index,
                node_id=entry.node_id,
                status=_status(entry, runs),
                join_type=join,
                min_success=1 if join == "any" else None if inputs is None else inputs.min_success,
                allow_failed_deps=inputs is not None and inputs.allow_failed_deps,
                dependencies=entry.deps,
                dependents=dependents[entry.index],
                open_deps=len(entry.deps),
                open_sources=0 if join == "all" else len(entry.context or ()),
                workflow_ctx_from=entry.context,
                sub_workflow_id=children.get(entry.index),
                **(columns | _columns_by_kind(entry, spec, task_ids[entry.index])),
            )
        )
    for index, child in spec.children.items():
        below = TreePosition(position.root, workflow_id, index, position.depth + 1)
        _add_rows(rows, child, children[index], below, runs and not spec.entries[index].deps)


def _policy_json(policy: SuccessPolicy, graph: Graph) -> str:
    cases = [{"required_indices": graph.indexes(case.required)} for case in policy.cases]
    optional = graph.indexes(policy.optional or ())
    return msgspec.json.encode({"cases": cases, "optional_indices": optional}).decode()


def _status(entry: Entry, runs: bool) -> WorkflowTaskStatus:
    if entry.deps:
        return WorkflowTaskStatus.PENDING
    if not runs:
        return WorkflowTaskStatus.READY
    return WorkflowTaskStatus.ENQUEUED if isinstance(entry.node, TaskNode) else WorkflowTaskStatus.RUNNING


def _columns_by_kind(entry: Entry, spec: WorkflowSpec[Any], task_id: UUID) -> dict[str, Any]:
    """Return the columns of a node that depend on its kind."""
    match entry.node:
        case TaskNode() as node:
            return _task_columns(entry, node, spec, task_id)
        case SubWorkflowNode() as node:
            columns = {
                "kind": Kind.WORKFLOW,
                "task_name": name_of(node),
                "sub_definition_key": node.workflow_def.definition_key,
            }
            if not entry.args_from:
                return columns
            arguments = spec.arguments[entry.index]
            return columns | _internal_task_columns(BUILD, spec, task_id) | {"task_kwargs": arguments}
        case MapNode():
            over = as_map(entry).over
            source = next(each.index for each in spec.entries if each.node is over)
            columns = _columns_of(as_map(entry).fn.definition, entry, spec, as_map(entry).task_key)
            return columns | {"kind": Kind.MAP, "args_from": {map_param(entry) or "": source}}
        case GatherNode():
            return _internal_task_columns(GATHER, spec, task_id)
        case SleepNode() as node:
            return {"kind": Kind.SLEEP, "task_name": "sleep", "seconds": in_seconds(node.seconds)}
        case SignalNode() as node:
            seconds = None if node.timeout_seconds is None else in_seconds(node.timeout_seconds)
            return {"kind": Kind.SIGNAL, "task_name": node.name, "seconds": seconds}
        case Node():
            raise AssertionError("validation has rejected all other kinds of nodes")


def _task_columns(
    entry: Entry, node: TaskNode[Any], spec: WorkflowSpec[Any], task_id: UUID
) -> dict[str, Any]:
    definition = node.fn.definition
    if node.retry_policy is not None:
        policy = take_errors(node.retry_policy, definition.retry_policy)
        definition = replace(definition, retry_policy=policy)
    columns = _columns_of(definition, entry, spec, node.task_key)
    return columns | {
        "task_id": task_id,
        "queue_name": node.queue or columns["queue_name"],
        "priority": node.priority or columns["priority"],
        "timeout_ms": timeout_in_ms(node.timeout, node.timeout_ms) or columns["timeout_ms"],
        "good_until": None if node.good_until is None else node.good_until.astimezone(UTC),
    }


def _columns_of(
    definition: TaskDefinition, entry: Entry, spec: WorkflowSpec[Any], key: str | int | None
) -> dict[str, Any]:
    takes_meta = "workflow_meta" in definition.signature.injected
    takes_inputs = bool(entry.args_from) or entry.context is not None or takes_meta
    return {
        "task_name": definition.name,
        "queue_name": definition.queue.name,
        "priority": definition.priority or definition.queue.priority,
        "is_async": definition.is_async,
        "max_retries": definition.max_retries,
        "timeout_ms": definition.timeout_ms,
        "rate_key": lane_of_node(definition, key, entry.kwargs),
        "task_options": _with_fed(definition.options_json) if takes_inputs else definition.options_json,
        "task_kwargs": spec.arguments[entry.index],
    }


def _with_fed(options_json: str | None) -> str:
    """Return the stored options of a task with `has_inputs`, which marks a task whose inputs are loaded when it is claimed."""
    options: dict[str, Any] = {} if options_json is None else msgspec.json.decode(options_json)
    return msgspec.json.encode({**options, "has_inputs": True}).decode()


def _internal_task_columns(task_name: str, spec: WorkflowSpec[Any], task_id: UUID) -> dict[str, Any]:
    """Return the columns of a task of horsies itself, which takes the results of other nodes."""
    assert spec.broker is not None
    queue = spec.broker.config.all_queues[0]
    return {
        "task_id": task_id,
        "task_name": task_name,
        "queue_name": queue.name,
        "priority": queue.priority,
        "task_options": _with_fed(None),
    }


def _arguments_json(entry: Entry) -> str | None:
    """Return the arguments of a node as they are stored. They are encoded once, so that later changes of a value have no effect."""
    match entry.node:
        case TaskNode() as node:
            return node.fn.definition.signature.encode_part(entry.kwargs).decode()
        case MapNode():
            return as_map(entry).fn.definition.signature.encode_part(entry.kwargs).decode()
        case SubWorkflowNode() as node if entry.args_from:
            call = {"definition_key": node.workflow_def.definition_key, "kwargs": dict(entry.kwargs)}
            return msgspec.json.encode(call).decode()
        case _:
            return None
