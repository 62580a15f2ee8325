"""The JSON API of the dashboard: the table of calls, its OpenAPI document, and the handlers of the GET calls.

The handlers of the POST calls are in `actions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from horsies.db.queries.inspect import SORTS
from horsies.db.queries.statistics import Scope
from horsies.status import TaskStatus, WorkflowStatus
from horsies.web.actions import Edited, GivenSignal, NewArguments, NewTask, OfKey, OfQueue, OfSchedule
from horsies.web.charts import RANGES
from horsies.web.history import History
from horsies.web.queries import DashboardQueries
from horsies.web.requests import (
    DEFAULT_LIMIT,
    MAX_LIMIT,
    as_dicts,
    fields_of,
    json_response,
    not_found,
    parse_by,
    parse_id,
    parse_limit,
    parse_range,
    parse_schedule_page,
)
from horsies.web.schedules import SavedSchedule
from horsies.web.selection import Bulk, Restored


class Call(NamedTuple):
    """A call of the API. `name` is the handler: a method of `Api` for GET, of `Actions` for POST."""

    method: str
    path: str
    name: str
    summary: str
    query: tuple[str, ...] = ()
    body: type[msgspec.Struct] | None = None


_TEXT: dict[str, Any] = {"type": "string"}
_TIME: dict[str, Any] = {"type": "string", "format": "date-time"}
PARAMETERS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "range": ("Time range, up to now", {"type": "string", "enum": list(RANGES), "default": "5m"}),
    "by": ("Break the counts down by this", {"type": "string", "enum": ["queue", "task"]}),
    "status": ("Only tasks in this state", {"type": "string", "enum": [*TaskStatus]}),
    "workflow_status": ("Only workflows in this state", {"type": "string", "enum": [*WorkflowStatus]}),
    "queue": ("Only tasks of this queue", _TEXT),
    "name": ("Only this name", _TEXT),
    "code": ("Only tasks with this error code", _TEXT),
    "q": ("Search in names, arguments and error codes", _TEXT),
    "key": ("Only tasks with this key", _TEXT),
    "kind": ("Only failures with this kind of message: the digest of a group of failures", _TEXT),
    "since": ("Only tasks of the last 15m, 12h or 7d, for example", _TEXT),
    "from": ("Only tasks that ended at this time or later", _TIME),
    "until": ("Only tasks that ended before this time", _TIME),
    "sort": (
        "Sort the 20,000 newest tasks by this; with a minus before it, the highest value first",
        {"type": "string", "enum": [sort for key in SORTS for sort in (key, f"-{key}")]},
    ),
    "page": ("The number of the page of a sorted list", {"type": "integer", "minimum": 1, "default": 1}),
    "before": ("Start of the page: next.before of the previous page", _TEXT),
    "after": ("Start of the page: next.after of the previous page", _TEXT),
    "ended": ("Start of the page in a list of failed tasks: next.ended of the previous page", _TEXT),
    "limit": (
        "Number of rows",
        {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
    ),
    "parts": ("1: include sub-workflows", _TEXT),
    "task_id": ("The id of a task", {"type": "string", "format": "uuid"}),
    "name:path": ("The name of a queue or a task", _TEXT),
    "worker_id": ("The id of a worker", {"type": "string", "format": "uuid"}),
    "workflow_id": ("The id of a workflow", {"type": "string", "format": "uuid"}),
    "part": ("Which payload", {"type": "string", "enum": ["args", "kwargs", "result"]}),
}


def openapi(version: str, base: str) -> dict[str, Any]:
    """Return the table as an OpenAPI document."""
    paths: dict[str, dict[str, Any]] = {}
    for call in CALLS:
        paths.setdefault(call.path.replace(":path}", "}"), {})[call.method.lower()] = _operation(call)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "horsies",
            "version": version,
            "description": "The data and the actions of the dashboard.",
        },
        "servers": [{"url": base or "/"}],
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}, {}],
    }


def _operation(call: Call) -> dict[str, Any]:
    in_path = [part[1:-1] for part in call.path.split("/") if part.startswith("{")]
    parameters = [_parameter(name, "path") for name in in_path]
    parameters += [_parameter(name, "query") for name in call.query]
    responses = {
        "200": {"description": "Success"},
        "default": {"description": "An error, with error.message and error.help"},
    }
    operation: dict[str, Any] = {"summary": call.summary, "operationId": call.name, "responses": responses}
    if call.method == "POST":
        responses["409"] = {"description": "The current state does not allow this action"}
        header = {"name": "X-Horsies-Intent", "in": "header", "required": True, "schema": {"const": "action"}}
        parameters.append(header)
    if call.body is not None:
        schema = msgspec.json.schema(call.body)
        operation["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    return {**operation, "parameters": parameters}


def _parameter(name: str, place: str) -> dict[str, Any]:
    about, schema = PARAMETERS[name]
    shown = {"workflow_status": "status", "name:path": "name"}.get(name, name)
    return {"name": shown, "in": place, "required": place == "path", "description": about, "schema": schema}


_TASK_FILTER = ("status", "queue", "name", "code", "q", "key", "kind", "since", "from", "until")
_TASK_PAGE = (*_TASK_FILTER, "sort", "page", "before", "ended", "limit")
_SCHEDULE_PAGE = ("q", "after", "limit")
_WORKFLOW_PAGE = ("workflow_status", "name", "parts", "before", "limit")

CALLS = (
    Call(
        "GET",
        "/api/overview",
        "overview",
        "Throughput, run times, queue depths and failures",
        ("range", "by"),
    ),
    Call("GET", "/api/tasks", "tasks", "A page of tasks, newest first", _TASK_PAGE),
    Call("GET", "/api/tasks/facets", "facets", "The values to filter tasks by, with their counts"),
    Call(
        "GET",
        "/api/tasks/count",
        "count",
        "How many tasks match, and what can be done with them",
        _TASK_FILTER,
    ),
    Call("GET", "/api/tasks/{task_id}", "task", "One task with its attempts, and why it is not running"),
    Call("GET", "/api/tasks/{task_id}/{part}", "payload", "The full arguments or result of a task"),
    Call("GET", "/api/queues", "queues", "The queues with their depths, limits and workers"),
    Call("GET", "/api/keys", "keys", "The keys that wait longest, or one key", ("key", "limit")),
    Call("GET", "/api/queues/{name:path}", "queue", "The counts and times of one queue", ("range", "by")),
    Call("GET", "/api/names/{name:path}", "task_name", "The counts and times of one task", ("range", "by")),
    Call("GET", "/api/failures", "failures", "Groups of failures", ("range", "queue", "name", "code")),
    Call("GET", "/api/workers", "workers", "The workers, and the tasks that their children run"),
    Call("GET", "/api/workers/{worker_id}", "worker", "The states of a worker and the times of its tasks"),
    Call("GET", "/api/schedules", "schedules", "A page of schedules with their next runs", _SCHEDULE_PAGE),
    Call("GET", "/api/workflows", "workflows", "A page of workflows, newest first", _WORKFLOW_PAGE),
    Call("GET", "/api/workflows/{workflow_id}", "workflow", "One workflow with its nodes"),
    Call(
        "GET",
        "/api/signals",
        "signals",
        "The signals that workflows and tasks wait for",
    ),
    Call("GET", "/api/health", "health", "The findings of horsies doctor"),
    Call("GET", "/api/actions", "acts", "The latest actions of operators", ("limit",)),
    Call(
        "GET",
        "/api/definitions",
        "definitions",
        "The tasks that the dashboard can send, with their parameters",
    ),
    Call("POST", "/api/tasks/send", "send_task", "Send a new task", (), NewTask),
    Call("POST", "/api/tasks/retry", "retry_tasks", "Retry failed tasks", (), Bulk),
    Call("POST", "/api/tasks/cancel", "cancel_tasks", "Cancel tasks; ask running ones to stop", (), Bulk),
    Call("POST", "/api/tasks/delete", "delete_tasks", "Delete the records of finished tasks", (), Bulk),
    Call(
        "POST",
        "/api/tasks/restore",
        "restore_tasks",
        "Send again what was cancelled while it waited",
        (),
        Restored,
    ),
    Call("POST", "/api/tasks/{task_id}/retry", "retry_task", "Retry a failed task"),
    Call("POST", "/api/tasks/{task_id}/cancel", "cancel_task", "Cancel a task; ask a running one to stop"),
    Call("POST", "/api/tasks/{task_id}/delete", "delete_task", "Delete the record of a finished task"),
    Call("POST", "/api/tasks/{task_id}/edit", "edit_task", "Edit a task that waits", (), Edited),
    Call("POST", "/api/tasks/{task_id}/resend", "resend_task", "Send it again, edited", (), NewArguments),
    Call(
        "POST", "/api/tasks/{task_id}/signal", "signal_task", "Give a durable task a signal", (), GivenSignal
    ),
    Call("POST", "/api/queues/pause", "pause_queue", "Pause one queue, or all", (), OfQueue),
    Call("POST", "/api/queues/resume", "resume_queue", "Resume one queue, or all", (), OfQueue),
    Call("POST", "/api/keys/pause", "pause_key", "Start no more tasks of a key", (), OfKey),
    Call("POST", "/api/keys/resume", "resume_key", "Start tasks of a paused key again", (), OfKey),
    Call("POST", "/api/schedules/create", "create_schedule", "Create a schedule", (), SavedSchedule),
    Call("POST", "/api/schedules/update", "update_schedule", "Change a schedule", (), SavedSchedule),
    Call("POST", "/api/schedules/delete", "delete_schedule", "Delete a schedule", (), OfSchedule),
    Call("POST", "/api/schedules/pause", "pause_schedule", "Skip the runs of a schedule", (), OfSchedule),
    Call("POST", "/api/schedules/resume", "resume_schedule", "Resume a paused schedule", (), OfSchedule),
    Call("POST", "/api/schedules/run-now", "run_schedule", "Run a schedule once, now", (), OfSchedule),
    Call("POST", "/api/workflows/{workflow_id}/pause", "pause_workflow", "Start no further nodes of it"),
    Call("POST", "/api/workflows/{workflow_id}/resume", "resume_workflow", "Resume a paused workflow"),
    Call("POST", "/api/workflows/{workflow_id}/cancel", "cancel_workflow", "Cancel a workflow and its parts"),
    Call("POST", "/api/workflows/{workflow_id}/retry", "retry_workflow", "Run its failed nodes again"),
    Call(
        "POST", "/api/workflows/{workflow_id}/signal", "signal_workflow", "Answer a signal", (), GivenSignal
    ),
)


# The fields of a task and of an attempt.
TASK_FIELDS = (
    "task_id", "task_name", "status", "queue_name", "priority", "attempts", "max_retries", "sent_at", "enqueued_at",
    "started_at", "terminal_at", "error_code", "arguments", "workflow_id",
)  # fmt: skip
TASK_DETAIL_FIELDS = (
    *TASK_FIELDS, "retry_count", "next_retry_at", "claimed_at", "good_until", "timeout_ms", "tags", "is_async",
    "crash_count", "unique_key", "failed_reason", "worker_id", "worker_hostname", "worker_pid", "worker_process_name",
    "claim_seq", "cancel_asked_at", "args", "args_length", "kwargs", "kwargs_length", "result", "result_length",
)  # fmt: skip
ATTEMPT_FIELDS = (
    "attempt", "outcome", "started_at", "finished_at", "error_code", "error_message", "failed_reason",
    "worker_hostname", "worker_pid", "requeued_at", "traceback",
)  # fmt: skip


def _history(drawn: History) -> dict[str, Any]:
    """Return counts over time as the API shows them."""
    names = ("p50", "p95", "p99")
    return {
        "range": drawn.range.name,
        "step_seconds": drawn.range.step.total_seconds(),
        "completed": drawn.completed,
        "failed": drawn.failed,
        "completed_before": drawn.completed_before,
        "failed_before": drawn.failed_before,
        "waits": dict(zip(names, drawn.quantiles("waits"), strict=True)),
        "runs": dict(zip(names, drawn.quantiles("runs"), strict=True)),
        "points": as_dicts(drawn.points),
        "busiest": as_dicts(drawn.pairs),
        "parts": [{"label": label, "steps": as_dicts(parts)} for label, parts in drawn.parts.items()],
    }


class Api:
    """Handles the GET calls, each by the method that the table names."""

    def __init__(self, queries: DashboardQueries) -> None:
        self._queries = queries

    async def overview(self, request: Request) -> Response:
        found = await self._queries.overview(request.query_params)
        drawn = found.history
        return json_response(
            {
                **_history(drawn),
                "queues": as_dicts(found.queues),
                "workers": as_dicts(found.workers),
                "suspended": found.all_suspended,
            }
        )

    async def queue(self, request: Request) -> Response:
        return await self._scope(request, Scope(queue=request.path_params["name"]))

    async def task_name(self, request: Request) -> Response:
        return await self._scope(request, Scope(name=request.path_params["name"]))

    async def _scope(self, request: Request, scope: Scope) -> Response:
        which = parse_range({"range": request.query_params.get("range", "1h")})
        return json_response(
            _history(await self._queries.history(which, scope, parse_by(request.query_params)))
        )

    async def worker(self, request: Request) -> Response:
        snapshots, latencies = await self._queries.worker(parse_id(request, "worker_id"))
        if not snapshots and not latencies.tasks:
            raise not_found(f"worker {request.path_params['worker_id'][:50]}")
        return json_response({"snapshots": as_dicts(snapshots), **latencies._asdict()})

    async def failures(self, request: Request) -> Response:
        return json_response({"groups": as_dicts(await self._queries.failures(request.query_params))})

    async def tasks(self, request: Request) -> Response:
        found = await self._queries.tasks(request.query_params)
        page = found.page
        following = None if page.next is None else page.next._asdict()
        if found.order is not None and found.has_more:
            following = {"page": found.page_number + 1}
        return json_response(
            {
                "tasks": as_dicts(page.tasks, TASK_FIELDS),
                "next": following,
                "looked_back_to": page.looked_back_to,
            }
        )

    async def count(self, request: Request) -> Response:
        return json_response(await self._queries.count(request.query_params))

    async def facets(self, _request: Request) -> Response:
        return json_response(await self._queries.facets())

    async def task(self, request: Request) -> Response:
        found = await self._queries.task(parse_id(request))
        return json_response(
            {
                **fields_of(found.task, TASK_DETAIL_FIELDS),
                "attempts": as_dicts(found.attempts, ATTEMPT_FIELDS),
                "reasons": found.reasons,
                "progress": None if found.progress is None else found.progress._asdict(),
                "logs": as_dicts(found.logs),
            }
        )

    async def payload(self, request: Request) -> Response:
        task_id, part = parse_id(request), request.path_params["part"]
        if part not in ("args", "kwargs", "result"):
            raise not_found(f"{part[:50]!r} of a task")
        text = await self._queries.payload(task_id, part)
        name = f'attachment; filename="{task_id}-{part}.json"'
        return PlainTextResponse(text, headers={"content-disposition": name})

    async def queues(self, _request: Request) -> Response:
        return json_response(
            {
                "suspended": await self._queries.all_suspended(),
                "queues": as_dicts(await self._queries.queues()),
                "ended_in_a_day": await self._queries.days(),
            }
        )

    async def keys(self, request: Request) -> Response:
        return json_response({"keys": as_dicts(await self._queries.keys(request.query_params))})

    async def workers(self, _request: Request) -> Response:
        workers, children = await self._queries.workers(), await self._queries.running_tasks()
        return json_response({"workers": as_dicts(workers), "children": as_dicts(children)})

    async def schedules(self, request: Request) -> Response:
        q, after, limit = parse_schedule_page(request.query_params)
        found = await self._queries.schedules(q, after, limit)
        following = {"after": found[-1]["name"]} if len(found) == limit else None
        return json_response({"schedules": found, "next": following})

    async def workflows(self, request: Request) -> Response:
        return json_response({"workflows": as_dicts(await self._queries.workflows(request.query_params))})

    async def workflow(self, request: Request) -> Response:
        flow, nodes = await self._queries.workflow(parse_id(request, "workflow_id"))
        return json_response({**flow._asdict(), "nodes": as_dicts(nodes)})

    async def definitions(self, _request: Request) -> Response:
        return json_response({"tasks": self._queries.definitions()})

    async def signals(self, _request: Request) -> Response:
        found = await self._queries.signals()
        return json_response(
            {"signals": [{**each._asdict(), "fields": as_dicts(each.fields)} for each in found]}
        )

    async def health(self, _request: Request) -> Response:
        found = await self._queries.health() or {}
        return json_response({"checks": list(found), "findings": [each for each in found.values() if each]})

    async def acts(self, request: Request) -> Response:
        found = await self._queries.actions(parse_limit(request.query_params))
        return json_response({"actions": as_dicts(found)})
