"""The HTTP server that probes ask. It tells whether a worker is well, and nothing about its tasks or its database."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from horsies.worker.health import Ailments

logger = logging.getLogger("horsies.worker")

# Whoever connects and says nothing is let go of.
REQUEST_SECONDS = 5.0


class ProbeServer(ThreadingHTTPServer):
    """Answers each probe in a thread of its own."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], examine: Callable[[], Ailments]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.examine = examine
        super().__init__(address, _Probe)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002  the base class calls it so
        logger.debug("a probe from %s got no answer", client_address, exc_info=True)


class _Probe(BaseHTTPRequestHandler):
    timeout = REQUEST_SECONDS
    server_version, sys_version = "horsies", ""

    def do_GET(self) -> None:
        assert isinstance(self.server, ProbeServer)
        found = self.server.examine()
        match self.path.partition("?")[0]:
            case "/live":
                self._answer(503 if found.stuck else 200, found.stuck)
            case "/ready" | "/":
                self._answer(503 if found.unready else 200, found.unready)
            case _:
                self._answer(404, ["ask for /live or /ready"])

    def _answer(self, status: int, reasons: list[str]) -> None:
        body = json.dumps({"ok": not reasons, "reasons": reasons}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """A probe every few seconds is no news."""
