"""`horsies dev`: run a worker, the schedules and the dashboard in one terminal, and restart them when a file changes.

Only the child processes import the app, so that a restart runs the new code. Each child has a session of its own and dies
with this process: Ctrl-C reaches this process only, which then stops the children.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import click

from horsies.cli.locators import project_file
from horsies.cli.options import app_argument, load, log_level
from horsies.cli.output import raise_all, report
from horsies.cli.signals import restored_handlers
from horsies.config import WorkerConfig
from horsies.errors import ConfigurationError, ErrorCode, how_to_install, use_color
from horsies.executor.child import die_with_parent
from horsies.validation import check

# How long to wait for output between two looks at the changed files.
OUTPUT_SECONDS = 0.4
# An editor may write several files, or one in several steps: a change is complete when nothing else changes for one step.
STEP_MS, DEBOUNCE_MS = 50, 500
STOP_SECONDS = 10.0
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# How long running tasks may take to end before a restart.
DRAIN_SECONDS = 3
COLORS = {"worker": "36", "web": "35", "dev": "32"}
SKIPPED = {"__pycache__", "node_modules", "site-packages"}


@click.command()
@app_argument
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Run tasks in this many processes.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8600,
    show_default=True,
    help="Serve the dashboard on this port; 0 takes a free one.",
)
@click.option("--no-web", is_flag=True, help="Do not start the dashboard.")
@click.option(
    "--no-reload", is_flag=True, help="Do not watch files; end when the worker ends, and exit 1 if it failed."
)
@log_level("INFO")
@restored_handlers(*STOP_SIGNALS)
def dev(locator: str, processes: int, port: int, no_web: bool, no_reload: bool, loglevel: str) -> None:
    """Run the app for development: its worker, its schedules if it has any, and the dashboard.

    All are restarted when a Python file changes below the working directory, below the folder of the app's file, or below
    the folder of the pyproject.toml that names the app. Running tasks get 3 s to end, at a restart and at the stop; then
    they are killed. The dashboard needs the extra `web`, watching files the extra `dev`. Without a configured database, an
    embedded PostgreSQL is started, which needs the extra `local`. Ctrl-C stops the worker and the dashboard, and leaves the
    embedded PostgreSQL running: `horsies db stop` stops it.
    """
    if not no_reload and find_spec("watchfiles") is None:
        raise ConfigurationError(
            "`horsies dev` watches files with watchfiles, which is not installed",
            code=ErrorCode.EXTRA_NOT_INSTALLED,
            help_text=f"{how_to_install('dev')}; or run it with --no-reload",
        )
    commands = {"worker": ["horsies.cli.dev", locator, str(processes), loglevel]}
    missing = [name for name in ("uvicorn", "starlette", "jinja2") if find_spec(name) is None]
    if not no_web and missing:
        say("dev", f"no dashboard without {', '.join(missing)}: {how_to_install('web')}")
    elif not no_web:
        commands["web"] = [
            "horsies", "web", locator, "--port", str(port), "--enable-actions", "--loglevel", loglevel,
        ]  # fmt: skip
    for number in STOP_SIGNALS:  # a shell may have made us ignore SIGINT
        signal.signal(number, signal.default_int_handler)
    supervisor = Supervisor(commands, None if no_reload else _folders(locator))
    code = 0
    try:
        code = supervisor.run()
    except KeyboardInterrupt:
        say("dev", "stopping")
    finally:
        signal.signal(signal.SIGINT, lambda _number, _frame: supervisor.hurry())
        supervisor.close()
    sys.exit(1 if code else 0)


def _folders(locator: str) -> list[Path]:
    """Return the folders to watch: the working directory, and those of the app's file and project if they are elsewhere."""
    here, target = Path.cwd(), locator.partition(":")[0]
    folders = [here, Path(target).resolve().parent if target.endswith(".py") else here, *_project_folder()]
    return [
        folder
        for number, folder in enumerate(folders)
        if folder not in folders[:number]
        and not any(folder != other and folder.is_relative_to(other) for other in folders)
    ]


def _project_folder() -> list[Path]:
    """Return the folder of pyproject.toml if this process imports the app from it."""
    project = project_file()
    return [project.parent] if project is not None and str(project.parent) in sys.path else []


def _environment() -> dict[str, str]:
    """Return the environment of the services: they import from the folder of pyproject.toml if this process does."""
    inherited = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([*map(str, _project_folder()), *([inherited] if inherited else [])])
    return {**os.environ, "PYTHONUNBUFFERED": "1", **({"PYTHONPATH": path} if path else {})}


def say(name: str, line: str) -> None:
    """Print one line with the name of the process that wrote it."""
    color = use_color(os.environ, sys.stdout.isatty())
    label = f"{name:<6} |"
    click.echo(f"\x1b[{COLORS[name]}m{label}\x1b[0m {line}" if color else f"{label} {line}")


