"""The dashboard shows "[redacted]" instead of redacted values, and never stores that text in their place."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum
from typing import Any
from uuid import UUID

import httpx2 as httpx
import psycopg
import pytest

from horsies import AppConfig, Horsies, TaskError, TaskResult
from horsies.web import create_dashboard
from tests.web.conftest import Request, calls, get, post

Call = Callable[..., list[httpx.Response]]
Db = psycopg.Connection[dict[str, Any]]

SECRET = "4111-2222"
KWARGS = {"order": 7, "payer": {"Card": SECRET, "name": "Ann"}}
RESULT = {
    "err": {
        "error_code": "DECLINED",
        "message": f"the bank declined {SECRET}",
        "data": {"card": SECRET},
        "exception": {"traceback": f"ValueError: {SECRET}"},
    }
}
STORE = """
    INSERT INTO horsies_tasks (task_name, queue_name, live, status, error_code, started_at, terminal_at, args, kwargs, result,
                               failed_reason, unique_key)
    VALUES ('charge', 'default', false, 'FAILED', 'DECLINED', now(), now(), %(args)s, %(kwargs)s, %(result)s, %(secret)s,
            'charge:' || %(secret)s)
    RETURNING id"""
AROUND = """
    WITH attempt AS (
        INSERT INTO horsies_attempts (task_id, claim_seq, attempt, outcome, started_at, finished_at, error_message, traceback)
        VALUES (%(id)s, 0, 1, 'FAILED', now(), now(), 'declined ' || %(secret)s, 'at ' || %(secret)s))
    INSERT INTO horsies_task_logs (task_id, claim_seq, seq, attempt, at, level, logger, message)
    VALUES (%(id)s, 0, 0, 1, now(), 'INFO', 'shop', 'charging ' || %(secret)s)"""


class Mode(Enum):
    NOW = "now"
    LATER = "later"


def shop(url: str) -> Horsies:
    app = Horsies(AppConfig.for_database_url(url, redact=["card", "mode"]))

    @app.task("charge")
    def charge(order: int, card: str = "", payer: dict[str, str] | None = None) -> TaskResult[int, TaskError]:
        return TaskResult(ok=order)

    @app.task("choose")
    def choose(mode: Mode) -> TaskResult[int, TaskError]:
        return TaskResult(ok=1)

    return app


@pytest.fixture
def failed(db: Db) -> UUID:
    """Store a failed task with a secret in every text of the task, its attempts and its log."""
    values = {
        "kwargs": json.dumps(KWARGS),
        "args": json.dumps([7, {"card": SECRET}]),
        "result": json.dumps(RESULT),
    }
    row = db.execute(STORE, {**values, "secret": SECRET}).fetchone()
    assert row is not None
    db.execute(AROUND, {"id": row["id"], "secret": SECRET})
    return row["id"]


def places(task_id: UUID) -> list[Request]:
    parts = (f"/api/tasks/{task_id}/{part}" for part in ("args", "kwargs", "result"))
    return [
        get(path) for path in ("/tasks", "/api/tasks", f"/tasks/{task_id}", f"/api/tasks/{task_id}", *parts)
    ]


def test_no_page_and_no_answer_shows_a_redacted_value(call: Call, failed: UUID) -> None:
    asked = places(failed)

    open_, hidden = call(*asked), call(*asked, redact=["CARD"])

    for before, after in zip(open_, hidden, strict=True):
        assert (before.status_code, after.status_code) == (200, 200)
        assert SECRET in before.text, before.url
        assert SECRET not in after.text, after.url
        assert "[redacted]" in after.text
    assert "Ann" in hidden[2].text
    assert hidden[3].json()["logs"][0]["message"] == "charging [redacted]"
    assert json.loads(hidden[5].text) == {"order": 7, "payer": {"Card": "[redacted]", "name": "Ann"}}


def test_names_come_from_the_environment_too(
    call: Call, failed: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HORSIES_REDACT", "password, card")

    for answer in call(*places(failed)):
        assert SECRET not in answer.text


def test_the_setting_of_the_app_holds_and_arguments_by_position_are_known_by_its_signature(
    database_url: str, db: Db
) -> None:
    values = {"kwargs": "{}", "args": json.dumps([7, SECRET]), "result": None}
    row = db.execute(STORE, {**values, "secret": SECRET}).fetchone()
    assert row is not None
    task_id = row["id"]

    answers = calls(
        create_dashboard(shop(database_url)),
        get(f"/tasks/{task_id}"),
        get(f"/api/tasks/{task_id}"),
        get(f"/api/tasks/{task_id}/args"),
    )

    for answer in answers:
        assert answer.status_code == 200
        assert SECRET not in answer.text
    assert answers[2].text == '[7, "[redacted]"]'


def test_a_search_does_not_find_what_is_not_to_be_seen(call: Call, failed: UUID) -> None:
    searches = [get(f"/api/tasks?q={text}") for text in (SECRET, "4111", "Ann", "charge", "DECLINED")]

    def found(**settings: Any) -> list[int]:
        return [len(answer.json()["tasks"]) for answer in call(*searches, **settings)]

    assert found() == [1, 1, 1, 1, 1]
    assert found(redact=["card"]) == [0, 0, 0, 1, 1]


def test_what_is_sent_again_has_its_original_value_where_the_form_says_redacted(
    call: Call, db: Db, failed: UUID
) -> None:
    edited = {"order": 8, "payer": {"Card": "[redacted]", "name": "Bob"}}
    path = f"/api/tasks/{failed}/resend"

    (answer,) = call(post(path, {"kwargs": edited}), redact=["card"])

    row = db.execute("SELECT kwargs FROM horsies_tasks WHERE id = %s", (answer.json()["task_id"],)).fetchone()
    assert row is not None
    assert json.loads(row["kwargs"]) == {"order": 8, "payer": {"Card": SECRET, "name": "Bob"}}
    kept = db.execute("SELECT kwargs FROM horsies_tasks WHERE id = %s", (failed,)).fetchone()
    assert kept == {"kwargs": json.dumps(KWARGS)}


def test_redacted_is_not_stored_where_there_is_no_original(call: Call, db: Db, failed: UUID) -> None:
    (answer,) = call(post(f"/api/tasks/{failed}/resend", {"kwargs": {"card": "[redacted]"}}), redact=["card"])

    assert answer.status_code == 400
    assert "no original" in answer.json()["error"]["message"]
    assert db.execute("SELECT count(*) FROM horsies_tasks").fetchone() == {"count": 1}


def test_a_refused_argument_is_not_quoted(database_url: str, db: Db) -> None:
    row = db.execute(
        "INSERT INTO horsies_tasks_live (task_name, queue_name, kwargs) VALUES ('choose', 'default', %s) RETURNING id",
        (json.dumps({"mode": SECRET}),),
    ).fetchone()
    assert row is not None
    edited = [{"mode": "[redacted]"}, {"mode": "sometimes"}]

    answers = calls(
        create_dashboard(shop(database_url), enable_actions=True),
        *(post(f"/api/tasks/{row['id']}/resend", {"kwargs": each}) for each in edited),
    )

    for answer in answers:
        assert answer.status_code == 400
        assert "mode" in answer.text
        assert SECRET not in answer.text
        assert "sometimes" not in answer.text
