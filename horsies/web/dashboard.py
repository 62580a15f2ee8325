"""The dashboard as an ASGI app to mount in another, and the server of `horsies web`."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from importlib.metadata import version
from importlib.resources import files
from types import FrameType
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from uvicorn.protocols.http.h11_impl import H11Protocol

from horsies.errors import ConfigurationError, ErrorCode
from horsies.web.actions import Actions
from horsies.web.api import CALLS, Api, openapi
from horsies.web.auth import LIFETIME, LOOPBACK_NETWORKS, Access, Guard, inner_path
from horsies.web.metrics import CONTENT_TYPE, exposition
from horsies.web.pages import Pages
from horsies.web.queries import DashboardQueries
from horsies.web.requests import MAX_BODY_BYTES, HttpError, http_error_of, json_response
from horsies.web.state import DashboardState, EventStream

if TYPE_CHECKING:
    from horsies.app import Horsies
    from horsies.config import PostgresConfig


Endpoint = Callable[[Request], Awaitable[Response]]


class Dashboard(Guard):
    """The ASGI app behind its guard.

    Run as a server of its own, it closes its database connections at shutdown. An app that mounts it may call `close`.
    """

    def __init__(self, state: DashboardState) -> None:
        self._state = state
        self._queries = DashboardQueries(state)
        self._pages = Pages(state, self._queries)
        application = Starlette(
            routes=self._routes(),
            lifespan=self._lifespan,
            exception_handlers={404: self._unknown_path, 405: self._wrong_method},
        )
        super().__init__(application, state.authenticator)

    def _routes(self) -> list[Route | Mount]:
        api, actions = Api(self._queries), Actions(self._state)
        handlers = {"GET": api, "POST": actions}
        calls = [
            Route(call.path, self._safe(getattr(handlers[call.method], call.name)), methods=[call.method])
            for call in CALLS
        ]
        return [
            *(Route(path, self._safe(page)) for path, page in self._pages.paths.items()),
            Route("/login", self._safe(self._pages.login), methods=["GET", "POST"]),
            Route("/logout", self._safe(self._pages.logout), methods=["POST"]),
            Route("/events", self._safe(self._events)),
            Route("/metrics", self._safe(self._metrics)),
            Route("/api/openapi.json", self._safe(self._api_document)),
            *calls,
            Mount("/static", StaticFiles(directory=str(files("horsies.web") / "static"))),
        ]

    def _safe(self, endpoint: Endpoint) -> Endpoint:
        """Answer with an error page or an error document if the endpoint raises."""

        async def answer(request: Request) -> Response:
            try:
                return self._with_lag(await endpoint(request))
            except Exception as error:  # noqa: BLE001  `http_error_of` logs unexpected errors
                return self._error_response(request, http_error_of(error))

        return answer

    def _with_lag(self, response: Response) -> Response:
        """Tell programs how many seconds the replica is behind the primary."""
        if self._state.replica is not None and self._state.replica.lag is not None:
            response.headers["x-horsies-replica-lag"] = f"{self._state.replica.lag:.3f}"
        return response

    async def _events(self, _request: Request) -> Response:
        events = self._state.broadcaster.join()
        if events is None:
            problem = "Too many pages are open."
            raise HttpError(503, problem, "Close some of them, or reload this page by hand.")
        return EventStream(self._state.broadcaster, events)

    async def _metrics(self, _request: Request) -> Response:
        return PlainTextResponse(await exposition(self._queries), media_type=CONTENT_TYPE)

    async def _api_document(self, request: Request) -> Response:
        return json_response(openapi(version("horsies"), request.scope.get("root_path", "")))

    async def _unknown_path(self, request: Request, _error: Exception) -> Response:
        unknown = HttpError(404, "There is no such page.", "The menu lists all pages.")
        return self._error_response(request, unknown)

    async def _wrong_method(self, request: Request, _error: Exception) -> Response:
        refusal = HttpError(405, f"{request.method} is not allowed for this address.")
        return self._error_response(request, refusal)

    def _error_response(self, request: Request, error: HttpError) -> Response:
        """Return an error as JSON to programs, and as a page to browsers."""
        if inner_path(request.scope).startswith(("/api/", "/events", "/metrics")):
            return json_response({"error": {"message": error.message, "help": error.remedy}}, error.status)
        return self._pages.error(request, error)

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncGenerator[None]:
        yield
        await self.close()

    def hang_up(self) -> None:
        """End all live streams, so that the server can stop without waiting for them."""
        self._state.broadcaster.hang_up()

    async def close(self) -> None:
        """Close the connections to the database; the next request opens new ones."""
        await self._state.close()


def create_dashboard(
    app_or_url: Horsies | PostgresConfig | str | None = None,
    *,
    enable_actions: bool = False,
    token: str | None = None,
    trusted_header: str | None = None,
    trusted_proxies: Sequence[str] | None = None,
    allowed_hosts: Sequence[str] | None = None,
    session_lifetime: timedelta = LIFETIME,
    redact: Sequence[str] = (),
    read_url: str | None = None,
) -> Dashboard:
    """Return the dashboard of an app, or of a database by its URL. The default is the database that the environment names.

    It connects at the first request, and can be mounted under any path:

    >>> api = FastAPI()
    >>> api.mount("/horsies", create_dashboard(app, trusted_header="X-Forwarded-User"))

    Without a `token` or a `trusted_header` it serves only clients on this machine, under this machine's host names;
    `allowed_hosts` names others. The trusted header is accepted only from `trusted_proxies`: IP addresses or networks,
    loopback by default. A browser that logged in with the token must log in again after `session_lifetime`. Viewers cannot
    change anything unless `enable_actions` is set. The values of arguments that `redact` or the app's own setting names are
    shown as "[redacted]". With `read_url`, pages are read from that replica, and actions go to the primary.
    """
    access = Access(
        enable_actions=enable_actions,
        token=token,
        trusted_header=trusted_header,
        trusted_proxies=LOOPBACK_NETWORKS if trusted_proxies is None else tuple(trusted_proxies),
        allowed_hosts=None if allowed_hosts is None else tuple(name.lower() for name in allowed_hosts),
        session_lifetime=session_lifetime,
    )
    return Dashboard(DashboardState(app_or_url, access, redact, read_url))


STOP_SECONDS = 2
# How many connections may wait to be accepted.
BACKLOG = 2048
# A request must be complete within this time, plus one second for every so many bytes received.
REQUEST_SECONDS, BYTES_PER_SECOND = 10.0, 50_000


class RequestTimeoutProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol with a deadline for complete requests, headers and body.

    uvicorn itself only has a timeout between requests, so a client could hold a connection for ever by sending a request
    byte by byte, or not at all. The time runs from the first byte of a request (for the first one, from the connection)
    until its last byte, and single bytes do not extend it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline: asyncio.TimerHandle | None = None
        self._began_at = 0.0
        self._received = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self._start()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        super().data_received(data)
        self._update_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_timer()

    def _update_timer(self) -> None:
        """Run the timer exactly while a request is incomplete, in its headers or its body."""
        state = self.conn.their_state
        in_headers = state is h11.IDLE and bool(self.conn.trailing_data[0])
        if state is not h11.SEND_BODY and not in_headers:
            self._stop()
        elif self._deadline is None:
            self._start()

    def _start(self) -> None:
        self._began_at, self._received = self.loop.time(), 0
        self._deadline = self.loop.call_later(REQUEST_SECONDS, self._expired)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expired(self) -> None:
        """Drop the connection, unless it has received enough bytes to count as merely slow."""
        extra = min(self._received, MAX_BODY_BYTES) / BYTES_PER_SECOND
        left = self._began_at + REQUEST_SECONDS + extra - self.loop.time()
        if left > 0:
            self._deadline = self.loop.call_later(left, self._expired)
        else:
            self._deadline = None
            self.transport.abort()


def listen(host: str, port: int) -> list[socket.socket]:
    """Listen on all addresses of a host, and return the sockets; port 0 takes a free port."""
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            chosen = sockets[0].getsockname()[1] if sockets else address[1]
            found = socket.socket(family, kind, protocol)
            sockets.append(found)
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            found.bind((address[0], chosen, *address[2:]))
            found.listen(BACKLOG)
    except OSError as error:
        for each in sockets:
            each.close()
        raise _listen_error(host, port, error) from error
    return sockets


def _listen_error(host: str, port: int, error: OSError) -> ConfigurationError:
    problem, remedy = error.strerror or str(error), "listen on another address with --host or --port"
    if error.errno == errno.EADDRINUSE:
        problem = "another process listens there"
        remedy = "stop that process, or choose another port with --port; 0 takes a free one"
    elif isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        problem = f"{host!r} is no address of this machine ({problem})"
        remedy = "give an address of this machine with --host: 127.0.0.1, or 0.0.0.0 for all"
    elif error.errno == errno.EACCES:
        remedy = "choose a port from 1024 on with --port"
    return ConfigurationError(
        f"the dashboard cannot listen on {host} port {port}: {problem}",
        code=ErrorCode.ADDRESS_UNAVAILABLE,
        help_text=remedy,
    )


class Server(uvicorn.Server):
    """Serves one dashboard."""

    def __init__(self, dashboard: Dashboard, host: str, port: int) -> None:
        super().__init__(
            uvicorn.Config(
                dashboard,
                host=host,
                port=port,
                http=RequestTimeoutProtocol,  # the default would be httptools, if that is installed
                log_level="warning",
                server_header=False,
                # the dashboard itself decides which proxies it trusts, by the address that connects
                proxy_headers=False,
                timeout_graceful_shutdown=STOP_SECONDS,
                ws="none",
            )
        )
        self._dashboard = dashboard

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002  uvicorn's own signature
        """Stop at the first signal, and at once at the second. The exit code is 0: stopping is not a failure."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._dashboard.hang_up()
        await super().shutdown(sockets)
