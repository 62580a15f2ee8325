"""The pages of the dashboard, and the template filters that format values.

Jinja escapes every value. Only the templates contain markup.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from math import isnan
from typing import Any
from urllib.parse import parse_qs, urlencode
from uuid import UUID

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from horsies import units
from horsies.codec.results import error_of, with_plain_codes
from horsies.db.queries.doctor import TITLES, Finding
from horsies.db.queries.inspect import MOST_NODES, FullTask, Queue, RunningTask, WorkerSnapshot, WorkflowNode
from horsies.db.queries.keys import MOST_COUNTED
from horsies.db.queries.statistics import Part, Scope
from horsies.status import WorkflowStatus
from horsies.web.api import CALLS, PARAMETERS
from horsies.web.auth import COOKIE, TooManyAttempts, is_https, is_same_origin
from horsies.web.charts import RANGES, Point, Series, plot, spark
from horsies.web.graph import WIDTH, cut_middle, picture, timeline
from horsies.web.history import History, change
from horsies.web.lists import COLUMNS, NUMBERS, failed_at, key_arguments, parse_columns, pin_text, sort_links
from horsies.web.queries import SHOWN, DashboardQueries, Now, child_views
from horsies.web.requests import (
    HttpError,
    not_found,
    parse_id,
    parse_limit,
    parse_range,
    parse_schedule_page,
    parse_task_filter,
    read_body,
)
from horsies.web.state import DashboardState
from horsies.web.task_view import frames, json_tokens, timeline_of
from horsies.workflow.layout import HEIGHT, progress

# How long a page waits for the doctor; the page asks again by itself.
DOCTOR_SECONDS = 0.1
# A graph with more nodes than this has a map of the whole.
MINIMAP_FROM = 20
MAX_LOGIN_BYTES = 4_096
# Remembers the columns that a viewer has chosen for the list of tasks.
COLUMNS_COOKIE = "horsies_columns"


def prose(text: str) -> Markup:
    """Return a sentence whose commands and names stand between backticks, with these as code.

    >>> prose("run `horsies worker <app>`")
    Markup('run <code>horsies worker &lt;app&gt;</code>')
    """
    parts = text.split("`")
    if len(parts) % 2 == 0:  # an odd backtick is one of the text itself
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else escape(part)
        for number, part in enumerate(parts)
    )


def as_json(value: Any) -> str:
    """Encode a value as JSON for scripts. A value that JSON cannot hold, such as NaN, becomes null."""
    return msgspec.json.encode(value).decode()


def percent(done: float, total: float) -> float:
    """Return `done` as a percentage of `total`, from 0 to 100; 0 if it is undefined.

    >>> percent(1, 4), percent(float("inf"), float("inf"))
    (25.0, 0.0)
    """
    share = 100 * (done / total) if total else 0.0
    return 0.0 if isnan(share) else round(min(100.0, max(0.0, share)), 2)


def query(values: dict[str, Any], **changes: Any) -> str:
    """Return a query string with some values changed, leaving out values that are None or empty."""
    kept = {name: value for name, value in {**values, **changes}.items() if value not in (None, "")}
    return f"?{urlencode(kept)}" if kept else "?"


ENVIRONMENT = Environment(
    loader=PackageLoader("horsies.web"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_FILTERS: dict[str, Any] = {
    "ago": units.ago,
    "clock": units.clock,
    "counted": units.counted,
    "cut_middle": cut_middle,
    "exactly": units.exactly,
    "frames": frames,
    "json": as_json,
    "json_tokens": json_tokens,
    "plain_codes": with_plain_codes,
    "megabytes": units.megabytes,
    "moment": units.moment,
    "number": units.number,
    "per_second": units.per_second,
    "percentage": units.percentage,
    "prose": prose,
    "short": units.short,
    "span": units.span,
    "whole": units.whole,
    "failed_at": failed_at,
    "key_arguments": key_arguments,
}
ENVIRONMENT.filters.update(_FILTERS)
_HELPERS: dict[str, Any] = {
    "took": units.took,
    "percent": percent,
    "change": change,
    "spark": spark,
    "query": query,
    "version": version("horsies"),
    "now": lambda: datetime.now(UTC),
}
ENVIRONMENT.globals.update(_HELPERS)


class Pages:
    """Renders the pages. `paths` maps each path to its method."""

    def __init__(self, state: DashboardState, queries: DashboardQueries) -> None:
        self._state = state
        self._queries = queries
        self.paths = {
            "/": self.overview,
            "/tasks": self.tasks,
            "/tasks/{task_id}": self.task,
            "/queues": self.queues,
            "/keys": self.keys,
            "/queues/{name:path}": self.queue,
            "/names/{name:path}": self.task_name,
            "/keys/{name:path}": self.key,
            "/failures": self.failures,
            "/workers": self.workers,
            "/workers/{worker_id}": self.worker,
            "/schedules": self.schedules,
            "/workflows": self.workflows,
            "/workflows/{workflow_id}": self.workflow,
            "/waiting": self.waiting,
            "/health": self.health,
            "/api": self.api,
        }

    def show(
        self, request: Request, template: str, title: str, status: int = 200, **context: Any
    ) -> HTMLResponse:
        """Render a page, or only its main part if an open page asks for an update."""
        values = {
            "title": title,
            "screen": template.partition(".")[0],
            "base": request.scope.get("root_path", ""),
            "is_fragment": "x-horsies-fragment" in request.headers,
            "viewer": request.scope.get("horsies.viewer"),
            "has_session": request.scope.get("horsies.session") is not None,
            "actions": self._state.access.enable_actions,
            "can_send": self._state.access.enable_actions and self._state.knows_tasks,
            "finds_arguments": not self._state.redactor,
            "replica_lag": None if self._state.replica is None else self._state.replica.lag,
            **context,
        }
        html = ENVIRONMENT.get_template(template).render(values)
        # A lone surrogate, which JSON can express and UTF-8 cannot, is shown with its escape.
        return HTMLResponse(html.encode("utf-8", "backslashreplace"), status)

    def error(self, request: Request, error: HttpError) -> HTMLResponse:
        """Render an error page. It reloads by itself until the page can be shown."""
        return self.show(request, "error.html", "Error", error.status, error=error)

    async def overview(self, request: Request) -> Response:
        found = await self._queries.overview(request.query_params)
        base = request.scope.get("root_path", "")
        return self.show(
            request,
            "overview.html",
            "Overview",
            overview=found,
            drawn=found.history,
            ranges=RANGES.values(),
            chosen={name: request.query_params.get(name) for name in ("range", "by")},
            plots=plots(found.history, found.queues, base),
        )

    async def tasks(self, request: Request) -> Response:
        query = request.query_params
        with suppress(ValueError):
            task_id = UUID(query.get("q", "").strip())
            return RedirectResponse(f"{request.scope.get('root_path', '')}/tasks/{task_id}", 303)
        found = await self._queries.tasks(query)
        wanted = parse_task_filter(query)
        given = query.get("cols")
        columns = parse_columns(
            request.cookies.get(COLUMNS_COOKIE) if given is None else given, wanted.status
        )
        chosen = {name: query.get(name) for name in ("since", "from", "until", "sort", "cols", "limit")}
        response = self.show(
            request,
            "tasks.html",
            "Tasks",
            found=found,
            page=found.page,
            chosen={**wanted._asdict(), **chosen},
            columns=columns,
            all_columns=COLUMNS,
            numbers=NUMBERS,
            sort_links=sort_links(found.order),
            pin=pin_text(found.page.pin),
            is_first="before" not in query and found.page_number == 1,
            facets=await self._queries.facets(),
        )
        if given is not None:
            path = request.scope.get("root_path", "") or "/"
            value = given if given else ","  # no further column
            response.set_cookie(COLUMNS_COOKIE, value, max_age=31_536_000, path=path, samesite="strict")
        return response

    async def task(self, request: Request) -> Response:
        found = await self._queries.task(parse_id(request))
        waits = any(step.kind == "wait" and step.ended_at is None for step in found.steps)
        signals = await self._queries.signals() if waits else []
        message, traceback = error_of(found.task.result)
        child = await self._queries.child_of(found.task) if found.task.status == "RUNNING" else None
        return self.show(
            request,
            "task.html",
            found.task.task_name,
            **found._asdict(),
            **timeline_of(found.task, found.attempts, found.steps, datetime.now(UTC))._asdict(),
            waits=[each for each in signals if each.task_id == found.task.task_id],
            child=child,
            is_editable=found.task.status == "PENDING" and not found.task.workflow_id and not found.steps,
            message=message,
            traceback=traceback,
            shown=SHOWN,
        )

    async def keys(self, request: Request) -> Response:
        """Show the keys that wait longest, or one key with its latest tasks."""
        query = request.query_params
        chosen = query.get("key")
        return self.show(
            request,
            "keys.html",
            "Keys",
            keys=await self._queries.keys(query),
            chosen=chosen,
            page=None if chosen is None else (await self._queries.tasks(query)).page,
            most=MOST_COUNTED,
        )

    async def queues(self, request: Request) -> Response:
        now = await self._queries.now()
        return self.show(
            request,
            "queues.html",
            "Queues",
            queues=now.queues,
            all_suspended=now.all_suspended,
            days=await self._queries.days(),
            sparks=await self._queries.sparks(),
            keys=await self._queries.keys({"limit": "12"}),
            rates=await self._queries.rate_limits(),
        )

    async def queue(self, request: Request) -> Response:
        """Show one queue: its state, its counts over time, its tasks and the tasks that it was last sent."""
        name = request.path_params["name"]
        now = await self._queries.now()
        queue = next((queue for queue in now.queues if queue.name == name), None)
        return await self._scope_page(
            request,
            "queue.html",
            name,
            Scope(queue=name),
            now,
            queue=queue,
            workers=[worker for worker in now.workers if name in worker.queues and worker.state != "dead"],
            all_suspended=now.all_suspended,
        )

    async def key(self, request: Request) -> Response:
        """Show one key: what waits and runs, how long its tasks took, and the latest of them."""
        name = request.path_params["name"]
        (key,) = await self._queries.keys({"key": name})
        times = await self._queries.key_times(name)
        latest = (await self._queries.tasks({"key": name, "limit": "20"})).page.tasks
        if not (latest or times.tasks or key.running or key.waiting or key.paused_at):
            raise HttpError(404, f"No key {name[:100]!r} is known.", "None of the newest tasks has it.")
        return self.show(
            request,
            "key.html",
            name,
            name=name,
            key=key,
            latencies=times,
            latest=latest,
            filters={"key": name},
        )

    async def task_name(self, request: Request) -> Response:
        """Show all tasks of one name: their counts and times, their failures, and the latest of them."""
        name = request.path_params["name"]
        return await self._scope_page(request, "name.html", name, Scope(name=name), await self._queries.now())

    async def _scope_page(
        self, request: Request, template: str, title: str, scope: Scope, now: Now, **context: Any
    ) -> Response:
        given = request.query_params
        which = parse_range({"range": given.get("range", "1h")})
        by = ("task" if scope.name is None else "queue") if given.get("by") else None
        drawn = await self._queries.history(which, scope, by)
        filters = {key: value for key, value in scope._asdict().items() if value is not None}
        latest = await self._queries.tasks({**filters, "limit": "10"})
        failures = await self._queries.failures(
            {**filters, "range": which.name if which.name in RANGES else "24h"}
        )
        if not (drawn.completed or drawn.failed or latest.page.tasks or context.get("queue")):
            kind = "queue" if scope.name is None else "task"
            raise HttpError(
                404, f"No {kind} of the name {title[:100]!r} is known.", "It may have had no tasks for a day."
            )
        queues = [queue for queue in now.queues if scope.queue == queue.name]
        return self.show(
            request,
            template,
            title,
            name=title,
            drawn=drawn,
            ranges=RANGES.values(),
            chosen={"range": which.name, "by": given.get("by")},
            plots=plots(drawn, queues, request.scope.get("root_path", "")),
            latest=latest.page.tasks,
            failures=failures[:8],
            filters=filters,
            **context,
        )

    async def workers(self, request: Request) -> Response:
        workers, children = await self._queries.workers(), await self._queries.running_tasks()
        by_worker: dict[str, list[RunningTask]] = {}
        for child in children:
            by_worker.setdefault(child.worker_id, []).append(child)
        rows = [(worker, child_views(worker, by_worker.get(worker.worker_id, []))) for worker in workers]
        return self.show(request, "workers.html", "Workers", rows=rows)

    async def worker(self, request: Request) -> Response:
        """Show one worker: what it runs, its use of memory and CPU over time, and the times of its tasks."""
        worker_id = parse_id(request, "worker_id")
        worker = next(
            (worker for worker in await self._queries.workers() if worker.worker_id == str(worker_id)), None
        )
        if worker is None:
            raise not_found(f"worker {worker_id}")
        children = [
            task for task in await self._queries.running_tasks() if task.worker_id == worker.worker_id
        ]
        snapshots, latencies = await self._queries.worker(worker_id)
        return self.show(
            request,
            "worker.html",
            worker.hostname,
            worker=worker,
            children=child_views(worker, children),
            plots=worker_plots(snapshots),
            latencies=latencies,
        )

    async def failures(self, request: Request) -> Response:
        query = request.query_params
        which = parse_range({"range": query.get("range", "24h")})
        wanted = parse_task_filter(query)
        return self.show(
            request,
            "failures.html",
            "Failures",
            groups=await self._queries.failures(query),
            ranges=[each for each in RANGES.values() if each.name != "5m"],
            range=which,
            chosen={
                "range": query.get("range"),
                "name": wanted.name,
                "queue": wanted.queue,
                "code": wanted.code,
            },
        )

    async def schedules(self, request: Request) -> Response:
        q, after, limit = parse_schedule_page(request.query_params)
        found = await self._queries.schedules(q, after, limit)
        return self.show(
            request,
            "schedules.html",
            "Schedules",
            schedules=found,
            chosen={"q": q, "limit": request.query_params.get("limit")},
            is_part=bool(q or after) or len(found) == limit,
            has_more=len(found) == limit,
            knows_tasks=self._state.knows_tasks,
        )

    async def workflows(self, request: Request) -> Response:
        query = request.query_params
        found = await self._queries.workflows(query)
        return self.show(
            request,
            "workflows.html",
            "Workflows",
            workflows=found,
            chosen={name: query.get(name) for name in ("status", "name", "parts", "limit")},
            statuses=list(WorkflowStatus),
            waiting=len(await self._queries.signals()),
            has_more=len(found) == parse_limit(query),
        )

    async def workflow(self, request: Request) -> Response:
        flow, nodes = await self._queries.workflow(parse_id(request, "workflow_id"))
        problem, _ = error_of(f'{{"err": {flow.error}}}' if flow.error else None)
        by_index = {node.task_index: node for node in nodes}
        return self.show(
            request,
            "workflow.html",
            flow.name,
            flow=flow,
            problem=problem or (flow.error and with_plain_codes(flow.error)),
            nodes=nodes,
            by_index=by_index,
            progress=progress(node.status for node in nodes),
            minimap_from=MINIMAP_FROM,
            signals=[each for each in await self._queries.signals() if each.workflow_id == flow.workflow_id],
            **await self._chosen_node(request, by_index),
            picture=picture(nodes),
            bars=timeline(nodes, datetime.now(UTC)),
            size=(WIDTH, HEIGHT),
            is_cut=len(nodes) == MOST_NODES,
        )

    async def waiting(self, request: Request) -> Response:
        return self.show(request, "waiting.html", "Waiting for people", signals=await self._queries.signals())

    async def _chosen_node(self, request: Request, by_index: dict[int, WorkflowNode]) -> dict[str, Any]:
        """Return what the panel shows of the node that the address names, if it names one."""
        given = request.query_params.get("node", "")
        node = by_index.get(int(given)) if given.isascii() and given.isdigit() and len(given) < 10 else None
        found: FullTask | None = None
        if node is not None and node.task_id is not None:
            with suppress(HttpError):  # the task has been deleted
                found = await self._queries.task(UUID(node.task_id))
        index = None if node is None else node.task_index
        return {
            "chosen": node,
            "dependents": [each for each in by_index.values() if index in each.dependencies],
            "node_task": found,
            "node_problem": None
            if found is None
            else error_of(found.task.result)[0] or found.task.error_code,
        }

    async def health(self, request: Request) -> Response:
        found, tables = await asyncio.gather(
            self._queries.health(DOCTOR_SECONDS), self._queries.tables(DOCTOR_SECONDS)
        )
        now = await self._queries.now()
        return self.show(
            request,
            "health.html",
            "Health",
            found=found,
            findings=by_severity(each for each in (found or {}).values() if each is not None),
            paused=paused_queues(now),
            acts=await self._queries.actions(20),
            tables=tables,
            titles=TITLES,
        )

    async def api(self, request: Request) -> Response:
        return self.show(request, "api.html", "API", calls=CALLS, parameters=PARAMETERS)

    async def login(self, request: Request) -> Response:
        """Ask for the token, and issue a session to a browser that knows it."""
        base, sessions = request.scope.get("root_path", ""), self._state.authenticator.sessions
        if sessions is None:
            return RedirectResponse(base + "/", 303)
        if request.method != "POST":
            return self._ask_token(request, request.query_params.get("next", "/"))
        try:
            text = (await read_body(request, MAX_LOGIN_BYTES)).decode("utf-8", "replace")
            given = parse_qs(text, max_num_fields=10)
        except HttpError as refusal:
            return self._ask_token(request, "/", refusal.status, refusal.message)
        except ValueError:
            return self._ask_token(request, "/", 400, "The form has too many fields.")
        token, target = (given.get("token") or [""])[0], (given.get("next") or ["/"])[0]
        if not is_same_origin(request.headers):
            problem = "The form was not sent from the dashboard's own page."
            return self._ask_token(request, target, 403, problem)
        try:
            is_right = await self._state.authenticator.check_token(token, request.scope)
        except TooManyAttempts as error:
            problem = f"Too many wrong tokens from your address. Try again in {error.seconds} s."
            answer = self._ask_token(request, target, 429, problem)
            answer.headers["retry-after"] = str(error.seconds)
            return answer
        if not is_right:
            return self._ask_token(request, target, 403, "The token is wrong.")
        answer = RedirectResponse(base + _local_path(target), 303)
        secure = is_https(self._state.access, request.scope)
        answer.set_cookie(
            COOKIE, sessions.issue(), path=base or "/", httponly=True, samesite="strict", secure=secure
        )
        return answer

    def _ask_token(
        self, request: Request, target: str, status: int = 200, problem: str | None = None
    ) -> Response:
        context = {"next": _local_path(target), "problem": problem}
        return self.show(request, "login.html", "Log in", status, **context)

    async def logout(self, request: Request) -> Response:
        """End the session of this browser."""
        session, sessions = request.scope.get("horsies.session"), self._state.authenticator.sessions
        if session is not None and sessions is not None:
            sessions.revoke(session)
        answer = Response(b"{}", media_type="application/json")
        secure = is_https(self._state.access, request.scope)
        path = request.scope.get("root_path", "") or "/"
        answer.delete_cookie(COOKIE, path=path, httponly=True, samesite="strict", secure=secure)
        return answer


def _local_path(target: str) -> str:
    """Return the path if it is on this dashboard; otherwise the path of the first page."""
    return target if target.startswith("/") and not target.startswith(("//", "/\\")) else "/"


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Return the violations first, then the warnings, each with the largest count first."""
    return sorted(findings, key=lambda each: (each.level != "violation", -each.count, each.check))


