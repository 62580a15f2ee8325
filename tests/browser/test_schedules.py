"""Schedules are created, changed, run and deleted in the dashboard; those of the code are changed in the code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2 as httpx
import psycopg
import pytest
from playwright.sync_api import Page, expect

from tests.browser.scenery import Shop, shop_of
from tests.browser.viewer import Viewer, browses

Watch = Callable[..., Viewer]
Serve = Callable[..., str]
Db = psycopg.Connection[dict[str, Any]]


@pytest.fixture
def shop(tmp_path: Path, database_url: str) -> Any:
    yield from shop_of(tmp_path, database_url)


def create(page: Page, name: str, when: str) -> None:
    page.get_by_role("button", name="New schedule…").click()
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("Task", exact=True).select_option("charge_card")
    page.get_by_label("When:").fill(when)
    page.get_by_label("Arguments as JSON").fill('{"order": 7, "amount": "9.50"}')
    page.get_by_role("button", name="Create", exact=True).click()


@browses
def test_a_schedule_is_created_changed_run_and_deleted(
    serve: Serve, watch: Watch, shop: Shop, db: Db
) -> None:
    page = watch(serve(shop.app, enable_actions=True)).open("/schedules")
    create(page, "dunning", "0 8 * * mon")
    row = page.locator("tr", has_text="dunning")
    expect(row).to_contain_text("Mondays at 08:00")
    expect(row.get_by_text("Mondays at 08:00")).to_have_attribute("title", "0 8 * * mon")

    row.get_by_role("button", name="Edit…").click()
    expect(page.get_by_label("Arguments as JSON")).to_have_value('{\n  "order": 7,\n  "amount": "9.50"\n}')
    page.get_by_label("When:").fill("every 2 h")
    page.get_by_label("Time zone").fill("Europe/Berlin")
    page.get_by_label("While the previous run has not ended").select_option("skip")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(row).to_contain_text("every 2 h")
    expect(row).to_contain_text("Europe/Berlin")
    row.get_by_role("button", name="Edit…").click()
    expect(page.get_by_label("While the previous run has not ended")).to_have_value("skip")
    page.get_by_role("button", name="Go back").click()

    row.get_by_role("button", name="Run now").click()
    page.locator("#ask button[value=yes]").click()
    expect(row.locator("a", has_text="ago").or_(row.locator("a", has_text="now"))).to_be_visible()
    sent = db.execute("SELECT kwargs FROM horsies_tasks_live WHERE task_name = 'charge_card'").fetchone()
    assert sent is not None
    assert '"order":7' in sent["kwargs"].replace(" ", "")

    row.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("button", name="Keep it")).to_be_focused()
    page.get_by_role("button", name="Delete schedule").click()
    expect(row).to_have_count(0)
    acts = [each["action"] for each in db.execute("SELECT action FROM horsies_actions ORDER BY id")]
    assert acts == [f"schedule {each}" for each in ("create", "update", "run-now", "delete")]


@browses
def test_a_schedule_that_is_refused_stays_in_the_dialog(
    serve: Serve, watch: Watch, shop: Shop, db: Db
) -> None:
    page = watch(serve(shop.app, enable_actions=True), tolerates="400").open("/schedules")
    create(page, "dunning", "at noon")
    refusal = page.locator("#ask [role=alert]")
    expect(refusal).to_contain_text("'at noon' is no time to run at")
    expect(refusal).to_contain_text('Write "every 15 min"')

    page.get_by_label("When:").fill("every 1 d")
    page.get_by_label("Arguments as JSON").fill('{"order": "seven", "amount": "1"}')
    page.get_by_role("button", name="Create", exact=True).click()
    expect(refusal).to_contain_text("order")
    expect(page.get_by_label("Name", exact=True)).to_have_value("dunning")
    assert db.execute("SELECT FROM horsies_schedule_state").fetchone() is None


@browses
def test_a_schedule_leads_to_the_history_of_its_runs_and_one_of_the_code_is_not_edited(
    serve: Serve, watch: Watch, shop: Shop
) -> None:
    shop.place.start("--processes", "1", "--with-scheduler")
    page = watch(serve(shop.app, enable_actions=True), tolerates="404").open("/schedules")
    row = page.locator("tr", has_text="stock-check")
    expect(row).to_contain_text("in code", timeout=30_000)
    expect(row.get_by_role("button", name="Pause")).to_be_visible()
    expect(row.get_by_role("button", name="Edit…")).to_have_count(0)
    expect(row.get_by_role("button", name="Delete")).to_have_count(0)
    expect(row.get_by_role("link", name="check_stock")).to_have_attribute("href", "/names/check_stock")


@browses
def test_the_buttons_of_schedules_are_within_reach_on_a_small_laptop(
    serve: Serve, watch: Watch, shop: Shop
) -> None:
    page = watch(serve(shop.app, enable_actions=True), width=1024).open("/schedules")
    create(page, "dunning of customers", "30 8 * * mon-fri")

    row = page.locator("tr", has_text="dunning of customers")
    expect(row).to_contain_text("Monday to Friday at 08:30")
    beyond = page.locator(".scroll").evaluate_all(
        "all => all.filter(each => each.scrollWidth > each.clientWidth).length"
    )
    assert beyond == 0
    expect(row.get_by_role("button", name="Delete")).to_be_in_viewport()


def test_a_dashboard_without_the_app_saves_no_schedule(serve: Serve, database_url: str) -> None:
    base = serve(database_url, enable_actions=True)

    refused = httpx.post(
        f"{base}/api/schedules/create",
        json={"name": "x", "when": "every 1 h", "task_name": "add"},
        headers={"X-Horsies-Intent": "action"},
    )

    assert "New schedule" not in httpx.get(f"{base}/schedules").text
    assert (refused.status_code, "without the app" in refused.json()["error"]["message"]) == (409, True)
