"""`horsies dev`: it runs the code as it is now, and leaves no process behind."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

import psutil
import pytest
from click.testing import CliRunner

from horsies.cli import horsies
from horsies.cli.dev import DRAIN_SECONDS, is_source
from tests.support.waiting import eventually

APP = """
app = Horsies(AppConfig(schedule=ScheduleConfig(schedules=[])))

@app.task("version")
def version() -> TaskResult[int, TaskError]:
    return TaskResult(ok={version})
"""


def is_alive(process: psutil.Process) -> bool:
    """Return True if the process runs; a zombie does not."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_changed_file_is_run_as_it_is_now_and_one_interrupt_ends_everything(workplace):
    workplace.write(APP.format(version=1))
    log = workplace.folder / "dev.log"
    with log.open("wb") as out:
        dev = subprocess.Popen(
            [sys.executable, "-m", "horsies", "dev", "app:app", "--processes", "1", "--no-web"],
            cwd=workplace.folder, env=workplace.env, stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
    try:
        version = workplace.load().version
        assert version.send().unwrap().get(timeout_ms=30_000).unwrap() == 1
        first = psutil.Process(dev.pid).children(recursive=True)

        workplace.write("def broken(:")
        eventually(
            lambda: "worker ended with exit code 1" in log.read_text(), what="the broken file being told"
        )
        assert not any(map(is_alive, first))
        workplace.write(APP.format(version=2))
        assert version.send().unwrap().get(timeout_ms=30_000).unwrap() == 2

        second = psutil.Process(dev.pid).children(recursive=True)
        assert second
        dev.send_signal(signal.SIGINT)
        assert dev.wait(20) == 0
    finally:
        dev.kill()
        dev.wait()
    said = log.read_text()
    assert not any(map(is_alive, second))
    assert "worker | error[HRS-210]: importing 'app' failed with SyntaxError" in said
    assert "dev    | app.py has changed: restarting" in said
    assert "Scheduler started: 0 schedules" in said
    assert "Traceback" not in said
    assert all(line.startswith(("dev    |", "worker |")) for line in said.splitlines())


HANGING = """
app = Horsies()

@app.task("hang")
def hang() -> TaskResult[None, TaskError]:
    print("the task has begun", flush=True)
    time.sleep(60)
    return TaskResult(ok=None)
"""


@pytest.mark.parametrize(
    ("interrupts", "cause"), [(1, "which did not end within 3 s"), (2, "because it was told to stop a second time")]
)  # fmt: skip
def test_a_task_that_it_kills_when_it_stops_is_recorded_as_such(workplace, interrupts, cause):
    workplace.write(HANGING)
    log = workplace.folder / "dev.log"
    with log.open("wb") as out:
        dev = subprocess.Popen(
            [sys.executable, "-m", "horsies", "dev", "app:app", "--processes=1", "--no-web", "--no-reload"],
            cwd=workplace.folder, env=workplace.env, stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
    try:
        handle = workplace.load().hang.send().unwrap()
        eventually(lambda: "the task has begun" in log.read_text(), what="the task having begun")
        dev.send_signal(signal.SIGINT)
        eventually(lambda: "waiting up to 3 s" in log.read_text(), what="the worker stopping")
        if interrupts == 2:
            dev.send_signal(signal.SIGINT)
        assert dev.wait(20) == 0
    finally:
        dev.kill()
        dev.wait()

    error = handle.get(timeout_ms=10_000).err_value
    assert error.message.startswith("the task was lost: the worker was stopped and killed this task")
    assert cause in error.message
    assert "memory" not in log.read_text()


def test_the_log_level_reaches_the_worker_and_the_dashboard(workplace):
    workplace.write("import logging\nlogging.getLogger('shop').info('tasks imported')\ndef broken(:")

    full = workplace.run("dev", "app:app", "--no-web", "--no-reload", "--loglevel=DEBUG")
    brief = workplace.run("dev", "app:app", "--no-web", "--no-reload")

    assert "worker | Traceback" in full.stdout
    assert "worker | Traceback" not in brief.stdout
    assert "worker | error[HRS-210]" in brief.stdout


def test_an_app_named_by_the_project_runs_from_any_of_its_folders(workplace):
    workplace.write("raise RuntimeError('found it')")
    (workplace.folder / "pyproject.toml").write_text("[tool.horsies]\napp = 'app:app'\n")
    workplace.folder = workplace.folder / "deep"
    workplace.folder.mkdir()

    said = workplace.run("dev", "--no-web", "--no-reload").stdout

    assert "worker | error[HRS-210]: importing 'app' failed with RuntimeError: found it" in said


def test_a_change_in_the_project_restarts_it_from_any_of_its_folders(workplace):
    workplace.write("raise RuntimeError('first')")
    (workplace.folder / "pyproject.toml").write_text("[tool.horsies]\napp = 'app:app'\n")
    (workplace.folder / "deep").mkdir()
    log = workplace.folder / "dev.log"
    with log.open("wb") as out:
        dev = subprocess.Popen(
            [sys.executable, "-m", "horsies", "dev", "--processes=1", "--no-web"],
            cwd=workplace.folder / "deep", env=workplace.env, stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
    try:
        eventually(lambda: "RuntimeError: first" in log.read_text(), what="the first failure")
        workplace.write("raise RuntimeError('second')")
        eventually(lambda: "RuntimeError: second" in log.read_text(), what="the second failure")
        dev.send_signal(signal.SIGINT)
        assert dev.wait(20) == 0
    finally:
        dev.kill()
        dev.wait()


def test_a_taken_port_is_told_by_the_dashboard_while_the_worker_goes_on(workplace):
    workplace.write(APP.format(version=1))
    log = workplace.folder / "dev.log"
    with socket.create_server(("127.0.0.1", 0)) as other, log.open("wb") as out:
        port = str(other.getsockname()[1])
        dev = subprocess.Popen(
            [sys.executable, "-m", "horsies", "dev", "app:app", "--processes=1", "--no-reload", "--port", port],
            cwd=workplace.folder, env=workplace.env, stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
        try:
            eventually(lambda: "web ended with exit code 1" in log.read_text(), what="the dashboard's end")
            assert workplace.load().version.send().unwrap().get(timeout_ms=30_000).unwrap() == 1
            dev.send_signal(signal.SIGINT)
            assert dev.wait(20) == 0
        finally:
            dev.kill()
            dev.wait()
    assert "web    | error[HRS-231]" in log.read_text()
    assert "dashboard at" not in log.read_text()


def test_without_an_app_it_says_how_to_name_one(workplace):
    result = workplace.run("dev")

    assert result.returncode == 2
    assert "give LOCATOR as package.module:app" in result.stderr


def test_the_help_says_how_long_running_tasks_get() -> None:
    shown = " ".join(CliRunner().invoke(horsies, ["dev", "--help"]).output.split())

    assert f"Running tasks get {DRAIN_SECONDS} s to end, at a restart and at the stop" in shown


def test_without_watchfiles_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)

    refused = CliRunner().invoke(horsies, ["dev", "app:app"])

    assert refused.exit_code == 1
    assert "error[HRS-219]" in refused.output
    assert "/path/to/horsies[dev]" in refused.output
    assert "--no-reload" in refused.output


def test_without_the_dashboards_packages_it_names_them_and_runs_the_rest(
    workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.chdir(workplace.folder)

    ended = CliRunner().invoke(horsies, ["dev", "no_such_file.py:app", "--no-reload"])

    assert "no dashboard without uvicorn: install horsies with the extra web from your clone" in ended.output


def test_without_reloading_it_ends_with_its_worker(workplace):
    workplace.write("def broken(:")

    result = workplace.run("dev", "app:app", "--no-web", "--no-reload")

    assert result.returncode == 1
    assert "dev    | worker ended with exit code 1\n" in result.stdout


@pytest.mark.parametrize(
    ("file", "is_watched"),
    [
        ("app.py", True),
        ("shop/tasks.py", True),
        ("dev.log", False),
        (".cache/app.py", False),
        ("env/lib/python3.11/site-packages/click/core.py", False),
        ("node_modules/gyp/gyp.py", False),
    ],
)
def test_only_the_python_files_of_the_project_are_watched(tmp_path, file, is_watched):
    hidden_parent = tmp_path / ".work" / "project"

    assert is_source(str(hidden_parent / file), [hidden_parent]) is is_watched
