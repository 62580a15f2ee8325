"""The durable steps of one run of a task.

A step has a name. When a task is run again, the steps that have ended return their stored results, and the run goes on after
them. A task that waits for a time, a signal or other tasks is parked: the run ends, and a later run comes to the same step.

The methods are coroutines, also for plain tasks: outside of an event loop nothing in them waits for one, so `event_loop.finish` can
drive them to their end.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import random
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, NoReturn, cast, get_type_hints

import msgspec

from horsies.codec.values import NotEncodable, codec_for, decode_stored_result, locate, type_name
from horsies.db.queries.tasks import as_json
from horsies.errors import SignalTimeout, TaskFailed, TaskFailure, is_storable_text
from horsies.event_loop import is_on_loop
from horsies.executor.protocol import (
    BeginTransaction,
    Call,
    Identity,
    LoadSteps,
    Question,
    StepReply,
    StoredStep,
    StoreStep,
)
from horsies.executor.transactions import transact, transact_async
from horsies.result import TaskError, TaskResult
from horsies.retry import RetryPolicy, class_names, retry_delay
from horsies.status import ContractCode, OperationalErrorCode
from horsies.task import Sender
from horsies.task_context import Parked

MAX_NAME = 255
BODY_POLL_SECONDS = 0.005
# Steps of these kinds return the value of a function; code may change one into the other.
_OF_FUNCTIONS = frozenset({"step", "transact"})
# The task is not parked in a step, but due again at once.
AT_ONCE = '{"name":null,"kind":"","seconds":null,"calls":null}'


class StepPort(NamedTuple):
    """The way in which a run reaches the database: it asks the worker.

    `read` reads the pipe until a reply is there; None if somebody else reads it. `identity` names the worker and its database.
    """

    ask: Callable[[Question], Future[StepReply]]
    read: Callable[[Future[StepReply]], None] | None
    identity: Callable[[], Identity | None]


# The bodies of steps in which this code runs.
_bodies: ContextVar[tuple[str, ...]] = ContextVar("horsies_bodies", default=())


class Steps:
    """The steps of one run.

    Once `is_over`, the run can only end: as parked in a step if there is a `park`, else to be run again at once.
    """

    def __init__(self, call: Call, port: StepPort, limit: int) -> None:
        self._call = call
        self._port = port
        self._limit = limit
        self._attempt = call.earlier_attempts + call.attempt
        self._names: set[str] = set()
        # The first run of a task has no stored steps.
        self._stored: dict[str, StoredStep] | None = {} if call.claim_seq <= 1 else None
        self._questions = 0
        self._running: set[str] = set()  # the steps whose bodies run now
        self.park: str | None = None
        self.is_over = False

    # Steps

    async def step(
        self,
        name: str,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        retry: RetryPolicy | None,
    ) -> Any:
        """Return the stored result of a step, or call its function and store what it returns."""
        value_type = return_type(fn)
        stored = await self._begin(name, "step")
        if stored is not None and stored.result is not None:
            return self._value(name, stored.result, value_type)
        with self._body(name):
            began = time.monotonic()
            value = await _tried(fn, args, kwargs, retry)
            await self._store(name, "step", began, self._encoded(name, value, value_type))
        return value

    async def transact(
        self,
        name: str,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        session: Callable[[], Any] | None,
    ) -> Any:
        """Do the same as `step` in a transaction that also stores the result. A transaction without the claim is rolled back."""
        value_type = return_type(fn)
        stored = await self._begin(name, "transact")
        if stored is not None and stored.result is not None:
            return self._value(name, stored.result, value_type)
        if (await self._ask(BeginTransaction(self._call.ticket, self._next_question()))).parks:
            self._end(None)
        identity = self._port.identity()
        if identity is None:
            raise TaskFailure(
                OperationalErrorCode.STEP_NOT_STORED, f"step {name!r}: the worker has not named its database"
            )
        values = {
            "task_id": self._call.task_id,
            "claim_seq": str(self._call.claim_seq),
            "worker_id": identity.worker_id,
            "name": name,
            "attempt": str(self._attempt),
        }

        def encode(value: Any) -> str:
            return self._encoded(name, value, value_type)

        def work(connection: Any) -> Any:
            return fn(connection, *args, **kwargs)

        with self._body(name):
            if is_on_loop():
                is_async = inspect.iscoroutinefunction(fn)
                done = await transact_async(identity.postgres, session, values, work, encode, is_async)
            else:
                done = transact(identity.postgres, session, values, work, encode)
        if done.is_lost:
            self._end(None)
        return self._value(name, done.stored, value_type) if done.stored is not None else done.value

    async def sleep(self, name: str, seconds: float) -> None:
        """Park the task until its time has come."""
        stored = await self._begin(name, "sleep")
        if stored is None or stored.result is None:
            await self._park(name, "sleep", seconds)

    async def wait_for(self, name: str, value_type: Any, seconds: float | None) -> Any:
        """Return the value of a signal; park the task until it is given or the time is up."""
        stored = await self._begin(name, "wait")
        if stored is None or stored.result is None:
            await self._park(name, "wait", seconds)
        result = self._result(name, stored.result, value_type)
        if result.is_err():
            raise SignalTimeout(name)
        return result.ok_value

    async def call(
        self, name: str, task: Sender[Any, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Return the value of another task; park this one until that has ended."""
        stored = await self._begin(name, "call")
        if stored is None or (stored.result is None and not _have_ended(stored)):
            await self._park(name, "call", None, task, [(tuple(args), kwargs)])
        result_json = stored.result
        if result_json is None:
            (only,) = msgspec.json.decode(stored.calls or "", type=list[msgspec.Raw])
            result_json = bytes(only).decode()
            await self._store(name, "call", time.monotonic(), result_json)
        result = self._result(name, result_json, task.definition.signature.value_type)
        return _value_of(result, task)

    async def call_many(
        self, name: str, task: Sender[Any, Any], calls: Iterable[Any], return_exceptions: bool
    ) -> list[Any]:
        """Return the values of other tasks in order; park this one until all of them have ended."""
        given = [_arguments(call) for call in calls]
        stored = await self._begin(name, "calls")
        if stored is None or (stored.result is None and not _have_ended(stored)):
            if not given:
                return []
            await self._park(name, "calls", None, task, given)
        whole = stored.result
        if whole is None:
            whole = f'{{"ok":{stored.calls}}}'
            await self._store(name, "calls", time.monotonic(), whole)
        value_type = task.definition.signature.value_type
        results = [self._result(name, each, value_type) for each in _documents(name, whole)]
        if return_exceptions:
            return [result.ok_value if result.is_ok() else _failure(result, task) for result in results]
        return [_value_of(result, task) for result in results]

    # The course of a step

    async def _begin(self, name: str, kind: str) -> StoredStep | None:
        """Begin a step and return what is stored of it, None if nothing is. An open step of another kind begins anew."""
        if not is_storable_text(cast("object", name), MAX_NAME):
            raise ValueError(
                f"the name of a step is {name!r}; use a text of 1 to {MAX_NAME} characters without NUL"
            )
        self._check_is_running()
        if name in self._names:
            raise TaskFailure(
                ContractCode.STEP_NAME_REUSED,
                f"the step name {name!r} is used twice in one run; give each step a name of its own, "
                "in a loop for instance with the number of the item",
            )
        self._names.add(name)
        if self._stored is None:
            reply = await self._ask(LoadSteps(self._call.ticket, self._next_question()))
            if reply.error is not None:
                raise TaskFailure(
                    ContractCode.STEP_RESULT_MISMATCH, f"the stored steps cannot be read: {reply.error}"
                )
            self._stored = {step.name: step for step in reply.steps}
        stored = self._stored.get(name)
        if stored is None or stored.kind == kind or _OF_FUNCTIONS.issuperset((stored.kind, kind)):
            return stored
        if stored.result is not None:
            raise _mismatch(name, f"the stored step {name!r} is of the kind {stored.kind!r}, not {kind!r}")
        return None

    async def _store(self, name: str, kind: str, began: float, result: str) -> None:
        seconds = time.monotonic() - began
        question = StoreStep(self._call.ticket, self._next_question(), name, kind, seconds, result)
        reply = await self._ask(question)
        if reply.error is not None:
            raise TaskFailure(
                OperationalErrorCode.STEP_NOT_STORED, f"step {name!r} cannot be stored: {reply.error}"
            )
        if reply.parks:
            self._end(None)

    @contextmanager
    def _body(self, name: str) -> Generator[None]:
        """Run the body of a step in this block: the run does not end before it."""
        token = _bodies.set((*_bodies.get(), name))
        self._running.add(name)
        try:
            yield
        finally:
            self._running.discard(name)
            _bodies.reset(token)

    async def wait_for_bodies(self) -> None:
        """Wait until no body of a step runs beside this code: a later run could call it while it still runs here."""
        own = _bodies.get()
        if is_on_loop():
            await asyncio.sleep(0)  # steps that were begun together with this one come first
        while not self._running.issubset(own):
            if is_on_loop():
                await asyncio.sleep(BODY_POLL_SECONDS)
            else:
                time.sleep(BODY_POLL_SECONDS)  # noqa: ASYNC251  there is no loop here to block

    def _next_question(self) -> int:
        self._questions += 1
        return self._questions

    async def _ask(self, question: Question) -> StepReply:
        """Ask the worker; end the run if another worker has the task by now, or if this one has died."""
        self._check_is_running()
        future = self._port.ask(question)
        if not is_on_loop():
            if self._port.read is not None:
                self._port.read(future)
            reply = future.result()
        elif self._port.read is not None:
            await asyncio.to_thread(self._port.read, future)
            reply = future.result()
        else:
            reply = await asyncio.wrap_future(future)
        if reply.lost:
            self._end(None)
        return reply

    def _check_is_running(self) -> None:
        if self.is_over:
            raise Parked  # the code of the task has caught the first one

    def _end(self, park: str | None) -> NoReturn:
        """End the run, whatever the code of the task still does."""
        if not self.is_over:
            self.is_over, self.park = True, park
        raise Parked

    async def _park(
        self,
        name: str,
        kind: str,
        seconds: float | None,
        task: Sender[Any, Any] | None = None,
        calls: Sequence[tuple[tuple[Any, ...], Mapping[str, Any]]] = (),
    ) -> NoReturn:
        """End the run when the bodies of other steps have ended; the task waits in this step."""
        await self.wait_for_bodies()
        rows = None if task is None else task.rows_to_call(calls)
        self._end(as_json({"name": name, "kind": kind, "seconds": seconds, "calls": rows}))

    # Values

    def _encoded(self, name: str, value: Any, value_type: Any) -> str:
        try:
            return f'{{"ok":{codec_for(value_type).encode(value, self._limit).decode()}}}'
        except NotEncodable as error:
            promised = f"; its function promises {type_name(value_type)}" if error.is_mismatch else ""
            code = (
                ContractCode.RETURN_TYPE_MISMATCH
                if error.is_mismatch
                else OperationalErrorCode.WORKER_SERIALIZATION_ERROR
            )
            raise TaskFailure(
                code, f"the value of step {name!r}{error.path} {error.problem}{promised}"
            ) from error

    def _value(self, name: str, result: str, value_type: Any) -> Any:
        """Return the value of a step that is stored as ended."""
        found = self._result(name, result, value_type)
        if found.is_err():
            raise _not_a(name, value_type, "it is an error")
        return found.ok_value

    def _result(self, name: str, result: str, value_type: Any) -> TaskResult[Any, TaskError]:
        try:
            return decode_stored_result(result, value_type)
        except Exception as error:
            problem, path = locate(error)
            raise _not_a(name, value_type, f"{path}: {problem}" if path else problem) from error


