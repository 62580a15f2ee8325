"""What viewers may do when actions are enabled. Each act is on record with who did it; one that comes too late is a 409."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from horsies.codec.values import ArgumentError
from horsies.results import Err
from horsies.scheduler.rows import ScheduleErrorCode, ScheduleResult
from horsies.status import TASK_TERMINAL_STATES
from horsies.storage import cancelling, dashboard, operations, steering
from horsies.storage.database import Connection
from horsies.storage.ids import new_ids
from horsies.storage.monitor import Filter
from horsies.storage.operations import Failed
from horsies.storage.sights import Wanted
from horsies.web.desk import Desk
from horsies.web.inputs import Bulk, Names
from horsies.web.refusals import Refusal, not_found

MOST_IDS = 1_000


class Done(NamedTuple):
    """How many things an act was about, and of how many it was to be."""

    done: int
    found: int


class Actions:
    """Acts in a viewer's name."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def retry(self, viewer: str, bulk: Bulk) -> Done:
        """Send failed tasks through once more."""
        which = _failed(bulk)

        async def work(connection: Connection) -> Done:
            found = await operations.count_failed(connection, which)
            if bulk.dry_run:
                return Done(0, found)
            done = await _in_batches(lambda: operations.requeue(connection, which))
            await _note(connection, viewer, "requeue", str(which), done)
            return Done(done, found)

        return await self._desk.act(work)

    async def cancel(self, viewer: str, bulk: Bulk) -> Done:
        """End tasks that wait, and ask those that run to stop."""
        names = _chosen(bulk)
        if names.status in TASK_TERMINAL_STATES:
            raise Refusal(400, f"Tasks that are {names.status} cannot be cancelled: they have ended.")
        wanted = Wanted(names.status, names.queue, names.name)

        async def work(connection: Connection) -> Done:
            found = await dashboard.count_live(connection, bulk.ids, wanted)
            if bulk.dry_run:
                return Done(0, found)
            if bulk.ids is not None:
                told = await cancelling.cancel(connection, bulk.ids, actor=actor(viewer))
                return Done(sum(each.cancelled for each in told), found)
            which = Filter(names.status, names.queue, names.name)
            batches = cancelling.cancel_all(connection, which, actor=actor(viewer))
            return Done(sum([count async for count in batches]), found)

        return await self._desk.act(work)

    async def delete(self, viewer: str, bulk: Bulk) -> Done:
        """Delete the records of finished tasks; those of workflows go with their workflow."""
        wanted = _finished(bulk)

        async def work(connection: Connection) -> Done:
            found = await dashboard.count_finished(connection, bulk.ids, wanted)
            if bulk.dry_run:
                return Done(0, found)
            done = await _in_batches(
                lambda: dashboard.delete_finished(connection, bulk.ids, wanted, operations.BATCH)
            )
            await _note(connection, viewer, "delete", _named(bulk), done)
            return Done(done, found)

        return await self._desk.act(work)

    async def resend(self, viewer: str, task_id: UUID, kwargs: dict[str, Any]) -> str:
        """Send a new task like this one, with arguments of its own; its id."""
        encoded = msgspec.json.encode(kwargs).decode()

        async def work(connection: Connection) -> str:
            found = await dashboard.task(connection, task_id)
            if found is None:
                raise not_found(f"task {task_id}")
            self._refuse_misfits(found[0].task_name, encoded)
            async with connection.transaction():
                new_id = await dashboard.resend(connection, task_id, new_ids(1)[0], encoded)
                if new_id is None:
                    raise Refusal(409, "The task was deleted meanwhile.")
                await _note(connection, viewer, "resend", f"{task_id} as {new_id}", 1)
            return new_id

        return await self._desk.act(work)

    def _refuse_misfits(self, task_name: str, kwargs: str) -> None:
        """Where the app is known, so is what its tasks take."""
        limit = self._desk.app.config.payload.reject_bytes
        if limit is not None and len(kwargs.encode()) > limit:
            raise Refusal(400, f"The arguments take more than the limit of {limit:,} bytes.")
        task = self._desk.app.tasks.get(task_name) if self._desk.knows_tasks else None
        if task is not None:
            try:
                task.definition.signature.decode(None, kwargs)
            except ArgumentError as error:
                raise Refusal(400, f"The arguments do not fit {task_name}: {error}.") from None

    async def pause_queue(self, viewer: str, queue: str | None) -> None:
        """Nobody claims from this queue any more, or from any."""

        async def work(connection: Connection) -> bool:
            return await operations.suspend(connection, queue or operations.ALL_QUEUES, actor(viewer))

        if not await self._desk.act(work):
            raise Refusal(409, "Somebody else has paused it already.")

    async def resume_queue(self, viewer: str, queue: str | None) -> None:
        async def work(connection: Connection) -> bool:
            return await operations.resume(connection, queue or operations.ALL_QUEUES, actor(viewer))

        if not await self._desk.act(work):
            raise Refusal(409, "It is not paused any more.")

    async def steer(self, viewer: str, act: str, workflow_id: UUID) -> None:
        """Pause, resume, cancel or repair a workflow."""
        carry_out, too_late = _STEERING[act]

        async def work(connection: Connection) -> None:
            async with connection.transaction():
                outcome = await carry_out(connection, workflow_id)
                if outcome is None:
                    raise not_found(f"workflow {workflow_id}")
                if not outcome:
                    raise Refusal(409, too_late)
                await _note(connection, viewer, f"workflow {act}", str(workflow_id), 0)

        await self._desk.act(work)

    async def schedule(self, viewer: str, act: str, name: str) -> str | None:
        """Pause or resume a schedule, or run it out of turn; the id of that run."""
        there = self._desk.app.schedules
        started = None
        match act:
            case "pause":
                _answer(await there.pause_async(name))
            case "resume":
                _answer(await there.resume_async(name))
            case _:
                self._refuse_without_app()
                handle = _answer(await there.run_now_async(name))
                started = str(getattr(handle, "task_id", None) or getattr(handle, "workflow_id", None))

        async def work(connection: Connection) -> None:
            await _note(connection, viewer, f"schedule {act}", name, 0)

        await self._desk.act(work)
        return started

    def _refuse_without_app(self) -> None:
        if not self._desk.knows_tasks:
            raise Refusal(
                409,
                "The dashboard does not know the app, so it cannot run what a schedule runs.",
                "Start it with the app: horsies web LOCATOR",
            )


