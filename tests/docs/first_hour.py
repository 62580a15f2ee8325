"""Write `docs/first-hour.md`: what a newcomer types in the first hour, and what the terminal answers.

    python -m tests.docs.first_hour

Every command is run, in an empty folder and with a PostgreSQL of its own. Times, ids, ports and paths are replaced, so that the
transcript is the same every time. With `--install`, horsies is installed from the clone into a new environment first, as the
page says; without it, the environment of the caller is used.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from horsies import embedded
from tests.docs.pages import ROOT
from tests.support.waiting import eventually
from tests.support.workers import READY

PAGE = ROOT / "docs" / "first-hour.md"
MADE = "<!-- Made by `python -m tests.docs.first_hour`: change that script, not this page. -->"
SECONDS = 90
UNSET = {
    "VIRTUAL_ENV",
    "PYTHONPATH",
    "HORSIES_DATABASE_URL",
    "DATABASE_URL",
    "HORSIES_APP",
    "PYTEST_CURRENT_TEST",
}

TASKS = """\
from horsies import Horsies

app = Horsies()


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task
def divide(x: int, y: int) -> float:
    return x / y
"""
SEND = """\
from tasks import add

handle = add.delay(2, 3)
print(handle.result(timeout=10))
"""
WRONG = """\
from tasks import add

add.delay(2, "three")
"""
TYPO = """\
from horsies import Horsies

app = Horsies()


@app.task(retries=3)
def add(x: int, y: int) -> int:
    return x + y
"""
PATIENT = """\
from horsies import TaskTimeout
from tasks import add

handle = add.delay(2, 3)
try:
    print(handle.result(timeout=1))
except TaskTimeout as timeout:
    print(timeout)
print(handle.task_id)
"""
AGAIN = """\
import sys

from tasks import add, app

print(app.handle(sys.argv[1], add).result(timeout=10))
"""
DIVIDE = """\
from tasks import divide

