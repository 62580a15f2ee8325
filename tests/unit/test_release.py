"""The check of the distributions notices a file too few, a file too many, and a command that fails."""

from __future__ import annotations

import sys
import tarfile
import zipfile
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path

import pytest

from tests.release import (
    SOURCE_FILES,
    Problem,
    attempt,
    candidates,
    check_source,
    check_wheel,
    interpreters,
    package_files,
    pages,
    run,
)


def wheel_of(folder: Path, names: Iterable[str]) -> Path:
    path = folder / "horsies-1.0.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as files:
        for name in [*names, "horsies-1.0.0.dist-info/METADATA"]:
            files.writestr(name, "")
    return path


def source_of(folder: Path, names: Iterable[str]) -> Path:
    path = folder / "horsies-1.0.0.tar.gz"
    with tarfile.open(path, "w:gz") as files:
        for name in names:
            files.addfile(tarfile.TarInfo(f"horsies-1.0.0/{name}"), BytesIO())
    return path


def source_files() -> set[str]:
    return {name for name in package_files() if not name.startswith("horsies/docs/")} | {
        *pages(),
        *SOURCE_FILES,
    }


def test_distributions_of_the_whole_package_pass(tmp_path: Path) -> None:
    assert check_wheel(wheel_of(tmp_path, package_files())) == f"{len(package_files())} files"
    assert check_source(source_of(tmp_path, source_files())) == f"{len(source_files())} files"


@pytest.mark.parametrize(
    "name", ["horsies/py.typed", "horsies/db/queries/keys.sql", "horsies/web/static/graph.js"]
)
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(Problem, match=f"missing: {name}"):
        check_wheel(wheel_of(tmp_path, package_files() - {name}))
    with pytest.raises(Problem, match=f"missing: {name}"):
        check_source(source_of(tmp_path, source_files() - {name}))


@pytest.mark.parametrize("name", ["tests/release.py", "bench/__main__.py", "horsies/notes.txt"])
def test_a_file_that_does_not_belong_there_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(Problem, match=f"not expected: {name}"):
        check_wheel(wheel_of(tmp_path, package_files() | {name}))
    with pytest.raises(Problem, match=f"not expected: {name}"):
        check_source(source_of(tmp_path, source_files() | {name}))


def test_a_failed_command_fails_the_check_with_its_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not attempt(
        "exit", lambda: run(sys.executable, "-c", "raise SystemExit('no such thing')", cwd=tmp_path)
    )

    assert "FAILED  exit: " in capsys.readouterr().out
    with pytest.raises(Problem, match=r"exited with 1:\nno such thing"):
        run(sys.executable, "-c", "raise SystemExit('no such thing')", cwd=tmp_path)


def test_each_interpreter_is_found_once() -> None:
    once = interpreters([sys.executable])

    assert interpreters([sys.executable, sys.executable]) == once
    assert [python.version for python in once] == [".".join(map(str, sys.version_info[:3]))]
    assert {python.version for python in once} <= {python.version for python in interpreters(candidates())}
