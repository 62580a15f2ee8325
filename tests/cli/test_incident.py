"""The incident that docs/operations.md tells, played in a terminal: a real worker, and the very commands of the page."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.docs.pages import ROOT, Block, blocks
from tests.docs.reader import agrees, commands
from tests.support.workers import Workplace

PAGE = ROOT / "docs" / "operations.md"
PROMPT = "on-call> "
SECONDS = 30.0
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """A shell that believes that a person sits in front of it."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._end, other = pty.openpty()
        settings = {"PS1": PROMPT, "COLUMNS": "200", "TERM": "xterm-256color"}
        scripts = Path(sys.executable).parent
        env = {**env, **settings, "PATH": f"{scripts}:{env['PATH']}"}
        env.pop("NO_COLOR", None)
        self._shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "--noediting", "-i"],
            cwd=folder, env=env, stdin=other, stdout=other, stderr=other, start_new_session=True,
        )  # fmt: skip
        os.close(other)
        self.colored = False
        self._until_prompt()
        self.type("stty -echo")

    def type(self, command: str) -> list[str]:
        """What a command shows."""
        os.write(self._end, f"{command}\n".encode())
        shown = self._until_prompt()
        self.colored |= "\x1b[" in shown
        return _ESCAPES.sub("", shown).removesuffix(PROMPT).replace("\r", "").splitlines()

    def _until_prompt(self) -> str:
        shown, deadline = "", time.monotonic() + SECONDS
        while not _ESCAPES.sub("", shown).endswith(PROMPT):
            ready, _, _ = select.select([self._end], [], [], deadline - time.monotonic())
            assert ready, f"no prompt within {SECONDS} s:\n{shown}"
            shown += os.read(self._end, 65_536).decode()
        return shown

    def close(self) -> None:
        self._shell.kill()
        self._shell.wait()
        os.close(self._end)


def incident() -> Iterator[Block]:
    """The blocks of the story."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    first = lines.index("## Handle an incident") + 1
    last = next(number for number, line in enumerate(lines) if number > first and line.startswith("## "))
    yield from (block for block in blocks(PAGE) if first < block.line <= last)


def shows(expected: list[str], shown: list[str]) -> bool:
    rest = iter(shown)
    return all(any(agrees(wanted, line) for line in rest) for wanted in expected)


def test_the_incident_of_the_page_ends_well(workplace: Workplace) -> None:
    source, *session = incident()
    (workplace.folder / "shop.py").write_text(source.text)
    terminal = Terminal(workplace.folder, workplace.env)
    try:
        for block in session:
            for command, expected in commands(block.text):
                if command.startswith("horsies worker"):
                    _, _, locator, *flags = shlex.split(command)
                    workplace.start(*flags, locator=locator)
                    continue
                _play(terminal, command, expected)
    finally:
        terminal.close()

    assert terminal.colored


def _play(terminal: Terminal, command: str, expected: list[str]) -> None:
    """Enter a command until it shows what the page says: what workers do takes a moment, and acts come right at once."""
    deadline = time.monotonic() + SECONDS
    while not shows(expected, shown := terminal.type(command)):
        only_looks = command.split()[1] in ("info", "events")
        assert only_looks, f"{command!r} showed {shown}"
        assert time.monotonic() < deadline, f"{command!r} still shows {shown}"
    assert terminal.type("echo $?") == ["0"], f"{command!r} showed {shown}"
