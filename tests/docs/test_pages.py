"""The documentation does what it says, and leads nowhere that does not exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, RUN, anchors, blocks, headings, links
from tests.docs.reader import LANGUAGES, Reader


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", RUN, ids=name)
def test_every_block_of_a_page_does_what_the_page_says(
    page: Path, tmp_path: Path, empty_database_url: str
) -> None:
    with Reader(page, tmp_path, empty_database_url) as reader:
        for block in blocks(page):
            reader.follow(block)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_is_in_a_language_that_is_checked(page: Path) -> None:
    languages = LANGUAGES if page in RUN else {*LANGUAGES, "bash"}

    assert {block.language for block in blocks(page)} <= languages


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_page_opens_with_its_one_title(page: Path) -> None:
    assert page.read_text(encoding="utf-8").startswith("# ")
    assert [level for level, _ in headings(page)].count(1) == 1


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_between_pages_leads_somewhere(page: Path) -> None:
    for link in links(page):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, left = set[Path](), [ROOT / "README.md"]
    while left:
        page = left.pop()
        if page in PAGES and page not in reached:
            reached.add(page)
            left += [(page.parent / link.partition("#")[0]).resolve() for link in links(page)]

    assert [name(page) for page in PAGES if page not in reached] == []
