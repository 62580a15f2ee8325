"""Commands in a terminal: what they show, the keys that they are sent, and how they leave the terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path


class TerminalCommand:
    """A `horsies` command that believes that a person sits in front of it."""

    def __init__(self, words: Sequence[str], folder: Path, env: dict[str, str]) -> None:
        self._end, self._other = pty.openpty()
        fcntl.ioctl(self._other, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self._before = termios.tcgetattr(self._other)
        self.shown = ""
        self.process = subprocess.Popen(
            # A session of its own whose terminal this is: Ctrl-C is turned into a signal as in a shell.
            [sys.executable, "-c", _TAKE_TERMINAL, *words],
            cwd=folder,
            env={**env, "TERM": "xterm-256color"},
            stdin=self._other,
            stdout=self._other,
            stderr=self._other,
            start_new_session=True,
        )

    def type(self, keys: str) -> None:
        os.write(self._end, keys.encode())

    def read_until(self, text: str, seconds: float = 30) -> None:
        """Read until a text is shown."""
        deadline = time.monotonic() + seconds
        while text not in self.shown:
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} was not shown within {seconds} s:\n{self.shown}"
            self._read(min(left, 0.2))

    def wait_until_it_reads(self, seconds: float = 30) -> None:
        """Wait until the command sleeps: for a key once it has asked, or until its next look at the database.

        The interpreter misses a signal between the output of a prompt and the call that waits for the answer, and while it
        imports a module.
        """
        stat = Path(f"/proc/{self.process.pid}/stat")
        deadline = time.monotonic() + seconds
        while stat.read_text().rpartition(")")[2].split()[0] != "S":
            assert time.monotonic() < deadline, f"it does not wait for a key after {seconds} s:\n{self.shown}"
            time.sleep(0.005)

    def wait(self, seconds: float = 30) -> int:
        """Read until the command ends, and return its exit code."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it has not ended within {seconds} s:\n{self.shown}"
            self._read(0.1)
        self._read(0)
        return self.process.returncode

    @property
    def is_restored(self) -> bool:
        """True if the terminal has the settings that it had before the command."""
        return termios.tcgetattr(self._other) == self._before

    def _read(self, seconds: float) -> None:
        while select.select([self._end], [], [], seconds)[0]:
            self.shown += os.read(self._end, 65_536).decode(errors="replace")
            seconds = 0

    def __enter__(self) -> TerminalCommand:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._end)
        os.close(self._other)


_TAKE_TERMINAL = """
import fcntl, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.default_int_handler)
from horsies.cli import main
main()
"""