def _mismatch(name: str, problem: str) -> TaskFailure:
    return TaskFailure(
        ContractCode.STEP_RESULT_MISMATCH,
        f"{problem}; give the step another name, or forget it: `horsies retry TASK_ID --from-step NAME`",
        data={"step": name},
    )


def _not_a(name: str, value_type: Any, problem: str) -> TaskFailure:
    return _mismatch(name, f"the stored result of step {name!r} is not a {type_name(value_type)}: {problem}")


# Functions


@functools.lru_cache(maxsize=1024)
def _annotated_return(fn: Callable[..., Any]) -> Any:
    return get_type_hints(fn, include_extras=True).get("return", Any)


def return_type(fn: Callable[..., Any]) -> Any:
    """Return the annotated type of a function's value; Any if it has none that can be found."""
    while isinstance(fn, functools.partial):
        fn = cast("functools.partial[Any]", fn).func
    if not callable(cast("object", fn)):
        raise TypeError(
            f"a step needs a function, not {fn!r}; pass the function and its arguments: step(name, fn, *args)"
        )
    function = getattr(fn, "__func__", fn)
    if "return" not in getattr(function, "__annotations__", ()):
        return Any
    try:
        return _annotated_return(function)
    except Exception:  # noqa: BLE001  an annotation that only type checkers can resolve
        return Any