handle = divide.delay(1, 0)
print(handle.task_id)
print(handle.result(timeout=10))
"""


class FirstHour:
    """A newcomer in an empty folder; `page` is what they have written down so far."""

    def __init__(self, folder: Path, *, install: bool) -> None:
        self._folder, self._home, self._install = folder, folder.with_name(f"{folder.name}-home"), install
        self._log = folder.with_name(f"{folder.name}.log")
        environment = folder / ".venv" if install else Path(sys.executable).parents[1]
        kept = {name: value for name, value in os.environ.items() if name not in UNSET}
        self._env = kept | {
            "PATH": f"{environment / 'bin'}:{os.environ['PATH']}",
            "HORSIES_HOME": str(self._home),
            "PYTHONUNBUFFERED": "1",
            "NO_COLOR": "1",
            "COLUMNS": "110",
        }
        self._worker: subprocess.Popen[bytes] | None = None
        self._shown = 0
        self._parts: list[str] = []
        self._clean = Normalizer(
            {str(folder): "~/hour", str(self._home): "~/.local/share/horsies", str(ROOT): "~/src/horsies"}
        )

    def page(self) -> str:
        return "\n\n".join(self._parts) + "\n"

    def say(self, *paragraphs: str) -> None:
        self._parts += paragraphs

    def write(self, name: str, text: str) -> None:
        (self._folder / name).write_text(text, encoding="utf-8")
        self._parts.append(f"```python\n# {name}\n{text}```")

    def skip(self, *commands: str) -> None:
        """Show commands that are run only with `--install`."""
        if self._install:
            for command in commands:
                self._run(command, 0)
        self._show("\n".join(f"$ {command}" for command in commands))

    def type(self, command: str, *, fails: bool = False, env: dict[str, str] | None = None) -> str:
        """Run a command in the second terminal, write down its output, and return it."""
        said = self._run(command, 1 if fails else 0, env)
        self._show(f"$ {command}\n{said}")
        return said

    def _run(self, command: str, code: int, env: dict[str, str] | None = None) -> str:
        ran = subprocess.run(
            ["bash", "-c", command],
            cwd=self._folder,
            env=self._env | (env or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS * (10 if self._install else 1),
            check=False,
        )
        assert ran.returncode == code, f"{command!r} exited with {ran.returncode}:\n{ran.stdout}"
        return ran.stdout

    def start_worker(self, command: str) -> None:
        """Start a worker in the first terminal, and write down what it says until it is ready."""
        self._shown = 0
        with self._log.open("wb") as log:
            self._worker = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self._folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait_for(READY["worker"])
        self._show(f"$ {command}\n{self._unread()}")

    def worker_says(self, text: str) -> None:
        """Write down what the worker has said since the last time, which ends with a line that has this text."""
        self._wait_for(text, after=self._shown)
        self._show(self._unread())

    def stop_worker(self, *, shown: bool = False) -> None:
        if self._worker is not None:
            self._worker.send_signal(signal.SIGINT)
            assert self._worker.wait(SECONDS) == 0, self._log.read_text()
            self._worker = None
            if shown:
                self._show(f"^C\n{self._unread()}")

    def close(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker.wait()
        embedded.stop(self._home, remove=True)

    def _wait_for(self, text: str, after: int = 0) -> None:
        eventually(lambda: self._has_said(text, after), SECONDS, f"{text!r} in the worker's log")

    def _has_said(self, text: str, after: int) -> bool:
        assert self._worker is not None
        said = self._log.read_text(encoding="utf-8")
        assert self._worker.poll() is None, said
        return text in said[after:] and said.endswith("\n")

    def _unread(self) -> str:
        said = self._log.read_text(encoding="utf-8")
        unread, self._shown = said[self._shown :], len(said)
        return unread

    def _show(self, text: str) -> None:
        self._parts.append(f"```text\n{self._clean(text).rstrip()}\n```")


class Normalizer:
    """Replaces everything that differs from one run to the next."""

    def __init__(self, paths: dict[str, str]) -> None:
        self._paths = sorted(paths.items(), key=lambda item: -len(item[0]))
        self._ids: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        for path, shown in self._paths:
            text = text.replace(str(Path(path).resolve()), shown).replace(path, shown)
        text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", self._id, text)
        for pattern, shown in _REPLACED:
            text = re.sub(pattern, shown, text, flags=re.MULTILINE)
        return "\n".join(_without_foreign_frames(map(str.rstrip, text.splitlines())))

    def _id(self, found: re.Match[str]) -> str:
        return self._ids.setdefault(found[0], f"019a0000-0000-7000-8000-{len(self._ids) + 1:012d}")


_REPLACED: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|\+00:00| UTC)?", "2026-11-18 12:00:00"),
    (r"\b\d\d:\d\d:\d\d(?:[.,]\d+)?\b", "12:00:00"),
    (r"(127\.0\.0\.1|localhost):\d{4,5}\b", r"\1:54321"),
    (r"\b(pid|process|port|worker_pid +|worker-)( ?=?)\d{2,}\b", r"\1\g<2>12345"),
    (
        rf"\b{re.escape(socket.gethostname())}\b(:\d+)?",
        lambda found: "myhost" + (":12345" if found[1] else ""),
    ),
    (r"(?<!within )\b(?:\d+(?:\.\d+)? ?ms|\d+\.\d+ s)\b", "0.1 s"),
    (
        r"/var/lib/horsies/\w+",
        "~/.local/share/horsies",
    ),  # where root keeps data if others cannot read the folder
    (r"PostgreSQL \d+\.\d+", "PostgreSQL 18.6"),
    (r"horsies_hour\w*", "horsies_hour"),
    # The columns of the attempts are as wide as the values that were replaced above.
    (r"^(attempt|  +\d+) +(outcome|FAILED) .*$", lambda found: re.sub(r"(?<=\S) {2,}", "   ", found[0])),
]
_FRAME = re.compile(r'( *)File "([^"]*)", line \d+, in ')
_MARKS = re.compile(r" *[\^~]+")


def _without_foreign_frames(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines, but one `…` for all frames of a traceback in a row that are not code of the newcomer."""
    indent, is_foreign, is_cut = 0, False, False
    for line in lines:
        if frame := _FRAME.match(line):
            indent, is_foreign = len(frame[1]), not re.match(r"~/hour/(?!\.venv/)", frame[2])
            if is_foreign and not is_cut:
                yield f"{frame[1]}…"
            is_cut = is_foreign
        elif not line.startswith(" " * (indent + 1)):
            is_foreign = is_cut = False
        if not is_foreign and not _MARKS.fullmatch(line):  # not all versions of Python mark the same
            yield line


