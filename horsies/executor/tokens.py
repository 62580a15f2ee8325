"""Tokens decide who has a call: the child that begins it, or the worker that takes it back.

A serial child is sent calls ahead. Beside the calls, the worker writes one token per call into a pipe whose read end both
processes hold. The child reads a token before it begins a call; the worker reads tokens to take calls back. The kernel gives
each token to exactly one reader, so no call is begun and taken back, and none is left to nobody. The worker needs no answer
from the child, which may be busy in code that no signal interrupts.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable

_TOKEN = struct.Struct("q")
# So many tokens always fit into a pipe, which on Linux holds 8,192.
MAX_TOKENS = 512


class TokenReader:
    """The read end of the pipe, in the child and in the worker. No read blocks."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.is_closed = False

    def take(self) -> int | None:
        """Take the token of the oldest call and return its ticket; None if there is none right now."""
        try:
            token = os.read(self.descriptor, _TOKEN.size)
        except BlockingIOError:
            return None
        return int(_TOKEN.unpack(token)[0]) if token else None

    def take_all(self) -> list[int]:
        """Take all tokens and return their tickets, the oldest first."""
        if self.is_closed:
            return []
        tickets: list[int] = []
        while (ticket := self.take()) is not None:
            tickets.append(ticket)
        return tickets


class TokenPipe(TokenReader):
    """The pipe as the worker has it: both ends."""

    def __init__(self) -> None:
        read_end, self._write_end = os.pipe()
        # O_NONBLOCK belongs to the open file, so it holds in the child as well.
        os.set_blocking(read_end, False)
        os.set_blocking(self._write_end, False)
        super().__init__(read_end)

    def give(self, tickets: Iterable[int]) -> None:
        """Let the child begin these calls, in this order."""
        os.write(self._write_end, b"".join(map(_TOKEN.pack, tickets)))

    def close(self) -> None:
        """Close the worker's copies of both ends. There are no tokens to take any more."""
        if not self.is_closed:
            self.is_closed = True
            os.close(self.descriptor)
            os.close(self._write_end)
