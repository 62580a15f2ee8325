"""Workflows in the database: started as a whole, then moved on by whoever ends one of their tasks.

What is done about a workflow is done under a lock on the root of its tree, in the transaction that ends the task. There is
no second phase: after a crash either both have happened or neither. A call costs a fixed number of statements, however
many workflows and nodes it is about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from horsies.storage import tasks
from horsies.storage.database import Connection
from horsies.storage.statements import statements
from horsies.storage.tasks import Claimed, Completed, Failure, as_json, outcomes
from horsies.workflow.advance import (
    COMPLETED,
    FAILED,
    Changes,
    Ended,
    Event,
    Flow,
    Kind,
    Node,
    Opened,
    Ref,
    advance,
    judge,
)

SQL = statements("workflows")

CASE_NOT_MET = (
    '{"error_code":{"__builtin_task_code__":"WORKFLOW_SUCCESS_CASE_NOT_MET"},'
    '"message":"no case of the success policy was met","data":null,"exception":null}'
)


NO_LIST = (
    '{"err":{"error_code":{"__builtin_task_code__":"WORKFLOW_ENQUEUE_FAILED"},'
    '"message":"what is mapped over is no list","data":null,"exception":null}}'
)


# For a task of a workflow that was ended before it began.
NOT_BEGUN = (
    '{"err":{"error_code":{"__builtin_task_code__":"TASK_CANCELLED"},'
    '"message":"its workflow was ended before it began","data":null,"exception":null}}'
)
NOT_BUILT = (
    '{"err":{"error_code":{"__builtin_task_code__":"SUBWORKFLOW_LOAD_FAILED"},'
    '"message":"what was built for this node cannot be read","data":null,"exception":null}}'
)


class NewFlow(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow that is about to be stored."""

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


class Plan(NamedTuple):
    """All rows of a workflow, its own first."""

    flows: list[NewFlow]
    nodes: list[NewNode]


class FlowSeen(NamedTuple):
    """What has become of a workflow; `watched` when its end will be notified. Output is the id of that node."""

    id: UUID
    status: str
    result: str | None
    error: str | None
    output: str | None
    watched: bool


class Settled(NamedTuple):
    """What came of outcomes: which were written, which of the failed are tried again, and when the next timer ends."""

    completed: set[str]
    failed: dict[str, bool]
    timer: float | None


async def start(connection: Connection, plan: Plan) -> None:
    """Store a workflow, unless its id is taken."""
    values = {"id": plan.flows[0].id, "flows": as_json(plan.flows), "nodes": as_json(plan.nodes)}
    await connection.execute(SQL["start"], values)


async def watch(connection: Connection, ids: Sequence[UUID]) -> list[FlowSeen]:
    """Look, and ask that the end of what is not over be notified."""
    cursor = await connection.execute(SQL["watch"], {"ids": list(ids)})
    return [FlowSeen._make(row) for row in await cursor.fetchall()]


async def look(connection: Connection, workflow_id: UUID) -> FlowSeen | None:
    row = await (await connection.execute(SQL["look"], {"id": workflow_id})).fetchone()
    return None if row is None else FlowSeen._make(row)


async def living(connection: Connection, ids: Iterable[UUID]) -> set[UUID]:
    """Which of these workflows have not ended."""
    cursor = await connection.execute(SQL["living"], {"ids": list(ids)})
    return {UUID(str(row[0])) for row in await cursor.fetchall()}


async def results(connection: Connection, workflow_id: UUID) -> list[tuple[Any, ...]]:
    """For each node its id, status and stored result, and whether none waits for it."""
    return await (await connection.execute(SQL["results"], {"id": workflow_id})).fetchall()


async def result_for(connection: Connection, workflow_id: UUID, node_id: str) -> tuple[Any, ...] | None:
    values = {"id": workflow_id, "node_id": node_id}
    return await (await connection.execute(SQL["result_for"], values)).fetchone()


async def nodes(connection: Connection, workflow_id: UUID) -> list[tuple[Any, ...]]:
    """Every node with its state and times; what a task does shows in them."""
    return await (await connection.execute(SQL["nodes"], {"id": workflow_id})).fetchall()


