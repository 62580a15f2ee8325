"""Failures in groups: the same code, task and kind of message, retried as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
from playwright.sync_api import expect

from tests.browser.viewer import Viewer, browses

Watch = Callable[..., Viewer]
Serve = Callable[..., str]
Db = psycopg.Connection[dict[str, Any]]

_FAIL = """
INSERT INTO horsies_tasks (task_name, live, status, error_code, started_at, terminal_at, kwargs, result, unique_key)
SELECT %(name)s, false, 'FAILED', %(code)s, now(), now() - make_interval(mins => n), '{"card": "4111"}',
       json_build_object('err', json_build_object('error_code', %(code)s::text, 'message', format(%(message)s, n))),
       CASE WHEN %(keyed)s THEN 'customer-' || n END
  FROM generate_series(1, %(count)s) AS n"""


def fail(
    db: Db, message: str, count: int, *, name: str = "charge", code: str = "REFUSED", keyed: bool = False
) -> None:
    db.execute(
        _FAIL, {"name": name, "code": code, "message": message, "count": count, "keyed": keyed}, prepare=False
    )


@browses
def test_failures_are_grouped_by_code_task_and_kind_of_message(
    serve: Serve, watch: Watch, database_url: str, db: Db
) -> None:
    fail(db, "order %s was refused by 'bank-%1$s'", 12, keyed=True)
    fail(db, "no route to host", 3)
    fail(db, "no route to host", 2, name="mail")
    page = watch(serve(database_url), width=1440).open("/failures")

    rows = page.locator("tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.locator("td:nth-child(2)")).to_have_text(["12", "3", "2"])
    expect(rows.first).to_contain_text("REFUSED order … was refused by …")
    expect(rows.first).to_contain_text("keys customer-1")
    expect(rows.first.locator(".spark")).to_be_visible()
    expect(rows.first.locator("time")).to_have_text(["12 min ago", "1 min ago"])
    rows.first.get_by_role("link", name="REFUSED").click()
    page.wait_for_url("**kind=*")
    expect(page.locator("tbody tr")).to_have_count(12)


@browses
def test_a_group_is_retried_after_its_name_and_count_are_shown(
    serve: Serve, watch: Watch, database_url: str, db: Db
) -> None:
    fail(db, "order %s was refused", 7)
    fail(db, "no route to host", 3)
    page = watch(serve(database_url, enable_actions=True), width=1440).open("/failures")

    page.locator("tbody tr").first.get_by_role("button", name="Retry group").click()

    expect(page.locator("#ask")).to_contain_text("Retry 7 tasks of this group?")
    expect(page.locator("#ask .asked")).to_contain_text("order … was refused")
    expect(page.get_by_role("button", name="Go back")).to_be_focused()
    page.get_by_role("button", name="Retry tasks").click()
    expect(page.locator("#toast")).to_contain_text("7 tasks of 7 wait again.")
    expect(page.locator("tbody tr")).to_have_count(1)
    left = db.execute("SELECT result FROM horsies_tasks WHERE status = 'FAILED'").fetchall()
    assert ["no route to host" in row["result"] for row in left] == [True] * 3


@browses
def test_a_value_to_hide_is_not_shown_in_the_message_of_a_group(
    serve: Serve, watch: Watch, database_url: str, db: Db
) -> None:
    fail(db, "the bank refused card FOURONEONE%s", 2)
    db.execute("UPDATE horsies_tasks SET kwargs = '{\"card\": \"FOURONEONE\"}' WHERE status = 'FAILED'")
    fail(db, "the card SECRETWORD was refused", 1, name="other")
    db.execute("UPDATE horsies_tasks SET kwargs = '{\"card\": \"SECRETWORD\"}' WHERE task_name = 'other'")
    page = watch(serve(database_url, redact=["card"])).open("/failures")

    expect(page.locator("tbody tr")).to_have_count(2)
    assert "SECRETWORD" not in page.content()
    assert "FOURONEONE" not in page.content()
