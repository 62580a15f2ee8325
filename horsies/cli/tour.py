"""The tour of `horsies demo`: what is sent, and what is promised to come of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias, TypeVar

from horsies.cli.demo_app import SumOfSquares, add, app, charge, crash, divide, fetch, spin
from horsies.errors import DatabaseError, ErrorCode
from horsies.handle import TaskHandle
from horsies.results import (
    BrokerOperationError,
    HandleOperationError,
    Ok,
    Result,
    TaskError,
    TaskInfo,
    TaskResult,
    TaskSendError,
    TaskSendResult,
    WorkflowStartError,
)
from horsies.status import OperationalErrorCode, OutcomeCode, TaskStatus, WorkflowStatus

T = TypeVar("T")

BULK = 3_000
BULK_CHUNK = 500
PATIENCE_MS = 15_000

COMPLETED, FAILED, EXPIRED = TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.EXPIRED


@dataclass(frozen=True, slots=True)
class Stop:
    """One stop of the tour."""

    what: str
    send: Callable[[], TaskSendResult[TaskHandle[Any]]]
    status: TaskStatus
    outcome: str  # the value, or the code of the error
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of a stop."""

    what: str
    status: str
    attempts: int
    outcome: str
    milliseconds: float
    promise: str | None = None  # what should have come of it, if that is something else

    @property
    def cells(self) -> list[str]:
        return [self.what, self.status, f"{self.attempts:,}", self.outcome, f"{self.milliseconds:,.0f}"]


STOPS: Sequence[Stop] = (
    Stop("adds two numbers", lambda: add.send(2, 3), COMPLETED, "5"),
    Stop("fails with a code of its own", lambda: charge.send(100), FAILED, "CARD_DECLINED"),
    Stop("raises an exception", lambda: divide.send(1, 0), FAILED, OperationalErrorCode.UNHANDLED_EXCEPTION),
    Stop(
        "fails, is retried and succeeds",
        # The retry comes a second after the failure, so it finds the service up.
        lambda: fetch.send(up_at=datetime.now(UTC) + timedelta(seconds=1)),
        COMPLETED,
        "'fetched'",
        attempts=2,
    ),
    Stop("runs a second later", lambda: add.schedule(1, 20, 22), COMPLETED, "42"),
    Stop("runs too long and is stopped", lambda: spin.send(), FAILED, OutcomeCode.TASK_TIMEOUT),
    Stop("crashes its process", lambda: crash.send(), FAILED, OperationalErrorCode.WORKER_CRASHED),
    Stop(
        "expires before it is due",
        lambda: add.with_options(
            good_until=datetime.now(UTC) + timedelta(seconds=0.5), delay_seconds=60
        ).send(1, 1),
        EXPIRED,
        OutcomeCode.TASK_EXPIRED,
        attempts=0,
    ),
)


Trouble: TypeAlias = TaskSendError | BrokerOperationError | WorkflowStartError | HandleOperationError


def answered(answer: Result[T, Trouble]) -> T:
    """What the database answered; when it cannot be asked, there is no tour."""
    if isinstance(answer, Ok):
        return answer.ok_value
    raise DatabaseError(
        f"the database went away: {answer.err_value.message}",
        code=ErrorCode.DATABASE_UNREACHABLE,
        help_text="see that the server runs, then start the demo again",
    )


def visit(stop: Stop) -> Seen:
    """Send the task of a stop, wait for its end and compare that with the promise."""
    started = time.perf_counter()
    handle = answered(stop.send())
    result = handle.get(timeout_ms=PATIENCE_MS)
    milliseconds = (time.perf_counter() - started) * 1000
    info = answered(handle.info(include_attempts=True))
    return judge(stop, info, result, milliseconds)


def workflow() -> Seen:
    """Start the workflow, wait for its end, and count the tasks that it took."""
    started = time.perf_counter()
    handle = answered(SumOfSquares.build(app).start())
    result = handle.get(timeout_ms=PATIENCE_MS)
    milliseconds = (time.perf_counter() - started) * 1000
    status = answered(handle.status())
    outcome = repr(result.ok_value) if result.is_ok() else str(result.err_value.error_code)
    kept = (status, outcome) == (WorkflowStatus.COMPLETED, "30")
    promise = None if kept else "COMPLETED with 30"
    nodes = len(answered(handle.tasks()))
    return Seen("is a workflow that squares and sums", str(status), nodes, outcome, milliseconds, promise)


def judge(stop: Stop, info: TaskInfo | None, result: TaskResult[Any, TaskError], milliseconds: float) -> Seen:
    """What came of a stop, beside its promise."""
    status = "unknown" if info is None else str(info.status)
    attempts = 0 if info is None else len(info.attempts or ())
    outcome = repr(result.ok_value) if result.is_ok() else str(result.err_value.error_code)
    kept = (status, attempts, outcome) == (stop.status, stop.attempts, stop.outcome)
    promise = None if kept else f"{stop.status} after {_times(stop.attempts)} with {stop.outcome}"
    return Seen(stop.what, status, attempts, outcome, milliseconds, promise)


def _times(attempts: int) -> str:
    return "1 attempt" if attempts == 1 else f"{attempts} attempts"


def bulk() -> Iterator[int | Seen]:
    """Send many tasks at once; gives how many have ended so far, and at last what came of them."""
    started = time.perf_counter()
    handles = answered(add.send_many([(number, 1) for number in range(BULK)]))
    stored = time.perf_counter()
    right, wrong = 0, None
    while right < BULK and wrong is None:
        results = asyncio.run(_results(handles[right : right + BULK_CHUNK]))
        expected = range(right + 1, right + 1 + len(results))
        pairs = zip(results, expected, strict=True)
        wrong = next((got for got, value in pairs if got != TaskResult(ok=value)), None)
        right += len(results) if wrong is None else results.index(wrong)
        yield right
    ended = time.perf_counter()
    rates = f"sent at {BULK / (stored - started):,.0f}/s, done at {right / (ended - started):,.0f}/s"
    milliseconds = (ended - started) * 1000
    status = COMPLETED if wrong is None else FAILED
    promise = None if wrong is None else f"COMPLETED; number {right + 1:,} gave {wrong}"
    yield Seen(f"is one of {BULK:,} sent at once", status, right, rates, milliseconds, promise)


async def _results(handles: Sequence[TaskHandle[int]]) -> list[TaskResult[int, TaskError]]:
    return await asyncio.gather(*(handle.get_async(timeout_ms=PATIENCE_MS) for handle in handles))