def paused_queues(now: Now) -> list[dict[str, Any]]:
    """Return the queues that somebody has paused, with the tasks that wait there; one entry if all are paused at once."""
    if now.all_suspended:
        waiting = sum(queue.waiting for queue in now.queues)
        return [{"name": None, "quoted": "", "by": None, "waiting": waiting}]
    return [
        {
            "name": each.name,
            "quoted": shlex.quote(each.name),
            "by": each.suspended_by,
            "waiting": each.waiting,
        }
        for each in now.queues
        if each.suspended_by is not None
    ]


def plots(drawn: History, queues: Sequence[Queue], base: str) -> list[dict[str, Any]]:
    """Return the four plots of a time span; the queues, all or those in its scope, give the depth at its end."""
    points, step = drawn.points, drawn.range.step
    starts, seconds = [point.at for point in points], step.total_seconds()
    scope = {key: value for key, value in drawn.scope._asdict().items() if value is not None}
    target = f"{base}/tasks{query(scope)}"
    ended, failures = _per(seconds), f"{base}/tasks{query({'status': 'FAILED', **scope})}"
    if drawn.by is not None:
        return _plots_by_part(drawn, starts, target, failures)
    before = _stretched(drawn.before, len(points))

    def compared(name: str, values: list[float | None]) -> list[Series]:
        """Return the line of the span before, if its counts are known."""
        return [Series(f"{name}, {drawn.range.label} before", "past", values, True)] if values else []

    waiting = [None if point.pending is None else float(point.pending) for point in points]
    running = [None if point.running is None else float(point.running) for point in points]
    if drawn.scope.name is None:
        waiting[-1] = float(sum(queue.waiting for queue in queues))
        running[-1] = float(sum(queue.running + queue.claimed for queue in queues))
    found = [
        plot("Throughput", "tasks/s", starts, [
            Series("completed", "ok", [point.completed / seconds for point in points]),
            Series("failed", "bad", [point.failed / seconds for point in points]),
            *compared("completed", [done / seconds for done, _ in before]),
        ], target),
        plot("Run and wait times", "s", starts, [
            Series("wait, p95", "wait", [point.wait_p95 for point in points], True),
            Series("run, p95", "warm", [point.run_p95 for point in points], True),
            Series("run, p50", "accent", [point.run_p50 for point in points], True),
        ], target),
        plot("Queue depth", "tasks", starts, [
            Series("waiting", "wait", waiting),
            Series("running", "accent", running, True),
        ]),
        plot("Failures", ended, starts, [
            Series("failed", "bad", [float(point.failed) for point in points]),
            Series("cancelled or expired", "warm", [float(point.other) for point in points], True),
            *compared("failed", [failed for _, failed in before]),
        ], failures),
    ]  # fmt: skip
    return [each for each in found if drawn.scope.name is None or each["title"] != "Queue depth"]


