"""Run a worker during an example, so that one command is enough."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def worker(file: str, *flags: str) -> Generator[None]:
    """Run `horsies worker examples/….py:app` in the background."""
    command = [sys.executable, "-m", "horsies", "worker", f"{file}:app", "--loglevel", "ERROR", *flags]
    process = subprocess.Popen([*command, "--processes", "2"])
    try:
        yield
    finally:
        process.terminate()
        process.wait()
