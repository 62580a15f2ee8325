"""Homes for real servers. Whatever a test does, its server is stopped and leaves no process behind."""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from horsies import embedded

NO_SYNC = {"fsync": "off"}
# Imports come before the drop: the interpreter itself may lie where an ordinary user can't go.
PREAMBLE = """
import ctypes, encodings.idna, os, pathlib, signal, sys, time
import psycopg
from horsies import embedded
from horsies.errors import EmbeddedError
home = pathlib.Path(sys.argv[1])
"""
DROP = "os.setgroups([]); os.setgid({gid}); os.setuid({uid})\n"


def wait_for(condition: Callable[[], object], what: str, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.005)


def processes_in(folder: Path) -> list[int]:
    """Every process that works in a folder: a postmaster and all its children do, in their data."""
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            cwd = (entry / "cwd").readlink()
        except OSError:
            continue
        if cwd == folder:
            found.append(int(entry.name))
    return found


def new_folder() -> Path:
    """A temporary folder; in memory where there is plenty, for every data directory takes 40 MB."""
    memory = Path("/dev/shm")
    plenty = memory.is_dir() and shutil.disk_usage(memory).free > 2 * 1024**3
    return Path(tempfile.mkdtemp(prefix="horsies-test-", dir=memory if plenty else None))


def retire(home: Path) -> None:
    data = embedded.data_directory(home)
    embedded.stop(home)
    wait_for(lambda: not processes_in(data), f"the last process in {data} to end")
    embedded.stop(home, remove=True)


@contextmanager
def new_home(name: str = "home") -> Iterator[Path]:
    """A home that root's server can enter too, unlike pytest's own temporary folders."""
    folder = new_folder()
    folder.chmod(0o711)
    try:
        yield folder / name
    finally:
        retire(folder / name)
        shutil.rmtree(folder)


@pytest.fixture
def new() -> Iterator[Path]:
    """A home that nothing has been put into yet."""
    with new_home() as home:
        yield home


@pytest.fixture(scope="session")
def template() -> Iterator[Path]:
    """A home with the data of a stopped server: to copy it takes a tenth of the time of initdb."""
    with new_home() as home:
        embedded.ensure(home, settings=NO_SYNC)
        embedded.stop(home)
        yield home


@pytest.fixture
def home(template: Path) -> Iterator[Path]:
    """A home whose server has run before."""
    with new_home() as home:
        subprocess.run(["cp", "-a", template, home], check=True)
        yield home


@pytest.fixture(scope="session")
def shared_home() -> Iterator[Path]:
    """The home of a running server for tests that only read."""
    with new_home() as home, pytest.MonkeyPatch.context() as environment:
        environment.setenv("PAYMENT_KEY", "s3cret")
        embedded.ensure(home, settings=NO_SYNC)
        yield home


@pytest.fixture
def shared(shared_home: Path) -> embedded.Server:
    return embedded.ensure(shared_home)


@pytest.fixture
def others_home() -> Iterator[Path]:
    """A home of an ordinary user: of `nobody` when we are root."""
    folder = new_folder()
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    try:
        yield folder / "home"
    finally:
        folder.chmod(0o700)
        retire(folder / "home")
        shutil.rmtree(folder)


@pytest.fixture
def private_home(tmp_path: Path) -> Iterator[Path]:
    """A home in a folder that only its owner can enter, like root's own."""
    tmp_path.chmod(0o700)
    yield tmp_path / "home"
    retire(tmp_path / "home")


class Scripts:
    """Python programs with `embedded` and `home` at hand, run in processes of their own."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []

    def spawn(
        self, home: Path, code: str, *, ordinary: bool = False, umask: int = -1
    ) -> subprocess.Popen[str]:
        program = PREAMBLE
        if ordinary and os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            program += DROP.format(uid=nobody.pw_uid, gid=nobody.pw_gid)
        process = subprocess.Popen(
            [sys.executable, "-c", program + textwrap.dedent(code), str(home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            umask=umask,
        )
        self.processes.append(process)
        return process

    def run(self, home: Path, code: str, *, ordinary: bool = False, umask: int = -1) -> str:
        return self.result(self.spawn(home, code, ordinary=ordinary, umask=umask))

    def result(self, process: subprocess.Popen[str]) -> str:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        return out.strip()

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def scripts() -> Iterator[Scripts]:
    scripts = Scripts()
    try:
        yield scripts
    finally:
        scripts.close()


@pytest.fixture
def eventually() -> Callable[..., None]:
    return wait_for


@pytest.fixture
def ask() -> Callable[..., object]:
    """The first column of the first row of a query."""

    def ask(url: str, query: str) -> object:
        with psycopg.connect(url, autocommit=True) as connection:
            cursor = connection.execute(query)
            row = cursor.fetchone() if cursor.description else None
            return row[0] if row else None

    return ask
