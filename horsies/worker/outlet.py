"""A child's end of the pipe: calls come in, whole messages go out, from whichever thread."""

from __future__ import annotations

import os
import socket
import threading

from horsies.worker import wire
from horsies.worker.settings import ChildSettings
from horsies.worker.system import memory_mb

RECEIVE_BYTES = 262_144


class Outlet:
    """Also counts what was done, and says after an outcome that the child is leaving when it has done enough."""

    def __init__(self, sock: socket.socket, settings: ChildSettings) -> None:
        self.sock = sock
        self._settings = settings
        self._frames = wire.Frames()
        self._sending = threading.Lock()
        self._pid = os.getpid()
        self._done = 0
        self.is_leaving = False

    def receive(self, flags: int = 0) -> list[wire.Call] | None:
        """The calls that have come, perhaps none yet; None when the worker has closed the pipe."""
        data = self.sock.recv(RECEIVE_BYTES, flags)
        if not data:
            return None
        return [call for body in self._frames.feed(data) for call in wire.calls(body)]

    def send(self, message: wire.Message) -> None:
        if os.getpid() != self._pid:
            os._exit(0)  # a fork that a task made has come back as well: the original reports
        with self._sending:
            messages = [message]
            if isinstance(message, wire.Outcome | wire.TimedOut) and self._has_done_enough():
                messages.append(wire.Leaving())
            self.sock.sendall(wire.frame(messages))

    def _has_done_enough(self) -> bool:
        """Whether this outcome is the one after which the child should be replaced."""
        self._done += 1
        if self.is_leaving or not self._settings.is_worn(self._done, memory_mb):
            return False
        self.is_leaving = True
        return True
