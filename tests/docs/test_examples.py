"""Every example runs to its end with the one command that it names."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.docs.pages import ROOT
from tests.docs.reader import agrees
from tests.support.workers import Workplace

EXAMPLES = ROOT / "examples"
SAID = {
    "api_client.py": ["8 prices, 3600 in all, 9 calls"],
    "etl.py": ["shop 0: 37.50", "shop 1: 27.50", "shop 2: 32.50"],
    "reports.py": ["next at …", "Oslo has sold 3 books"],
    "signup.py": ["202 ann@example.org", "Good to have you."],
    "thumbnails.py": ["40 x 40, 4,813 bytes"] * 4,
}
ELSEWHERE = {"orders.py", "running.py"}  # tested in tests/e2e, and what the others share


def test_every_example_is_run() -> None:
    assert {*SAID, *ELSEWHERE} == {path.name for path in EXAMPLES.glob("*.py")}


@pytest.mark.parametrize("name", SAID)
def test_an_example_runs_to_its_end_with_one_command(workplace: Workplace, name: str) -> None:
    ran = subprocess.run(
        [sys.executable, EXAMPLES / name],
        env=workplace.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (ran.returncode, ran.stderr) == (0, "")
    said = ran.stdout.splitlines()
    assert len(said) == len(SAID[name])
    assert all(map(agrees, SAID[name], said)), said
