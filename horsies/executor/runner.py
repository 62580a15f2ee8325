"""Run one call inside a child: decode the arguments, call the task function, encode the outcome.

Progress and log lines are sent to the worker while the task runs. The internal tasks, which build a sub-workflow and gather the
values of a group, also run here.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Container, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import Token
from datetime import UTC, datetime
from keyword import iskeyword
from typing import Any, get_args, get_origin

import msgspec

from horsies.codec import ArgumentError, Signature, decode_result, encode_result
from horsies.codec.values import why_not_json
from horsies.db.ids import new_ids
from horsies.db.queries.tasks import CANCELLED, CANCELLED_CODE, LINES_KEPT
from horsies.errors import ErrorCode, HorsiesError, RateLimited
from horsies.event_loop import finish
from horsies.executor.durable import AT_ONCE, StepPort, Steps
from horsies.executor.protocol import Call, Logged, LogLine, Outcome, Progress
from horsies.executor.transactions import close_idle
from horsies.middleware import RunContext, headers_of, observe_run, worker_id
from horsies.outcomes import error_of, failed, result_of, unwrapped
from horsies.redaction import Redactor
from horsies.registry import AnyTask, TaskRegistry
from horsies.result import TaskError, TaskResult
from horsies.retry import class_names
from horsies.status import OperationalErrorCode
from horsies.task_context import LOGGERS, CurrentTask, Snooze, TaskChannel, begin, current_channel, end
from horsies.workflow.context import NoValue, arguments, plain_values, read_inputs
from horsies.workflow.definition import DEFINITIONS, WorkflowDefinition
from horsies.workflow.graph import hints_of
from horsies.workflow.spec import (
    BUILD,
    GATHER,
    INTERNAL_TASKS,
    build,
    rows_with_headers,
    sub_workflow_rows,
)
from horsies.workflow.types import takes_result

MESSAGE_LIMIT = 1_000
# The largest result that can be stored, in bytes. PostgreSQL accepts no statement of a gigabyte, and quoting adds to it.
MAX_RESULT = 128 * 1_048_576
_UNOBSERVED = nullcontext()


# Execution


def execute(registry: TaskRegistry, run: Run) -> Outcome:
    """Run a call to its end. An async task that was sent as a plain one gets its own event loop."""
    with observe(registry, run):
        run.started, run.limit = time.perf_counter(), result_limit(registry)
        task, kwargs, result = prepare(registry, run.call)
        if task is None:
            return conclude(registry, run, None, result)
        with run:
            try:
                result = task.definition.fn(**kwargs)
                if task.definition.is_async:
                    result = asyncio.run(on_own_loop(result))
            except BaseException as error:  # noqa: BLE001  any exception, also SystemExit, is the outcome of the task
                finish(run.wait_for_bodies())
                return run.parked() or raised(registry, run, task, error)
        return run.parked() or conclude(registry, run, task, result_of(task.definition, result))


async def on_own_loop(work: Awaitable[Any]) -> Any:
    """Await the function of a task on a loop that ends with it."""
    try:
        return await work
    finally:
        await close_idle()


async def execute_async(registry: TaskRegistry, run: Run) -> Outcome:
    """Run a call to its end on the running loop. A plain task that was sent as an async one gets a thread."""
    with observe(registry, run):
        run.started, run.limit = time.perf_counter(), result_limit(registry)
        task, kwargs, result = prepare(registry, run.call)
        if task is None:
            return conclude(registry, run, None, result)
        with run:
            try:
                if task.definition.is_async:
                    result = await task.definition.fn(**kwargs)
                else:
                    result = await asyncio.to_thread(task.definition.fn, **kwargs)
            except BaseException as error:  # noqa: BLE001  any exception, also a cancellation, is the outcome of the task
                if not isinstance(error, asyncio.CancelledError):
                    await run.wait_for_bodies()
                return run.parked() or raised(registry, run, task, error)
        return run.parked() or conclude(registry, run, task, result_of(task.definition, result))


def result_limit(registry: TaskRegistry) -> int:
    return min(registry.config.payload.reject_bytes or MAX_RESULT, MAX_RESULT)


def observe(registry: TaskRegistry, run: Run) -> AbstractContextManager[None]:
    """Return the block in which middleware observes the run, if there is any."""
    call = run.call
    headers = headers_of(call.task_options)
    if not (headers or registry.middleware):
        return _UNOBSERVED
    run.observed = RunContext(
        task_id=call.task_id,
        task_name=call.task_name,
        attempt=call.attempt,
        queue=call.queue_name,
        worker_id=worker_id(),
        payload=call.kwargs,
        headers=headers,
    )
    return observe_run(run.observed, registry.middleware)


def prepare(
    registry: TaskRegistry, call: Call
) -> tuple[AnyTask | None, dict[str, Any], TaskResult[Any, TaskError] | None]:
    """Return the task of a call and its arguments, or a result if there is nothing to run.

    That is the error if the call cannot be run, or the rows of the sub-workflow that it builds.
    """
    task = registry.tasks.get(call.task_name)
    if task is None and call.task_name not in INTERNAL_TASKS:
        message = f"this worker knows no task {call.task_name!r}"
        return None, {}, failed(OperationalErrorCode.WORKER_RESOLUTION_ERROR, message)
    try:
        if task is None:
            internal = gather(call) if call.task_name == GATHER else build_sub_workflow(registry, call)
            return None, {}, internal
        return task, arguments(task.definition.signature, call.args, call.kwargs, call.inputs), None
    except NoValue as missing:
        return None, {}, missing.result
    except ArgumentError as error:
        names = [] if task is None else list(task.definition.signature.parameters)
        redactor = Redactor(registry.config.redact)
        message = redactor.scrub(str(error), call.args, call.kwargs, call.inputs, parameters=names)
        return None, {}, failed(OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message or "")


def conclude(
    registry: TaskRegistry, run: Run, task: AnyTask | None, result: Any, error: BaseException | None = None
) -> Outcome:
    """Return the outcome of a run that returned a result, and show a failure to the middleware."""
    call = run.call
    value_type = Any if task is None else task.definition.signature.value_type
    encoded = encode_result(result, value_type, result_limit(registry))
    seconds = time.perf_counter() - run.started
    if encoded.startswith(b'{"ok":'):
        return Outcome(call.ticket, True, encoded.decode(), seconds)
    # The stored error may differ from the returned one, for example because that could not be encoded.
    stored = decode_result(encoded, Any).err_value
    code = None if stored.error_code is None else str(stored.error_code)
    message = None if stored.message is None else stored.message[:MESSAGE_LIMIT]
    if run.observed is not None and not run.is_cancelled():
        run.observed.error, run.observed.code, run.observed.message = error, code, message
    return Outcome(call.ticket, False, encoded.decode(), seconds, code, message)


def raised(registry: TaskRegistry, run: Run, task: AnyTask, error: BaseException) -> Outcome:
    """Return the outcome of a run that raised."""
    cause = unwrapped(error)
    if isinstance(cause, Snooze | RateLimited):
        seconds = time.perf_counter() - run.started
        return Outcome(
            run.call.ticket,
            False,
            CANCELLED,
            seconds,
            CANCELLED_CODE,
            str(cause),
            snooze_seconds=cause.seconds,
            holds_lane=isinstance(cause, RateLimited),
        )
    failure, is_unmapped = error_of(task.definition, registry.config, error)
    outcome = conclude(registry, run, task, TaskResult(err=failure), error)
    # The worker stores no classes and knows none: it compares these names with those in the policy of the row.
    return msgspec.structs.replace(
        outcome, unmapped_exception=is_unmapped, exception_classes=class_names(error)
    )


# A run, with its progress and log lines

WINDOW_SECONDS = 0.5
# At most so many messages of a run are sent in each window.
MESSAGES_IN_WINDOW = 100
MAX_LINE = 2_000
MAX_MESSAGE = 500
# Half a surrogate pair cannot be sent, and a NUL cannot be stored.
_UNFIT = {0: "\ufffd", **dict.fromkeys(range(0xD800, 0xE000), "\ufffd")}
# Held while a run records or sends output. It is reentrant because a signal handler of the task may log meanwhile.
_lock = threading.RLock()

_pid = os.getpid()


def own_pid() -> int:
    """Return the id of this process, also after a fork. A system call each time would take longer than a short task."""
    return _pid


def _note_pid() -> None:
    global _pid
    _pid = os.getpid()


os.register_at_fork(after_in_child=_note_pid)


class Run:
    """One run of a call: the channel between `current_task()` and the worker. All threads of the task may use it.

    `send` returns False if it cannot send right now. `cancelled` has the tickets of calls that are to stop. Most runs have no
    output, so nothing is created for it beforehand. The code of the task runs in a `with` block of its run.
    """

    started = 0.0  # on the clock of time.perf_counter
    limit = MAX_RESULT  # the largest result of a step, in bytes
    observed: RunContext | None = None  # set if there is middleware
    batch: Sequence[CurrentTask] | None = None  # the members of a batch
    _lines: deque[LogLine] | None = None
    _progress: Progress | None = None
    _next_line = 0
    _window_ends = 0.0
    _sent_in_window = 0
    _has_ended = False
    _steps: Steps | None = None
    _token: Token[TaskChannel]

    def __init__(
        self,
        call: Call,
        send: Callable[[Progress | Logged], bool],
        cancelled: Container[int],
        port: StepPort | None = None,
    ) -> None:
        self.call = call
        self._send = send
        self._cancelled = cancelled
        self._port = port
        self._pid = own_pid()
        self._deadline = None if call.timeout_ms is None else time.time() + call.timeout_ms / 1000

    @property
    def task(self) -> CurrentTask:
        """The value of `current_task()` for the code of the call."""
        if self.batch is not None:
            raise HorsiesError(
                "a batch of tasks runs here, and not one task",
                code=ErrorCode.TASK_NOT_RUNNING,
                help_text="call current_batch(), which returns all of them in the order of the list",
            )
        return self.task_of(self.call)

    def task_of(self, call: Call) -> CurrentTask:
        """Return the task of a call that runs here."""
        deadline = None if self._deadline is None else datetime.fromtimestamp(self._deadline, UTC)
        return CurrentTask(
            call.task_id, call.task_name, call.attempt, call.max_retries, call.queue_name, deadline, self
        )

    def is_cancelled(self) -> bool:
        return self.call.ticket in self._cancelled

    @property
    def steps(self) -> Steps:
        """The steps of the run; raise HorsiesError where there is no way to store any."""
        with _lock:
            if self._steps is None:
                if self._port is None or self.batch is not None or not self._accepts_output():
                    raise HorsiesError(
                        "steps cannot be stored here",
                        code=ErrorCode.TASK_NOT_RUNNING,
                        help_text="use them in the code of a task while a worker runs it, in its own process and not in a batch",
                    )
                self._steps = Steps(self.call, self._port, self.limit)
            return self._steps

    async def wait_for_bodies(self) -> None:
        """Wait until no step runs any more that the code of the task has begun and not awaited."""
        if self._steps is not None:
            await self._steps.wait_for_bodies()

    def parked(self) -> Outcome | None:
        """Return the outcome of a run that ends in a step, None for any other run.

        Without a step to wait in, the task is due again at once: the worker stops, or another one has the task.
        """
        if self._steps is None or not self._steps.is_over:
            return None
        seconds = time.perf_counter() - self.started
        message = "the task is parked"
        park = self._steps.park or AT_ONCE
        return Outcome(self.call.ticket, False, CANCELLED, seconds, CANCELLED_CODE, message, park=park)

    def __enter__(self) -> None:
        """Make this the current run, whose log lines are captured."""
        install_log_handler()
        self._token = begin(self)

    def __exit__(self, *_error: object) -> None:
        """Send the output that was held back. The outcome is sent next."""
        end(self._token)
        if self._lines or self._progress is not None:
            with _lock:
                self._sent_in_window = 0
                self._flush()
        self._has_ended = True

    def report(self, done: float, total: float | None, message: str) -> None:
        """Record the progress, and send it unless too many messages were sent already."""
        if self._accepts_output():
            with _lock:
                text = truncate(message, MAX_MESSAGE)
                self._progress = Progress(self.call.ticket, done, total, text, time.time())
                self._flush()

    def log(self, at: float, level: str, logger: str, message: str) -> None:
        """Record a log line, and send it unless too many messages were sent already."""
        if self._accepts_output():
            with _lock:
                if self._lines is None:
                    self._lines = deque(maxlen=LINES_KEPT)
                source, text = truncate(logger, MAX_MESSAGE), truncate(message, MAX_LINE)
                self._lines.append(LogLine(self._next_line, at, level, source, text))
                self._next_line += 1
                self._flush()

    def _accepts_output(self) -> bool:
        """Return False in a thread that has outlived its task, and in a process that the task has forked."""
        return not self._has_ended and own_pid() == self._pid

    def _flush(self) -> None:
        now = time.monotonic()
        if now >= self._window_ends:
            self._window_ends, self._sent_in_window = now + WINDOW_SECONDS, 0
        if self._sent_in_window >= MESSAGES_IN_WINDOW:
            return
        self._sent_in_window += 1
        if self._lines and self._send(Logged(self.call.ticket, list(self._lines))):
            self._lines.clear()
        if self._progress is not None and self._send(self._progress):
            self._progress = None


class Capture(logging.Handler):
    """Records log lines in the run in whose context they are logged."""

    def emit(self, record: logging.LogRecord) -> None:
        run = current_channel()
        if isinstance(run, Run):
            try:
                message = self.format(record)
            except Exception:  # noqa: BLE001  as in any handler: a line that cannot be formatted does not fail the task
                self.handleError(record)
                return
            run.log(record.created, record.levelname, record.name, message)
        if (
            record.levelno >= logging.WARNING
            and not _has_other_handler(record.name)
            and logging.lastResort is not None
        ):
            logging.lastResort.handle(record)  # as without this handler


CAPTURE = Capture()


def _has_other_handler(name: str) -> bool:
    """Return True if any other handler gets the records of this logger."""
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        if any(handler is not CAPTURE for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


def install_log_handler() -> None:
    """Capture the log lines of this process. Done for each run, because user code may have removed the handler."""
    if CAPTURE not in logging.root.handlers:
        logging.root.addHandler(CAPTURE)
        tasks = logging.getLogger(LOGGERS)
        if tasks.level == logging.NOTSET:
            tasks.setLevel(logging.INFO)


def truncate(text: str, longest: int) -> str:
    """Return the beginning of a text, without characters that cannot be sent or stored."""
    cut = text if len(text) <= longest else text[: longest - 1] + "…"
    return cut if cut.isascii() and "\0" not in cut else cut.translate(_UNFIT)


# Internal tasks of workflows


def gather(call: Call) -> TaskResult[Any, TaskError]:
    """Return the list of the values that a group's nodes returned; the error of the first that has none."""
    if call.inputs is None:
        raise ArgumentError(f"task {GATHER!r} runs for a node of a workflow, and this one belongs to none")
    try:
        results = read_inputs(call.inputs).args or {}
        order = sorted(results, key=int)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ArgumentError(f"the arguments of task {GATHER!r} cannot be read: {error}") from error
    values: list[Any] = []
    for name in order:
        result = decode_result(bytes(results[name]), Any)
        if result.is_err():
            return result
        values.append(result.ok_value)
    return TaskResult(ok=values)


