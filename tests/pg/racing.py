"""Several processes that do the same thing at the same moment."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

PREAMBLE = """
import sys

def ready():
    print("ready", flush=True)
    sys.stdin.readline()
"""


def race(script: str, url: str, processes: int) -> list[str]:
    """What each process printed. The script gets the URL as its argument, and goes on from `ready()` with all others."""
    command = [sys.executable, "-c", PREAMBLE + textwrap.dedent(script), url]
    with ExitStack() as stack:
        racers = [stack.enter_context(_process(command)) for _ in range(processes)]
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        printed = [racer.communicate(timeout=60)[0] for racer in racers]
        assert [racer.returncode for racer in racers] == [0] * processes
    return printed


@contextmanager
def _process(command: list[str]) -> Generator[subprocess.Popen[str]]:
    """A process that does not outlive the test, however that ends."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        try:
            yield process
        finally:
            process.kill()
