"""Middleware around sends and runs, and the headers that are stored with a task.

A middleware's hooks are called for every send and every run, in the process in which it happens. A hook can neither stop a
task nor change its outcome: a middleware error is logged and never fails the task.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast
from uuid import UUID

import msgspec

logger = logging.getLogger("horsies.middleware")

Headers = Mapping[str, Any]

# How long a child process may take to flush its middleware when it exits.
FLUSH_SECONDS = 3.0


@dataclass(slots=True, kw_only=True)
class RunContext:
    """The run of a task; `error`, `code` and `message` are set at its end, if it failed."""

    task_id: str
    task_name: str
    attempt: int
    queue: str
    worker_id: str | None = None
    payload: str | None = None
    headers: Headers = field(default_factory=dict[str, Any])
    error: BaseException | None = None
    code: str | None = None
    message: str | None = None


@dataclass(slots=True, kw_only=True)
class SendContext:
    """The send of tasks of one name, or the start of a workflow. A hook may add headers; `failure` is the code of a failed send."""

    task_name: str
    queue: str
    task_ids: Sequence[str]
    headers: dict[str, Any] = field(default_factory=dict[str, Any])
    failure: str | None = None


C = TypeVar("C", RunContext, SendContext)


class Middleware:
    """Base class of middleware: override the hooks that you need."""

    def sending(self, sent: SendContext) -> AbstractContextManager[Any]:
        """Return a context manager that is entered before tasks are stored and left when they are stored or have failed."""
        return nullcontext(sent)

    def running(self, task: RunContext) -> AbstractContextManager[Any]:
        """Return a context manager that is entered before a task's arguments are decoded and left before its result is reported."""
        return nullcontext(task)

    def leaving(self) -> None:
        """Flush buffers before a child process exits; it has `FLUSH_SECONDS`."""


_log_context: ContextVar[Headers] = ContextVar("horsies_log_context", default={})  # noqa: B039  replaced, never mutated

CONTEXT_HEADER = "context"
_worker_id: str | None = None


def set_worker_id(worker: str | None) -> None:
    """Set the worker that this child process belongs to."""
    global _worker_id
    _worker_id = worker


def worker_id() -> str | None:
    """Return the id of the worker that this child process belongs to; None in other processes."""
    return _worker_id


@contextmanager
def log_context(**values: str | int | float | bool) -> Generator[None]:
    """Add values to the log lines of every task that is sent in this block, and of the tasks that those send.

    >>> with log_context(request_id="7f3a"):
    ...     add.send(2, 3)
    """
    token = _log_context.set({**_log_context.get(), **values})
    try:
        yield
    finally:
        _log_context.reset(token)


def current_log_context() -> Headers:
    """Return the values of `log_context`; in a task, the values from where the task was sent."""
    return _log_context.get()


def is_observed(middleware: Sequence[Middleware]) -> bool:
    """Return True if there is anybody to see a send, or a log context to send along."""
    return bool(middleware or _log_context.get())


@contextmanager
def observe_run(task: RunContext, middleware: Sequence[Middleware]) -> Generator[None]:
    """Run a task in this block, with the log context of its sender and the `running` hooks around it."""
    token = _log_context.set(header_dict(task.headers, CONTEXT_HEADER))
    try:
        with _enter_hooks([each.running for each in middleware], task):
            yield
    finally:
        _log_context.reset(token)


def observe_send(
    middleware: Sequence[Middleware], task_name: str, queue: str, ids: Sequence[UUID]
) -> AbstractContextManager[SendContext]:
    """Send tasks in this block, with the `sending` hooks around it; the tasks must get the headers of the yielded context."""
    log_values = _log_context.get()
    headers = {CONTEXT_HEADER: log_values} if log_values else {}
    sent = SendContext(task_name=task_name, queue=queue, task_ids=(), headers=headers)
    if not middleware or not ids:
        return nullcontext(sent)
    sent.task_ids = [str(task_id) for task_id in ids]
    return _enter_hooks([each.sending for each in middleware], sent)


@contextmanager
def _enter_hooks(hooks: Sequence[Callable[[C], AbstractContextManager[Any]]], context: C) -> Generator[C]:
    """Enter and leave the context managers of all hooks; log their errors."""
    stack = ExitStack()
    for hook in hooks:
        try:
            stack.enter_context(hook(context))
        except Exception:
            logger.exception("middleware %s failed; the task continues without it", hook.__qualname__)
    try:
        yield context
    finally:
        try:
            stack.close()
        except Exception:
            logger.exception("a middleware failed; the task continues without it")


def flush(middleware: Iterable[Middleware]) -> None:
    """Call the `leaving` hooks, before this process exits."""
    for each in middleware:
        try:
            each.leaving()
        except Exception:
            logger.exception("middleware %s could not flush its data", type(each).__name__)


def with_headers(options_json: str | None, headers: Headers) -> str | None:
    """Return the stored options of a task with headers added."""
    if not headers:
        return options_json
    options: dict[str, Any] = {} if options_json is None else msgspec.json.decode(options_json)
    return msgspec.json.encode({**options, "headers": headers}, enc_hook=str).decode()


def header_dict(headers: Headers, name: str) -> dict[str, Any]:
    """Return a header that is a dict; an empty one if it is missing or, in a row from elsewhere, no dict."""
    found = headers.get(name)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


class _Options(msgspec.Struct):
    headers: dict[str, Any] = {}


def headers_of(options_json: str | None) -> Headers:
    """Return the headers in the stored options of a task; none if anything but horsies has written them."""
    if options_json is None or '"headers"' not in options_json:
        return {}
    try:
        return msgspec.json.decode(options_json, type=_Options).headers
    except (msgspec.MsgspecError, RecursionError):
        return {}
