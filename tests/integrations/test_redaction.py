"""What is not to be shown is shown neither by `horsies top` nor in an event for Sentry."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import psycopg
import sentry_sdk
from sentry_sdk.transport import Transport

from horsies import AppConfig, Horsies, PostgresConfig
from horsies.cli.options import Redaction
from horsies.cli.tui import TopConnection, task_text
from horsies.db.queries.inspect import TaskFilter
from horsies.integrations import sentry
from horsies.middleware import RunContext

SECRET = "4111-2222"
STORE = """
    INSERT INTO horsies_tasks (task_name, queue_name, live, status, error_code, started_at, terminal_at, kwargs, result)
    VALUES ('charge', 'default', false, 'FAILED', 'DECLINED', now(), now(), %s, %s) RETURNING id"""


def test_top_hides_values_in_its_lists_and_of_a_task(
    database_url: str, db: psycopg.Connection[dict[str, Any]]
) -> None:
    result = {"err": {"error_code": "DECLINED", "message": f"no money on {SECRET}", "data": {"card": SECRET}}}
    row = db.execute(STORE, (json.dumps({"card": SECRET, "order": 77}), json.dumps(result))).fetchone()
    assert row is not None

    async def texts(*names: str) -> tuple[str, str]:
        postgres = PostgresConfig(database_url=database_url)
        source = TopConnection(postgres, "ann", Redaction(None, names))
        try:
            view = await source.read(TaskFilter(), failures=True)
            found = await source.read_task(row["id"])
        finally:
            await source.close()
        assert found is not None
        return str(view.tasks), task_text(found).plain

    assert all(SECRET in text for text in asyncio.run(texts()))
    for text in asyncio.run(texts("card")):
        assert SECRET not in text
        assert "[redacted]" in text
    assert "77" in asyncio.run(texts("card"))[1]


def test_sentry_gets_arguments_without_hidden_values_and_no_local_variables() -> None:
    events: list[dict[str, Any]] = []

    class Events(Transport):
        def capture_envelope(self, envelope: Any) -> None:
            events.append(envelope.get_event())

    def fail(card: str) -> None:
        raise ValueError("declined")

    app = Horsies(AppConfig.for_database_url("postgresql://localhost:1/none", redact=["card"]))
    sentry.instrument(app, with_arguments=True)
    payload = json.dumps({"card": SECRET, "order": 77})
    task = RunContext(task_id="1", task_name="charge", attempt=1, queue="default", payload=payload)
    everywhere = (
        sentry_sdk.Scope.get_global_scope()
    )  # of older versions, a new scope does not inherit another scope's client
    before = everywhere.client
    everywhere.set_client(
        sentry_sdk.Client(dsn="http://key@localhost/1", transport=Events, default_integrations=False)
    )
    try:
        with app.middleware[0].running(task):
            try:
                fail(SECRET)
            except ValueError as error:
                task.error, task.code = error, "DECLINED"
    finally:
        everywhere.set_client(before)

    (event,) = events
    assert SECRET not in json.dumps(event)
    assert json.loads(event["contexts"]["horsies"]["arguments"]) == {"card": "[redacted]", "order": 77}
