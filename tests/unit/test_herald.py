"""What a worker tells of its tasks never holds it up, and costs nothing where nobody listens."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from horsies import AppConfig, Event, Horsies
from horsies.errors import ConfigurationError
from horsies.logs import JsonFormatter
from horsies.storage.tasks import Claimed, Completed, Failure
from horsies.worker import events
from horsies.worker.events import Herald
from tests.support.waiting import eventually


def new_app(**settings: Any) -> Horsies:
    return Horsies(AppConfig.for_database_url("postgresql://localhost/none", **settings))


def claimed(number: int) -> Claimed:
    return Claimed(
        0, str(number), 1, "add", None, None, "default", False, 100, "", 1, None, 0, 0, 0, False, None
    )


@pytest.mark.parametrize(
    ("mode", "hooked", "heard"),
    [("table", False, False), ("table", True, True), ("log", False, True), ("off", True, False)],
)
def test_nothing_is_gathered_where_nobody_listens(mode: str, hooked: bool, heard: bool) -> None:
    app = new_app(events=mode)
    if hooked:
        app.on("failed", print)

    assert Herald(app).heard is heard


def test_a_hook_that_hangs_costs_events_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(events, "MOST_WAITING", 10)
    app, let_go, told = new_app(), threading.Event(), list[Event]()

    @app.on("completed")
    def hang(event: Event) -> None:
        let_go.wait(10)
        told.append(event)

    herald = Herald(app)
    herald.start(lambda: "me")
    for number in range(25):
        herald.over(claimed(number))
        herald.started([claimed(number)])  # nobody listens to that
        herald.completed([Completed(str(number), 1, "1")], ended=1)
    assert herald.dropped == 15
    let_go.set()
    eventually(lambda: len(told) == 10)
    herald.close()

    assert [event.task_id for event in told] == [str(number) for number in range(10)]
    assert (told[0].kind, told[0].task_name, told[0].attempt, told[0].worker_id) == (
        "completed",
        "add",
        1,
        "me",
    )
    assert "15 events were dropped" in caplog.text


def test_what_was_not_ours_any_more_is_not_told_as_completed() -> None:
    app, told = new_app(), list[Event]()
    app.on("*", told.append)
    herald = Herald(app)
    herald.start(lambda: "me")

    for number in range(2):
        herald.over(claimed(number))
    herald.completed([Completed(str(number), 1, "1") for number in range(2)], ended=1)
    herald.close()

    assert (told, herald.dropped) == ([], 2)


def test_what_was_asked_to_stop_is_told_as_cancelled_however_it_ends_and_a_snooze_not_at_all() -> None:
    app, told = new_app(), list[tuple[str, str | None]]()
    app.on("*", lambda event: told.append((event.kind, event.task_id)))
    herald = Herald(app)
    herald.start(lambda: "me")
    for number in range(4):
        herald.over(claimed(number))

    herald.asked(["0", "1"])
    herald.completed([Completed("0", 1, "1"), Completed("2", 1, "1")], ended=2)
    herald.failed(
        [Failure("1", 1, "", "BROKEN", None), Failure("3", 1, "", None, None, snoozed=True)],
        {"1": False, "3": True},
    )
    herald.close()

    assert told == [("completed", "2"), ("cancelled", "0"), ("cancelled", "1")]


def test_a_line_of_json_has_the_message_of_a_failure_under_a_name_of_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    herald = Herald(new_app(events="log", log_format="json"))
    herald.start(lambda: "me")
    herald.over(claimed(1))
    with caplog.at_level(logging.INFO, "horsies.events"):
        herald.failed([Failure("1", 1, "", "BROKEN", "no money")], {"1": False})
        herald.started([claimed(2)])
        herald.close()

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
    herald, broken = Herald(app), Broken()
    events.event_logger.addHandler(broken)
    try:
        herald.start(lambda: "me")
        with caplog.at_level(logging.INFO, "horsies.events"):
            for number in range(2):
                herald.started([claimed(number)])
            herald.close()
    finally:
        events.event_logger.removeHandler(broken)

    assert told == ["0", "1"]
    assert caplog.text.count("1 events could not be logged") == 2


def test_a_hook_must_be_a_function_for_something_that_workers_see() -> None:
    app = new_app()

    async def later(event: Event) -> None: ...

    for kind, hook in (("queued", print), ("done", print), ("failed", later)):
        with pytest.raises(ConfigurationError):
            app.on(kind, hook)
    assert app.event_hooks == {}
