"""Charts: four beside each other, with ticks and values, broken down and compared, and numbers that agree."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from playwright.sync_api import Page, expect

from tests.browser import scene
from tests.browser.viewer import Viewer, browses

Watch = Callable[..., Viewer]
Serve = Callable[..., str]
Db = psycopg.Connection[dict[str, Any]]
FIGURES = "figures => figures.map(figure => { const box = figure.getBoundingClientRect(); return [box.left, box.top]; })"


def number(text: str | None) -> int:
    """Return the number at the beginning of a text."""
    found = re.match(r"[\d,]+", text or "")
    assert found is not None, text
    return int(found[0].replace(",", ""))


@pytest.mark.parametrize(("width", "columns"), [(1440, 2), (1024, 2), (2200, 4), (390, 1)])
@browses
def test_four_plots_stand_in_rows_of_the_same_length(
    serve: Serve, watch: Watch, database_url: str, width: int, columns: int
) -> None:
    scene.fill_day(database_url, 300)
    viewer = watch(serve(database_url), width=width)
    page = viewer.open("/?range=6h")

    places: list[list[float]] = page.locator(".plot").evaluate_all(FIGURES)
    assert len(places) == 4
    assert len({left for left, _ in places}) == columns
    assert len({top for _, top in places}) == 4 // columns
    legends: list[list[float]] = page.locator(".plot .legend").evaluate_all(FIGURES)
    assert len({round(top) for _, top in legends}) == 4 // columns
    assert page.locator(".plot").first.locator(".ticks text").count() >= 3
    assert not viewer.is_too_wide()


@browses
def test_the_values_of_a_step_appear_under_the_pointer_and_a_click_leads_to_its_tasks(
    serve: Serve, watch: Watch, database_url: str
) -> None:
    scene.fill_day(database_url, 3_000)
    page = watch(serve(database_url), width=1440).open("/?range=6h")
    frame = page.locator(".plot", has_text="Throughput").locator(".frame")
    box = frame.bounding_box()
    assert box is not None

    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 40)

    expect(page.locator("#tip")).to_contain_text("UTC")
    expect(page.locator("#tip")).to_contain_text("completed")
    expect(page.locator(".cursor:visible")).to_have_count(4)
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 40)
    page.wait_for_url("**/tasks?*from=*until=*")
    expect(page.locator(".chip")).to_contain_text(["ended from", "ended before"])
    assert page.locator("tbody tr").count() > 0


@browses
def test_the_values_stay_under_the_pointer_when_new_figures_come(
    serve: Serve, watch: Watch, database_url: str, db: Db
) -> None:
    scene.fill_day(database_url, 300)
    page = watch(serve(database_url), width=1440).open("/?range=6h")
    page.evaluate("document.addEventListener('fresh', () => document.body.dataset.isFresh = true)")
    box = page.locator(".plot", has_text="Throughput").locator(".frame").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 40)

    db.execute(
        "INSERT INTO horsies_tasks_live (task_name, queue_name, kwargs) VALUES ('add', 'default', '{}')"
    )
    page.wait_for_selector("body[data-is-fresh]", state="attached")

    expect(page.locator(".cursor:visible")).to_have_count(4)
    expect(page.locator("#tip")).to_contain_text("UTC")


@browses
def test_totals_are_the_sums_of_their_parts(serve: Serve, watch: Watch, database_url: str, db: Db) -> None:
    scene.fill_day(database_url, 3_000)
    base = serve(database_url)
    viewer = watch(base, width=1440)
    for query in ("?range=24h", "?range=6h&by=task", "?range=24h&by=queue"):
        page = viewer.open(f"/{query}")
        for place, label in ((3, "completed"), (4, "failed")):
            figure = number(page.locator(".figure", has_text=label).locator("b").inner_text())
            assert figure == sum_of(page, f"#busiest tbody td:nth-child({place})"), (query, label)
            assert figure == number(page.locator(f"#busiest tfoot td:nth-child({place})").inner_text())
            answer = page.request.get(f"{base}/api/overview{query}").json()
            assert answer[label] == sum(point[label] for point in answer["points"])
            if answer["parts"]:
                assert answer[label] == sum(step[label] for part in answer["parts"] for step in part["steps"])


def sum_of(page: Page, cells: str) -> int:
    return sum(number(text) for text in page.locator(cells).all_inner_texts())


@browses
def test_counts_are_broken_down_by_queue_or_task_and_compared_with_the_span_before(
    serve: Serve, watch: Watch, database_url: str, db: Db
) -> None:
    scene.fill_day(database_url, 3_000)
    page = watch(serve(database_url), width=1440).open("/?range=6h")
    expect(page.locator(".plot", has_text="Throughput").locator(".legend")).to_contain_text("6 h before")
    expect(page.locator(".figure", has_text="completed in 6 h").locator(".change")).to_be_visible()

    page.get_by_role("link", name="by queue").click()

    page.wait_for_url("**by=queue*")
    legend = page.locator(".plot", has_text="Completed").first.locator(".legend span")
    expect(legend).to_have_text(["orders", "mail", "reports"])
    page.get_by_role("link", name="by task").click()
    page.wait_for_url("**by=task*")
    expect(legend).to_contain_text(["charge_card", "send_mail"])
