"""Check the distributions in build/dist: `make release-check`, or `python -m tests.release [PYTHON…]`.

The wheel and the source distribution must hold the package and nothing else. The wheel is installed in an empty environment of
each CPython, the source distribution in one of the first, and every extra is resolved. A line is printed for each of them. Any
problem ends the run with exit code 1.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
DIST = ROOT / "build" / "dist"

# One of each kind of data file, so that a folder that is empty by mistake is noticed.
NEEDED = {
    "horsies/py.typed",
    "horsies/cli/explanations.json",
    "horsies/db/schema/0001_initial.sql",
    "horsies/db/schema/roles.sql",
    "horsies/db/queries/tasks.sql",
    "horsies/web/static/main.js",
    "horsies/web/static/base.css",
    "horsies/web/templates/layout.html",
    "horsies/docs/index.md",
}
# What a source distribution has at its top, besides the folders `horsies` and `docs`.
SOURCE_FILES = {".gitignore", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}

IDENTITY = """
import ensurepip, sys, venv
assert sys.implementation.name == "cpython" and sys.version_info >= (3, 11)
print(sys._base_executable)
print(sys.base_prefix)
print("%d.%d.%d" % sys.version_info[:3])
"""
USE = """
import horsies, horsies.pytest_plugin
from importlib.metadata import entry_points, version
assert [each.value for each in entry_points(group="pytest11", name="horsies")] == ["horsies.pytest_plugin"]
assert all(getattr(horsies, name) is not None for name in horsies.__all__)
assert version("horsies") == horsies.__version__
print(horsies.__file__)
"""
APP = """\
from horsies import AppConfig, Horsies

app = Horsies(AppConfig.for_database_url("postgresql://localhost/nowhere"))


@app.task
def add(x: int, y: int) -> int:
    return x + y

"""


class Problem(Exception):
    """A distribution does not hold or do what it must."""


@dataclass(frozen=True, slots=True)
class Python:
    """An interpreter on this machine."""

    path: str
    version: str


def run(*words: str | Path, cwd: Path) -> str:
    """Run a command that sees neither the source tree nor a database, and return its output."""
    unset = {"PYTHONPATH", "VIRTUAL_ENV", "HORSIES_DATABASE_URL", "DATABASE_URL"}
    env = {key: value for key, value in os.environ.items() if key not in unset}
    done = subprocess.run(
        words, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        command = " ".join(map(str, words))
        raise Problem(f"`{command}` exited with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def expect(text: str, output: str) -> None:
    """Raise a problem unless an output has this text."""
    if text not in output:
        raise Problem(f"{text!r} is missing in the output:\n{output}")


def interpreters(candidates: Iterable[str]) -> list[Python]:
    """Return each CPython from 3.11 on among the candidates that can make environments, oldest first."""
    found: dict[tuple[str, str], Python] = {}
    for candidate in candidates:
        asked = subprocess.run([candidate, "-c", IDENTITY], capture_output=True, text=True, check=False)
        if asked.returncode == 0:
            path, prefix, version = asked.stdout.splitlines()
            found.setdefault((prefix, version), Python(path, version))
    return sorted(found.values(), key=lambda python: [int(part) for part in python.version.split(".")])


def candidates() -> Iterator[str]:
    """Yield the interpreters on the path, in the system's folders and of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    folders = [*os.get_exec_path(), "/usr/bin", "/usr/local/bin", *pyenv.glob("versions/*/bin")]
    for folder in dict.fromkeys(map(Path, folders)):
        for path in sorted(folder.glob("python3*")):
            if re.fullmatch(r"python3(\.\d+)?", path.name) and os.access(path, os.X_OK):
                yield str(path)


def package_files() -> set[str]:
    """Return the files that the wheel must hold: the package, with the pages for `horsies get-docs`."""
    code = (path for path in (ROOT / "horsies").rglob("*") if path.is_file() and path.suffix != ".pyc")
    files = {str(path.relative_to(ROOT)) for path in code} | {f"horsies/{page}" for page in pages()}
    if missing := NEEDED - files:
        raise Problem(f"not in the source tree: {', '.join(sorted(missing))}")
    return files


