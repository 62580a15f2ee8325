"""SQL access to workflows: store them, read them, and the statements with which `horsies.workflow.settle` advances them.

Nothing is decided here. Whoever changes a workflow first locks the root of its tree, in the transaction that makes the change.
Each function is one statement, however many workflows and nodes it is about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from psycopg.rows import class_row, scalar_row

from horsies.db.connection import Connection
from horsies.db.insert import Plan, fetch_on, run_plan_async
from horsies.db.queries.tasks import Claimed, Expired, as_json
from horsies.db.sql import Batch, Rows, prepared_form, statements
from horsies.workflow.advance import Kind, Ref

SQL = statements("workflows")

# The statements of the pipelined path, prepared by name: how to prepare each, and how to execute it.
PARAMETER_TYPES = {
    "ids": "uuid[]",
    "worker_id": "uuid",
    **dict.fromkeys(("completed", "ended", "nodes", "flows", "verdicts"), "text"),
}
PREPARED = {
    name: prepared_form(f"workflow_{name}", SQL[name], PARAMETER_TYPES)
    for name in (
        "lock",
        "complete_and_load",
        "load_ended",
        "load_ready",
        "load_workflows",
        "write_changes",
        "load_node_outcomes",
        "end_workflows",
    )
}


class NewWorkflow(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow that is about to be stored; the fields are columns."""

    id: UUID
    root_workflow_id: UUID
    parent_workflow_id: UUID | None
    parent_task_index: int | None
    depth: int
    name: str
    status: str
    on_error: str
    definition_key: str
    output_task_index: int | None
    success_policy: str | None
    deadline_seconds: float | None
    open_tasks: int


class NewNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node that is about to be stored; the fields are columns."""

    workflow_id: UUID | None = None
    task_index: int
    node_id: str
    task_name: str
    kind: str = msgspec.field(default_factory=lambda: str(Kind.TASK))
    status: str = ""
    join_type: str
    min_success: int | None = None
    allow_failed_deps: bool = False
    dependencies: tuple[int, ...] = ()
    dependents: tuple[int, ...] = ()
    open_deps: int = 0
    open_sources: int = 0
    args_from: Mapping[str, int] | None = None
    workflow_ctx_from: tuple[int, ...] | None = None
    task_id: UUID | None = None
    queue_name: str | None = None
    priority: int | None = None
    is_async: bool = False
    max_retries: int = 0
    timeout_ms: int | None = None
    rate_key: str = ""
    good_until: Any = None
    task_options: str | None = None
    task_kwargs: str | None = None
    seconds: float | None = None
    sub_workflow_id: UUID | None = None
    sub_definition_key: str | None = None


class WorkflowRows(msgspec.Struct, frozen=True):
    """All rows of a workflow and its sub-workflows; the first of `flows` is the workflow itself."""

    flows: list[NewWorkflow]
    nodes: list[NewNode]

    @property
    def parameters(self) -> dict[str, Any]:
        """Return the parameters of the statements that store a workflow."""
        return {"id": str(self.flows[0].id), "flows": as_json(self.flows), "nodes": as_json(self.nodes)}


class WorkflowState(NamedTuple):
    """The state of a workflow. `output` is the id of its output node; with `watched`, its end will be notified."""

    id: UUID
    status: str
    result: str | None
    error: str | None
    output: str | None
    watched: bool


class WorkflowSummary(NamedTuple):
    """A workflow in a list of them."""

    id: str
    name: str
    status: str
    sent_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    open_tasks: int
    total_tasks: int
    error: str | None
    parent_workflow_id: str | None
    definition_key: str


class WorkflowDetails(NamedTuple):
    """A workflow by itself."""

    id: str
    name: str
    status: str
    sent_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    open_tasks: int
    deadline_at: datetime | None
    error: str | None
    parent_workflow_id: str | None
    definition_key: str
    on_error: str


class NodeDetails(NamedTuple):
    """A node as stored, with the state and times of its task."""

    task_index: int
    node_id: str
    kind: str
    task_name: str
    status: str
    task_id: UUID | None
    sub_workflow_id: UUID | None
    queue_name: str | None
    priority: int | None
    dependencies: list[int]
    started_at: datetime | None
    completed_at: datetime | None
    due_at: datetime | None
    result: str | None
    summary: Any


class NodeResult(NamedTuple):
    """The result of a node; `is_last` if no other node depends on it."""

    node_id: str
    status: str
    result: str | None
    is_last: bool


class IdTaken(Exception):
    """The id belongs to a workflow of another name."""


def start_plan(rows: WorkflowRows) -> Plan[None]:
    """Store a workflow, unless its id exists; raise `IdTaken` if a workflow of another name has the id."""
    flow = rows.flows[0]
    answer = yield SQL["start"], rows.parameters
    if not answer[0][0]:
        found = yield SQL["name_of"], {"id": str(flow.id)}
        if found and found[0][0] != flow.name:
            raise IdTaken(
                f"workflow id {flow.id} belongs to a workflow named {found[0][0]!r}, not {flow.name!r}; use another id"
            )


def start_and_notify(rows: WorkflowRows) -> Plan[None]:
    """Store a workflow in the caller's transaction, and notify workers when it commits, however late that is."""
    yield from start_plan(rows)
    queues = {node.queue_name for node in rows.nodes if node.status == "ENQUEUED" and node.queue_name}
    timed = any(node.seconds is not None for node in rows.nodes)
    timed = timed or any(flow.deadline_seconds is not None for flow in rows.flows)
    yield SQL["wake_for_start"], {"queues": as_json(sorted(queues)), "timers": "yes" if timed else "no"}