class Service(subprocess.Popen[bytes]):
    """A child process that runs a module, and its output."""

    def __init__(self, name: str, words: Sequence[str]) -> None:
        self.name = name
        self._unfinished_line = b""
        super().__init__(
            [sys.executable, "-m", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_environment(),
            start_new_session=True,
            preexec_fn=partial(die_with_parent, os.getpid()),  # safe: no other thread runs Python
        )
        assert self.stdout is not None
        self.output = self.stdout
        os.set_blocking(self.output.fileno(), False)

    def print_output(self) -> bool:
        """Print the complete lines that there are; return False at the end of the output."""
        output = self.output.read()
        if output is None:
            return True
        *lines, self._unfinished_line = (self._unfinished_line + output).split(b"\n")
        if not output and self._unfinished_line:
            lines.append(self._unfinished_line)
        for line in lines:
            say(self.name, line.decode(errors="replace"))
        return bool(output)


class Supervisor:
    """Starts the services together, prints their output, and restarts them when a file in the folders changes."""

    def __init__(self, commands: Mapping[str, Sequence[str]], folders: list[Path] | None) -> None:
        self._commands = commands
        self._folders = folders
        self._services: list[Service] = []
        self._is_hurrying = False
        self._pipes = selectors.DefaultSelector()

    def run(self) -> int:
        """Run until interrupted; without folders to watch, until the worker ends by itself. Return its exit code."""
        if self._folders is None:
            self._start()
            while (code := self._services[0].poll()) is None:
                self._print_output(OUTPUT_SECONDS)
            return code
        changes = changed_files(self._folders)
        next(changes)  # watches from here on, so that no change during the start is missed
        self._start()
        for changed in changes:
            if changed:
                say("dev", f"{os.path.relpath(changed[0])} has changed: restarting")
                self.stop()
                self._start()
            self._print_output(OUTPUT_SECONDS)
        return 0

    def stop(self) -> None:
        """Stop all services; running tasks may end first, and a service that takes too long is killed."""
        deadline = time.monotonic() + STOP_SECONDS
        for service in self._services:
            service.terminate()
        while any(service.poll() is None for service in self._services):
            if time.monotonic() > deadline:
                self.kill()
            self._print_output(0.02)
        self._print_output(0)
        for key in [*self._pipes.get_map().values()]:  # a grandchild may still hold a pipe open
            self._pipes.unregister(key.fileobj)
        for service in self._services:
            service.output.close()

    def close(self) -> None:
        """Stop all services, and start none of them again."""
        self.stop()
        self._pipes.close()

    def hurry(self) -> None:
        """Let the worker kill its tasks and record that; called again, kill all services."""
        if self._is_hurrying:
            self.kill()
        self._is_hurrying = True
        for service in self._services:
            service.terminate()

    def kill(self) -> None:
        for service in self._services:
            service.kill()

    def _start(self) -> None:
        self._services = []
        for name, words in self._commands.items():
            service = Service(name, words)
            self._services.append(service)
            self._pipes.register(service.output, selectors.EVENT_READ, service)

    def _print_output(self, seconds: float) -> None:
        """Wait for output up to this time, and print it; report a service that has failed."""
        for key, _ in self._pipes.select(seconds):
            service: Service = key.data
            if service.print_output():
                continue
            self._pipes.unregister(key.fileobj)
            code = service.wait()
            if code > 0:
                hint = "" if self._folders is None else "; it starts again when a file changes"
                say("dev", f"{service.name} ended with exit code {code}{hint}")
        if not self._pipes.get_map():
            time.sleep(seconds)


def changed_files(folders: list[Path]) -> Iterator[list[str]]:
    """Yield the Python files that have changed since the last look, several times a second, even if there are none."""
    from watchfiles import watch  # part of an extra

    # The filter is applied here: watchfiles would yield nothing as long as files change that it filters out.
    looks = watch(
        *folders,
        watch_filter=None,
        debounce=DEBOUNCE_MS,
        step=STEP_MS,
        rust_timeout=STEP_MS,
        yield_on_timeout=True,
        ignore_permission_denied=True,
    )
    for changes in looks:
        yield sorted({path for _, path in changes if is_source(path, folders)})


def is_source(path: str, folders: Iterable[Path]) -> bool:
    """Return True for a Python file that is not in a hidden folder or among installed packages."""
    if not path.endswith(".py"):
        return False
    inside = [Path(path).relative_to(folder) for folder in folders if Path(path).is_relative_to(folder)]
    return any(
        not any(part.startswith(".") or part in SKIPPED for part in relative.parent.parts)
        for relative in inside
    )


def run_worker(locator: str, processes: int, loglevel: str) -> int:
    """Run the worker of `horsies dev`: like `horsies worker`, with a scheduler if the app has schedules."""
    try:
        app = load(locator, loglevel)
        schedules = app.schedule_config is not None and app.schedule_config.enabled
        raise_all(check(app, schedules=schedules))
        app.run_worker(
            WorkerConfig(
                app_locator=locator,
                processes=processes,
                loglevel=loglevel,
                with_scheduler=schedules,
                drain_seconds=DRAIN_SECONDS,
            )
        )
    except Exception as error:  # noqa: BLE001  every error is reported to the user
        report(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(run_worker(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
