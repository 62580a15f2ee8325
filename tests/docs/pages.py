"""The pages of the documentation, cut into what can be checked: blocks, tables, headings and links."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Pages whose blocks are run; on the others, headings and links are checked.
RUN = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES = [
    *RUN,
    *sorted((ROOT / "docs" / "reference").glob("*.md")),
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
]

_FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_ANCHOR = re.compile(r'<a id="([\w-]+)"></a>')
_NOT_IN_ANCHORS = re.compile(r"[^\w\- ]")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block; `line` is that of its first line in the page."""

    language: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(found["language"], found["text"], text.count("\n", 0, found.start("text")) + 1)
        for found in _FENCE.finditer(text)
    ]


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def headings(page: Path) -> list[tuple[int, str]]:
    """Every heading with its level, the first being 1."""
    return [(len(signs), text) for signs, text in _HEADING.findall(prose(page))]


def anchors(page: Path) -> set[str]:
    """The names that links into a page may end with: those written there, and those that are made of headings."""
    written = set(_ANCHOR.findall(prose(page)))
    return written | {_NOT_IN_ANCHORS.sub("", text.lower()).replace(" ", "-") for _, text in headings(page)}


def links(page: Path) -> list[str]:
    return _LINK.findall(prose(page))


def tables(page: Path) -> dict[str, list[list[str]]]:
    """The rows of the tables under each heading, cells without their backquotes, header lines left out."""
    found: dict[str, list[list[str]]] = {}
    heading = ""
    for line in prose(page).splitlines():
        if title := _HEADING.match(line):
            heading = title[2]
        elif line.startswith("| ---"):
            found[heading] = found.get(heading, [])[:-1]  # the line above was the header
        elif line.startswith("|"):
            found.setdefault(heading, []).append(_cells(line))
    return found


def _cells(line: str) -> list[str]:
    inner = _ANCHOR.sub("", line).strip().removeprefix("|").removesuffix("|").replace("\\|", "\0")
    return [cell.strip().replace("`", "").replace("\0", "|") for cell in inner.split("|")]