async def _tried(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], retry: RetryPolicy | None
) -> Any:
    """Call a function, again after each error that the policy retries; all of them if it lists none."""
    failures = 0
    while True:
        try:
            return await _called(fn, args, kwargs)
        except Exception as error:
            delay = None if retry is None else _delay(retry, error, failures)
            if delay is None:
                raise
        failures += 1
        if is_on_loop():
            await asyncio.sleep(delay)
        else:
            time.sleep(delay)  # noqa: ASYNC251  there is no loop here to block


def _delay(retry: RetryPolicy, error: Exception, failures: int) -> float | None:
    if retry.auto_retry_for is None:
        return retry.delay(failures + 1, random.random()) if failures < retry.max_retries else None
    return retry_delay(
        retry,
        str(error.code) if isinstance(error, TaskFailure) else None,
        unmapped_exception=not isinstance(error, TaskFailure),
        exception_classes=class_names(error),
        retry_count=failures,
        random=random.random(),
    )


async def _called(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a function. In an async task, a plain function runs in a thread, so that it does not block the others."""
    on_loop = is_on_loop()
    if on_loop and not inspect.iscoroutinefunction(fn):
        value = await asyncio.to_thread(fn, *args, **kwargs)
    else:
        value = fn(*args, **kwargs)
    if not inspect.isawaitable(value):
        return value
    return await value if on_loop else asyncio.run(_awaited(value))


async def _awaited(value: Any) -> Any:
    return await value


# Called tasks


class _Documents(msgspec.Struct):
    ok: list[msgspec.Raw]


def _documents(name: str, whole: str) -> list[str]:
    """Return the encoded results of the tasks that a step has called."""
    try:
        return [bytes(each).decode() for each in msgspec.json.decode(whole, type=_Documents).ok]
    except msgspec.MsgspecError as error:
        raise _not_a(name, list, str(error)) from error


def _have_ended(stored: StoredStep) -> bool:
    """Return True if all tasks that a step has called have a result."""
    if stored.calls is None:
        return False
    return all(bytes(each) != b"null" for each in msgspec.json.decode(stored.calls, type=list[msgspec.Raw]))


def _arguments(call: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Return the arguments of a call: given as a tuple, a mapping, or a single value."""
    if isinstance(call, Mapping):
        return (), cast("Mapping[str, Any]", call)
    return (cast("tuple[Any, ...]", call) if isinstance(call, tuple) else (call,)), {}


def _failure(result: TaskResult[Any, TaskError], task: Sender[Any, Any]) -> TaskFailed:
    return TaskFailed(result.err_value, task_name=task.definition.name)


def _value_of(result: TaskResult[Any, TaskError], task: Sender[Any, Any]) -> Any:
    if result.is_err():
        raise _failure(result, task)
    return result.ok_value
