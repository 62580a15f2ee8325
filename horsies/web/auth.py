"""Authentication of the dashboard: tokens, trusted headers, sessions, and slowing down failed logins."""

from __future__ import annotations

import asyncio
import hmac
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from horsies.errors import ConfigurationError, ErrorCode

COOKIE = "horsies_session"
LIFETIME = timedelta(hours=12)
MAX_REVOKED = 10_000


class Session(NamedTuple):
    """A valid session."""

    id: str
    issued_at: int


class Sessions:
    """Issues, checks and revokes the sessions of one dashboard."""

    def __init__(
        self, token: str, lifetime: timedelta = LIFETIME, clock: Callable[[], float] = time.time
    ) -> None:
        self._key = hmac.digest(token.encode(), b"horsies dashboard session v2", "sha256")
        self._seconds = lifetime.total_seconds()
        self._clock = clock
        self._revoked: dict[str, int] = {}  # id: time of issue
        self._not_before = 0

    def issue(self) -> str:
        """Return the cookie of a new session."""
        body = f"{int(self._clock())}.{secrets.token_hex(16)}"
        return f"{body}.{self._signature(body)}"

    def check(self, cookie: str) -> Session | None:
        """Return the session in a cookie; None if it is forged, expired or revoked."""
        body, _, signature = cookie.rpartition(".")
        if not cookie.isascii() or not hmac.compare_digest(signature, self._signature(body)):
            return None
        issued, _, session_id = body.partition(".")
        session = Session(session_id, int(issued))  # a number, because the signature is ours
        age = self._clock() - session.issued_at
        is_current = session.issued_at >= self._not_before and age < self._seconds
        return session if is_current and session_id not in self._revoked else None

    def revoke(self, session: Session) -> None:
        """End a session. If too many were ended to remember each, end all that were issued before now."""
        now = self._clock()
        self._revoked = {
            each: issued for each, issued in self._revoked.items() if now - issued < self._seconds
        }
        if len(self._revoked) >= MAX_REVOKED:
            self._not_before = int(now) + 1
            self._revoked.clear()
        self._revoked[session.id] = session.issued_at

    def _signature(self, body: str) -> str:
        return hmac.digest(self._key, body.encode(), "sha256").hex()


FREE_FAILURES = 5
LONGEST_BLOCK_SECONDS = 60.0
FORGET_SECONDS = 600.0
MAX_ADDRESSES = 10_000
MAX_KNOWN = 1_000
# Failures of all addresses together, within the window. Above that, attempts from unknown addresses are delayed.
WINDOW_SECONDS = 60.0
FREE_OVERALL = 50
LONGEST_DELAY_SECONDS = 2.0
MAX_WAITING = 1_000


class _Failures(NamedTuple):
    number: int
    last_at: float


