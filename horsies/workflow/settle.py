"""Settle the nodes of workflows. Workers, the reaper, operators, timers and the test runner all end nodes through this module.

A settlement is one transaction: lock the trees of the workflows, end the tasks, load the nodes concerned, decide with `advance`
what follows, and write it. There is no second phase: after a crash either everything has happened or nothing. The number of
statements does not depend on how many workflows and nodes are concerned.

`settle_and_claim` is the worker's version: it also claims the next tasks, and sends its statements in two messages. Only a
workflow that ends, or something out of the ordinary, takes more.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from psycopg import errors

from horsies.db.connection import Connection
from horsies.db.queries import steps, tasks, workflows
from horsies.db.queries.tasks import ClaimRequest, Completed, Failure, SettledAndClaimed, as_json
from horsies.db.queries.workflows import Statements, WorkflowRows
from horsies.db.sql import Batch, Rows, prepare, prepared_form, roll_back
from horsies.workflow.advance import (
    COMPLETED,
    FAILED,
    Changes,
    Event,
    Flow,
    Node,
    NodeEnded,
    Ref,
    WorkflowStarted,
    advance,
    decide_end,
)

logger = logging.getLogger("horsies.workflows")

# The pause before a task whose process died is run again.
CRASH_RETRY_SECONDS = 0.1

PREPARED = (
    workflows.PREPARED
    | {
        "settle_and_claim": prepared_form(
            "plain_settle_and_claim", tasks.SQL["settle_and_claim"], tasks.SETTLE_AND_CLAIM_TYPES
        ),
    }
    | tasks.PREPARED
)

CASE_NOT_MET = (
    '{"error_code":{"__builtin_task_code__":"WORKFLOW_SUCCESS_CASE_NOT_MET"},'
    '"message":"no case of the success policy was met","data":null,"exception":null}'
)
NOT_A_LIST = (
    '{"err":{"error_code":{"__builtin_task_code__":"WORKFLOW_ENQUEUE_FAILED"},'
    '"message":"the source of the map is not a list","data":null,"exception":null}}'
)
NOT_STARTED = (
    '{"err":{"error_code":{"__builtin_task_code__":"TASK_CANCELLED"},'
    '"message":"the workflow ended before this task started","data":null,"exception":null}}'
)
NOT_BUILT = (
    '{"err":{"error_code":{"__builtin_task_code__":"SUBWORKFLOW_LOAD_FAILED"},'
    '"message":"the sub-workflow that was built for this node cannot be read","data":null,"exception":null}}'
)


class Settled(NamedTuple):
    """The changes that a settlement has written.

    `completed` has the ids of the tasks that were completed. `failed` has those that failed, True if they are retried. `timer`
    is the number of seconds until the first new timer of a workflow is due.
    """

    completed: set[str]
    failed: dict[str, bool]
    timer: float | None


async def settle(
    connection: Connection,
    completed: Sequence[Completed],
    failures: Sequence[Failure],
    worker_id: UUID | None,
) -> Settled:
    """Settle tasks that this worker holds, of workflows and others, and advance their workflows.

    Run in the caller's transaction. Without a worker, settle the tasks whoever holds them.
    """
    settlement = _Settlement(Statements(connection), worker_id)
    returned = await settlement.complete(completed, failures)
    # A task that returned, is still ours and was not completed was asked to stop.
    failures = [*failures, *(tasks.stopped(each) for each in completed if each.id not in returned.ids)]
    retried: dict[str, bool] = {}
    events, loaded = returned.events, returned.loaded
    timer: float | None = None
    if failures:
        failures = await _with_own_nodes(connection, failures)
        failures = await _without_vain_retries(connection, await _resumed(connection, failures))
        retried, timer = await _park(connection, failures, worker_id)
        unparked = [each for each in failures if each.id not in retried]
        retried |= await tasks.fail(connection, unparked, worker_id)
        ended = [failure.node for failure in failures if retried.get(failure.id) is False]
        if failed := [NodeEnded(*node, FAILED) for node in ended if node is not None]:
            events, loaded = [*events, *failed], None
    await settlement.advance(events, loaded)
    timers = [each for each in (timer, await settlement.finish()) if each is not None]
    return Settled(returned.ids, retried, min(timers, default=None))


def needs_transaction(failure: Failure) -> bool:
    """Return True if a failure takes more than the one statement for failures."""
    return failure.node is not None or failure.park is not None or failure.resumable


async def _resumed(connection: Connection, failures: Sequence[Failure]) -> list[Failure]:
    """Return the failures; a crashed task that has stored steps is run again, and goes on after them."""
    crashed = [each.id for each in failures if each.resumable and each.delay_seconds is None]
    begun = await steps.have_steps(connection, crashed) if crashed else set[str]()
    return [
        msgspec.structs.replace(each, delay_seconds=CRASH_RETRY_SECONDS)
        if each.id in begun and each.resumable and each.delay_seconds is None
        else each
        for each in failures
    ]


async def _park(
    connection: Connection, failures: Sequence[Failure], worker_id: UUID | None
) -> tuple[dict[str, bool], float | None]:
    """Park tasks; return those that were parked, and the seconds until the first of them goes on by itself."""
    parks = [each for each in failures if each.park is not None and each.delay_seconds is not None]
    parked = await steps.park(connection, parks, worker_id) if parks else {}
    due = [seconds for seconds in parked.values() if seconds is not None]
    return dict.fromkeys(parked, True), min(due, default=None)


async def settle_and_claim(
    connection: Connection, completed: Sequence[Completed], others: Sequence[Completed], ask: ClaimRequest
) -> SettledAndClaimed:
    """Settle completed tasks of workflows, and `others`, and claim, in one transaction; on a connection to the server itself.

    Claimed tasks have no inputs yet: see `workflows.load_inputs`.
    """
    try:
        return await _try_settle_and_claim(connection, completed, others, ask)
    except errors.InvalidSqlStatementName:
        # The driver drops prepared statements when any transaction is rolled back.
        return await _try_settle_and_claim(connection, completed, others, ask)


async def _try_settle_and_claim(
    connection: Connection, completed: Sequence[Completed], others: Sequence[Completed], ask: ClaimRequest
) -> SettledAndClaimed:
    await prepare(connection, PREPARED)
    batch = Batch(connection)
    settlement = _Settlement(Statements(connection, batch), ask.worker_id)
    try:
        batch.add(b"BEGIN")
        returned = await settlement.complete(completed)
        await settlement.advance(returned.events, returned.loaded)
        if tasks.is_plain(ask) and not tasks.uses_keys(others, ask):
            values = tasks.settle_and_claim_values(others, ask, settles_more=True)
            answer = batch.add(PREPARED["settle_and_claim"][1], values)
            batch.add(b"COMMIT")
            timer = await settlement.finish()
            others_settled = tasks.read_settle_and_claim(answer)
        else:
            timer = await settlement.finish()
            others_settled = await tasks.settle_and_claim(connection, others, ask, settles_more=True)
            await connection.commit()
    except BaseException:
        if not connection.closed:
            await roll_back(connection)
        raise
    return others_settled._replace(settled=len(returned.ids) + others_settled.settled, timer=timer)


async def advance_workflows(connection: Connection, events: Sequence[Event]) -> float | None:
    """Carry out events and what follows from them; return the seconds until the first new timer is due.

    The caller has locked the trees of these workflows in this transaction.
    """
    settlement = _Settlement(Statements(connection))
    await settlement.advance(events)
    return await settlement.finish()


async def stop_workflows(
    connection: Connection, workflow_ids: Sequence[str], status: str, error: str | None
) -> None:
    """End workflows early, and advance the workflows that they are parts of. The caller has locked their trees."""
    parents = await workflows.stop(connection, workflow_ids, status, error, NOT_STARTED)
    await advance_workflows(connection, [NodeEnded(*parent, FAILED) for parent in parents])


class _Loaded(NamedTuple):
    """The workflows and nodes that a step works on."""

    flows: dict[str, Flow]
    nodes: dict[Ref, Node]


class _Returned(NamedTuple):
    """The tasks that were completed, and the nodes that end with them."""

    ids: set[str]
    events: list[Event]
    loaded: _Loaded | None


class _Settlement:
    """The changes of one transaction to workflows. Statements stay queued until an answer is needed."""

    def __init__(self, statements: Statements, worker_id: UUID | None = None) -> None:
        self._statements = statements
        self._worker_id = worker_id
        self._timers: list[Rows] = []

    async def complete(self, completed: Sequence[Completed], failures: Sequence[Failure] = ()) -> _Returned:
        """Lock the trees of all workflows concerned, complete tasks, and load their nodes with the dependents."""
        members = {task.id: task for task in completed if task.node is not None}
        nodes = [task.node for task in (*completed, *failures) if task.node is not None]
        if nodes:
            self._statements.add("lock", {"ids": [UUID(each) for each in {node[0] for node in nodes}]})
        if not members:
            await self._statements.run()
            if not completed:
                return _Returned(set(), [], None)
            connection = self._statements.connection
            ids = await workflows.complete(connection, tasks.outcomes(completed), self._worker_id)
            return _Returned(ids, [], None)
        values = {"completed": tasks.outcomes(completed), "worker_id": self._worker_id}
        rows = self._statements.add("complete_and_load", values)
        ids = {task.node[0] for task in members.values() if task.node is not None}
        flows = self._statements.add("load_workflows", {"ids": [UUID(each) for each in ids]})
        await self._statements.run()
        ended = [row for row in rows if row[-1]]
        events: list[Event] = [
            NodeEnded(row[0], row[1], COMPLETED) for row in ended if row[0] is not None and row[-1] in members
        ]
        if len(events) < len(ended):
            _warn_of_foreign_nodes(members[row[-1]] for row in ended if row[0] is None and row[-1] in members)
        loaded = _loaded(flows, [row[:-1] for row in rows if row[0] is not None])
        return _Returned({row[-1] for row in ended}, events, loaded)

    async def advance(self, events: Sequence[Event], loaded: _Loaded | None = None) -> None:
        """Carry out events and what follows from them. The last statements may still be queued afterwards."""
        while events:
            loaded = loaded or await self._load(events)
            changes = advance(loaded.flows, loaded.nodes, events)
            values = {"nodes": as_json(changes.nodes), "flows": as_json(changes.flows)}
            self._timers.append(self._statements.add("write_changes", values))
            events = [*changes.events, *await self._apply(changes)]
            if changes.over:
                events += await self._end_workflows(changes.over, loaded.flows)
            loaded = None

    async def finish(self) -> float | None:
        """Execute what is queued; return the seconds until the first new timer is due."""
        await self._statements.run()
        return min((row[0] for rows in self._timers for row in rows if row[0] is not None), default=None)

    async def _load(self, events: Sequence[Event]) -> _Loaded:
        ended = [
            {"workflow_id": each.workflow_id, "task_index": each.task_index, "deep": each.status != COMPLETED}
            for each in events
            if isinstance(each, NodeEnded)
        ]
        started = {each.workflow_id for each in events if isinstance(each, WorkflowStarted)}
        nodes: list[Rows] = []
        if ended:
            nodes.append(self._statements.add("load_ended", {"ended": as_json(ended)}))
        if started:
            nodes.append(self._statements.add("load_ready", {"ids": [UUID(each) for each in started]}))
        ids = {each.workflow_id for each in events}
        flows = self._statements.add("load_workflows", {"ids": [UUID(each) for each in ids]})
        await self._statements.run()
        return _loaded(flows, [row for rows in nodes for row in rows])

    async def _apply(self, changes: Changes) -> list[Event]:
        """Do what a step leads to beyond the rows it writes; return the events that result. Mostly there is nothing to do."""
        if not (changes.paused or changes.maps or changes.built or changes.dropped):
            return []
        await self._statements.run()
        connection = self._statements.connection
        events: list[Event] = []
        for flow_id in changes.paused:
            await workflows.pause(connection, await workflows.tree(connection, flow_id, "RUNNING", "PAUSED"))
        if changes.paused:
            await workflows.record_errors(connection, changes.paused)
        if changes.maps:
            events += await _expand_maps(connection, changes.maps)
        if changes.built:
            events += await _attach_built(connection, changes.built)
        for flow_id in changes.dropped:
            unstarted = await workflows.tree(connection, flow_id, "PENDING")
            await workflows.stop(connection, unstarted, "CANCELLED", None, NOT_STARTED)
        return events

    async def _end_workflows(self, flow_ids: Sequence[str], flows: Mapping[str, Flow]) -> list[Event]:
        """End workflows whose nodes have all ended; return the events for the workflows that they are parts of."""
        outcomes = self._statements.add("load_node_outcomes", {"ids": [UUID(each) for each in flow_ids]})
        await self._statements.run()
        verdicts: list[dict[str, Any]] = []
        events: list[Event] = []
        for flow_id, policy, completed, failed in outcomes:
            cases = None if policy is None else _cases(policy)
            end = decide_end(cases, set(completed or ()), set(failed))
            status = COMPLETED if end.completed else FAILED
            verdicts.append({"id": flow_id, "status": status, "culprit": end.culprit, "error": CASE_NOT_MET})
            if (parent := flows[flow_id].parent) is not None:
                events.append(NodeEnded(*parent, status))
        self._statements.add("end_workflows", {"verdicts": as_json(verdicts)})
        return events


def _loaded(flows: Rows, nodes: Rows) -> _Loaded:
    """Read rows of `load_workflows`, and of the statements that load nodes, whose columns are the fields of `Node`."""
    return _Loaded(
        {
            flow_id: Flow(flow_id, status, pauses, left, None if parent is None else (parent, index or 0))
            for flow_id, status, pauses, left, parent, index in flows
        },
        {(row[0], row[1]): Node(*row) for row in nodes},
    )


async def _with_own_nodes(connection: Connection, failures: Sequence[Failure]) -> list[Failure]:
    """Return the failures; one that names a node which belongs to another task loses the node. The trees must be locked."""
    members = [each for each in failures if each.node is not None]
    if not members:
        return list(failures)
    owners = await workflows.owners(connection, [(each.id, each.node) for each in members])
    _warn_of_foreign_nodes(each for each in members if each.id not in owners)
    return [each if each.id in owners else msgspec.structs.replace(each, node=None) for each in failures]


def _warn_of_foreign_nodes(outcomes: Iterable[Completed | Failure]) -> None:
    """Log tasks that name a node which belongs to another task. Only somebody who writes rows by hand can make them."""
    for each in outcomes:
        if each.node is not None:
            flow_id, index = each.node
            logger.warning(
                "task %s is not the task of node %d of workflow %s, which it names: it ends as an ordinary task",
                each.id,
                index,
                flow_id,
            )


async def _without_vain_retries(connection: Connection, failures: Sequence[Failure]) -> list[Failure]:
    """Return the failures, without a retry where the workflow has ended."""
    retrying = {each.node[0] for each in failures if each.node is not None and each.delay_seconds is not None}
    if not retrying:
        return list(failures)
    inactive = await workflows.inactive(connection, retrying)
    return [
        msgspec.structs.replace(each, delay_seconds=None) if each.node and each.node[0] in inactive else each
        for each in failures
    ]


async def _expand_maps(connection: Connection, maps: Sequence[Ref]) -> list[Event]:
    """Enqueue a task for each item. A map without items ends at once; a map over something else than a list fails."""
    events: list[Event] = []
    for node in await workflows.expand_maps(connection, maps):
        if node.items is None:
            events.append(NodeEnded(node.workflow_id, node.task_index, FAILED, NOT_A_LIST))
        elif node.items == 0:
            events.append(WorkflowStarted(node.child_id))
    return events


class _BuildResult(msgspec.Struct):
    ok: WorkflowRows


async def _attach_built(connection: Connection, nodes: Sequence[Ref]) -> list[Event]:
    """Store the workflows that were built for these nodes, and start them."""
    events: list[Event] = []
    for built in await workflows.built_workflows(connection, nodes):
        node = (built.workflow_id, built.task_index)
        try:
            rows = msgspec.json.decode(built.result, type=_BuildResult).ok
        except (msgspec.MsgspecError, RecursionError):  # for instance built by another version
            events.append(NodeEnded(*node, FAILED, NOT_BUILT))
            continue
        rejected = await workflows.attach_built(connection, rows, node)
        if rejected is None:
            events.append(WorkflowStarted(str(rows.flows[0].id)))
        else:
            logger.warning(
                "the sub-workflow built for node %d of workflow %s is rejected: %s",
                built.task_index,
                built.workflow_id,
                rejected,
            )
            events.append(NodeEnded(*node, FAILED, NOT_BUILT))
    return events


class _Case(msgspec.Struct):
    required_indices: list[int]


class _Policy(msgspec.Struct):
    cases: list[_Case]


def _cases(policy: str) -> list[list[int]]:
    """Return the cases of a stored success policy; none, so that the workflow fails, if it cannot be read."""
    try:
        return [case.required_indices for case in msgspec.json.decode(policy, type=_Policy).cases]
    except (msgspec.MsgspecError, RecursionError):
        return []