async def start(connection: Connection, rows: WorkflowRows) -> None:
    """Run `start_plan` on one of our own connections."""
    await run_plan_async(start_plan(rows), fetch_on(connection))


async def watch(connection: Connection, ids: Sequence[UUID]) -> list[WorkflowState]:
    """Return the state of workflows, and ask that the end of those that have not ended be notified."""
    cursor = connection.cursor(row_factory=class_row(WorkflowState))
    return await (await cursor.execute(SQL["watch"], {"ids": list(ids)})).fetchall()


async def look(connection: Connection, workflow_id: UUID) -> WorkflowState | None:
    """Return the state of a workflow, None if there is none with this id."""
    cursor = connection.cursor(row_factory=class_row(WorkflowState))
    return await (await cursor.execute(SQL["look"], {"id": workflow_id})).fetchone()


async def living(connection: Connection, ids: Iterable[UUID]) -> set[UUID]:
    """Return those of these workflows that have not ended."""
    cursor = await connection.execute(SQL["living"], {"ids": list(ids)})
    return {UUID(str(row[0])) for row in await cursor.fetchall()}


async def results(connection: Connection, workflow_id: UUID, node_id: str | None = None) -> list[NodeResult]:
    """Return the results of all nodes in order, or only that of one node."""
    cursor = connection.cursor(row_factory=class_row(NodeResult))
    values = {"id": workflow_id, "node_id": node_id}
    return await (await cursor.execute(SQL["results"], values)).fetchall()


async def nodes(connection: Connection, workflow_id: UUID) -> list[NodeDetails]:
    """Return every node of a workflow, in order."""
    cursor = connection.cursor(row_factory=class_row(NodeDetails))
    return await (await cursor.execute(SQL["nodes"], {"id": workflow_id})).fetchall()


async def listing(connection: Connection, values: Mapping[str, Any]) -> list[WorkflowSummary]:
    """Return workflows, the newest first."""
    cursor = connection.cursor(row_factory=class_row(WorkflowSummary))
    return await (await cursor.execute(SQL["list"], values)).fetchall()


async def shown(connection: Connection, workflow_id: UUID) -> WorkflowDetails | None:
    """Return one workflow, None if there is none with this id."""
    cursor = connection.cursor(row_factory=class_row(WorkflowDetails))
    return await (await cursor.execute(SQL["show"], {"id": workflow_id})).fetchone()


async def load_inputs(connection: Connection, claimed: list[Claimed]) -> list[Claimed]:
    """Add to claimed tasks the results of other nodes that they take."""
    takers = [task for task in claimed if task.workflow_id is not None and _takes_inputs(task)]
    if not takers:
        return claimed
    rows = await (
        await connection.execute(
            SQL["load_inputs"], {"tasks": _members_json((task.id, task.node) for task in takers)}
        )
    ).fetchall()
    inputs: dict[str, str] = dict(rows)
    return [task._replace(inputs=inputs[task.id]) if task.id in inputs else task for task in claimed]


class _Options(msgspec.Struct):
    has_inputs: bool = False


def _takes_inputs(task: Claimed) -> bool:
    """Return True if a task takes results of other nodes; False if its options cannot be read."""
    try:
        return (
            task.task_options is not None and msgspec.json.decode(task.task_options, type=_Options).has_inputs
        )
    except (msgspec.MsgspecError, RecursionError):
        return False


# Advancing workflows


