"""A viewer with a real browser, which records console errors and requests to other hosts."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


# Playwright keeps an event loop running in its thread, so no other loop could run there. It gets its own thread.
THREAD = ThreadPoolExecutor(1, thread_name_prefix="browser")


def browses(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test in the browser's thread."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        THREAD.submit(test, *args, **kwargs).result()

    return run


def chromium() -> str | None:
    """Return the path of the browser; None if there is none."""
    named = os.environ.get("HORSIES_TEST_CHROMIUM")
    found = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    return named or next((path for path in found if path), None)


@contextmanager
def browsing() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


class Viewer:
    """Opens the pages of one dashboard, and records errors, except responses with the status `tolerates`."""

    def __init__(
        self, browser: Browser, base: str, *, width: int = 1280, dark: bool = False, tolerates: str = "none"
    ) -> None:
        self.base = base
        self._tolerated = f"status of {tolerates}"
        self._context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
        )
        self._context.set_default_timeout(10_000)
        self.page: Page = self._context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._see)

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and self._tolerated not in message.text:
            self.complaints.append(message.text)

    def _see(self, request: Request) -> None:
        if urlsplit(request.url).netloc != urlsplit(self.base).netloc:
            self.complaints.append(f"request to another host: {request.url}")

    def open(self, path: str) -> Page:
        self.page.goto(self.base + path, wait_until="load")
        return self.page

    def is_too_wide(self) -> bool:
        return self.page.evaluate("document.documentElement.scrollWidth > innerWidth")

    def do(self, button: str, *, within: str = "main") -> None:
        """Press a button and confirm."""
        self.page.locator(within).get_by_role("button", name=button, exact=True).first.click()
        self.page.locator("#ask button[value=yes]").click()

    def close(self) -> None:
        self._context.close()
