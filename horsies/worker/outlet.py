"""A child's end of the pipe: calls come in, whole messages go out, from whichever thread.

It remembers what it said last. Should the worker die before that was stored, it is the child's to store.
"""

from __future__ import annotations

import os
import socket
import threading
from collections import deque

from horsies import context
from horsies.config import PostgresConfig
from horsies.worker import wire
from horsies.worker.settings import ChildSettings
from horsies.worker.system import memory_mb, own_pid

RECEIVE_BYTES = 262_144
# What is remembered of the endings that were reported, in characters; more than a worker ever leaves unstored.
MEMORY_CHARACTERS = 1_048_576


class Outlet:
    """Also counts what was done, and says after an outcome that the child is leaving when it has done enough."""

    def __init__(self, sock: socket.socket, settings: ChildSettings) -> None:
        self.sock = sock
        self._settings = settings
        self._frames = wire.Frames()
        self._sending = threading.Lock()
        self._pid = own_pid()
        self._done = 0
        self._calls: dict[int, wire.Call] = {}
        self._remembered = 0
        self.endings: deque[tuple[wire.Call, wire.Outcome]] = deque()
        self.heritage: PostgresConfig | None = None
        self.cancelled: set[int] = set()  # calls that are to stop, as far as they are here
        self.is_leaving = self.is_closed = self._is_dismissed = False

    @property
    def is_orphaned(self) -> bool:
        """Whether the worker has died."""
        return self.is_closed and not self._is_dismissed

    def receive(self, flags: int = 0) -> list[wire.Call] | None:
        """The calls that have come, perhaps none yet; None when the pipe is closed."""
        try:
            data = self.sock.recv(RECEIVE_BYTES, flags)
        except ConnectionResetError:  # a worker that died without having read everything
            data = b""
        if not data:
            self.is_closed = True
            return None
        calls: list[wire.Call] = []
        for body in self._frames.feed(data):
            for order in wire.orders(body):
                match order:
                    case wire.Call():
                        calls.append(order)
                        self._calls[order.ticket] = order
                    case wire.Heritage():
                        self.heritage = order.postgres
                        context.serve(order.worker_id or None)
                    case wire.Dismissal():
                        self._is_dismissed = True
                    case wire.Cancel():
                        if order.ticket in self._calls:
                            self.cancelled.add(order.ticket)
        return calls

    def send(self, message: wire.Message) -> None:
        """Say something; when the worker has died, only remember it."""
        if own_pid() != self._pid:
            os._exit(0)  # a fork that a task made has come back as well: the original reports
        with self._sending:
            messages = [message]
            match message:
                case wire.Outcome():
                    self._remember(self._let_go(message.ticket), message)
                case wire.TimedOut():
                    self._let_go(message.ticket)
                case wire.Returned():
                    for ticket in message.tickets:
                        self._let_go(ticket)
                case _:
                    pass
            if isinstance(message, wire.Outcome | wire.TimedOut) and self._has_done_enough():
                messages.append(wire.Leaving())
            try:
                self.sock.sendall(wire.frame(messages))
            except (BrokenPipeError, ConnectionResetError):
                self.is_closed = True

    def _let_go(self, ticket: int) -> wire.Call:
        self.cancelled.discard(ticket)
        return self._calls.pop(ticket)

    def _remember(self, call: wire.Call, outcome: wire.Outcome) -> None:
        self.endings.append((call, outcome))
        self._remembered += _size(call, outcome)
        while self._remembered > MEMORY_CHARACTERS and len(self.endings) > 1:
            self._remembered -= _size(*self.endings.popleft())

    def _has_done_enough(self) -> bool:
        """Whether this outcome is the one after which the child should be replaced."""
        self._done += 1
        if self.is_leaving or not self._settings.is_worn(self._done, memory_mb):
            return False
        self.is_leaving = True
        return True


def _size(call: wire.Call, outcome: wire.Outcome) -> int:
    return len(call.args or "") + len(call.kwargs or "") + len(outcome.result)
