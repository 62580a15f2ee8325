"""Take the screenshots of the documentation: `python -m tests.browser.screenshots` writes docs/images/."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser

from horsies import CronSchedule, PostgresConfig, TaskSchedule, embedded
from horsies.db.migrations import migrate
from tests.browser.scene import fill_day
from tests.browser.scenery import FLOWS, HEAD
from tests.browser.server import dashboard
from tests.browser.shop import SOURCE
from tests.browser.viewer import Viewer, browsing
from tests.support.waiting import eventually
from tests.support.workers import Workplace

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
# Replaces local paths in tracebacks.
NEUTRAL = """root => document.querySelectorAll(".traceback, .frames code").forEach(each => {
    each.textContent = each.textContent.replaceAll(root, "/srv/shop/lib").replace(/[^"\\s]*[/]app[.]py/g, "/srv/shop/app.py");
})"""


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with stage(9_000) as (browser, base, scenes, _):
        take(browser, base, scenes)


@contextmanager
def stage(tasks: int) -> Iterator[tuple[Browser, str, dict[str, str], str]]:
    """Yield a browser, the dashboard of a shop at work with a day of so many tasks, the ids to show, and its database."""
    with tempfile.TemporaryDirectory() as home:
        server = embedded.ensure(Path(home), announce=lambda _: None)
        try:
            asyncio.run(migrate(PostgresConfig(database_url=server.url)))
            fill_day(server.url, tasks)
            with Workplace(Path(home), server.url) as place, browsing() as browser:
                place.write(HEAD + SOURCE + FLOWS)
                shop = place.load()
                place.start("--processes", "3", "--with-scheduler")
                scenes = play(shop)
                place.run("pause", "--queue", "mail")
                for customer in range(4):
                    shop.send_mail.send(to=f"{customer}@shop.example", subject="Your order is on its way")
                with dashboard(shop.app, enable_actions=True) as base:
                    yield browser, base, scenes, server.url
        finally:
            embedded.stop(Path(home), remove=True)


def play(shop: Any) -> dict[str, str]:
    """Run tasks and a workflow; return the ids to show."""
    lost = shop.send_mail.send(to="ann@shop.invalid", subject="Your order").unwrap()
    for order in range(40):
        shop.charge_card.send(order=order, amount="12.50")
    flow = shop.month_end().start().unwrap()
    flow.get(timeout_ms=20_000)
    lost.get(timeout_ms=20_000)
    shop.refund().start().unwrap()
    goods = shop.return_goods.delay(7)
    large = shop.close().start().unwrap()
    large.get(timeout_ms=20_000)
    eventually(lambda: len(goods.steps()) == 2, what="the wait of the durable task")
    report = shop.render_report.send(pages=200).unwrap()
    shop.render_report.send(pages=180)
    eventually(lambda: report.progress().unwrap() is not None, what="the report's progress")
    dunning = TaskSchedule(
        name="dunning", task_name="charge_card", kwargs={"order": 7, "amount": "9.50"}, pattern=CronSchedule("0 8 * * mon"),
        timezone="Europe/Berlin",
    )  # fmt: skip
    shop.app.schedules.create(dunning).unwrap()
    return {
        "failed": lost.task_id,
        "running": report.task_id,
        "durable": goods.task_id,
        "workflow": flow.workflow_id,
        "large": large.workflow_id,
    }


def take(browser: Browser, base: str, scenes: dict[str, str]) -> None:
    wide = {
        "overview": "/?range=24h",
        "tasks": "/tasks",
        "task": f"/tasks/{scenes['failed']}",
        "task-running": f"/tasks/{scenes['running']}",
        "queues": "/queues",
        "workers": "/workers",
        "schedules": "/schedules",
        "task-durable": f"/tasks/{scenes['durable']}",
        "workflow": f"/workflows/{scenes['workflow']}?node=4",
        "workflow-large": f"/workflows/{scenes['large']}",
        "waiting": "/waiting",
        "health": "/health",
    }
    for name, path in wide.items():
        shoot(browser, base, name, path)
    shoot(browser, base, "schedule-edit", "/schedules", press="Edit…")
    shoot(browser, base, "tasks-phone", "/tasks", width=390)
    shoot(browser, base, "overview-dark", "/?range=6h", dark=True)
    shoot(browser, base, "workflow-dark", f"/workflows/{scenes['workflow']}", dark=True)
    shoot(browser, base, "overview-phone", "/?range=1h", width=390)
    shoot(browser, base, "task-phone", f"/tasks/{scenes['failed']}", width=390)


def shoot(browser: Browser, base: str, name: str, path: str, press: str = "", **settings: Any) -> None:
    viewer = Viewer(browser, base, **settings)
    viewer.open(path)
    viewer.page.locator(".live.on").wait_for()
    viewer.page.evaluate(NEUTRAL, str(ROOT))
    end = viewer.page.evaluate("document.querySelector('main').getBoundingClientRect().bottom")
    size = viewer.page.viewport_size
    assert size is not None
    viewer.page.set_viewport_size({"width": size["width"], "height": max(560, min(900, int(end) + 20))})
    if press:
        viewer.page.get_by_role("button", name=press).first.click()
    viewer.page.screenshot(path=IMAGES / f"{name}.png")
    viewer.close()
    assert viewer.complaints == [], viewer.complaints


if __name__ == "__main__":
    main()
