"""Answer health checks: liveness and readiness.

It is alive while its loops run, with or without a database: a restart would not bring the database back. It is ready while it
holds its lease and claims tasks. A separate thread answers, so that a stuck worker can still report that it is stuck.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from horsies.errors import ConfigurationError, ErrorCode

if TYPE_CHECKING:
    from http.server import ThreadingHTTPServer

logger = logging.getLogger("horsies.worker")

# A client that sends nothing for so long is disconnected.
REQUEST_SECONDS = 5.0

# A loop is stuck if its last iteration started so long ago, beyond the longest wait in it.
STUCK_SECONDS = 30.0


class WorkerStatus(NamedTuple):
    """The facts that health checks use: when the last iteration of each loop started, and how long one may wait."""

    claim_loop_at: float
    heartbeat_at: float
    longest_wait: float
    holds_lease: bool
    is_stopping: bool


class HealthReport(NamedTuple):
    """The reasons why a worker is not alive, and why it is not ready. No reason means that all is well."""

    not_alive: list[str]
    not_ready: list[str]


def check(status: WorkerStatus, now: float) -> HealthReport:
    """Return what is wrong with a worker."""
    limit = STUCK_SECONDS + status.longest_wait
    not_alive = [
        f"the {loop} loop has been stuck for {now - at:.0f} s"
        for loop, at in (("claim", status.claim_loop_at), ("heartbeat", status.heartbeat_at))
        if now - at > limit
    ]
    not_ready = list(not_alive)
    if not status.holds_lease:
        not_ready.append("the lease has expired: the database did not answer in time")
    if status.is_stopping:
        not_ready.append("the worker is stopping")
    return HealthReport(not_alive, not_ready)


class Health:
    """Answers `GET /live` and `GET /ready` with 200 or 503, and notifies systemd's watchdog while the worker is alive."""

    def __init__(self, status: Callable[[], WorkerStatus]) -> None:
        self._status = status
        self._server: ThreadingHTTPServer | None = None
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, host: str, port: int | None) -> None:
        """Serve on the port, if one is given, and notify systemd's watchdog, if there is one."""
        if port is not None:
            try:
                self._server = http_server(host, port, self.check)
            except OSError as error:
                raise ConfigurationError(
                    f"health_port is {port}, which cannot be listened on at {host}: {error.strerror}",
                    code=ErrorCode.CONFIG_INVALID_WORKER,
                    help_text="choose a port that is free and that this user may listen on",
                ) from error
            self._start_thread(
                "horsies-health", lambda server=self._server: server.serve_forever(poll_interval=0.1)
            )
        if seconds := watchdog_seconds():
            self._start_thread("horsies-watchdog", lambda: self._notify_watchdog(seconds))

    def check(self) -> HealthReport:
        """Return what is wrong with the worker now."""
        return check(self._status(), time.monotonic())

    def close(self) -> None:
        """Stop answering."""
        self._closing.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        for thread in self._threads:
            thread.join()

    def _start_thread(self, name: str, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _notify_watchdog(self, seconds: float) -> None:
        while not self._closing.wait(seconds / 2):
            if not self.check().not_alive:
                notify_systemd("WATCHDOG=1")


def http_server(host: str, port: int, check: Callable[[], HealthReport]) -> ThreadingHTTPServer:
    """Return a server for health checks. It reveals nothing about the tasks or the database of the worker."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer  # imported late: it takes 30 ms

    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_SECONDS
        server_version, sys_version = "horsies", ""

        def do_GET(self) -> None:
            report = check()
            match self.path.partition("?")[0]:
                case "/live":
                    self._answer(report.not_alive)
                case "/ready" | "/":
                    self._answer(report.not_ready)
                case _:
                    self._answer(["ask for /live or /ready"], failure=404)

        def _answer(self, reasons: list[str], failure: int = 503) -> None:
            body = json.dumps({"ok": not reasons, "reasons": reasons}).encode()
            self.send_response(failure if reasons else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: health checks come every few seconds."""

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002  the base class calls it so
            logger.debug("A health check from %s got no answer", client_address, exc_info=True)

    return Server((host, port), Handler)


def notify_systemd(state: str) -> None:
    """Send a state to systemd without waiting, if it has started this process and listens."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        try:
            sock.sendto(state.encode(), f"\0{path[1:]}" if path.startswith("@") else path)
        except OSError as error:
            logger.warning("Could not send %s to systemd: %s", state, error)


def watchdog_seconds() -> float:
    """Return the interval of systemd's watchdog, 0 if it does not watch this process."""
    is_watched = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return int(os.environ.get("WATCHDOG_USEC", "0")) / 1_000_000 if is_watched else 0.0