async def listing(connection: Connection, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Workflows, newest first, each with how far it is."""
    return await (await connection.execute(SQL["list"], values)).fetchall()


async def shown(connection: Connection, workflow_id: UUID) -> tuple[Any, ...] | None:
    return await (await connection.execute(SQL["show"], {"id": workflow_id})).fetchone()


async def feed(connection: Connection, claimed: list[Claimed]) -> list[Claimed]:
    """Give tasks of workflows what comes to them from other nodes, if they take anything."""
    members = [task for task in claimed if task.workflow_id is not None]
    hungry = [task.node for task in members if task.node is not None and _is_fed(task)]
    if not hungry:
        return claimed
    rows = await (await connection.execute(SQL["feed"], {"nodes": _refs(hungry)})).fetchall()
    inputs = {(row[0], row[1]): row[2] for row in rows}
    return [
        task._replace(inputs=inputs[task.node]) if task.node is not None and task.node in inputs else task
        for task in claimed
    ]


class _Options(msgspec.Struct):
    fed: bool = False


def _is_fed(task: Claimed) -> bool:
    return task.task_options is not None and msgspec.json.decode(task.task_options, type=_Options).fed


async def settle(
    connection: Connection, completed: Sequence[Completed], failures: Sequence[Failure]
) -> Settled:
    """End tasks, of workflows and others, and move their workflows on; in the caller's transaction."""
    flow_ids = {each.node[0] for each in (*completed, *failures) if each.node is not None}
    await connection.execute(SQL["lock"], {"ids": list(flow_ids)})
    ended = await _complete(connection, completed) if completed else set[str]()
    # What did not count as returned, and is still ours, was asked to stop.
    failures = [*failures, *(tasks.stopped(each) for each in completed if each.id not in ended)]
    again = await _fail(connection, failures) if failures else {}
    events: list[Event] = [
        Ended(*outcome.node, COMPLETED)
        for outcome in completed
        if outcome.node is not None and outcome.id in ended
    ]
    events += [
        Ended(*failure.node, FAILED)
        for failure in failures
        if failure.node is not None and again.get(failure.id) is False
    ]
    return Settled(ended, again, await move(connection, events))


async def _complete(connection: Connection, completed: Sequence[Completed]) -> set[str]:
    cursor = await connection.execute(SQL["complete"], {"completed": outcomes(completed)})
    return {row[0] for row in await cursor.fetchall()}


async def _fail(connection: Connection, failures: Sequence[Failure]) -> dict[str, bool]:
    """What was to be tried again is not, if its workflow is over."""
    waiting = {each.node[0] for each in failures if each.node is not None and each.delay_seconds is not None}
    if waiting:
        cursor = await connection.execute(SQL["stopped"], {"ids": list(waiting)})
        stopped = {row[0] for row in await cursor.fetchall()}
        failures = [
            msgspec.structs.replace(each, delay_seconds=None)
            if each.node and each.node[0] in stopped
            else each
            for each in failures
        ]
    return await tasks.fail(connection, failures)


class Loaded(NamedTuple):
    """What a step goes by."""

    flows: dict[str, Flow]
    nodes: dict[Ref, Node]

    @classmethod
    def of(cls, flows: Iterable[tuple[Any, ...]], nodes: Iterable[tuple[Any, ...]]) -> Loaded:
        return cls(
            {row[0]: _flow(*row) for row in flows},
            {(row[0], row[1]): Node(*row) for row in nodes},
        )


def _flow(
    flow_id: str, status: str, pauses: bool, open_tasks: int, parent: str | None, index: int | None
) -> Flow:
    return Flow(flow_id, status, pauses, open_tasks, None if parent is None else (parent, index or 0))


async def move(connection: Connection, events: Iterable[Event]) -> float | None:
    """Carry out what events lead to, and what that leads to; tells in how many seconds the first new timer ends.

    The trees of these workflows must be locked.
    """
    timers: list[float] = []
    left = list(events)
    while left:
        loaded = await _load(connection, left)
        changes = advance(loaded.flows, loaded.nodes, left)
        values = {"nodes": as_json(changes.nodes), "flows": as_json(changes.flows)}
        row = await (await connection.execute(SQL["write"], values)).fetchone()
        if row is not None and row[0] is not None:
            timers.append(row[0])
        left = await follow(connection, changes)
        if changes.over:
            verdicts = await _facts(connection, changes.over)
            await connection.execute(SQL["conclude"], {"verdicts": as_json(verdicts)})
            left += parents(loaded.flows, verdicts)
    return min(timers, default=None)


async def follow(connection: Connection, changes: Changes) -> list[Event]:
    """Do what a step has led to beyond its own rows; gives back what that leads to."""
    events = list(changes.events)
    for flow_id in changes.paused:
        await hold(connection, await tree(connection, flow_id, "RUNNING", "PAUSED"))
    if changes.maps:
        events += await _expand(connection, changes.maps)
    if changes.built:
        events += await _adopt(connection, changes.built)
    for flow_id in changes.dropped:
        await stop(connection, await tree(connection, flow_id, "PENDING"), "CANCELLED", None)
    return events


async def _load(connection: Connection, events: Sequence[Event]) -> Loaded:
    ended = [
        {"workflow_id": event.workflow_id, "task_index": event.task_index, "deep": event.status != COMPLETED}
        for event in events
        if isinstance(event, Ended)
    ]
    opened = [event.workflow_id for event in events if isinstance(event, Opened)]
    nodes: list[tuple[Any, ...]] = []
    if ended:
        nodes += await (await connection.execute(SQL["load"], {"ended": as_json(ended)})).fetchall()
    if opened:
        nodes += await (await connection.execute(SQL["load_ready"], {"ids": opened})).fetchall()
    flow_ids = list({event.workflow_id for event in events})
    flows = await (await connection.execute(SQL["flows"], {"ids": flow_ids})).fetchall()
    return Loaded.of(flows, nodes)


class Concluded(msgspec.Struct, frozen=True):
    """How a workflow has ended, as it is to be written."""

    id: str
    status: str
    culprit: int | None
    error: str = CASE_NOT_MET


async def _facts(connection: Connection, flow_ids: Sequence[str]) -> list[Concluded]:
    return judged(await (await connection.execute(SQL["facts"], {"ids": list(flow_ids)})).fetchall())


def judged(facts: Iterable[tuple[Any, ...]]) -> list[Concluded]:
    """The verdicts on workflows, given the `facts` of each."""
    verdicts: list[Concluded] = []
    for flow_id, policy, completed, failed in facts:
        verdict = judge(None if policy is None else _cases(policy), set(completed or ()), set(failed))
        verdicts.append(Concluded(flow_id, "COMPLETED" if verdict.completed else "FAILED", verdict.culprit))
    return verdicts


def parents(flows: Mapping[str, Flow], verdicts: Iterable[Concluded]) -> list[Event]:
    """For workflows that are nodes of others, their end is an event there."""
    return [
        Ended(*parent, COMPLETED if verdict.status == "COMPLETED" else FAILED)
        for verdict in verdicts
        if (parent := flows[verdict.id].parent) is not None
    ]


async def tree(connection: Connection, flow_id: str | UUID, *states: str) -> list[str]:
    """A workflow and all that are parts of it, as far as they are in one of these states."""
    cursor = await connection.execute(SQL["tree"], {"id": flow_id, "states": list(states)})
    return [row[0] for row in await cursor.fetchall()]


async def hold(connection: Connection, flow_ids: Sequence[str]) -> None:
    """Pause workflows: what they sent and has not begun is put off."""
    await connection.execute(SQL["hold"], {"ids": list(flow_ids)})


async def stop(
    connection: Connection, flow_ids: Sequence[str], status: str, error: str | None
) -> list[Event]:
    """End workflows before their time; gives back what that means to those that they are parts of."""
    values = {"ids": list(flow_ids), "status": status, "error": error, "result": NOT_BEGUN}
    cursor = await connection.execute(SQL["stop"], values)
    return [Ended(row[0], row[1], FAILED) for row in await cursor.fetchall() if row[0] is not None]


async def _expand(connection: Connection, maps: Sequence[Ref]) -> list[Event]:
    """Send a task for each item; a map without items is over at once, one over something else has failed."""
    cursor = await connection.execute(SQL["expand"], {"nodes": _refs(maps)})
    events: list[Event] = []
    for flow_id, index, child, count in await cursor.fetchall():
        if count is None:
            events.append(Ended(flow_id, index, FAILED, NO_LIST))
        elif count == 0:
            events.append(Opened(child))
    return events


class _Rows(msgspec.Struct):
    flows: list[NewFlow]
    nodes: list[NewNode]


class _Built(msgspec.Struct):
    ok: _Rows


async def _adopt(connection: Connection, nodes: Sequence[Ref]) -> list[Event]:
    """Store the workflows that were built for these nodes, and let them begin."""
    cursor = await connection.execute(SQL["built"], {"nodes": _refs(nodes)})
    events: list[Event] = []
    for flow_id, index, result in await cursor.fetchall():
        try:
            rows = msgspec.json.decode(result, type=_Built).ok
        except msgspec.MsgspecError:  # made by another version, say
            events.append(Ended(flow_id, index, FAILED, NOT_BUILT))
            continue
        child = rows.flows[0].id
        await start(connection, Plan(rows.flows, rows.nodes))
        values = {"workflow_id": flow_id, "task_index": index, "child": child}
        await connection.execute(SQL["adopt"], values)
        events.append(Opened(str(child)))
    return events


def _refs(nodes: Sequence[Ref]) -> str:
    return as_json([{"workflow_id": flow_id, "task_index": index} for flow_id, index in nodes])


def _cases(policy: str) -> list[list[int]]:
    return [case["required_indices"] for case in msgspec.json.decode(policy)["cases"]]
