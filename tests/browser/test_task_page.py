"""The page of a task shows its attempts to scale, its error once, its JSON in full, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2 as httpx
import psycopg
import pytest
from playwright.sync_api import Page, expect

from tests.browser.scenery import FAILED_ID, Shop, shop_of
from tests.browser.viewer import Viewer, browses

Watch = Callable[..., Viewer]
Serve = Callable[..., str]
Db = psycopg.Connection[dict[str, Any]]


@pytest.fixture
def shop(tmp_path: Path, database_url: str) -> Any:
    yield from shop_of(tmp_path, database_url)


@pytest.fixture
def open_failed(serve: Serve, watch: Watch, shop: Shop) -> Callable[[], Page]:
    return lambda: watch(serve(shop.app, enable_actions=True), tolerates="400").open(shop.failed)


@browses
def test_attempts_are_bars_to_scale_with_waiting_apart_from_running(open_failed: Callable[[], Page]) -> None:
    page = open_failed()
    bars = page.evaluate(
        """() => [...document.querySelectorAll(".attempts li")].map(row => [...row.querySelectorAll(".bar")].map(bar =>
            [bar.classList[1], Number(bar.getAttribute("x")), Number(bar.getAttribute("width"))]))"""
    )

    (wait, ran), (again, failed) = bars
    assert [each[0] for each in (wait, ran, again, failed)] == ["waiting", "failed", "waiting", "failed"]
    # 10 s of waiting and 30 s of running, then 20 s of waiting and 1 s of running, of 61 s
    assert (round(wait[2]), round(ran[1]), round(ran[2])) == (16, 16, 49)
    assert (round(again[1]), round(again[2])) == (66, 33)
    expect(page.locator(".attempts li").first).to_contain_text("waiting 10 s")
    expect(page.locator(".attempts li").first).to_contain_text("ran 30 s")


@browses
def test_the_error_is_shown_once_with_the_frames_of_the_project_first(
    open_failed: Callable[[], Page],
) -> None:
    page = open_failed()

    shown = page.locator("main").inner_text()
    assert shown.count("ConnectionRefusedError: the mail server does not answer") == 1
    own = page.locator(".frames").first.locator(".frame-line")
    expect(own).to_have_count(2)
    expect(own.first).to_contain_text("/srv/shop/orders/smtp.py:7")
    expect(own.first.locator("pre")).to_have_text("server.connect(host)")
    others = page.get_by_text("2 frames in libraries and Python")
    expect(page.get_by_text("smtplib.py:341")).to_be_hidden()
    others.click()
    expect(page.get_by_text("smtplib.py:341")).to_be_visible()
    expect(page.locator("pre.traceback")).to_be_hidden()
    page.get_by_text("Whole traceback").click()
    expect(page.locator("pre.traceback")).to_contain_text("Traceback (most recent call last)")


@browses
def test_json_folds_and_is_copied_with_all_its_digits(open_failed: Callable[[], Page]) -> None:
    page = open_failed()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    shown = page.locator("pre[data-part=kwargs]")
    expect(shown.locator(".number", has_text="12345678901234567890")).to_be_visible()
    entry = shown.get_by_text('"A-7"')
    expect(entry).to_be_hidden()  # a long list within the document is folded at first

    shown.get_by_role("button", name="30 entries").click()

    expect(entry).to_be_visible()
    shown.locator("xpath=..").get_by_role("button", name="Copy").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert '"order": 12345678901234567890' in copied
    assert '"sku": "A-29"' in copied


@browses
def test_commands_are_there_to_copy(open_failed: Callable[[], Page]) -> None:
    page = open_failed()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    for name, command in (
        ("Copy: retry it", f"horsies retry {FAILED_ID}"),
        ("Copy: replay it in a process of your own", f"horsies replay --pdb {FAILED_ID}"),
        ("Copy the command that opens deliver in an editor", "code --goto /srv/shop/orders/smtp.py:7"),
    ):
        page.get_by_role("button", name=name).click()
        assert page.evaluate("navigator.clipboard.readText()") == command


@browses
def test_arguments_that_are_refused_stay_in_the_dialog(open_failed: Callable[[], Page], db: Db) -> None:
    page = open_failed()
    page.get_by_role("button", name="Send again…").click()
    area = page.get_by_label("Send a new task with these arguments")

    for text, refusal in (
        ('{"to": ', "The arguments are no JSON"),
        ('{"to": 5, "subject": "Your order"}', "The arguments do not fit send_mail"),
    ):
        area.fill(text)
        page.get_by_role("button", name="Send", exact=True).click()
        expect(page.locator("#ask [role=alert]")).to_contain_text(refusal)
        expect(area).to_have_value(text)
    area.fill('{"to": "ann@shop.example", "subject": "Your order"}')
    page.get_by_role("button", name="Send", exact=True).click()

    page.wait_for_url(lambda url: "/tasks/" in url and str(FAILED_ID) not in url)
    row = db.execute("SELECT kwargs FROM horsies_tasks_live WHERE task_name = 'send_mail'").fetchone()
    assert row is not None
    assert "ann@shop.example" in row["kwargs"]


@browses
def test_log_lines_and_bars_of_a_running_task_appear_as_they_come(
    serve: Serve, watch: Watch, shop: Shop
) -> None:
    shop.place.start("--processes", "1")
    report = shop.module.render_report.send(pages=1000).unwrap()
    page = watch(serve(shop.app)).open(f"/tasks/{report.task_id}")
    expect(page.locator(".logs")).to_contain_text("page 2 of 1000 is drawn", timeout=30_000)
    expect(page.locator(".logs")).to_contain_text("page 5 of 1000 is drawn", timeout=30_000)
    expect(page.locator(".attempts")).to_contain_text("running")
    report.cancel().unwrap()


@browses
def test_a_new_task_is_sent_from_its_name_and_its_parameters(
    serve: Serve, watch: Watch, shop: Shop, db: Db
) -> None:
    page = watch(serve(shop.app, enable_actions=True), tolerates="400").open("/tasks")
    page.get_by_role("button", name="New task…").click()
    page.get_by_label("Task", exact=True).select_option("send_mail")
    area = page.get_by_label("Arguments as JSON")
    expect(area).to_have_value('{\n  "to": null,\n  "subject": null\n}')

    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.locator("#ask [role=alert]")).to_contain_text("The arguments do not fit send_mail")
    area.fill('{"to": "ann@shop.example", "subject": "New"}')
    page.get_by_role("button", name="Send", exact=True).click()

    expect(page.locator("h1")).to_contain_text("send_mail")
    row = db.execute(
        "SELECT queue_name, kwargs FROM horsies_tasks_live WHERE task_name = 'send_mail'"
    ).fetchone()
    assert row is not None
    assert (row["queue_name"], "ann@shop.example" in row["kwargs"]) == ("mail", True)
    acts = db.execute("SELECT action, tasks FROM horsies_actions").fetchall()
    assert [dict(act) for act in acts] == [{"action": "send", "tasks": 1}]


@browses
def test_a_task_that_waits_is_edited(serve: Serve, watch: Watch, shop: Shop, db: Db) -> None:
    waiting = shop.module.send_mail.send(to="ann@shop.exmple", subject="Your order").unwrap()
    page = watch(serve(shop.app, enable_actions=True), tolerates="40").open(f"/tasks/{waiting.task_id}")
    page.get_by_role("button", name="Edit…").click()
    area = page.get_by_label("Arguments as JSON")
    area.fill('{"to": 5}')
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator("#ask [role=alert]")).to_contain_text("The arguments do not fit send_mail")

    area.fill('{"to": "ann@shop.example", "subject": "Your order"}')
    page.get_by_label("Priority").fill("1")
    page.get_by_role("button", name="Save", exact=True).click()

    expect(page.locator("pre[data-part=kwargs]")).to_contain_text("ann@shop.example")
    expect(page.locator(".facts div", has_text="Priority").locator("dd")).to_have_text("1")
    assert [dict(each) for each in db.execute("SELECT action, tasks FROM horsies_actions")] == [
        {"action": "edit", "tasks": 1}
    ]
    # Somebody who comes too late is told so.
    page.get_by_role("button", name="Edit…").click()
    waiting.cancel().unwrap()
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator("#ask [role=alert]")).to_contain_text("The task does not wait any more")
    page.get_by_role("button", name="Go back").click()
    expect(page.get_by_role("button", name="Edit…")).to_have_count(0)


@browses
def test_a_running_task_shows_the_memory_of_its_process_and_leads_to_its_worker(
    serve: Serve, watch: Watch, shop: Shop
) -> None:
    shop.place.start("--processes", "1")
    report = shop.module.render_report.send(pages=1000).unwrap()
    page = watch(serve(shop.app)).open(f"/tasks/{report.task_id}")

    memory = page.locator(".facts div", has_text="Memory of its process").locator("dd")
    expect(memory).to_contain_text("MB", timeout=30_000)
    page.locator(".facts div", has_text="Worker").get_by_role("link").click()
    page.wait_for_url("**/workers/*")
    report.cancel().unwrap()


def test_a_dashboard_without_the_app_sends_no_new_tasks(serve: Serve, database_url: str) -> None:
    base = serve(database_url, enable_actions=True)

    refused = httpx.post(
        f"{base}/api/tasks/send", json={"name": "x", "kwargs": {}}, headers={"X-Horsies-Intent": "action"}
    )

    assert "New task" not in httpx.get(f"{base}/tasks").text
    assert (refused.status_code, "without the app" in refused.json()["error"]["message"]) == (404, True)
