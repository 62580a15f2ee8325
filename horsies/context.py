"""What travels with a task, and who watches: the one seam between tasks and what is said of them.

A watcher is told of every send and of every run, in the process in which it happens. It can neither stop a task nor change
its outcome: what goes wrong in it is logged, and the task goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID

import msgspec

logger = logging.getLogger("horsies.context")

Headers = Mapping[str, Any]

# How long a child that is dismissed may take to end, if anybody watches its tasks.
FAREWELL_SECONDS = 3.0


@dataclass(slots=True, kw_only=True)
class Running:
    """A task while its code runs; `error` and `code` are known at its end, if it failed."""

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
class Sending:
    """Tasks on their way into the database, or a workflow. Who watches may add headers; `failure` says why it failed."""

    task_name: str
    queue: str
    task_ids: Sequence[str]
    headers: dict[str, Any] = field(default_factory=dict[str, Any])
    failure: str | None = None


class Watcher:
    """Told of sends and runs; what is not of interest stays as it is here."""

    def sending(self, sent: Sending) -> AbstractContextManager[Any]:
        """Entered before tasks are stored, left when it is known what came of it."""
        return nullcontext(sent)

    def running(self, task: Running) -> AbstractContextManager[Any]:
        """Entered before a task's arguments are read, left when its outcome is known and not yet reported."""
        return nullcontext(task)

    def leaving(self) -> None:
        """A child process ends, and has `FAREWELL_SECONDS` to write what was gathered."""


_caller: ContextVar[Headers] = ContextVar("horsies_caller", default={})  # noqa: B039  it is replaced, never changed

CALLER = "context"
_worker_id: str | None = None


def serve(worker: str | None) -> None:
    """From now on, tasks run here for this worker."""
    global _worker_id
    _worker_id = worker


def worker_id() -> str | None:
    """The worker that this process belongs to, if it is a child of one."""
    return _worker_id


@contextmanager
def log_context(**values: str | int | float | bool) -> Generator[None]:
    """Have these values in the log lines of every task that is sent in this block, and of those that they send.

    >>> with log_context(request_id="7f3a"):
    ...     add.send(2, 3)
    """
    token = _caller.set({**_caller.get(), **values})
    try:
        yield
    finally:
        _caller.reset(token)


def caller_context() -> Headers:
    """What `log_context` says here: in a task, what it said where the task was sent."""
    return _caller.get()


def is_followed(watchers: Sequence[Watcher]) -> bool:
    """Whether anything is to be said of, or carried by, what is sent here."""
    return bool(watchers or _caller.get())


@contextmanager
def entered(task: Running, watchers: Sequence[Watcher]) -> Generator[None]:
    """This task runs in this block, with its caller's context, and those who watch are told."""
    token = _caller.set(part(task.headers, CALLER))
    try:
        with watched([watcher.running for watcher in watchers], task):
            yield
    finally:
        _caller.reset(token)


@contextmanager
def sending(
    watchers: Sequence[Watcher], task_name: str, queue: str, ids: Iterable[UUID]
) -> Generator[Sending]:
    """Tasks are stored in this block, with the headers that are there by then, and those who watch are told."""
    caller = caller_context()
    sent = Sending(
        task_name=task_name,
        queue=queue,
        task_ids=[str(task_id) for task_id in ids],
        headers={CALLER: caller} if caller else {},
    )
    with watched([watcher.sending for watcher in watchers], sent):
        yield sent


@contextmanager
def watched(hooks: Sequence[Any], fact: Running | Sending) -> Generator[None]:
    """Enter and leave what watchers make of a fact; their errors are theirs alone."""
    stack = ExitStack()
    for hook in hooks:
        try:
            stack.enter_context(hook(fact))
        except Exception:
            logger.exception("%s failed, and the task goes on without it", hook.__qualname__)
    try:
        yield
    finally:
        try:
            stack.close()
        except Exception:
            logger.exception("a watcher of tasks failed, and the task goes on without it")


def leave(watchers: Iterable[Watcher]) -> None:
    """This process ends: let those who watch write what they have gathered."""
    for watcher in watchers:
        try:
            watcher.leaving()
        except Exception:
            logger.exception("%s could not write what it had gathered", type(watcher).__name__)


def with_headers(options_json: str | None, headers: Headers) -> str | None:
    """The options that are stored with a task, and what is to travel with it."""
    if not headers:
        return options_json
    options: dict[str, Any] = {} if options_json is None else msgspec.json.decode(options_json)
    return msgspec.json.encode({**options, "headers": headers}, enc_hook=str).decode()


def part(headers: Headers, name: str) -> dict[str, Any]:
    """What one header holds, if it is an object; anyone may have written it."""
    found = headers.get(name)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


class _Options(msgspec.Struct):
    headers: dict[str, Any] = {}


def headers_of(options_json: str | None) -> Headers:
    """What travelled with a task; anyone may have written that row."""
    if options_json is None or '"headers"' not in options_json:
        return {}
    try:
        return msgspec.json.decode(options_json, type=_Options).headers
    except msgspec.MsgspecError:
        return {}