def scenes(hour: FirstHour) -> None:
    for scene in SCENES:
        scene(hour)


def _install(hour: FirstHour) -> None:
    hour.say(
        "# The first hour",
        MADE,
        "This page is the transcript of a terminal session. It installs horsies, runs a first task and makes five typical mistakes. A "
        "test repeats the session and compares the output. The [quickstart](quickstart.md) explains the steps.",
        "## Install",
    )
    hour.skip(
        f"git clone --quiet {ROOT} horsies",
        "python3 -m venv .venv && . .venv/bin/activate",
        'pip install --quiet "./horsies[local]"',
    )
    hour.type("horsies --version")


def _first_task(hour: FirstHour) -> None:
    hour.say(
        "## A first task", "No database is configured, so horsies starts its own PostgreSQL for this project."
    )
    hour.write("tasks.py", TASKS)
    hour.say("Start a worker in a terminal of its own:")
    hour.start_worker("horsies worker tasks:app --processes 2")
    hour.say("Send a task from another terminal:")
    hour.write("send.py", SEND)
    hour.type("python send.py")


def _wrong_type(hour: FirstHour) -> None:
    hour.say(
        "## Mistake 1: an argument of the wrong type", "The send raises `SendError`, and nothing is stored:"
    )
    hour.write("wrong.py", WRONG)
    hour.type("python wrong.py", fails=True)


def _unknown_option(hour: FirstHour) -> None:
    hour.say("## Mistake 2: an option that does not exist")
    hour.write("typo.py", TYPO)
    hour.type("horsies check typo:app", fails=True)


def _exception(hour: FirstHour) -> None:
    hour.say(
        "## Mistake 3: an exception in a task", "The caller gets `TaskFailed` with the end of the traceback:"
    )
    hour.write("divide.py", DIVIDE)
    said = hour.type("python divide.py", fails=True)
    hour.say("The worker logs the failure:")
    hour.worker_says("ZeroDivisionError: division by zero\n")
    hour.say("`horsies show` prints the stored task:")
    hour.type(f"horsies show tasks:app {said.split()[0]}")


def _no_worker(hour: FirstHour) -> None:
    hour.say("## Mistake 4: no worker is running", "Stop the worker with Ctrl-C:")
    hour.stop_worker(shown=True)
    hour.say("A task is still stored, and waits:")
    hour.write("patient.py", PATIENT)
    said = hour.type("python patient.py")
    task_id = said.split()[-1]
    hour.type(f"horsies why {task_id} --app tasks:app")
    hour.say("A worker that starts later runs the task. With its id, you can ask for the result again:")
    hour.start_worker("horsies worker tasks:app --processes 2")
    hour.write("again.py", AGAIN)
    hour.type(f"python again.py {task_id}")
    hour.stop_worker()


def _no_database(hour: FirstHour) -> None:
    hour.say("## Mistake 5: the database cannot be reached", "In this URL, no server listens on the port:")
    hour.type("HORSIES_DATABASE_URL=postgresql://ann@127.0.0.1:1/shop python send.py", fails=True)
    hour.type(
        "HORSIES_DATABASE_URL=postgresql://ann@127.0.0.1:1/shop horsies check tasks:app --live", fails=True
    )
    hour.say("Continue with [tasks](tasks.md) and [errors and retries](errors-and-retries.md).")


SCENES: list[Callable[[FirstHour], None]] = [
    _install,
    _first_task,
    _wrong_type,
    _unknown_option,
    _exception,
    _no_worker,
    _no_database,
]


def record(folder: Path, *, install: bool = False) -> str:
    """Live through the first hour in an empty folder, and return the page."""
    hour = FirstHour(folder, install=install)
    try:
        scenes(hour)
    finally:
        hour.close()
    return hour.page()


def main() -> None:
    # Not in the default folder for temporary files, which may have a long name: sockets need short ones.
    base = Path(tempfile.mkdtemp(prefix="horsies-"))
    base.chmod(0o755)
    try:
        (base / "hour").mkdir()
        PAGE.write_text(record(base / "hour", install="--install" in sys.argv), encoding="utf-8")
    finally:
        shutil.rmtree(base)
    print(PAGE.relative_to(ROOT))


if __name__ == "__main__":
    main()
