"""The dashboard as an ASGI app: by itself under `horsies web`, or mounted in an app of yours."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from importlib.resources import files
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from horsies.web.access import Access, Guard, inner_path
from horsies.web.api import CALLS, Api, answer
from horsies.web.desk import Desk
from horsies.web.metrics import CONTENT_TYPE, exposition
from horsies.web.pages import Pages
from horsies.web.reading import Reading
from horsies.web.refusals import Refusal, refusal_of
from horsies.web.routes import Endpoint, description

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from horsies.app import Horsies
    from horsies.config import PostgresConfig


class Dashboard(Guard):
    """The guarded app. Served by itself, it closes its connections in the end; whoever mounts it may do so by `close`."""

    def __init__(self, app: ASGIApp, access: Access, desk: Desk) -> None:
        super().__init__(app, access)
        self._desk = desk

    def hang_up(self) -> None:
        """Let go of those who follow, so that a server can stop at once."""
        self._desk.hub.hang_up()

    async def close(self) -> None:
        """Close the connections to the database; the next request opens new ones."""
        await self._desk.close()


def create_dashboard(
    app_or_url: Horsies | PostgresConfig | str | None = None,
    *,
    enable_actions: bool = False,
    token: str | None = None,
    trusted_header: str | None = None,
    allowed_hosts: Sequence[str] | None = None,
) -> Dashboard:
    """The dashboard of an app, or of a database by its URL; with neither, of the one that the environment names.

    It opens nothing until the first request, and can be mounted under any path:

    >>> api = FastAPI()
    >>> api.mount("/horsies", create_dashboard(app, trusted_header="X-Forwarded-User"))

    Without a `token` or a `trusted_header` everybody who reaches it may look, so it answers to the names of this machine
    only; `allowed_hosts` names others. Viewers change nothing unless actions are enabled.
    """
    access = Access(
        enable_actions=enable_actions,
        token=token,
        trusted_header=trusted_header,
        allowed_hosts=None if allowed_hosts is None else tuple(name.lower() for name in allowed_hosts),
    )
    desk = Desk(app_or_url, access)
    return Dashboard(_application(desk), access, desk)


def _application(desk: Desk) -> Starlette:
    reading = Reading(desk)
    api, pages = Api(desk, reading), Pages(desk, reading)

    async def events(_request: Request) -> Response:
        if desk.hub.is_full:
            raise Refusal(503, "Too many viewers follow already.")
        unbuffered = {"x-accel-buffering": "no"}  # for nginx, which would hold news back
        return StreamingResponse(desk.hub.follow(), media_type="text/event-stream", headers=unbuffered)

    async def metrics(_request: Request) -> Response:
        return PlainTextResponse(await exposition(desk, reading), media_type=CONTENT_TYPE)

    async def openapi(request: Request) -> Response:
        return answer(description(CALLS, version("horsies"), request.scope.get("root_path", "")))

    async def unknown(request: Request, _error: Exception) -> Response:
        refusal = Refusal(404, "There is no such page.", "The menu leads to all that there are.")
        return _refused(pages, request, refusal)

    async def wrong_method(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        return _refused(pages, request, Refusal(status, "This cannot be asked for in this way."))

    def safe(endpoint: Endpoint) -> Endpoint:
        return _told(endpoint, pages)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncGenerator[None]:
        yield
        await desk.close()

    routes = [
        *(Route(path, safe(screen)) for path, screen in pages.paths.items()),
        Route("/login", safe(pages.login), methods=["GET", "POST"]),
        Route("/events", safe(events)),
        Route("/metrics", safe(metrics)),
        Route("/api/openapi.json", safe(openapi)),
        *(Route(call.path, safe(getattr(api, call.name)), methods=[call.method]) for call in CALLS),
        Mount("/static", StaticFiles(directory=str(files("horsies.web") / "static"))),
    ]
    handlers = {404: unknown, 405: wrong_method}
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)


def _told(endpoint: Endpoint, pages: Pages) -> Endpoint:
    """The endpoint, with whatever goes wrong told to the viewer as far as it is a viewer's business."""

    async def told(request: Request) -> Response:
        try:
            return await endpoint(request)
        except Exception as error:  # noqa: BLE001  `refusal_of` logs what is a mistake of ours
            return _refused(pages, request, refusal_of(error))

    return told


def _refused(pages: Pages, request: Request, refusal: Refusal) -> Response:
    if inner_path(request.scope).startswith(("/api/", "/events", "/metrics")):
        return answer({"error": {"message": refusal.message, "help": refusal.remedy}}, refusal.status)
    return pages.trouble(request, refusal)
