"""The first hour of a newcomer goes as `docs/first-hour.md` shows it."""

from __future__ import annotations

import os
from difflib import unified_diff
from pathlib import Path

import pytest

from tests.docs.first_hour import PAGE, Normalizer, record


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    hour = tmp_path / "hour"
    hour.mkdir()
    return hour


def difference(said: str) -> str:
    page = PAGE.read_text(encoding="utf-8")
    return "\n".join(unified_diff(page.splitlines(), said.splitlines(), "page", "terminal", lineterm=""))


def test_the_terminal_answers_as_the_page_says(folder: Path) -> None:
    changed = difference(record(folder))

    assert not changed, f"if that is intended, run: python -m tests.docs.first_hour\n{changed}"


@pytest.mark.skipif(os.environ.get("HORSIES_TEST_CLONE") != "1", reason="set HORSIES_TEST_CLONE=1")
@pytest.mark.timeout(900)
def test_it_does_so_in_a_fresh_clone(folder: Path) -> None:
    changed = difference(record(folder, install=True))

    assert not changed, changed


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("2026-11-18 09:10:11,123 INFO ready", "2026-11-18 12:00:00 INFO ready"),
        ("at /tmp/x/hour/tasks.py", "at ~/hour/tasks.py"),
        (
            "id 0198c5a1-7c1e-7b7e-9d59-3a3f2b1c0d9e, again 0198c5a1-7c1e-7b7e-9d59-3a3f2b1c0d9e",
            "id 019a0000-0000-7000-8000-000000000001, again 019a0000-0000-7000-8000-000000000001",
        ),
        ("connection to 127.0.0.1:39211", "connection to 127.0.0.1:54321"),
        ("worker_pid   4711 of worker-4711", "worker_pid   12345 of worker-12345"),
    ],
)
def test_what_differs_between_runs_is_replaced(said: str, shown: str) -> None:
    assert Normalizer({"/tmp/x/hour": "~/hour"})(said) == shown


def test_frames_of_libraries_are_left_out_and_those_of_the_newcomer_are_not() -> None:
    said = """Traceback (most recent call last):
  File "~/hour/send.py", line 3, in <module>
    add.delay(2)
    ^^^^^^^^^^^^
  File "/x/site-packages/a.py", line 7, in f
    call()
  File "/usr/lib/python3/b.py", line 7, in g
    call()
Oops
in the worker:
    File "/x/site-packages/a.py", line 7, in f
      call()
    File "~/hour/tasks.py", line 5, in add
      raise Oops
  Oops"""

    assert Normalizer({})(said).splitlines() == [
        "Traceback (most recent call last):",
        '  File "~/hour/send.py", line 3, in <module>',
        "    add.delay(2)",
        "  …",
        "Oops",
        "in the worker:",
        "    …",
        '    File "~/hour/tasks.py", line 5, in add',
        "      raise Oops",
        "  Oops",
    ]


def test_what_an_error_says_is_not_replaced() -> None:
    said = (
        "TaskFailed: divide failed: UNHANDLED_EXCEPTION: ZeroDivisionError: division by zero after 3 attempts"
    )

    assert Normalizer({})(said) == said
