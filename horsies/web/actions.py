"""The action handlers of the API: retry, cancel, delete and send tasks; pause and resume queues, workflows, schedules.

Each action is recorded with the name of the viewer. An action that comes too late is answered with 409.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Annotated, Any, NamedTuple, TypeVar
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from horsies import cancellation
from horsies.codec.values import ArgumentError, codec_for, decode_json, locate
from horsies.db.connection import Connection
from horsies.db.ids import new_ids
from horsies.db.queries import inspect, operations, steps
from horsies.db.queries.operations import Selection
from horsies.keys import key_text
from horsies.redaction import NothingToRestore
from horsies.result import Err
from horsies.schedule.api import ScheduleErrorCode, ScheduleResult
from horsies.schedule.model import TaskSchedule
from horsies.status import TASK_TERMINAL_STATES
from horsies.web.requests import (
    HttpError,
    http_error_of,
    json_response,
    not_found,
    parse_id,
    read_json,
)
from horsies.web.schedules import SavedSchedule, schedule_of
from horsies.web.selection import Bulk, Restored, selection
from horsies.web.state import DashboardState, Work
from horsies.workflow import control

T = TypeVar("T")
PROGRESS_TYPE = "application/x-ndjson"


class Plan(NamedTuple):
    """A bulk action: the number of tasks it would find, and its batches, which yield the number of tasks they changed."""

    find: Work[int]
    batches: Callable[[Connection], AsyncGenerator[int]]


class ProgressStream(StreamingResponse):
    """Carries out an action and streams its progress as lines of JSON.

    If the client goes away, the action ends after the batch under way, and is recorded as far as it went.
    """

    def __init__(self, state: DashboardState, planned: Plan) -> None:
        super().__init__(self._lines(), media_type=PROGRESS_TYPE, headers={"x-accel-buffering": "no"})
        self._state = state
        self._planned = planned
        self._reports: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._stopped = False

    async def _lines(self) -> AsyncGenerator[bytes]:
        self._state.spawn(self._run())
        try:
            while (report := await self._reports.get()) is not None:
                yield msgspec.json.encode(report) + b"\n"
        finally:
            self._stopped = True

    async def _run(self) -> None:
        try:
            await self._state.act(self._work)
        except Exception as error:  # noqa: BLE001  `http_error_of` logs unexpected errors
            refusal = http_error_of(error)
            self._reports.put_nowait({"error": {"message": refusal.message, "help": refusal.remedy}})
        finally:
            self._reports.put_nowait(None)

    async def _work(self, connection: Connection) -> None:
        since, done = await operations.clock(connection), 0
        found = await self._planned.find(connection)
        self._reports.put_nowait({"done": 0, "found": found})
        async with aclosing(self._planned.batches(connection)) as batches:
            async for batch in batches:
                done += batch
                self._reports.put_nowait({"done": done, "found": found})
                if self._stopped:
                    break
        until = await operations.clock(connection)
        self._reports.put_nowait({"done": done, "found": found, "from": since, "until": until})


class OfQueue(msgspec.Struct, forbid_unknown_fields=True):
    """One queue, or all of them."""

    queue: str | None


class OfKey(msgspec.Struct, forbid_unknown_fields=True):
    key: str


class OfSchedule(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class NewTask(msgspec.Struct, forbid_unknown_fields=True):
    """A task to send: its name and its keyword arguments."""

    name: str
    kwargs: dict[str, Any]


class GivenSignal(msgspec.Struct, forbid_unknown_fields=True):
    """The name of a signal and its value, any JSON."""

    name: str
    value: msgspec.Raw


class NewArguments(msgspec.Struct, forbid_unknown_fields=True):
    """The keyword arguments of a task."""

    kwargs: dict[str, Any]


class Edited(msgspec.Struct, forbid_unknown_fields=True):
    """The keyword arguments of a task that waits, and its priority, from 1, the highest, to 100."""

    kwargs: dict[str, Any]
    priority: Annotated[int, msgspec.Meta(ge=1, le=100)] | None = None


class Actions:
    """Handles the POST calls of the API, each by the method that the table of calls names."""

    def __init__(self, state: DashboardState) -> None:
        self._state = state

    # Tasks

    async def retry_tasks(self, request: Request) -> Response:
        return await self._bulk(request, self._retry)

    async def cancel_tasks(self, request: Request) -> Response:
        return await self._bulk(request, self._cancel)

    async def delete_tasks(self, request: Request) -> Response:
        return await self._bulk(request, self._delete)

    async def restore_tasks(self, request: Request) -> Response:
        """Undo a cancel: send the tasks again that it cancelled before they started."""
        body, actor = await read_json(request, Restored), _actor(request)
        named = self._selection(Bulk(body.ids, body.filter))
        # The tasks are CANCELLED now, whatever state the filter of the cancel named.
        which = named._replace(
            status="CANCELLED", code=None, ended_since=body.cancelled_from, ended_until=body.cancelled_until
        )

        async def work(connection: Connection) -> int:
            done = sum([batch async for batch in operations.restore(connection, which)])
            await operations.note(connection, actor, "undo cancel", str(named), done)
            return done

        return json_response({"done": await self._state.act(work)})

    async def retry_task(self, request: Request) -> Response:
        problem = "The task is not FAILED any more, or belongs to a workflow."
        return await self._one_task(request, self._retry, problem)

    async def cancel_task(self, request: Request) -> Response:
        return await self._one_task(request, self._cancel, "The task has ended.")

    async def delete_task(self, request: Request) -> Response:
        problem = "The task has not ended, or belongs to a workflow."
        return await self._one_task(request, self._delete, problem)

    async def _one_task(self, request: Request, plan: Callable[[str, Bulk], Plan], problem: str) -> Response:
        """Apply a bulk action to the task in the path; answer 409 with `problem` if it changed nothing."""
        task_id = parse_id(request)
        outcome = await self._carry_out(plan(_actor(request), Bulk(ids=[task_id])))
        if outcome["done"]:
            return json_response(outcome)
        if (
            await self._state.query_primary(lambda connection: inspect.task(connection, task_id, shown=0))
            is None
        ):
            raise not_found(f"task {task_id}")
        raise HttpError(409, problem, "Reload the page to see its current state.")

    async def _bulk(self, request: Request, plan: Callable[[str, Bulk], Plan]) -> Response:
        """Carry out an action on many tasks, and report its progress if the client asks for it."""
        bulk = await read_json(request, Bulk)
        planned = plan(_actor(request), bulk)
        if bulk.dry_run:
            return json_response({"done": 0, "found": await self._state.act(planned.find)})
        if request.headers.get("accept") == PROGRESS_TYPE:
            return ProgressStream(self._state, planned)
        return json_response(await self._carry_out(planned))

    async def _carry_out(self, planned: Plan) -> dict[str, Any]:
        async def work(connection: Connection) -> dict[str, Any]:
            since = await operations.clock(connection)
            found = await planned.find(connection)
            done = sum([batch async for batch in planned.batches(connection)])
            return {"done": done, "found": found, "from": since, "until": await operations.clock(connection)}

        return await self._state.act(work)

    def _selection(self, bulk: Bulk) -> Selection:
        return selection(bulk.filter, bulk.ids, in_arguments=not self._state.redactor)

    def _retry(self, actor: str, bulk: Bulk) -> Plan:
        """Enqueue failed tasks again."""
        which = self._selection(bulk)
        if which.status not in (None, "FAILED"):
            raise HttpError(400, f"Tasks that are {which.status} cannot be retried: only FAILED tasks can.")

        def retry(connection: Connection) -> AsyncGenerator[int]:
            batch = functools.partial(operations.requeue, connection, which)
            return _in_batches(connection, batch, actor, "requeue", which)

        return Plan(functools.partial(operations.count, what="failed", which=which), retry)

    def _cancel(self, actor: str, bulk: Bulk) -> Plan:
        """Cancel tasks that wait, and ask running ones to stop."""
        which, ids = self._selection(bulk), bulk.ids
        if which.status in TASK_TERMINAL_STATES:
            raise HttpError(400, f"Tasks that are {which.status} cannot be cancelled: they have ended.")

        async def cancel(connection: Connection) -> AsyncGenerator[int]:
            if ids is not None:
                outcomes = await cancellation.cancel(connection, ids, actor=actor)
                yield sum(each.cancelled for each in outcomes)
                return
            async with aclosing(cancellation.cancel_all(connection, which, actor=actor)) as batches:
                async for count in batches:
                    yield count

        return Plan(functools.partial(operations.count, what="live", which=which), cancel)

    def _delete(self, actor: str, bulk: Bulk) -> Plan:
        """Delete the records of finished tasks; a workflow's tasks are deleted only with their workflow."""
        which = self._selection(bulk)
        if which.status is not None and which.status not in TASK_TERMINAL_STATES:
            raise HttpError(400, f"Tasks that are {which.status} cannot be deleted: they have not ended.")

        def delete(connection: Connection) -> AsyncGenerator[int]:
            batch = functools.partial(operations.delete_finished, connection, which, operations.BATCH)
            return _in_batches(connection, batch, actor, "delete", which)

        return Plan(functools.partial(operations.count, what="finished", which=which), delete)

    async def resend_task(self, request: Request) -> Response:
        """Send a new task like an existing one, with edited arguments; answer with its id."""
        edited = (await read_json(request, NewArguments)).kwargs
        task_id, actor = parse_id(request), _actor(request)

        async def work(connection: Connection) -> str:
            found = await inspect.arguments(connection, task_id)
            if found is None:
                raise not_found(f"task {task_id}")
            encoded = msgspec.json.encode(self._restored(edited, found.kwargs)).decode()
            self._check_arguments(found.task_name, encoded)
            async with connection.transaction():
                new_id = await operations.resend(connection, task_id, new_ids(1)[0], encoded)
                if new_id is None:
                    raise HttpError(409, "The task was deleted meanwhile.")
                await operations.note(connection, actor, "resend", f"{task_id} as {new_id}", 1)
            return new_id

        return json_response({"task_id": await self._state.act(work)})

    async def edit_task(self, request: Request) -> Response:
        """Change the arguments and the priority of a task that waits."""
        edited = await read_json(request, Edited)
        task_id, actor = parse_id(request), _actor(request)

        async def work(connection: Connection) -> None:
            async with connection.transaction():
                found = await inspect.arguments(connection, task_id)
                if found is None:
                    raise not_found(f"task {task_id}")
                encoded = msgspec.json.encode(self._restored(edited.kwargs, found.kwargs)).decode()
                self._check_arguments(found.task_name, encoded, found.args)
                if not await operations.edit(connection, task_id, encoded, edited.priority):
                    problem = "The task does not wait any more, has stored steps, or belongs to a workflow."
                    raise HttpError(409, problem, "Reload the page to see its current state.")
                await operations.note(connection, actor, "edit", str(task_id), 1)

        await self._state.act(work)
        return json_response({"task_id": task_id})

    async def send_task(self, request: Request) -> Response:
        """Send a new task with the options of its definition; answer with its id."""
        given = await read_json(request, NewTask)
        task = self._state.app.tasks.get(given.name)
        if task is None:
            known = "knows no task of that name" if self._state.knows_tasks else "was started without the app"
            problem = f"{given.name[:100]!r} cannot be sent: the dashboard {known}."
            raise HttpError(404, problem, "Start it with the app that has the task: horsies web LOCATOR")
        encoded = msgspec.json.encode(given.kwargs).decode()
        self._check_arguments(given.name, encoded)
        sent = await task.send_async(**task.definition.signature.decode(None, encoded))
        if isinstance(sent, Err):
            raise HttpError(409, f"The task was not sent: {sent.err_value.message}")
        task_id = sent.ok_value.task_id
        await self._state.act(
            lambda connection: operations.note(
                connection, _actor(request), "send", f"{given.name} {task_id}", 1
            )
        )
        return json_response({"task_id": task_id})

    def _restored(self, kwargs: dict[str, Any], original: str | None) -> dict[str, Any]:
        """Return edited arguments with the original values wherever the form still says "[redacted]"."""
        redactor = self._state.redactor
        if not redactor:
            return kwargs
        try:
            before = msgspec.json.decode(original or "{}")
        except msgspec.DecodeError:
            before = {}
        try:
            return redactor.restore(kwargs, before)
        except NothingToRestore as error:
            problem = f"The arguments cannot be sent: {error}."
            raise HttpError(400, problem, "Write the value itself.") from None

    def _check_arguments(self, task_name: str, kwargs: str, args: str | None = None) -> None:
        """Refuse arguments that are too large, or that do not match the task's signature if the app is known."""
        limit = self._state.app.config.payload.reject_bytes
        if limit is not None and len(kwargs.encode()) > limit:
            raise HttpError(400, f"The arguments are larger than the limit of {limit:,} bytes.")
        task = self._state.app.tasks.get(task_name)
        if task is not None:
            try:
                task.definition.signature.decode(args, kwargs)
            except ArgumentError as error:
                problem = self._state.redactor.scrub(str(error), kwargs)
                raise HttpError(400, f"The arguments do not fit {task_name}: {problem}.") from None

    async def signal_task(self, request: Request) -> Response:
        """Give a durable task a signal, before or while it waits for it."""
        given, task_id, actor = await read_json(request, GivenSignal), parse_id(request), _actor(request)
        value = _signal_value(given, None)

        async def give(connection: Connection) -> None:
            async with connection.transaction():
                taken = await steps.signal(connection, task_id, given.name, value)
                if taken is None:
                    raise not_found(f"task {task_id}")
                if not taken:
                    problem = f"The task does not wait for the signal {given.name[:100]!r} any more."
                    raise HttpError(409, problem, "It has ended, or was given this signal before.")
                await operations.note(connection, actor, "signal", f"{task_id} {given.name}", 1)

        await self._state.act(give)
        return json_response({})

    # Queues

    async def pause_queue(self, request: Request) -> Response:
        return await self._queue(request, operations.suspend, "It is paused already.")

    async def resume_queue(self, request: Request) -> Response:
        return await self._queue(request, operations.resume, "It is not paused any more.")

    async def _queue(
        self, request: Request, action: Callable[[Connection, str, str], Awaitable[bool]], too_late: str
    ) -> Response:
        queue = (await read_json(request, OfQueue)).queue or operations.ALL_QUEUES
        if not await self._state.act(lambda connection: action(connection, queue, _actor(request))):
            raise HttpError(409, too_late)
        return json_response({})

    # Keys

    async def pause_key(self, request: Request) -> Response:
        return await self._key(request, operations.pause_key, "It is paused already.")

    async def resume_key(self, request: Request) -> Response:
        return await self._key(request, operations.resume_key, "It is not paused any more.")

    async def _key(
        self, request: Request, action: Callable[[Connection, str, str], Awaitable[bool]], too_late: str
    ) -> Response:
        try:
            key = key_text((await read_json(request, OfKey)).key)
        except ValueError as error:
            raise HttpError(400, f"The key {error}.") from error
        if not await self._state.act(lambda connection: action(connection, key, _actor(request))):
            raise HttpError(409, too_late)
        return json_response({})

    # Schedules

    async def pause_schedule(self, request: Request) -> Response:
        return await self._schedule(request, "pause", self._state.app.schedules.pause_async)

    async def resume_schedule(self, request: Request) -> Response:
        return await self._schedule(request, "resume", self._state.app.schedules.resume_async)

    async def create_schedule(self, request: Request) -> Response:
        return await self._save_schedule(request, is_new=True)

    async def update_schedule(self, request: Request) -> Response:
        return await self._save_schedule(request, is_new=False)

    async def delete_schedule(self, request: Request) -> Response:
        return await self._schedule(request, "delete", self._state.app.schedules.delete_async)

    async def _save_schedule(self, request: Request, *, is_new: bool) -> Response:
        """Create a schedule, or replace the one of that name. The app validates the task and its arguments."""
        self._need_tasks("cannot save a schedule")
        saved = await read_json(request, SavedSchedule)
        stored: TaskSchedule | None = None
        if not is_new:
            info = _unwrap(await self._state.app.schedules.get_async(saved.name))
            if info.schedule is None:
                raise HttpError(
                    409, f"The schedule cannot be read: {info.error}.", "Delete it, and create it anew."
                )
            stored = info.schedule
        before = None if stored is None else msgspec.json.encode(stored.kwargs).decode()
        schedule = schedule_of(saved, stored, self._restored(saved.kwargs, before))
        api = self._state.app.schedules
        _unwrap(await (api.create_async(schedule) if is_new else api.update_async(schedule)))
        action = f"schedule {'create' if is_new else 'update'}"
        await self._state.act(
            lambda connection: operations.note(connection, _actor(request), action, saved.name, 0)
        )
        return json_response({})

    def _need_tasks(self, problem: str) -> None:
        if not self._state.knows_tasks:
            raise HttpError(
                409,
                f"The dashboard was started without the app, so it {problem}.",
                "Start it with the app: horsies web LOCATOR",
            )

    async def run_schedule(self, request: Request) -> Response:
        """Run a schedule once, now; answer with the id of the task or workflow that it started."""
        self._need_tasks("cannot run a schedule")
        return await self._schedule(request, "run-now", self._state.app.schedules.run_now_async)

    async def _schedule(
        self, request: Request, action: str, call: Callable[[str], Awaitable[ScheduleResult[Any]]]
    ) -> Response:
        name = (await read_json(request, OfSchedule)).name
        handle = _unwrap(await call(name))
        await self._state.act(
            lambda connection: operations.note(connection, _actor(request), f"schedule {action}", name, 0)
        )
        return json_response(
            {"started": getattr(handle, "task_id", None) or getattr(handle, "workflow_id", None)}
        )

    # Workflows

    async def pause_workflow(self, request: Request) -> Response:
        return await self._workflow(request, "pause", control.pause, "It is not running any more.")

    async def resume_workflow(self, request: Request) -> Response:
        return await self._workflow(request, "resume", control.resume, "It is not paused any more.")

    async def cancel_workflow(self, request: Request) -> Response:
        return await self._workflow(request, "cancel", control.cancel, "It has ended already.")

    async def retry_workflow(self, request: Request) -> Response:
        too_late = "It has not failed, or is a part of another workflow."
        return await self._workflow(request, "retry", control.retry_failed, too_late)

    async def signal_workflow(self, request: Request) -> Response:
        """Give the value of a signal, which is checked against the type of the parameter that takes it."""
        given, workflow_id = await read_json(request, GivenSignal), parse_id(request, "workflow_id")
        takers = await self._state.query_primary(
            lambda connection: inspect.signal_takers(connection, workflow_id, given.name)
        )
        value = _signal_value(given, self._state.value_type(takers))

        async def give(connection: Connection, flow_id: UUID) -> bool | None:
            return await control.signal(connection, flow_id, given.name, f'{{"ok":{value}}}')

        too_late = f"No node of this workflow waits for the signal {given.name[:100]!r} any more."
        return await self._workflow(request, "signal", give, too_late)

    async def _workflow(
        self,
        request: Request,
        name: str,
        action: Callable[[Connection, UUID], Awaitable[bool | None]],
        too_late: str,
    ) -> Response:
        workflow_id = parse_id(request, "workflow_id")

        async def work(connection: Connection) -> None:
            async with connection.transaction():
                outcome = await action(connection, workflow_id)
                if outcome is None:
                    raise not_found(f"workflow {workflow_id}")
                if not outcome:
                    raise HttpError(409, too_late)
                await operations.note(connection, _actor(request), f"workflow {name}", str(workflow_id), 0)

        await self._state.act(work)
        return json_response({})


