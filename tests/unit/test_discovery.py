"""A module that fails to import is reported with the lines of its owner, wherever it is installed."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import pytest

from horsies.discovery import MAX_NOTES, import_module
from horsies.errors import HorsiesError


def failure(target: str) -> HorsiesError:
    with pytest.raises(HorsiesError) as caught:
        import_module(target)
    return caught.value


def test_an_app_that_is_installed_among_libraries_is_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "site-packages"
    paths = {**sysconfig.get_paths(), "purelib": str(library), "platlib": str(library)}
    monkeypatch.setattr(sysconfig, "get_paths", lambda: paths)
    for name in ("installed_shop", "some_library"):
        (library / name).mkdir(parents=True)
        (library / name / "__init__.py").touch()
    (library / "installed_shop" / "tasks.py").write_text("import some_library.core\n")
    (library / "some_library" / "core.py").write_text("raise RuntimeError('boom')\n")
    monkeypatch.syspath_prepend(str(library))

    error = failure("installed_shop.tasks")

    assert error.location is not None
    assert error.location.file == str(library / "installed_shop" / "tasks.py")
    assert error.notes == ()

    alone = failure("some_library.core")
    assert alone.location is not None
    assert alone.location.file == str(library / "some_library" / "core.py")


def test_a_project_beside_a_folder_of_the_same_beginning_is_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "libs-of-mine"
    project.mkdir()
    monkeypatch.setattr(
        sysconfig,
        "get_paths",
        lambda: dict.fromkeys(("stdlib", "purelib", "platlib"), str(tmp_path / "libs")),
    )
    (project / "beside.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(project))

    error = failure("beside")

    assert error.location is not None
    assert error.location.file == str(project / "beside.py")


def test_a_password_in_a_quoted_line_is_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "connecting.py").write_text("def connect(url):\n    raise OSError('down')\n")
    (tmp_path / "secretive.py").write_text(
        "from connecting import connect\nconnect('postgresql://ann:s3cret@db/app')\n"
    )

    error = failure("secretive")

    assert "s3cret" not in str(error)
    assert "ann:***@db" in str(error)


def test_a_deep_recursion_fits_the_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "deep.py").write_text("def dig():\n    dig()\ndig()\n")

    assert len(failure("deep").notes) == MAX_NOTES
    assert "deep" not in sys.modules
