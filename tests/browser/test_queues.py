"""Queues, workers and tasks: bars, small charts, and a page for each with the times that tasks wait and run."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import psycopg
from playwright.sync_api import expect

from tests.browser import scene
from tests.browser.shop import SOURCE
from tests.browser.viewer import Viewer, browses
from tests.support.waiting import eventually
from tests.support.workers import Workplace

Watch = Callable[..., Viewer]
Serve = Callable[..., str]
Db = psycopg.Connection[dict[str, Any]]


@browses
def test_queues_show_their_last_hour_and_how_much_of_their_limit_is_in_use(
    serve: Serve, watch: Watch, workplace: Workplace, database_url: str
) -> None:
    scene.fill_day(database_url, 3_000)
    workplace.write(SOURCE)
    workplace.load()
    workplace.start("--processes", "1")
    page = watch(serve(database_url, enable_actions=True), width=1440).open("/queues")

    row = page.locator("tr", has_text="mail")
    expect(row.locator(".spark")).to_have_count(2)
    expect(row.locator(".gauge")).to_contain_text("/ 5")
    expect(row.locator(".gauge svg")).to_have_attribute("aria-label", "0 of 5 that may run at once")

    row.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Go back")).to_be_focused()
    page.locator("#ask button[value=yes]").click()
    expect(row.locator(".pill.paused")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(row.locator(".pill.completed")).to_be_visible()


@browses
def test_a_queue_and_a_task_have_a_page_with_their_times_failures_and_latest_tasks(
    serve: Serve, watch: Watch, database_url: str
) -> None:
    scene.fill_day(database_url, 3_000)
    viewer = watch(serve(database_url), width=1440)
    page = viewer.open("/queues/mail?range=24h")

    expect(page.locator("h1")).to_contain_text("mail")
    expect(page.locator(".latencies")).to_contain_text("p50")
    expect(page.locator(".latencies")).to_contain_text("p99")
    expect(page.locator(".plot")).to_have_count(4)
    expect(page.locator("main")).to_contain_text("SMTP_DOWN")
    expect(page.locator("#latest tbody tr")).to_have_count(10)
    page.get_by_role("link", name="send_mail", exact=True).first.click()
    page.wait_for_url("**/names/send_mail")
    expect(page.locator("h1")).to_have_text("send_mail")
    expect(page.locator(".plot")).to_have_count(3)
    assert not viewer.is_too_wide()


@browses
def test_a_worker_has_a_page_with_its_children_and_the_times_of_its_tasks(
    serve: Serve, watch: Watch, workplace: Workplace, database_url: str, db: Db
) -> None:
    workplace.write(SOURCE)
    shop = workplace.load()
    workplace.start("--processes", "2")
    for order in range(20):
        shop.charge_card.send(order=order, amount="1")
    ended = "SELECT count(*) FROM horsies_tasks WHERE status = 'COMPLETED'"
    eventually(lambda: db.execute(ended).fetchone() == {"count": 20}, what="the tasks")
    viewer = watch(serve(database_url))
    page = viewer.open("/workers")
    page.locator("h2 a").click()

    page.wait_for_url("**/workers/*")
    expect(page.locator("main")).to_contain_text("20 tasks that this worker ended, 0 of them failed")
    expect(page.locator(".latencies td").first).to_contain_text("ms")
    expect(page.get_by_role("heading", name="Children")).to_be_visible()
    assert not viewer.is_too_wide()


@browses
def test_a_key_has_a_page_with_what_waits_and_can_be_paused(
    serve: Serve, watch: Watch, database_url: str, db: Db
) -> None:
    db.execute(
        "INSERT INTO horsies_tasks_live (task_name, rate_key, enqueued_at)"
        " SELECT 'export', 'key=acme/1', now() - interval '5 minutes' FROM generate_series(1, 3)"
    )
    viewer = watch(serve(database_url, enable_actions=True), width=1440)
    page = viewer.open("/queues")

    page.get_by_role("link", name="acme/1").click()

    page.wait_for_url("**/keys/acme/1")
    expect(page.locator(".figure", has_text="waiting").first.locator("b")).to_have_text("3")
    expect(page.locator("#latest tbody tr")).to_have_count(3)
    viewer.do("Pause")
    expect(page.locator("h1 .pill.paused")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(page.locator("h1 .pill.paused")).to_have_count(0)
    viewer.open("/tasks?key=acme/1")
    expect(page.locator("tbody tr")).to_have_count(3)
    expect(page.locator(".chip")).to_contain_text("acme/1")


@browses
def test_a_name_that_nothing_has_is_not_found(serve: Serve, watch: Watch, database_url: str) -> None:
    viewer = watch(serve(database_url), tolerates="404")
    page = viewer.open("/names/nobody")
    expect(page.locator("h1")).to_contain_text("No task of the name 'nobody' is known.")


@browses
def test_rate_limits_are_listed_with_the_next_start(
    serve: Serve, watch: Watch, database_url: str, db: Db
) -> None:
    db.execute("INSERT INTO horsies_tasks (task_name, queue_name) VALUES ('export', 'reports')")
    db.execute(
        "INSERT INTO horsies_rates (rate_key, seconds, burst, spent_until)"
        " VALUES ('export', 10, 3, now() + interval '20 s'), ('import', 0.1, 1, '-infinity'), ('removed', 0, 1, now())"
    )
    page = watch(serve(database_url)).open("/queues")

    rates = page.locator("#rates tbody tr")
    expect(rates).to_have_count(2)
    expect(rates.nth(0)).to_contain_text("6/min")
    expect(rates.nth(0)).to_contain_text(re.compile(r"in \d+ s"))
    expect(rates.nth(1)).to_contain_text("10/s")
    expect(rates.nth(1)).to_contain_text("now")
    expect(rates.nth(0).get_by_role("link")).to_have_attribute("href", "/names/export")


@browses
def test_the_buttons_of_queues_are_within_reach_on_a_small_laptop(
    serve: Serve, watch: Watch, workplace: Workplace, database_url: str
) -> None:
    scene.fill_day(database_url, 300)
    workplace.write(SOURCE)
    workplace.load()
    workplace.start("--processes", "1")
    page = watch(serve(database_url, enable_actions=True), width=1024).open("/queues")

    beyond = page.locator(".scroll").evaluate_all(
        "all => all.filter(each => each.scrollWidth > each.clientWidth).length"
    )
    assert beyond == 0
    expect(page.locator("tr", has_text="mail").get_by_role("button", name="Pause")).to_be_in_viewport()
