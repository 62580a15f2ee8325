"""Where PostgreSQL is looked for: in a wheel that is never imported and must be the released one, then on the system."""

import importlib.util
import os
import re
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

from horsies.embedded import binaries
from horsies.embedded.binaries import PROGRAMS, RELEASED, Binaries, available, digest_of, verify
from horsies.errors import EmbeddedError, ErrorCode
from tests.docs.pages import ROOT

PROGRAM = "#!/bin/sh\necho 'postgres (PostgreSQL) {version} (a build of ours)'\n"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A machine with nothing but what a test puts into this folder."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(binaries, "WHEEL", "wheel_one")
    monkeypatch.setattr(binaries, "SYSTEM", (f"{tmp_path}/lib/*/bin",))
    monkeypatch.setenv("PATH", f"{tmp_path}/path")
    return tmp_path


def install(directory: Path, version: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for program in PROGRAMS:
        (directory / program).write_text(PROGRAM.format(version=version))
        (directory / program).chmod(0o755)
    return directory


def wheel(place: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> Path:
    """A wheel that counts as released."""
    package = place / "wheel_one"
    directory = install(package / "pginstall" / "bin", version)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.setattr(binaries, "RELEASED", {digest_of(package): "here"})
    return directory


def found(place: Path) -> list[Binaries]:
    return list(available(None, place / "verified"))


def test_the_wheel_comes_before_the_system_and_the_newest_first(place, monkeypatch):
    ours = wheel(place, monkeypatch, "18.4")
    nine = install(place / "lib" / "9" / "bin", "9.6")
    fifteen = install(place / "lib" / "15" / "bin", "15.18")
    on_path = install(place / "path", "14.2")

    assert [each.directory for each in found(place)] == [ours, fifteen, nine, on_path]
    assert found(place)[0] == Binaries(ours, "18.4", place / "wheel_one")
    assert [each.major for each in found(place)] == [18, 15, 9, 14]
    assert "wheel_one" not in sys.modules


def test_the_folder_that_pg_config_names_comes_before_other_system_folders(place):
    install(place / "lib" / "15" / "bin", "15.18")
    named = install(place / "named", "14.2")
    config = place / "path" / "pg_config"
    config.parent.mkdir()
    config.write_text(f"#!/bin/sh\necho {named}\n")
    config.chmod(0o755)

    assert found(place)[0].directory == named


def test_what_does_not_run_here_or_lacks_a_program_is_passed_over(place, monkeypatch):
    foreign = wheel(place, monkeypatch, "18.6")
    (foreign / "postgres").write_bytes(b"\x7fELF of another machine")
    monkeypatch.setattr(binaries, "RELEASED", {digest_of(place / "wheel_one"): "elsewhere"})
    client_only = install(place / "lib" / "17" / "bin", "17.9")
    (client_only / "initdb").unlink()
    good = install(place / "lib" / "15" / "bin", "15.18")

    assert [each.directory for each in found(place)] == [good]


def installed_wheel() -> Path:
    spec = importlib.util.find_spec(binaries.WHEEL)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])


def test_the_released_wheel_is_accepted():
    assert digest_of(installed_wheel()) in RELEASED


def pinned() -> str:
    """What the extra `local` installs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [wanted] = project["optional-dependencies"]["local"]
    return wanted


def test_the_extra_names_one_package_of_one_version():
    name, version = re.fullmatch(r"([\w-]+)==([\d.]+)", pinned()).groups()

    assert name.replace("-", "_") == binaries.WHEEL
    source = (ROOT / "horsies" / "embedded" / "binaries.py").read_text(encoding="utf-8")
    assert f"{name} {version}, the version that" in source, "RELEASED belongs to that version"


def test_a_changed_program_is_refused_before_it_is_run(place, monkeypatch):
    directory = wheel(place, monkeypatch, "18.4")
    assert found(place)
    (directory / "postgres").write_text(f"#!/bin/sh\ntouch {place}/run\n")

    with pytest.raises(EmbeddedError) as refused:
        found(place)

    assert refused.value.code is ErrorCode.EMBEDDED_ALTERED
    assert f"--force-reinstall {pinned()}," in (refused.value.help_text or "")
    assert not (place / "run").exists()


def test_a_changed_library_of_the_wheel_is_refused_too(tmp_path):
    package = installed_wheel()
    copy = tmp_path / package.name
    for folder in (package, package.with_name(f"{package.name}.libs")):
        shutil.copytree(folder, tmp_path / folder.name, symlinks=True)
    verify(copy, tmp_path / "verified")
    library = next(iter(sorted((tmp_path / f"{package.name}.libs").iterdir())))
    library.chmod(0o755)
    library.write_bytes(library.read_bytes() + b"\0")

    with pytest.raises(EmbeddedError, match="not the released one"):
        verify(copy, tmp_path / "verified")


def test_files_that_were_verified_are_not_read_again(place, monkeypatch):
    directory = wheel(place, monkeypatch, "18.4")
    found(place)
    monkeypatch.setattr(binaries, "RELEASED", {})
    assert found(place), "the marker says that these files are known"

    os.utime(directory / "postgres", (1, 1))

    with pytest.raises(EmbeddedError):
        found(place)
