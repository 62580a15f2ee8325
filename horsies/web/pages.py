"""The screens. Each is rendered here whole; a page that is open asks for itself again when there is news."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs
from uuid import UUID

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from horsies.status import TaskStatus, WorkflowStatus
from horsies.storage.dashboard import MOST_NODES, SHOWN
from horsies.storage.sights import Child
from horsies.web import inputs, render
from horsies.web.access import COOKIE, is_same_origin
from horsies.web.api import CALLS
from horsies.web.desk import Desk
from horsies.web.graph import HEIGHT, WIDTH, picture, timeline
from horsies.web.reading import Overview, Reading, error_of
from horsies.web.refusals import Refusal, not_found
from horsies.web.routes import PARAMETERS
from horsies.web.seats import seats
from horsies.web.series import RANGES, Line, Plot, plot

# So long the doctor may keep a page waiting.
PATIENCE = 0.1


class Pages:
    """Every screen by its path."""

    def __init__(self, desk: Desk, reading: Reading) -> None:
        self._desk = desk
        self._reading = reading
        self.paths = {
            "/": self.overview,
            "/tasks": self.tasks,
            "/tasks/{task_id}": self.task,
            "/queues": self.queues,
            "/workers": self.workers,
            "/schedules": self.schedules,
            "/workflows": self.workflows,
            "/workflows/{workflow_id}": self.workflow,
            "/health": self.health,
            "/api": self.api,
        }

    def show(self, request: Request, template: str, title: str, **context: Any) -> HTMLResponse:
        context |= {
            "title": title,
            "actions": self._desk.access.enable_actions,
            "screen": template.partition(".")[0],
        }
        return render.page(request, template, context)

    def trouble(self, request: Request, refusal: Refusal) -> HTMLResponse:
        """A page that says what is wrong; it comes back by itself when that has passed."""
        context = {"title": "Not now", "actions": False, "screen": "trouble", "refusal": refusal}
        return render.page(request, "trouble.html", context, refusal.status)

    async def overview(self, request: Request) -> Response:
        found = await self._reading.overview(inputs.range_of(request))
        context = {"overview": found, "ranges": RANGES.values(), "plots": plots(found)}
        return self.show(request, "overview.html", "Overview", **context)

    async def tasks(self, request: Request) -> Response:
        query = request.query_params
        if (found := _id_in(query.get("q", ""))) is not None:
            return RedirectResponse(f"{request.scope.get('root_path', '')}/tasks/{found}", 303)
        wanted, place = inputs.wanted(query), inputs.place(query)
        listed = await self._reading.tasks(wanted, place, inputs.since(query), inputs.limit(query))
        chosen = {**wanted._asdict(), "since": query.get("since"), "limit": query.get("limit")}
        return self.show(
            request,
            "tasks.html",
            "Tasks",
            page=listed,
            chosen=chosen,
            is_first="before" not in query,
            facets=await self._reading.facets(),
            statuses=list(TaskStatus),
        )

    async def task(self, request: Request) -> Response:
        task_id = inputs.task_id_of(request)
        found = await self._reading.task(task_id)
        if found is None:
            raise not_found(f"task {task_id}")
        message, traceback = error_of(found.detail.result)
        context = {
            "task": found.task,
            "detail": found.detail,
            "attempts": found.attempts,
            "reasons": found.reasons,
            "progress": found.progress,
            "logs": found.logs,
            "message": message,
            "traceback": traceback,
            "shown": SHOWN,
        }
        return self.show(request, "task.html", found.task.task_name, **context)

    async def queues(self, request: Request) -> Response:
        found, days = await self._reading.queues(), await self._reading.days()
        return self.show(request, "queues.html", "Queues", found=found, days=days)

    async def workers(self, request: Request) -> Response:
        workers, children = await self._reading.workers(), await self._reading.children()
        by_worker: dict[str, list[Child]] = {}
        for child in children:
            by_worker.setdefault(child.worker_id, []).append(child)
        rows = [(worker, seats(worker, by_worker.get(worker.worker_id, []))) for worker in workers]
        return self.show(request, "workers.html", "Workers", rows=rows)

    async def schedules(self, request: Request) -> Response:
        q, after, limit = inputs.schedules_wanted(request.query_params)
        found = await self._reading.schedules(q, after, limit)
        return self.show(
            request,
            "schedules.html",
            "Schedules",
            schedules=found,
            chosen={"q": q, "limit": request.query_params.get("limit")},
            is_part=bool(q or after) or len(found) == limit,
            has_more=len(found) == limit,
            knows_tasks=self._desk.knows_tasks,
        )

    async def workflows(self, request: Request) -> Response:
        query = request.query_params
        values, limit = inputs.workflows_wanted(query), inputs.limit(query)
        found = await self._reading.workflows(values, inputs.place(query).before, limit)
        chosen = {name: query.get(name) for name in ("status", "name", "parts", "limit")}
        return self.show(
            request,
            "workflows.html",
            "Workflows",
            workflows=found,
            chosen=chosen,
            statuses=list(WorkflowStatus),
            has_more=len(found) == limit,
        )

    async def workflow(self, request: Request) -> Response:
        workflow_id = inputs.task_id_of(request, "workflow_id")
        found = await self._reading.workflow(workflow_id)
        if found is None:
            raise not_found(f"workflow {workflow_id}")
        flow, nodes = found
        problem, _ = error_of(f'{{"err": {flow.error}}}' if flow.error else None)
        context = {
            "flow": flow,
            "problem": problem or flow.error,
            "nodes": nodes,
            "names": {node.task_index: node.node_id for node in nodes},
            "picture": picture(nodes),
            "bars": timeline(nodes, datetime.now(UTC)),
            "size": (WIDTH, HEIGHT),
            "is_cut": len(nodes) == MOST_NODES,
        }
        return self.show(request, "workflow.html", flow.name, **context)

    async def health(self, request: Request) -> Response:
        found = await self._reading.health(PATIENCE)
        return self.show(request, "health.html", "Health", found=found, acts=await self._reading.acts(20))

    async def api(self, request: Request) -> Response:
        return self.show(request, "api.html", "API", calls=CALLS, parameters=PARAMETERS)

    async def login(self, request: Request) -> Response:
        """Take the token once, and leave the browser with something else that shows it was known."""
        access, base = self._desk.access, request.scope.get("root_path", "")
        if access.token is None:
            return RedirectResponse(base + "/", 303)
        given = (
            parse_qs((await request.body())[:4_096].decode("utf-8", "replace"))
            if request.method == "POST"
            else {}
        )
        target = (given.get("next") or [request.query_params.get("next", "/")])[0]
        if (
            request.method == "POST"
            and is_same_origin(request.headers)
            and access.knows((given.get("token") or [""])[0])
        ):
            answer = RedirectResponse(base + _below(target), 303)
            secure = request.url.scheme == "https"
            answer.set_cookie(
                COOKIE, access.session, path=base or "/", httponly=True, samesite="strict", secure=secure
            )
            return answer
        context = {"title": "Sign in", "next": _below(target), "is_wrong": request.method == "POST"}
        return render.page(request, "login.html", context, 403 if request.method == "POST" else 200)


def _below(target: str) -> str:
    """A path of ours; anything else leads to the first page."""
    return target if target.startswith("/") and not target.startswith(("//", "/\\")) else "/"


def _id_in(text: str) -> UUID | None:
    try:
        return UUID(text.strip())
    except ValueError:
        return None


def plots(found: Overview) -> list[Plot]:
    """The four pictures of the first page."""
    points, step = found.points, found.range.step
    seconds = step.total_seconds()
    waiting = [None if point.pending is None else float(point.pending) for point in points]
    waiting[-1] = float(sum(queue.waiting for queue in found.queues))
    running = [None if point.running is None else float(point.running) for point in points]
    running[-1] = float(sum(queue.running + queue.claimed for queue in found.queues))
    return [
        plot("Throughput", "tasks/s", points, [
            Line("completed", "ok", [point.completed / seconds for point in points]),
            Line("failed", "bad", [point.failed / seconds for point in points]),
        ]),
        plot("Time to run and to wait", "s", points, [
            Line("wait, 95 %", "wait", [point.wait_p95 for point in points]),
            Line("run, 95 %", "warm", [point.run_p95 for point in points]),
            Line("run, half", "accent", [point.run_p50 for point in points]),
        ]),
        plot("Queue depth", "tasks", points, [
            Line("waiting", "wait", waiting),
            Line("running", "accent", running),
        ]),
        plot("Failures", f"in {render.span(seconds)}", points, [
            Line("failed", "bad", [float(point.failed) for point in points]),
            Line("cancelled or expired", "warm", [float(point.other) for point in points]),
        ]),
    ]  # fmt: skip
