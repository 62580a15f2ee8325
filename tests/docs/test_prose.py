"""The pages are in plain English: none of them has a phrase for which there is a plainer one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, prose

# What is written, as a pattern, and what to write instead.
PLAINER = {
    r"\ball the same\b": "anyway",
    r"\banew\b": "again, or from the beginning",
    r"\bas it comes\b": "with default settings",
    r"\bat most so (many|long|much)\b": "at most this number, this time, this size",
    r"\bbefalls?\b": "happens to",
    r"\bbeside others\b": "compared with others",
    r"\bcomes? true\b": "the event itself: commits, is reached",
    r"\bfor good\b": "permanently, or finally",
    r"\bgo(es)? away\b": "disconnects, stops, is deleted",
    r"\bin good order\b": "gracefully",
    r"\bin vain\b": "without success",
    r"\b(is|are) away\b": "is unreachable",
    r"\bis told in \[": "is explained in",
    r"\bleads? nowhere\b": "is broken",
    r"\bof its own accord\b": "by itself",
    r"\bor the like\b": "or similar",
    r"\bsays? of itself\b": "reports",
    r"\bstands? ready\b": "is ready",
    r"\b(lest|hitherto|hence|thence|whence|thereby|therein|thereof|wherein|whereof|hereby)\b": "a word of today",
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_no_phrase_with_a_plainer_one(page: Path) -> None:
    text = " ".join(prose(page).split())

    found = [
        f"{match.group()!r}; write {plainer}: …{text[max(0, match.start() - 40) : match.end() + 40]}…"
        for pattern, plainer in PLAINER.items()
        for match in re.finditer(pattern, text, re.IGNORECASE)
    ]

    assert found == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_repeats_a_word(page: Path) -> None:
    text = " ".join(prose(page).split())

    assert re.findall(r"\b(the|a|an|of|to|in|is|are|and|or|for|with|that) \1\b", text, re.IGNORECASE) == []
