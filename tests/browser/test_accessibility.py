"""People who use a keyboard, a screen reader, large targets or no motion can use every screen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser import scene
from tests.browser.axe import NotFetched, axe, is_required
from tests.browser.scenery import SCREENS, Shop, shop_of
from tests.browser.viewer import Viewer, browses

Watch = Callable[..., Viewer]
Serve = Callable[..., str]
# The rules of WCAG 2.2, level AA, and the best practices of axe.
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
TABS = 10
# The screens are looked at in so many parts, because that takes long.
PARTS = 3


@pytest.fixture(scope="session")
def rules() -> str:
    try:
        return axe()
    except NotFetched as reason:
        if is_required():
            raise
        pytest.skip(str(reason))


@pytest.fixture
def shop(tmp_path: Path, database_url: str) -> Any:
    yield from shop_of(tmp_path, database_url)


def violations(page: Page, source: str) -> list[str]:
    page.evaluate(source)
    found = page.evaluate("rules => axe.run(document, {runOnly: rules, resultTypes: ['violations']})", RULES)
    return [
        f"{each['id']}: {node['html'][:200]} {node['failureSummary'][:200]}"
        for each in found["violations"]
        for node in each["nodes"][:3]
    ]


@browses
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("part", range(PARTS))
def test_axe_finds_no_violation_on_any_screen(
    serve: Serve, watch: Watch, shop: Shop, database_url: str, rules: str, dark: bool, part: int
) -> None:
    scene.fill_day(database_url, 300)
    viewer = watch(serve(shop.app, enable_actions=True), dark=dark, tolerates="404")
    for path in (*SCREENS, *shop.paths, "/tasks/nonsense")[part::PARTS]:
        page = viewer.open(path)
        expect(page.locator("main h1").first).to_be_visible()
        assert violations(page, rules) == [], path


@browses
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_no_violation_in_dialogs(
    serve: Serve, watch: Watch, shop: Shop, rules: str, dark: bool
) -> None:
    viewer = watch(serve(shop.app, enable_actions=True), dark=dark, tolerates="404")
    for path, button in ((shop.failed, "Send again…"), (shop.failed, "Delete")):
        page = viewer.open(path)
        page.get_by_role("button", name=button).click()
        expect(page.locator("#ask")).to_be_visible()
        assert violations(page, rules) == [], f"the dialog of {button}"


@browses
def test_axe_finds_no_violation_on_empty_screens_and_in_the_login_form(
    serve: Serve, watch: Watch, database_url: str, rules: str
) -> None:
    viewer = watch(serve(database_url), tolerates="404")
    for path in SCREENS:
        assert violations(viewer.open(path), rules) == [], path
    page = watch(serve(database_url, token="a-token-that-is-long-enough")).open("/")
    assert violations(page, rules) == []


@browses
def test_axe_finds_no_violation_while_the_database_is_away(serve: Serve, watch: Watch, rules: str) -> None:
    page = watch(serve("postgresql://nobody@127.0.0.1:1/none"), tolerates="503").open("/tasks")

    expect(page.locator("h1")).to_have_text("The database cannot be reached.")
    assert violations(page, rules) == []


@browses
def test_the_first_row_is_reached_within_ten_tabs(serve: Serve, watch: Watch, database_url: str) -> None:
    scene.fill_day(database_url, 100)
    page = watch(serve(database_url)).open("/tasks")

    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the list")).to_be_focused()
    page.keyboard.press("Enter")
    for _ in range(TABS - 2):
        page.keyboard.press("Tab")
        if page.evaluate("Boolean(document.activeElement.closest('tbody tr'))"):
            return
    raise AssertionError("the first row has not got the focus")


@browses
def test_every_target_is_24_pixels_large_or_stands_alone(
    serve: Serve, watch: Watch, shop: Shop, database_url: str
) -> None:
    scene.fill_day(database_url, 100)
    viewer = watch(serve(shop.app, enable_actions=True))
    for path in (*SCREENS, *shop.paths):
        page = viewer.open(path)
        small = page.evaluate(
            """() => [...document.querySelectorAll("button, select, input:not([type=hidden], [type=checkbox]), summary, nav a")]
                .filter(each => each.offsetParent)
                .map(each => [each.getBoundingClientRect(), each.outerHTML.slice(0, 120)])
                .filter(([box]) => Math.min(box.width, box.height) < 24)
                .map(([box, html]) => `${box.width} x ${box.height} ${html}`)"""
        )
        assert small == [], path


@browses
def test_nothing_moves_for_people_who_asked_for_less_motion(
    serve: Serve, watch: Watch, database_url: str
) -> None:
    viewer = watch(serve(database_url))
    page = viewer.page
    page.emulate_media(reduced_motion="reduce")
    viewer.open("/")
    expect(page.locator(".live.on")).to_be_visible()

    moving = page.evaluate("document.getAnimations().length")

    assert moving == 0
    page.emulate_media(reduced_motion="no-preference")
    assert page.evaluate("document.getAnimations().length") > 0
