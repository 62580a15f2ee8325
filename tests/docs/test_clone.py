"""`make demo` works in a fresh clone. It installs packages, so it runs only where HORSIES_TEST_CLONE=1 asks for it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from horsies import embedded
from tests.docs.pages import ROOT

pytestmark = [
    pytest.mark.skipif(os.environ.get("HORSIES_TEST_CLONE") != "1", reason="set HORSIES_TEST_CLONE=1"),
    pytest.mark.timeout(900),
]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A place for the server that the clone starts."""
    folder = tmp_path / "home"
    yield folder
    embedded.stop(folder, remove=True)


def test_make_demo_sets_a_fresh_clone_up_and_takes_the_tour(tmp_path: Path, home: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    unset = {"VIRTUAL_ENV", "PYTHONPATH", "MAKEFLAGS", "MAKELEVEL", "HORSIES_DATABASE_URL", "DATABASE_URL"}
    env = {key: value for key, value in os.environ.items() if key not in unset}

    demo = subprocess.run(
        ["make", "demo"],
        cwd=clone,
        env={**env, "HORSIES_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )

    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "WORKER_CRASHED" in demo.stdout
