"""The search field suggests what there is, and a page stands still when its viewer wants it to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
from playwright.sync_api import expect

from tests.browser import scene
from tests.browser.viewer import Viewer, browses

Watch = Callable[..., Viewer]
Serve = Callable[..., str]
Db = psycopg.Connection[dict[str, Any]]


@browses
def test_the_search_field_suggests_names_queues_and_codes_and_leads_to_their_filter(
    serve: Serve, watch: Watch, database_url: str
) -> None:
    scene.fill_day(database_url, 300)
    page = watch(serve(database_url)).open("/")
    for text, address in (
        ("send_mail", "name=send_mail"),
        ("reports", "queue=reports"),
        ("SMTP_DOWN", "code=SMTP_DOWN"),
        ('"order" : 7,', "q="),
    ):
        page.get_by_label("Find a task").click()
        expect(page.locator("#suggestions option[value=send_mail]")).to_have_attribute(
            "label", "send_mail · task"
        )
        page.get_by_label("Find a task").fill(text)
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/tasks?{address}*")
        expect(page.locator("td.name").first).to_be_visible()


@browses
def test_live_updates_stop_and_go_on(serve: Serve, watch: Watch, database_url: str, db: Db) -> None:
    page = watch(serve(database_url, enable_actions=True)).open("/queues")
    live = page.locator("#live")
    expect(live).to_have_text("live")

    page.keyboard.press("s")
    expect(live).to_have_text("paused")
    expect(live).to_have_attribute("aria-pressed", "true")
    db.execute("INSERT INTO horsies_tasks (task_name, queue_name) VALUES ('add', 'late')")
    # The viewer's own action shows its outcome, and the page stands still again.
    page.get_by_role("button", name="Pause all").click()
    page.locator("#ask button[value=yes]").click()
    expect(page.get_by_role("button", name="Resume all")).to_be_visible()
    expect(page.get_by_role("link", name="late")).to_be_visible()
    expect(live).to_have_text("paused")
    with page.expect_request(lambda request: request.url.endswith("/events")):
        live.click()
    expect(live).to_have_text("live")
    db.execute("INSERT INTO horsies_tasks (task_name, queue_name) VALUES ('add', 'later still')")
    expect(page.get_by_role("link", name="later still")).to_be_visible()
