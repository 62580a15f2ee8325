"""What an import brings along: no more than is used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import horsies

HEAVY = {"psycopg", "msgspec", "asyncio", "click", "rich", "psutil", "cronsim", "zoneinfo"}
# Of the package itself, and whatever the extras bring.
PARTS = {
    "horsies.app",
    "horsies.worker",
    "horsies.embedded",
    "horsies.db",
    "horsies.testing",
    "horsies.web",
}
EXTRAS = {"starlette", "uvicorn", "jinja2", "textual", "pydantic", "sqlalchemy", "django", "pytest"}


def loaded_by(statement: str) -> set[str]:
    script = f"{statement}\nimport sys\nprint(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(ran.stdout.split())


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import horsies", HEAVY | PARTS | EXTRAS),
        ("from horsies import Horsies; app = Horsies()", {"horsies.testing", "horsies.web", *EXTRAS}),
        ("import horsies.cli", (HEAVY | PARTS | EXTRAS) - {"click"}),
        ("import horsies.cli.inspect", {"horsies.app", "horsies.worker", "rich", *EXTRAS}),
    ],
)
def test_an_import_brings_no_more_than_it_needs(statement: str, absent: set[str]) -> None:
    assert not loaded_by(statement) & absent


def test_type_checkers_and_imports_see_the_same_names() -> None:
    tree = ast.parse(Path(horsies.__file__).read_text(encoding="utf-8"))
    seen_by_checkers = {
        alias.name: node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
        for alias in node.names if node.module is not None and node.module.startswith("horsies.") and alias.asname == alias.name
    }  # fmt: skip

    assert seen_by_checkers == horsies._MODULE_OF
    assert horsies.__all__ == sorted(seen_by_checkers)
    assert set(horsies.__all__) <= set(dir(horsies))
    for name in horsies.__all__:
        assert getattr(horsies, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Horse'"):
        _ = horsies.Horse


def test_no_module_hides_a_public_name() -> None:
    """An import of `horsies.name` sets the attribute `name` of the package to the module."""
    modules = {path.stem for path in Path(horsies.__file__).parent.iterdir()}

    assert not modules & set(horsies.__all__)
