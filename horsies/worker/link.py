"""The parent's side of one child process: its pipe, and the calls that it holds."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from horsies.storage.tasks import Claimed
from horsies.worker import wire

logger = logging.getLogger("horsies.pool")

# A child that runs one call for so long is asked for those queued behind it.
HELD_UP_SECONDS = 0.05
READ_BYTES = 262_144


@dataclass(eq=False, slots=True)
class Child:
    """A child process as its worker sees it. Of the calls of a serial child, only the first one runs."""

    transport: asyncio.Transport
    is_serial: bool
    pid: int = 0
    memory_mb: float = 0.0
    calls: dict[int, Claimed] = field(default_factory=dict[int, Claimed])
    alarms: dict[int, asyncio.TimerHandle] = field(default_factory=dict[int, asyncio.TimerHandle])
    head_since: float = 0.0
    is_leaving: bool = False
    stops: dict[int, asyncio.TimerHandle] = field(default_factory=dict[int, asyncio.TimerHandle])
    overdue: set[int] = field(default_factory=set[int])
    stubborn: set[int] = field(default_factory=set[int])  # asked to stop, and did not
    blocked_by: int | None = None
    is_garbled: bool = False
    is_condemned: bool = False  # ended from here, with everything that it holds
    recall_alarm: asyncio.TimerHandle | None = None

    def is_held_up(self, now: float) -> bool:
        """Whether what it runs has proved to be no short task, so that others had better not wait behind it."""
        return self.is_serial and bool(self.calls) and now - self.head_since > HELD_UP_SECONDS

    def pop(self, ticket: int) -> Claimed:
        """Let go of a call that the child speaks of."""
        if ticket not in self.calls:
            raise wire.Garbled(f"it was not sent the call {ticket}, or has answered for it")
        for alarms in (self.alarms, self.stops):
            if (alarm := alarms.pop(ticket, None)) is not None:
                alarm.cancel()
        return self.calls.pop(ticket)

    def empty(self) -> dict[int, Claimed]:
        """Let go of all calls."""
        for alarm in (*self.alarms.values(), *self.stops.values(), self.recall_alarm):
            if alarm is not None:
                alarm.cancel()
        calls, self.calls, self.alarms, self.stops = self.calls, {}, {}, {}
        return calls


class Pipe(asyncio.Protocol):
    """Turns what a child writes into messages."""

    def __init__(
        self,
        sock: socket.socket,
        is_serial: bool,
        received: Callable[[Child, wire.Message], None],
        closed: Callable[[Child], None],
    ) -> None:
        self._sock = sock
        self._is_serial = is_serial
        self._received = received
        self._closed = closed
        self._frames = wire.Frames()
        self.child: Child | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.child = Child(transport, self._is_serial)

    def data_received(self, data: bytes) -> None:
        assert self.child is not None
        try:
            for body in self._frames.feed(data):
                for message in wire.messages(body):
                    self._received(self.child, message)
        except wire.Garbled as error:
            logger.error("child %d wrote garbage to its worker: %s", self.child.pid, error)
            self.child.is_garbled = True
            self.child.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        assert self.child is not None
        self._read_the_rest()
        self._closed(self.child)

    def _read_the_rest(self) -> None:
        """A failed write closes the pipe before everything that the child has said is read."""
        assert self.child is not None
        with suppress(OSError):
            while not self.child.is_garbled and (data := self._sock.recv(READ_BYTES)):
                self.data_received(data)
