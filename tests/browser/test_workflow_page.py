"""The graph of a workflow can be read at any size, and each node opens a panel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from playwright.sync_api import Page, expect

from tests.browser.scenery import Shop, shop_of
from tests.browser.viewer import Viewer, browses

Watch = Callable[..., Viewer]
Serve = Callable[..., str]


@pytest.fixture
def shop(tmp_path: Path, database_url: str) -> Any:
    yield from shop_of(tmp_path, database_url)


def box(page: Page) -> list[float]:
    return [float(each) for each in (page.locator(".graph .canvas").get_attribute("viewBox") or "").split()]


@browses
def test_the_graph_zooms_pans_and_fits(serve: Serve, watch: Watch, shop: Shop) -> None:
    page = watch(serve(shop.app)).open(shop.close)
    page.get_by_role("button", name="Fit").click()
    whole = box(page)

    page.get_by_role("button", name="Zoom in").click()
    near = box(page)
    assert near[2] < whole[2]

    frame = page.locator(".graph").bounding_box()
    assert frame is not None
    at = (frame["x"] + frame["width"] / 2, frame["y"] + 12)
    page.mouse.move(*at)
    page.mouse.down()
    page.mouse.move(at[0] + 60, at[1], steps=3)
    page.mouse.up()
    moved = box(page)
    assert moved[0] < near[0]
    assert moved[2] == near[2]

    page.locator(".graph").focus()
    page.keyboard.press("ArrowRight")
    assert box(page)[0] > moved[0]
    page.keyboard.press("0")
    assert box(page) == whole


@browses
def test_a_large_graph_has_a_map_and_a_small_one_has_none(serve: Serve, watch: Watch, shop: Shop) -> None:
    viewer = watch(serve(shop.app))
    page = viewer.open(shop.close)
    page.get_by_role("button", name="Zoom in").click()
    page.get_by_role("button", name="Zoom in").click()
    before = box(page)

    page.locator(".minimap").click(position={"x": 150, "y": 40})

    assert box(page)[0] > before[0]
    viewer.open(shop.refund)
    expect(page.locator(".graph .canvas")).to_be_visible()
    expect(page.locator(".minimap")).to_have_count(0)


@browses
def test_a_node_opens_its_panel_at_an_address_of_its_own(serve: Serve, watch: Watch, shop: Shop) -> None:
    page = watch(serve(shop.app)).open(shop.refund)

    page.locator('[data-node="draft"]').click()

    panel = page.locator(".node-panel")
    expect(panel.get_by_role("heading", name="draft")).to_be_focused()
    expect(panel).to_contain_text("completed")
    expect(panel.get_by_role("link", name="Open the task")).to_be_visible()
    assert page.url.endswith("?node=0")
    panel.get_by_role("link", name="approval").click()
    expect(panel.get_by_role("heading", name="approval")).to_be_visible()
    page.reload()
    expect(panel.get_by_role("heading", name="approval")).to_be_visible()
    page.get_by_role("link", name="Close the panel").click()
    expect(panel).to_have_count(0)


@browses
def test_long_labels_are_cut_with_the_whole_text_as_a_tooltip(serve: Serve, watch: Watch, shop: Shop) -> None:
    page = watch(serve(shop.app)).open(shop.close)
    node = page.locator('[data-node="column-1-reconciliation-of-customer-2"]')

    assert node.locator("title").text_content() == "column-1-reconciliation-of-customer-2: enqueued · draft"
    assert node.locator("text").first.text_content() == "column-1-…ustomer-2"
    overlap = page.evaluate(
        """() => [...document.querySelectorAll(".node")].map(node => [node.querySelector("rect"), node.querySelector("svg")])
            .filter(([box, text]) => getComputedStyle(text).overflow !== "hidden"
                || text.x.baseVal.value + text.width.baseVal.value > box.x.baseVal.value + box.width.baseVal.value).length"""
    )
    assert overlap == 0


@pytest.mark.breaks_invariants
@browses
def test_progress_counts_failures_and_skipped_nodes_are_grey(
    serve: Serve, watch: Watch, shop: Shop, database_url: str
) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "UPDATE horsies_workflow_tasks SET status = 'SKIPPED' WHERE workflow_id = %s AND node_id = 'decide'",
            (shop.refund.rpartition("/")[2],),
        )
    page = watch(serve(shop.app)).open(shop.refund)

    expect(page.get_by_text("1 of 3 completed, 1 skipped, 1 running")).to_be_visible()
    colour = "each => [getComputedStyle(each).fill, getComputedStyle(each).stroke]"
    fill, stroke = page.locator('[data-node="decide"] rect').evaluate(colour)
    red = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--bad')")
    grey = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--rest')")
    assert stroke == rgb(grey)
    assert rgb(red) not in (fill, stroke)


@browses
def test_the_time_line_shows_when_each_node_ran(serve: Serve, watch: Watch, shop: Shop) -> None:
    page = watch(serve(shop.app)).open(shop.refund)
    rows = page.locator(".timeline li")

    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("draft")
    starts = [float(bar.get_attribute("x") or 0) for bar in rows.locator(".bar").all()]
    assert starts == sorted(starts)


@browses
def test_25_workflows_fit_on_a_screen_of_900_pixels(serve: Serve, watch: Watch, shop: Shop) -> None:
    for number in range(30):
        shop.module.refund(f"refund {number}").start().unwrap()
    page = watch(serve(shop.app), width=1440).open("/workflows")

    bottoms: list[float] = page.locator("tbody tr").evaluate_all(
        "rows => rows.map(row => row.getBoundingClientRect().bottom)"
    )

    assert sum(bottom <= 900 for bottom in bottoms) >= 25
    expect(page.locator("tbody tr").last).to_contain_text("of 3")


def rgb(written: str) -> str:
    digits = written.strip().lstrip("#")
    return f"rgb({', '.join(str(int(digits[at : at + 2], 16)) for at in (0, 2, 4))})"
