"""The messages between a worker and its children, and the settings that a child is started with.

Messages are msgspec structs in length-prefixed frames. Several calls or outcomes may share a frame.
"""

from __future__ import annotations

import signal
import struct
from collections.abc import Sequence
from enum import StrEnum
from typing import TypeAlias

import msgspec

from horsies.config import PostgresConfig


class ChildKind(StrEnum):
    """The way in which a child runs its calls: one after another, in threads, or on an event loop."""

    SERIAL = "s"
    THREADS = "t"
    ASYNC = "a"


class ChildSettings(msgspec.Struct, frozen=True):
    """The app to load, and the limits after which a child is replaced."""

    locator: str
    imports: list[str]
    sys_path: list[str]
    threads: int
    max_tasks: int  # 0 for no limit
    max_memory_mb: int | None
    # The time that children have to store their last results when their worker has died, well within its lease.
    orphan_seconds: float
    loglevel: str = "INFO"
    min_seconds: float = 0.0  # a younger child is not replaced because of `max_tasks`

    def to_argument(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_argument(cls, argument: str) -> ChildSettings:
        return msgspec.json.decode(argument, type=cls)


# Tells a serial child that runs a call to read its pipe: the call was cancelled. It is a rarely used signal that is ignored
# by default, so it does no harm to a task that has reset all handlers.
READ_ORDERS = signal.SIGURG
# The length and its complement, so that garbage is not taken for a length that the reader would then wait for.
HEADER = struct.Struct("!II")


class ProtocolError(Exception):
    """A message that the other end of the pipe would never send."""


class Call(msgspec.Struct, array_like=True, frozen=True, tag=0):
    """A task to run. The ticket is the worker's number for this run.

    A call that was not started by `valid_until` is returned: the task may belong to another worker by then. The time is
    on the monotonic clock, which all processes of a machine share.
    """

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
    members: list[Call] = []  # of a batch, which runs as one call: all of them, the first one included


class Identity(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """The id of the worker, and the database in which a child stores its last results if the worker dies."""

    postgres: PostgresConfig
    worker_id: str


class Exit(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """The child is to exit. The worker has read all of its results and closes the pipe."""


class Cancel(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """Cancel a call."""

    ticket: int


class StoredStep(msgspec.Struct, array_like=True, frozen=True):
    """A step of an earlier run: its encoded result if it has ended, or the results of the tasks that it has called.

    `calls` is a JSON list of encoded results, with null for a task that has none.
    """

    name: str
    kind: str
    result: str | None
    calls: str | None = None


class StepReply(msgspec.Struct, array_like=True, tag=4):
    """The answer to a question about steps.

    `lost` means that another worker has the task by now. With `parks`, the worker stops: the task is to be parked. `error` says
    why a step cannot be stored.
    """

    ticket: int
    number: int
    lost: bool = False
    parks: bool = False
    error: str | None = None
    steps: list[StoredStep] = []


class Hello(msgspec.Struct, array_like=True, frozen=True, tag=0):
    """The child is ready, or could not get ready because of `error`."""

    pid: int
    memory_mb: float
    error: str | None = None


class Outcome(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """The outcome of a call. `result` is an encoded TaskResult, which the worker stores and never decodes."""

    ticket: int
    ok: bool
    result: str
    seconds: float
    error_code: str | None = None
    message: str | None = None
    unmapped_exception: bool = False
    snooze_seconds: float | None = (
        None  # run the task again after so long; this run does not count as an attempt
    )
    exception_classes: list[str] | None = (
        None  # the names of the classes of the exception, for the retry policy
    )
    holds_lane: bool = False  # no task of its key or rate starts before it is run again
    park: str | None = None  # JSON: the step in which the task waits; see the statement `park`


class BatchOutcome(msgspec.Struct, array_like=True, frozen=True, tag=14):
    """The outcomes of the members of a batch, in their order."""

    ticket: int
    outcomes: list[Outcome]


class Returned(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """Calls that a child returns without having started them: they came too late, or were cancelled."""

    tickets: list[int]


class Started(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """The user code of a call with a time limit has started, in a child that runs several calls at once."""

    ticket: int


class TimedOut(msgspec.Struct, array_like=True, frozen=True, tag=4):
    """A call exceeded its time limit, and the child has cancelled it."""

    ticket: int


class Blocked(msgspec.Struct, array_like=True, frozen=True, tag=5):
    """The event loop is blocked by a call, at a line of its code, as far as both are known."""

    ticket: int | None
    where: str | None


class Retiring(msgspec.Struct, array_like=True, frozen=True, tag=6):
    """The child has reached a limit. It takes no more calls, and exits when its calls have ended."""


class Progress(msgspec.Struct, array_like=True, frozen=True, tag=7):
    """The progress of a call, as reported by its code."""

    ticket: int
    done: float
    total: float | None
    message: str
    at: float


class LogLine(msgspec.Struct, array_like=True, frozen=True):
    """A line that the code of a call has logged. The lines of a call are numbered from 0."""

    seq: int
    at: float
    level: str
    logger: str
    message: str


class Logged(msgspec.Struct, array_like=True, frozen=True, tag=8):
    """The lines that the code of a call has logged since the last such message."""

    ticket: int
    lines: list[LogLine]


class LoadSteps(msgspec.Struct, array_like=True, frozen=True, tag=9):
    """A call asks for the steps of its earlier runs. The number belongs to this question."""

    ticket: int
    number: int


class StoreStep(msgspec.Struct, array_like=True, frozen=True, tag=10):
    """A step of a call has ended. The call goes on when the step is stored."""

    ticket: int
    number: int
    name: str
    kind: str
    seconds: float
    result: str


class BeginTransaction(msgspec.Struct, array_like=True, frozen=True, tag=13):
    """A call is about to store a step in a transaction of its own. The worker answers at once: it only says if it stops."""

    ticket: int
    number: int


Question: TypeAlias = LoadSteps | StoreStep | BeginTransaction
# An order goes from the worker to a child, a message from a child to its worker.
Order: TypeAlias = Call | Identity | Exit | Cancel | StepReply
Message: TypeAlias = (
    Hello
    | Outcome
    | BatchOutcome
    | Returned
    | Started
    | TimedOut
    | Blocked
    | Retiring
    | Progress
    | Logged
    | Question
)

_encode = msgspec.msgpack.Encoder().encode
_decode_messages = msgspec.msgpack.Decoder(list[Message]).decode
# Decodes the body of a frame from the worker.
decode_orders = msgspec.msgpack.Decoder(list[Order]).decode


def frame(messages: Sequence[Order] | Sequence[Message]) -> bytes:
    """Encode messages as one frame."""
    body = _encode(messages)
    return HEADER.pack(len(body), len(body) ^ 0xFFFFFFFF) + body


class Frames:
    """Splits a stream of bytes into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def split(self, data: bytes) -> list[bytes]:
        """Return the bodies of the frames that are complete with this data."""
        self._buffer += data
        bodies: list[bytes] = []
        start = 0
        while len(self._buffer) - start >= HEADER.size:
            size, complement = HEADER.unpack_from(self._buffer, start)
            if size ^ complement != 0xFFFFFFFF:
                raise ProtocolError("no frame begins here")
            end = start + HEADER.size + size
            if len(self._buffer) < end:
                break
            bodies.append(bytes(self._buffer[start + HEADER.size : end]))
            start = end
        del self._buffer[:start]
        return bodies


def decode_messages(body: bytes) -> list[Message]:
    """Decode the body of a frame from a child, which tasks may have written to."""
    try:
        return _decode_messages(body)
    except msgspec.MsgspecError as error:
        raise ProtocolError(str(error)) from None
