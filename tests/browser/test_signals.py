"""People answer the signals that workflows wait for, with a form of the type that the next task takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2 as httpx
import psycopg
import pytest
from playwright.sync_api import expect

from tests.browser.scenery import Shop, shop_of
from tests.browser.viewer import Viewer, browses

Watch = Callable[..., Viewer]
Serve = Callable[..., str]
Db = psycopg.Connection[dict[str, Any]]


@pytest.fixture
def shop(tmp_path: Path, database_url: str) -> Any:
    yield from shop_of(tmp_path, database_url)


def taken(db: Db) -> Any:
    row = db.execute("SELECT result, status FROM horsies_workflow_tasks WHERE kind = 'signal'").fetchone()
    assert row is not None
    return row["result"], row["status"]


@browses
def test_a_signal_is_answered_with_a_typed_form(serve: Serve, watch: Watch, shop: Shop, db: Db) -> None:
    viewer = watch(serve(shop.app, enable_actions=True))
    page = viewer.open("/workflows")
    page.get_by_role("link", name="Answer").click()
    expect(page.locator("h1")).to_have_text("Waiting for people")
    expect(page.get_by_label("Level").locator("option")).to_have_text(["board", "head", "team"])
    page.get_by_label("Amount").fill("12.50")

    page.get_by_role("button", name="Send answer").click()
    assert taken(db) == (None, "RUNNING")  # the browser asks for the required choice first

    page.get_by_label("Approved").select_option("Yes")
    page.get_by_role("button", name="Send answer").click()

    expect(page.get_by_text("No workflow and no task waits for a signal.")).to_be_visible()
    assert taken(db) == ('{"ok":{"approved":true,"amount":"12.50","level":"team"}}', "COMPLETED")


@pytest.mark.breaks_invariants
@browses
def test_what_was_typed_stays_when_an_answer_is_refused(
    serve: Serve, watch: Watch, shop: Shop, db: Db
) -> None:
    page = watch(serve(shop.app, enable_actions=True), tolerates="409").open(f"{shop.refund}")
    page.get_by_label("Approved").select_option("No")
    page.get_by_label("Amount").fill("7")
    page.get_by_label("Reason").fill("too late")
    db.execute("UPDATE horsies_workflows SET status = 'CANCELLED' WHERE name = 'refund'")
    expect(page.locator("h1 .pill")).to_have_text("cancelled")  # the page was updated, and kept the form

    page.get_by_role("button", name="Send answer").click()

    expect(page.get_by_role("alert")).to_contain_text(
        "No node of this workflow waits for the signal 'approval' any more."
    )
    expect(page.get_by_label("Reason")).to_have_value("too late")


@browses
def test_a_dashboard_that_knows_no_tasks_takes_json(
    serve: Serve, watch: Watch, shop: Shop, database_url: str, db: Db
) -> None:
    page = watch(serve(database_url, enable_actions=True)).open("/waiting")
    page.get_by_label("Value").fill('{"approved": tru')
    page.get_by_role("button", name="Send answer").click()
    expect(page.get_by_role("alert")).to_contain_text("This is no JSON")

    page.get_by_label("Value").fill('{"approved": true, "amount": 12345678901234567890}')
    page.get_by_role("button", name="Send answer").click()

    expect(page.get_by_text("No workflow and no task waits for a signal.")).to_be_visible()
    assert taken(db)[0] == '{"ok":{"approved": true, "amount": 12345678901234567890}}'


@browses
def test_a_durable_task_that_waits_is_answered_and_goes_on(serve: Serve, watch: Watch, shop: Shop) -> None:
    shop.place.start("--processes", "1")
    order = shop.module.return_goods.delay(7)
    page = watch(serve(shop.app, enable_actions=True)).open("/waiting")
    card = page.locator(".card.signal", has_text="return_goods")
    expect(card).to_be_visible(timeout=30_000)
    card.get_by_role("link", name="return_goods").click()
    expect(page.get_by_role("heading", name="Waiting for accepted by")).to_be_visible()
    steps = page.get_by_role("list", name="Steps").locator("li")
    expect(steps).to_have_count(2)
    expect(steps.first).to_contain_text("reserve")
    expect(steps.last).to_contain_text("waiting for")

    page.get_by_label("Value").fill('"ann"')
    page.get_by_role("button", name="Send answer").click()

    expect(page.locator("h1 .pill.completed")).to_be_visible(timeout=30_000)
    assert order.result(timeout=30) == ["order 7 is reserved", "accepted by ann"]
    widths = [float(bar.get_attribute("width") or 0) for bar in steps.locator(".bar").all()]
    assert widths[1] > widths[0]


def test_a_task_takes_a_signal_over_the_api_once(serve: Serve, shop: Shop, db: Db) -> None:
    base = serve(shop.app, enable_actions=True)
    task = shop.module.return_goods.delay(7)

    def answer(task_id: str) -> int:
        url = f"{base}/api/tasks/{task_id}/signal"
        given = {"name": "accepted by", "value": "ann"}
        return httpx.post(url, json=given, headers={"X-Horsies-Intent": "action"}).status_code

    assert [answer(task.task_id), answer(task.task_id), answer(str(UUID(int=1)))] == [200, 409, 404]
    row = db.execute("SELECT value FROM horsies_signals").fetchone()
    assert row == {"value": '"ann"'}


def test_the_api_lists_signals_and_takes_answers_that_fit(serve: Serve, shop: Shop, db: Db) -> None:
    base = serve(shop.app, enable_actions=True)
    (signal,) = httpx.get(f"{base}/api/signals").json()["signals"]
    assert (signal["signal"], signal["takers"]) == ("approval", [["decide", "approval"]])
    assert [(field["name"], field["kind"], field["required"]) for field in signal["fields"]] == [
        ("approved", "boolean", True), ("amount", "decimal", True), ("reason", "text", False), ("level", "choice", False),
    ]  # fmt: skip

    def answer(value: Any, name: str = "approval") -> httpx.Response:
        return httpx.post(
            f"{base}/api{shop.refund}/signal",
            json={"name": name, "value": value},
            headers={"X-Horsies-Intent": "action"},
        )

    refused = answer({"approved": "perhaps", "amount": "1"})
    assert (refused.status_code, taken(db)) == (400, (None, "RUNNING"))
    assert "approved: expected" in refused.json()["error"]["message"]
    assert answer(True, "other").status_code == 409
    assert answer({"approved": True, "amount": "1"}).status_code == 200
    assert taken(db)[1] == "COMPLETED"
    assert httpx.get(f"{base}/api/signals").json()["signals"] == []
    acts = db.execute("SELECT action FROM horsies_actions").fetchall()
    assert [act["action"] for act in acts] == ["workflow signal"]


def test_a_read_only_dashboard_shows_what_waits_and_takes_no_answer(serve: Serve, shop: Shop) -> None:
    base = serve(shop.app)
    page = httpx.get(f"{base}/waiting").text

    assert "refund" in page
    assert "Send answer" not in page
    refused = httpx.post(
        f"{base}/api{shop.refund}/signal", json={"name": "approval"}, headers={"X-Horsies-Intent": "action"}
    )
    assert refused.status_code == 403
