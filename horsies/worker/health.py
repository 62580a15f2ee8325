"""Tell probes how a worker is: whether it lives, and whether it takes work.

It lives while its loops turn, with or without a database: restarting it would not bring that back. It is ready while it
holds its lease and looks for work. The answers come from a thread of its own, so that a worker that is stuck says so.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from horsies.errors import ConfigurationError, ErrorCode

if TYPE_CHECKING:
    from horsies.worker.probes import ProbeServer

logger = logging.getLogger("horsies.worker")

# A loop that has not turned for so long, beyond the longest wait in it, is stuck.
STUCK_SECONDS = 30.0


class Signs(NamedTuple):
    """What can be seen of a worker: when its loops last turned, how long they may wait, and whether its lease holds."""

    turned_at: float
    beaten_at: float
    longest_wait: float
    holds_lease: bool
    is_stopping: bool


class Ailments(NamedTuple):
    """Why a worker does not live, and why it is not ready; nothing is wrong where there is no reason."""

    stuck: list[str]
    unready: list[str]


def examine(signs: Signs, now: float) -> Ailments:
    patience = STUCK_SECONDS + signs.longest_wait
    stuck = [
        f"the loop that {what} has stood still for {now - at:.0f} s"
        for what, at in (("claims", signs.turned_at), ("beats", signs.beaten_at))
        if now - at > patience
    ]
    unready = list(stuck)
    if not signs.holds_lease:
        unready.append("it holds no lease: the database did not answer in time")
    if signs.is_stopping:
        unready.append("it is stopping")
    return Ailments(stuck, unready)


class Health:
    """Answers `GET /live` and `GET /ready` with 200 or 503, and keeps systemd's watchdog quiet while the worker lives."""

    def __init__(self, signs: Callable[[], Signs]) -> None:
        self._signs = signs
        self._server: ProbeServer | None = None
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, host: str, port: int | None) -> None:
        """Serve on this port, if one is given, and tell systemd, if it wants to know."""
        if port is not None:
            # an HTTP server takes 30 ms to import, which only a worker that is asked should pay
            from horsies.worker.probes import ProbeServer

            try:
                self._server = ProbeServer((host, port), self.examine)
            except OSError as error:
                raise ConfigurationError(
                    f"health_port is {port}, which cannot be listened on at {host}: {error.strerror}",
                    code=ErrorCode.CONFIG_INVALID_WORKER,
                    help_text="choose a port that is free and that this user may listen on",
                ) from error
            self._run("horsies-health", lambda server=self._server: server.serve_forever(poll_interval=0.1))
        if seconds := watchdog_seconds():
            self._run("horsies-watchdog", lambda: self._watch(seconds))

    def examine(self) -> Ailments:
        return examine(self._signs(), time.monotonic())

    def close(self) -> None:
        self._closing.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        for thread in self._threads:
            thread.join()

    def _run(self, name: str, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _watch(self, seconds: float) -> None:
        while not self._closing.wait(seconds / 2):
            if not self.examine().stuck:
                notify("WATCHDOG=1")


def notify(state: str) -> None:
    """Tell systemd, if we were started by it and it wants to know; nobody waits for it to listen."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        try:
            sock.sendto(state.encode(), f"\0{path[1:]}" if path.startswith("@") else path)
        except OSError as error:
            logger.warning("could not tell systemd %s: %s", state, error)


def watchdog_seconds() -> float:
    """How long systemd waits for a sign of life; 0 when it does not."""
    of_us = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return int(os.environ.get("WATCHDOG_USEC", "0")) / 1_000_000 if of_us else 0.0