def _per(seconds: float) -> str:
    """Return the unit of counts by step.

    >>> _per(60), _per(900)
    ('per min', 'per 15 min')
    """
    return f"per {units.span(seconds).removeprefix('1 ')}"


def _stretched(before: Sequence[Point], count: int) -> list[tuple[float, float]]:
    """Return the completed and failed tasks of each step of the span before, which may be stored in longer steps."""
    each = max(1, count // max(1, len(before)))
    return [(point.completed / each, point.failed / each) for point in before for _ in range(each)]


def _plots_by_part(
    drawn: History, starts: Sequence[datetime], target: str, failures: str
) -> list[dict[str, Any]]:
    """Return the plots with a line for each queue or task."""
    seconds = drawn.range.step.total_seconds()
    lines = [
        (f"other {drawn.by}s" if label is None else label, f"c{place}", parts)
        for place, (label, parts) in enumerate(drawn.parts.items(), 1)
    ]
    found = [
        plot("Completed", "tasks/s", starts, [
            Series(label, style, [part.completed / seconds for part in parts], True) for label, style, parts in lines
        ], target),
        plot("Average run time", "s", starts, [
            Series(label, style, [_average(part) for part in parts], True) for label, style, parts in lines
        ], target),
        plot("Waiting", "tasks", starts, [
            Series(label, f"c{place}", [None if value is None else float(value) for value in values], True)
            for place, (label, values) in enumerate(drawn.depths.items(), 1)
        ]),
        plot("Failures", _per(seconds), starts, [
            Series(label, style, [float(part.failed) for part in parts], True) for label, style, parts in lines
        ], failures),
    ]  # fmt: skip
    return [each for each in found if each["lines"]]


def _average(part: Part) -> float | None:
    """Return the average run time in seconds, None if nothing ran."""
    ran = part.completed + part.failed
    return part.run_ms / 1_000 / ran if ran else None


def worker_plots(snapshots: Sequence[WorkerSnapshot]) -> list[dict[str, Any]]:
    """Return the plots of a worker from its snapshots, the newest first; none if there are too few."""
    found = list(reversed(snapshots))
    if len(found) < 2:
        return []
    starts = [snapshot.snapshot_at for snapshot in found]
    return [
        plot("Running tasks", f"of {found[-1].processes}", starts, [
            Series("running", "accent", [float(snapshot.tasks_running) for snapshot in found]),
            Series("claimed", "wait", [float(snapshot.tasks_claimed) for snapshot in found], True),
        ]),
        plot("CPU", "%", starts, [Series("CPU", "ok", [snapshot.cpu_percent for snapshot in found])]),
        plot("Memory", "MB", starts, [
            Series("worker and children", "warm", [each.memory_usage_mb + each.children_memory_mb for each in found]),
            Series("children", "accent", [snapshot.children_memory_mb for snapshot in found], True),
        ]),
    ]  # fmt: skip
