"""On a phone and on a small laptop, everything is within reach and nothing is beyond the edge."""

from __future__ import annotations

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
# Elements that stick out to the right of the window, but for those in a part that scrolls by itself.
BEYOND = """() => [...document.querySelectorAll("body *")]
    .filter(each => each.getBoundingClientRect().right > innerWidth + 1 && each.getBoundingClientRect().width
        && !each.closest(".scroll, pre, .graph, aside, .unseen, .skip, [hidden]"))
    .map(each => each.outerHTML.slice(0, 120))"""


@pytest.fixture
def shop(tmp_path: Path, database_url: str) -> Any:
    yield from shop_of(tmp_path, database_url)


@browses
@pytest.mark.parametrize("width", [390, 1024])
def test_nothing_is_beyond_the_edge_on_any_screen(
    serve: Serve, watch: Watch, shop: Shop, database_url: str, width: int
) -> None:
    scene.fill_day(database_url, 200)
    viewer = watch(serve(shop.app, enable_actions=True), width=width, tolerates="404")
    for path in (*SCREENS, *shop.paths, "/tasks/nonsense"):
        page = viewer.open(path)
        assert not viewer.is_too_wide(), path
        assert page.evaluate(BEYOND) == [], path


@browses
def test_a_phone_has_a_bar_at_the_bottom_with_the_rest_behind_more(
    serve: Serve, watch: Watch, database_url: str
) -> None:
    page = watch(serve(database_url), width=390).open("/")
    bar = page.get_by_role("navigation", name="Pages")
    frame = bar.bounding_box()
    assert frame is not None
    assert round(frame["y"] + frame["height"]) == 900
    for name in ("Overview", "Tasks", "Queues", "Workflows"):
        link = bar.get_by_role("link", name=name)
        expect(link).to_be_visible()
        size = link.bounding_box()
        assert size is not None
        assert min(size["width"], size["height"]) >= 44
    expect(bar.get_by_role("link", name="Health")).to_be_hidden()

    bar.get_by_role("button", name="More").click()
    bar.get_by_role("link", name="Health").click()

    expect(page.locator("h1")).to_have_text("Health")


@browses
def test_rows_are_cards_that_name_their_values(serve: Serve, watch: Watch, shop: Shop) -> None:
    page = watch(serve(shop.app), width=390).open("/workflows")
    row = page.locator("tr[data-row]").first

    expect(row.locator("td[data-label=Nodes]")).to_be_visible()
    label = row.locator("td[data-label=Nodes]").evaluate("each => getComputedStyle(each, '::before').content")
    assert label == '"Nodes"'
    assert page.locator("thead").first.is_hidden()
    size = row.bounding_box()
    assert size is not None
    assert size["width"] <= 390


@browses
def test_seven_tasks_fit_on_a_phone_and_filters_are_menus(
    serve: Serve, watch: Watch, database_url: str
) -> None:
    scene.fill_day(database_url, 200)
    page = watch(serve(database_url, enable_actions=True), width=390).open("/tasks")
    bottoms: list[float] = page.locator("tbody tr").evaluate_all(
        "rows => rows.map(row => row.getBoundingClientRect().bottom)"
    )
    assert sum(bottom <= 840 for bottom in bottoms) >= 7
    expect(page.get_by_role("link", name="completed")).to_have_count(0)

    page.locator("aside summary", has_text="State").click()
    page.locator("aside").get_by_role("link", name="completed").click()

    page.wait_for_url("**/tasks?status=COMPLETED")
    page.locator(".pick").first.check()
    page.get_by_role("button", name="Select this page").click()
    expect(page.locator("#chosen")).to_have_text("50 tasks selected")
    page.get_by_role("button", name="Clear").click()
    page.locator("aside summary", has_text="State").click()
    page.keyboard.press("Escape")
    expect(page.locator("aside").get_by_role("link", name="completed")).to_be_hidden()
    expect(page.get_by_text("Times in UTC")).to_be_visible()
