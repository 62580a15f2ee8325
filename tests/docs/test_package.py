"""What is built can be installed and used on every CPython here. It installs packages: HORSIES_TEST_CLONE=1 asks for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

pytestmark = [
    pytest.mark.skipif(os.environ.get("HORSIES_TEST_CLONE") != "1", reason="set HORSIES_TEST_CLONE=1"),
    pytest.mark.timeout(900),
]

# What the code reads at run time, and what type checkers look for.
DATA = [
    "horsies/py.typed",
    "horsies/cli/explanations.json",
    "horsies/db/schema/roles.sql",
    *(str(path.relative_to(ROOT)) for path in (ROOT / "horsies" / "db").glob("*/*.sql")),
]
# The wheel has the pages inside the package, for `horsies get-docs`.
PAGES = [str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")]
USE = """
import horsies, horsies.pytest_plugin
from importlib.metadata import entry_points
assert [each.value for each in entry_points(group="pytest11", name="horsies")] == ["horsies.pytest_plugin"]
assert all(getattr(horsies, name) is not None for name in horsies.__all__)
print(horsies.__file__)
"""


def run(*words: str | Path, cwd: Path) -> str:
    unset = {"PYTHONPATH", "VIRTUAL_ENV", "HORSIES_DATABASE_URL", "DATABASE_URL"}
    env = {key: value for key, value in os.environ.items() if key not in unset}
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def interpreters() -> Iterator[str]:
    """One of each minor version from 3.11 on that runs and can make environments."""
    for minor in range(11, 16):
        folders = sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin"))
        path = os.pathsep.join([*map(str, folders), os.environ["PATH"]])
        found = shutil.which(f"python3.{minor}", path=path)
        if (
            found
            and not subprocess.run([found, "-c", "import ensurepip, venv"], capture_output=True).returncode
        ):
            yield found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, and the wheel that is made of it alone."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder)
    return folder


def test_both_distributions_hold_everything_that_is_read_at_run_time(built: Path) -> None:
    [wheel], [source] = built.glob("*.whl"), built.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as files:
        there = set(files.namelist())
    with tarfile.open(source) as files:
        sent = {name.partition("/")[2] for name in files.getnames()}

    assert {"horsies/db/schema/0001_initial.sql", "horsies/db/queries/tasks.sql"} <= set(DATA)
    assert set(DATA) <= there
    assert set(DATA) <= sent
    assert {f"horsies/{page}" for page in PAGES} <= there
    assert set(PAGES) <= sent
    assert not [name for name in there if name.startswith(("tests", "bench", "examples", "docs"))]


@pytest.mark.parametrize("python", [*interpreters()], ids=lambda path: Path(path).name)
def test_the_wheel_works_in_a_clean_environment(built: Path, tmp_path: Path, python: str) -> None:
    run(python, "-m", "venv", "fresh", cwd=tmp_path)
    fresh = tmp_path / "fresh" / "bin"
    [wheel] = built.glob("*.whl")
    run(fresh / "pip", "install", "--quiet", f"{wheel}[local]", "pytest", cwd=tmp_path)

    assert str(tmp_path) in run(fresh / "python", "-c", USE, cwd=tmp_path)
    assert "worker" in run(fresh / "horsies", "--help", cwd=tmp_path)
    assert "CREATE TABLE horsies_tasks" in run(fresh / "horsies", "migrate", "--sql", cwd=tmp_path)
    assert "HRS-206" in run(fresh / "horsies", "explain", "206", cwd=tmp_path)
    assert f"{len(PAGES)} pages written" in run(fresh / "horsies", "get-docs", "pages", cwd=tmp_path)
    assert (tmp_path / "pages" / "README.md").read_text(encoding="utf-8").count("](") >= len(PAGES)
