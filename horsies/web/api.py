"""The JSON API: what the pages show, for programs, and what they do."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from horsies.storage import dashboard
from horsies.web import inputs
from horsies.web.actions import Actions, Done
from horsies.web.desk import Desk
from horsies.web.inputs import Bulk, NewArguments, OfQueue, OfSchedule
from horsies.web.reading import Reading
from horsies.web.refusals import Refusal, not_found
from horsies.web.routes import Call

_FILTERS = ("status", "queue", "name", "code", "q", "since", "before", "ended", "limit")

CALLS = (
    Call(
        "GET", "/api/overview", "overview", "Throughput, times, depths and failures over a time", ("range",)
    ),
    Call("GET", "/api/tasks", "tasks", "A page of tasks, newest first", _FILTERS),
    Call("GET", "/api/tasks/facets", "facets", "What tasks can be chosen by, with how many there are"),
    Call("GET", "/api/tasks/{task_id}", "task", "One task with its attempts, and why it is not running"),
    Call("GET", "/api/tasks/{task_id}/{part}", "payload", "Arguments or result of a task, whole, as stored"),
    Call("GET", "/api/queues", "queues", "How the queues stand"),
    Call("GET", "/api/workers", "workers", "The workers, and what their children run"),
    Call("GET", "/api/schedules", "schedules", "The schedules and their next slots", ("q", "after", "limit")),
    Call(
        "GET",
        "/api/workflows",
        "workflows",
        "The latest workflows",
        ("workflow_status", "name", "parts", "before", "limit"),
    ),
    Call("GET", "/api/workflows/{workflow_id}", "workflow", "One workflow with its nodes"),
    Call("GET", "/api/health", "health", "What the doctor found"),
    Call("GET", "/api/actions", "acts", "What operators did last", ("limit",)),
    Call("POST", "/api/tasks/retry", "retry_tasks", "Send failed tasks through once more", (), Bulk),
    Call("POST", "/api/tasks/cancel", "cancel_tasks", "End tasks, or ask them to stop", (), Bulk),
    Call("POST", "/api/tasks/delete", "delete_tasks", "Delete records of finished tasks", (), Bulk),
    Call("POST", "/api/tasks/{task_id}/retry", "retry_task", "Send a failed task through once more"),
    Call("POST", "/api/tasks/{task_id}/cancel", "cancel_task", "End a task, or ask it to stop if it runs"),
    Call("POST", "/api/tasks/{task_id}/delete", "delete_task", "Delete the record of a finished task"),
    Call("POST", "/api/tasks/{task_id}/resend", "resend_task", "Send a task like it", (), NewArguments),
    Call("POST", "/api/queues/pause", "pause_queue", "Stop claiming from a queue, or all", (), OfQueue),
    Call("POST", "/api/queues/resume", "resume_queue", "Let workers claim again", (), OfQueue),
    Call("POST", "/api/schedules/pause", "pause_schedule", "Let its slots pass by", (), OfSchedule),
    Call("POST", "/api/schedules/resume", "resume_schedule", "Go on with its next slot", (), OfSchedule),
    Call("POST", "/api/schedules/run-now", "run_schedule", "Run it out of turn", (), OfSchedule),
    Call("POST", "/api/workflows/{workflow_id}/pause", "pause_workflow", "Start nothing more of it"),
    Call("POST", "/api/workflows/{workflow_id}/resume", "resume_workflow", "Go on with it"),
    Call("POST", "/api/workflows/{workflow_id}/cancel", "cancel_workflow", "End it with all its parts"),
    Call("POST", "/api/workflows/{workflow_id}/retry", "retry_workflow", "Run again what failed in it"),
)


class Api:
    """Answers the calls of the table, each by the method of its name."""

    def __init__(self, desk: Desk, reading: Reading) -> None:
        self._desk = desk
        self._reading = reading
        self._actions = Actions(desk)

    async def overview(self, request: Request) -> Response:
        found = await self._reading.overview(inputs.range_of(request))
        return answer(
            {
                "range": found.range.name,
                "step_seconds": found.range.step.total_seconds(),
                "points": plain(found.points),
                "queues": plain(found.queues),
                "workers": plain(found.workers),
                "busiest": plain(found.busiest),
                "suspended": found.all_suspended,
            }
        )

    async def tasks(self, request: Request) -> Response:
        query = request.query_params
        page = await self._reading.tasks(
            inputs.wanted(query), inputs.place(query), inputs.since(query), inputs.limit(query)
        )
        following = None if page.next is None else page.next._asdict()
        return answer({"tasks": plain(page.tasks), "next": following, "looked_back_to": page.looked_back_to})

    async def facets(self, _request: Request) -> Response:
        return answer((await self._reading.facets())._asdict())

    async def task(self, request: Request) -> Response:
        task_id = inputs.task_id_of(request)
        found = await self._reading.task(task_id)
        if found is None:
            raise not_found(f"task {task_id}")
        return answer(
            {
                **found.task._asdict(),
                **found.detail._asdict(),
                "attempts": plain(found.attempts),
                "reasons": found.reasons,
                "progress": None if found.progress is None else found.progress._asdict(),
                "logs": plain(found.logs),
            }
        )

    async def payload(self, request: Request) -> Response:
        task_id, part = inputs.task_id_of(request), request.path_params["part"]
        if part not in ("args", "kwargs", "result"):
            raise not_found(f"{part[:50]!r} of a task")
        text = await self._desk.look(lambda connection: dashboard.payload(connection, task_id, part))
        if text is None:
            raise not_found(f"{part} of task {task_id}")
        name = f'attachment; filename="{task_id}-{part}.json"'
        return PlainTextResponse(text, headers={"content-disposition": name})

    async def queues(self, _request: Request) -> Response:
        found, days = await self._reading.queues(), await self._reading.days()
        ended = {name: day._asdict() for name, day in days.items()}
        return answer(
            {"suspended": found.all_suspended, "queues": plain(found.queues), "ended_in_a_day": ended}
        )

    async def workers(self, _request: Request) -> Response:
        workers, children = await self._reading.workers(), await self._reading.children()
        return answer({"workers": plain(workers), "children": plain(children)})

    async def schedules(self, request: Request) -> Response:
        q, after, limit = inputs.schedules_wanted(request.query_params)
        found = await self._reading.schedules(q, after, limit)
        following = {"after": found[-1].name} if len(found) == limit else None
        return answer({"schedules": plain(found), "next": following})

    async def workflows(self, request: Request) -> Response:
        query = request.query_params
        values, before, limit = (
            inputs.workflows_wanted(query),
            inputs.place(query).before,
            inputs.limit(query),
        )
        found = await self._reading.workflows(values, before, limit)
        return answer({"workflows": plain(found)})

    async def workflow(self, request: Request) -> Response:
        workflow_id = inputs.task_id_of(request, "workflow_id")
        found = await self._reading.workflow(workflow_id)
        if found is None:
            raise not_found(f"workflow {workflow_id}")
        return answer({**found[0]._asdict(), "nodes": plain(found[1])})

    async def health(self, _request: Request) -> Response:
        found = await self._reading.health() or {}
        return answer({"checks": list(found), "findings": [each for each in found.values() if each]})

    async def acts(self, request: Request) -> Response:
        return answer({"actions": plain(await self._reading.acts(inputs.limit(request.query_params)))})

    async def retry_tasks(self, request: Request) -> Response:
        return _done(await self._actions.retry(viewer(request), await inputs.body(request, Bulk)))

    async def cancel_tasks(self, request: Request) -> Response:
        return _done(await self._actions.cancel(viewer(request), await inputs.body(request, Bulk)))

    async def delete_tasks(self, request: Request) -> Response:
        return _done(await self._actions.delete(viewer(request), await inputs.body(request, Bulk)))

    async def retry_task(self, request: Request) -> Response:
        task_id = inputs.task_id_of(request)
        done = await self._actions.retry(viewer(request), Bulk(ids=[task_id]))
        await self._refuse_if_nothing(
            done, task_id, "The task is not FAILED any more, or belongs to a workflow."
        )
        return _done(done)

    async def cancel_task(self, request: Request) -> Response:
        task_id = inputs.task_id_of(request)
        done = await self._actions.cancel(viewer(request), Bulk(ids=[task_id]))
        await self._refuse_if_nothing(done, task_id, "The task has ended.")
        return _done(done)

    async def delete_task(self, request: Request) -> Response:
        task_id = inputs.task_id_of(request)
        done = await self._actions.delete(viewer(request), Bulk(ids=[task_id]))
        await self._refuse_if_nothing(done, task_id, "The task has not ended, or belongs to a workflow.")
        return _done(done)

    async def _refuse_if_nothing(self, done: Done, task_id: UUID, problem: str) -> None:
        if done.done:
            return
        if await self._desk.look(lambda connection: dashboard.task(connection, task_id)) is None:
            raise not_found(f"task {task_id}")
        raise Refusal(409, problem, "Load the page again to see how it stands.")

    async def resend_task(self, request: Request) -> Response:
        given = await inputs.body(request, NewArguments)
        new_id = await self._actions.resend(viewer(request), inputs.task_id_of(request), given.kwargs)
        return answer({"task_id": new_id})

    async def pause_queue(self, request: Request) -> Response:
        await self._actions.pause_queue(viewer(request), (await inputs.body(request, OfQueue)).queue)
        return answer({})

    async def resume_queue(self, request: Request) -> Response:
        await self._actions.resume_queue(viewer(request), (await inputs.body(request, OfQueue)).queue)
        return answer({})

    async def pause_schedule(self, request: Request) -> Response:
        return await self._schedule(request, "pause")

    async def resume_schedule(self, request: Request) -> Response:
        return await self._schedule(request, "resume")

    async def run_schedule(self, request: Request) -> Response:
        return await self._schedule(request, "run-now")

    async def _schedule(self, request: Request, act: str) -> Response:
        name = (await inputs.body(request, OfSchedule)).name
        return answer({"started": await self._actions.schedule(viewer(request), act, name)})

    async def pause_workflow(self, request: Request) -> Response:
        return await self._steer(request, "pause")

    async def resume_workflow(self, request: Request) -> Response:
        return await self._steer(request, "resume")

    async def cancel_workflow(self, request: Request) -> Response:
        return await self._steer(request, "cancel")

    async def retry_workflow(self, request: Request) -> Response:
        return await self._steer(request, "retry")

    async def _steer(self, request: Request, act: str) -> Response:
        await self._actions.steer(viewer(request), act, inputs.task_id_of(request, "workflow_id"))
        return answer({})


def viewer(request: Request) -> str:
    """Who asks, as the guard has found out."""
    return str(request.scope["horsies.viewer"])


def answer(document: dict[str, Any], status: int = 200) -> Response:
    body = msgspec.json.encode({**document, "at": datetime.now(UTC)})
    return Response(body, status, media_type="application/json")


def plain(records: Sequence[Any]) -> list[dict[str, Any]]:
    return [record._asdict() for record in records]


def _done(done: Done) -> Response:
    return answer(done._asdict())
