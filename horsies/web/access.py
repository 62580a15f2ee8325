"""Who may look, who may act, and what a browser is allowed to do with our pages.

Nothing here trusts a browser: a page of another site cannot read ours (the host is checked), nor act in a viewer's name (an
action needs a header that a form cannot send, from our own origin), nor run a script in it (only files of ours are run).
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from horsies.errors import ConfigurationError, ErrorCode

COOKIE = "horsies_session"
INTENT, ACTION = "x-horsies-intent", "action"
SAFE_METHODS = ("GET", "HEAD")
SHORTEST_TOKEN = 16
LONGEST_NAME = 100
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with none at all, a browser hides the origin of a form, too
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What is allowed, and how viewers say who they are.

    Without a token or a trusted header everybody who reaches the dashboard may look, so it answers to the names of this
    machine alone, unless `allowed_hosts` says otherwise.
    """

    enable_actions: bool = False
    token: str | None = None
    trusted_header: str | None = None
    allowed_hosts: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.token is not None and len(self.token) < SHORTEST_TOKEN:
            raise ConfigurationError(
                f"the dashboard's token has {len(self.token)} characters, fewer than {SHORTEST_TOKEN}",
                code=ErrorCode.WEB_UNPROTECTED,
                help_text="make a longer one: python -c 'import secrets; print(secrets.token_urlsafe())'",
            )

    @property
    def is_protected(self) -> bool:
        return self.token is not None or self.trusted_header is not None

    @property
    def hosts(self) -> tuple[str, ...] | None:
        """The names it answers to; None means any."""
        if self.allowed_hosts is not None:
            return self.allowed_hosts
        return None if self.is_protected else LOOPBACK

    def knows(self, given: str) -> bool:
        """Whether it is the token."""
        return self.token is not None and hmac.compare_digest(given.strip().encode(), self.token.encode())

    @property
    def session(self) -> str:
        """What a browser keeps instead of the token."""
        return hmac.digest((self.token or "").encode(), b"horsies dashboard session", "sha256").hex()


def refuse_open_bind(host: str, access: Access) -> None:
    """Another machine could reach it: then it must ask who is there."""
    if access.is_protected or is_loopback(host):
        return
    raise ConfigurationError(
        f"the dashboard would be open to everybody who reaches {host}",
        code=ErrorCode.WEB_UNPROTECTED,
        help_text="give --token or HORSIES_WEB_TOKEN, or --trusted-header behind a proxy that sets it; or bind to 127.0.0.1",
    )


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def viewer(access: Access, headers: Headers) -> str | None:
    """Who is there, as it goes on record; None when nobody may be."""
    if access.trusted_header is not None:
        name = headers.get(access.trusted_header, "").strip()[:LONGEST_NAME]
        if name.isprintable() and name:
            return name
    if access.token is None:
        return None if access.trusted_header is not None else "local"
    kind, _, given = headers.get("authorization", "").partition(" ")
    bearer = kind.lower() == "bearer" and access.knows(given)
    return "token" if bearer or hmac.compare_digest(_cookie(headers), access.session) else None


def _cookie(headers: Headers) -> str:
    try:
        kept = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return kept.value if kept is not None and kept.value.isascii() else ""


def is_allowed_host(access: Access, headers: Headers) -> bool:
    if access.hosts is None:
        return True
    name = headers.get("host", "")
    bare = name if name.endswith("]") else name.rpartition(":")[0] or name
    return bare.lower() in access.hosts


def is_same_origin(headers: Headers) -> bool:
    """Whether the page that asks is ours, as far as the browser says; a program says nothing."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc.lower() == headers.get("host", "").lower()


def action_problem(access: Access, headers: Headers) -> str | None:
    """Why an action is not carried out, if it is not."""
    if not access.enable_actions:
        return "actions are not enabled: start the dashboard with --enable-actions"
    if headers.get(INTENT) != ACTION:
        return "an action needs the header X-Horsies-Intent: action"
    if not is_same_origin(headers):
        return "an action must come from the dashboard's own pages"
    return None


class Guard:
    """Stands before the app: lets in who may come in, and tells browsers how to treat what goes out."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                # files may be kept, as long as the browser asks whether they are still the same
                is_file = inner_path(scope).startswith("/static/")
                headers.setdefault("cache-control", "no-cache" if is_file else "no-store")
                headers.update(HEADERS)
            await send(message)

        app = self._refusal(scope) or self._app
        await app(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        headers, path = Headers(scope=scope), inner_path(scope)
        if not is_allowed_host(self._access, headers):
            return PlainTextResponse(
                "this dashboard does not answer to that name: use 127.0.0.1, localhost or the names it was given\n",
                421,
            )
        if path == "/login" or path.startswith("/static/"):
            return None
        name = viewer(self._access, headers)
        if name is None:
            return self._who_is_there(scope, path)
        scope["horsies.viewer"] = name
        if scope["method"] not in SAFE_METHODS and (problem := action_problem(self._access, headers)):
            return JSONResponse({"error": {"message": problem, "help": None}}, 403)
        return None

    def _who_is_there(self, scope: Scope, path: str) -> Response:
        if path.startswith(("/api/", "/metrics", "/events")) or self._access.token is None:
            remedy = (
                "send Authorization: Bearer TOKEN"
                if self._access.token
                else "come through the proxy that says who you are"
            )
            answer = JSONResponse({"error": {"message": "nobody is signed in", "help": remedy}}, 401)
            answer.headers["www-authenticate"] = "Bearer"
            return answer
        return RedirectResponse(f"{scope.get('root_path', '')}/login?next={quote(path)}", 303)


def inner_path(scope: Scope) -> str:
    """The path below wherever the dashboard is mounted."""
    path, root = scope["path"], scope.get("root_path", "")
    return path[len(root) :] or "/" if root and path.startswith(root) else path