class _BuildArguments(msgspec.Struct, forbid_unknown_fields=True):
    definition_key: str
    kwargs: msgspec.Raw


def build_sub_workflow(registry: TaskRegistry, call: Call) -> TaskResult[Any, TaskError]:
    """Build a sub-workflow and return its rows, which are stored as a part of its parent.

    Raise ArgumentError, before the builder is called, for arguments that it does not take, and NoValue if a parameter takes
    the plain value of a node that has none.
    """
    if call.args is not None:
        raise ArgumentError(f"task {BUILD!r} takes its arguments by name, and was given some by position")
    if call.inputs is None:
        raise ArgumentError(f"task {BUILD!r} runs for a node of a workflow, and this one belongs to none")
    try:
        asked = msgspec.json.decode(call.kwargs or "{}", type=_BuildArguments)
        inputs = read_inputs(call.inputs)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ArgumentError(f"the arguments of task {BUILD!r} cannot be read: {error}") from error
    key, results = asked.definition_key, inputs.args or {}
    definition = DEFINITIONS.get(key)
    if definition is None:
        message = f"this worker knows no workflow definition {key!r}"
        return failed(OperationalErrorCode.SUBWORKFLOW_LOAD_FAILED, message)
    task_name = f"{BUILD} of {key}"
    hints = {name: each.annotation for name, each in _accepted(definition, set(results)).items()}
    told = plain_values(task_name, hints, results, optional=inputs.optional)
    whole = {name: document for name, document in told.items() if takes_result(hints.get(name))}
    plain = {name: value for name, value in told.items() if name not in whole}
    kwargs = _own_arguments(definition, task_name, asked.kwargs, plain, whole)
    try:
        for name, document in whole.items():
            kwargs[name] = decode_result(bytes(document), _value_type(hints.get(name)))
        spec = build(definition, registry, kwargs)
    except Exception as error:  # noqa: BLE001  whatever user code raises is the error of the node
        message = f"{key!r} cannot be built: {type(error).__name__}: {error}"
        return failed(OperationalErrorCode.SUBWORKFLOW_LOAD_FAILED, message)
    rows = rows_with_headers(sub_workflow_rows(spec, new_ids(1)[0], inputs), headers_of(call.task_options))
    return TaskResult(ok=msgspec.to_builtins(rows))