class Statements:
    """The statements of one transaction, queued until an answer is needed.

    With a batch they are executed by name, all that are queued in one message; the connection must have prepared `PREPARED`.
    Without one, they go out one after another, which works on every connection.
    """

    def __init__(self, connection: Connection, batch: Batch | None = None) -> None:
        self.connection = connection
        self._batch = batch
        self._queued: list[tuple[str, Mapping[str, Any], Rows]] = []

    def add(self, name: str, values: Mapping[str, Any]) -> Rows:
        """Queue a statement; `run` fills the returned list with its rows."""
        if self._batch is not None:
            return self._batch.add(PREPARED[name][1], values)
        rows: Rows = []
        self._queued.append((name, values, rows))
        return rows

    async def run(self) -> None:
        """Execute what is queued."""
        if self._batch is not None:
            await self._batch.run()
        queued, self._queued = self._queued, []
        for name, values, rows in queued:
            rows += await (await self.connection.execute(SQL[name], values)).fetchall()


async def lock(connection: Connection, workflow_ids: Iterable[str | UUID]) -> bool:
    """Lock the trees of these workflows for this transaction; return False if there are none."""
    row = await (await connection.execute(SQL["lock"], {"ids": list(workflow_ids)})).fetchone()
    return row is not None and row[0] > 0


async def owners(connection: Connection, tasks: Iterable[tuple[str, Ref | None]]) -> set[str]:
    """Return the ids of the tasks that own the node they name. A task is given by its id and its node."""
    cursor = connection.cursor(row_factory=scalar_row)
    return set(await (await cursor.execute(SQL["owners"], {"tasks": _members_json(tasks)})).fetchall())


async def complete(connection: Connection, completed: str, worker_id: UUID | None) -> set[str]:
    """Complete tasks that belong to no workflow; return the ids of those that the worker still held."""
    values = {"completed": completed, "worker_id": worker_id}
    cursor = await connection.execute(SQL["complete"], values)
    return {row[0] for row in await cursor.fetchall()}


async def inactive(connection: Connection, workflow_ids: Iterable[str]) -> set[str]:
    """Return those of these workflows that neither run nor are paused."""
    cursor = connection.cursor(row_factory=scalar_row)
    return set(await (await cursor.execute(SQL["inactive"], {"ids": list(workflow_ids)})).fetchall())


async def tree(connection: Connection, workflow_id: str | UUID, *states: str) -> list[str]:
    """Return a workflow and its sub-workflows of all levels, as far as they are in one of these states."""
    cursor = connection.cursor(row_factory=scalar_row)
    return await (await cursor.execute(SQL["tree"], {"id": workflow_id, "states": list(states)})).fetchall()


async def pause(connection: Connection, workflow_ids: Sequence[str]) -> None:
    """Pause workflows and put off their tasks that were not started."""
    await connection.execute(SQL["pause"], {"ids": list(workflow_ids)})


async def record_errors(connection: Connection, workflow_ids: Sequence[str]) -> None:
    """Record in workflows that are paused the error of the node that has paused them."""
    await connection.execute(SQL["record_errors"], {"ids": list(workflow_ids)})


async def resume_tasks(connection: Connection, workflow_ids: Sequence[str]) -> None:
    """Make the tasks that a pause has put off due again."""
    await connection.execute(SQL["resume_tasks"], {"ids": list(workflow_ids)})


async def stop(
    connection: Connection, workflow_ids: Sequence[str], status: str, error: str | None, result: str
) -> list[Ref]:
    """End workflows early; return the nodes of parent workflows that end with them.

    `result` is the result of their tasks that were not started.
    """
    values = {"ids": list(workflow_ids), "status": status, "error": error, "result": result}
    cursor = await connection.execute(SQL["stop"], values)
    return [(row[0], row[1]) for row in await cursor.fetchall() if row[0] is not None]


class ExpandedMap(NamedTuple):
    """A map node whose tasks were enqueued, by the id of their workflow; `items` is None if its source is not a list."""

    workflow_id: str
    task_index: int
    child_id: str
    items: int | None


async def expand_maps(connection: Connection, maps: Sequence[Ref]) -> list[ExpandedMap]:
    """Enqueue a task for each item of these map nodes."""
    cursor = connection.cursor(row_factory=class_row(ExpandedMap))
    return await (await cursor.execute(SQL["expand_maps"], {"nodes": refs_json(maps)})).fetchall()


class BuiltWorkflow(NamedTuple):
    """The result of a build task, for the node that it builds."""

    workflow_id: str
    task_index: int
    result: str


async def built_workflows(connection: Connection, nodes: Sequence[Ref]) -> list[BuiltWorkflow]:
    """Return what was built for these nodes in this transaction."""
    cursor = connection.cursor(row_factory=class_row(BuiltWorkflow))
    return await (await cursor.execute(SQL["built_workflows"], {"nodes": refs_json(nodes)})).fetchall()