class Throttle:
    """Counts failed attempts, and decides how long an address must wait."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, _Failures] = OrderedDict()
        self._known: OrderedDict[str, None] = OrderedDict()
        self._overall = _Failures(0, 0.0)
        self.waiting = 0

    def blocked_seconds(self, address: str) -> int:
        """Return the whole seconds for which an address is still blocked; 0 if it may try."""
        failures = self._failures.get(_group(address))
        if failures is None or failures.number < FREE_FAILURES:
            return 0
        block = min(LONGEST_BLOCK_SECONDS, 2.0 ** min(failures.number - FREE_FAILURES, 10))
        return max(0, math.ceil(failures.last_at + block - self._clock()))

    def delay_seconds(self, address: str) -> float:
        """Return how long an attempt waits before it is checked; more while many addresses fail at once."""
        if _group(address) in self._known:
            return 0.0
        over = self._overall_count() - FREE_OVERALL
        return 0.0 if over <= 0 else min(LONGEST_DELAY_SECONDS, 0.1 * over)

    def failed(self, address: str) -> None:
        """Count a wrong token."""
        now, group = self._clock(), _group(address)
        before = self._failures.pop(group, None)
        count = 0 if before is None or now - before.last_at > FORGET_SECONDS else before.number
        self._failures[group] = _Failures(count + 1, now)
        while len(self._failures) > MAX_ADDRESSES:
            self._failures.popitem(last=False)
        self._overall = _Failures(self._overall_count() + 1, now)

    def succeeded(self, address: str) -> None:
        """Reset the failures of an address that knows the token, and stop delaying it."""
        group = _group(address)
        self._failures.pop(group, None)
        self._known[group] = None
        self._known.move_to_end(group)
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    def _overall_count(self) -> int:
        """Return the number of recent failures. The count falls evenly to zero within the window."""
        count, last_at = self._overall
        faded = (self._clock() - last_at) / WINDOW_SECONDS * max(count, FREE_OVERALL)
        return max(0, math.ceil(count - faded))


def _group(address: str) -> str:
    """Return the key of a client: an IPv4 address, or the /64 network of an IPv6 address.

    >>> _group("192.0.2.1"), _group("2001:db8:1:2:3::4"), _group("::ffff:192.0.2.1")
    ('192.0.2.1', '2001:db8:1:2::', '192.0.2.1')
    """
    parsed = _address(address)
    if isinstance(parsed, IPv6Address):
        return str(IPv6Address(int(parsed) >> 64 << 64))
    return address[:100] if parsed is None else str(parsed)


INTENT, ACTION = "x-horsies-intent", "action"
SAFE_METHODS = ("GET", "HEAD")
SHORTEST_TOKEN = 16
LONGEST_NAME = 100
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
LOOPBACK_NETWORKS = ("127.0.0.0/8", "::1/128")
LONGEST_LIFETIME = timedelta(days=365)

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # "no-referrer" would also hide the origin of a form
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The access settings: authentication, allowed hosts, and permission to act.

    Without a token or a trusted header the dashboard serves only clients on this machine, under this machine's host names
    unless `allowed_hosts` names others. The trusted header is accepted only from a trusted proxy.
    """

    enable_actions: bool = False
    token: str | None = None
    trusted_header: str | None = None
    trusted_proxies: tuple[str, ...] = LOOPBACK_NETWORKS
    allowed_hosts: tuple[str, ...] | None = None
    session_lifetime: timedelta = LIFETIME

    def __post_init__(self) -> None:
        for proxy in self.trusted_proxies:
            try:
                ip_network(proxy)
            except ValueError as error:
                raise _unprotected(
                    f"the trusted proxy {proxy!r} is neither an address nor a network: {error}",
                    "write an IP address such as 10.0.0.5, or a network such as 10.0.0.0/24",
                ) from None
        if not timedelta(0) < self.session_lifetime <= LONGEST_LIFETIME:
            raise _unprotected(
                f"the session lifetime is {self.session_lifetime}",
                "use more than zero and at most 365 days, such as 12h",
            )
        if self.token is not None and len(self.token) < SHORTEST_TOKEN:
            raise _unprotected(
                f"the dashboard's token has {len(self.token)} characters, fewer than {SHORTEST_TOKEN}",
                "make a longer one: python -c 'import secrets; print(secrets.token_urlsafe())'",
            )

    @property
    def is_protected(self) -> bool:
        return self.token is not None or self.trusted_header is not None

    def serves(self, host: str) -> bool:
        """Return True if requests for this host name, as the header Host gives it, are answered."""
        served = self.allowed_hosts
        if served is None:
            if self.is_protected:
                return True
            served = LOOPBACK
        bare = host if host.endswith("]") else host.rpartition(":")[0] or host
        return bare.lower() in served

    def trusts(self, peer: Peer) -> bool:
        """Return True if the peer is a trusted proxy; a Unix socket counts as loopback."""
        networks = [ip_network(proxy) for proxy in self.trusted_proxies]
        if peer.address is None:
            return peer.is_local and any(network.is_loopback for network in networks)
        address = peer.address
        return any(address in network for network in networks if network.version == address.version)