Steer = Callable[[Connection, UUID], Awaitable[bool | None]]
_STEERING: dict[str, tuple[Steer, str]] = {
    "pause": (steering.pause, "It is not running any more."),
    "resume": (steering.resume, "It is not paused any more."),
    "cancel": (steering.cancel, "It is over already."),
    "retry": (steering.retry_failed, "It has not failed, or is a part of another workflow."),
}


def actor(viewer: str) -> str:
    """Who acts, as it goes on record."""
    return f"web:{viewer}"


async def _note(connection: Connection, viewer: str, action: str, subject: str, tasks: int) -> None:
    await operations.note(connection, actor(viewer), action, subject, tasks)


async def _in_batches(batch: Callable[[], Awaitable[int]]) -> int:
    total = 0
    while count := await batch():
        total += count
    return total


def _chosen(bulk: Bulk) -> Names:
    if (bulk.ids is None) == (bulk.filter is None):
        raise Refusal(400, "Say which tasks: ids, or a filter.")
    if bulk.ids is not None and len(bulk.ids) > MOST_IDS:
        raise Refusal(
            400, f"These are {len(bulk.ids):,} ids, more than {MOST_IDS:,}.", "Choose them by a filter."
        )
    return bulk.filter or Names()


def _failed(bulk: Bulk) -> Failed:
    names = _chosen(bulk)
    if names.status not in (None, "FAILED"):
        raise Refusal(
            400, f"Tasks that are {names.status} cannot be sent through again: only those that failed."
        )
    return Failed(bulk.ids, names.queue, names.name, names.code)


def _finished(bulk: Bulk) -> Wanted:
    names = _chosen(bulk)
    if names.status is not None and names.status not in TASK_TERMINAL_STATES:
        raise Refusal(400, f"Tasks that are {names.status} cannot be deleted: they have not ended.")
    return Wanted(names.status, names.queue, names.name, names.code)


def _named(bulk: Bulk) -> str:
    return str(Failed(ids=bulk.ids)) if bulk.ids is not None else str(msgspec.to_builtins(bulk.filter))


def _answer(answer: ScheduleResult[Any]) -> Any:
    if not isinstance(answer, Err):
        return answer.ok_value
    error = answer.err_value
    status = {ScheduleErrorCode.NOT_FOUND: 404, ScheduleErrorCode.DB_OPERATION_FAILED: 503}
    raise Refusal(status.get(error.code, 409), error.message)
