"""Fetch axe-core, which finds faults in the accessibility of pages, with npm: `python -m tests.browser.axe`.

It is a development dependency of the browser tests and no part of the package.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VERSION = "4.10.3"
SHA256 = "0f2b4d7dcdf7d1219df8d1959ad68e565f51d14c3f0d88bb71cd59abeb956292"
FETCHED = Path(__file__).parents[2] / ".cache" / f"axe-{VERSION}.min.js"
# Set in CI: the tests fail without axe-core instead of skipping.
REQUIRED = "HORSIES_TEST_AXE"


class NotFetched(Exception):
    pass


def axe() -> str:
    """Return the source of axe-core, fetched once; raise NotFetched with the reason if it cannot be had."""
    if not FETCHED.exists():
        _fetch()
    return FETCHED.read_text()


def is_required() -> bool:
    return os.environ.get(REQUIRED) == "required"


def _fetch() -> None:
    if shutil.which("npm") is None:
        raise NotFetched("npm, which fetches axe-core, is not installed; on Debian: apt-get install npm")
    FETCHED.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FETCHED.parent) as folder:
        work = Path(folder)
        ran = subprocess.run(
            ["npm", "pack", "--silent", f"axe-core@{VERSION}"], cwd=work, capture_output=True, timeout=60
        )
        archives = list(work.glob("*.tgz"))
        if ran.returncode or not archives:
            raise NotFetched(
                f"npm cannot fetch axe-core {VERSION}: {ran.stderr.decode(errors='replace')[-300:]}"
            )
        found = hashlib.sha256(archives[0].read_bytes()).hexdigest()
        if found != SHA256:
            raise NotFetched(f"axe-core {VERSION} has SHA-256 {found}, not {SHA256} as pinned")
        with tarfile.open(archives[0]) as archive:
            script = archive.extractfile("package/axe.min.js")
            assert script is not None
            fresh = work / "axe.min.js"
            fresh.write_bytes(script.read())
        fresh.replace(FETCHED)  # complete or not there at all: tests fetch at the same time


if __name__ == "__main__":
    try:
        axe()
    except NotFetched as problem:
        sys.exit(f"error: {problem}")
