"""Picture every screen, to be looked at: `python -m tests.browser.gallery FOLDER [WORD…]`.

Each screen in three sizes, light and dark: with a day of 20,000 tasks and 600 workflows, empty, and without its database. With
words, only the pictures whose names contain one of them. `FOLDER/sheet-….png` show several pictures side by side.
"""

from __future__ import annotations

import asyncio
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import psycopg
from playwright.sync_api import Browser, Page, expect

from horsies import PostgresConfig
from horsies.db.migrations import migrate
from tests.browser.screenshots import NEUTRAL, ROOT, stage
from tests.browser.server import dashboard
from tests.browser.viewer import Viewer
from tests.support.proxy import Proxy
from tests.support.servers import named

SIZES = {"wide": (1440, 900), "small": (1024, 768), "phone": (390, 844)}
# The longest part of a page that is pictured, in screens.
MOST_SCREENS = 2.2
TASKS, WORKFLOWS = 20_000, 600
ROUTES = {
    "overview": "/?range=24h", "tasks": "/tasks", "failed-tasks": "/tasks?status=FAILED", "failures": "/failures?range=24h",
    "queues": "/queues", "queue": "/queues/mail?range=24h", "name": "/names/send_mail?range=24h", "keys": "/keys", "workers": "/workers",
    "workflows": "/workflows", "waiting": "/waiting", "schedules": "/schedules", "health": "/health", "api": "/api",
    "not-found": "/tasks/nonsense",
}  # fmt: skip
# Dialogs and menus: the elements to click on a page.
PRESSED = {
    "schedule-dialog": ("/schedules", "text=New schedule…"),
    "schedule-edit-dialog": ("/schedules", "text=Edit…"),
    "new-task-dialog": ("/tasks", "#new-task"),
    "retry-dialog": ("/tasks?status=FAILED", ".pick", "text=Select this page", "[data-bulk=retry]"),
    "selection": ("/tasks", ".pick"),
    "columns": ("/tasks", "text=Columns"),
}
# A copy of a finished workflow with its nodes, `n` quarters of an hour earlier.
_COPY_WORKFLOW = """
INSERT INTO horsies_workflows
SELECT (jsonb_populate_record(flow, jsonb_build_object(
           'id', %(new)s::uuid, 'root_workflow_id', %(new)s::uuid,
           'sent_at', sent_at - %(n)s * interval '15 min', 'started_at', started_at - %(n)s * interval '15 min',
           'completed_at', completed_at - %(n)s * interval '15 min'))).*
  FROM horsies_workflows AS flow WHERE id = %(id)s"""
_COPY_NODES = """
INSERT INTO horsies_workflow_tasks
SELECT (jsonb_populate_record(node, jsonb_build_object('workflow_id', %(new)s::uuid))).*
  FROM horsies_workflow_tasks AS node WHERE workflow_id = %(id)s"""