def _own_arguments(
    definition: type[WorkflowDefinition[Any]],
    task_name: str,
    kwargs: msgspec.Raw,
    values: Mapping[str, msgspec.Raw],
    results: Collection[str],
) -> dict[str, Any]:
    """Return the builder's arguments with the values of other nodes, decoded by its annotations, and without the results."""
    try:
        given = {**msgspec.json.decode(kwargs, type=dict[str, msgspec.Raw]), **values}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ArgumentError(f"the arguments of task {task_name!r} cannot be read: {error}") from error
    for name in given:
        if not name.isidentifier() or iskeyword(name):
            raise ArgumentError(f"task {task_name!r} has no argument {name!r}")
    accepted = _accepted(definition, {*results, *given})
    for name in results:
        if name not in accepted:
            raise ArgumentError(f"task {task_name!r} has no argument {name!r}")
    for name in given:
        if name in accepted and takes_result(accepted[name].annotation):
            raise ArgumentError(f"argument {name!r} of task {task_name!r} is the result of another node")
    own: dict[str, inspect.Parameter] = {}
    for name, parameter in accepted.items():
        if name not in results:
            # Values of a type that cannot be decoded from JSON are passed on as they are.
            cannot = why_not_json(parameter.annotation)
            own[name] = parameter.replace(annotation=Any) if cannot else parameter
    signature = Signature(task_name=task_name, value_type=Any, parameters=own, injected=frozenset())
    return signature.decode(None, msgspec.json.encode(given))


def _accepted(definition: type[WorkflowDefinition[Any]], names: set[str]) -> dict[str, inspect.Parameter]:
    """Return the builder's parameters except the app, with their types. `**params` stands for each given name."""
    if definition.build_with.__func__ is WorkflowDefinition.build_with.__func__:  # pyright: ignore[reportFunctionMemberAccess]
        return {}  # not overridden: it takes no arguments
    hints = hints_of(definition)
    accepted: dict[str, inspect.Parameter] = {}
    _app, *parameters = inspect.signature(definition.build_with).parameters.values()
    for parameter in parameters:
        annotation = hints.get(parameter.name, Any)
        if parameter.kind is parameter.VAR_KEYWORD:
            for name in names:
                accepted.setdefault(
                    name, inspect.Parameter(name, parameter.KEYWORD_ONLY, annotation=annotation)
                )
        elif parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            accepted[parameter.name] = parameter.replace(annotation=annotation)
    return accepted


def _value_type(annotation: Any) -> Any:
    """Return the T of `TaskResult[T, TaskError]`, also in a union; Any if the annotation has no such type."""
    for each in (annotation, *get_args(annotation)):
        if get_origin(each) is TaskResult:
            return get_args(each)[0]
    return Any