def refuse_open_bind(host: str, access: Access) -> None:
    """Refuse to listen on an address that other machines can reach if nobody has to authenticate."""
    address = _address(host.strip("[]"))
    is_loopback = host == "localhost" if address is None else address.is_loopback
    if access.is_protected or is_loopback:
        return
    raise _unprotected(
        f"without authentication, the dashboard would be open to everybody who can reach {host}",
        "give --token or HORSIES_WEB_TOKEN, or --trusted-header behind a proxy that sets it; or bind to 127.0.0.1",
    )


def _unprotected(message: str, help_text: str) -> ConfigurationError:
    return ConfigurationError(message, code=ErrorCode.WEB_UNPROTECTED, help_text=help_text)


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of the connection. A Unix socket is local and has no address."""

    address: IPv4Address | IPv6Address | None
    is_local: bool

    def __str__(self) -> str:
        return "a Unix socket" if self.address is None and self.is_local else str(self.address or "unknown")


def peer_of(scope: Scope) -> Peer:
    """Return the peer of a request. A peer without an address is local only if the server listens on a Unix socket."""
    client, server = scope.get("client"), scope.get("server")
    if not client or not client[0]:
        return Peer(None, not server or server[1] is None)
    address = _address(client[0])
    return Peer(address, address is not None and address.is_loopback)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text.strip().partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def client_of(access: Access, scope: Scope) -> str:
    """Return the client's address, by which failed logins are counted.

    Behind a trusted proxy, it is the last address in X-Forwarded-For that is not itself a trusted proxy.
    """
    peer = peer_of(scope)
    if access.trusts(peer):
        named = ",".join(Headers(scope=scope).getlist("x-forwarded-for")).split(",")
        for text in reversed(named):
            address = _address(text)
            if address is None:
                break
            if not access.trusts(Peer(address, False)):
                return str(address)
    return str(peer)


def is_https(access: Access, scope: Scope) -> bool:
    """Return True if the browser's connection is encrypted, according to the server or a trusted proxy."""
    if scope.get("scheme") == "https":
        return True
    forwarded = Headers(scope=scope).get("x-forwarded-proto", "").strip().lower()
    return forwarded == "https" and access.trusts(peer_of(scope))


class TooManyAttempts(Exception):
    """An address sent wrong tokens too often and must wait."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"wait {seconds} s")
        self.seconds = seconds


class Authenticator:
    """Checks tokens and sessions, and throttles clients that guess tokens."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.sessions = None if access.token is None else Sessions(access.token, access.session_lifetime)
        self.throttle = Throttle()

    async def check_token(self, given: str, scope: Scope) -> bool:
        """Return True if `given` is the token; raise TooManyAttempts if the client failed too often before."""
        client, throttle = client_of(self.access, scope), self.throttle
        if blocked := throttle.blocked_seconds(client):
            raise TooManyAttempts(blocked)
        if delay := throttle.delay_seconds(client):
            if throttle.waiting >= MAX_WAITING:
                raise TooManyAttempts(int(LONGEST_DELAY_SECONDS))
            throttle.waiting += 1
            try:
                await asyncio.sleep(delay)
            finally:
                throttle.waiting -= 1
        token = self.access.token
        is_right = token is not None and hmac.compare_digest(given.strip().encode(), token.encode())
        (throttle.succeeded if is_right else throttle.failed)(client)
        return is_right

    async def viewer(self, scope: Scope) -> str | None:
        """Return the viewer's name, as actions are recorded; None if nobody is authenticated."""
        headers, access = Headers(scope=scope), self.access
        if access.trusted_header is not None:
            name = headers.get(access.trusted_header, "").strip()[:LONGEST_NAME]
            if name.isprintable() and name:
                return name
        if self.sessions is None:
            return None if access.trusted_header is not None else "local"
        cookie = HTTPConnection(scope).cookies.get(COOKIE, "")
        if (session := self.sessions.check(cookie)) is not None:
            scope["horsies.session"] = session
            return "token"
        kind, _, given = headers.get("authorization", "").partition(" ")
        return "token" if kind.lower() == "bearer" and await self.check_token(given, scope) else None