def main(folder: Path, words: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with stage(TASKS) as (browser, base, scenes, url):
        copy_workflow(url, scenes["workflow"], WORKFLOWS)
        gallery = Gallery(browser, folder, words)
        gallery.take("full", base, ROUTES | details(scenes, url))
        gallery.take("open", base, {name: path for name, (path, *_) in PRESSED.items()})
        empty = empty_database(url)
        with dashboard(empty, enable_actions=True) as base:
            gallery.take("empty", base, ROUTES)
        with dashboard(empty, token="a-token-that-is-long-enough") as base:
            gallery.take("locked", base, {"login": "/"})
        with Proxy(url) as proxy, dashboard(proxy.url) as base:
            gallery.take("away", base, {"tasks": "/tasks", "overview": "/"}, lose=proxy)
            proxy.refusing = True
            proxy.cut()
            gallery.take("gone", base, {"queues": "/queues"})
        gallery.compose()


def details(scenes: dict[str, str], url: str) -> dict[str, str]:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT worker_id FROM horsies_workers LIMIT 1").fetchone()
    assert row is not None
    return {
        "task": f"/tasks/{scenes['failed']}",
        "task-running": f"/tasks/{scenes['running']}",
        "task-durable": f"/tasks/{scenes['durable']}",
        "workflow": f"/workflows/{scenes['workflow']}?node=4",
        "workflow-large": f"/workflows/{scenes['large']}",
        "worker": f"/workers/{row[0]}",
    }


def copy_workflow(url: str, workflow_id: str, times: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for n in range(1, times + 1):
            sent = int(time.time() * 1000) - n * 900_000
            new = UUID(f"{sent:012x}7{n % 4096:03x}8{n:015x}")
            for statement in (_COPY_WORKFLOW, _COPY_NODES):
                connection.execute(statement, {"n": n, "id": workflow_id, "new": new})


def empty_database(url: str) -> str:
    """Create another database on the same server; return its URL."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE nothing")
    empty = named(url, "nothing")
    with ThreadPoolExecutor(1) as thread:  # Playwright keeps a loop running in this one
        thread.submit(asyncio.run, migrate(PostgresConfig(database_url=empty))).result()
    return empty


class Gallery:
    """Takes pictures into a folder, those whose names contain one of the words."""

    def __init__(self, browser: Browser, folder: Path, words: list[str]) -> None:
        self._browser, self._folder, self._words = browser, folder, words
        self._taken: dict[tuple[str, str], list[Path]] = {}

    def take(self, state: str, base: str, routes: dict[str, str], *, lose: Proxy | None = None) -> None:
        """Picture the routes in all sizes. With a proxy, the pages lose their database once they are open."""
        for size, (width, height) in SIZES.items():
            for theme in ("light", "dark"):
                named = {f"{state}-{name}-{size}-{theme}": path for name, path in routes.items()}
                wanted = {
                    name: path
                    for name, path in named.items()
                    if not self._words or any(word in name for word in self._words)
                }
                if not wanted:
                    continue
                viewer = Viewer(self._browser, base, width=width, dark=theme == "dark", tolerates="")
                for name, path in wanted.items():
                    viewer.page.set_viewport_size({"width": width, "height": height})
                    self._shoot(viewer, name, path, lose)
                    self._taken.setdefault((size, theme), []).append(self._folder / f"{name}.png")
                viewer.close()

    def _shoot(self, viewer: Viewer, name: str, path: str, lose: Proxy | None) -> None:
        page = viewer.open(path)
        page.wait_for_function("document.fonts.status === 'loaded'")
        if lose is not None:
            expect(page.locator(".live.on")).to_be_visible()
            lose.refusing = True
            lose.cut()
            expect(page.locator("#banner")).to_be_visible()
            lose.refusing = False
        elif page.locator("#live").count() and not page.locator("[data-error]").count():
            expect(page.locator(".live.on")).to_be_visible()
        state, _, rest = name.partition("-")
        for target in PRESSED[rest.rsplit("-", 2)[0]][1:] if state == "open" else ():
            page.locator(target).first.click()
        page.evaluate(NEUTRAL, str(ROOT))
        assert page.viewport_size is not None
        width, height = page.viewport_size["width"], page.viewport_size["height"]
        length = page.evaluate("document.documentElement.scrollHeight")
        page.set_viewport_size(
            {"width": width, "height": int(min(max(length, height), height * MOST_SCREENS))}
        )
        page.screenshot(path=self._folder / f"{name}.png")

    def compose(self) -> None:
        """Put pictures of the same size and theme side by side."""
        for (size, theme), pictures in self._taken.items():
            columns = {"wide": 2, "small": 3, "phone": 6}[size]
            for number in range(0, len(pictures), columns):
                page = self._browser.new_page(viewport={"width": columns * SIZES[size][0], "height": 600})
                _sheet(page, pictures[number : number + columns])
                page.screenshot(
                    path=self._folder / f"sheet-{size}-{theme}-{number // columns}.png", full_page=True
                )
                page.close()


def _sheet(page: Page, pictures: list[Path]) -> None:
    figures = "".join(
        f"<figure><figcaption>{each.stem}</figcaption><img src='{each.as_uri()}'></figure>"
        for each in pictures
    )
    style = "body{margin:0;display:flex;align-items:start;gap:12px;background:#777;font:22px sans-serif}figure{margin:0}img{display:block}"
    target = pictures[0].parent / "sheet.html"
    target.write_text(f"<style>{style}</style>{figures}")
    page.goto(target.as_uri())
    target.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2:])
