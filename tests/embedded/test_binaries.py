"""Where PostgreSQL is looked for: in wheels that are never imported, then on the system."""

import io
import sys
import tarfile
from pathlib import Path

import pytest

from horsies.embedded import binaries
from horsies.embedded.binaries import PROGRAMS, Binaries, available

PROGRAM = "#!/bin/sh\necho 'postgres (PostgreSQL) {version} (a build of ours)'\n"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A machine with nothing but what a test puts into this folder."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(binaries, "WHEELS", ("wheel_one", "wheel_two"))
    monkeypatch.setattr(binaries, "SYSTEM", (f"{tmp_path}/lib/*/bin",))
    monkeypatch.setenv("PATH", f"{tmp_path}/path")
    return tmp_path


def install(directory: Path, version: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for program in PROGRAMS:
        (directory / program).write_text(PROGRAM.format(version=version))
        (directory / program).chmod(0o755)
    return directory


def wheel(place: Path, name: str) -> Path:
    package = place / name
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    return package


def test_wheels_come_before_the_system_and_the_newest_first(place):
    old = install(wheel(place, "wheel_one") / "pginstall" / "bin", "16.14")
    new = install(place / "wheel_one" / "pginstall18" / "bin", "18.4")
    other = install(wheel(place, "wheel_two") / "pginstall" / "bin", "17.9")
    nine = install(place / "lib" / "9" / "bin", "9.6")
    fifteen = install(place / "lib" / "15" / "bin", "15.18")
    on_path = install(place / "path", "14.2")

    found = list(available(None))

    assert [each.directory for each in found] == [new, old, other, fifteen, nine, on_path]
    assert found[0] == Binaries(new, "18.4", place / "wheel_one")
    assert [each.major for each in found] == [18, 16, 17, 15, 9, 14]
    assert "wheel_one" not in sys.modules


def test_the_folder_that_pg_config_names_comes_before_other_system_folders(place):
    install(place / "lib" / "15" / "bin", "15.18")
    named = install(place / "named", "14.2")
    config = place / "path" / "pg_config"
    config.parent.mkdir()
    config.write_text(f"#!/bin/sh\necho {named}\n")
    config.chmod(0o755)

    assert next(available(None)).directory == named


def test_a_wheel_that_ships_an_archive_is_unpacked_once(place):
    package = wheel(place, "wheel_one")
    with tarfile.open(package / "postgresql-18.6.0-linux.tar.gz", "w:gz") as tar:
        for program in PROGRAMS:
            content = PROGRAM.format(version="18.6").encode()
            member = tarfile.TarInfo(f"postgresql-18.6.0-linux/bin/{program}")
            member.size, member.mode = len(content), 0o755
            tar.addfile(member, io.BytesIO(content))

    twice = [next(available(None)) for _ in range(2)]

    assert twice == [Binaries(package / "postgresql-18.6.0-linux" / "bin", "18.6", package)] * 2
    assert sorted(path.name for path in package.iterdir()) == [
        "__init__.py",
        "postgresql-18.6.0-linux",
        "postgresql-18.6.0-linux.tar.gz",
    ]


def test_what_does_not_run_here_or_lacks_a_program_is_passed_over(place):
    foreign = install(wheel(place, "wheel_one") / "pginstall" / "bin", "18.6")
    (foreign / "postgres").write_bytes(b"\x7fELF of another machine")
    client_only = install(place / "lib" / "17" / "bin", "17.9")
    (client_only / "initdb").unlink()
    good = install(place / "lib" / "15" / "bin", "15.18")

    assert [each.directory for each in available(None)] == [good]
