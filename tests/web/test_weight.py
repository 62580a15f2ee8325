"""A page with everything it loads takes at most 200 kB, as a browser without a cache receives it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import httpx2 as httpx
import pytest

import horsies.web
from horsies.web import create_dashboard
from tests.browser.scene import fill_day
from tests.web.conftest import BASE

LIMIT = 200_000
STATIC = Path(horsies.web.__file__).parent / "static"
# The files that a page, a script or a style sheet names, and that are loaded without a click.
NAMED = re.compile(
    r'<(?:link|script|img)\b[^>]*?\b(?:href|src)="([^"]+)"|\bfrom "([^"]+)"|\bimport\("([^"]+)"\)|url\(["\']?([^"\')]+)'
)


async def weigh(url: str, page: str) -> dict[str, int]:
    """Return the bytes of each response that a page needs, compressed as they are served."""
    dashboard = create_dashboard(url, enable_actions=True)
    transport = httpx.ASGITransport(dashboard)
    found: dict[str, int] = {}
    async with httpx.AsyncClient(transport=transport, base_url=BASE) as session:
        wanted = [page]
        while wanted:
            address = wanted.pop()
            answer = await session.get(address, headers={"Accept-Encoding": "gzip"})
            assert answer.status_code == 200, address
            found[urlsplit(address).path] = answer.num_bytes_downloaded
            named = [
                urljoin(address, next(filter(None, groups)))
                for groups in _named(answer.text, address == page)
            ]
            wanted += [each for each in named if urlsplit(each).path not in found]
    await dashboard.close()
    return found


def _named(text: str, is_page: bool) -> list[tuple[str, ...]]:
    """Return the names of files in a text. Only a page has elements, and its other links are not loaded."""
    return [
        groups for groups in NAMED.findall(text) if bool(groups[0]) == is_page and ":" not in "".join(groups)
    ]


@pytest.mark.parametrize("page", ["/", "/tasks?status=FAILED"])
def test_a_page_with_all_that_it_loads_takes_at_most_200_kb(database_url: str, page: str) -> None:
    fill_day(database_url, 3_000)

    found = asyncio.run(weigh(database_url, page))

    loaded = {path.removeprefix("/static/") for path in found if path.startswith("/static/")}
    assert loaded == {file.name for file in STATIC.iterdir()}
    assert found[urlsplit(page).path] > 20_000, "the page is empty"
    assert sum(found.values()) <= LIMIT, sorted(found.items(), key=lambda each: -each[1])
