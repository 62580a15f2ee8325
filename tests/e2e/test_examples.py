"""The examples do what they say, as somebody would run them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.workers import Workplace

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_an_order_is_shipped_although_the_card_was_declined(workplace: Workplace) -> None:
    shutil.copy(EXAMPLES / "orders.py", workplace.folder / "orders.py")
    workplace.start("--processes", "2", locator="orders.py:app")

    ran = subprocess.run(
        [sys.executable, "orders.py"],
        cwd=workplace.folder,
        env=workplace.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    shipped, *nodes = ran.stdout.splitlines()
    assert shipped == "2 articles by post"
    assert dict(line.split() for line in nodes) == {
        "lines": "COMPLETED", "amount": "COMPLETED", "paid": "FAILED", "billed": "COMPLETED",
        "approved": "COMPLETED", "delivery": "COMPLETED",
    }  # fmt: skip


def test_the_examples_pass_the_check(workplace: Workplace) -> None:
    shutil.copy(EXAMPLES / "orders.py", workplace.folder / "orders.py")

    checked = workplace.run("check", "orders.py:app")

    assert checked.returncode == 0, checked.stderr