async def attach_built(connection: Connection, rows: WorkflowRows, node: Ref) -> str | None:
    """Store a built workflow as the sub-workflow of a node; return why it is rejected, or None."""
    if not rows.flows:
        return "it has no rows"
    values = rows.parameters | {"workflow_id": node[0], "task_index": node[1]}
    row = await (await connection.execute(SQL["attach_built"], values)).fetchone()
    return None if row is None else row[0]


# Signals, timers, deadlines and retries


async def wake(connection: Connection, workflow_id: UUID) -> None:
    """Wake the workers of the queues in which tasks of this workflow's tree wait."""
    await connection.execute(SQL["wake"], {"id": workflow_id})


class Signalled(NamedTuple):
    """A node that has taken the value of a signal, and its status."""

    workflow_id: str
    task_index: int
    status: str


async def signal(connection: Connection, workflow_id: UUID, name: str, result: str) -> list[Signalled]:
    """Give a value to the nodes that wait for a signal, now or later."""
    cursor = connection.cursor(row_factory=class_row(Signalled))
    values = {"id": workflow_id, "name": name, "result": result}
    return await (await cursor.execute(SQL["signal"], values)).fetchall()


async def reset(connection: Connection, workflow_id: UUID, workflow_ids: Sequence[str]) -> None:
    """Reset what failed or was skipped in these workflows, of which the first id is the root."""
    values = {"id": workflow_id, "ids": list(workflow_ids)}
    await connection.execute(SQL["reset"], values)
    await connection.execute(SQL["recount"], values)


class Timer(NamedTuple):
    """A sleep that is over, or a signal that timed out."""

    workflow_id: str
    task_index: int
    kind: str


async def due_timers(connection: Connection, workflow_ids: Sequence[str] | None = None) -> list[Timer]:
    """Return the timers that are due, of these workflows or of all."""
    cursor = connection.cursor(row_factory=class_row(Timer))
    return await (await cursor.execute(SQL["due_timers"], {"ids": workflow_ids})).fetchall()


async def clear_timers(connection: Connection, timers: Iterable[Timer]) -> None:
    """Clear the timers of nodes that had ended before they fired."""
    nodes = refs_json([(timer.workflow_id, timer.task_index) for timer in timers])
    await connection.execute(SQL["clear_timers"], {"nodes": nodes})


async def overdue(connection: Connection, workflow_ids: Sequence[str] | None = None) -> list[str]:
    """Return the workflows that have not ended by their deadline, of these or of all."""
    cursor = connection.cursor(row_factory=scalar_row)
    return await (await cursor.execute(SQL["overdue"], {"ids": workflow_ids})).fetchall()


async def clear_deadlines(connection: Connection, workflow_ids: Sequence[str]) -> None:
    """Clear the deadlines of workflows that had ended before them."""
    await connection.execute(SQL["clear_deadlines"], {"ids": list(workflow_ids)})


async def next_timer(connection: Connection) -> float | None:
    """Return the seconds until the next timer or deadline is due; None if there is none."""
    row = await (await connection.execute(SQL["next_timer"])).fetchone()
    return None if row is None else row[0]


class LateTask(NamedTuple):
    """A task of a workflow that expired before it was started."""

    id: str
    workflow_id: str
    claim_seq: int
    workflow_index: int | None


async def late_tasks(connection: Connection, worker_id: UUID) -> list[LateTask]:
    """Return tasks of workflows that expired before they were started."""
    cursor = connection.cursor(row_factory=class_row(LateTask))
    return await (await cursor.execute(SQL["late_tasks"], {"worker_id": worker_id})).fetchall()


async def expire(
    connection: Connection, worker_id: UUID, result: str, ids: Sequence[str]
) -> tuple[list[Expired], list[Ref]]:
    """Expire these tasks; return those that were expired, and the nodes that end with them."""
    values = {"worker_id": worker_id, "result": result, "ids": list(ids)}
    rows = await (await connection.execute(SQL["expire"], values)).fetchall()
    expired = [Expired(*row[2:]) for row in rows]
    return expired, [(row[5], row[1]) for row in rows if row[1] is not None]


def _members_json(tasks: Iterable[tuple[str, Ref | None]]) -> str:
    """Encode tasks by their id and the node they name."""
    return as_json(
        [
            {"id": task_id, "workflow_id": node[0], "task_index": node[1]}
            for task_id, node in tasks
            if node is not None
        ]
    )


def refs_json(nodes: Sequence[Ref]) -> str:
    """Encode nodes by their workflow and index."""
    return as_json([{"workflow_id": flow_id, "task_index": index} for flow_id, index in nodes])
