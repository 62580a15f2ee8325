"""A page that says something untrue is found out."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from tests.docs.pages import Block, blocks, tables
from tests.docs.reader import Reader, agrees

NOWHERE = "postgresql://nobody@127.0.0.1:1/nowhere"


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(tmp_path / "page.md", tmp_path, NOWHERE)


@pytest.mark.parametrize(
    "text",
    [
        "print(2 + 2)  # -> 5\n",
        "print(2 + 2)\n",
        "x = 4  # -> 4\n",
        "raise SystemExit\n",
        "print(1)  # -> 1\nassert False\n",
    ],
)
def test_python_that_does_not_do_what_it_says(reader: Reader, text: str) -> None:
    with reader, pytest.raises(AssertionError):
        reader.follow(Block("python", text, 1))


@pytest.mark.parametrize("text", ["$ false\n", "$ echo four\nfive\n", "$ printf 'a\\nb\\n'\nb\na\n"])
def test_a_command_that_does_not_do_what_it_says(reader: Reader, text: str) -> None:
    with reader, pytest.raises(AssertionError):
        reader.follow(Block("console", text, 1))


def test_sql_that_fails(tmp_path: Path, empty_database_url: str) -> None:
    reader = Reader(tmp_path / "page.md", tmp_path, empty_database_url)

    with reader, pytest.raises(psycopg.errors.UndefinedTable):
        reader.follow(Block("sql", "SELECT * FROM horsies_nothing", 1))


def test_what_is_true_passes_and_names_carry_on(reader: Reader) -> None:
    with reader:
        reader.follow(Block("python", "# shop/prices.py\nHAY = 9\n", 1))
        reader.follow(Block("python", "from shop.prices import HAY\n", 1))
        reader.follow(Block("python", "print(HAY, 'euros')  # -> 9 …\n", 1))
        reader.follow(Block("console", "$ echo one; echo two\ntwo\n$ ls shop\nprices.py\n", 1))


def test_a_wildcard_stands_for_anything_within_a_line() -> None:
    assert agrees("done in … ms, … left", "done in 12 ms, 3 left")
    assert not agrees("done in … ms", "done in 12 s")


def test_blocks_and_tables_are_found_where_they_are(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# T\n\n```sql\nSELECT 1;\n```\n\n## S\n\n| a | b |\n| --- | --- |\n| `x` | 1 \\| 2 |\n")

    assert blocks(page) == [Block("sql", "SELECT 1;\n", 4)]
    assert tables(page) == {"S": [["x", "1 | 2"]]}
