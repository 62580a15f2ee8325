"""Every page works on every device, and hostile data on it does no harm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from playwright.sync_api import expect

from tests.browser import scene
from tests.browser.shop import SOURCE
from tests.browser.viewer import Viewer, browses
from tests.support.waiting import eventually
from tests.support.workers import Workplace

Watch = Callable[..., Viewer]
Serve = Callable[..., str]
LIGHT, DARK = "rgb(246, 247, 249)", "rgb(18, 21, 28)"
SCREENS = ("/", "/tasks", "/queues", "/workers", "/workflows", "/schedules", "/health", "/api")


@pytest.fixture
def shop(tmp_path: Path, database_url: str) -> Any:
    with Workplace(tmp_path, database_url) as place:
        place.write(SOURCE)
        yield place.load()


@pytest.mark.breaks_invariants
@browses
def test_every_screen_fits_every_device_and_is_quiet(
    serve: Serve, watch: Watch, shop: Any, database_url: str
) -> None:
    scene.fill_day(database_url, 300)
    scene.add_hostile_rows(database_url)
    flow = shop.month_end().start().unwrap()
    paths = (*SCREENS, f"/workflows/{flow.workflow_id}", f"/tasks/{scene.HOSTILE_ID}", "/tasks/nonsense")
    base = serve(database_url)
    viewer = watch(base, dark=True, tolerates="404")
    for path in paths:
        page = viewer.open(path)
        expect(page.locator("main h1").first).to_be_visible()
        assert not viewer.is_too_wide(), path
        page.set_viewport_size({"width": 390, "height": 800})
        assert not viewer.is_too_wide(), f"{path} on a phone"
        page.set_viewport_size({"width": 1280, "height": 800})
    assert background(viewer) == DARK
    viewer.page.locator("#theme").click()
    assert background(viewer) == LIGHT


def background(viewer: Viewer) -> str:
    return viewer.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")


@pytest.mark.breaks_invariants
@browses
def test_what_tasks_carry_is_shown_and_never_run(serve: Serve, watch: Watch, database_url: str) -> None:
    scene.add_hostile_rows(database_url)
    base = serve(database_url)
    viewer = watch(base)
    page = viewer.open("/tasks")
    expect(page.get_by_role("link", name=scene.HOSTILE_NAME).first).to_be_visible()
    viewer.open("/queues")
    expect(page.get_by_role("link", name=scene.HOSTILE_QUEUE)).to_be_visible()
    viewer.open(f"/tasks/{scene.HOSTILE_ID}")
    expect(page.locator("h1")).to_contain_text(scene.HOSTILE_NAME)
    expect(page.locator(".traceback")).to_have_text(scene.HOSTILE_TEXT)
    assert page.evaluate("window.broken") is None

    viewer.open(f"/tasks/{scene.HUGE_ID}")
    page.get_by_role("link", name="show all").click()
    length = "document.querySelector('pre[data-part=kwargs]').textContent.length"
    eventually(
        lambda: page.evaluate(length) > 200_000, what="all of it"
    )  # the page itself may not evaluate text
    viewer.open(f"/tasks/{scene.BINARY_ID}")
    expect(page.locator("pre[data-part=result]")).to_contain_text("\ufffd")


@browses
def test_filters_are_in_the_address_and_keys_lead_everywhere(
    serve: Serve, watch: Watch, database_url: str
) -> None:
    scene.fill_day(database_url, 300)
    base = serve(database_url)
    viewer = watch(base)
    page = viewer.open("/")
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_url("**/tasks")
    page.locator("aside").get_by_role("link", name="send_mail").click()
    page.wait_for_url("**/tasks?name=send_mail")
    assert set(page.locator("td.name a").all_text_contents()) == {"send_mail"}
    page.locator("#older").click()
    page.wait_for_url("**before=*")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/tasks/*")
    page.keyboard.press("/")
    page.keyboard.type('"order" : 7,')
    page.keyboard.press("Enter")
    page.wait_for_url("**/tasks?q=*")
    expect(page.locator("td.name a")).to_have_count(1)
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_contain_text("find a task")


@browses
def test_whoever_knows_the_token_is_let_in_and_nobody_else(
    serve: Serve, watch: Watch, database_url: str
) -> None:
    viewer = watch(serve(database_url, token="a-token-that-is-long-enough"), tolerates="403")
    page = viewer.open("/queues")
    for token in ("a-token-that-is-wrong", "a-token-that-is-long-enough"):
        expect(page.locator("h1")).to_contain_text("horsies")
        page.get_by_label("Token").fill(token)
        page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Queues")
    expect(page.locator(".live.on")).to_be_visible()


@browses
def test_a_page_says_when_the_database_is_away_and_comes_back_by_itself(
    serve: Serve, watch: Watch, database_url: str, proxy: Any
) -> None:
    base = serve(proxy.url)
    viewer = watch(base, tolerates="503")
    page = viewer.open("/tasks")
    expect(page.locator(".live.on")).to_be_visible()

    proxy.refusing = True
    proxy.cut()
    expect(page.locator("#banner")).to_contain_text("The database cannot be reached.")
    expect(page.locator("#banner")).to_contain_text(" UTC. Trying again")
    late = watch(base, tolerates="503")
    late.open("/queues")
    expect(late.page.locator("h1")).to_have_text("The database cannot be reached.")
    expect(late.page.locator("#live")).to_have_text("reconnecting")
    expect(late.page.locator("#banner")).to_be_hidden()  # nothing is shown yet that could be out of date

    proxy.refusing = False
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("INSERT INTO horsies_tasks (task_name) VALUES ('came later')")
    expect(page.get_by_role("link", name="came later")).to_be_visible()
    expect(page.locator("#banner")).to_be_hidden()
    expect(late.page.locator("h1")).to_have_text("Queues")
