"""Workers as users run them: a folder with an app, and `horsies worker` processes started in it."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from uuid import uuid4

from tests.support.waiting import eventually

HEADER = """
import os, sys, time, signal, asyncio, json
from datetime import datetime, timedelta, UTC
from pathlib import Path
from horsies import *
"""


# What they say when they are at work.
READY = {"worker": "Concurrency config:", "scheduler": "Scheduler started:"}


class RunningWorker:
    """A `horsies worker` or `horsies scheduler` process of its own session, so that signals reach it and not us."""

    def __init__(
        self,
        folder: Path,
        env: dict[str, str],
        arguments: list[str],
        command: str = "worker",
        program: Sequence[str] = ("-m", "horsies"),
        wrapper: Sequence[str] = (),
    ) -> None:
        self._log = folder / f"{command}-{uuid4().hex[:8]}.log"
        self._command = command
        words = [*wrapper, sys.executable, *program, command, *arguments]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                words,
                cwd=folder,
                env=env,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_until_ready(self) -> RunningWorker:
        def ready() -> bool:
            assert self.process.poll() is None, (
                f"the {self._command} exited with {self.process.returncode}:\n{self.log}"
            )
            return READY[self._command] in self.log

        eventually(ready, 30, "the worker being ready")
        return self

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = 20) -> int:
        """The exit code, once it has ended."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker did not end within {seconds} s:\n{self.log}") from None

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.wait()


class Workplace:
    """A folder in which `app.py` holds the app; give its tasks with `write`, import it here with `load`."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self.folder = folder
        self.database_url = database_url
        self.env = {**os.environ, "HORSIES_DATABASE_URL": database_url, "PYTHONUNBUFFERED": "1"}
        self._workers: list[RunningWorker] = []
        self._module: ModuleType | None = None

    def write(self, source: str, name: str = "app.py") -> Path:
        """Write a module; the usual imports stand at its top."""
        path = self.folder / name
        path.write_text(HEADER + textwrap.dedent(source))
        return path

    def load(self) -> ModuleType:
        """The app's module, imported into the test as its producer; its database is the test's."""
        os.environ["HORSIES_DATABASE_URL"] = self.database_url
        spec = importlib.util.spec_from_file_location(f"app_{uuid4().hex}", self.folder / "app.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        self._module = module
        return module

    def start(
        self,
        *arguments: str,
        locator: str = "app:app",
        ready: bool = True,
        command: str = "worker",
        wrapper: Sequence[str] = (),
    ) -> RunningWorker:
        """Start a worker, or a scheduler, and wait until it listens. A wrapper is a command that runs it."""
        worker = RunningWorker(self.folder, self.env, [locator, *arguments], command, wrapper=wrapper)
        self._workers.append(worker)
        return worker.wait_until_ready() if ready else worker

    def manage(self, *arguments: str) -> RunningWorker:
        """Start a worker by the manage.py of a Django project, and wait until it listens."""
        worker = RunningWorker(
            self.folder, self.env, list(arguments), program=("-W", "error", "manage.py", "horsies")
        )
        self._workers.append(worker)
        return worker.wait_until_ready()

    def run(self, *arguments: str, seconds: float = 30, input: str = "") -> subprocess.CompletedProcess[str]:
        """Run a `horsies` command to its end, with this text as its standard input."""
        command = [sys.executable, "-m", "horsies", *arguments]
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.env,
            input=input,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def __enter__(self) -> Workplace:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            if worker.process.poll() is None:
                worker.process.kill()
                worker.process.wait()
        if self._module is not None:
            asyncio_run_close(self._module)
            del sys.modules[self._module.__name__]
        os.environ.pop("HORSIES_DATABASE_URL", None)


def asyncio_run_close(module: ModuleType) -> None:
    """Close the producer's connections, so that the test's database can be dropped quietly."""
    import asyncio

    asyncio.run(module.app.get_broker().close_async())
