"""`horsies dev`: everything a developer needs in one terminal, started anew when a file changes.

The app is imported by the processes that this one starts, never here, so that new code is new code. They live in sessions of
their own and die with this process: Ctrl-C is told to them by us, and none is left behind.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import IO

import click

from horsies.cli.options import locator_of
from horsies.errors import use_color
from horsies.worker.system import die_with_parent

# So often files are looked at.
LOOK_SECONDS = 0.4
# An editor may write several files, or one in several steps.
SETTLE_SECONDS = 0.1
STOP_SECONDS = 10.0
COLORS = {"worker": "36", "web": "35", "dev": "32"}
SKIPPED = {"__pycache__", "node_modules", "site-packages"}

Snapshot = dict[str, int]


@click.command()
@click.argument("locator", required=False)
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="How many tasks run at once.",
)
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=8600, show_default=True, help="The dashboard's port."
)
@click.option("--no-web", is_flag=True, help="Leave the dashboard out.")
@click.option("--no-reload", is_flag=True, help="Keep running the code as it was.")
def dev(locator: str | None, processes: int, port: int, no_web: bool, no_reload: bool) -> None:
    """Run the app at LOCATOR while you work on it: worker, schedules and dashboard, reloaded on change.

    Without a configured database, a PostgreSQL of our own is started. Ctrl-C ends everything.
    """
    where = locator_of(locator, None)
    services = [Service("worker", [sys.executable, "-m", "horsies.cli.dev_worker", where, str(processes)])]
    if not no_web:
        services += _dashboard(where, port)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a shell may have had us ignore the first
        signal.signal(number, _interrupt)
    bench = Bench(services, None if no_reload else _folders(where))
    try:
        bench.run()
    except KeyboardInterrupt:
        say("dev", "stopping")
    finally:
        signal.signal(signal.SIGINT, lambda _number, _frame: bench.kill())
        bench.stop()


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _dashboard(locator: str, port: int) -> list[Service]:
    if find_spec("horsies.web") is None or find_spec("uvicorn") is None:
        say("dev", "no dashboard: pip install 'horsies[web]' brings it")
        return []
    words = [sys.executable, "-m", "horsies", "web", locator, "--port", str(port), "--enable-actions"]
    return [Service("web", words)]


def say(name: str, line: str) -> None:
    """One line for the terminal, with who said it."""
    color = use_color(os.environ, sys.stdout.isatty())
    label = f"{name:<6} |"
    click.echo(f"\x1b[{COLORS[name]}m{label}\x1b[0m {line}" if color else f"{label} {line}")


@dataclass
class Service:
    """A process that is to run, and what it says."""

    name: str
    words: list[str]
    process: subprocess.Popen[bytes] | None = None
    _unsaid: bytes = b""

    def start(self) -> IO[bytes]:
        """Start it; gives the pipe that it speaks through."""
        self.process = subprocess.Popen(
            self.words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
            preexec_fn=partial(die_with_parent, os.getpid()),  # safe: there is no other thread
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        return self.process.stdout

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def read(self) -> bool:
        """Pass on whole lines; False when it will say no more."""
        assert self.process is not None
        assert self.process.stdout is not None
        said = self.process.stdout.read()
        if said is None:
            return True
        *lines, self._unsaid = (self._unsaid + said).split(b"\n")
        for line in lines if said else [*lines, self._unsaid] if self._unsaid else []:
            say(self.name, line.decode(errors="replace"))
        return bool(said)

    def send(self, number: signal.Signals) -> None:
        if self.process is not None and self.is_running:
            self.process.send_signal(number)


class Bench:
    """The processes, started together, watched, and started anew when a file changes; without folders, never."""

    def __init__(self, services: Iterable[Service], folders: list[Path] | None) -> None:
        self._services = list(services)
        self._folders = folders
        self._pipes = selectors.DefaultSelector()

    def run(self) -> None:
        """Until interrupted; without reloading, until the worker ends by itself."""
        seen = self._look()
        while True:
            self._start()
            while seen == (now := self._look()) and (
                self._folders is not None or self._services[0].is_running
            ):
                self._listen(LOOK_SECONDS)
            if self._folders is None:
                return
            changed = sorted(file for file in {*seen, *now} if seen.get(file) != now.get(file))
            time.sleep(SETTLE_SECONDS)
            seen = self._look()
            say("dev", f"{os.path.relpath(changed[0])} has changed: starting anew")
            self.stop()

    def stop(self) -> None:
        """End all; running tasks get their time, and who takes longer is killed."""
        deadline = time.monotonic() + STOP_SECONDS
        for service in self._services:
            service.send(signal.SIGTERM)
        while any(service.is_running for service in self._services):
            if time.monotonic() > deadline:
                self.kill()
            self._listen(0.02)
        self._listen(0)
        for key in [*self._pipes.get_map().values()]:  # one that something else keeps open, too
            self._pipes.unregister(key.fileobj)

    def kill(self) -> None:
        for service in self._services:
            service.send(signal.SIGKILL)

    def _start(self) -> None:
        for service in self._services:
            self._pipes.register(service.start(), selectors.EVENT_READ, service)

    def _listen(self, seconds: float) -> None:
        """Pass on what is said within a time."""
        for key, _ in self._pipes.select(seconds):
            service: Service = key.data
            if not service.read():
                self._pipes.unregister(key.fileobj)
                self._tell_end(service)
        if not self._pipes.get_map():
            time.sleep(seconds)

    def _tell_end(self, service: Service) -> None:
        assert service.process is not None
        code = service.process.wait()
        if code > 0:
            hint = "" if self._folders is None else "; it starts again when a file changes"
            say("dev", f"{service.name} ended with exit code {code}{hint}")

    def _look(self) -> Snapshot:
        """Every Python file of the app, and when it was last written."""
        return {} if self._folders is None else dict(_files(self._folders))


def _folders(locator: str) -> list[Path]:
    """Where the code of an app is: the folder that we run in, and that of its file if it is elsewhere."""
    here, target = Path.cwd(), locator.partition(":")[0]
    folder = Path(target).resolve().parent if target.endswith(".py") else here
    return [here] if folder.is_relative_to(here) else [here, folder]


def _files(folders: Iterable[Path]) -> Iterator[tuple[str, int]]:
    left = [str(folder) for folder in folders]
    while left:
        with os.scandir(left.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if (
                        not entry.name.startswith(".")
                        and entry.name not in SKIPPED
                        and not _is_venv(entry.path)
                    ):
                        left.append(entry.path)
                elif entry.name.endswith(".py"):
                    yield entry.path, _written(entry)


def _is_venv(folder: str) -> bool:
    return Path(folder, "pyvenv.cfg").exists()


def _written(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_mtime_ns
    except FileNotFoundError:  # it went away while we looked
        return 0
