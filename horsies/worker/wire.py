"""What goes over the pipe between a worker and its children: bytes, never objects of the user's.

A frame is a length and a MessagePack list of messages. The parent sends calls; a child says hello once, then reports
the outcome of each call as soon as it has one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

LENGTH = struct.Struct("!I")


class Call(msgspec.Struct, array_like=True, frozen=True):
    """A task to run. The ticket is the parent's name for this run of it."""

    ticket: int
    task_id: str
    task_name: str
    args: str | None
    kwargs: str | None
    queue_name: str
    attempt: int
    max_retries: int
    timeout_ms: int | None


class Hello(msgspec.Struct, array_like=True, frozen=True, tag=0):
    """A child is ready, or could not get ready and says why."""

    pid: int
    memory_mb: float
    error: str | None = None


class Outcome(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """How a run ended: `result` is an encoded TaskResult that the parent stores and never opens."""

    ticket: int
    ok: bool
    result: str
    seconds: float
    error_code: str | None = None
    message: str | None = None
    unmapped_exception: bool = False
    retiring: bool = False


class Returned(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """Calls that a child gives back untouched, because it is busy with the one before them."""

    tickets: list[int]


Message: TypeAlias = Hello | Outcome | Returned

_encode = msgspec.msgpack.Encoder().encode
_decode_calls = msgspec.msgpack.Decoder(list[Call]).decode
_decode_messages = msgspec.msgpack.Decoder(list[Message]).decode


def frame(messages: Sequence[Call] | Sequence[Message]) -> bytes:
    body = _encode(messages)
    return LENGTH.pack(len(body)) + body


class Frames:
    """Cuts a stream of bytes into the bodies of frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        self._buffer += data
        bodies: list[bytes] = []
        start = 0
        while len(self._buffer) - start >= LENGTH.size:
            (size,) = LENGTH.unpack_from(self._buffer, start)
            end = start + LENGTH.size + size
            if len(self._buffer) < end:
                break
            bodies.append(bytes(self._buffer[start + LENGTH.size : end]))
            start = end
        del self._buffer[:start]
        return bodies


def calls(body: bytes) -> list[Call]:
    return _decode_calls(body)


def messages(body: bytes) -> list[Message]:
    return _decode_messages(body)


def retiring(outcome: Outcome) -> Outcome:
    """The last outcome of a child that is about to be replaced."""
    return msgspec.structs.replace(outcome, retiring=True)
