"""The script of the pages formats as the server does."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from horsies import units
from tests.browser.viewer import Viewer, browses

SECONDS = (0, 0.0003, 0.0086, 0.00996, 0.25, 0.9996, 1, 1.25, 1.3, 2.5, 9.96, 13.4, 59.4, 59.6, 75, 124, 3_599.7, 7_500, 86_390,
           90_000, 1_054_080, 12_345_678, -75)  # fmt: skip
NUMBERS = (0, 1, 0.25, 0.0312, 3.14, 12.34, 250, 1_000, 1_250, 9_990, 1_234_567, 2_500_000)
NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)


@browses
def test_the_server_and_the_browser_format_alike(
    serve: Callable[..., str], watch: Callable[..., Viewer], database_url: str
) -> None:
    page = watch(serve(database_url)).open("/api")

    def formatted(name: str, values: tuple[float, ...]) -> list[str]:
        return page.evaluate(
            "async ([name, values]) => values.map((await import(`/static/units.js`))[name])", [name, values]
        )

    assert formatted("span", SECONDS) == [units.span(each) for each in SECONDS]
    assert formatted("ago", SECONDS) == [units.ago(NOW - timedelta(seconds=each), NOW) for each in SECONDS]
    for name, function in (
        ("number", units.number),
        ("short", units.short),
        ("megabytes", units.megabytes),
        ("percentage", units.percentage),
        ("perSecond", units.per_second),
    ):
        assert formatted(name, NUMBERS) == [function(each) for each in NUMBERS], name


@browses
def test_a_time_has_its_zone_in_one_place_and_its_exact_value_on_hover(
    serve: Callable[..., str],
    watch: Callable[..., Viewer],
    database_url: str,
    db: psycopg.Connection[dict[str, Any]],
) -> None:
    db.execute("INSERT INTO horsies_tasks (task_name) VALUES ('one')")
    page = watch(serve(database_url)).open("/tasks")

    sent = page.locator("td time").first

    assert page.get_by_text("Times in UTC").count() == 1
    assert sent.inner_text().endswith("ago") or sent.inner_text() == "now"
    assert sent.get_attribute("title").endswith(" UTC")  # pyright: ignore[reportOptionalMemberAccess]