def pages() -> list[str]:
    """Return the pages that are distributed."""
    return [str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")]


def check_wheel(wheel: Path) -> str:
    """Check the files of the wheel, and return a summary."""
    with zipfile.ZipFile(wheel) as files:
        there = {name for name in files.namelist() if ".dist-info/" not in name}
    return compare(there, package_files())


def check_source(source: Path) -> str:
    """Check the files of the source distribution, and return a summary."""
    with tarfile.open(source) as files:
        there = {member.name.partition("/")[2] for member in files.getmembers() if member.isfile()}
    code = {name for name in package_files() if not name.startswith("horsies/docs/")}
    return compare(there, {*code, *pages(), *SOURCE_FILES})


def compare(there: set[str], wanted: set[str]) -> str:
    """Raise a problem if a distribution lacks a file or has one too many, and return a summary."""
    if missing := wanted - there:
        raise Problem(f"missing: {', '.join(sorted(missing))}")
    if surplus := there - wanted:
        raise Problem(f"not expected: {', '.join(sorted(surplus))}")
    return f"{len(there)} files"


def check_install(python: Python, distribution: Path, folder: Path) -> str:
    """Install a distribution in a new environment below a folder, use it there, and return a summary."""
    environment = folder / "env"
    run(python.path, "-m", "venv", environment, cwd=folder)
    programs = environment / "bin"
    pip = [programs / "python", "-m", "pip"]
    run(*pip, "install", "--quiet", "--no-compile", distribution, "pytest", cwd=folder)
    run(*pip, "check", cwd=folder)
    expect(str(environment), run(programs / "python", "-c", USE, cwd=folder))
    version = run(programs / "horsies", "--version", cwd=folder).strip()
    expect(version.rpartition(" ")[2], distribution.name)

    (folder / "app.py").write_text(APP, encoding="utf-8")
    expect("1 task, nothing wrong", run(programs / "horsies", "check", "app:app", cwd=folder))
    expect("CREATE TABLE horsies_tasks", run(programs / "horsies", "migrate", "--sql", cwd=folder))
    expect("HRS-206", run(programs / "horsies", "explain", "206", cwd=folder))
    expect(f"{len(pages())} pages written", run(programs / "horsies", "get-docs", "pages", cwd=folder))
    return version


def check_extra(environment: Path, wheel: Path, extra: str) -> str:
    """Resolve the packages of an extra for an environment, and return a summary."""
    pip = [environment / "bin" / "python", "-m", "pip", "install", "--dry-run"]
    output = run(*pip, f"{wheel}[{extra}]", cwd=environment)
    *_, last = [line for line in output.splitlines() if line.startswith("Would install ")] or [""]
    return f"{len(last.split()) - 2 if last else 0} packages"


def extras() -> list[str]:
    """Return the names of the optional dependencies."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*project["optional-dependencies"]]


def attempt(name: str, check: Callable[[], str]) -> bool:
    """Run a check and print its line; return True if it found no problem."""
    started = time.monotonic()
    try:
        summary = check()
    except Problem as problem:
        print(f"FAILED  {name}: {problem}", flush=True)
        return False
    print(f"ok      {name}: {summary} ({time.monotonic() - started:.0f} s)", flush=True)
    return True


def main(words: list[str]) -> int:
    """Check all distributions on the given interpreters, or on all of this machine; return the exit code."""
    [wheel], [source] = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    pythons = interpreters(words or candidates())
    if not pythons:
        print("FAILED  there is no CPython 3.11 or later with its venv module on this machine")
        return 1
    scratch = Path(tempfile.mkdtemp(prefix="horsies-release-"))

    def install(numbered: tuple[int, tuple[Python, Path]]) -> bool:
        number, (python, distribution) = numbered
        folder = scratch / str(number)
        folder.mkdir()
        name = f"CPython {python.version} ({python.path}), {distribution.name}"
        return attempt(name, lambda: check_install(python, distribution, folder))

    def resolve(extra: str) -> bool:
        name = f"CPython {pythons[0].version}, extra {extra}"
        return attempt(name, lambda: check_extra(scratch / "0" / "env", wheel, extra))

    try:
        passed = [
            attempt(wheel.name, lambda: check_wheel(wheel)),
            attempt(source.name, lambda: check_source(source)),
        ]
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            jobs = [*((python, wheel) for python in pythons), (pythons[0], source)]
            passed += threads.map(install, enumerate(jobs))
            passed += threads.map(resolve, extras())
    finally:
        shutil.rmtree(scratch)
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
