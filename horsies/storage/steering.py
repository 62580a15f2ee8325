"""What is done to a workflow from outside: by those who hold a handle, and by the clock.

Each is one transaction under the lock of the tree, like a step, and takes part in it: what a signal or a timer lets go on
has gone on when it returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from horsies.storage.database import Connection
from horsies.storage.tasks import Expired
from horsies.storage.workflows import SQL, hold, move, shown, stop, tree
from horsies.workflow.advance import COMPLETED, FAILED, Ended, Kind, Opened

ACTIVE = ("PENDING", "RUNNING", "PAUSED")
ENDED = ("FAILED", "CANCELLED", "EXPIRED")

SLEPT = '{"ok":null}'
NOT_SIGNALLED = (
    '{"err":{"error_code":{"__builtin_task_code__":"TASK_TIMEOUT"},'
    '"message":"the signal was not given in time","data":null,"exception":null}}'
)
TOO_LATE = (
    '{"error_code":{"__builtin_task_code__":"WORKFLOW_EXPIRED"},'
    '"message":"the workflow did not end before its deadline","data":null,"exception":null}'
)


async def lock(connection: Connection, flow_ids: Sequence[str | UUID]) -> bool:
    """Wait for our turn at these workflows' trees; tells whether there are any."""
    row = await (await connection.execute(SQL["lock"], {"ids": list(flow_ids)})).fetchone()
    return row is not None and row[0] > 0


async def pause(connection: Connection, flow_id: UUID) -> bool | None:
    """Start nothing more of a workflow and its parts; whether it was running, None if there is none."""
    async with connection.transaction():
        if not await lock(connection, [flow_id]):
            return None
        if not await _is(connection, flow_id, "RUNNING"):
            return False
        await hold(connection, await tree(connection, flow_id, "RUNNING"))
        return True


async def resume(connection: Connection, flow_id: UUID) -> bool | None:
    """Go on with a workflow and its parts; whether it was paused, None if there is none."""
    async with connection.transaction():
        if not await lock(connection, [flow_id]):
            return None
        if not await _is(connection, flow_id, "PAUSED"):
            return False
        flow_ids = await tree(connection, flow_id, "PAUSED")
        await connection.execute(SQL["let_go"], {"ids": flow_ids})
        await move(connection, [Opened(each) for each in flow_ids])
        return True


async def cancel(connection: Connection, flow_id: UUID) -> bool | None:
    """End a workflow and its parts; whether that was to be done, None if there is none."""
    async with connection.transaction():
        if not await lock(connection, [flow_id]):
            return None
        flow_ids = await tree(connection, flow_id, *ACTIVE)
        if str(flow_id) not in flow_ids:
            return False
        await move(connection, await stop(connection, flow_ids, "CANCELLED", None))
        return True


async def signal(connection: Connection, flow_id: UUID, name: str, result: str) -> bool | None:
    """Give a signal its value; whether any node took it, None if there is no such workflow."""
    async with connection.transaction():
        if not await lock(connection, [flow_id]):
            return None
        cursor = await connection.execute(SQL["signal"], {"id": flow_id, "name": name, "result": result})
        taken = await cursor.fetchall()
        await move(connection, [Ended(row[0], row[1], COMPLETED) for row in taken if row[2] == "RUNNING"])
        return bool(taken)


async def retry_failed(connection: Connection, flow_id: UUID) -> bool | None:
    """Run again what failed or was skipped; whether there was any, None if there is no such workflow."""
    async with connection.transaction():
        if not await lock(connection, [flow_id]):
            return None
        row = await shown(connection, flow_id)
        if row is None or row[9] is not None or row[2] not in ("FAILED", "PAUSED"):
            return False
        flow_ids = [str(flow_id), *await tree(connection, flow_id, *ENDED)]
        values = {"id": flow_id, "ids": list(dict.fromkeys(flow_ids))}
        await connection.execute(SQL["reset"], values)
        await connection.execute(SQL["recount"], values)
        await connection.execute(SQL["let_go"], values)
        await move(connection, [Opened(str(flow_id))])
        return True


async def fire(connection: Connection) -> float | None:
    """Carry out what is due by the clock; seconds until the next of it is."""
    seconds = await next_timer(connection)
    if seconds is None or seconds > 0:
        return seconds
    async with connection.transaction():
        due = await _due(connection, None)
        if due:
            await lock(connection, [flow_id for flow_id, _, _ in due])
            flow_ids = [flow_id for flow_id, _, _ in due]
            await move(connection, [_rings(*each) for each in await _due(connection, flow_ids)])
    async with connection.transaction():
        late = await _overdue(connection, None)
        if late:
            await lock(connection, late)
            for flow_id in await _overdue(connection, late):
                flow_ids = await tree(connection, flow_id, *ACTIVE)
                await move(connection, await stop(connection, flow_ids, "EXPIRED", TOO_LATE))
    return await next_timer(connection)


async def next_timer(connection: Connection) -> float | None:
    """Seconds until something is due by the clock; None when nothing is."""
    row = await (await connection.execute(SQL["next_timer"])).fetchone()
    return None if row is None else row[0]


async def expire(connection: Connection, worker_id: UUID, result: str) -> list[Expired]:
    """End tasks of workflows that were not started in time."""
    values = {"worker_id": worker_id, "result": result}
    async with connection.transaction():
        late = await (await connection.execute(SQL["late"], values)).fetchall()
        if not late:
            return []
        await lock(connection, [row[1] for row in late])
        cursor = await connection.execute(SQL["expire"], {**values, "ids": [row[0] for row in late]})
        ended = await cursor.fetchall()
        await move(connection, [Ended(row[5], row[1], FAILED) for row in ended])
    return [Expired(*row[2:]) for row in ended]


async def _is(connection: Connection, flow_id: UUID, status: str) -> bool:
    return str(flow_id) in await tree(connection, flow_id, status)


async def _due(connection: Connection, flow_ids: Sequence[str] | None) -> list[tuple[str, int, str]]:
    cursor = await connection.execute(SQL["due"], {"ids": flow_ids})
    return [(row[0], row[1], row[2]) for row in await cursor.fetchall()]


async def _overdue(connection: Connection, flow_ids: Sequence[str] | None) -> list[str]:
    cursor = await connection.execute(SQL["overdue"], {"ids": flow_ids})
    return [row[0] for row in await cursor.fetchall()]


def _rings(flow_id: str, index: int, kind: str) -> Ended:
    if kind == Kind.SLEEP:
        return Ended(flow_id, index, COMPLETED, SLEPT)
    return Ended(flow_id, index, FAILED, NOT_SIGNALLED)