def _unwrap(result: ScheduleResult[T]) -> T:
    """Return the value of a result; raise its error as the response to send."""
    if not isinstance(result, Err):
        return result.ok_value
    error = result.err_value
    status = {
        ScheduleErrorCode.NOT_FOUND: 404,
        ScheduleErrorCode.INVALID: 400,
        ScheduleErrorCode.DB_OPERATION_FAILED: 503,
    }
    raise HttpError(status.get(error.code, 409), f"{error.message[:1].upper()}{error.message[1:]}.")


def _signal_value(given: GivenSignal, annotation: Any | None) -> str:
    """Return the value of a signal as JSON; refuse one that does not fit its type, if that is known."""
    value = bytes(given.value)
    try:
        decode_json(value)
        if annotation is not None:
            codec_for(annotation).decode(value)
    except Exception as error:  # noqa: BLE001  a type of the project may raise anything
        problem, path = locate(error)
        place = f"{path.removeprefix('.')}: " if path else ""
        raise HttpError(
            400, f"The value does not fit: {place}{problem}.", "Correct it and send it again."
        ) from None
    return value.decode()


def _actor(request: Request) -> str:
    """Return the name under which the viewer's action is recorded."""
    return f"web:{request.scope['horsies.viewer']}"


async def _in_batches(
    connection: Connection, batch: Callable[[], Awaitable[int]], actor: str, action: str, which: Selection
) -> AsyncGenerator[int]:
    """Repeat a batch until it changes nothing more, and yield the number of each. The action is recorded once."""
    done = 0
    try:
        while count := await batch():
            done += count
            yield count
    finally:
        await operations.note(connection, actor, action, str(which), done)
