"""Every action on the pages works, with a real worker, and is recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
from playwright.sync_api import expect

from tests.browser.shop import SOURCE
from tests.browser.viewer import Viewer, browses
from tests.support.workers import Workplace

Watch = Callable[..., Viewer]
Serve = Callable[..., str]
ACTOR = "web:local"


def acts(db: psycopg.Connection[dict[str, Any]]) -> list[str]:
    rows = db.execute("SELECT action FROM horsies_actions WHERE actor = %s ORDER BY id", (ACTOR,)).fetchall()
    return [row["action"] for row in rows]


@browses
def test_tasks_are_retried_cancelled_sent_again_and_deleted(
    serve: Serve, watch: Watch, workplace: Workplace, db: psycopg.Connection[dict[str, Any]]
) -> None:
    workplace.write(SOURCE)
    shop = workplace.load()
    workplace.start("--processes", "2", "--with-scheduler")
    lost = [shop.publish_alone.send().unwrap() for _ in range(3)]
    report = shop.render_report.send(pages=10_000).unwrap()
    for each in lost:
        each.get(timeout_ms=20_000)
    base = serve(shop.app, enable_actions=True)
    viewer = watch(base, tolerates="400")
    page = viewer.open(f"/tasks/{report.task_id}")
    expect(page.locator(".progress")).to_contain_text("of 10,000")
    expect(page.locator(".logs")).to_contain_text("page 1 of 10000 is drawn")
    expect(page.get_by_role("heading", name="Timeline")).to_be_visible()
    viewer.do("Cancel")
    expect(page.locator("h1 .pill.cancelled")).to_be_visible()

    Path(workplace.folder, "printer").touch()
    viewer.open(f"/tasks/{lost[0].task_id}")
    viewer.do("Retry")
    expect(page.locator("h1 .pill.completed")).to_be_visible()

    page.get_by_role("button", name="Send again…").click()
    page.get_by_label("Send a new task with these arguments").fill('{"copies": "many"}')
    page.locator("#ask button[value=yes]").click()
    expect(page.locator("#ask [role=alert]")).to_contain_text("do not fit publish_alone")
    page.get_by_label("Send a new task with these arguments").fill('{"copies": 7}')
    page.locator("#ask button[value=yes]").click()
    page.wait_for_url(lambda url: lost[0].task_id not in url)
    expect(page.locator("pre[data-part=result]")).to_contain_text('"7 published"')

    viewer.open("/tasks?status=FAILED")
    expect(page.locator(".pick")).to_have_count(2)
    page.locator(".pick").first.check()
    page.locator("[data-bulk=delete]").click()
    expect(page.locator("#ask")).to_contain_text("Delete 1 task?")
    expect(page.locator("#ask button")).to_have_text(["Keep it", "Delete task"])
    page.locator("#ask button[value=yes]").click()
    expect(page.locator(".pick")).to_have_count(1)
    page.locator("#all").check()
    viewer.do("Retry 1")
    expect(page.locator("main")).to_contain_text("No matching tasks.")
    steer(viewer, shop, workplace)
    assert acts(db) == [
        "cancel", "requeue", "resend", "delete", "requeue", "suspend", "workflow cancel", "workflow pause",
        "workflow resume", "resume", "workflow retry", "schedule pause", "schedule resume", "schedule run-now",
    ]  # fmt: skip


def steer(viewer: Viewer, shop: Any, workplace: Workplace) -> None:
    """Act on queues, workflows and schedules."""
    Path(workplace.folder, "printer").unlink()
    page = viewer.open("/queues")
    page.locator("tr", has_text="reports").get_by_role("button", name="Pause").click()
    page.locator("#ask button[value=yes]").click()
    expect(page.locator("tr", has_text="reports").locator(".pill.paused")).to_be_visible()

    first, flow = (shop.month_end().start().unwrap() for _ in range(2))
    viewer.open(f"/workflows/{first.workflow_id}")
    viewer.do("Cancel")
    expect(page.locator("h1 .pill.cancelled")).to_be_visible()
    viewer.open(f"/workflows/{flow.workflow_id}")
    expect(page.locator('[data-node="north"].enqueued')).to_be_visible()
    viewer.do("Pause")
    expect(page.locator("h1 .pill.paused")).to_be_visible()
    viewer.do("Resume")
    expect(page.locator("h1 .pill.running")).to_be_visible()

    viewer.open("/queues")
    viewer.do("Resume")
    viewer.open(f"/workflows/{flow.workflow_id}")
    expect(page.locator('[data-node="publish"].failed')).to_be_visible()
    expect(page.locator("h1 .pill.failed")).to_be_visible()
    viewer.do("Retry failed")
    expect(page.locator("#toast")).to_contain_text("Retry failed: done.")

    viewer.open("/schedules")
    row = page.locator("tr", has_text="nightly-report")
    for act in ("Pause", "Resume", "Run now"):
        row.get_by_role("button", name=act).click()
        page.locator("#ask button[value=yes]").click()
        expect(page.locator("#toast")).to_contain_text(f"{act}: done.")
    run = page.locator("tr", has_text="nightly-report").locator('a[href*="/tasks/"]')
    expect(run).to_be_visible()


@browses
def test_tasks_are_cancelled_only_after_confirmation(
    serve: Serve, watch: Watch, database_url: str, db: psycopg.Connection[dict[str, Any]]
) -> None:
    db.execute("INSERT INTO horsies_tasks (task_name) VALUES ('one'), ('two')")
    page = watch(serve(database_url, enable_actions=True)).open("/tasks")
    page.locator("#all").check()
    page.locator("[data-bulk=cancel]").click()
    expect(page.locator("#ask")).to_contain_text("Cancel 2 tasks?")
    expect(page.locator("#ask button")).to_have_text(["Keep them", "Cancel tasks"])

    page.get_by_role("button", name="Keep them").click()

    assert acts(db) == []
    page.locator("[data-bulk=cancel]").click()
    page.get_by_role("button", name="Cancel tasks").click()
    expect(page.locator("tr[data-status=CANCELLED]")).to_have_count(2)
    assert acts(db) == ["cancel"]
