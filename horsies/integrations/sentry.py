"""Sentry: report each failed attempt of a task as an event with the task's name and id.

Every task runs in an isolation scope of its own, so that tags and breadcrumbs do not leak into another task's events.
Arguments are not sent unless you ask for them, nor are local variables of tracebacks. Call `sentry_sdk.init` yourself, in
`app.on_child_process_start`.

>>> instrument(app)
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import sentry_sdk
from sentry_sdk.utils import event_from_exception

from horsies.middleware import FLUSH_SECONDS, Middleware, RunContext
from horsies.redaction import Redactor
from horsies.registry import TaskRegistry


def instrument(app: TaskRegistry, *, with_arguments: bool = False) -> None:
    """Report failures of this app's tasks; call it once, where the app is created.

    >>> instrument(app, with_arguments=True)
    """
    if not any(isinstance(each, _Reporting) for each in app.middleware):
        app.middleware.append(_Reporting(with_arguments, Redactor(app.config.redact)))


class _Reporting(Middleware):
    def __init__(self, with_arguments: bool, redactor: Redactor) -> None:
        self._with_arguments = with_arguments
        self._redactor = redactor

    @contextmanager
    def running(self, task: RunContext) -> Generator[None]:
        with sentry_sdk.isolation_scope() as scope:
            scope.set_transaction_name(task.task_name, source="task")
            details = {
                "task_id": task.task_id,
                "task_name": task.task_name,
                "attempt": task.attempt,
                "queue": task.queue,
            }
            for name, value in details.items():
                scope.set_tag(f"horsies.{name}", value)
            arguments = {"arguments": self._redactor.json(task.payload)} if self._with_arguments else {}
            scope.set_context("horsies", {**details, "worker_id": task.worker_id, **arguments})
            yield
            if task.code is not None:
                scope.set_tag("horsies.error_code", task.code)
                self._report(task)

    def _report(self, task: RunContext) -> None:
        if task.error is None:
            with sentry_sdk.new_scope() as scope:
                scope.fingerprint = ["horsies", task.task_name, str(task.code)]
                sentry_sdk.capture_message(f"{task.task_name} failed with {task.code}", level="error")
            return
        options = sentry_sdk.get_client().options
        # Local variables reveal the arguments, under names that redaction does not know.
        may_show = self._with_arguments and not self._redactor
        shown = bool(options.get("include_local_variables")) and may_show
        event, hint = event_from_exception(
            task.error,
            client_options={**options, "include_local_variables": shown},
            mechanism={"type": "horsies", "handled": False},
        )
        sentry_sdk.capture_event(event, hint=hint)

    def leaving(self) -> None:
        sentry_sdk.flush(FLUSH_SECONDS - 0.5)
