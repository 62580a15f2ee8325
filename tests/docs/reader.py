"""A reader who does what a page says, line by line, in an empty folder and on an empty database.

- `python` blocks whose first line is `# some/file.py` are written to that file; the others are run in one process, in
  order, and print exactly what their `# -> …` comments say.
- `console` blocks: what follows `$ ` is run in the folder and must succeed, and the lines below must be in its output.
  `horsies worker …` is started in the background, awaited, and stopped at the end of the page.
- `sql` blocks are run on the database.
- `toml` and `yaml` blocks must be valid.
- `text` and `ini` blocks are for people.

An `…` stands for anything.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import psycopg
import yaml

from horsies import embedded
from tests.docs.pages import Block
from tests.support.workers import RunningWorker, Workplace

LANGUAGES = {"python", "console", "sql", "text", "toml", "yaml", "ini"}
SECONDS = 60
_FILE = re.compile(r"# (?P<path>[\w./-]+\.py)\n")
_PRINTS = re.compile(r"# -> (.*)$", re.MULTILINE)


def agrees(expected: str, line: str) -> bool:
    """Whether a line is as it was announced.

    >>> agrees("done in … ms", "done in 12 ms")
    True
    """
    return re.fullmatch(".*".join(map(re.escape, expected.strip().split("…"))), line.strip()) is not None


class Reader:
    """Follows one page; use it as a context manager."""

    def __init__(self, page: Path, folder: Path, database_url: str) -> None:
        self._page = page
        self._place = Workplace(folder, database_url)
        self._home = folder / "embedded"
        scripts = Path(sys.executable).parent
        self._place.env |= {
            "PATH": f"{scripts}:{self._place.env['PATH']}",
            "HORSIES_HOME": str(self._home),
            "HORSIES_TEST_DATABASE_URL": database_url,
            "NO_COLOR": "1",
        }
        self._workers: list[RunningWorker] = []
        self._session: subprocess.Popen[str] | None = None

    def follow(self, block: Block) -> None:
        match block.language:
            case "python" if file := _FILE.match(block.text):
                path = self._place.folder / file["path"]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.text, encoding="utf-8")
            case "python":
                self._run_python(block)
            case "console":
                for command, lines in commands(block.text):
                    self._run_command(command, lines)
            case "sql":
                with psycopg.connect(self._place.database_url, autocommit=True) as connection:
                    connection.execute(block.text.encode())
            case "toml":
                tomllib.loads(block.text)
            case "yaml":
                yaml.safe_load(block.text)
            case _:
                pass  # for people

    def _run_python(self, block: Block) -> None:
        expected = _PRINTS.findall(block.text)
        session = self._python()
        assert session.stdin is not None
        assert session.stdout is not None
        request = {"page": str(self._page), "line": block.line, "text": block.text}
        session.stdin.write(json.dumps(request) + "\n")
        session.stdin.flush()
        answer = json.loads(session.stdout.readline())
        assert answer["problem"] is None, answer["problem"]
        printed = answer["printed"].splitlines()
        assert len(printed) == len(expected), f"expected {expected}, and it printed {printed}"
        for said, line in zip(expected, printed, strict=True):
            assert agrees(said, line), f"expected {said!r}, and it printed {line!r}"

    def _python(self) -> subprocess.Popen[str]:
        if self._session is None:
            self._session = subprocess.Popen(
                [sys.executable, "-W", "error", str(Path(__file__).with_name("session.py"))],
                cwd=self._place.folder,
                env=self._place.env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
            )
        return self._session

    def _run_command(self, command: str, lines: list[str]) -> None:
        words = shlex.split(command)
        if words[0] == "make":
            return  # installs packages: `test_clone.py` does that
        if words[:2] == ["horsies", "worker"]:
            self._workers.append(self._place.start(*words[3:], locator=words[2]))
            return
        ran = subprocess.run(
            ["bash", "-c", command],
            cwd=self._place.folder,
            env=self._place.env,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        said = ran.stdout + ran.stderr
        assert ran.returncode == 0, f"{command!r} exited with {ran.returncode}:\n{said}"
        rest = iter(said.splitlines())
        for expected in lines:
            assert any(agrees(expected, line) for line in rest), (
                f"no {expected!r} in what {command!r} said:\n{said}"
            )

    def __enter__(self) -> Reader:
        self._place.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._session is not None:
                self._session.communicate(timeout=SECONDS)
            codes = [worker.stop() for worker in self._workers]
            assert codes == [0] * len(codes), f"the workers of the page ended with {codes}"
        finally:
            self._place.__exit__()
            embedded.stop(self._home, remove=True)


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each command with the lines that follow it."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, *lines = part.splitlines()
        yield command, [line for line in lines if line.strip() not in ("", "…")]
