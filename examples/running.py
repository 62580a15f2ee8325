"""A worker for as long as an example takes, so that one command shows everything."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def worker(file: str, *flags: str) -> Generator[None]:
    """What `horsies worker examples/….py:app` in another terminal would do."""
    command = [sys.executable, "-m", "horsies", "worker", f"{file}:app", "--loglevel", "WARNING", *flags]
    process = subprocess.Popen([*command, "--processes", "2"])
    try:
        yield
    finally:
        process.terminate()
        process.wait()
