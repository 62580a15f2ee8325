"""Fixtures: one browser for the run, dashboards, and viewers that fail the test if a page reports an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Browser

from tests.browser.server import dashboard
from tests.browser.viewer import THREAD, Viewer, browsing, chromium
from tests.support.proxy import Proxy


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if chromium() is None:
        pytest.skip("there is no Chromium: install one, or name it in HORSIES_TEST_CHROMIUM")
    session = browsing()
    yield THREAD.submit(session.__enter__).result()
    THREAD.submit(session.__exit__, None, None, None).result()


@pytest.fixture
def proxy(database_url: str) -> Iterator[Proxy]:
    with Proxy(database_url) as proxy:
        yield proxy


@pytest.fixture
def serve(database_url: str) -> Iterator[Callable[..., str]]:
    """Return a function that serves a dashboard until the end of the test, and returns its address.

    The database outlives the pages that ask for it.
    """
    with ExitStack() as served:
        yield lambda source, **settings: served.enter_context(dashboard(source, **settings))


@pytest.fixture
def watch(browser: Browser, serve: object) -> Iterator[Callable[..., Viewer]]:
    """Return a function that opens a viewer. At the end of the test, no viewer may have seen an error."""
    viewers: list[Viewer] = []

    def new(base: str, **settings: object) -> Viewer:
        viewers.append(Viewer(browser, base, **settings))  # pyright: ignore[reportArgumentType]
        return viewers[-1]

    yield new
    for viewer in viewers:
        THREAD.submit(viewer.close).result()
    assert [viewer.complaints for viewer in viewers] == [[] for _ in viewers]
