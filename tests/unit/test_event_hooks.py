"""What a worker tells of its tasks never holds it up, and costs nothing where nobody listens."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from horsies import AppConfig, Event, Horsies
from horsies.db.queries.tasks import Claimed, Completed, Failure
from horsies.errors import ConfigurationError
from horsies.logs import JsonFormatter
from horsies.worker import event_hooks as hooks_module
from horsies.worker.event_hooks import EventHooks
from tests.support.waiting import eventually


def new_app(**settings: Any) -> Horsies:
    return Horsies(AppConfig.for_database_url("postgresql://localhost/none", **settings))


def claimed(number: int) -> Claimed:
    return Claimed(
        0, str(number), 1, "add", None, None, "default", False, 100, "", 1, None, 0, 0, 0, False, None
    )


@pytest.mark.parametrize(
    ("mode", "hooked", "enabled"),
    [("table", False, False), ("table", True, True), ("log", False, True), ("off", True, False)],
)
def test_nothing_is_gathered_where_nobody_listens(mode: str, hooked: bool, enabled: bool) -> None:
    app = new_app(events=mode)
    if hooked:
        app.on("failed", print)

    assert EventHooks(app).enabled is enabled


def test_a_hook_that_hangs_costs_events_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hooks_module, "MAX_QUEUED", 10)
    app, let_go, told = new_app(), threading.Event(), list[Event]()

    @app.on("completed")
    def hang(event: Event) -> None:
        let_go.wait(10)
        told.append(event)

    event_hooks = EventHooks(app)
    event_hooks.start(lambda: "me")
    for number in range(25):
        event_hooks.left_child(claimed(number))
        event_hooks.started([claimed(number)])  # nobody listens to that
        event_hooks.completed([Completed(str(number), 1, "1")], ended=1)
    assert event_hooks.dropped == 15
    let_go.set()
    eventually(lambda: len(told) == 10)
    event_hooks.close()

    assert [event.task_id for event in told] == [str(number) for number in range(10)]
    assert (told[0].kind, told[0].task_name, told[0].attempt, told[0].worker_id) == (
        "completed",
        "add",
        1,
        "me",
    )
    assert "15 events dropped" in caplog.text


def test_what_was_not_ours_any_more_is_not_told_as_completed() -> None:
    app, told = new_app(), list[Event]()
    app.on("*", told.append)
    event_hooks = EventHooks(app)
    event_hooks.start(lambda: "me")

    for number in range(2):
        event_hooks.left_child(claimed(number))
    event_hooks.completed([Completed(str(number), 1, "1") for number in range(2)], ended=1)
    event_hooks.close()

    assert (told, event_hooks.dropped) == ([], 2)


def test_what_was_asked_to_stop_is_told_as_cancelled_however_it_ends_and_a_snooze_not_at_all() -> None:
    app, told = new_app(), list[tuple[str, str | None]]()
    app.on("*", lambda event: told.append((event.kind, event.task_id)))
    event_hooks = EventHooks(app)
    event_hooks.start(lambda: "me")
    for number in range(4):
        event_hooks.left_child(claimed(number))

    event_hooks.cancel_requested(["0", "1"])
    event_hooks.completed([Completed("0", 1, "1"), Completed("2", 1, "1")], ended=2)
    event_hooks.failed(
        [Failure("1", 1, "", "BROKEN", None), Failure("3", 1, "", None, None, snoozed=True)],
        {"1": False, "3": True},
    )
    event_hooks.close()

    assert told == [("completed", "2"), ("cancelled", "0"), ("cancelled", "1")]


def test_a_line_of_json_has_the_message_of_a_failure_under_a_name_of_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    event_hooks = EventHooks(new_app(events="log", log_format="json"))
    event_hooks.start(lambda: "me")
    event_hooks.left_child(claimed(1))
    with caplog.at_level(logging.INFO, "horsies.events"):
        event_hooks.failed([Failure("1", 1, "", "BROKEN", "no money")], {"1": False})
        event_hooks.started([claimed(2)])
        event_hooks.close()

    facts = [vars(record) for record in caplog.records if record.name == "horsies.events"]
    assert [(each["kind"], each.get("error_message")) for each in facts] == [
        ("failed", "no money"),
        ("processing", None),
    ]
    assert JsonFormatter().format(caplog.records[0]).count("no money") == 1


def test_a_log_that_fails_costs_its_lines_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            raise OSError(f"no room for {record.name}")

    app, told = new_app(events="log"), list[str | None]()
    app.on("processing", lambda event: told.append(event.task_id))
    event_hooks, broken = EventHooks(app), Broken()
    hooks_module.event_logger.addHandler(broken)
    try:
        event_hooks.start(lambda: "me")
        with caplog.at_level(logging.INFO, "horsies.events"):
            for number in range(2):
                event_hooks.started([claimed(number)])
            event_hooks.close()
    finally:
        hooks_module.event_logger.removeHandler(broken)

    assert told == ["0", "1"]
    assert caplog.text.count("Could not log 1 event") == 2


def test_a_hook_must_be_a_function_for_something_that_workers_see() -> None:
    app = new_app()

    async def later(event: Event) -> None: ...

    for kind, hook in (("queued", print), ("done", print), ("failed", later)):
        with pytest.raises(ConfigurationError):
            app.on(kind, hook)
    assert app.event_hooks == {}
