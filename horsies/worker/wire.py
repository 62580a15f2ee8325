"""What goes over the pipe between a worker and its children: bytes, never objects of the user's.

A frame is a length, told twice, and a MessagePack list of messages. The parent says where the database is and sends calls;
a child says hello once, then reports the outcome of each call as soon as it has one. When it has done its share it says
that it is leaving, and is dismissed. A pipe that closes without that means that the worker has died. User code can reach the
pipe, too: what is no message is told from one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from horsies.config import PostgresConfig

LENGTH = struct.Struct("!I")
# The length and its complement, so that anything else is told from a length before it is waited for.
HEADER = struct.Struct("!II")


class Garbled(Exception):
    """What came over a pipe is not what its other end would send."""


class Call(msgspec.Struct, array_like=True, frozen=True, tag=0):
    """A task to run. The ticket is the parent's name for this run of it. Not begun by `valid_until`, on the clock that
    all processes of a machine share, it may be someone else's by now and is given back."""

    ticket: int
    task_id: str
    task_name: str
    args: str | None
    kwargs: str | None
    queue_name: str
    attempt: int
    max_retries: int
    timeout_ms: int | None
    valid_until: float
    claim_seq: int
    task_options: str | None
    node: tuple[str, int] | None = None
    inputs: str | None = None
    earlier_attempts: int = 0


class Heritage(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """Where a child is to store what it has done, should the worker die before it could."""

    postgres: PostgresConfig


class Dismissal(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """The worker has everything that it wants of this child, and closes the pipe."""


class Cancel(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """A call is to stop."""

    ticket: int


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
    snooze_seconds: float | None = None  # it is to be run again, and this run counts for nothing


class Returned(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """Calls that a child gives back untouched: it is busy with the one before them, or they came too late."""

    tickets: list[int]


class Begun(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """The user code of a call with a time limit runs from now on, beside others."""

    ticket: int


class TimedOut(msgspec.Struct, array_like=True, frozen=True, tag=4):
    """A call ran past its limit and has been cancelled by the child itself."""

    ticket: int


class Blocked(msgspec.Struct, array_like=True, frozen=True, tag=5):
    """The event loop stands still: which call does not yield, and where in its code, as far as that is known."""

    ticket: int | None
    where: str | None


class Leaving(msgspec.Struct, array_like=True, frozen=True, tag=6):
    """The child has done its share: send it nothing more, and close the pipe when nothing runs in it."""


class Progress(msgspec.Struct, array_like=True, frozen=True, tag=7):
    """How far a call is, as its code says, and when it said so."""

    ticket: int
    done: float
    total: float | None
    message: str
    at: float


class LogLine(msgspec.Struct, array_like=True, frozen=True):
    """A line that the code of a call has logged; they are numbered from 0 on."""

    seq: int
    at: float
    level: str
    logger: str
    message: str


class Logged(msgspec.Struct, array_like=True, frozen=True, tag=8):
    """What the code of a call has logged since it was last told."""

    ticket: int
    lines: list[LogLine]


Order: TypeAlias = Call | Heritage | Dismissal | Cancel
Message: TypeAlias = Hello | Outcome | Returned | Begun | TimedOut | Blocked | Leaving | Progress | Logged

_encode = msgspec.msgpack.Encoder().encode
_decode_orders = msgspec.msgpack.Decoder(list[Order]).decode
_decode_messages = msgspec.msgpack.Decoder(list[Message]).decode


def frame(messages: Sequence[Order] | Sequence[Message]) -> bytes:
    body = _encode(messages)
    return HEADER.pack(len(body), len(body) ^ 0xFFFFFFFF) + body


class Frames:
    """Cuts a stream of bytes into the bodies of frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        self._buffer += data
        bodies: list[bytes] = []
        start = 0
        while len(self._buffer) - start >= HEADER.size:
            size, complement = HEADER.unpack_from(self._buffer, start)
            if size ^ complement != 0xFFFFFFFF:
                raise Garbled("no frame begins here")
            end = start + HEADER.size + size
            if len(self._buffer) < end:
                break
            bodies.append(bytes(self._buffer[start + HEADER.size : end]))
            start = end
        del self._buffer[:start]
        return bodies


def orders(body: bytes) -> list[Order]:
    return _decode_orders(body)


def messages(body: bytes) -> list[Message]:
    try:
        return _decode_messages(body)
    except msgspec.MsgspecError as error:
        raise Garbled(str(error)) from None
