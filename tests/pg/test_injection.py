"""What looks like SQL, a parameter or a channel is stored and found again as the text that it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from horsies import CustomQueueConfig, Horsies, QueueMode, TaskError, TaskResult
from tests.pg.hands import Hands

Db = psycopg.Connection[dict[str, Any]]

TEXTS = [
    "'; DROP TABLE horsies_tasks CASCADE; --",
    "x') ON CONFLICT DO NOTHING; SELECT pg_terminate_backend(pid) FROM pg_stat_activity; --",
    'x"; NOTIFY task_done; --',
    "%s %(rows)s %(ids)s %% %",
    "$1 $$ $body$",
    "\\'; SELECT 1; --",
    '{a,b} [1] {"a": 1}',
    "two\nlines\r\ttab\x1b[31m\x01",
    "<script>alert(1)</script>",
    "‮evil‬ 😀 '",
]


@pytest.fixture(params=TEXTS, ids=range(len(TEXTS)))
def text(request: pytest.FixtureRequest) -> str:
    return request.param


def test_a_send_stores_names_tags_and_keys_as_they_are(
    make_app: Callable[..., Horsies], hands: Hands, db: Db, text: str
) -> None:
    app = make_app(queue_mode=QueueMode.CUSTOM, custom_queues=[CustomQueueConfig(name=text)])

    @app.task(text, queue_name=text)
    def plain(x: str) -> TaskResult[str, TaskError]:
        return TaskResult(ok=x)

    @app.task(f"unique {text}", queue_name=text, unique=lambda x: x)
    def unique(x: str) -> TaskResult[str, TaskError]:
        return TaskResult(ok=x)

    options = {"tags": [text, f"{text},{text}"], "idempotency_key": text}
    handle = plain.with_options(**options).send(text).unwrap()
    again = plain.with_options(**options).send(text).unwrap()
    twins = {unique.send(text).unwrap().task_id for _ in range(2)}

    assert handle.task_id == again.task_id
    assert len(twins) == 1
    row = db.execute("SELECT * FROM horsies_tasks WHERE id = %s", (handle.task_id,)).fetchone()
    assert row is not None
    assert (row["task_name"], row["queue_name"], row["tags"]) == (text, text, options["tags"])
    assert db.execute("SELECT idempotency_key FROM horsies_idempotency_keys").fetchall() == [
        {"idempotency_key": text}
    ]
    claimed = hands.run_next(text)
    assert {task.task_name for task in claimed} == {text, f"unique {text}"}
    assert hands.complete(claimed, '{"ok":"done"}') == 2
    assert handle.get(10_000).ok_value == "done"


def test_plain_sql_stores_them_as_they_are(hands: Hands, db: Db, text: str) -> None:
    db.execute(
        "SELECT horsies_send(%(text)s, jsonb_build_object('x', %(text)s::text), %(text)s, idempotency_key => %(text)s)",
        {"text": text},
    )

    (claimed,) = hands.run_next(text)

    assert (claimed.task_name, claimed.queue_name) == (text, text)