def is_same_origin(headers: Headers) -> bool:
    """Return False if a browser says that the request comes from another site. Programs send no such header."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc.lower() == headers.get("host", "").lower()


def action_problem(access: Access, headers: Headers, path: str) -> str | None:
    """Return the reason to refuse an action, or None. Logging out changes no task, so it is always allowed."""
    if not access.enable_actions and path != "/logout":
        return "actions are not enabled: start the dashboard with --enable-actions"
    if headers.get(INTENT) != ACTION:
        return "an action needs the header X-Horsies-Intent: action"
    if not is_same_origin(headers):
        return "an action must come from the dashboard's own pages"
    return None


class Guard:
    """Wraps the app: authenticates every request, and adds the security headers to every response."""

    def __init__(self, app: ASGIApp, authenticator: Authenticator) -> None:
        self._app = app
        self.access = authenticator.access
        self._authenticator = authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                # browsers may cache static files, but must revalidate them
                is_file = inner_path(scope).startswith("/static/")
                headers.setdefault("cache-control", "no-cache" if is_file else "no-store")
                headers.update(HEADERS)
            await send(message)

        app = await self._refusal(scope) or self._app
        await app(scope, receive, send_guarded)

    async def _refusal(self, scope: Scope) -> Response | None:
        headers, path = Headers(scope=scope), inner_path(scope)
        if not self.access.serves(headers.get("host", "")):
            return PlainTextResponse(
                "this dashboard does not serve that host name: use 127.0.0.1, localhost or one of --allowed-host\n",
                421,
            )
        if (refusal := self._untrusted(scope, headers)) is not None:
            return refusal
        if path == "/login" or path.startswith("/static/"):
            return None
        try:
            name = await self._authenticator.viewer(scope)
        except TooManyAttempts as error:
            refusal = _refused(
                429, "Too many wrong tokens came from this address.", f"Wait {error.seconds} s."
            )
            refusal.headers["retry-after"] = str(error.seconds)
            return refusal
        if name is None:
            return self._unauthenticated(scope, path)
        scope["horsies.viewer"] = name
        if scope["method"] not in SAFE_METHODS and (problem := action_problem(self.access, headers, path)):
            return _refused(403, problem)
        return None

    def _untrusted(self, scope: Scope, headers: Headers) -> Response | None:
        """Refuse other machines if there is no authentication, and a trusted header from an untrusted peer."""
        peer, client = peer_of(scope), client_of(self.access, scope)
        if not self.access.is_protected and not (peer.is_local and client == str(peer)):
            return _refused(
                403,
                f"this dashboard serves its own machine only, and the request comes from {client}",
                "set a token, or a trusted header behind a proxy that authenticates",
            )
        name = self.access.trusted_header
        named = [] if name is None else headers.getlist(name)
        if len(named) > 1:
            return _refused(400, f"the request has the header {name} {len(named)} times", "send it once")
        if named and not self.access.trusts(peer):
            return _refused(
                403,
                f"the header {name} comes from {peer}, which is not a trusted proxy",
                "remove the header, or name the proxy's address with --trusted-proxy",
            )
        return None

    def _unauthenticated(self, scope: Scope, path: str) -> Response:
        if path.startswith(("/api/", "/metrics", "/events")) or self.access.token is None:
            remedy = (
                "send Authorization: Bearer TOKEN"
                if self.access.token
                else "use the address of the proxy that authenticates"
            )
            answer = _refused(401, "the request is not authenticated", remedy)
            answer.headers["www-authenticate"] = "Bearer"
            return answer
        return RedirectResponse(f"{scope.get('root_path', '')}/login?next={quote(path)}", 303)


def _refused(status: int, message: str, remedy: str | None = None) -> Response:
    return JSONResponse({"error": {"message": message, "help": remedy}}, status)


def inner_path(scope: Scope) -> str:
    """Return the path relative to where the dashboard is mounted."""
    path, root = scope["path"], scope.get("root_path", "")
    return path[len(root) :] or "/" if root and path.startswith(root) else path
