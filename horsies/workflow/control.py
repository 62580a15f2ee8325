"""Act on a workflow from outside: pause, resume, cancel, signal and retry it, fire its timers, and expire its tasks.

Each action is one transaction under the lock of the workflow's tree. What it leads to has happened when it returns.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from horsies import quarantine
from horsies.db.connection import Connection
from horsies.db.queries import steps, tasks, workflows
from horsies.db.queries.tasks import Expired
from horsies.db.queries.workflows import LateTask
from horsies.workflow.advance import COMPLETED, FAILED, Kind, NodeEnded, WorkflowStarted
from horsies.workflow.settle import advance_workflows, stop_workflows

ACTIVE = ("PENDING", "RUNNING", "PAUSED")

SLEPT = '{"ok":null}'
NOT_SIGNALLED = (
    '{"err":{"error_code":{"__builtin_task_code__":"TASK_TIMEOUT"},'
    '"message":"the signal was not given in time","data":null,"exception":null}}'
)
TOO_LATE = (
    '{"error_code":{"__builtin_task_code__":"WORKFLOW_EXPIRED"},'
    '"message":"the workflow did not end before its deadline","data":null,"exception":null}'
)


async def pause(connection: Connection, flow_id: UUID) -> bool | None:
    """Pause a workflow and its sub-workflows; return False if it was not running, None if there is none."""
    async with connection.transaction():
        if not await workflows.lock(connection, [flow_id]):
            return None
        running = await workflows.tree(connection, flow_id, "RUNNING")
        if str(flow_id) not in running:
            return False
        await workflows.pause(connection, running)
        return True


async def resume(connection: Connection, flow_id: UUID) -> bool | None:
    """Resume a workflow and its sub-workflows; return False if it was not paused, None if there is none."""
    async with connection.transaction():
        if not await workflows.lock(connection, [flow_id]):
            return None
        paused = await workflows.tree(connection, flow_id, "PAUSED")
        if str(flow_id) not in paused:
            return False
        await workflows.resume_tasks(connection, paused)
        await advance_workflows(connection, [WorkflowStarted(each) for each in paused])
        await workflows.wake(connection, flow_id)
        return True


async def cancel(connection: Connection, flow_id: UUID) -> bool | None:
    """Cancel a workflow and its sub-workflows; return False if it had ended, None if there is none."""
    async with connection.transaction():
        if not await workflows.lock(connection, [flow_id]):
            return None
        active = await workflows.tree(connection, flow_id, *ACTIVE)
        if str(flow_id) not in active:
            return False
        await stop_workflows(connection, active, "CANCELLED", None)
        await workflows.wake(connection, flow_id)
        return True


async def signal(connection: Connection, flow_id: UUID, name: str, result: str) -> bool | None:
    """Give a signal its value; return False if no node took it, None if there is no such workflow."""
    async with connection.transaction():
        if not await workflows.lock(connection, [flow_id]):
            return None
        taken = await workflows.signal(connection, flow_id, name, result)
        waiting = [node for node in taken if node.status == "RUNNING"]
        events = [NodeEnded(node.workflow_id, node.task_index, COMPLETED) for node in waiting]
        await advance_workflows(connection, events)
        await workflows.wake(connection, flow_id)
        return bool(taken)


async def retry_failed(connection: Connection, flow_id: UUID) -> bool | None:
    """Run again what failed or was skipped; return False if there was nothing, None if there is no such workflow."""
    async with connection.transaction():
        if not await workflows.lock(connection, [flow_id]):
            return None
        flow = await workflows.shown(connection, flow_id)
        if flow is None or flow.parent_workflow_id is not None or flow.status not in ("FAILED", "PAUSED"):
            return False
        ended = await workflows.tree(connection, flow_id, "FAILED", "CANCELLED", "EXPIRED")
        flow_ids = list(dict.fromkeys([str(flow_id), *ended]))
        await workflows.reset(connection, flow_id, flow_ids)
        await workflows.resume_tasks(connection, flow_ids)
        await advance_workflows(connection, [WorkflowStarted(str(flow_id))])
        await workflows.wake(connection, flow_id)
        return True


async def fire_timers(connection: Connection) -> float | None:
    """End sleeps, signals and workflows whose time is up, and let parked tasks go on.

    Return the seconds until the next timer is due, None without one.
    """
    await tasks.follow(connection)
    seconds = await workflows.next_timer(connection)
    if seconds is None or seconds > 0:
        return seconds
    await steps.wake_due(connection)
    if due := await workflows.due_timers(connection):
        await _isolate(connection, [timer.workflow_id for timer in due], _end_due_nodes)
    if late := await workflows.overdue(connection):
        await _isolate(connection, late, _end_overdue)
    return await workflows.next_timer(connection)


async def _isolate(
    connection: Connection,
    flow_ids: Sequence[str],
    act: Callable[[Connection, Sequence[str]], Awaitable[None]],
) -> None:
    """Act on workflows in one transaction, or, if a row makes that fail, on each alone; park those that fail again."""

    async def transact(some: Sequence[str]) -> None:
        async with connection.transaction():
            await workflows.lock(connection, some)
            await act(connection, some)

    async def park(flow_id: str, reason: str) -> None:
        await quarantine.fail_workflow(connection, flow_id, reason)

    await quarantine.isolate(list(dict.fromkeys(flow_ids)), transact, park)


async def _end_due_nodes(connection: Connection, flow_ids: Sequence[str]) -> None:
    """End the sleeps and signals of these workflows whose time is up."""
    due = await workflows.due_timers(connection, flow_ids)
    events: list[NodeEnded] = []
    for timer in due:
        end = (COMPLETED, SLEPT) if timer.kind == Kind.SLEEP else (FAILED, NOT_SIGNALLED)
        events.append(NodeEnded(timer.workflow_id, timer.task_index, *end))
    await advance_workflows(connection, events)
    # A node that had ended before, or whose workflow had, would otherwise be due for ever.
    await workflows.clear_timers(connection, due)


async def _end_overdue(connection: Connection, flow_ids: Sequence[str]) -> None:
    """End those of these workflows whose deadline has passed."""
    for flow_id in await workflows.overdue(connection, flow_ids):
        active = await workflows.tree(connection, flow_id, *ACTIVE)
        await stop_workflows(connection, active, "EXPIRED", TOO_LATE)
    await workflows.clear_deadlines(connection, flow_ids)


async def expire(connection: Connection, worker_id: UUID, result: str) -> list[Expired]:
    """Expire tasks of workflows that were not started in time."""
    late = await workflows.late_tasks(connection, worker_id)
    if not late:
        return []

    async def expire_some(some: Sequence[LateTask]) -> list[Expired]:
        async with connection.transaction():
            await workflows.lock(connection, [task.workflow_id for task in some])
            ids = [task.id for task in some]
            expired, nodes = await workflows.expire(connection, worker_id, result, ids)
            await advance_workflows(connection, [NodeEnded(*node, FAILED) for node in nodes])
        return expired

    async def park(task: LateTask, reason: str) -> list[Expired]:
        node = (task.workflow_id, task.workflow_index)
        await quarantine.fail_task(connection, task.id, task.claim_seq, worker_id, reason, node)
        return []

    return [task for some in await quarantine.isolate(late, expire_some, park) for task in some]
