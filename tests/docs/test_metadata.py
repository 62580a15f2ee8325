"""What is said of the package's version and installation is true."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import version

import horsies
from tests.docs.pages import PAGES, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CHANGES = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_version_is_the_same_wherever_it_is_said() -> None:
    [(newest, _date), *_] = re.findall(r"^## (\d+\.\d+\.\d+) - (\d{4}-\d\d-\d\d)$", CHANGES, re.MULTILINE)

    assert horsies.__version__ == PROJECT["version"] == newest == version("horsies")


def test_the_changelog_has_nothing_but_dated_versions() -> None:
    titles = re.findall(r"^## (.*)$", CHANGES, re.MULTILINE)

    assert titles
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d", title) for title in titles), titles


def test_every_path_of_the_project_exists() -> None:
    assert PROJECT["urls"]
    for path in PROJECT["urls"].values():
        assert "://" not in path
        assert (ROOT / path).is_file(), path


def test_no_page_and_no_message_installs_whatever_an_index_has_under_this_name() -> None:
    bare = re.compile(
        r"(?:pip|uv|pipx|poetry|pdm) (?:pip )?(?:install|add) [^\n`]*?(?<![/\w.-])['\"]?horsies\b(?!-)"
    )

    sources = [
        file for kind in ("*.py", "*.json", "*.html", "*.js") for file in (ROOT / "horsies").rglob(kind)
    ]
    assert ROOT / "horsies" / "errors.py" in sources
    for page in [*PAGES, *sources]:
        assert bare.findall(page.read_text(encoding="utf-8")) == [], page
    assert bare.search('pip install "horsies[local]"')
    assert not bare.search('pip install "./horsies[local]"')
