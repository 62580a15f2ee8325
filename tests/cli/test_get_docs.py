"""`horsies get-docs`: the pages in a folder, with an index, and nothing overwritten by accident."""

from __future__ import annotations

import re

from tests.cli.conftest import refused
from tests.docs.pages import ROOT

PAGES = sorted(str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md"))


def test_the_pages_are_written_with_an_index_that_leads_to_each(workplace):
    result = workplace.run("get-docs", "notes/horsies")

    folder = workplace.folder / "notes" / "horsies"
    assert result.returncode == 0, result.stderr
    assert (
        result.stdout == f"{len(PAGES)} pages written to notes/horsies; begin with notes/horsies/README.md\n"
    )
    written = sorted(str(page.relative_to(folder)) for page in folder.rglob("*.md"))
    assert written == sorted([*PAGES, "README.md"])
    assert (folder / "tasks.md").read_text() == (ROOT / "docs" / "tasks.md").read_text()
    index = (folder / "README.md").read_text()
    assert sorted(re.findall(r"^- \[.+?\]\((\S+)\)", index, re.MULTILINE)) == PAGES
    assert "- [Operations](operations.md): Handle an incident, " in index


def test_the_default_folder_is_named_after_the_package(workplace):
    assert workplace.run("get-docs").returncode == 0
    assert (workplace.folder / "horsies-docs" / "README.md").is_file()


def test_nothing_is_overwritten_unless_forced(workplace):
    mine = workplace.folder / "docs" / "tasks.md"
    mine.parent.mkdir()
    mine.write_text("mine")

    refused(workplace.run("get-docs", "docs"), "HRS-206", "tasks.md", "--force")
    assert [each.name for each in mine.parent.iterdir()] == ["tasks.md"]
    assert mine.read_text() == "mine"

    assert workplace.run("get-docs", "docs", "--force").returncode == 0
    assert mine.read_text() != "mine"


def test_a_folder_that_cannot_be_written_is_an_error(workplace):
    (workplace.folder / "file").write_text("")

    refused(workplace.run("get-docs", "file/inside"), "HRS-206", "file/inside")
