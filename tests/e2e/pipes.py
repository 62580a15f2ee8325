"""A child without its worker: the other end of its pipe is spoken over by hand."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

from horsies.executor import protocol
from horsies.executor.protocol import ChildKind, ChildSettings
from horsies.executor.tokens import TokenPipe
from tests.support.workers import Workplace


def settings_for(workplace: Workplace, *, max_tasks: int = 0) -> ChildSettings:
    """What a child of a worker would be told."""
    return ChildSettings(
        locator="app:app",
        imports=[],
        sys_path=[str(workplace.folder), *sys.path],
        threads=2,
        max_tasks=max_tasks,
        max_memory_mb=None,
        orphan_seconds=5.0,
    )


class Line:
    """The worker's end of a pipe."""

    def __init__(
        self, sock: socket.socket, process: subprocess.Popen[bytes], tokens: TokenPipe | None
    ) -> None:
        self._sock = sock
        self._tokens = tokens
        self._frames = protocol.Frames()
        self._messages: list[protocol.Message] = []
        self.process = process

    def hear(self) -> protocol.Message:
        while not self._messages:
            data = self._sock.recv(65_536)
            assert data, "the child has hung up"
            for body in self._frames.split(data):
                self._messages += protocol.decode_messages(body)
        return self._messages.pop(0)

    def hear_now(self) -> list[protocol.Message]:
        """Everything that the child has said so far."""
        while select.select([self._sock], [], [], 0)[0]:
            data = self._sock.recv(65_536)
            assert data, "the child has hung up"
            for body in self._frames.split(data):
                self._messages += protocol.decode_messages(body)
        heard, self._messages = self._messages, []
        return heard

    def say(self, *orders: protocol.Order) -> None:
        self._sock.sendall(protocol.frame(orders))
        if self._tokens is not None:
            self._tokens.give(order.ticket for order in orders if isinstance(order, protocol.Call))

    def take_back(self) -> list[int]:
        """Take back the calls that the child has not begun."""
        assert self._tokens is not None
        return self._tokens.take_all()

    def cut(self) -> None:
        """As the end of a worker does it."""
        self._sock.close()

    def hang_up(self) -> None:
        """Cut the pipe; returns when the child has ended."""
        self.cut()
        assert self.process.wait(20) == 0


@contextmanager
def child(settings: ChildSettings, kind: ChildKind) -> Generator[Line]:
    """A child process, ended at the latest with the block."""
    ours, theirs = socket.socketpair()
    ours.settimeout(20)
    tokens = TokenPipe() if kind is ChildKind.SERIAL else None
    entry = "from horsies.executor.child import main; main()"
    extra = [] if tokens is None else [tokens.descriptor]
    process = subprocess.Popen(
        [sys.executable, "-c", entry, str(theirs.fileno()), settings.to_argument(), kind, *map(str, extra)],
        pass_fds=[theirs.fileno(), *extra],
    )
    theirs.close()
    try:
        yield Line(ours, process, tokens)
    finally:
        ours.close()
        if tokens is not None:
            tokens.close()
        process.kill()
        process.wait()
