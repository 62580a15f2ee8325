"""The shop in `examples/shop` works, and its tasks take about as many lines as the same tasks for Celery."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.support.workers import Workplace

EXAMPLES = ROOT / "examples"
TASK_MODULES = ["app.py", "mail.py", "reports.py", "thumbnails.py"]


def code_lines(path: Path) -> int:
    """The lines with code; blank lines, comments and docstrings do not count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstring = ast.get_docstring(tree) is not None
    counted = set[int]()
    for statement in tree.body[docstring:]:
        first = min([statement.lineno, *(each.lineno for each in getattr(statement, "decorator_list", []))])
        counted |= set(range(first, (statement.end_lineno or first) + 1))
    lines = path.read_text(encoding="utf-8").splitlines()
    return sum(bool(lines[number - 1].partition("#")[0].strip()) for number in counted)


def test_the_shops_own_tests_pass(workplace: Workplace) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", EXAMPLES / "shop"],
        cwd=workplace.folder,
        env={**workplace.env, "HORSIES_TEST_DATABASE_URL": workplace.database_url},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "6 passed" in ran.stdout


def test_the_shop_has_no_mistakes_that_can_be_found_before_it_runs(workplace: Workplace) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "horsies", "check", "shop.app:app"],
        cwd=EXAMPLES,
        env=workplace.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "6 tasks" in ran.stdout


def test_tasks_take_at_most_a_fifth_more_lines_than_for_celery() -> None:
    ours, theirs = (
        sum(code_lines(EXAMPLES / folder / name) for name in TASK_MODULES)
        for folder in ("shop", "shop_celery")
    )

    assert theirs > 40
    assert ours <= 1.2 * theirs, f"{ours} lines, and {theirs} for Celery"


def test_both_shops_are_formatted_alike() -> None:
    folders = [EXAMPLES / "shop", EXAMPLES / "shop_celery"]

    checked = subprocess.run(
        [Path(sys.executable).with_name("ruff"), "format", "--check", *folders],
        capture_output=True,
        text=True,
        check=False,
    )

    assert checked.returncode == 0, checked.stdout


@pytest.mark.skipif(importlib.util.find_spec("celery") is None, reason="celery is not installed")
def test_the_tasks_for_celery_are_tasks_of_celery() -> None:
    script = (
        "from shop_celery.app import app\napp.loader.import_default_modules()\n"
        "print(*sorted(n for n in app.tasks if n.startswith('shop')))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=EXAMPLES, capture_output=True, text=True, check=False
    )

    assert ran.stdout.split() == [
        "shop_celery.mail.confirm_order",
        "shop_celery.mail.send_mail",
        "shop_celery.reports.weekly_report",
        "shop_celery.thumbnails.make_thumbnails",
        "shop_celery.thumbnails.publish",
        "shop_celery.thumbnails.shrink",
    ], ran.stderr
