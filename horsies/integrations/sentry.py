"""Sentry: each failed attempt of a task is an event that says which task it was.

Every task has an isolation scope of its own, so that tags and breadcrumbs of one do not show in another's events. Arguments
are left out unless you ask for them, also where a traceback would show them. Which project it goes to is yours to say:
`sentry_sdk.init` in `app.on_child_process_start`.

>>> instrument(app)
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import sentry_sdk
from sentry_sdk.utils import event_from_exception

from horsies.context import FAREWELL_SECONDS, Running, Watcher
from horsies.registry import TaskRegistry


def instrument(app: TaskRegistry, *, with_arguments: bool = False) -> None:
    """Report failures of this app's tasks; call it where the app is made, once.

    >>> instrument(app, with_arguments=True)
    """
    if not any(isinstance(watcher, _Reporting) for watcher in app.watchers):
        app.watchers.append(_Reporting(with_arguments))


class _Reporting(Watcher):
    def __init__(self, with_arguments: bool) -> None:
        self._with_arguments = with_arguments

    @contextmanager
    def running(self, task: Running) -> Generator[None]:
        with sentry_sdk.isolation_scope() as scope:
            scope.set_transaction_name(task.task_name, source="task")
            facts = {
                "task_id": task.task_id,
                "task_name": task.task_name,
                "attempt": task.attempt,
                "queue": task.queue,
            }
            for name, value in facts.items():
                scope.set_tag(f"horsies.{name}", value)
            arguments = {"arguments": task.payload} if self._with_arguments else {}
            scope.set_context("horsies", {**facts, "worker_id": task.worker_id, **arguments})
            yield
            if task.code is not None:
                scope.set_tag("horsies.error_code", task.code)
                self._report(task)

    def _report(self, task: Running) -> None:
        if task.error is None:
            with sentry_sdk.new_scope() as scope:
                scope.fingerprint = ["horsies", task.task_name, str(task.code)]
                sentry_sdk.capture_message(f"{task.task_name} failed with {task.code}", level="error")
            return
        options = sentry_sdk.get_client().options
        # What a frame holds in its variables is as good as the arguments.
        shown = bool(options.get("include_local_variables")) and self._with_arguments
        event, hint = event_from_exception(
            task.error,
            client_options={**options, "include_local_variables": shown},
            mechanism={"type": "horsies", "handled": False},
        )
        sentry_sdk.capture_event(event, hint=hint)

    def leaving(self) -> None:
        sentry_sdk.flush(FAREWELL_SECONDS - 0.5)
