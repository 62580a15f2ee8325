"""A new user is told the first steps, and every screen speaks plain words."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser import scene
from tests.browser.scenery import SCREENS, Shop, shop_of
from tests.browser.viewer import Viewer, browses

Watch = Callable[..., Viewer]
Serve = Callable[..., str]


@pytest.fixture
def shop(tmp_path: Path, database_url: str) -> Any:
    yield from shop_of(tmp_path, database_url)


@browses
def test_an_empty_database_shows_first_steps_to_copy_and_no_plots(
    serve: Serve, watch: Watch, database_url: str
) -> None:
    page = watch(serve(database_url)).open("/")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])

    expect(page.get_by_role("heading", name="Run your first task")).to_be_visible()
    expect(page.locator(".plot")).to_have_count(0)
    page.get_by_role("button", name="Copy tasks.py").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    compile(copied, "tasks.py", "exec")
    assert "@app.task" in copied
    page.get_by_role("button", name="Copy: start a worker").click()
    assert page.evaluate("navigator.clipboard.readText()") == "horsies worker tasks:app"


@browses
def test_the_first_steps_go_once_there_is_a_task(serve: Serve, watch: Watch, database_url: str) -> None:
    scene.fill_day(database_url, 50)
    page = watch(serve(database_url)).open("/?range=24h")

    expect(page.get_by_role("heading", name="Run your first task")).to_have_count(0)
    expect(page.locator(".plot").first).to_be_visible()


@browses
def test_no_screen_shows_backticks(serve: Serve, watch: Watch, shop: Shop) -> None:
    viewer = watch(serve(shop.app, enable_actions=True), tolerates="404")
    shop.place.run("pause", "--queue", "mail")
    waiting = shop.module.send_mail.send(to="ann@shop.example", subject="x").unwrap()
    for path in (*SCREENS, *shop.paths, f"/tasks/{waiting.task_id}", "/tasks/nonsense"):
        text = viewer.open(path).locator("body").inner_text()
        assert "`" not in text, path
    # The sentence had them in the terminal: here a command is marked as code.
    page = viewer.open(f"/tasks/{waiting.task_id}")
    expect(page.locator(".why code", has_text="horsies resume --queue mail")).to_be_visible()


@browses
def test_schedules_are_described_in_words(serve: Serve, watch: Watch, shop: Shop) -> None:
    shop.place.start("--processes", "1", "--with-scheduler")
    page = watch(serve(shop.app)).open("/schedules")

    expect(page.locator("tr", has_text="stock-check")).to_contain_text("every 15 min", timeout=30_000)
    text = page.locator("main").inner_text()
    assert not re.search(r"\d:\d\d:\d\d, |timedelta", text)
