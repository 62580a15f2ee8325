"""The table of the API: what can be asked and done, from which the routes and their description are made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from horsies.status import TaskStatus, WorkflowStatus
from horsies.web.series import RANGES

Endpoint = Callable[[Request], Awaitable[Response]]


class Call(NamedTuple):
    """One thing that the API does."""

    method: str
    path: str
    name: str  # of the method that answers
    summary: str
    query: tuple[str, ...] = ()
    body: type[msgspec.Struct] | None = None


_TEXT: dict[str, Any] = {"type": "string"}
PARAMETERS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "range": ("How far back", {"type": "string", "enum": list(RANGES), "default": "5m"}),
    "status": ("Only in this state", {"type": "string", "enum": [*TaskStatus]}),
    "workflow_status": ("Only in this state", {"type": "string", "enum": [*WorkflowStatus]}),
    "queue": ("Only of this queue", _TEXT),
    "name": ("Only of this name", _TEXT),
    "code": ("Only with this error code", _TEXT),
    "q": ("Looked for in names, arguments and error codes", _TEXT),
    "since": ("Only those of this time, such as 15m or 7d", _TEXT),
    "before": ("Where the page begins: next.before of the page before", _TEXT),
    "after": ("Where the page begins: next.after of the page before", _TEXT),
    "ended": ("The same among failed tasks: next.ended", _TEXT),
    "limit": ("How many", {"type": "integer", "minimum": 1, "maximum": 500, "default": 50}),
    "parts": ("1: sub-workflows too", _TEXT),
    "task_id": ("The id of a task", {"type": "string", "format": "uuid"}),
    "workflow_id": ("The id of a workflow", {"type": "string", "format": "uuid"}),
    "part": ("What of it", {"type": "string", "enum": ["args", "kwargs", "result"]}),
}


def description(calls: tuple[Call, ...], version: str, base: str) -> dict[str, Any]:
    """The table as an OpenAPI document."""
    paths: dict[str, dict[str, Any]] = {}
    for call in calls:
        paths.setdefault(call.path, {})[call.method.lower()] = _operation(call)
    return {
        "openapi": "3.1.0",
        "info": {"title": "horsies", "version": version, "description": "What the dashboard shows and does."},
        "servers": [{"url": base or "/"}],
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}, {}],
    }


def _operation(call: Call) -> dict[str, Any]:
    in_path = [part[1:-1] for part in call.path.split("/") if part.startswith("{")]
    parameters = [_parameter(name, "path") for name in in_path]
    parameters += [_parameter(name, "query") for name in call.query]
    answers = {
        "200": {"description": "The answer"},
        "default": {"description": "error.message and error.help"},
    }
    operation: dict[str, Any] = {"summary": call.summary, "operationId": call.name, "responses": answers}
    if call.method == "POST":
        answers["409"] = {"description": "Somebody was faster, or it cannot be done in this state"}
        header = {"name": "X-Horsies-Intent", "in": "header", "required": True, "schema": {"const": "action"}}
        parameters.append(header)
    if call.body is not None:
        schema = msgspec.json.schema(call.body)
        operation["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    return {**operation, "parameters": parameters}


def _parameter(name: str, place: str) -> dict[str, Any]:
    about, schema = PARAMETERS[name]
    shown = "status" if name == "workflow_status" else name
    return {"name": shown, "in": place, "required": place == "path", "description": about, "schema": schema}
